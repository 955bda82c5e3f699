/* What the ops of device.h are told of their operands: shapes, strides and arrays. */
#ifndef WORKER_COMPUTE_DEVICE_ARGS_H
#define WORKER_COMPUTE_DEVICE_ARGS_H

#include <stdbool.h>

#include "common/base.h"
#include "proto/codec.h"
#include "worker/compute/bag_transpose.h"

#define DEVICE_GROUPS_MAX 60u

enum device_act { DEVICE_LINEAR, DEVICE_RELU };

/* Y = X W^T + b */
struct linear {
    uint32_t n, in, out;
    const float *x, *w, *b; /* n x in, out x in, out */
    uint32_t
        ldx; /* of x, and of dx, which has no mask then; 0: in. Gaps are zeros (row_floats) */
};

/* Numbers as a layer's inputs. Of each x, side by side: x, or 0 where it is missing, which is a NaN; whether it is
 * missing, 1 or 0; and n_hats piecewise linear bases, of which hat k is max(0, 1 - |x' - (first + k)|), x' being x held
 * between the first peak and the last. All hats of a missing one are 0. */
struct number_hats {
    uint32_t n, n_numbers, n_hats;
    float first; /* where hat 0 has its peak */
    uint32_t ldy;
};

static inline uint32_t number_hats_width(uint32_t n_hats)
{
    return 2 + n_hats;
}

/* The gradient through ReLU and the scale after it: d -> y > 0 ? d * scale : 0. Dropout has the same gradient: what it
 * dropped is 0 in y, and it multiplied the rest by scale. ReLU's derivative at 0 is 0. */
struct relu_mask {
    const float *y; /* outputs, n x width */
    uint32_t ldy;
    float scale;
};

/*
 * Batch normalisation over samples, per column (Ioffe and Szegedy 2015, algorithm 1):
 *
 *     y = (1 + gamma) (x - mean) inv_std + beta
 *     inv_std = 1 / sqrt(var + DEVICE_NORM_EPSILON)
 *
 * gamma and the running variance start at 1 and are stored less 1.
 */
struct norm {
    uint32_t n, width;
    const float *gamma, *beta, *running_mean, *running_var; /* width each */
    float *mean, *var, *inv_std; /* width each: inputs of norm_apply and norm_backward */
};

/* Loss gradients of gamma and beta. Of the running statistics: DEVICE_NORM_MOMENTUM * (running - batch), which SGD
 * subtracts at rate 1; the batch's variance is unbiased (n - 1; of one sample: 0). */
struct norm_grads {
    float *gamma, *beta, *running_mean, *running_var; /* width each */
};

#define DEVICE_NORM_EPSILON 1e-5f
#define DEVICE_NORM_MOMENTUM 0.1f

/* Bag b = s * n_fields + f, of sample s and field f, gathers rows row_of[starts[b]] .. row_of[starts[b + 1] - 1]. */
struct bags {
    uint32_t n, n_fields, dim, n_rows;
    const uint32_t *starts;                /* n * n_fields + 1, never falling */
    const uint32_t *row_of;                /* each < n_rows */
    const struct bag_transpose *transpose; /* NULL unless wants_transpose; instead of n_rows */
};

/*
 *     T [n][n_vectors][dim] -> R [n][direct + pairs]   (Naumov et al. 2019)
 *     direct   T's first vector as it is (direct = dim), or not (direct = 0)
 *     pairs    T_i . T_j row by row below the diagonal: i outer, j < i inner (j <= i with self)
 */
struct interact {
    uint32_t n, n_vectors, dim, direct;
    bool self;
    uint32_t ldr; /* of R, as linear's ldx; 0: without gaps */
};

/*
 *     T [n][n_vectors][dim], ld -> the sum of T_i . T_j over i < j     (Rendle 2010)
 */
struct pair_sum {
    uint32_t n, n_vectors, dim;
    uint32_t ld; /* floats from a sample of T to the next */
};

/*
 * One layer of a cross network (Wang et al. 2021), where u = W x_l + b has been made:
 *
 *     x_(l+1) = x_0 * u + x_l, element by element     X [n][width], ld; U [n][width]
 */
struct cross_shape {
    uint32_t n, width;
    uint32_t ld; /* floats from a sample of x_0, x_l, x_(l+1) and their gradients to the next */
};

/*
 * Binary cross-entropy of n logits. With z' = z + offset and y' = y + smoothing (1/2 - y):
 *
 *     loss = (1 - y') z' + (1 + more y') log(1 + exp(-z'))
 *
 * All 0 but n: the usual one. 1 + more is the weight of positive samples, `pos_weight` of PyTorch's BCEWithLogitsLoss.
 */
struct cross_entropy {
    uint32_t n;
    float more, smoothing, offset;
    uint32_t
        ld; /* floats from a logit to the next, as of labels and gradients: others are other tasks'; 0: 1 */
    float weight; /* of the gradient alone; 0: 1 */
};

/* Keeps element i of n where hash_unit(hash_mix2(*key, i)) >= p. */
struct dropout {
    uint32_t n, width;
    float p, scale;      /* scale: 1 / (1 - p) */
    const uint64_t *key; /* in the device's memory, as it is another one each step */
};

/*
 * Rows from the host, or from an earlier step that kept them on the device:
 *
 *     how[r] & DEVICE_ROW_KEPT     rows[r] = kept[p], p being the other bits
 *     how[r] == DEVICE_ROW_NEW     rows[r] = host[r]
 *     else                         rows[r] = kept[how[r]] = host[r]
 *
 * No two rows name one row of kept. In the last case states[how[r]] = host_states[r], too, of n_states floats.
 */
struct row_upload {
    uint32_t n, dim;
    const float *host;        /* [n][dim], by host_alloc(): the device reads the rows itself */
    const uint32_t *how;      /* [n] */
    float *rows;              /* [n][dim] */
    float *kept;              /* [places][dim] */
    uint32_t n_states;        /* of an optimizer (struct row_update); 0: rows have none */
    const float *host_states; /* [n][n_states], as host */
    float *states;            /* [places][n_states] */
    bool alone;               /* no ops run beside it: it may take the whole device */
};

#define DEVICE_ROW_KEPT 0x80000000u
#define DEVICE_ROW_NEW 0x7fffffffu

/*
 * Rows as a codec has written them (struct codec_rows), each to its place:
 *
 *     rows[to[i]] = decode(row i of bytes)
 *
 * The codec is one of which every byte decodes: CODEC_FP32, CODEC_BF16 or CODEC_FP16.
 */
struct row_decode {
    enum codec_id codec;
    uint32_t n, dim;
    const uint8_t *bytes; /* an array of memory_alloc() */
    const uint32_t *to;   /* [n], no row twice */
    float *rows;          /* rows of dim floats */
};

static inline bool row_decode_takes(enum codec_id codec)
{
    return codec == CODEC_FP32 || codec == CODEC_BF16 || codec == CODEC_FP16;
}

/*
 * Rows of several tables, those of one behind those of the other, made as wide as the model
 * (worker/model/projection.h). Of group g, which has rows starts[g] .. starts[g + 1] - 1:
 *
 *     wide row [dim] = w_g row [groups[g].dim]     w_g [dim][groups[g].dim]; NULL: rows are as wide, and copied
 *
 * The counts are in the device's memory, as bag_transpose's.
 */
struct row_projection_group {
    uint32_t dim;
    const float *w;
    float *dw; /* of its shape */
};

struct row_projection {
    uint32_t dim, n_groups;
    uint32_t n_rows_max;    /* the arrays' capacity */
    const uint32_t *starts; /* [n_groups + 1], from 0, never falling, at most n_rows_max */
    struct row_projection_group groups[DEVICE_GROUPS_MAX];
};

/* bag_transpose_build() on the device: the same numbers. Arrays are the device's. */
struct bag_transposition {
    uint32_t n_bags;
    uint32_t n_rows_max, n_keys_max, n_spans_max; /* the arrays' capacity */
    const uint32_t *n_rows;
    const uint32_t *starts, *order, *order_starts; /* struct bag_transpose_input */
    struct bag_transpose_arrays to;
};

/* The arrays of batch_dedup() (worker/data/batch.h), of the host, by host_alloc(); of at least one key. */
struct key_dedup {
    uint32_t n_keys, n_bags, n_fields;
    uint32_t
        n_groups; /* 0: all fields are in one, and starts, of_field and group_starts are not used */
    const uint64_t *keys;
    const uint32_t *starts;
    const uint8_t *of_field;                 /* of any memory */
    uint64_t *unique;                        /* filled, as those below; space for n_keys */
    uint32_t *row_of, *order, *order_starts; /* n_keys, n_keys, space for n_keys + 1 */
    uint32_t *group_starts;                  /* [n_groups + 1], of any memory */
};

/*
 * Rows encoded for the wire (proto/codec.h), one behind the other, with error feedback. Of row i of n
 *
 *     v = rows[from[i]] + residual[residual_at[i]]
 *     bytes = encode(v)
 *     residual[residual_at[i]] = v - decode(bytes), 0 where that is not finite, with feedback; 0 without
 *
 * bit for bit as the CPU's codecs. A NaN in rows is added to nothing. With feedback, a row that is not finite
 * is encoded as a row of NaN, and its residual stays. The number of rows is in the device's memory, because the
 * arguments of recorded ops (begin()) do not change.
 */
struct device_encode {
    enum codec_id codec;
    uint32_t dim, k; /* k: topk's; dim is at most 65536 then */
    uint32_t n_max;  /* the arrays' capacity */
    const uint32_t *n;
    const float *rows;           /* rows of dim floats */
    const uint32_t *from;        /* n, or DEVICE_NONE: a row of zeros; NULL: row i is i */
    float *residual;             /* rows of dim floats, in place; NULL: none is added or kept */
    const uint32_t *residual_at; /* n, no row twice, or DEVICE_NONE: none; NULL: row i's is i */
    uint8_t *bytes;              /* n rows of the codec's row_bytes(dim, k); any alignment */
};

#define DEVICE_NONE UINT32_MAX

/*
 * One step of an optimizer on rows that are kept on the device (struct row_upload), as the servers make it
 * (server/core/optimizer.c), of what the gradients' bytes are decoded to. Of row i of n, if places[i] is one, with
 * g = decode(bytes of row i) + weight_decay * w
 *
 *     SGD        w -= rate * g
 *     MOMENTUM   b = beta1 * b + g;  w -= rate * (rest1 * g + rest2 * b)             states: b
 *     ADAGRAD    s += g * g;  w -= rate * (g / (sqrt(s) + epsilon))                  s
 *     ROWWISE    s += sum of g * g / dim;  w -= rate / (sqrt(s) + epsilon) * g       one s for the row
 *     ADAM       m = beta1 * m + rest1 * g;  v = beta2 * v + rest2 * (g * g);        m, then v
 *                w -= rate * (m / (sqrt(v) * root_scale + epsilon))
 *
 * The sum is made in 16 lanes, lane l of elements l, l + 16 ..., and folded by halves.
 */
enum row_update_rule {
    ROW_UPDATE_SGD,
    ROW_UPDATE_MOMENTUM,
    ROW_UPDATE_ADAGRAD,
    ROW_UPDATE_ROWWISE,
    ROW_UPDATE_ADAM
};

#define ROW_UPDATE_LANES 16u

struct row_update_factors {
    float rate, epsilon, weight_decay, beta1, rest1, beta2, rest2, root_scale;
};

/* What changes from step to step is in the device's memory, because the arguments of recorded ops do not change. */
struct row_update {
    enum row_update_rule rule;
    enum codec_id codec;
    uint32_t dim, n_states, k; /* k: topk's */
    uint32_t n_max;            /* the arrays' capacity */
    const uint32_t *n;
    const struct row_update_factors *factors;
    const uint8_t *bytes;   /* n rows of the codec's row_bytes(dim, k); any alignment */
    const uint32_t *places; /* n, no place twice, or DEVICE_NONE: the row is not kept */
    float *kept, *states;   /* [places][dim], [places][n_states], in place */
};

#endif
