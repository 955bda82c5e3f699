/*
 * The rows of one file, one after another, malformed ones among them: from its text, or from
 * the cache of what the text became, with no difference to the caller.
 *
 *     no cache wanted          text; a row that nobody takes costs a search for its end
 *     none there, or stale     text; every row is parsed, taken or not, and written
 *     there                    the cache
 *     ... and then damaged     text from the start: the rows handed out are passed over, all are
 *                              written anew
 *
 * Whatever happens to a cache, the rows are the text's; what happened is told as a notice.
 */
#ifndef WORKER_DATA_ROWS_H
#define WORKER_DATA_ROWS_H

#include <stdatomic.h>

#include "worker/data/batch.h"
#include "worker/data/feed_options.h"
#include "worker/data/record.h"

struct rows;

/* A malformed row: its line, and what is wrong. */
struct rows_refusal {
    uint64_t line;
    struct err why;
};

/* options and path are borrowed. `stop` (may be NULL): once true, rows_next() and rows_finish()
 * may end early. */
int rows_open(const struct feed_options *options, const char *path, const atomic_bool *stop,
              struct rows **ret, struct err *err) MUST_CHECK;
void rows_close(struct rows *r);

/* To the next row; false behind the last. */
int rows_next(struct rows *r, bool *ret_there, struct err *err) MUST_CHECK;

/* Adds the row to the batch, which has room for it; PS_EDATA, with `ret` filled, for a malformed
 * one; -ENOMEM. Once for a row. */
int rows_add(struct rows *r, struct batch *b, struct rows_refusal *ret) MUST_CHECK;

/* The row as a record, also if it is malformed, borrowed until the next call. -ENOMEM. */
int rows_record(struct rows *r, const struct record **ret) MUST_CHECK;

/* What rows_add() would do with that row. */
int rows_add_record(const struct record *record, struct batch *b, struct rows_refusal *ret)
    MUST_CHECK;

/* No more rows are wanted: reads on to the end if a cache is being written, for whoever wants
 * the others. */
int rows_finish(struct rows *r, struct err *err) MUST_CHECK;

/* Of text, before the row; and rows that the cache gave. */
uint64_t rows_text_bytes(const struct rows *r);
uint64_t rows_n_cached(const struct rows *r);

/* The end of a path that is too long for a sentence. */
const char *rows_shown_path(const char *path);

#endif
