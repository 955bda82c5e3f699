/*
 * psbench connect: opens connections and closes them again, some at a time. A connection counts from connect() to the
 * last byte of the reply to its hello, which a shard sends; with TLS the handshake is in between. This is what a node
 * has to bear when all of its workers come back at once.
 */
#ifndef TESTS_BENCH_PSBENCH_CONNECT_H
#define TESTS_BENCH_PSBENCH_CONNECT_H

#include "tests/bench/psbench_types.h"

/* Measures, prints, and appends to settings->json. */
int psbench_connect_run(const struct psbench_settings *settings, struct err *err) MUST_CHECK;

#endif
