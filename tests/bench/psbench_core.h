/*
 * The table's own limit: the operations of a load on a table of the same size in one thread. No
 * sockets, no messages, no checks, no shard: keys are there as numbers, rows are looked up in
 * chunks and encoded into a buffer (pull), or gradients are decoded and stepped (push).
 *
 * The chunk and how far rows are asked for ahead are tried out first, so that what is measured
 * is the best that this table can do, and not one way of using it.
 */
#ifndef TESTS_BENCH_PSBENCH_CORE_H
#define TESTS_BENCH_PSBENCH_CORE_H

#include "tests/bench/psbench_pool.h"
#include "tests/bench/psbench_types.h"

struct psbench_core;

/* Fills a table with settings->rows rows: takes a while. */
int psbench_core_new(const struct psbench_settings *settings, struct psbench_core **ret,
                     struct err *err) MUST_CHECK;
void psbench_core_free(struct psbench_core *c);

/* What psbench_core_run() is to do from now on, to the same table. Borrows both until the next
 * one. Tries out which way is best. */
int psbench_core_load(struct psbench_core *c, const struct psbench_settings *settings,
                      const struct psbench_pool *pool, struct err *err) MUST_CHECK;

/* Rows a second, in the calling thread. */
double psbench_core_run(struct psbench_core *c, double seconds);

/* What was found to be best, for the report. */
uint32_t psbench_core_chunk(const struct psbench_core *c);
uint32_t psbench_core_ahead(const struct psbench_core *c);

#endif
