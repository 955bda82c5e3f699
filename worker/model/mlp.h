/*
 * A stack of fully connected layers, each fed by the one before:
 *
 *     x -> product + b -> (norm) -> (ReLU) -> (dropout) -> y
 *
 * Weights are tensors of the model. Values that a layer keeps between forward and backward are its own, in the device's
 * memory:
 *
 *     pre    [n][out]        the product, before the norm; only of a layer with one
 *     y      [n][out], ldy   after ReLU and dropout
 *     dy     [n][out]        gradient of the product; of a layer with a norm that of y, until
 *                            backward has made it the product's
 */
#ifndef WORKER_MODEL_MLP_H
#define WORKER_MODEL_MLP_H

#include "worker/compute/device.h"
#include "worker/model/dlrm_types.h"

#define MLP_LAYERS_MAX 9u

enum mlp_pass { MLP_EVAL, MLP_TRAIN };

struct mlp_layer {
    uint32_t in, out;
    enum device_act act;
    float dropout;                                 /* 0: none */
    struct dlrm_tensor *w, *b;                     /* borrowed */
    struct dlrm_tensor *gamma, *beta, *mean, *var; /* borrowed; NULL without norm */
    const float *x;                                /* borrowed, of the last forward */
    uint32_t ldx; /* floats from a row of x to the next; 0: in */
    float *pre;   /* owned */
    float *stats; /* owned: mean, var, inv_std of the norm, out each */
    float *y;     /* own_y, or borrowed by mlp_place_output() */
    uint32_t ldy;
    float *own_y, *dy; /* owned */
};

struct mlp {
    const struct device_ops *ops;
    struct compute *c; /* borrowed */
    uint32_t n_layers, n_max;
    struct mlp_layer layers[MLP_LAYERS_MAX];
};

struct mlp_plan {
    const char *name; /* before the dot in tensor names */
    uint32_t in, out;
    uint32_t n_hidden;
    const uint32_t *hidden; /* widths */
    enum device_act last;
    bool norm;     /* of each layer with ReLU */
    float dropout; /* of each hidden layer */
};

/* Shapes only; adds the tensors of the layers, without memory, to tensors[*n_tensors ...]. */
void mlp_init(struct mlp *mlp, const struct mlp_plan *plan, struct dlrm_tensor *tensors,
              uint32_t *n_tensors);

/* The last layer writes to y, whose rows are ldy floats apart. Before mlp_alloc. */
void mlp_place_output(struct mlp *mlp, float *y, uint32_t ldy);

/* Buffers for n_max samples, and the device's. -ENOMEM; mlp_deinit is then due all the same. */
int mlp_alloc(struct mlp *mlp, uint32_t n_max) MUST_CHECK;

/* Accepts a zeroed struct. */
void mlp_deinit(struct mlp *mlp);

struct mlp_layer *mlp_last(struct mlp *mlp);

/* x [n][in of the first layer] is borrowed until backward is done. drop_keys: of dropout, one for each hidden
 * layer, in the device's memory; not used without it. */
void mlp_forward(struct mlp *mlp, uint32_t n, const float *x, enum mlp_pass pass,
                 const uint64_t *drop_keys);

/* The mask that turns a gradient of l's y into l's dy; the op that writes the gradient applies it. Returns mask, or
 * NULL: there is none. */
const struct relu_mask *mlp_mask(const struct mlp_layer *l, struct relu_mask *mask);

/* After a training forward. The last layer's dy is filled. Fills the tensors' grads, and dx
 * unless NULL. */
void mlp_backward(struct mlp *mlp, uint32_t n, float *dx);

#endif
