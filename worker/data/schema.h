/*
 * What a line of a click log means: which column is what, and how it becomes a number or a key.
 *
 *     column kinds   label | numeric | categorical | ignored
 *     numeric        log1p(max(x, 0)) | (x - mean) / std | x | bucket -> categorical
 *     categorical    key = XXH3_64(token) seeded by the column's number in the schema; a missing token has the empty
 *                    token's key, or leaves the bag empty (missing = "skip"); an inner separator makes it a bag
 */
#ifndef WORKER_DATA_SCHEMA_H
#define WORKER_DATA_SCHEMA_H

#include <stdbool.h>

#include "common/status.h"

#define SCHEMA_COLUMNS_MAX 1024u
#define SCHEMA_NAME_MAX 64u

enum schema_numeric { SCHEMA_LOG1P, SCHEMA_STANDARDISE, SCHEMA_RAW, SCHEMA_BUCKET };
enum schema_missing { SCHEMA_MISSING_KEY, SCHEMA_MISSING_SKIP };

/* As settings say it; texts are lists of positions ("0,3-7", from 0) or header names ("age,hours-per-week"). */
struct schema_text {
    const char *preset;      /* "", "criteo", "criteo-unlabelled" */
    const char *delimiter;   /* one or more characters: "\\t", ",", ", " */
    bool header;             /* the first line of each file names the columns */
    const char *columns;     /* names for files without a header: "age,workclass,..."; "" for none */
    const char *label;       /* a column; "" for none */
    const char *label_positive; /* tokens that mean 1, comma-separated; "" : the number 1 */
    const char *numeric, *categorical; /* lists of columns; "*" for all others; "" for none */
    const char *bucketise;   /* numeric columns that become categoricals */
    const char *missing;     /* token that means missing beside the empty one: "?" */
    enum schema_missing missing_as;
    const char *inner_separator; /* of multi-valued categoricals; "" for none */
    enum schema_numeric numeric_as;
};

struct schema;

/* Positions are resolved now; header names when the first line of a file is seen (schema_bind_header). first_line: of the first file,
 * or NULL when nothing needs it. The sentence says which column was not found and which are there. */
int schema_new(const struct schema_text *text, const char *first_line, struct schema **ret_schema, struct err *err) MUST_CHECK;
void schema_free(struct schema *s);

uint32_t schema_n_numeric(const struct schema *s); /* floats of a sample */
uint32_t schema_n_fields(const struct schema *s);  /* bags of a sample: categoricals, then bucketised numerics */
bool schema_has_header(const struct schema *s);
const char *schema_numeric_name(const struct schema *s, uint32_t i);
const char *schema_field_name(const struct schema *s, uint32_t i);

/* Standardisation, [n_numeric] each; until set, mean 0 and std 1. */
bool schema_needs_moments(const struct schema *s);
void schema_set_moments(struct schema *s, const float *mean, const float *std);

#endif
