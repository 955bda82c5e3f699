/*
 * The arithmetic of the model, op for op, as a table of functions: device_cpu, or another device's.
 *
 * The CPU's op is the definition: a fixed order of sums, whatever the number of threads, without fused multiply-adds.
 * The three matrix products are the exception: their order is their kernel's (gemm_kernels.h, or OpenBLAS). Tests hold
 * other devices to the CPU. An op may return before it is done. The ops of one compute run in the order of the calls;
 * wait() reports their failures. One thread at a time uses a compute.
 *
 * Pointers are the device's memory (memory_alloc()). Matrices are row-major without gaps unless an ld (floats from one
 * row to the next) says so. Outputs do not overlap inputs unless "in place" is said. n is samples and may be 0.
 *
 * Buffer sets: one step in flight each, with its own memory for inputs and outputs, so that copies and ops overlap:
 *
 *     upload ...   begin   op op op ...   end   download ...   wait
 *
 * Of two buffer sets only the ops are ordered, by their begin(); copies of one run beside ops of the other. The host
 * memory of a copy stays unchanged until the buffer set's wait().
 */
#ifndef WORKER_COMPUTE_DEVICE_H
#define WORKER_COMPUTE_DEVICE_H

#include <stdbool.h>

#include "common/base.h"
#include "common/status.h"
#include "worker/compute/device_args.h"

struct compute;
struct device_bf16_ops;
struct device_dedup;

/* The ABI version of a plug-in: it changes with the layout of a struct or the arguments of an op. */
#define DEVICE_ABI 16u
#define DEVICE_THREADS_MAX 64u

/*
 * Kinds of matrix products. Sums and results are fp32. A device without TF32 or BF16 computes in fp32 (describe()).
 *
 *     DEVICE_FP32   by the device's best kernel
 *     DEVICE_TF32   inputs rounded to ten bits of mantissa, by units that GPUs have, or not
 *     DEVICE_BF16   inputs rounded to bf16, to nearest even, except of layers of one output
 *     DEVICE_BLAS   by the device's library, to compare with
 */
enum device_products { DEVICE_FP32, DEVICE_TF32, DEVICE_BF16, DEVICE_BLAS };

/* Which of the machine's devices of this kind, from 0; for the CPU nothing. */
struct device_place {
    uint32_t number;
    bool
        wraps; /* the number may be larger than there are devices: then they are counted around */
};

struct device_options {
    uint32_t n_threads; /* that share an op, the caller's among them: 1 to DEVICE_THREADS_MAX */
    enum device_products products;
    struct device_place place;
};

/* Samples of a block. Sums "in blocks" run in each block from 0, ascending, then over the blocks, ascending. The size
 * depends on n alone: 64 to 256, a multiple of 32. */
static inline uint32_t device_block(uint32_t n)
{
    const uint32_t eighth = ((n + 7) / 8 + 31) / 32 * 32;

    return eighth < 64 ? 64 : eighth > 256 ? 256 : eighth;
}

#define DEVICE_BUFFER_SETS 4u

struct device_ops {
    const char *name;

    bool shares_memory;   /* with the host: host pointers are valid here, no copy is needed */
    bool wants_transpose; /* bags.transpose */
    bool makes_sums;      /* linear_backward's sums */
    uint32_t row_floats;  /* R's rows are wanted at multiples of so many; 0: without gaps */

    /* PS_ESETTING and a sentence, or the errno of a thread that does not start. */
    int (*open)(const struct device_options *options, struct compute **ret_c, struct err *err);
    void (*close)(struct compute *c); /* NULL is fine */

    /* Library, kernels and threads, for the log; lives as long as c. */
    const char *(*describe)(const struct compute *c);

    /* Reserves memory for ops on up to n_max samples and linear ops of this shape; calls add up. Due before the first
     * linear or loss op. -ENOMEM. */
    int (*reserve)(struct compute *c, uint32_t n_max, uint32_t in, uint32_t out);

    /* The device's memory; NULL: none is left. initcheck and the emulated device's NaNs find who reads it unwritten. */
    void *(*memory_alloc)(struct compute *c, size_t n_bytes);
    void *(*memory_alloc_zeroed)(struct compute *c, size_t n_bytes);
    void (*memory_free)(struct compute *c, void *memory, size_t n_bytes);

    /* The host's memory, zeroed, for the fastest copies (pinned, where that means something); NULL: none is left. Any
     * thread, also while another one uses c. */
    void *(*host_alloc)(struct compute *c, size_t n_bytes);
    void (*host_free)(struct compute *c, void *memory, size_t n_bytes);

    /* Buffer sets are numbered 0 .. DEVICE_BUFFER_SETS - 1. */
    void (*upload)(struct compute *c, uint32_t set, void *device, const void *host,
                   size_t n_bytes);
    void (*download)(struct compute *c, uint32_t set, void *host, const void *device,
                     size_t n_bytes);

    /* As upload(), from the device's own memory, in one order with the uploads of all sets that filled `from`. */
    void (*upload_from_device)(struct compute *c, uint32_t set, void *device, const void *from,
                               size_t n_bytes);

    /* As upload(), in one order with those of all buffer sets, as they share u->kept. `u` is read before it returns. */
    void (*upload_rows)(struct compute *c, uint32_t set, const struct row_upload *u);

    /* As upload(), behind the uploads of the set that filled d->bytes and d->to. `d` is read before it returns. NULL:
     * the host decodes. */
    void (*decode_rows)(struct compute *c, uint32_t set, const struct row_decode *d);

    /* batch_dedup() beside the steps. What dedup_new() makes belongs to one thread at a time, any thread, also while
     * another one uses c, and is freed before c. dedup() returns when the host's arrays are filled. PS_EDEVICE and a
     * sentence: some of them may be. NULL, all three: the device has no such thing. */
    int (*dedup_new)(struct compute *c, struct device_dedup **ret, struct err *err);
    int (*dedup)(struct device_dedup *d, const struct key_dedup *k, uint32_t *ret_n_unique,
                 struct err *err);
    void (*dedup_free)(struct device_dedup *d); /* NULL is fine */

    /* Ops follow, up to end(). True: a record of this key was run; no op may be called, end() comes next. The same key
     * means the same ops and arguments, so what differs between steps is the device's memory. 0 is never recorded. */
    bool (*begin)(struct compute *c, uint32_t set, uint64_t key);
    void (*end)(struct compute *c, uint32_t set);

    /* Waits until the buffer set's copies and ops are done. The first failure since the last wait, or 0. */
    int (*wait)(struct compute *c, uint32_t set);

    /* The last failure of wait(), in a sentence. Lives until the next one. */
    const char *(*failure)(const struct compute *c);

    /* y [n][out], ldy */
    void (*linear_forward)(struct compute *c, const struct linear *l, enum device_act act,
                           float *y, uint32_t ldy);

    /* dx [n][in] = dy W, then through `mask`              NULL: not wanted; no mask
     * dw [out][in] = dy^T X                               NULL, with db: not wanted
     * db [out] = sum of dy over samples, in blocks        NULL: not wanted
     * sums [in] = that of dx; if makes_sums, without ldx  NULL: not wanted */
    void (*linear_backward)(struct compute *c, const struct linear *l, const float *dy,
                            float *dx, const struct relu_mask *mask, float *dw, float *db,
                            float *sums);

    /* mean, var, inv_std: of x; as kept. */
    void (*norm_batch)(struct compute *c, const struct norm *nm, const float *x);
    void (*norm_running)(struct compute *c, const struct norm *nm);
    void (*norm_apply)(struct compute *c, const struct norm *nm, enum device_act act,
                       const float *x, float *y, uint32_t ldy);

    /* After norm_batch. dy [n][width] becomes the gradient of x (in place). */
    void (*norm_backward)(struct compute *c, const struct norm *nm,
                          const struct relu_mask *mask, const float *x, float *dy,
                          const struct norm_grads *grads);

    /* y [n][width], in place */
    void (*dropout)(struct compute *c, const struct dropout *d, float *y);

    /* sums[s * ld + f * dim + d] = sum of rows[r * dim + d] over bag (s, f), in its order; 0 if it is empty */
    void (*bag_sum)(struct compute *c, const struct bags *b, const float *rows, float *sums,
                    uint32_t ld);

    /* drows [n_rows][dim]: of row r the sum of dsums over the positions that hold r, ascending */
    void (*bag_grad)(struct compute *c, const struct bags *b, const float *dsums, uint32_t ld,
                     float *drows);

    /* x[s * ld + f * dim + d] /= rows of bag (s, f), of fields first .. end - 1; as it is where the bag is empty: a sum
     * becomes a mean, and the gradient of a mean that of a sum (in place) */
    void (*bag_mean)(struct compute *c, const struct bags *b, uint32_t first, uint32_t end,
                     float *x, uint32_t ld);

    /* t->to, for the ops behind it. NULL: the host makes the transpose. */
    void (*transpose_bags)(struct compute *c, const struct bag_transposition *t);

    /* z[s] += sum of weights[r] over all positions of sample s, ascending; back: dweights[n_rows] */
    void (*wide_sum)(struct compute *c, const struct bags *b, const float *weights, float *z);
    void (*wide_grad)(struct compute *c, const struct bags *b, const float *dz,
                      float *dweights);

    /* Packed rows -> wide [n_rows][dim], each number a sum over its row, ascending from 0; back: drows, packed, sums
     * over dim, ascending, and each dw, of no rows 0. NULL: by linear_forward and linear_backward, group by group. */
    void (*project_forward)(struct compute *c, const struct row_projection *p,
                            const float *rows, float *wide);
    void (*project_backward)(struct compute *c, const struct row_projection *p,
                             const float *rows, const float *dwide, float *drows);

    /* Each product sums over d ascending. dt [n][n_vectors][dim] is what comes through the pairs alone, summed over j
     * ascending, without j = i unless `self`: a diagonal pair counts twice. */
    void (*interact_forward)(struct compute *c, const struct interact *it, const float *t,
                             float *r);
    void (*interact_backward)(struct compute *c, const struct interact *it, const float *t,
                              const float *dr, float *dt);

    /* bag_sum into T's last b->n_fields vectors, and interact_forward; interact_backward after it. Those vectors are
     * theirs: a bag of one row may not be there, so T, b and rows stay in between. NULL: one by one is as fast.
     * dfirst [n][dim] = dr's direct part + dt's first vector, through `mask`, and that vector need not be in dt; NULL:
     * not wanted. */
    void (*interact_bags_forward)(struct compute *c, const struct bags *b, const float *rows,
                                  const struct interact *it, float *t, float *r);
    void (*interact_bags_backward)(struct compute *c, const struct bags *b, const float *rows,
                                   const struct interact *it, float *t, const float *dr,
                                   float *dt, const struct relu_mask *mask, float *dfirst);

    /* z[s] += 1/2 of the sum over d of (S_d S_d - Q_d), where S_d = sum of T_id and Q_d = sum of T_id T_id over i
     * ascending: sixteen sums side by side, d in sum d % 16, then those, ascending.
     * dt_id = dz[s] (S_d - T_id), then + dx_id unless dx is NULL; dt and dx as T, dt may be dx. */
    void (*pair_sum_forward)(struct compute *c, const struct pair_sum *p, const float *t,
                             float *z);
    void (*pair_sum_backward)(struct compute *c, const struct pair_sum *p, const float *t,
                              const float *dz, const float *dx, float *dt);

    /* y = x0 u + x
     * du = dy x0;  dx0 = dy u, then + more unless NULL; more may be dx0. Gaps stay as they are */
    void (*cross_forward)(struct compute *c, const struct cross_shape *s, const float *x0,
                          const float *u, const float *x, float *y);
    void (*cross_backward)(struct compute *c, const struct cross_shape *s, const float *x0,
                           const float *u, const float *dy, const float *more, float *du,
                           float *dx0);

    /* p = 1 / (1 + exp(-z)) */
    void (*prob)(struct compute *c, uint32_t n, const float *z, float *p);

    /* With z and y for z' and y', l(z) = log1p(exp(-|z|)), p(z) = 1 / (1 + exp(-z)), all in double:
     * dz = weight (p(z) - y - more y p(-z)) / n
     * *ret = mean over n of max(z, 0) - z y + l(z) + more y (max(-z, 0) + l(z)), summed in blocks */
    void (*loss)(struct compute *c, const struct cross_entropy *e, const float *z,
                 const float *y, float *dz, double *ret);

    /* sum [n][width] = a (+ b unless NULL), then through `mask` (NULL: none) */
    void (*add_rows)(struct compute *c, uint32_t n, uint32_t width, const float *a,
                     uint32_t lda, const float *b, uint32_t ldb, const struct relu_mask *mask,
                     float *sum);

    /* y [n][width], ldy = x [n][width], ldx */
    void (*copy_rows)(struct compute *c, uint32_t n, uint32_t width, const float *x,
                      uint32_t ldx, float *y, uint32_t ldy);

    /* x [n][n_numbers] -> y [n][n_numbers][2 + n_hats], ldy. Gaps stay as they are */
    void (*number_hats)(struct compute *c, const struct number_hats *h, const float *x,
                        float *y);

    /* y += a x */
    void (*axpy)(struct compute *c, size_t n, float a, const float *x, float *y);

    void (*encode)(struct compute *c, const struct device_encode *e);

    /* How many devices of this kind the machine has; 0: it cannot tell, and open() says why. NULL: there is one. */
    uint32_t (*count)(void);
    void (*update_rows)(struct compute *c, const struct row_update *u);

    /* Of products in DEVICE_BF16 (device_bf16.h). NULL: all activations are fp32. */
    const struct device_bf16_ops *bf16;
};

EXTERN_C const struct device_ops device_cpu;

#endif
