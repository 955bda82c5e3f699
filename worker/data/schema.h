/*
 * The schema of a click log: the kind of each column, and its conversion to a number or a key.
 *
 *     column kinds   label | numeric | categorical | ignored
 *     numeric        log1p(max(x, 0)) | (x - mean) / std | x | bucket -> categorical;
 *                    a missing one is 0 after that
 *     categorical    key = XXH3_64(token), with its field's seed; a missing token
 *                    has the empty token's key, or leaves the bag empty (missing = "skip");
 *                    an inner separator makes it a bag
 *                    a hashing space of N keys: hash_mix2(seed, XXH3_64(token) modulo N)
 *     seed           by name: XXH3_64(name of the column), so that the keys of a column stay if others
 *                    come, go or move; a column without a name has its position, "14", for a name.
 *                    By position: the number of its field. Columns that share a table have one seed
 *
 * Numerics and fields are numbered in the order of the columns in the file, whatever the order
 * of the lists. line_parser.h has the formulas.
 */
#ifndef WORKER_DATA_SCHEMA_H
#define WORKER_DATA_SCHEMA_H

#include <stdbool.h>

#include "common/status.h"
#include "worker/data/input_pipe.h"
#include "worker/data/line_parser.h"

#define SCHEMA_COLUMNS_MAX LINE_PARSER_COLUMNS_MAX
#define SCHEMA_NAME_MAX 64u /* bytes of a column's name, with NUL */

enum schema_numeric { SCHEMA_LOG1P, SCHEMA_STANDARDISE, SCHEMA_RAW, SCHEMA_BUCKET };
enum schema_missing { SCHEMA_MISSING_KEY, SCHEMA_MISSING_SKIP };
enum schema_keys { SCHEMA_KEYS_BY_POSITION, SCHEMA_KEYS_BY_NAME };

/*
 * As settings say it; NULL is as good as "". Lists of columns hold positions ("0,3-7", from 0)
 * or names ("age,hours-per-week"), or both; "*" is every column that no other list names.
 *
 * A preset says all of delimiter, header, columns, label, numeric and categorical; of these the
 * last four must then be empty. Its columns have names too: label, I1 .. I13, C1 .. C26.
 */
struct schema_text {
    const char *preset; /* "", "criteo", "criteo-unlabelled" */
    /* One or more characters; \t \s \\ stand for tab, space, backslash: "\t", ",", ",\s". */
    const char *delimiter;
    bool header;         /* the first line of each file names the columns */
    const char *columns; /* names for files without a header: "age,workclass,..." */
    const char *label;   /* a column, or several, one for each task; "" for none */
    /* Tokens that mean 1, comma-separated, all others 0; "": the number 0 or 1. */
    const char *label_positive;
    const char *numeric, *categorical; /* lists of columns */
    /* List: numeric columns that become categoricals; need not stand in `numeric` too. */
    const char *bucketise;
    const char *ignored; /* list: columns that are ignored, besides those that no list names */
    const char *missing; /* token that means missing, beside the empty one: "?" */
    enum schema_missing missing_as;
    const char *inner_separator; /* of multi-valued categoricals; "" for none */
    /* A character around fields that hold the delimiter, doubled inside; "" for none. */
    const char *quote;
    enum schema_numeric numeric_as;
    /* Groups of categoricals, "target,history;user,author": those of a group have the seed of its first. */
    const char *shared;
    enum schema_keys keys;
};

struct schema;

/*
 * first_line: of the first file, NUL-terminated, or NULL when a preset or `columns` says how
 * many columns there are. PS_ESETTING, with the setting's name, what was found and, for a
 * column that is not there, which ones are; -ENOMEM.
 */
int schema_new(const struct schema_text *text, const char *first_line,
               struct schema **ret_schema, struct err *err) MUST_CHECK;

/* The same, with the first line of the file at path, or the columns of a Parquet file. It is read if it is needed: by a
 * prescan, if it is one of the pipes (may be NULL). */
int schema_open(const struct schema_text *text, struct input_pipes *pipes, const char *path,
                struct schema **ret_schema, struct err *err) MUST_CHECK;

void schema_free(struct schema *s);

/* The seed of a column of this name. */
uint64_t schema_seed(const char *name);

/* Changes the seeds of all fields; nothing reads rows by the schema meanwhile. PS_ESETTING: two columns, by name, would
 * have one seed and do not share a table; the seeds are then unchanged. */
int schema_use_keys(struct schema *s, enum schema_keys keys, struct err *err) MUST_CHECK;
enum schema_keys schema_keys(const struct schema *s);

/* Gives field i a hashing space of n keys, 0: none; and one table and seed with field j, and those that have theirs. As
 * above nothing reads rows meanwhile. PS_ESETTING: one of them is bucketised. */
void schema_set_space(struct schema *s, uint32_t i, uint64_t n);
int schema_share(struct schema *s, uint32_t i, uint32_t j, struct err *err) MUST_CHECK;
/* True if some fields share a table. */
bool schema_shares(const struct schema *s);

/* Floats of a sample; and bags of one: categoricals, then bucketised numerics. */
uint32_t schema_n_numeric(const struct schema *s);
uint32_t schema_n_fields(const struct schema *s);

bool schema_has_header(const struct schema *s);
bool schema_has_label(const struct schema *s);

/* Labels of a sample of a batch, in the order of the columns: 1 also if there is none. */
uint32_t schema_n_labels(const struct schema *s);

/* Of numeric or field i: its column's name, "" where columns have none, and position. */
const char *schema_numeric_name(const struct schema *s, uint32_t i);
const char *schema_field_name(const struct schema *s, uint32_t i);
uint32_t schema_field_column(const struct schema *s, uint32_t i);

/* The name of numeric or field i as keys and exports take it: the column's, or its position as text. */
void schema_numeric_id(const struct schema *s, uint32_t i, char ret[SCHEMA_NAME_MAX]);
void schema_field_id(const struct schema *s, uint32_t i, char ret[SCHEMA_NAME_MAX]);
/* A label's, in the same way; "" for none. */
void schema_label_id(const struct schema *s, uint32_t i, char ret[SCHEMA_NAME_MAX]);
/* The field that has the table of field i: the first of its group, or i itself. */
uint32_t schema_field_table(const struct schema *s, uint32_t i);

/* The rules of line_parser_parse(), borrowed; and the same for files without the label's column. */
const struct line_parser_plan *schema_plan(const struct schema *s);
const struct line_parser_plan *schema_plan_unlabelled(const struct schema *s);

/* A missing number stays one, as a NaN, instead of 0. Nothing reads rows by the schema meanwhile. */
void schema_keep_missing(struct schema *s, bool keeps);

/* Standardisation, [n_numeric] each, copied; until set, mean 0 and std 1. A std of 0, or one
 * that is not finite, counts as 1. */
bool schema_needs_moments(const struct schema *s);
void schema_set_moments(struct schema *s, const float *mean, const float *std);

#endif
