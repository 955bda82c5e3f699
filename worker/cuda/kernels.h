/*
 * Every op of device.h that is no matrix product, and the wire's encoders, as launches of kernels.
 *
 * A launch takes the stream first, allocates nothing, waits for nothing, and returns the status of the launch; the
 * runtime reports later failures of a kernel. All launches may be captured into a graph: grids depend on the shapes
 * alone, and values that differ from step to step are read from device memory (device_encode.n, bag_transpose's
 * counts).
 *
 * Pointers are device memory, outputs do not overlap inputs unless "in place" is said. Structs are read before the
 * launch returns. Pointers and strides that are multiples of 4 floats are fastest, any do.
 *
 * Bits: the same in every run. As device_cpu's, bit for bit: bag_sum, bag_mean, wide_sum, interactions in
 * KERNELS_FP32, pair_sum, cross layers, head_forward, norm_apply, norm_running, dropout, add_rows, bias, mask, axpy,
 * encoders, update_rows; bag_grad and wide_grad of rows with at most BAG_TRANSPOSE_SPAN uses; prob, and dz of loss, as
 * far as exp() is the same. As plain loops have them: project_forward, and drows of project_backward. Other sums have
 * an order of their own. (Which NaN an addition makes is the processor's choice.)
 */
#ifndef WORKER_CUDA_KERNELS_H
#define WORKER_CUDA_KERNELS_H

#include "worker/compute/device.h"
#include "worker/compute/device_bf16.h"
#include "worker/cuda/cuda_runtime.h"

/* The precision of interactions: exactly as the CPU, or with inputs rounded to TF32 (to nearest, ties away from zero)
 * on tensor cores, if the shape permits: dim 16, 32, 64 or 128, at most 32 vectors. */
enum kernels_math { KERNELS_FP32, KERNELS_TF32 };

/* Floats from a row of x, and of dx, to the next. */
static inline HOST_DEVICE uint32_t linear_ldx(const struct linear *l)
{
    return l->ldx ? l->ldx : l->in;
}

/* Bytes of `scratch`, aligned to 16, for an op over n samples that makes sums of `width` columns: norm_batch and
 * norm_backward, bias_grad, head_backward (width: in), loss (width: 1). It grows with both. Scratch holds nothing from
 * one op to the next. */
EXTERN_C size_t kernels_sums_bytes(uint32_t n, uint32_t width);

/* Likewise for bag_grad, and wide_grad (dim: 1). */
EXTERN_C size_t kernels_bag_grad_bytes(uint32_t n_spans_max, uint32_t dim);

/* The parts of a layer that cublasLt has not fused.
 *
 *     bias        y[s] = act(y[s] + b), in place; n x width
 *     mask        d through mask, in place; n x width without gaps
 *     bias_grad   db[width] = sum of dy[n][width] over samples
 *     mask_sums   mask, and sums[width] of what it leaves over samples */
EXTERN_C cudaError_t kernels_bias(cudaStream_t stream, uint32_t n, uint32_t width,
                                  const float *b, enum device_act act, float *y, uint32_t ldy);
EXTERN_C cudaError_t kernels_mask(cudaStream_t stream, uint32_t n, uint32_t width,
                                  const struct relu_mask *mask, float *d);
EXTERN_C cudaError_t kernels_mask_sums(cudaStream_t stream, uint32_t n, uint32_t width,
                                       const struct relu_mask *mask, float *d, float *sums,
                                       void *scratch);
EXTERN_C cudaError_t kernels_bias_grad(cudaStream_t stream, uint32_t n, uint32_t width,
                                       const float *dy, float *db, void *scratch);

/* Pads the input of cublasLt: x [n][width] with ldx floats a row -> y with ldy numbers a row, of which those behind
 * `width` are 0; as they are, or rounded to bf16, to nearest even, a NaN stays one. */
EXTERN_C cudaError_t kernels_pad(cudaStream_t stream, uint32_t n, uint32_t width,
                                 const float *x, uint32_t ldx, float *y, uint32_t ldy);
EXTERN_C cudaError_t kernels_to_bf16(cudaStream_t stream, uint32_t n, uint32_t width,
                                     const float *x, uint32_t ldx, uint16_t *y, uint32_t ldy);

/* y [n_rows][ld] = x [n][width] transposed; what is behind it in y, rows and columns, is 0. n_rows: at least width. */
EXTERN_C cudaError_t kernels_transpose(cudaStream_t stream, uint32_t n, uint32_t width,
                                       const float *x, float *y, uint32_t n_rows, uint32_t ld);

/* linear_forward of a layer of at most KERNELS_NARROW_IN inputs. */
#define KERNELS_NARROW_IN 16u
EXTERN_C cudaError_t kernels_narrow_forward(cudaStream_t stream, const struct linear *l,
                                            enum device_act act, float *y, uint32_t ldy);

/* linear_forward and linear_backward of a layer of one output; `sums` without ldx. Where the mask reads x, too, all is
 * made as x is read. */
EXTERN_C cudaError_t kernels_head_forward(cudaStream_t stream, const struct linear *l,
                                          enum device_act act, float *y, uint32_t ldy);
EXTERN_C cudaError_t kernels_head_backward(cudaStream_t stream, const struct linear *l,
                                           const float *dy, float *dx,
                                           const struct relu_mask *mask, float *dw, float *db,
                                           float *sums, void *scratch);

EXTERN_C cudaError_t kernels_norm_batch(cudaStream_t stream, const struct norm *nm,
                                        const float *x, void *scratch);
EXTERN_C cudaError_t kernels_norm_running(cudaStream_t stream, const struct norm *nm);
EXTERN_C cudaError_t kernels_norm_apply(cudaStream_t stream, const struct norm *nm,
                                        enum device_act act, const float *x, float *y,
                                        uint32_t ldy);
EXTERN_C cudaError_t kernels_norm_backward(cudaStream_t stream, const struct norm *nm,
                                           const struct relu_mask *mask, const float *x,
                                           float *dy, const struct norm_grads *grads,
                                           void *scratch);

EXTERN_C cudaError_t kernels_dropout(cudaStream_t stream, const struct dropout *d, float *y);

/* b->uses is wanted by the gradients alone. */
EXTERN_C cudaError_t kernels_bag_sum(cudaStream_t stream, const struct bags *b,
                                     const float *rows, float *sums, uint32_t ld);
EXTERN_C cudaError_t kernels_bag_grad(cudaStream_t stream, const struct bags *b,
                                      const float *dsums, uint32_t ld, float *drows,
                                      void *scratch);
EXTERN_C cudaError_t kernels_bag_mean(cudaStream_t stream, const struct bags *b, uint32_t first,
                                      uint32_t end, float *x, uint32_t ld);
EXTERN_C size_t kernels_transpose_bags_bytes(const struct bag_transposition *t);
EXTERN_C cudaError_t kernels_transpose_bags(cudaStream_t stream,
                                            const struct bag_transposition *t, void *scratch);
EXTERN_C cudaError_t kernels_wide_sum(cudaStream_t stream, const struct bags *b,
                                      const float *weights, float *z);
EXTERN_C cudaError_t kernels_wide_grad(cudaStream_t stream, const struct bags *b,
                                       const float *dz, float *dweights, void *scratch);

/* project_backward's scratch; the sums of a dw are made in parts of its rows. */
EXTERN_C size_t kernels_project_bytes(const struct row_projection *p);
EXTERN_C cudaError_t kernels_project_forward(cudaStream_t stream,
                                             const struct row_projection *p, const float *rows,
                                             float *wide);
EXTERN_C cudaError_t kernels_project_backward(cudaStream_t stream,
                                              const struct row_projection *p, const float *rows,
                                              const float *dwide, float *drows, void *scratch);

EXTERN_C cudaError_t kernels_interact_forward(cudaStream_t stream, enum kernels_math math,
                                              const struct interact *it, const float *t,
                                              float *r);
EXTERN_C cudaError_t kernels_interact_backward(cudaStream_t stream, enum kernels_math math,
                                               const struct interact *it, const float *t,
                                               const float *dr, float *dt);

/* The same bits as kernels_bag_sum() and then those above. With KERNELS_TF32 a bag of one row is not in t: it is read
 * where it stands. t: in and out; dt's alignment may be another than t's. mask, dfirst: device.h. */
EXTERN_C cudaError_t kernels_interact_bags_forward(cudaStream_t stream, enum kernels_math math,
                                                   const struct bags *b, const float *rows,
                                                   const struct interact *it, float *t,
                                                   float *r);
EXTERN_C cudaError_t kernels_interact_bags_backward(cudaStream_t stream, enum kernels_math math,
                                                    const struct bags *b, const float *rows,
                                                    const struct interact *it, float *t,
                                                    const float *dr, float *dt,
                                                    const struct relu_mask *mask,
                                                    float *dfirst);

EXTERN_C cudaError_t kernels_pair_sum_forward(cudaStream_t stream, const struct pair_sum *p,
                                              const float *t, float *z);
EXTERN_C cudaError_t kernels_pair_sum_backward(cudaStream_t stream, const struct pair_sum *p,
                                               const float *t, const float *dz, const float *dx,
                                               float *dt);

EXTERN_C cudaError_t kernels_cross_forward(cudaStream_t stream, const struct cross_shape *s,
                                           const float *x0, const float *u, const float *x,
                                           float *y);
EXTERN_C cudaError_t kernels_cross_backward(cudaStream_t stream, const struct cross_shape *s,
                                            const float *x0, const float *u, const float *dy,
                                            const float *more, float *du, float *dx0);

EXTERN_C cudaError_t kernels_prob(cudaStream_t stream, uint32_t n, const float *z, float *p);
EXTERN_C cudaError_t kernels_loss(cudaStream_t stream, const struct cross_entropy *e,
                                  const float *z, const float *y, float *dz, double *ret,
                                  void *scratch);

EXTERN_C cudaError_t kernels_add_rows(cudaStream_t stream, uint32_t n, uint32_t width,
                                      const float *a, uint32_t lda, const float *b,
                                      uint32_t ldb, const struct relu_mask *mask, float *sum);
EXTERN_C cudaError_t kernels_copy_rows(cudaStream_t stream, uint32_t n, uint32_t width,
                                       const float *x, uint32_t ldx, float *y, uint32_t ldy);
EXTERN_C cudaError_t kernels_number_hats(cudaStream_t stream, const struct number_hats *h,
                                         const float *x, float *y);
EXTERN_C cudaError_t kernels_axpy(cudaStream_t stream, size_t n, float a, const float *x,
                                  float *y);

/* device_ops.upload_rows. u->host is the host's, pinned. Few blocks, as they wait for the bus: other streams' kernels
 * find space beside them. */
EXTERN_C cudaError_t kernels_upload_rows(cudaStream_t stream, const struct row_upload *u);

/* device_ops.decode_rows. */
EXTERN_C cudaError_t kernels_decode_rows(cudaStream_t stream, const struct row_decode *d);

/* batch_dedup() of at least one key (worker/data/batch.h), the same numbers; arrays of the device. */
struct kernels_dedup_batch {
    uint32_t n_keys, n_bags, n_fields;
    uint32_t n_groups;    /* 0: one, and starts and of_field are not read */
    const uint64_t *keys; /* [n_keys] */
    const uint32_t *starts;
    const uint8_t *of_field;
    uint64_t *unique;                        /* filled: space for n_keys */
    uint32_t *row_of, *order, *order_starts; /* n_keys, n_keys, space for n_keys + 1 */
    uint32_t *counts; /* n_unique; with groups, too, group_starts [n_groups + 1] */
};

/* Of the scratch, which is aligned to 8. */
EXTERN_C size_t kernels_dedup_bytes(uint32_t n_keys);
EXTERN_C cudaError_t kernels_dedup(cudaStream_t stream, const struct kernels_dedup_batch *d,
                                   void *scratch);

/* The ops of device_bf16.h. bias: y[s] = act(y[s] + b), in place; mask_sums and bias_grad as those of fp32. */
EXTERN_C cudaError_t kernels_bf16_round(cudaStream_t stream, const struct bf16_copy *copies,
                                        uint32_t n);
EXTERN_C cudaError_t kernels_bf16_round_rows(cudaStream_t stream, uint32_t dim,
                                             const struct bag_transpose *transpose,
                                             const float *rows, bf16 *rounded);
EXTERN_C cudaError_t kernels_bf16_bias(cudaStream_t stream, uint32_t n, uint32_t width,
                                       const bf16 *b, enum device_act act, bf16 *y,
                                       uint32_t ldy);
EXTERN_C cudaError_t kernels_bf16_mask_sums(cudaStream_t stream, uint32_t n, uint32_t width,
                                            const struct bf16_mask *mask, bf16 *d, float *sums,
                                            void *scratch);
EXTERN_C cudaError_t kernels_bf16_bias_grad(cudaStream_t stream, uint32_t n, uint32_t width,
                                            const bf16 *dy, float *db, void *scratch);
EXTERN_C cudaError_t kernels_bf16_dropout(cudaStream_t stream, const struct dropout *d,
                                          bf16 *y);
EXTERN_C cudaError_t kernels_bf16_logit_forward(cudaStream_t stream, const struct bf16_logit *l,
                                                float *z);
EXTERN_C size_t
kernels_bf16_logit_bytes(const struct bf16_logit *l); /* logit_backward's scratch */
EXTERN_C cudaError_t kernels_bf16_logit_backward(cudaStream_t stream,
                                                 const struct bf16_logit *l, const float *dz,
                                                 bf16 *dx, float scale, float *dw, float *db,
                                                 float *sums, void *scratch);
EXTERN_C cudaError_t kernels_bf16_bag_grad(cudaStream_t stream, const struct bags *b,
                                           const bf16 *dsums, uint32_t ld, float *drows,
                                           void *scratch);

/* Of rows that are rounded already. */
EXTERN_C cudaError_t kernels_bf16_interact_forward(cudaStream_t stream, const struct bags *b,
                                                   const bf16 *rows, const struct interact *it,
                                                   bf16 *t, bf16 *r);
EXTERN_C cudaError_t kernels_bf16_interact_backward(cudaStream_t stream, const struct bags *b,
                                                    const bf16 *rows, const struct interact *it,
                                                    const bf16 *t, const bf16 *dr, bf16 *dt,
                                                    const struct bf16_mask *mask, bf16 *dfirst);

/* Rows encoded for the wire. */
EXTERN_C cudaError_t kernels_encode(cudaStream_t stream, const struct device_encode *e);

/* An optimizer's step on kept rows, of bytes that kernels_encode() has written. */
EXTERN_C cudaError_t kernels_update_rows(cudaStream_t stream, const struct row_update *u);

#endif
