/*
 * psbench local: shards on threads of this process, one pinned to each core, fed with prepared
 * messages; no socket, no client. What is left is what a shard itself does with a message, and
 * whether shards get in each other's way.
 *
 * The table is as large for every number of shards: each has its part of it.
 */
#ifndef TESTS_BENCH_PSBENCH_LOCAL_H
#define TESTS_BENCH_PSBENCH_LOCAL_H

#include "tests/bench/psbench_types.h"

#define PSBENCH_LOCAL_THREADS_MAX 64u
#define PSBENCH_LOCAL_CASES_MAX 8u

/* Measures, prints, and appends to settings->json. */
int psbench_local_run(struct psbench_settings *settings, struct err *err) MUST_CHECK;

#endif
