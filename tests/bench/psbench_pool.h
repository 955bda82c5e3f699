/*
 * Requests made beforehand, so that the clock measures the server and not the dice: for one
 * shard, sets of keys_per_request unique keys that it owns, sorted and encoded.
 *
 *     uniform, up to POOL_KEYS_MAX rows     every row once, in a random order: no row is asked
 *                                           for again before all were
 *     uniform, more rows than that          random sets of rows
 *     zipf                                  random sets, by the law of the exponent
 *     grow                                  every row once, in order
 */
#ifndef TESTS_BENCH_PSBENCH_POOL_H
#define TESTS_BENCH_PSBENCH_POOL_H

#include "common/bytes.h"
#include "tests/bench/psbench_types.h"

struct psbench_pool {
    uint32_t n_sets, n_keys; /* keys in a set */
    struct bytes bytes;      /* owned: one set's encoded keys behind the other */
    size_t *starts;          /* owned, n_sets + 1 */
    uint8_t *values;         /* owned: n_keys encoded gradients, the same for all sets */
    size_t value_bytes;
};

/* One for each shard. */
struct psbench_pools {
    uint32_t n;
    struct psbench_pool *items; /* owned */
};

/* -EINVAL with a sentence if a shard has not enough rows for one request. Does nothing if they
 * are there already. */
int psbench_pools_init(struct psbench_pools *p, const struct psbench_settings *settings,
                       uint32_t n_shards, struct err *err) MUST_CHECK;
void psbench_pools_deinit(struct psbench_pools *p);

/* Set i, encoded. */
const uint8_t *psbench_pool_set(const struct psbench_pool *p, uint32_t i, size_t *ret_bytes);

/* All sets' keys, decoded: [n_sets][n_keys]. To be freed; NULL: no memory. */
uint64_t *psbench_pool_decode(const struct psbench_pool *p);

#endif
