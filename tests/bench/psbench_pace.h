/*
 * When the requests of one connection are due.
 *
 * Closed loop (rate 0): always at once; what is in flight bounds them. Open loop: at times that
 * were fixed before the first one was sent, whatever the server does; `rate` requests a second
 * over all connections, either evenly or as a Poisson process, which is how many independent
 * callers look (arrivals in a gap then vary, and short queues form at any load).
 *
 * Latency counts from when a request was due. So a request that could not be sent, since `depth`
 * others were unanswered, has waited all the same, and a server that stalls is not spared the
 * requests that would have come meanwhile ("coordinated omission": G. Tene, HdrHistogram).
 */
#ifndef TESTS_BENCH_PSBENCH_PACE_H
#define TESTS_BENCH_PSBENCH_PACE_H

#include "tests/bench/psbench_types.h"

struct psbench_pace {
    bool open_loop, poisson;
    double gap_ns;   /* on average, of one connection */
    double due_ns;   /* of the next request, since start_ns */
    double pause_ns; /* closed loop: behind an answer, on average */
    uint64_t start_ns, seed, n_drawn;
    uint64_t paused_ns; /* until then */
};

/* For connection number i of n. */
void psbench_pace_start(struct psbench_pace *p, const struct psbench_settings *settings,
                        uint32_t i, uint32_t n, uint64_t now_ns);

/* When the next request is due: in the closed loop, now. */
uint64_t psbench_pace_due(const struct psbench_pace *p, uint64_t now_ns);

/* Closed loop: an answer has come, which brings the next request, after the pause. */
void psbench_pace_answered(struct psbench_pace *p, uint64_t now_ns);

/* It has been sent. */
void psbench_pace_next(struct psbench_pace *p);

/* How many are due before end_ns, but have not been sent; calls each(owner, due_ns). */
void psbench_pace_unsent(struct psbench_pace *p, uint64_t end_ns,
                         void (*each)(void *owner, uint64_t due_ns), void *owner);

#endif
