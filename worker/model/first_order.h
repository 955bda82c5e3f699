/*
 * The first-order term of a model: a linear layer of the numeric columns, and one weight for each key.
 *
 *     y = X w^T + b + sum of the weights of all keys of the sample        X [n][n_inputs], ldx
 *
 * The tensors are lin.0.W and lin.0.b, which start at 0, as a logistic regression does; without numeric columns there
 * is only the bias.
 */
#ifndef WORKER_MODEL_FIRST_ORDER_H
#define WORKER_MODEL_FIRST_ORDER_H

#include "worker/compute/device.h"
#include "worker/model/dlrm_types.h"

struct first_order {
    const struct device_ops *ops;
    struct compute *c; /* borrowed */
    uint32_t n_inputs, ldx, n_max;
    struct dlrm_tensor *w, *b; /* borrowed; w: NULL without numeric columns */
    float *y, *dy;             /* [n_max], owned, of the device */
};

/* Adds the tensors to tensors[*n_tensors ...]. ops and c are borrowed. */
void first_order_init(struct first_order *f, const struct device_ops *ops, struct compute *c,
                      uint32_t n_inputs, uint32_t ldx, struct dlrm_tensor *tensors,
                      uint32_t *n_tensors);

/* y and dy, for n_max samples. -ENOMEM: deinit is due all the same. */
int first_order_alloc(struct first_order *f, uint32_t n_max) MUST_CHECK;

/* Accepts a zeroed struct. */
void first_order_deinit(struct first_order *f);

/* f->y; weights: of the batch's unique keys. */
void first_order_forward(struct first_order *f, const float *numeric, const struct bags *bags,
                         const float *weights);

/* Of the gradient dz [n] of y. */
void first_order_backward(struct first_order *f, const float *numeric, const struct bags *bags,
                          const float *dz, float *weight_grads);

#endif
