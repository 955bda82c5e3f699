/*
 * What each column of a line means, worked out: schema.c makes it, row.h and its parts follow it.
 */
#ifndef WORKER_DATA_ROW_PLAN_H
#define WORKER_DATA_ROW_PLAN_H

#include <stdbool.h>

#include "common/base.h"

#define ROW_COLUMNS_MAX 1024u
#define ROW_LOG1P_TABLE 65536u
#define ROW_NO_LABEL UINT16_MAX

enum row_numeric { ROW_LOG1P, ROW_STANDARDISE, ROW_RAW };

struct row_span {
    char *at; /* borrowed, not NUL-terminated */
    size_t len;
};

struct row_field {
    uint16_t column;
    bool is_bucket; /* else categorical */
};

struct row_quick;

/* All pointers are borrowed from the schema. */
struct row_plan {
    uint32_t n_columns;
    const char *const *names; /* [n_columns], NULL where a column has none; may be NULL */
    const char *delimiter;    /* one or more characters */
    char quote;               /* 0 for none; only with a delimiter of one character */
    uint16_t label_column;    /* ROW_NO_LABEL: every label is 0 */
    const struct row_span *positive; /* [n_positive] tokens; none: the number */
    uint32_t n_positive;
    const char *missing; /* a token, beside the empty one; "" for none */
    bool missing_has_key;
    const char *inner_separator; /* "" for none */
    enum row_numeric numeric_as;
    float numeric_missing;         /* what stands for a missing number */
    const float *mean, *std;       /* [n_numeric], for ROW_STANDARDISE */
    const float *log1p_table;      /* [ROW_LOG1P_TABLE]: (float)log1p(0), (float)log1p(1) ... */
    const struct row_quick *quick; /* row_quick.h; NULL: every row goes the plain way */
    uint32_t n_numeric, n_fields;
    uint16_t numeric_columns[ROW_COLUMNS_MAX];
    struct row_field fields[ROW_COLUMNS_MAX];
};

#endif
