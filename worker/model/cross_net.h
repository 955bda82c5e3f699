/*
 * The cross network of DCN V2 (Wang et al. 2021, arXiv:2008.13535, equations 1 and 2):
 *
 *     x_(l+1) = x_0 * (W_l x_l + b_l) + x_l             * is element by element
 *     x_(l+1) = x_0 * (W_l (V_l x_l) + b_l) + x_l       of low rank
 *
 * Tensors of layer l: cross.l.W [width][width] and cross.l.b [width]; of low rank cross.l.V [rank][width] and cross.l.W
 * [width][rank]. Matrices start as those of the MLPs do, biases at 0. Arrays, in the device's memory, n_max samples
 * each:
 *
 *     x, of a layer   [n][width], ld   x_(l+1)
 *     u, of a layer   [n][width]       what x_0 is multiplied by
 *     v, of a layer   [n][rank]        V x_l
 *     du, dv          like u and v     their gradients, of one layer at a time
 *     dy, dx          like x           the gradients of a layer's output and, through u, of its input
 */
#ifndef WORKER_MODEL_CROSS_NET_H
#define WORKER_MODEL_CROSS_NET_H

#include "worker/compute/device.h"
#include "worker/model/dlrm_config.h"
#include "worker/model/dlrm_types.h"

struct cross_layer {
    struct dlrm_tensor *v_weights, *w, *b; /* borrowed; v_weights: NULL of full rank */
    float *x, *u, *v;                      /* owned; v: NULL of full rank */
};

struct cross_net {
    const struct device_ops *ops;
    struct compute *c; /* borrowed */
    uint32_t n_layers, width, rank, ld, n_max;
    struct cross_layer layers[DLRM_CROSS_MAX];
    float *du, *dv, *dy, *dx; /* owned; dv: NULL of full rank */
    float *zeros;             /* [rank], owned: the bias that V has none of */
};

struct cross_net_plan {
    const struct device_ops *ops;
    struct compute *c; /* borrowed */
    uint32_t n_layers, width;
    uint32_t rank; /* 0: full */
    uint32_t ld;   /* floats from a row of x_0 to the next; gaps are zeros */
};

/* Shapes only; adds the tensors, without memory, to tensors[*n_tensors ...]. */
void cross_net_init(struct cross_net *net, const struct cross_net_plan *plan,
                    struct dlrm_tensor *tensors, uint32_t *n_tensors);

/* Arrays for n_max samples. -ENOMEM: deinit is due all the same. */
int cross_net_alloc(struct cross_net *net, uint32_t n_max) MUST_CHECK;

/* Accepts a zeroed struct. */
void cross_net_deinit(struct cross_net *net);

/* The last layer's x, of x_0 [n][width], ld, which is borrowed until backward is done. */
const float *cross_net_forward(struct cross_net *net, uint32_t n, const float *x0);

/* net->dy is the gradient of the last x. Fills the tensors' grads and dx0 [n][width], ld. */
void cross_net_backward(struct cross_net *net, uint32_t n, const float *x0, float *dx0);

#endif
