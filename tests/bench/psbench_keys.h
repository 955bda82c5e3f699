/*
 * The benchmark's keys: row number i of a table, i = 1 .. rows, has the key hash_mix(i), as
 * spread as hashed tokens are.
 */
#ifndef TESTS_BENCH_PSBENCH_KEYS_H
#define TESTS_BENCH_PSBENCH_KEYS_H

#include "common/base.h"
#include "common/hash.h"
#include "proto/placement.h"

/* The next up to `max` keys that the shard owns, from row *row on by `step`, to `last`. Leaves in
 * *row where to go on. */
uint32_t psbench_keys_next(uint64_t *row, uint64_t last, uint64_t step, uint32_t shard,
                           uint32_t n_shards, uint64_t *ret_keys, uint32_t max);

/* In ascending order. Quick because the keys are spread evenly. scratch: n_keys. */
void psbench_keys_sort(uint64_t *keys, uint32_t n_keys, uint64_t *scratch);

/* Leaves out what stands twice, of sorted keys; how many are left. */
uint32_t psbench_keys_unique(uint64_t *keys, uint32_t n_keys);

/* A random order: a function of the seed. n_keys < 2^32. */
void psbench_keys_shuffle(uint64_t *keys, uint64_t n_keys, uint64_t seed);

#endif
