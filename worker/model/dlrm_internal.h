/*
 * struct dlrm, private to dlrm.c, the heads and the tests that read intermediates (tests/unit/model/debug_read.c). In
 * the device's memory, of a DLRM:
 *
 *     T        [n][n_vectors][dim]   D (written there by the bottom MLP), then the bags, as far as
 *                                    device_ops.interact_bags_forward() does not read them in place
 *     R        [n][r_width], ldr     T itself for concat and without fields
 *     dT, dR   like T and R          their gradients; dT is what comes through the pairs
 *                                    alone, dR itself for concat
 *
 * Of the other kinds T is the bags side by side and, if a top MLP reads them, the numeric columns behind them
 * (concat.h); there is no R.
 */
#ifndef WORKER_MODEL_DLRM_INTERNAL_H
#define WORKER_MODEL_DLRM_INTERNAL_H

#include "worker/model/bf16_mlp.h"
#include "worker/model/cross_net.h"
#include "worker/model/data_parallel.h"
#include "worker/model/device_buffers.h"
#include "worker/model/device_push_encode.h"
#include "worker/model/first_order.h"
#include "worker/model/mlp.h"
#include "worker/model/projection.h"

struct head;

/* What head_dlrm_bf16.c has in the device's memory instead of a DLRM's arrays and its MLPs'. x: the numeric columns,
 * ldx apart; the others as those of struct dlrm. */
struct bf16_dlrm {
    uint32_t ldx, ldt;
    bf16 *x, *t, *dt, *r, *dr; /* owned */
    float *z, *dz;             /* owned */
    struct bf16_mlp bottom, top;
};

/* Where the host gets the gradients of a step; all borrowed. */
struct dlrm_gradients {
    float *dense; /* dlrm_tensor.at */
    float *rows, *wide;
    size_t n_rows, n_wide; /* floats of these; 0: there are none */
};

struct dlrm {
    struct dlrm_config config;
    const struct head *head;
    const struct device_ops *ops;
    struct compute *c; /* owned */
    uint32_t n_vectors, r_width, ldr;
    uint32_t n_inputs, ldx; /* floats of a sample's numeric columns, from sample to sample */
    uint32_t ldt;           /* of T, if the kind is not DLRM */
    bool pairs;             /* R holds products: not concat, and there are fields */
    struct mlp bottom, top; /* without layers where the kind or the columns have none */
    struct first_order first_order;
    struct projection projection; /* of rows that are not as wide as the model */
    struct cross_net cross;       /* of DCN V2 */
    uint32_t n_tensors;
    struct dlrm_tensor tensors[DLRM_TENSORS_MAX];
    struct device_buffers buffers;     /* owned: inputs and outputs of steps */
    struct device_push_encode encoder; /* owned: gradients that leave encoded */
    float *
        x; /* owned, of the device: inputs [n][n_inputs], ldx, that hats make; NULL: there are none */
    float *t, *dt, *r, *dr; /* owned, of the device; NULL where the kind has none */
    struct bf16_dlrm *bf16; /* owned: instead of those and the MLPs' arrays, or NULL */
    float *z, *dz; /* logits and their gradients: borrowed from the part that makes them */
    uint32_t n;    /* samples of the last step */
    struct dlrm_gradients gradients[DLRM_BUFFER_SETS]; /* of the steps in flight */

    /* On several devices: a model on each, and of those above only config, head, ops, tensors, gradients and the host's
     * buffers; c is the first one's, borrowed. */
    uint32_t n_members;
    struct dlrm *members[DLRM_DEVICES_MAX];
    bool has_dense[DLRM_DEVICES_MAX]; /* the member has had the dense array that is in use */
    uint32_t failed;                  /* the member that failed last */
    struct data_parallel *parallel;   /* owned, as the members */
    char device[512];                 /* dlrm_device() */
};

/* Of batch_max samples of `width` floats. */
static inline size_t dlrm_internal_bytes(const struct dlrm *m, size_t width)
{
    return m->config.batch_max * width * sizeof(float);
}

/* So many of the device's memory; NULL: none is left. */
static inline float *dlrm_internal_alloc(const struct dlrm *m, size_t width)
{
    return m->ops->memory_alloc(m->c, dlrm_internal_bytes(m, width));
}

static inline float *dlrm_internal_alloc_zeroed(const struct dlrm *m, size_t width)
{
    return m->ops->memory_alloc_zeroed(m->c, dlrm_internal_bytes(m, width));
}

static inline void dlrm_internal_free(const struct dlrm *m, float *memory, size_t width)
{
    if (memory)
        m->ops->memory_free(m->c, memory, dlrm_internal_bytes(m, width));
}

/* Floats of a row of a layer's input of this width (device_ops.row_floats). */
static inline uint32_t dlrm_internal_ld(const struct dlrm *m, uint32_t width)
{
    const uint32_t unit = m->ops->row_floats > 1 ? m->ops->row_floats : 1;

    return (width + unit - 1) / unit * unit;
}

#endif
