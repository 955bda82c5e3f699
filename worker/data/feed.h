/*
 * Click logs -> batches: opens files one after another (plain, .zst, .gz), parses, shuffles
 * within a bounded window, cuts batches; a thread of its own fills them ahead through a bounded
 * queue.
 *
 * With a cache (feed_options.h) later passes over a file read its parsed rows instead of its text;
 * the batches are the same bit for bit.
 *
 * A malformed row is counted and skipped; past `bad_rows_max` the feed ends with a sentence
 * that names file and line. The order of rows is a pure function of (files, seed, epoch, rank,
 * n_ranks).
 */
#ifndef WORKER_DATA_FEED_H
#define WORKER_DATA_FEED_H

#include "common/status.h"
#include "worker/data/batch.h"
#include "worker/data/feed_options.h"
#include "worker/data/schema.h"

struct feed;

/*
 * Files and directories -> files: a directory stands for the regular files in it, sorted by
 * name, hidden ones left out, none below it. The caller frees each and the array. A path that
 * is not there, and a directory without a file, are errors.
 */
int feed_expand(char *const *paths, uint32_t n_paths, char ***ret_files, uint32_t *ret_n,
                struct err *err) MUST_CHECK;

/* Rows in the files, malformed ones included (the last needs no newline; empty lines do not
 * count; header lines neither). */
int feed_count_rows(char *const *files, uint32_t n_files, const struct schema *schema,
                    uint64_t *ret_rows, struct err *err) MUST_CHECK;

/*
 * Starts the thread. PS_ESETTING for a labelled feed whose schema has no label, a negative
 * errno when a file cannot be read, -ENOMEM.
 */
int feed_open(const struct feed_options *options, struct feed **ret_feed, struct err *err)
    MUST_CHECK;

/*
 * The next batch, deduplicated; NULL at the end. Borrowed until feed_give(), which gives the
 * oldest one back; at most options.lend at a time. Waits for the thread, which waits for the
 * disk alone. Tells the thread's notices. An error comes behind all batches read before it, and
 * again from every later call. One thread takes, and any may give.
 */
int feed_take(struct feed *f, struct batch **ret_batch, struct err *err) MUST_CHECK;
void feed_give(struct feed *f);

/* Would feed_take() return at once? */
bool feed_is_ready(struct feed *f);

/* All in one: gives back what is lent, takes the next. */
int feed_next(struct feed *f, struct batch **ret_batch, struct err *err) MUST_CHECK;

/* As of the batch handed out last. Any thread. */
void feed_counts(struct feed *f, struct feed_counts *ret);

/* One more pass: adds what its counts tell. */
void feed_bad_rows_add(struct feed_bad_rows *sum, const struct feed_counts *counts);

/* Time that the thread has spent on reading, parsing and dedup: not on waiting for a place. Any
 * thread. */
uint64_t feed_busy_ns(const struct feed *f);

/* Stops and joins the thread, wherever it is; NULL is fine. */
void feed_close(struct feed *f);

#endif
