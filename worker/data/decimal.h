/*
 * A decimal number as click logs write it: [-+] digits [. digits] [e [-+] digits], nothing
 * before or behind. No hexadecimal, no inf, no nan.
 */
#ifndef WORKER_DATA_DECIMAL_H
#define WORKER_DATA_DECIMAL_H

#include <stdbool.h>

#include "common/base.h"

/* The double nearest to what stands there. False, with *ret untouched, when it is not a number
 * or not a finite one. */
bool decimal_parse(const char *text, size_t len, double *ret) MUST_CHECK;

#endif
