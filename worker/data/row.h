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

#include "common/status.h"
#include "worker/data/batch.h"
#include "worker/data/row_plan.h"

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

/* The keys of one token of this field, as row_parse() adds them, behind those that b->keys has: b->n_keys more.
 * Errors as above; b->n_keys is then as it was. */
int row_keys(const struct row_plan *plan, uint32_t field, char *token, size_t len,
             struct batch *b, struct err *why) MUST_CHECK;

/* PS_EDATA unless the line names the plan's columns in the plan's order;
 * scribbles on the line. */
int row_check_header(const struct row_plan *plan, char *line, size_t len, struct err *why)
    MUST_CHECK;

#endif
