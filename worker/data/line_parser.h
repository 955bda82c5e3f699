/*
 * One line of a click log -> one sample of a batch: split, convert, hash. schema.c makes the plan of the
 * columns; this file follows it. line_parser_simd.h has a faster path for the most common plan; this path
 * is its definition.
 *
 *     label         a token of `positive`, or the number 0 or 1
 *     numeric       log1p(max(x, 0)) in double, rounded to float | (x - mean) / std | x;
 *                   a missing value is 0 after that
 *     categorical   key = XXH3_64(token), seeded by the field (schema.h);
 *                   missing: the key of the empty token, or no key; with a hashing space of N keys
 *                   hash_mix2(seed, XXH3_64 % N) in its place, as of a bucket
 *     bucket        key = XXH3_64(bucket as 8 bytes, little-endian), seeded likewise;
 *                   missing as above; bucket = -1 below 0, floor(x) below 3,
 *                   else floor(ln(x)^2) + 2
 *
 * A number is [-+] digits [. digits] [e [-+] digits], with nothing before or after it: no hexadecimal, no
 * inf, no nan.
 */
#ifndef WORKER_DATA_LINE_PARSER_H
#define WORKER_DATA_LINE_PARSER_H

#include <stdbool.h>

#include "common/hash.h"
#include "common/status.h"
#include "worker/data/batch.h"

#define LINE_PARSER_COLUMNS_MAX 1024u
#define LINE_PARSER_LOG1P_TABLE 65536u
#define LINE_PARSER_LABELS_MAX 8u

enum line_parser_numeric { LINE_PARSER_LOG1P, LINE_PARSER_STANDARDISE, LINE_PARSER_RAW };

struct line_parser_span {
    char *at; /* borrowed, not NUL-terminated */
    size_t len;
};

struct line_parser_field {
    uint16_t column;
    bool is_bucket; /* else categorical */
    uint64_t seed;  /* of its keys */
    uint64_t space; /* different keys at most; 0: as many as hashes */
};

/* The key of a token or bucket with this hash. */
static inline uint64_t line_parser_key_of(const struct line_parser_field *field, uint64_t hash)
{
    return field->space ? hash_mix2(field->seed, hash % field->space) : hash;
}

struct line_parser_simd;

/* The meaning of each column. All pointers are borrowed from the schema. */
struct line_parser_plan {
    uint32_t n_columns;
    const char *const *names; /* [n_columns], NULL where a column has none; may be NULL */
    const char *delimiter;    /* one or more characters */
    char quote;               /* 0 for none; only with a delimiter of one character */
    uint32_t n_labels;        /* 0: every label is 0 */
    uint16_t label_columns[LINE_PARSER_LABELS_MAX];
    const struct line_parser_span *positive; /* [n_positive] tokens; none: the number */
    uint32_t n_positive;
    const char *missing; /* a token, beside the empty one; "" for none */
    bool missing_has_key;
    const char *inner_separator; /* "" for none */
    enum line_parser_numeric numeric_as;
    float numeric_missing;   /* the value of a missing number */
    const float *mean, *std; /* [n_numeric], for LINE_PARSER_STANDARDISE */
    const float
        *log1p_table; /* [LINE_PARSER_LOG1P_TABLE]: (float)log1p(0), (float)log1p(1) ... */
    const struct line_parser_simd *simd; /* line_parser_simd.h; NULL: it is not used */
    uint32_t n_numeric, n_fields;
    bool has_spaces; /* some fields have a hashing space */
    uint16_t numeric_columns[LINE_PARSER_COLUMNS_MAX];
    struct line_parser_field fields[LINE_PARSER_COLUMNS_MAX];
};

/*
 * Splits a line at its delimiters; returns the number of spans, at most n_max (the rest of the line is
 * then not read). Quoted spans lose their quotes, in place. 0: a quote is not closed.
 */
uint32_t line_parser_split(const char *delimiter, char quote, char *line, size_t len,
                           struct line_parser_span *spans, uint32_t n_max);

/* The double nearest to the text. False, with *ret untouched, when it is not a finite number. */
bool line_parser_decimal(const char *text, size_t len, double *ret) MUST_CHECK;

enum line_parser_number {
    LINE_PARSER_NUMBER_OK,
    LINE_PARSER_NUMBER_MALFORMED,
    LINE_PARSER_NUMBER_TOO_LARGE
};

/* The token of numeric column i as the float that a batch holds. *ret is written in any case. */
enum line_parser_number line_parser_number(const struct line_parser_plan *plan, uint32_t i,
                                           struct line_parser_span token, float *ret);

/*
 * Adds the line to the batch, which has space for a sample; changes the line. PS_EDATA, with a sentence
 * that names the column, for a malformed one, and -ENOMEM: both leave the batch with the samples it had.
 */
int line_parser_parse(const struct line_parser_plan *plan, char *line, size_t len,
                      struct batch *b, struct err *why) MUST_CHECK;

/* Adds the keys of one token of this field to b->keys, as line_parser_parse() would, and to b->n_keys.
 * Errors as above; b->n_keys is then unchanged. */
int line_parser_keys(const struct line_parser_plan *plan, uint32_t field, char *token,
                     size_t len, struct batch *b, struct err *why) MUST_CHECK;

/*
 * The parts of line_parser_parse(), for values that do not come from a line: `token` is what would stand there as text.
 * Errors as above.
 */

/* Whether the token stands for a missing value. */
bool line_parser_is_missing(const struct line_parser_plan *plan, struct line_parser_span token);

int line_parser_label(const struct line_parser_plan *plan, uint32_t i,
                      struct line_parser_span token, float *ret, struct err *why) MUST_CHECK;

/* line_parser_number() with a sentence. */
int line_parser_numeric(const struct line_parser_plan *plan, uint32_t i,
                        struct line_parser_span token, float *ret, struct err *why) MUST_CHECK;

/* What a batch holds for the number x of numeric column i, which is not missing. */
float line_parser_transform(const struct line_parser_plan *plan, uint32_t i, double x);

/* Adds the keys of one token, none if it is missing: a field without a key then has the one of line_parser_keys(plan,
 * field, "", 0), if any. */
int line_parser_value_keys(const struct line_parser_plan *plan, uint32_t field,
                           struct line_parser_span token, struct batch *b, struct err *why)
    MUST_CHECK;

/* PS_EDATA, with a sentence about the token and its column. */
int line_parser_refuse(const struct line_parser_plan *plan, uint32_t column,
                       struct line_parser_span token, const char *what, struct err *why);

/* PS_EDATA unless the line names the plan's columns in the plan's order; changes the line. */
int line_parser_check_header(const struct line_parser_plan *plan, char *line, size_t len,
                             struct err *why) MUST_CHECK;

#endif
