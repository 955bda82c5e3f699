/*
 * Linear layers of more than one output: products by cublasLt (plans.h), and by kernels what it leaves.
 *
 *     COMPUTE_FP32, COMPUTE_BLAS   fp32 throughout, never TF32
 *     COMPUTE_TF32                 operands rounded to TF32 inside the product
 *     COMPUTE_BF16                 operands rounded to bf16 beforehand, in `staged` copies
 *
 * Tensor cores want rows and addresses of operands that are multiples of 16 bytes. One that is not so is staged: copied
 * with its rows padded with zeros to the next multiple, and a gradient that is as wide as a padded operand is made in
 * a padded place and copied out.
 */
#ifndef WORKER_CUDA_PRODUCTS_H
#define WORKER_CUDA_PRODUCTS_H

#include "worker/compute/compute.h"
#include "worker/cuda/fault.h"
#include "worker/cuda/plans.h"

struct products;

/* NULL with `f` set. n_workspace_bytes: plans_new()'s. */
struct products *products_new(enum compute_products how, size_t n_workspace_bytes,
                              struct fault *f);
void products_free(struct products *p); /* NULL is fine */

/* Room for layers of this shape, up to n_max samples; as scratch_reserve(). */
cudaError_t products_reserve(struct products *p, uint32_t n_max, uint32_t in, uint32_t out);

/* compute_ops.linear_forward and linear_backward. scratch: kernels_sums_bytes(l->n, l->out). False with `f` set. */
bool products_forward(struct products *p, cudaStream_t stream, const struct linear *l,
                      enum compute_act act, float *y, uint32_t ldy, struct fault *f);
bool products_backward(struct products *p, cudaStream_t stream, const struct linear *l,
                       const float *dy, float *dx, const struct relu_mask *mask, float *dw,
                       float *db, void *scratch, struct fault *f);

#endif
