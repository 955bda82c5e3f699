/*
 * Rows of one embedding table that a worker has pulled in a period of steps, and the sums of their gradients since
 * (param_store_periodic.h).
 *
 *     a row that is asked for the first time     comes from the servers, and is kept
 *     until the period ends                      it is read here, and its gradients add up
 *     at its end                                 the sums are pushed, and all rows are forgotten
 */
#ifndef WORKER_CACHE_PERIOD_ROWS_H
#define WORKER_CACHE_PERIOD_ROWS_H

#include "common/status.h"

struct period_rows {
    uint32_t dim;
    uint32_t n, cap;
    uint64_t *keys;  /* owned, as all below; [cap] */
    uint8_t *has;    /* [cap]: HAS_WEIGHTS, HAS_SUM */
    float *weights;  /* [cap][dim] */
    float *sums;     /* [cap][dim] */
    uint32_t *index; /* [index_cap], open addressing: 1 + a row's number; 0: free */
    uint32_t index_cap;
    struct period_rows_order *order; /* [cap] */
    uint64_t *out_keys;              /* [cap] */
    float *out;                      /* [cap][dim] */
};

/* Holds nothing yet. _deinit: a zeroed struct is fine. */
void period_rows_init(struct period_rows *r, uint32_t dim);
void period_rows_deinit(struct period_rows *r);

/* Of n keys: the weights of those that are kept into dst[n][dim]. Returns how many are not, whose numbers are then in
 * ret_missing. */
uint32_t period_rows_read(const struct period_rows *r, uint32_t n, const uint64_t *keys,
                          float *dst, uint32_t *ret_missing);

/* Keeps the weights of a row, unless there is no memory: then it is asked for again. */
void period_rows_keep(struct period_rows *r, uint64_t key, const float *weights);

/* Adds gradients of n rows. -ENOMEM: none has been added. */
int period_rows_add(struct period_rows *r, uint32_t n, const uint64_t *keys,
                    const float *gradients) MUST_CHECK;

/* All sums, by ascending keys, until the next call but _clear(). Returns how many. */
uint32_t period_rows_sums(struct period_rows *r, const uint64_t **ret_keys,
                          const float **ret_sums);

/* Forgets all rows and sums. */
void period_rows_clear(struct period_rows *r);

#endif
