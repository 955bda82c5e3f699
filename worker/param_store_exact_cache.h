/*
 * An exact cache of rows before the servers: the job's only worker keeps a copy of what it has pulled,
 * state included, and changes it with the same pushes (cache/replica.h). What it holds is not pulled
 * again, and has the bits that a pull would have brought. Dense tables the same: pulled once.
 *
 *     pull_start    pulls the rows that are not in the copy, with their state
 *     pull_wait     adds them to the copy; all rows are read from there
 *     prefetch      on a thread, while this batch computes: pulls the next batch's missing rows, and reads those that
 *                   this batch has not (cache/read_ahead.h)
 *     push          to the servers, and the same bytes to the copy
 *
 * The copy is exact as long as the servers change rows only as the copy does. So
 *   - tables with rules for admission or expiry are always pulled without the cache, and so are rows of 16 bits that
 *     decay by themselves;
 *   - if a server has a limit of memory, a pull waits until the pushes before it are acknowledged; once a
 *     row was left out, the cache is off from there on, with a notice;
 *   - a version that has grown by more than this worker's pushes makes the next pull request the tables'
 *     step counts. If one differs from the copy's, another worker has pushed, or a server has lost pushes.
 *     Then the copy is dropped, with a notice, and fills anew; after the 8th time the cache is off;
 *   - a worker that was declared dead and has joined again begins with an empty copy.
 * An assignment by another worker does not change a table's step count, so it is not noticed.
 *
 * Memory is bounded (--row-cache): the least recently used rows are evicted first. Rows of the current and of the
 * prefetched batch are always kept.
 *
 * At most one batch is pulled and not pushed yet. Validation (pull_for_eval) is answered by the servers alone.
 *
 * pull_start, pull_wait and prefetch are called by one thread at a time, push by another thread if need be.
 */
#ifndef WORKER_PARAM_STORE_EXACT_CACHE_H
#define WORKER_PARAM_STORE_EXACT_CACHE_H

#include "worker/param_store.h"

struct param_store_exact_cache_options {
    uint64_t max_bytes;
    enum table_spec_mode mode; /* of the job */
    uint32_t n_threads;        /* that read rows of the copy, with the caller's; 0: 1 */
};

/* Takes `inner`, which has set_tap(). */
struct param_store *
param_store_exact_cache_new(struct param_store *inner,
                            const struct param_store_exact_cache_options *options);

#endif
