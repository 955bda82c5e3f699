/*
 * Reuse within the staleness bound, for jobs of several workers: a row or dense block that was pulled
 * at min clock m is good for every step c with c - m <= bound, for a pull at c may be answered with as
 * old a one. So it is not pulled again until then.
 *
 *     pull_start   rows that are good enough are copied, the others are asked of the servers
 *     pull_wait    what has come is kept, with the min clock that was known when it was asked for: the
 *                  answer holds at least that
 *
 * Own updates are as everybody's: all of them older than the bound are in, newer ones may be missing
 * (a plain pull brings a worker's own ones at once). A worker that runs ahead finds its rows too old,
 * asks, and is parked: reuse loosens no bound. In SSP every step asks, if only for leave to begin: a job
 * waits for a sync point (psd --cut-every) in a pull.
 *
 * The bound is --reuse-clocks, in SSP the table's or the job's if that is less; in lock step 0, which is
 * no reuse. It is not free: own updates that come late cost accuracy (figures: deploy/docs/benchmarks.md), so
 * it is off unless asked for. Rows that are too old go when as many clocks as the bound have passed, and
 * free their places; all tables together hold max_bytes, and a row without space is not kept.
 * Validation (pull_for_eval) is answered by the servers alone.
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
