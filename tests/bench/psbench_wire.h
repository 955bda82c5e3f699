/*
 * The wire's own limit: the bytes of a load between two bare libuv programs on loopback, one
 * thread each. No frames, no checksums, no table: a request says in its first 8 bytes how long it
 * is and how long its answer is to be, and the answer the same.
 *
 * Waking a sleeping core costs more than a small request, so both ends may spin instead.
 *
 * Every request and answer is as long as the ones of the load that is compared, as many are in
 * flight, on as many connections.
 */
#ifndef TESTS_BENCH_PSBENCH_WIRE_H
#define TESTS_BENCH_PSBENCH_WIRE_H

#include "tests/bench/psbench_types.h"

#define PSBENCH_WIRE_BYTES_MIN 8u

struct psbench_wire_config {
    uint32_t connections, depth;
    uint32_t request_bytes[PSBENCH_KIND_END], answer_bytes[PSBENCH_KIND_END];
    float pull_share; /* of the requests */
    float seconds;
    uint32_t read_bytes; /* room of one read */
    bool spins;          /* neither end sleeps while it has nothing to do */
    int server_cpu;      /* of the thread that answers; the one that asks is the caller's */
};

struct psbench_wire_result {
    double requests_per_s;
    double server_busy, client_busy; /* of a core, 0 .. 1 */
};

int psbench_wire_run(const struct psbench_wire_config *config, struct psbench_wire_result *ret,
                     struct err *err) MUST_CHECK;

#endif
