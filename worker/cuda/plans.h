/*
 * Matrix products as cublasLt plans them: a plan for each shape, made when it is first run and kept.
 *
 * cublasLt is column-major. A row-major matrix is the transposed one there, so a row-major D = A B is asked for as
 * D' = B' A'; products.c does that. Here, column-major:
 *
 *     D [m x n] = op(A) op(B), over k, D in fp32     lda, ldb, ldd: numbers from one column to the next
 *
 *     PLANS_FORWARD        op(A) = A^T, op(B) = B    + bias[m]
 *     PLANS_FORWARD_RELU   likewise, max(0, .); a NaN stays one
 *     PLANS_DX             op(A) = A,   op(B) = B
 *     PLANS_DW             op(A) = A,   op(B) = B^T  bias[n] = the sum of B over k
 *
 * What follows + or stands after ; is fused into the product where cublasLt can, which differs from shape to shape and from one
 * version to the next; where it cannot, the product is made without, and the caller is told.
 *
 * A plan is made between ops, never while a stream is captured (some versions refuse that): so ops are run
 * once before they are recorded. What is fused is tried before it is trusted, once for each plan, and the stream waited for: the
 * library may refuse in the end what it has offered; its ReLU, max(x, 0), may make 0 of a NaN, for which the bias is NaN; and sums
 * of bf16 operands may be bf16, too, which leaves a part of their place as it was.
 */
#ifndef WORKER_CUDA_PLANS_H
#define WORKER_CUDA_PLANS_H

#include <cublasLt.h>

#include "worker/cuda/fault.h"

struct plans;

enum plans_kind { PLANS_FORWARD, PLANS_FORWARD_RELU, PLANS_DX, PLANS_DW };

struct plans_shape {
    enum plans_kind kind;
    uint32_t m, n, k, lda, ldb, ldd;
};

struct plans_operands {
    const void *a, *b; /* of the type that plans_new() was given */
    float *d;
    float *bias; /* NULL: not wanted */
};

/* n_workspace_bytes of device memory are taken. NULL with `f` set. */
struct plans *plans_new(cublasComputeType_t compute, cudaDataType type,
                        size_t n_workspace_bytes, struct fault *f);
void plans_free(struct plans *p); /* NULL is fine */

/* False with `f` set. *ret_fused: whether the bias has been dealt with. */
bool plans_run(struct plans *p, cudaStream_t stream, const struct plans_shape *shape,
               const struct plans_operands *operands, bool *ret_fused, struct fault *f);

#endif
