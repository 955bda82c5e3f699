/*
 * One line of a click log -> one sample of a batch: split, convert, hash. What each column
 * means stands in a plan, which schema.c makes; this file only follows it.
 *
 *     label         a token of `positive`, or the number 0 or 1
 *     numeric       log1p(max(x, 0)) in double, rounded to float | (x - mean) / std | x;
 *                   a missing value is 0 after that
 *     categorical   key = XXH3_64(token), seeded by the field's number;
 *                   missing: the key of the empty token, or no key
 *     bucket        key = XXH3_64(bucket as 8 bytes, little-endian), seeded likewise;
 *                   missing as above; bucket = -1 below 0, floor(x) below 3,
 *                   else floor(ln(x)^2) + 2
 */
#ifndef WORKER_DATA_ROW_H
#define WORKER_DATA_ROW_H

#include <stdbool.h>

#include "common/status.h"
#include "worker/data/batch.h"

#define ROW_COLUMNS_MAX 1024u
#define ROW_LOG1P_TABLE 4096u
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
    float numeric_missing;    /* what stands for a missing number */
    const float *mean, *std;  /* [n_numeric], for ROW_STANDARDISE */
    const float *log1p_table; /* [ROW_LOG1P_TABLE]: (float)log1p(0), (float)log1p(1) ... */
    uint32_t n_numeric, n_fields;
    uint16_t numeric_columns[ROW_COLUMNS_MAX];
    struct row_field fields[ROW_COLUMNS_MAX];
};

/*
 * Cuts a line at its delimiters; returns how many spans there are, at most n_max (what is left
 * over is then not looked at). Quoted spans lose their quotes, in place. 0: a quote is not
 * closed.
 */
uint32_t row_split(const char *delimiter, char quote, char *line, size_t len,
                   struct row_span *spans, uint32_t n_max);

/*
 * Adds the line to the batch, which has room for a sample; scribbles on the line. PS_EDATA,
 * with a sentence that names the column, for a malformed one, and -ENOMEM: both leave the batch
 * with the samples it had.
 */
int row_parse(const struct row_plan *plan, char *line, size_t len, struct batch *b,
              struct err *why) MUST_CHECK;

/* PS_EDATA unless the line names the plan's columns in the plan's order;
 * scribbles on the line. */
int row_check_header(const struct row_plan *plan, char *line, size_t len, struct err *why)
    MUST_CHECK;

#endif
