/*
 * What a device must be able to do: the arithmetic of the model, op for op. compute_cpu is one
 * table of these; another device is another table.
 *
 * The CPU's op is the definition: a fixed order of sums, whatever the number of threads,
 * without fused multiply-adds; except the three matrix products, whose order is their kernel's
 * (cpu_tiles.h; OpenBLAS on processors that have none). Another device is held to it by tests.
 * An op may return before it is done; the ops of one compute run in the order in which they
 * were called, and a failure of any is told by the next wait(). A compute is used by one thread
 * at a time.
 *
 * Pointers are memory of that device (memory_alloc()), matrices are row-major without gaps unless
 * an ld (floats from one row to the next) says so, outputs do not overlap inputs unless "in
 * place" is said. n is samples and may be 0. C and C++ both read this header.
 *
 * Slots: one step in flight each, with memory of its own for what comes in and goes out, so that copies and
 * ops overlap. A step of slot i is
 *
 *     upload ...   begin   op op op ...   end   download ...   wait
 *
 * and runs in that order. Of two slots only the ops are ordered, as their begin() was; copies of one run
 * beside ops of the other. Host memory of a copy stays as it is until the slot's wait().
 */
#ifndef WORKER_COMPUTE_COMPUTE_H
#define WORKER_COMPUTE_COMPUTE_H

#include <stdbool.h>

#include "common/base.h"
#include "common/status.h"
#include "proto/codec_id.h"

struct compute;

/* What a device that is opened at run time was built against: another number for every change of this
 * header that it would notice. */
#define COMPUTE_ABI 5u

#define COMPUTE_THREADS_MAX 64u

/*
 * How matrix products are made; sums, and everything that is kept, are fp32.
 *
 *     COMPUTE_FP32   by the device's best kernel
 *     COMPUTE_TF32   inputs rounded to ten bits of mantissa, by units that GPUs have; as COMPUTE_FP32
 *                    where the device cannot, and describe() says so
 *     COMPUTE_BF16   inputs rounded to bf16, to nearest even, but of layers of one output; as
 *                    COMPUTE_FP32 where the device cannot, and describe() says so
 *     COMPUTE_BLAS   by the device's library, to compare with
 */
enum compute_products { COMPUTE_FP32, COMPUTE_TF32, COMPUTE_BF16, COMPUTE_BLAS };

struct compute_options {
    /* That share an op, the caller's among them: 1 to COMPUTE_THREADS_MAX. */
    uint32_t n_threads;
    enum compute_products products;
};

/* Samples of a block, of n. Sums over samples that say so run in each block from 0,
 * ascending, and then over the blocks, ascending. It depends on n alone: 64 to 256, a
 * multiple of 32. */
static inline uint32_t compute_block(uint32_t n)
{
    const uint32_t eighth = ((n + 7) / 8 + 31) / 32 * 32;

    return eighth < 64 ? 64 : eighth > 256 ? 256 : eighth;
}

enum compute_act { COMPUTE_LINEAR, COMPUTE_RELU };

/* Y = X W^T + b */
struct linear {
    uint32_t n, in, out;
    const float *x; /* n x in */
    const float *w; /* out x in */
    const float *b; /* out */
};

/* The way back through ReLU and what was multiplied on after it: d -> y > 0 ? d * scale : 0.
 * Dropout needs nothing else: what it dropped is 0 in y, and what it kept was multiplied by
 * scale. ReLU's derivative at 0 is 0. */
struct relu_mask {
    const float *y; /* outputs, n x width */
    uint32_t ldy;
    float scale;
};

/*
 * Batch normalisation over samples, per column (Ioffe and Szegedy 2015, algorithm 1):
 *
 *     y = (1 + gamma) (x - mean) inv_std + beta
 *     inv_std = 1 / sqrt(var + COMPUTE_NORM_EPSILON)
 *
 * gamma and the running variance start at 1 and are stored less 1.
 */
struct norm {
    uint32_t n, width;
    const float *gamma, *beta, *running_mean, *running_var; /* width each */
    float *mean, *var, *inv_std; /* width each: what norm_apply and norm_backward use */
};

/*
 * Loss gradients of gamma and beta; what SGD at rate 1 subtracts from the running statistics:
 *
 *     COMPUTE_NORM_MOMENTUM * (running - batch)
 *
 * the batch's variance being unbiased (n - 1; of one sample: 0).
 */
struct norm_grads {
    float *gamma, *beta, *running_mean, *running_var; /* width each */
};

#define COMPUTE_NORM_EPSILON 1e-5f
#define COMPUTE_NORM_MOMENTUM 0.1f

/*
 * Who uses each row, for devices that sum a row's gradient by row (compute_ops.wants_uses):
 *
 *     bags     [n_keys]        the bags that hold row 0, those that hold row 1 ...; of each row
 *                              ascending, a bag as often as it holds it
 *     spans    [n_spans + 1]   where each span begins in `bags`: COMPUTE_SPAN uses of one row, or, the row's
 *                              last, those that are left
 *     first    [n_rows + 1]    the first span of each row
 *
 * How many there are stands in the device's memory, as ops that are recorded (begin()) are asked for once.
 */
struct bag_uses {
    uint32_t n_rows_max, n_spans_max; /* what there is room for */
    const uint32_t *counts;           /* 2: n_rows, n_spans */
    const uint32_t *bags, *spans, *first;
};

#define COMPUTE_SPAN 64u

/* Bag b = s * n_fields + f, of sample s and field f, gathers the rows
 * row_of[starts[b]] .. row_of[starts[b + 1] - 1]. */
struct bags {
    uint32_t n, n_fields, dim, n_rows;
    const uint32_t *starts; /* n * n_fields + 1, never falling */
    const uint32_t *row_of; /* each < n_rows */
    const struct bag_uses
        *uses; /* NULL where the device does not want them; else n_rows is not looked at */
};

/*
 * Naumov et al. 2019:
 *
 *     T [n][n_vectors][dim] -> R [n][direct + pairs]
 *     direct   T's first vector as it is (direct = dim), or not (direct = 0)
 *     pairs    T_i . T_j row by row below the diagonal: i outer, j < i inner (j <= i with self)
 */
struct interact {
    uint32_t n, n_vectors, dim, direct;
    bool self;
};

/* Keeps element i of n where hash_unit(hash_mix2(*key, i)) >= p. */
struct dropout {
    uint32_t n, width;
    float p, scale;      /* scale: 1 / (1 - p) */
    const uint64_t *key; /* in the device's memory, as it is another one each step */
};

/*
 * Rows that come from the host only where the device has not kept them:
 *
 *     how[r] & COMPUTE_ROW_THERE      rows[r] = kept[p], where p are the other bits
 *     how[r] == COMPUTE_ROW_NOWHERE   rows[r] = host[r]
 *     else                            rows[r] = kept[how[r]] = host[r]
 *
 * No two rows name one place.
 */
struct row_upload {
    uint32_t n, dim;
    const float
        *host; /* [n][dim], host_alloc()'s: the device itself reads those that it needs */
    const uint32_t *how; /* [n] */
    float *rows;         /* [n][dim] */
    float *kept;         /* [places][dim] */
};

#define COMPUTE_ROW_THERE 0x80000000u
#define COMPUTE_ROW_NOWHERE 0x7fffffffu

/*
 * Rows as they travel (proto/codec.h), one behind the other, and what is owed to them. Of row i of n
 *
 *     v = rows[from[i]] + owed[owed_at[i]]
 *     bytes = encode(v)
 *     owed[owed_at[i]] = v - decode(bytes), and 0 where that is not finite, of codecs with feedback; 0 of others
 *
 * bit for bit as the CPU's codecs do it, and a NaN among rows is added to nothing. With feedback a row of rows that is not
 * finite goes as a row of NaN, and the owed row stays. How many rows there are stands in the device's memory, as an op that
 * is recorded (begin()) is asked for once.
 */
struct compute_encode {
    enum codec_id codec;
    uint32_t dim, k; /* k: topk's; dim at most 65536 then */
    uint32_t n_max;  /* what there is room for */
    const uint32_t *n;
    const float *rows;       /* rows of dim floats */
    const uint32_t *from;    /* n, or COMPUTE_NONE: a row of zeros; NULL: row i is i */
    float *owed;             /* rows of dim floats, in place; NULL: nothing is added or kept */
    const uint32_t *owed_at; /* n, no row twice, or COMPUTE_NONE: none; NULL: row i's is i */
    uint8_t *bytes;          /* n rows of the codec's row_bytes(dim, k); any alignment */
};

#define COMPUTE_NONE UINT32_MAX

#define COMPUTE_SLOTS 4u

struct compute_ops {
    const char *name;

    /* The device's memory is the host's: a host's pointer may stand where a device's is asked for, and nothing
     * need be copied. */
    bool shares_memory;
    bool wants_uses; /* struct bags' */

    /* PS_ESETTING and a sentence, or the errno of a thread that does not start. */
    int (*open)(const struct compute_options *options, struct compute **ret_c, struct err *err);
    void (*close)(struct compute *c); /* NULL is fine */

    /* Library, kernels and threads, for the log. Lives as long as c. */
    const char *(*describe)(const struct compute *c);

    /* Room for ops on up to n_max samples, and for linear ops of this shape; a call adds to the
     * calls before it. Due before the first of the linear and loss ops. -ENOMEM. */
    int (*reserve)(struct compute *c, uint32_t n_max, uint32_t in, uint32_t out);

    /* Of the device, zeroed; NULL: there is none left. */
    void *(*memory_alloc)(struct compute *c, size_t n_bytes);
    void (*memory_free)(struct compute *c, void *memory, size_t n_bytes);

    /* Of the host, zeroed, from and to which copies are fastest (pinned, where that means something); NULL:
     * there is none left. Any thread, also while another one uses c. */
    void *(*host_alloc)(struct compute *c, size_t n_bytes);
    void (*host_free)(struct compute *c, void *memory, size_t n_bytes);

    /* Slots are numbered 0 .. COMPUTE_SLOTS - 1. */
    void (*upload)(struct compute *c, uint32_t slot, void *device, const void *host,
                   size_t n_bytes);
    void (*download)(struct compute *c, uint32_t slot, void *host, const void *device,
                     size_t n_bytes);

    /* As upload(), of what uploads of any slot have brought to `from` of the device: in one order with all of them. */
    void (*upload_again)(struct compute *c, uint32_t slot, void *device, const void *from,
                         size_t n_bytes);

    /* As upload(), and in one order with all others, whatever the slot, as they share u->kept. `u` is read before it
     * returns. */
    void (*upload_rows)(struct compute *c, uint32_t slot, const struct row_upload *u);

    /* Ops follow, up to end(). True: they are recorded under this key, and the record is run: they are
     * not to be called, and end() comes next. So the same key means the same ops with the same
     * arguments; 0 is never recorded. What differs from step to step is in the device's memory. */
    bool (*begin)(struct compute *c, uint32_t slot, uint64_t key);
    void (*end)(struct compute *c, uint32_t slot);

    /* Until everything asked for of this slot is done. The first failure since the last wait, or 0. */
    int (*wait)(struct compute *c, uint32_t slot);

    /* What the last wait() that failed was about, in a sentence. Lives until the next one fails. */
    const char *(*failure)(const struct compute *c);

    /* y [n][out], ldy */
    void (*linear_forward)(struct compute *c, const struct linear *l, enum compute_act act,
                           float *y, uint32_t ldy);

    /* dx [n][in] = dy W, then through `mask`              NULL: not wanted; no mask
     * dw [out][in] = dy^T X                               NULL, with db: not wanted
     * db [out] = sum of dy over samples, in blocks */
    void (*linear_backward)(struct compute *c, const struct linear *l, const float *dy,
                            float *dx, const struct relu_mask *mask, float *dw, float *db);

    /* mean, var, inv_std: of x; as kept. */
    void (*norm_batch)(struct compute *c, const struct norm *nm, const float *x);
    void (*norm_running)(struct compute *c, const struct norm *nm);
    void (*norm_apply)(struct compute *c, const struct norm *nm, enum compute_act act,
                       const float *x, float *y, uint32_t ldy);

    /* After norm_batch. dy [n][width] becomes the gradient of x (in place). */
    void (*norm_backward)(struct compute *c, const struct norm *nm,
                          const struct relu_mask *mask, const float *x, float *dy,
                          const struct norm_grads *grads);

    /* y [n][width], in place */
    void (*dropout)(struct compute *c, const struct dropout *d, float *y);

    /* sums[s * ld + f * dim + d] = sum of rows[r * dim + d] over bag (s, f), in the bag's
     * order; 0 of an empty one */
    void (*bag_sum)(struct compute *c, const struct bags *b, const float *rows, float *sums,
                    uint32_t ld);

    /* drows [n_rows][dim]: of row r the sum of dsums over the positions that hold r, in
     * ascending order of position */
    void (*bag_grad)(struct compute *c, const struct bags *b, const float *dsums, uint32_t ld,
                     float *drows);

    /* z[s] += sum of weights[r] over all positions of sample s, ascending; and back, into
     * dweights[n_rows] */
    void (*wide_sum)(struct compute *c, const struct bags *b, const float *weights, float *z);
    void (*wide_grad)(struct compute *c, const struct bags *b, const float *dz,
                      float *dweights);

    /* Each product sums over d ascending. dt [n][n_vectors][dim] is what comes through the
     * pairs alone, summed over j ascending, without j = i unless `self`: a diagonal pair counts
     * twice. */
    void (*interact_forward)(struct compute *c, const struct interact *it, const float *t,
                             float *r);
    void (*interact_backward)(struct compute *c, const struct interact *it, const float *t,
                              const float *dr, float *dt);

    /* p = 1 / (1 + exp(-z)) */
    void (*prob)(struct compute *c, uint32_t n, const float *z, float *p);

    /* dz = (1 / (1 + exp(-z)) - y) / n
     * *ret = mean over n of max(z, 0) - z y + log1p(exp(-|z|)), summed in double, in blocks */
    void (*loss)(struct compute *c, uint32_t n, const float *z, const float *y, float *dz,
                 double *ret);

    /* sum [n][width] = a (+ b unless NULL), then through `mask` (NULL: none) */
    void (*add_rows)(struct compute *c, uint32_t n, uint32_t width, const float *a,
                     uint32_t lda, const float *b, uint32_t ldb, const struct relu_mask *mask,
                     float *sum);

    /* y += a x */
    void (*axpy)(struct compute *c, size_t n, float a, const float *x, float *y);

    void (*encode)(struct compute *c, const struct compute_encode *e);
};

EXTERN_C const struct compute_ops compute_cpu;

#endif
