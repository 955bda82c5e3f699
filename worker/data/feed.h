/*
 * Click logs -> batches: opens files one after another (plain, .zst, .gz), parses, shuffles within a bounded window, cuts
 * batches; a thread of its own fills them ahead through a bounded queue.
 *
 * A malformed row is counted and skipped; past `bad_rows_max` the feed ends with a sentence that names file and line. The order
 * of rows is a pure function of (files, seed, epoch, rank, n_ranks).
 */
#ifndef WORKER_DATA_FEED_H
#define WORKER_DATA_FEED_H

#include <stdbool.h>

#include "common/status.h"
#include "worker/data/batch.h"
#include "worker/data/schema.h"

struct feed;

/* Which rows of the files, in file order over all files. */
struct feed_range {
    uint64_t first_row, end_row; /* end 0: to the end */
};

struct feed_options {
    const struct schema *schema;   /* borrowed while the feed lives */
    char *const *paths;            /* files, already expanded and sorted by feed_expand() */
    uint32_t n_paths;
    struct feed_range range;
    uint32_t rank, n_ranks;        /* row i of the range belongs to rank (i / batch) % n_ranks when by_rows, else whole files are dealt out */
    bool by_rows;
    uint32_t batch;
    uint32_t shuffle_rows;         /* window; 0 or 1: file order */
    uint64_t seed;                 /* of the shuffle; the caller mixes the epoch in */
    bool drop_last;                /* leave out a last, short batch */
    uint64_t bad_rows_max;
    uint32_t queue;                /* batches read ahead, at least 1 */
    bool labelled;                 /* false: the files have no label column (predict) */
};

struct feed_counts {
    uint64_t rows, bad_rows, bytes;
};

/* Files and directories -> files, sorted by name within a directory; hidden ones left out. The caller frees each and the array. */
int feed_expand(char *const *paths, uint32_t n_paths, char ***ret_files, uint32_t *ret_n, struct err *err) MUST_CHECK;

/* Rows in the files, malformed ones included (the last needs no newline; empty lines do not count; header lines neither). */
int feed_count_rows(char *const *files, uint32_t n_files, const struct schema *schema, uint64_t *ret_rows, struct err *err) MUST_CHECK;

int feed_open(const struct feed_options *options, struct feed **ret_feed, struct err *err) MUST_CHECK;

/* The next batch, deduplicated, borrowed until the next call; NULL at the end. */
int feed_next(struct feed *f, struct batch **ret_batch, struct err *err) MUST_CHECK;

void feed_counts(struct feed *f, struct feed_counts *ret);
void feed_close(struct feed *f);

#endif
