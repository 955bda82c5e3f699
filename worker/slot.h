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
 * Where gradients leave the device encoded (travel.h) there are no arrays of them here, but `travel`, and `copy` of what is
 * owed after the step, if it is to be written.
 *
 * `dense` and `dense_grads` are the model's dense array (dlrm.h). While a slot is computed the model's
 * tensors lie there (tables_use()): what a batch sees of the dense weights is what came with its own
 * pull, so they are as fresh as its rows, and never older than the bound allows.
 *
 * The network fills these arrays in place, and what computes reads them there: on a device with memory of
 * its own they are what it copies fastest from.
 */
#ifndef WORKER_SLOT_H
#define WORKER_SLOT_H

#include <stdbool.h>

#include "common/status.h"
#include "worker/codecs.h"
#include "worker/model/dlrm.h"
#include "worker/travel.h"

#define SLOT_CONTROL_FLOATS 3

/* Zeroed: empty. */
struct slot {
    struct batch *batch; /* borrowed from the feed */
    uint64_t clock;      /* of the step that it is for */
    uint32_t rows_cap;
    float *rows, *row_grads;  /* owned, as all below, by dlrm_host_alloc(); rows_cap x dim */
    float *wide, *wide_grads; /* rows_cap; NULL without --wide */
    uint64_t *versions;       /* owned, as places: rows_cap; NULL unless the shape has them */
    uint32_t *places;
    float *dense, *dense_grads; /* dlrm_dense_floats() */
    struct codecs_plan plan; /* how its gradients travel, where that is planned at the begin */
    struct travel_step travel;
    struct travel_copy copy;
    bool has_dense;      /* its own pull brought them */
    uint64_t since_ns;   /* when computing it began */
    uint64_t compute_ns; /* what it took */
    float control[SLOT_CONTROL_FLOATS];
};

/* What a slot holds of a model. */
struct slot_shape {
    struct dlrm *model; /* borrowed: its device's memory */
    uint32_t dim;
    bool wide;
    bool places;  /* rows come with versions and places (store.h) */
    bool encodes; /* gradients leave the device encoded */
};

/* Room for the model's dense array in an empty slot. -ENOMEM: it is empty still. */
int slot_init(struct slot *slot, const struct slot_shape *shape, struct err *err) MUST_CHECK;

/* An empty slot is fine. */
void slot_deinit(struct slot *slot, const struct slot_shape *shape);

/* Makes room for the rows of the slot's batch, and their gradients; where there was too little, what was
 * there is gone. Of a batch without keys, too: every array has an address then. -ENOMEM: there is none now. */
int slot_reserve_rows(struct slot *slot, const struct slot_shape *shape, struct err *err)
    MUST_CHECK;

#endif
