/*
 * Options and counters of a loader, shared by data_loader.h (the thread) and loader_pass.h (one pass over the
 * files).
 */
#ifndef WORKER_DATA_DATA_LOADER_OPTIONS_H
#define WORKER_DATA_DATA_LOADER_OPTIONS_H

#include <stdbool.h>

#include "common/file.h"
#include "worker/data/batch.h"
#include "worker/data/input_pipe.h"
#include "worker/data/schema.h"

/* A range of rows, numbered in file order over all files; malformed ones count, header and empty lines do not. */
struct data_loader_range {
    uint64_t first_row, end_row; /* end 0: to the end */
};

/*
 * by_rows: row i of the range belongs to rank (i / batch) % n_ranks; else whole files are shared
 * out, file i to rank i % n_ranks.
 */
struct data_loader_options {
    const struct schema *schema; /* borrowed while the loader lives, like the paths */
    char *const *paths; /* files, already expanded and sorted by data_loader_expand() */
    uint32_t n_paths;
    /* Those of the paths that can be read but once; `is_prescan`: these rows are read again later. NULL: none. */
    struct input_pipes *pipes;
    bool is_prescan;
    struct data_loader_range range;
    uint32_t rank, n_ranks;
    bool by_rows;
    uint32_t batch;
    uint32_t shuffle_rows; /* window; 0 or 1: file order */
    uint64_t seed;         /* of the shuffle; the caller mixes the epoch in */
    float
        keep_negatives; /* of the rows with label 0, so many are samples, drawn by the seed; 0 or 1: all */
    bool drop_last; /* leave out a last, short batch */
    /* Batches to skip at the start: the following batches are the same as without the skip, numbers too. */
    uint64_t skip;
    const struct batch_groups *groups; /* of its batches' keys; borrowed; NULL: one group */
    uint64_t bad_rows_max;             /* malformed rows of this rank that are passed over */
    uint32_t queue;                    /* batches read ahead, at least 1 */
    uint32_t n_threads;                /* that read and dedup; 0: 1. They change no batch */
    uint32_t lend;                     /* batches that may be with the caller at once; 0: 1 */
    bool labelled;                     /* false: the files have no label column (predict) */
    /* A folder for the parsed rows of each file, made if it does not exist. The first pass over a file writes them,
     * also those of other ranks; later passes read them instead of the text. NULL or "": none. */
    const char *data_cache;
    const struct file_ops *cache_files; /* where that folder is; NULL: file_os */
    /* Of its batches (batch_init_in()); borrowed while the loader lives. */
    const struct batch_allocator *memory;
    const struct batch_deduper *deduper; /* borrowed likewise; NULL: the threads dedup */
    /* Called for events that stop nothing, but that the user should know: the cache could not be written, or is
     * damaged and is written anew. From inside data_loader_next() or loader_pass_fill(), on the caller's thread;
     * may be NULL. */
    void (*on_notice)(void *arg, const char *sentence);
    void *notice_arg; /* borrowed */
    /* Asked while the caller waits for a batch: true ends the loader as behind its last row. A pipe's writer may
     * be silent for as long as it likes. NULL: never. */
    bool (*is_stopped)(const void *arg);
    const void *stop_arg; /* borrowed */
};

#define DATA_LOADER_BAD_ROW_BYTES 192u

/* Counts of the batches returned so far. */
struct data_loader_counts {
    uint64_t rows;     /* samples in them */
    uint64_t bad_rows; /* malformed rows passed over on the way */
    uint64_t
        rows_read; /* of all ranks, malformed ones included; by_rows: all that there are, at the end */
    char bad_row
        [DATA_LOADER_BAD_ROW_BYTES]; /* the first of them: "FILE:LINE: why"; "" without one */
    uint64_t skipped; /* batches that options.skip wanted passed over, and that there were */
    uint64_t bytes;   /* of text, unpacked, also what was only read past or was cached */
    uint64_t cached;  /* rows that a cache gave, also those read past */
};

/* Those of several passes. */
struct data_loader_bad_rows {
    uint64_t n;
    char first[DATA_LOADER_BAD_ROW_BYTES]; /* as above */
};

#endif
