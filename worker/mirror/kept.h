/*
 * Pulled rows of one table, as floats, each with the min clock that it is good from (store_reuse.h).
 */
#ifndef WORKER_MIRROR_KEPT_H
#define WORKER_MIRROR_KEPT_H

#include "server/core/table.h"

struct kept {
    struct table *rows; /* owned; NULL: nothing is kept; a row's version is its min clock */
    uint32_t dim, bound;
    uint64_t swept; /* at this clock */
};

/* bound 0: keeps nothing. -ENOMEM. */
int kept_init(struct kept *k, uint32_t dim, uint32_t bound) MUST_CHECK;
void kept_deinit(struct kept *k);

/* Copies the rows that are good at `clock` to their places in dst, [n][dim]. The others' numbers,
 * into ret_missing; returns how many. */
uint32_t kept_read(const struct kept *k, uint64_t clock, const uint64_t *keys, uint32_t n,
                   float *dst, uint32_t *ret_missing);

/* A row as of min clock `min_clock`; left out without memory, or when max_bytes are held. */
void kept_put(struct kept *k, uint64_t key, uint64_t min_clock, const float *row,
              uint64_t max_bytes);

/* Now and then: what is too old goes. */
void kept_sweep(struct kept *k, uint64_t clock);

/* Everything goes. */
void kept_clear(struct kept *k);

#endif
