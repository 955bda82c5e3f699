/*
 * The state of a compute on CUDA, which device_cuda.c and cuda_ops.c share.
 *
 *     in        copies ─► done[in] ─┐
 *     compute                       └─ ops, or a graph ─► done[compute] ─┐
 *     out                                                                └─ copies ─► done[out] ─┐
 *     host                                                                                       └─ wait() returns
 *
 * No buffer set needs another dependency: its next upload comes after its wait(), and the ops of all share a stream.
 */
#ifndef WORKER_CUDA_CUDA_H
#define WORKER_CUDA_CUDA_H

#include "worker/compute/device.h"
#include "worker/cuda/cuda_error.h"
#include "worker/cuda/gemm.h"
#include "worker/cuda/graphs.h"
#include "worker/cuda/kernels.h"
#include "worker/cuda/scratch.h"

enum cuda_stream { CUDA_IN, CUDA_COMPUTE, CUDA_OUT, CUDA_STREAMS };

struct cuda_buffer_set {
    cudaEvent_t done[CUDA_STREAMS]; /* owned: all of the buffer set's work on a stream */
    bool
        queued[CUDA_STREAMS]; /* there is work that no later work of the buffer set waits for */
    struct cuda_error fault;  /* the first since the last wait */
};

/* The stream of an op, and where its failure is kept. */
struct cuda_target {
    cudaStream_t stream;
    struct cuda_error *fault;
};

struct compute {
    int device;                         /* its number */
    cudaStream_t streams[CUDA_STREAMS]; /* owned */
    cudaStream_t record;                /* owned: nothing runs there, it is captured */
    struct cuda_buffer_set sets[DEVICE_BUFFER_SETS];
    struct cuda_buffer_set
        *out; /* whose copies out have no mark behind them yet; NULL: all have */
    struct graphs graphs;
    struct gemm *products; /* owned */
    enum kernels_math math;
    struct scratch scratch; /* of kernels */
    struct scratch
        rounded_rows; /* a step's rows in bf16, from the way forward to the way back */

    /* Between begin() and end(): the compute stream, and while a record is made that, too. */
    struct cuda_target targets[2];
    uint32_t n_targets;
    struct graph *recording; /* of graphs; NULL: none is made */
    struct cuda_error record_fault;

    struct cuda_error failure; /* of the last wait() that failed */
    char text[192];
};

/* First thing in what any thread may call: CUDA has a current device for each thread, 0 at first, and makes streams
 * and memory there. False with `f` set. */
bool cuda_use_device(int device, struct cuda_error *f);

/* The same of what cannot report a failure: the calls that follow report theirs. */
void cuda_try_device(int device);

/* Waits for all streams, whatever failed. */
void cuda_synchronize(struct compute *c);

/* Before memory moves that graphs know by its address: waits for all streams and releases every graph. */
void cuda_release_graphs(struct compute *c);

/* Kernels' scratch of at least n_bytes; it grows where it is too small. NULL with `f` set. */
void *cuda_scratch(struct compute *c, size_t n_bytes, struct cuda_error *f);

/* c->rounded_rows with space for at least n_bytes, before begin(). False with `f` set. */
bool cuda_reserve_rounded_rows(struct compute *c, size_t n_bytes, struct cuda_error *f);

/* cuda_dedup.c */
int cuda_dedup_new(struct compute *c, struct device_dedup **ret, struct err *err);
void cuda_dedup_free(struct device_dedup *d);
int cuda_dedup_run(struct device_dedup *d, const struct key_dedup *k, uint32_t *ret_n_unique,
                   struct err *err);

void cuda_ops_linear_forward(struct compute *c, const struct linear *l, enum device_act act,
                             float *y, uint32_t ldy);
void cuda_ops_linear_backward(struct compute *c, const struct linear *l, const float *dy,
                              float *dx, const struct relu_mask *mask, float *dw, float *db,
                              float *sums);
void cuda_ops_norm_batch(struct compute *c, const struct norm *nm, const float *x);
void cuda_ops_norm_running(struct compute *c, const struct norm *nm);
void cuda_ops_norm_apply(struct compute *c, const struct norm *nm, enum device_act act,
                         const float *x, float *y, uint32_t ldy);
void cuda_ops_norm_backward(struct compute *c, const struct norm *nm,
                            const struct relu_mask *mask, const float *x, float *dy,
                            const struct norm_grads *grads);
void cuda_ops_dropout(struct compute *c, const struct dropout *d, float *y);
void cuda_ops_bag_sum(struct compute *c, const struct bags *b, const float *rows, float *sums,
                      uint32_t ld);
void cuda_ops_bag_grad(struct compute *c, const struct bags *b, const float *dsums, uint32_t ld,
                       float *drows);
void cuda_ops_bag_mean(struct compute *c, const struct bags *b, uint32_t first, uint32_t end,
                       float *x, uint32_t ld);
void cuda_ops_transpose_bags(struct compute *c, const struct bag_transposition *t);
void cuda_ops_wide_sum(struct compute *c, const struct bags *b, const float *weights, float *z);
void cuda_ops_wide_grad(struct compute *c, const struct bags *b, const float *dz,
                        float *dweights);
void cuda_ops_project_forward(struct compute *c, const struct row_projection *p,
                              const float *rows, float *wide);
void cuda_ops_project_backward(struct compute *c, const struct row_projection *p,
                               const float *rows, const float *dwide, float *drows);
void cuda_ops_interact_forward(struct compute *c, const struct interact *it, const float *t,
                               float *r);
void cuda_ops_interact_backward(struct compute *c, const struct interact *it, const float *t,
                                const float *dr, float *dt);
void cuda_ops_interact_bags_forward(struct compute *c, const struct bags *b, const float *rows,
                                    const struct interact *it, float *t, float *r);
void cuda_ops_interact_bags_backward(struct compute *c, const struct bags *b, const float *rows,
                                     const struct interact *it, float *t, const float *dr,
                                     float *dt, const struct relu_mask *mask, float *dfirst);
void cuda_ops_pair_sum_forward(struct compute *c, const struct pair_sum *p, const float *t,
                               float *z);
void cuda_ops_pair_sum_backward(struct compute *c, const struct pair_sum *p, const float *t,
                                const float *dz, const float *dx, float *dt);
void cuda_ops_cross_forward(struct compute *c, const struct cross_shape *s, const float *x0,
                            const float *u, const float *x, float *y);
void cuda_ops_cross_backward(struct compute *c, const struct cross_shape *s, const float *x0,
                             const float *u, const float *dy, const float *more, float *du,
                             float *dx0);
void cuda_ops_prob(struct compute *c, uint32_t n, const float *z, float *p);
void cuda_ops_loss(struct compute *c, const struct cross_entropy *e, const float *z,
                   const float *y, float *dz, double *ret);
void cuda_ops_add_rows(struct compute *c, uint32_t n, uint32_t width, const float *a,
                       uint32_t lda, const float *b, uint32_t ldb, const struct relu_mask *mask,
                       float *sum);
void cuda_ops_copy_rows(struct compute *c, uint32_t n, uint32_t width, const float *x,
                        uint32_t ldx, float *y, uint32_t ldy);
void cuda_ops_number_hats(struct compute *c, const struct number_hats *h, const float *x,
                          float *y);
void cuda_ops_axpy(struct compute *c, size_t n, float a, const float *x, float *y);
void cuda_ops_encode(struct compute *c, const struct device_encode *e);
void cuda_ops_update_rows(struct compute *c, const struct row_update *u);

extern const struct device_bf16_ops cuda_bf16_ops;

#endif
