/*
 * Click logs -> batches: opens files one after another (plain, .zst, .gz), parses, shuffles
 * within a bounded window, cuts batches; threads of its own fill them ahead through a bounded
 * queue. One thread at a time reads rows, in order; meanwhile the others dedup the batches that they
 * have read.
 *
 * With a cache (data_loader_options.h) later passes over a file read its parsed rows instead of its text;
 * the batches are the same bit for bit.
 *
 * A malformed row is counted and skipped; past `bad_rows_max` the loader ends with a sentence
 * that names file and line. The order of rows is a pure function of (files, seed, epoch, rank,
 * n_ranks).
 */
#ifndef WORKER_DATA_DATA_LOADER_H
#define WORKER_DATA_DATA_LOADER_H

#include "common/status.h"
#include "worker/data/batch.h"
#include "worker/data/data_loader_options.h"
#include "worker/data/schema.h"

struct data_loader;

/*
 * Files and directories -> files: a directory stands for the regular files in it, sorted by
 * name, hidden ones left out, none below it. The caller frees each and the array. A path that
 * is not there, and a directory without a file, are errors; "-" is standard input.
 */
int data_loader_expand(char *const *paths, uint32_t n_paths, char ***ret_files, uint32_t *ret_n,
                       struct err *err) MUST_CHECK;

/* Rows in the files, malformed ones included (the last needs no newline; empty lines do not
 * count; header lines neither). */
int data_loader_count_rows(char *const *files, uint32_t n_files, const struct schema *schema,
                           uint64_t *ret_rows, struct err *err) MUST_CHECK;

/*
 * Starts the threads. PS_ESETTING for a labelled loader whose schema has no label, a negative
 * errno when a file cannot be read, -ENOMEM.
 */
int data_loader_open(const struct data_loader_options *options, struct data_loader **ret_loader,
                     struct err *err) MUST_CHECK;

/*
 * The next batch, deduplicated; NULL at the end. Borrowed until data_loader_release(), which gives the oldest one
 * back; at most options.lend at a time. Waits for the threads, which wait for the disk, or a pipe's writer, until
 * options.is_stopped. Delivers their notices. An error comes behind all batches read before it, and again from
 * every later call. One thread takes, and any may give.
 */
int data_loader_acquire(struct data_loader *f, struct batch **ret_batch, struct err *err)
    MUST_CHECK;
void data_loader_release(struct data_loader *f);

/* True if data_loader_acquire() would return at once. */
bool data_loader_is_ready(struct data_loader *f);

/* All in one: gives back what is lent, takes the next. */
int data_loader_next(struct data_loader *f, struct batch **ret_batch, struct err *err)
    MUST_CHECK;

/* As of the batch handed out last. Any thread. */
void data_loader_counts(struct data_loader *f, struct data_loader_counts *ret);

/* Adds the malformed rows of one more pass. */
void data_loader_bad_rows_add(struct data_loader_bad_rows *sum,
                              const struct data_loader_counts *counts);

/* Time spent on reading, parsing and dedup, not on waiting for a place: of the thread that reads, or of all threads
 * divided by their number, whichever is more. So where it is nearly all of the time, the loader is the bottleneck. Any
 * thread. */
uint64_t data_loader_busy_ns(const struct data_loader *f);

/* Stops and joins the threads, wherever they are; NULL is fine. */
void data_loader_close(struct data_loader *f);

#endif
