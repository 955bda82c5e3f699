/*
 * One shard of `psbench local`: a thread that owns it, fills it, and then measures when it is
 * told to.
 *
 *     psbench_shard_start -> (filling) -> psbench_shard_measure, any number of times -> _stop
 */
#ifndef TESTS_BENCH_PSBENCH_SHARD_H
#define TESTS_BENCH_PSBENCH_SHARD_H

#include "tests/bench/psbench_pool.h"
#include "tests/bench/psbench_types.h"

struct psbench_shard;

/* All borrowed until psbench_shard_stop(). */
struct psbench_shard_config {
    const struct psbench_settings *settings;
    const struct psbench_pool *pool; /* the shard's */
    uint32_t shard, n_shards;
    int cpu;
};

int psbench_shard_start(const struct psbench_shard_config *config, struct psbench_shard **ret,
                        struct err *err) MUST_CHECK;

/* Begins a measurement of settings->seconds, once the shard is filled; _wait() ends it: rows a
 * second. */
void psbench_shard_measure(struct psbench_shard *s);
int psbench_shard_wait(struct psbench_shard *s, double *ret_rows_per_s, struct err *err)
    MUST_CHECK;

/* NULL is fine. */
void psbench_shard_stop(struct psbench_shard *s);

#endif
