/*
 * How close the server comes to what its machine allows: rounds of the load against psd, then of
 * the wire's limit (psbench_wire.h), then of the table's (psbench_core.h), one after another, as
 * a shared machine is not the same from one minute to the next.
 *
 *     serial limit = 1 / (1 / wire + 1 / table)        rows a second of one core that does both
 *
 * All three first try out how they are reached best; psbench itself, whether it sleeps between
 * answers or spins, unless settings->spin says so. The pools hold the load's own keys, so
 * server and bare table touch rows in the same order.
 */
#ifndef TESTS_BENCH_PSBENCH_LIMITS_H
#define TESTS_BENCH_PSBENCH_LIMITS_H

#include "tests/bench/psbench_core.h"
#include "tests/bench/psbench_pool.h"
#include "tests/bench/psbench_types.h"

/* Median, least and greatest of the rounds. */
struct psbench_spread {
    double median, min, max;
};

struct psbench_limits {
    struct psbench_spread actual, wire, table, serial; /* rows a second */
    struct psbench_spread ratio;                       /* actual / serial, of each round */
    double wire_server_busy, wire_client_busy;         /* of a core */
    uint32_t read_bytes, chunk, ahead, n_rounds;
    /* What the load did in the tries while psbench slept, and while it spun; 0: not tried. */
    double try_sleeps, try_spins;
    bool spins;                 /* the bare sockets' programs */
    int server_cpu, client_cpu; /* -1: wherever */
};

/* Counts of all rounds go to *counts. *core is made if it is NULL, and is the caller's: another
 * case on the same kind of table may use it again. */
int psbench_limits_run(const struct psbench_settings *settings, struct psbench_pools *pools,
                       struct psbench_core **core, struct psbench_counts *counts,
                       struct psbench_limits *ret, struct err *err) MUST_CHECK;

/* Of n > 0 values, which are sorted. */
struct psbench_spread psbench_spread_of(double *values, uint32_t n);

#endif
