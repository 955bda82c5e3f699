/*
 * The arrays of one batch in flight: each stage of a step fills them for the next stage. All of a run's
 * are made before it starts. Their arrays grow with the batches, so that a step allocates nothing once
 * sizes no longer grow.
 *
 *     stage      fills
 *     read       batch
 *     fetch      rows [n_unique][dim], or pulled; wide [n_unique], dense, control
 *     compute    row_grads, wide_grads, dense_grads: same shapes
 *     deliver    plan, sections: the push; then the arrays are free for another batch
 *
 * A device that encodes (device_push.h) needs no arrays of gradients: plan and sections are made when the
 * step begins, `device` holds the encoded rows, and `copy` the residuals after the step, if they are to
 * be written.
 *
 * A device that decodes (dlrm_take_pulled()) needs no rows either: `pulled` has what the servers sent.
 *
 * `dense` and `dense_grads` are the model's dense array (dlrm.h). While a step is computed the model's
 * tensors are these (model_tables_use()). So a batch uses the dense weights of its own pull: they are as
 * fresh as its rows, and never older than the bound allows.
 *
 * The network fills these arrays in place, and the device computes from them or copies them from pinned
 * memory.
 */
#ifndef WORKER_STEP_BUFFERS_H
#define WORKER_STEP_BUFFERS_H

#include <stdbool.h>

#include "common/status.h"
#include "worker/client/ps_types.h"
#include "worker/client/pulled_rows.h"
#include "worker/codec_policy.h"
#include "worker/data/batch.h"
#include "worker/device_push.h"
#include "worker/model/dlrm.h"

#define STEP_BUFFERS_CONTROL_FLOATS 3
/* Tensors; embedding and wide rows of each group of fields. */
#define STEP_BUFFERS_SECTIONS_MAX (DLRM_TENSORS_MAX + 2 * BATCH_GROUPS_MAX)

/* Zeroed: empty. */
struct step_buffers {
    struct batch *batch; /* borrowed from the loader */
    uint64_t clock;      /* of the step */
    uint32_t rows_cap;
    float *rows, *row_grads;    /* owned, as all below, by dlrm_host_alloc(); rows_cap x dim */
    struct pulled_rows *pulled; /* with a `to` of rows_cap; NULL unless the shape decodes */
    struct dlrm_pulled pulled_step; /* the same, for the model; borrowed */
    float *wide, *wide_grads;       /* rows_cap; NULL without --wide */
    uint64_t *versions; /* owned, as places: rows_cap; NULL unless the shape has them */
    uint32_t *places;
    float *states; /* rows_cap x n_states; NULL unless the device has a replica of rows */
    struct dlrm_row_update update; /* its places are owned here, update_cap */
    uint32_t *update_places, update_cap;
    float *dense, *dense_grads; /* dlrm_dense_floats() */
    bool has_dense;             /* its own pull brought them */
    bool is_fetched;            /* the pipeline's: its pull has ended well */
    uint64_t since_ns;          /* start of its computation */
    uint64_t compute_ns;        /* duration of its computation */
    float control[STEP_BUFFERS_CONTROL_FLOATS];
    struct codec_policy_plan plan;
    uint32_t n_sections;
    struct ps_push_section sections[STEP_BUFFERS_SECTIONS_MAX]; /* keys and values borrowed */
    struct device_push_step device;
    struct device_push_copy copy;
};

/* The arrays that a model needs. */
struct step_buffers_shape {
    struct dlrm *model; /* borrowed: its device's memory */
    uint32_t dim;       /* of a row, at most */
    bool wide;
    bool places;       /* rows come with versions and places (param_store.h) */
    bool encodes;      /* gradients leave the device encoded */
    uint32_t n_states; /* of an optimizer, that come with rows for a replica; 0: none */
    bool decodes;      /* rows come to the device encoded */
};

/* Before the first buffers: pulled rows go to the model's device as they come, if it decodes. */
void step_buffers_decode(struct step_buffers_shape *shape);

/* Allocates the dense arrays. -ENOMEM: the buffers are empty. */
int step_buffers_init(struct step_buffers *step, const struct step_buffers_shape *shape,
                      struct err *err) MUST_CHECK;

/* Empty buffers are fine. */
void step_buffers_deinit(struct step_buffers *step, const struct step_buffers_shape *shape);

/* Makes the row arrays large enough for the batch; arrays that grow lose their values. Every array has an
 * address even if the batch has no keys. -ENOMEM: there are no row arrays. */
int step_buffers_reserve_rows(struct step_buffers *step, const struct step_buffers_shape *shape,
                              struct err *err) MUST_CHECK;

/* The rows of the last pull, for the model to decode; NULL unless the shape decodes. */
const struct dlrm_pulled *step_buffers_pulled(struct step_buffers *step);

#endif
