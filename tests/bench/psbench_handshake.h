/*
 * What psbench says before the load: who it is, which job, which table.
 */
#ifndef TESTS_BENCH_PSBENCH_GREET_H
#define TESTS_BENCH_PSBENCH_GREET_H

#include "proto/message.h"
#include "tests/bench/psbench_types.h"

void psbench_handshake_hello(const struct psbench_settings *settings, struct hello *ret);
void psbench_handshake_join(uint32_t rank, uint32_t n_ranks, uint64_t incarnation,
                            struct join *ret);
void psbench_handshake_table(const struct psbench_settings *settings,
                             struct table_request *ret);

/* The name of the table of these settings: one name, one specification. `grow` gets a table of
 * its own, named after the time. */
void psbench_handshake_name_table(struct psbench_settings *settings);

/* The pid of a psd on this machine, by its own word; 0 if it is elsewhere, or one of several. */
uint32_t psbench_handshake_find_pid(const struct psbench_settings *settings);

uint64_t psbench_handshake_unix_ms(void);

/* Values that topk keeps in a row. */
uint32_t psbench_handshake_k(const struct psbench_settings *settings);

#endif
