/*
 * Linear layers of more than one output: products by cublasLt (gemm_plans.h), the rest by kernels.
 *
 *     DEVICE_FP32, DEVICE_BLAS   fp32 throughout, never TF32
 *     DEVICE_TF32                 operands rounded to TF32 inside the product
 *     DEVICE_BF16                 operands rounded to bf16 beforehand, in `staged` copies; gemm_bf16_...: bf16 already
 *
 * Tensor cores want rows and addresses of operands that are multiples of 16 bytes. Any other operand is staged:
 * copied with its rows zero-padded to the next multiple. A gradient as wide as a padded operand is computed in a padded
 * buffer and copied out.
 */
#ifndef WORKER_CUDA_GEMM_H
#define WORKER_CUDA_GEMM_H

#include "worker/compute/device.h"
#include "worker/compute/device_bf16.h"
#include "worker/cuda/cuda_error.h"
#include "worker/cuda/gemm_plans.h"
#include "worker/cuda/scratch.h"

struct gemm;

/* NULL with `f` set. n_workspace_bytes: gemm_plans_new()'s. */
struct gemm *gemm_new(enum device_products how, size_t n_workspace_bytes, struct cuda_error *f);
void gemm_free(struct gemm *p); /* NULL is fine */

/* Reserves memory for layers of this shape, up to n_max samples; as scratch_reserve(). */
cudaError_t gemm_reserve(struct gemm *p, uint32_t n_max, uint32_t in, uint32_t out);

/* device_ops.linear_forward and linear_backward. scratch: kernels_sums_bytes(), of l->n and the larger of in and out.
 * False with `f` set. */
bool gemm_forward(struct gemm *p, cudaStream_t stream, const struct linear *l,
                  enum device_act act, float *y, uint32_t ldy, struct cuda_error *f);
bool gemm_backward(struct gemm *p, cudaStream_t stream, const struct linear *l, const float *dy,
                   float *dx, const struct relu_mask *mask, float *dw, float *db, float *sums,
                   void *scratch, struct cuda_error *f);

/* gemm_bf16.c: device_bf16_ops.reserve, linear_forward and linear_backward; scratch as above. */
cudaError_t gemm_bf16_reserve(struct gemm *p, uint32_t in, uint32_t out);
bool gemm_bf16_forward(struct gemm *p, cudaStream_t stream, const struct bf16_linear *l,
                       enum device_act act, bf16 *y, uint32_t ldy, struct cuda_error *f);
bool gemm_bf16_backward(struct gemm *p, cudaStream_t stream, const struct bf16_linear *l,
                        const bf16 *dy, bf16 *dx, const struct bf16_mask *mask, float *dw,
                        float *db, float *sums, void *scratch, struct cuda_error *f);

/* The parts of it that both files use. */
struct gemm_plans *gemm_plans_of(struct gemm *p);
struct scratch *gemm_result_of(struct gemm *p);

#endif
