/*
 * One round of the benchmark from the first HELLO to the last BYE, on one loop and one
 * thread: finds the cluster, opens the connections and assigns them to the shards, fills the
 * table, warms up, measures, drains.
 */
#ifndef TESTS_BENCH_PSBENCH_RUN_H
#define TESTS_BENCH_PSBENCH_RUN_H

#include "tests/bench/psbench_pool.h"
#include "tests/bench/psbench_types.h"

/* Adds to *counts. The pools are made once the number of shards is known, unless they are
 * there: then also the rows are taken to be. */
int psbench_run(const struct psbench_settings *settings, struct psbench_pools *pools,
                struct psbench_counts *counts, struct err *err) MUST_CHECK;

#endif
