/*
 * Requests made beforehand, so that the clock measures the server and not the dice: for one
 * shard, sets of keys_per_request unique keys that it owns, sorted and encoded.
 *
 * Row number i of a table, i = 1 .. rows, has the key hash_mix(i): as spread as hashed
 * tokens are.
 */
#ifndef TESTS_BENCH_PSBENCH_POOL_H
#define TESTS_BENCH_PSBENCH_POOL_H

#include "common/buf.h"
#include "tests/bench/psbench_types.h"

struct psbench_pool {
    uint32_t n_sets;
    struct buf bytes; /* owned: one set's encoded keys behind the other */
    size_t *starts;   /* owned, n_sets + 1 */
    uint8_t *values;  /* owned: keys_per_request encoded gradients, the same for all */
    size_t value_bytes;
};

/* -EINVAL with a sentence if the shard has not enough rows for one request. */
int psbench_pool_init(struct psbench_pool *p, const struct psbench_settings *settings,
                      uint32_t shard, uint32_t n_shards, struct err *err) MUST_CHECK;
void psbench_pool_deinit(struct psbench_pool *p);

#endif
