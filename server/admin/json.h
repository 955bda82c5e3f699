/*
 * A writer of JSON: puts the commas, escapes the texts, keeps every u64 exact (which a double
 * would not). Keys are our own words; a NULL key is an element of an array.
 */
#ifndef SERVER_ADMIN_JSON_H
#define SERVER_ADMIN_JSON_H

#include <stdbool.h>
#include <stdio.h>

#include "common/base.h"

struct json {
    FILE *out; /* borrowed; its error flag is the caller's to look at */
    bool comma;
};

void json_open(struct json *j, const char *key); /* { */
void json_close(struct json *j);                 /* } */
void json_open_list(struct json *j, const char *key);
void json_close_list(struct json *j);
void json_u64(struct json *j, const char *key, uint64_t value);
/* Finite; with so many digits that it reads back the same. */
void json_float(struct json *j, const char *key, float value);
/* The same; null if it is not finite. */
void json_maybe_float(struct json *j, const char *key, float value);
/* Microseconds as seconds, every digit of them. */
void json_seconds(struct json *j, const char *key, uint64_t us);
void json_bool(struct json *j, const char *key, bool value);
void json_text(struct json *j, const char *key, const char *value); /* NULL reads as "" */

#endif
