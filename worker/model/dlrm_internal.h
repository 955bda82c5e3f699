/*
 * struct dlrm, private to dlrm.c and to the tests that read intermediates (tests/unit/model/debug_read.c). In the
 * device's memory:
 *
 *     T        [n][n_vectors][dim]   D (written there by the bottom MLP), then the bags, as far as
 *                                    device_ops.interact_bags_forward() does not read them in place
 *     R        [n][r_width], ldr     T itself for concat and without fields
 *     dT, dR   like T and R          their gradients; dT is what comes through the pairs
 *                                    alone, dR itself for concat
 */
#ifndef WORKER_MODEL_DLRM_INTERNAL_H
#define WORKER_MODEL_DLRM_INTERNAL_H

#include "worker/model/device_buffers.h"
#include "worker/model/device_push_encode.h"
#include "worker/model/mlp.h"

struct dlrm {
    struct dlrm_config config;
    const struct device_ops *ops;
    struct compute *c; /* owned */
    uint32_t n_vectors, r_width, ldr;
    bool pairs;             /* R holds products: not concat, and there are fields */
    struct mlp bottom, top; /* bottom: without layers when there are no numeric columns */
    uint32_t n_tensors;
    struct dlrm_tensor tensors[DLRM_TENSORS_MAX];
    struct device_buffers buffers;     /* owned: inputs and outputs of steps */
    struct device_push_encode encoder; /* owned: gradients that leave encoded */
    float *t, *dt, *r, *dr; /* owned, of the device; r and dr are NULL unless pairs */
    uint32_t n;             /* samples of the last step */
};

#endif
