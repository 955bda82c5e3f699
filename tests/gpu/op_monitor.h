/*
 * A table of compute ops that passes calls on to the GPU's and looks at them: how long an op takes, what it has to do at
 * least, what is copied. Switches leave out records and copies.
 */
#ifndef TESTS_GPU_OP_MONITOR_H
#define TESTS_GPU_OP_MONITOR_H

#include <stdbool.h>

#include "worker/compute/device.h"

#define OP_MONITOR_OPS_MAX 64u
#define OP_MONITOR_RUNS_MAX 512u

/* The i-th op of a step. */
struct monitored_op {
    const char *name;
    uint32_t in, out;        /* of linear ops, else 0 */
    double graph_s, eager_s; /* medians; graph_s is 0 where no graph could be made */
    double bytes, n_flop;    /* arrays moved once in and out; of its products */
};

/* What is switched on, by whoever makes steps: */
struct op_monitor {
    bool records; /* steps may be recorded and replayed as graphs */
    bool copies;  /* else what was copied in last stays, and nothing is copied out */
    bool ops;     /* each op is run many times and measured: `at` */
    bool encodes; /* of ops, only those that encode */
    uint32_t n_rows, n_keys;

    double began_s; /* the last begin() of a step, after its copies in were asked for */
    double in_bytes, out_bytes;
    uint32_t set, n;
    uint32_t n_measured; /* ever: each has a key of its own */
    struct monitored_op at[OP_MONITOR_OPS_MAX];
};

double op_monitor_now_s(void);

/* Sorts. */
double op_monitor_median(double *values, uint32_t n);

/* One at a time: a table of ops has no argument. *w is borrowed while a model lives. */
const struct device_ops *op_monitor_ops(struct op_monitor *w);

#endif
