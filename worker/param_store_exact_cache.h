/*
 * An exact cache of rows before the servers: the job's only worker keeps a copy of what it has pulled,
 * state included, and changes it with the same pushes (cache/replica.h). What it holds is not pulled
 * again, and has the bits that a pull would have brought. Dense tables the same: pulled once.
 *
 *     pull_start    what is not held is pulled with its state, if anything
 *     pull_wait     that is held from now on; all is read from the copy
 *     prefetch      the next batch's rows, as far as not held, are on their way while this one computes
 *     push          to the servers, and the same bytes to the copy
 *
 * Exact as long as the servers do to a row what the copy does, and nothing else. So
 *   - tables whose rows come late or go by rules are pulled plainly, always;
 *   - where a server has a limit of memory, a pull waits until the pushes before it are acknowledged;
 *     once a row was left out, all is pulled plainly from there on, and a sentence says so;
 *   - a version that has grown by more than our pushes makes the next pull ask for the tables' step
 *     counts. Where one is not the copy's, somebody else has pushed, or a server has lost pushes: the
 *     copy is dropped, a sentence says so, and it fills anew; after the 8th time all is pulled plainly;
 *   - a worker that was declared dead and has joined again begins with an empty copy.
 * What somebody else's assignment does to a table is not seen by its step count.
 *
 * Memory is bounded (--row-cache): rows that were not wanted for longest go, those of the batch in hand
 * and of the prefetched one last of all; rows that these two need are held in any case.
 *
 * At most one batch is pulled and not pushed yet. Validation (pull_for_eval) is answered by the servers alone.
 *
 * pull_start, pull_wait and prefetch are called by one thread at a time, push by another if wanted.
 */
#ifndef WORKER_PARAM_STORE_EXACT_CACHE_H
#define WORKER_PARAM_STORE_EXACT_CACHE_H

#include "worker/param_store.h"

struct param_store_exact_cache_options {
    uint64_t max_bytes;
    enum table_spec_mode mode; /* of the job */
};

/* Takes `inner`, which has set_tap(). */
struct param_store *
param_store_exact_cache_new(struct param_store *inner,
                            const struct param_store_exact_cache_options *options);

#endif
