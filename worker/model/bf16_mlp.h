/*
 * mlp.h's layers with activations in bf16 (device_bf16.h), each with a ReLU and without a norm. A layer owns, in the
 * device's memory:
 *
 *     w [out][ldx], b [out]   rounded copies of its tensors, of this step
 *     y [n][out], ldy         after ReLU and dropout
 *     dy [n][out]             gradient of the product
 */
#ifndef WORKER_MODEL_BF16_MLP_H
#define WORKER_MODEL_BF16_MLP_H

#include "worker/compute/device_bf16.h"
#include "worker/model/mlp.h"

struct bf16_layer {
    uint32_t in, out, ldx;
    float dropout;             /* 0: none */
    struct dlrm_tensor *w, *b; /* borrowed */
    const bf16 *x;             /* borrowed, of the last forward */
    bf16 *y;                   /* own_y, or borrowed by bf16_mlp_place_output() */
    uint32_t ldy;
    bf16 *own_y, *dy, *copy_of_w, *copy_of_b; /* owned */
};

struct bf16_mlp {
    const struct device_ops *ops;
    struct compute *c; /* borrowed */
    uint32_t n_layers, n_max;
    struct bf16_layer layers[MLP_LAYERS_MAX];
};

/* The first n_layers of a planned MLP; no memory yet. */
void bf16_mlp_init(struct bf16_mlp *mlp, const struct mlp *of, uint32_t n_layers);

/* The last layer writes to y, whose rows are ldy numbers apart. Before bf16_mlp_alloc(). */
void bf16_mlp_place_output(struct bf16_mlp *mlp, bf16 *y, uint32_t ldy);

/* -ENOMEM; bf16_mlp_deinit() is then due all the same. */
int bf16_mlp_alloc(struct bf16_mlp *mlp, uint32_t n_max) MUST_CHECK;

/* Accepts a zeroed struct. */
void bf16_mlp_deinit(struct bf16_mlp *mlp);

struct bf16_layer *bf16_mlp_last(struct bf16_mlp *mlp);

/* Copies that are due before forward; behind *n others. */
void bf16_mlp_list_copies(const struct bf16_mlp *mlp, struct bf16_copy *copies, uint32_t *n);

/* As mlp_forward(). */
void bf16_mlp_forward(struct bf16_mlp *mlp, uint32_t n, const bf16 *x, enum mlp_pass pass,
                      const uint64_t *drop_keys);

/* The mask that turns a gradient of l's y into l's dy. */
struct bf16_mask bf16_mlp_mask(const struct bf16_layer *l);

/* The last layer's dy is filled; has_sums: the gradient of its bias is, too. dx: NULL, or of the first layer's x. */
void bf16_mlp_backward(struct bf16_mlp *mlp, uint32_t n, bool has_sums, bf16 *dx);

#endif
