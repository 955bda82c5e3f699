/*
 * Rows of another width than the model's, made as wide as it. Of the fields of group g, whose rows have d floats:
 *
 *     row of the model [dim] = W_g row [d]        tensor proj.g.W, [dim][d]
 *
 * A factorised embedding (ALBERT, Lan et al. 2020; mixed dimensions, Ginart et al. 2021). It is done for each row of
 * the batch once, before the rows of a bag are summed, which gives the same sum, as W is linear. Rows of groups as wide
 * as the model are copied. Rows lie one behind another, those of group 0 first (batch.h).
 *
 * A device may have an op for all groups (device_ops.project_forward), which reads in its own memory how many rows each
 * group has. Elsewhere each group is a linear layer or two; such ops differ from batch to batch, and have no record.
 */
#ifndef WORKER_MODEL_PROJECTION_H
#define WORKER_MODEL_PROJECTION_H

#include "worker/compute/device.h"
#include "worker/model/device_buffers.h"
#include "worker/model/dlrm_config.h"
#include "worker/model/dlrm_types.h"

/* A step's, owned. */
struct projection_set {
    float *rows,
        *grads; /* of the device: [rows_cap][dim], as the model reads and writes them */
    uint32_t rows_cap;
    uint32_t *starts, *host_starts; /* of the device, of the host: row_projection.starts */
};

struct projection {
    const struct device_ops *ops;
    struct compute *c; /* borrowed */
    uint32_t n_groups; /* 0: all rows are as wide as the model, and nothing below is used */
    uint32_t dim, n_max;
    struct projection_group {
        uint32_t dim;
        struct dlrm_tensor *w; /* borrowed; NULL: rows are as wide as the model */
    } groups[BATCH_GROUPS_MAX];
    float *zeros,
        *dw; /* owned, of the device: a bias; a tensor's gradient of a part of the rows */
    size_t dw_floats;
    struct projection_set sets[DLRM_BUFFER_SETS];
};

/* Adds the tensors to tensors[*n_tensors ...]. ops and c are borrowed. */
void projection_init(struct projection *p, const struct device_ops *ops, struct compute *c,
                     const struct dlrm_config *config, struct dlrm_tensor *tensors,
                     uint32_t *n_tensors);

/* -ENOMEM: deinit is due all the same. */
int projection_alloc(struct projection *p) MUST_CHECK;

/* Accepts a zeroed struct. No step is in flight. */
void projection_deinit(struct projection *p);

/* Space for n_rows rows, which have headroom on a device with memory of its own; the buffer set has no step in flight.
 * -ENOMEM: there is none for any. */
int projection_reserve(struct projection *p, uint32_t set, uint32_t n_rows) MUST_CHECK;

/* After the reserve, with the step's other copies in. io: its key is 0 where there will be no record. */
void projection_in(struct projection *p, uint32_t set, const struct batch *batch,
                   struct dlrm_io *io);

/* The set's rows, of the step's rows. */
void projection_forward(struct projection *p, uint32_t set, const struct batch *batch,
                        const float *rows);

/* Of the set's grads: the gradients of the step's rows, and of the tensors. */
void projection_backward(struct projection *p, uint32_t set, const struct batch *batch,
                         const float *rows, float *row_grads);

#endif
