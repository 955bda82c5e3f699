/*
 * The rows of the table, before the load: zero gradients for all keys of one connection's share,
 * in sets of FILL_KEYS.
 */
#ifndef TESTS_BENCH_PSBENCH_FILL_H
#define TESTS_BENCH_PSBENCH_FILL_H

#include "proto/section.h"
#include "tests/bench/psbench_types.h"

struct psbench_fill;

/* Share number `rank` of n_ranks of the shard's rows. */
struct psbench_fill *psbench_fill_new(const struct psbench_settings *settings, uint32_t shard,
                                      uint32_t n_shards, uint32_t rank, uint32_t n_ranks);
void psbench_fill_free(struct psbench_fill *f);

/* The next set, borrowed until the next call; false: there are no more. */
bool psbench_fill_next(struct psbench_fill *f, struct section *ret);

#endif
