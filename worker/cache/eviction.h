/*
 * Which row of a full table goes: CLOCK over a sampled threshold, roughly least recently used first.
 *
 * A row's version is the turn in which it was last wanted or pushed to. A sample of the rows gives the
 * age of the oldest eighth; a hand walks the row numbers and evicts rows that are not younger, until
 * it has gone round. So a new row costs a few comparisons, and nothing is stored for each row.
 */
#ifndef WORKER_CACHE_EVICTION_H
#define WORKER_CACHE_EVICTION_H

#include "server/core/table.h"

/* Zeroed: none was evicted. */
struct eviction {
    uint64_t hand,
        hand_left;      /* row numbers: the next one, and how many until it has gone round */
    uint64_t threshold; /* versions up to here are evicted */
    uint64_t n_samples; /* taken so far: the seed of the next */
    uint64_t barren;    /* no row can be evicted before `keep` exceeds this */
};

/* A row whose version is below `keep`, or NULL: there is none. */
struct row *eviction_find(struct eviction *eviction, const struct table *t, uint64_t keep);

#endif
