/*
 * Matrix products of cublasLt: one plan for each shape, made at its first run and kept.
 *
 * cublasLt is column-major. A row-major matrix is the transposed one there, so a row-major D = A B is computed as
 * D' = B' A'; gemm.c does that. Here, column-major:
 *
 *     D [m x n] = op(A) op(B), over k     lda, ldb, ldd: numbers from one column to the next
 *
 * D, and the bias with it, is fp32, or bf16 with `rounds`: the sums are fp32 until they are stored.
 *
 *     GEMM_PLANS_FORWARD        op(A) = A^T, op(B) = B    + bias[m]
 *     GEMM_PLANS_FORWARD_RELU   likewise, max(0, .); a NaN stays one
 *     GEMM_PLANS_DX             op(A) = A,   op(B) = B
 *     GEMM_PLANS_DX_TURNED      op(A) = A^T, op(B) = B    A is W, transposed beforehand
 *     GEMM_PLANS_DW             op(A) = A,   op(B) = B^T  bias[n] = the sum of B over k
 *
 * The bias and the ReLU are fused into the product if cublasLt can, which depends on shape and version. If it cannot,
 * the product is computed without them, and *ret_fused is false.
 *
 * A plan is made between ops, never while a stream is captured (some versions refuse that). So ops run once before
 * they are captured. Each plan's fusion is tested once, with a wait for the stream. The library may refuse a fusion
 * that it has offered. Its ReLU may turn a NaN into 0, so the test has a NaN bias. Sums of bf16 operands may be bf16,
 * which leaves a part of the output unwritten.
 */
#ifndef WORKER_CUDA_GEMM_PLANS_H
#define WORKER_CUDA_GEMM_PLANS_H

#include <cublasLt.h>

#include "worker/cuda/cuda_error.h"

struct gemm_plans;

enum gemm_plans_kind {
    GEMM_PLANS_FORWARD,
    GEMM_PLANS_FORWARD_RELU,
    GEMM_PLANS_DX,
    GEMM_PLANS_DX_TURNED,
    GEMM_PLANS_DW
};

struct gemm_plans_shape {
    enum gemm_plans_kind kind;
    uint32_t m, n, k, lda, ldb, ldd;
    uint32_t rounds; /* D is bf16; 0 or 1 */
};

struct gemm_plans_operands {
    const void *a, *b; /* of the type that gemm_plans_new() was given */
    void *d;
    void *bias; /* NULL: none */
};

/* n_workspace_bytes of device memory are taken. NULL with `f` set. */
struct gemm_plans *gemm_plans_new(cublasComputeType_t compute, cudaDataType type,
                                  size_t n_workspace_bytes, struct cuda_error *f);
void gemm_plans_free(struct gemm_plans *p); /* NULL is fine */

/* False with `f` set. *ret_fused: the product includes the bias and the ReLU. */
bool gemm_plans_run(struct gemm_plans *p, cudaStream_t stream,
                    const struct gemm_plans_shape *shape,
                    const struct gemm_plans_operands *operands, bool *ret_fused,
                    struct cuda_error *f);

#endif
