/*
 * The ops of far_device.h as a list: what each was called with, as numbers, so that a step can be run
 * later, again, and compared. Private to the far device.
 */
#ifndef TESTS_SUPPORT_FAR_OPS_H
#define TESTS_SUPPORT_FAR_OPS_H

#include "worker/compute/device.h"

#define FAR_ARGS_MAX 20u

/* How the ops find their list and their memory: the head of the device's struct compute. */
struct far_seat {
    struct far_ops *(*list)(struct compute *c); /* of the step that is open */
    void *(*real)(struct compute *c, const void *device);
};

struct far_run;
struct far_op {
    void (*run)(const struct far_run *r, const uint64_t *args);
    uint64_t args[FAR_ARGS_MAX];
};

/* Zeroed: empty. */
struct far_ops {
    struct far_op *ops; /* owned */
    uint32_t n, cap;
};

void far_ops_clear(struct far_ops *list);
void far_ops_copy(struct far_ops *to, const struct far_ops *from);

/* The number of the first op that differs, or -1. */
int far_ops_compare(const struct far_ops *a, const struct far_ops *b);

/* Runs all, by the table beneath, on the seat's memory; the list is empty then. */
void far_ops_run(struct far_ops *list, struct compute *far, const struct device_ops *cpu,
                 struct compute *cpu_c);

/* Ops that add themselves to the seat's list. */
void far_ops_table(struct device_ops *ops);

#endif
