/*
 * The rows of a Parquet file, as line_parser.h has them of text: what a row becomes is what the same row becomes as
 * text, key for key, and what refuses it is the same sentence.
 *
 *     columns      by name where the schema has names, else by position; others of the file are not read
 *     NULL         a missing value, as is an empty text, and the text of --missing
 *     integers     the decimal number; booleans 1 and 0
 *     reals        numeric: the number itself; categorical: its text (parquet_token.h)
 *     text         its bytes
 *     LIST         categorical only: a bag, each element as a value of its own; an empty one is missing
 *
 * Rows come in blocks: for each, every column in turn is decoded and converted. An entry of a dictionary is converted
 * once for a row group. Rows that nobody fetches cost little, pages of nothing else no more than a look at their head.
 *
 * Memory: for each column that is read a page (parquet_column.h), a dictionary with about 50 bytes for each of its
 * entries, 64 KiB of the file, and the keys of a block; 16 bytes for each row group, and the footer.
 */
#ifndef WORKER_DATA_PARQUET_ROWS_H
#define WORKER_DATA_PARQUET_ROWS_H

#include "worker/data/line_parser.h"

#define PARQUET_ROWS_BLOCK_MAX 512u

struct parquet_rows;

/* plan is borrowed. block_rows: as many rows one after another are fetched, as a rule; at most PARQUET_ROWS_BLOCK_MAX
 * are decoded at once. PS_EDATA for a file that is damaged, lacks a column, or has one of a type that cannot be
 * read. */
int parquet_rows_open(const char *path, const struct line_parser_plan *plan,
                      uint32_t block_rows, struct parquet_rows **ret, struct err *err)
    MUST_CHECK;
void parquet_rows_close(struct parquet_rows *r);

/* To the next row; false behind the last. */
bool parquet_rows_next(struct parquet_rows *r);

/* Reads the row at hand. PS_EDATA: the file is damaged; -ENOMEM, a negative errno. */
int parquet_rows_fetch(struct parquet_rows *r, struct err *err) MUST_CHECK;

/* Adds the row, fetched, to the batch, as line_parser_parse() does. */
int parquet_rows_add(struct parquet_rows *r, struct batch *b, struct err *why) MUST_CHECK;

/* Of the row at hand, from 1; and the part of the file up to it. */
uint64_t parquet_rows_number(const struct parquet_rows *r);
uint64_t parquet_rows_bytes(const struct parquet_rows *r);

/* Of a file: how many rows; PS_EDATA for one that is damaged. */
int parquet_rows_count(const char *path, uint64_t *ret_rows, struct err *err) MUST_CHECK;

#endif
