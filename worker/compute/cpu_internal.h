/*
 * The CPU's ops, for the table in device_cpu.c, and their shared functions. Their contract stands in device.h.
 *
 * An op divides its work into tasks, which the pool runs. The number and borders of tasks depend on the op's shape
 * alone, so the bits do not depend on the number of threads.
 */
#ifndef WORKER_COMPUTE_CPU_INTERNAL_H
#define WORKER_COMPUTE_CPU_INTERNAL_H

#include <assert.h>

#include "worker/compute/device.h"
#include "worker/compute/gemm_kernels.h"
#include "worker/compute/thread_pool.h"

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

/* Memory that grows when a larger layer is announced. */
struct cpu_scratch {
    void *bytes; /* owned */
    size_t n_bytes;
};

struct compute {
    struct thread_pool *pool;         /* owned */
    const struct gemm_kernels *tiles; /* borrowed; NULL: products by OpenBLAS */
    struct cpu_scratch
        db_partials; /* float [blocks][]: gradients of blocks of samples, to be summed */
    struct cpu_scratch loss_partials; /* double [blocks] */

    /* Products with kernels of our own alone; layouts in gemm_kernels.h. */
    struct cpu_scratch weights; /* tiles of W, for the op in progress */
    struct cpu_scratch x_tiles, dy_tiles;
    struct cpu_scratch *block_tiles,
        *sums; /* owned, one a thread: a block of samples; products */
    char text[160];
};

/* s, which has space for n_bytes: it was reserved. */
static inline void *cpu_scratch_of(const struct cpu_scratch *s, size_t n_bytes)
{
    assert(n_bytes <= s->n_bytes);
    return s->bytes;
}

static inline void cpu_run(struct compute *c, uint32_t n_tasks, thread_pool_task *task,
                           void *job)
{
    thread_pool_run(c->pool, n_tasks, task, job);
}

static inline uint32_t cpu_min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline uint32_t cpu_ceil_div(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

/* Rows `first` to `end` of task i, of tasks of `size` rows. */
struct cpu_range {
    uint32_t first, end;
};

static inline struct cpu_range cpu_range_of(uint32_t i, uint32_t size, uint32_t n)
{
    return (struct cpu_range){ i * size, cpu_min(n, (i + 1) * size) };
}

/* The mask from row `first` on; of NULL: anything. */
static inline struct relu_mask cpu_mask_at(const struct relu_mask *mask, uint32_t first)
{
    return mask ? (struct relu_mask){ mask->y + (size_t)first * mask->ldy, mask->ldy,
                                      mask->scale }
                : (struct relu_mask){ 0 };
}

/* Samples of a task of an op whose samples have nothing to do with each other. */
#define CPU_SAMPLES 64u

/* Rows of a weight gradient that a task computes at most, with kernels of our own. */
#define CPU_DW_ROWS 128u

void cpu_linear_forward(struct compute *c, const struct linear *l, enum device_act act,
                        float *y, uint32_t ldy);
void cpu_linear_backward(struct compute *c, const struct linear *l, const float *dy, float *dx,
                         const struct relu_mask *mask, float *dw, float *db, float *sums);
void cpu_logit_forward(struct compute *c, const struct linear *l, enum device_act act, float *y,
                       uint32_t ldy);
void cpu_logit_backward(struct compute *c, const struct linear *l, const float *dy, float *dx,
                        const struct relu_mask *mask, float *dw, float *db);
void cpu_rows_norm_batch(struct compute *c, const struct norm *nm, const float *x);
void cpu_rows_norm_running(struct compute *c, const struct norm *nm);
void cpu_rows_norm_apply(struct compute *c, const struct norm *nm, enum device_act act,
                         const float *x, float *y, uint32_t ldy);
void cpu_rows_norm_backward(struct compute *c, const struct norm *nm,
                            const struct relu_mask *mask, const float *x, float *dy,
                            const struct norm_grads *grads);
void cpu_bag_sum(struct compute *c, const struct bags *b, const float *rows, float *sums,
                 uint32_t ld);
void cpu_bag_grad(struct compute *c, const struct bags *b, const float *dsums, uint32_t ld,
                  float *drows);
void cpu_bag_mean(struct compute *c, const struct bags *b, uint32_t first, uint32_t end,
                  float *x, uint32_t ld);
void cpu_bag_wide_sum(struct compute *c, const struct bags *b, const float *weights, float *z);
void cpu_bag_wide_grad(struct compute *c, const struct bags *b, const float *dz,
                       float *dweights);
void cpu_interact_forward(struct compute *c, const struct interact *it, const float *t,
                          float *r);
void cpu_interact_backward(struct compute *c, const struct interact *it, const float *t,
                           const float *dr, float *dt);
void cpu_pair_sum_forward(struct compute *c, const struct pair_sum *p, const float *t,
                          float *z);
void cpu_pair_sum_backward(struct compute *c, const struct pair_sum *p, const float *t,
                           const float *dz, const float *dx, float *dt);
void cpu_logit_prob(struct compute *c, uint32_t n, const float *z, float *p);
void cpu_logit_loss(struct compute *c, const struct cross_entropy *e, const float *z,
                    const float *y, float *dz, double *ret);
void cpu_rows_upload(struct compute *c, uint32_t set, const struct row_upload *u);
void cpu_rows_decode(struct compute *c, uint32_t set, const struct row_decode *d);
void cpu_rows_dropout(struct compute *c, const struct dropout *d, float *y);
void cpu_rows_add(struct compute *c, uint32_t n, uint32_t width, const float *a, uint32_t lda,
                  const float *b, uint32_t ldb, const struct relu_mask *mask, float *sum);
void cpu_rows_copy(struct compute *c, uint32_t n, uint32_t width, const float *x, uint32_t ldx,
                   float *y, uint32_t ldy);
void cpu_rows_number_hats(struct compute *c, const struct number_hats *h, const float *x,
                          float *y);
void cpu_rows_axpy(struct compute *c, size_t n, float a, const float *x, float *y);
void cpu_rows_cross_forward(struct compute *c, const struct cross_shape *s, const float *x0,
                            const float *u, const float *x, float *y);
void cpu_rows_cross_backward(struct compute *c, const struct cross_shape *s, const float *x0,
                             const float *u, const float *dy, const float *more, float *du,
                             float *dx0);
void cpu_rows_encode(struct compute *c, const struct device_encode *e);
void cpu_update_rows(struct compute *c, const struct row_update *u);

#endif
