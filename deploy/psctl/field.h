/* Fields of psd's answers (JSON), and how their values are shown. What is missing reads as 0, "" or NULL: an older psd
 * may not know a field. */
#ifndef DEPLOY_PSCTL_FIELD_H
#define DEPLOY_PSCTL_FIELD_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdio.h>

#include "common/base.h"

double field_number(const cJSON *object, const char *name);
const char *field_text(const cJSON *object, const char *name);
const cJSON *field_child(const cJSON *object, const char *name);
bool field_is_true(const cJSON *object, const char *name);

/* The item of a list whose field has this text; NULL: none. */
const cJSON *field_find(const cJSON *list, const char *name, const char *value);

/* Space for what the functions below write and return. */
#define FIELD_CELL_MAX 48

const char *field_format_count(char dst[static FIELD_CELL_MAX], double n);
/* Of a rate or a count that need not be exact: 12, 1.2 k, 3.4 M. */
const char *field_format_short(char dst[static FIELD_CELL_MAX], double n);
const char *field_format_bytes(char dst[static FIELD_CELL_MAX], double n);
const char *field_format_ns(char dst[static FIELD_CELL_MAX], double ns);
/* How long something has lasted, in its greatest unit. */
const char *field_format_lasting(char dst[static FIELD_CELL_MAX], double ms);

/* A field with so many decimals; "-" if it is no number. */
const char *field_format_maybe(char dst[static FIELD_CELL_MAX], const cJSON *object,
                               const char *name, int decimals);

/* Prints a text of a peer's or the server's, safe at a terminal. */
void field_put(FILE *out, const char *before, const char *value, const char *after);

#endif
