/*
 * `psworker key`: prints the keys of a token's rows in the embedding tables, for `psctl row`.
 */
#ifndef WORKER_KEY_COMMAND_H
#define WORKER_KEY_COMMAND_H

#include <stdio.h>

#include "worker/settings.h"

/* A line for each key that `token`, as it would stand in a log, has in the column of this name or position; none
 * where it is missing and --missing-as says skip. --data is read only where its first line says what columns
 * there are. PS_ESETTING, PS_EDATA with a sentence. */
int key_command_print(const struct settings *s, const char *column, const char *token,
                      FILE *out, struct err *err) MUST_CHECK;

#endif
