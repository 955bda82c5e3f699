/* The CPU's ops, for the table in compute_cpu.c. Their contract stands in compute.h. */
#ifndef WORKER_COMPUTE_CPU_H
#define WORKER_COMPUTE_CPU_H

#include "worker/compute/compute.h"

/* A loop compiled for three generations of vector units, picked when the program starts. All
 * give the same bits: no sum is reordered and no product fused (-ffp-contract=off). Sanitizers
 * run before the pick can be made. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CPU_CLONES
#endif
#endif
#if !defined(CPU_CLONES) && defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define CPU_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#elif !defined(CPU_CLONES)
#define CPU_CLONES
#endif

/* Floats that inner loops take at once. As a type of its own, because an accumulator that is an
 * array ends up in memory; the compiler cuts it into what the processor has. May stand at any
 * address that a float may. */
#define CPU_LANES 16u
typedef float cpu_lanes __attribute__((vector_size(64), aligned(4), may_alias));

void cpu_linear_forward(struct compute *c, const struct linear *l, enum compute_act act,
                        float *y, uint32_t ldy);
void cpu_linear_backward(struct compute *c, const struct linear *l,
                         const struct relu_mask *mask, float *dy, float *dx, float *dw,
                         float *db);
void cpu_norm_batch(struct compute *c, const struct norm *nm, const float *x);
void cpu_norm_running(struct compute *c, const struct norm *nm);
void cpu_norm_apply(struct compute *c, const struct norm *nm, enum compute_act act,
                    const float *x, float *y, uint32_t ldy);
void cpu_norm_backward(struct compute *c, const struct norm *nm, const struct relu_mask *mask,
                       const float *x, float *dy, const struct norm_grads *grads);
void cpu_bag_sum(struct compute *c, const struct bags *b, const float *rows, float *sums,
                 uint32_t ld);
void cpu_bag_grad(struct compute *c, const struct bags *b, const float *dsums, uint32_t ld,
                  float *drows);
void cpu_bag_wide_sum(struct compute *c, const struct bags *b, const float *weights, float *z);
void cpu_bag_wide_grad(struct compute *c, const struct bags *b, const float *dz,
                       float *dweights);
void cpu_interact_forward(struct compute *c, const struct interact *it, const float *t,
                          float *r);
void cpu_interact_backward(struct compute *c, const struct interact *it, const float *t,
                           const float *dr, float *dt);
void cpu_loss_prob(struct compute *c, uint32_t n, const float *z, float *p);
void cpu_loss_mean(struct compute *c, uint32_t n, const float *z, const float *y, double *ret);
void cpu_loss_grad(struct compute *c, uint32_t n, const float *z, const float *y, float *dz);
void cpu_rows_dropout(struct compute *c, const struct dropout *d, float *y);
void cpu_rows_add(struct compute *c, uint32_t n, uint32_t width, const float *a, uint32_t lda,
                  const float *b, uint32_t ldb, float *sum);
void cpu_rows_axpy(struct compute *c, size_t n, float a, const float *x, float *y);

#endif
