/*
 * Ops on activations that are bf16 in the device's memory, for a device that has them (device_ops.bf16): products read
 * and write half as many bytes, and none of their operands is rounded on its way.
 *
 * X, Y, T, R and their gradients are rounded to nearest even where they are stored. Products sum in fp32; the gradients
 * of weights, biases and rows are fp32, and so are their sums, logits and the loss. Products take copies of weights and
 * biases that round() makes once a step. The CPU rounds the same operands of products, where it reads them
 * (DEVICE_BF16); what else is made of them (pairs, sums, logits) it makes of numbers that are not rounded.
 *
 * Rows of matrices begin at multiples of 16 bytes: `out`, strides and dim are multiples of 8. What is behind a row's
 * `in` numbers is 0. Otherwise device.h holds.
 */
#ifndef WORKER_COMPUTE_DEVICE_BF16_H
#define WORKER_COMPUTE_DEVICE_BF16_H

#include "worker/compute/device_args.h"

struct compute;

typedef uint16_t bf16;

#define DEVICE_BF16_COPIES_MAX 40u

/* x [n][width], ldx -> y [n][ldy], zeros behind a row's width */
struct bf16_copy {
    const float *x;
    bf16 *y;
    uint32_t n, width, ldx, ldy;
};

/* Y = X W^T + b, of more than one output */
struct bf16_linear {
    uint32_t n, in, out;
    const bf16 *x, *w, *b; /* n x in, out x in, out */
    uint32_t ldx;          /* of x, dx and w */
};

/* z = x w + b, of fp32 weights */
struct bf16_logit {
    uint32_t n, in;
    const bf16 *x; /* n x in */
    const float *w, *b;
};

/* As struct relu_mask. */
struct bf16_mask {
    const bf16 *y; /* n x width */
    uint32_t ldy;
    float scale;
};

struct device_bf16_ops {
    /* As device_ops.reserve, of each shape. -ENOMEM. */
    int (*reserve)(struct compute *c, uint32_t n_max, uint32_t in, uint32_t out);

    /* For rounded copies of up to n_rows rows (bags.transpose->n_rows_max) of dim numbers, of all buffer sets. Due
     * before the begin() of a step that interacts more of them than any before. -ENOMEM. */
    int (*reserve_rows)(struct compute *c, uint32_t n_rows, uint32_t dim);

    /* At most DEVICE_BF16_COPIES_MAX, side by side. */
    void (*round)(struct compute *c, const struct bf16_copy *copies, uint32_t n);

    void (*linear_forward)(struct compute *c, const struct bf16_linear *l, enum device_act act,
                           bf16 *y, uint32_t ldy);

    /* dx [n][ldx] = dy W, through `mask`      NULL: not wanted; no mask
     * dw [out][in] = dy^T X
     * db [out] = sum of dy over samples       NULL: not wanted
     * sums [in] = that of dx                  with a mask, and only then; ldx is `in` */
    void (*linear_backward)(struct compute *c, const struct bf16_linear *l, const bf16 *dy,
                            bf16 *dx, const struct bf16_mask *mask, float *dw, float *db,
                            float *sums);

    void (*logit_forward)(struct compute *c, const struct bf16_logit *l, float *z);

    /* Through a ReLU and the scale behind it, which made x:
     * dx [n][in] = x > 0 ? dz w * scale : 0      dw [in] = dz^T x      db = sum of dz      sums [in] = that of dx, not
     * yet rounded */
    void (*logit_backward)(struct compute *c, const struct bf16_logit *l, const float *dz,
                           float scale, bf16 *dx, float *dw, float *db, float *sums);

    void (*dropout)(struct compute *c, const struct dropout *d, bf16 *y);

    /* interact_bags_forward, of rows rounded before they are summed, for which there is space. Dim is 16, 32, 64 or
     * 128, there are at most 32 vectors. The number of rows is b->transpose->counts[0], in the device's memory. */
    void (*interact_bags_forward)(struct compute *c, const struct bags *b, const float *rows,
                                  const struct interact *it, bf16 *t, bf16 *r);

    /* After it. dfirst [n][dim] = dr's direct part + the gradient of T's first vector, which is not in dt then,
     * through `mask`; both NULL: there is no direct part. */
    void (*interact_bags_backward)(struct compute *c, const struct bags *b,
                                   const struct interact *it, const bf16 *t, const bf16 *dr,
                                   bf16 *dt, const struct bf16_mask *mask, bf16 *dfirst);

    void (*bag_grad)(struct compute *c, const struct bags *b, const bf16 *dsums, uint32_t ld,
                     float *drows);
};

#endif
