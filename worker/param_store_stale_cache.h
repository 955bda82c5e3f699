/*
 * Reuse within the staleness bound, for jobs of several workers. A row or dense block that was pulled at min clock m
 * is valid for every step c with c - m <= bound, because a pull at c may be answered with one of that age. Until then
 * it is not pulled again.
 *
 *     pull_start   copies the valid rows, and pulls the others from the servers
 *     pull_wait    keeps the pulled rows, with the min clock that was known when the pull began: the answer
 *                  has at least that
 *
 * A worker's own updates are treated like others': those older than the bound are included, newer ones may be missing
 * (a pull without reuse has a worker's own updates at once). A worker that runs ahead finds its rows too old, pulls,
 * and is parked: reuse loosens no bound. In SSP every step sends a pull, maybe an empty one, because a job waits for a
 * sync point (psd --cut-every) in a pull.
 *
 * The bound is --reuse-clocks, in SSP the table's or the job's if that is less; in lock step 0, which is no reuse.
 * Late own updates cost accuracy (figures: deploy/docs/benchmarks.md), so reuse is off by default. Rows that are too
 * old are removed after as many clocks as the bound, and free their places; all tables together hold max_bytes, and a
 * row without space is not kept. Validation (pull_for_eval) is answered by the servers alone.
 *
 * It fills places and versions (param_store.h): a row's place is its index here, its version the number of the answer
 * that brought it.
 */
#ifndef WORKER_PARAM_STORE_STALE_CACHE_H
#define WORKER_PARAM_STORE_STALE_CACHE_H

#include "worker/param_store.h"

struct param_store_stale_cache_options {
    uint64_t max_bytes;        /* of all tables together, at least 1 */
    enum table_spec_mode mode; /* of the job, */
    uint32_t bound;            /* and its bound in SSP, clocks */
    uint32_t reuse_clocks;
};

/* Takes `inner`. */
struct param_store *
param_store_stale_cache_new(struct param_store *inner,
                            const struct param_store_stale_cache_options *options);

#endif
