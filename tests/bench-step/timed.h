/*
 * A table of compute ops that passes every call on to the CPU's and measures it: time, and what
 * the op at least has to do, arrays moved once in and out and multiply-adds of its products.
 */
#ifndef TESTS_BENCH_STEP_TIMED_H
#define TESTS_BENCH_STEP_TIMED_H

#include "worker/compute/device.h"

#define TIMED_OPS_MAX 64u

/* The i-th op of a step. */
struct timed_op {
    const char *name;
    uint32_t in, out;     /* of linear ops, else 0 */
    double best_s;        /* of all steps */
    double bytes, n_flop; /* of a call */
};

/* Of the model in progress; steps start with timed_restart(). */
struct timed {
    uint32_t n, at;
    struct timed_op ops[TIMED_OPS_MAX];
};

double timed_now_s(void);

/* Ops whose times go to *t, borrowed while a model lives. One at a time: a table of ops has
 * no argument. */
const struct device_ops *timed_ops(struct timed *t);

void timed_restart(struct timed *t);

#endif
