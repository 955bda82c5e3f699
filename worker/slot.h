/*
 * One batch in flight: what each stage of a step fills for the next one. All slots of a run are
 * made before it starts; their arrays grow with the batches, so that a step allocates nothing
 * once sizes have settled.
 *
 *     stage      fills
 *     read       batch
 *     fetch      rows [n_unique][dim], wide [n_unique], dense, control
 *     compute    row_grads, wide_grads, dense_grads: same shapes
 *     deliver    nothing: sends them; the slot is free again
 *
 * `dense` and `dense_grads` hold all arrays of the model one behind the other, each padded to the
 * blocks of its table (tables.c knows where each begins). While a slot is computed the model's
 * tensors point there (tables_use()): what a batch sees of the dense weights is what came with its
 * own pull, so they are as fresh as its rows, and never older than the bound allows.
 */
#ifndef WORKER_SLOT_H
#define WORKER_SLOT_H

#include <stdbool.h>

#include "common/status.h"
#include "worker/data/batch.h"

#define SLOT_CONTROL_FLOATS 3

/* Zeroed: empty. */
struct slot {
    struct batch *batch; /* borrowed from the feed */
    uint64_t clock;      /* of the step that it is for */
    uint32_t rows_cap;
    float *rows, *row_grads;    /* owned, rows_cap x dim */
    float *wide, *wide_grads;   /* owned, rows_cap; NULL without --wide */
    float *dense, *dense_grads; /* owned */
    bool has_dense;             /* its own pull brought them */
    uint64_t compute_ns;        /* what computing it took */
    float control[SLOT_CONTROL_FLOATS];
};

/* Makes room for the rows of the slot's batch, and their gradients. -ENOMEM. */
int slot_reserve_rows(struct slot *slot, uint32_t dim, bool wide, struct err *err) MUST_CHECK;

#endif
