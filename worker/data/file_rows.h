/*
 * The rows of one file, one after another, malformed ones among them: from its text, from the columns of a Parquet
 * file, or from the cache of parsed rows. The caller sees no difference. "Text" is either of the first two below.
 *
 *     no cache wanted          text; a row that nobody takes costs a search for its end
 *     none there, or stale     text; every row is parsed, taken or not, and written
 *     there                    the cache
 *     ... and then damaged     text from the start: the rows handed out are passed over, all are
 *                              written anew
 *
 * The rows are the text's in every case; a notice reports a cache that is lost.
 */
#ifndef WORKER_DATA_FILE_ROWS_H
#define WORKER_DATA_FILE_ROWS_H

#include <stdatomic.h>

#include "worker/data/batch.h"
#include "worker/data/data_loader_options.h"
#include "worker/data/parsed_row.h"

struct file_rows;

/* A malformed row: its line (of a Parquet file: its row, from 1), and what is wrong. */
struct file_rows_refusal {
    uint64_t line;
    struct err why;
};

/* options and path are borrowed. `stop` (may be NULL): once true, file_rows_next() and file_rows_finish()
 * may end early. */
int file_rows_open(const struct data_loader_options *options, const char *path,
                   const atomic_bool *stop, struct file_rows **ret, struct err *err) MUST_CHECK;
void file_rows_close(struct file_rows *r);

/* To the next row; false behind the last. */
int file_rows_next(struct file_rows *r, bool *ret_there, struct err *err) MUST_CHECK;

/* The row is wanted: reads what it is made of, if that is not in memory. Before file_rows_add() and
 * file_rows_record(). PS_EDATA: the file is damaged. */
int file_rows_fetch(struct file_rows *r, struct err *err) MUST_CHECK;

/* Adds the row to the batch, which has space for it; PS_EDATA, with `ret` filled, for a malformed
 * one; -ENOMEM. Once for a row. */
int file_rows_add(struct file_rows *r, struct batch *b, struct file_rows_refusal *ret)
    MUST_CHECK;

/* The row as a record, also if it is malformed, borrowed until the next call. -ENOMEM. */
int file_rows_record(struct file_rows *r, const struct parsed_row **ret) MUST_CHECK;

/* The same as file_rows_add(), for that record. */
int file_rows_add_record(const struct parsed_row *record, struct batch *b,
                         struct file_rows_refusal *ret) MUST_CHECK;

/* No more rows are wanted: reads on to the end if a cache is being written, for the next reader that wants
 * the others. */
int file_rows_finish(struct file_rows *r, struct err *err) MUST_CHECK;

/* Of text, before the row; and rows that the cache gave. */
uint64_t file_rows_text_bytes(const struct file_rows *r);
uint64_t file_rows_n_cached(const struct file_rows *r);

#endif
