/*
 * psd_rows, which callers of several versions of the header fill, as the engine's sections.
 */
#ifndef WORKER_LIBPSD_SECTIONS_H
#define WORKER_LIBPSD_SECTIONS_H

#include "worker/libpsd/handle.h"

/* Fills ret[0 .. n); n has been checked. -EINVAL with a sentence. What the engine checks, tables, codecs and the
 * order of keys, is left to it. */
int sections_read_pull(const psd_rows *rows, uint32_t n, struct ps_pull_section *ret,
                       struct err *err) MUST_CHECK;
int sections_read_push(const psd_rows *rows, uint32_t n, struct ps_push_section *ret,
                       struct err *err) MUST_CHECK;

/* Fills *ret, up to what is checked with its table. -EINVAL with a sentence. */
int sections_read_assign(const psd_rows *rows, psd_rows *ret, struct err *err) MUST_CHECK;

/* 0 <= n <= PSD_SECTIONS_MAX, and an array if there are any. */
int sections_check(const char *call, const psd_rows *rows, int n, struct err *err) MUST_CHECK;

#endif
