/*
 * The requests of one connection that are in flight, at most `depth`; a request's id on the wire
 * is its slot.
 */
#ifndef TESTS_BENCH_PSBENCH_SLOTS_H
#define TESTS_BENCH_PSBENCH_SLOTS_H

#include "tests/bench/psbench_types.h"

struct psbench_slot {
    uint64_t due_ns; /* latency counts from then */
    uint64_t n_bytes;
    double server_cpu; /* seconds that the server had used when it left */
    enum psbench_kind kind;
    bool used;
};

struct psbench_slots {
    struct psbench_slot *items; /* owned, [depth] */
    uint32_t *free;             /* owned: a stack of what is not used */
    uint32_t n_free, depth;
    uint64_t freed_ns; /* when an answer last freed one while none was free */
};

void psbench_slots_init(struct psbench_slots *s, uint32_t depth);
void psbench_slots_deinit(struct psbench_slots *s);

/* A free one (n_free > 0); its number. */
uint32_t psbench_slots_take(struct psbench_slots *s);

/* An answer has come. False: to no request of ours. */
bool psbench_slots_give(struct psbench_slots *s, uint64_t number, uint64_t now_ns);

/* Adds an answered request to what has been measured. */
void psbench_slots_count(const struct psbench_slot *slot, uint64_t now_ns, uint64_t bytes_in,
                         uint32_t n_rows, struct psbench_counts *counts);

#endif
