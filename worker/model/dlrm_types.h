/*
 * The values of a model's interface: its tensors, a step's encoded gradients, a step.
 */
#ifndef WORKER_MODEL_DLRM_TYPES_H
#define WORKER_MODEL_DLRM_TYPES_H

#include <stdbool.h>

#include "common/base.h"
#include "proto/codec.h"
#include "proto/table_spec.h"
#include "worker/compute/device_args.h"
#include "worker/data/batch.h"

/* ---- tensors ---- */

#define DLRM_TENSORS_MAX 128u

/* One tensor of the model's dense array: its name in the parameter store, its initial values, its place. */
struct dlrm_tensor {
    char name[32]; /* "bot.0.W" (out x in), "bot.0.b", "top.0.W", "bot.0.gamma" ... */
    uint32_t n_floats;
    enum table_spec_init init; /* W ~ N(0, 2 / (in + out)), b ~ N(0, 1 / out), the others 0 */
    float init_scale;          /* standard deviation */

    /* 1 for gamma and running variances, else 0: value in the formulas = stored value + it. */
    float init_offset;

    /* A running mean or variance: no loss gradient, but grads hold momentum * (running -
     * batch), to be applied with SGD at rate 1. */
    bool statistic;

    /* A matrix of weights: l2_dense is for these alone. */
    bool is_weight;

    /* Its offset in the dense array, in floats: on a cache line. Behind it there is space for the rest of its last
     * block of TABLE_SPEC_DENSE_BLOCK. */
    size_t at;

    /* Floats of a block of its table: TABLE_SPEC_DENSE_BLOCK, or all if it has fewer or is a whole layer. */
    uint32_t block;

    float *values; /* n_floats, filled before a step, as stored: WITHOUT the offset */
    float *grads;  /* n_floats, filled by the step */

    /* The same where ops find them: in the device's memory. */
    struct {
        const float *values;
        float *grads;
    } device;
};

/* ---- encoded gradients ---- */

/*
 * A device with memory of its own encodes a step's gradients itself (proto/codec.h), so that neither floats nor the
 * residuals of lossy codecs cross the bus. A step has these arrays of gradient rows, each as its table has them:
 *
 *     DLRM_ROWS        [n_unique][dim]    embedding rows
 *     DLRM_WIDE        [n_unique][1]      first-order weights; none (n is 0) unless config.wide
 *     DLRM_DENSE + i   [blocks][width]    tensor i: width is its block;
 *                                         behind its floats the last block has zeros
 *
 * The residual rows of each are an array in the device's memory, of rows as wide, which dlrm_residual_reserve() makes.
 * The caller knows which key has which residual row. Row i of the n that are encoded is
 *
 *     v = gradient of row from[i] + residual row residual_at[i]
 *
 * Then the residual row is v - decode(bytes) with codecs that have feedback, 0 with others. A gradient that is not
 * finite becomes a row of NaN with codecs that have feedback, and its residual row stays; other codecs encode it as it
 * is. The encoder of worker/client does the same on the CPU.
 */
/* The gradients of a model: DLRM_DENSE and one for each tensor (dlrm_n_gradients()). */
enum dlrm_gradient { DLRM_ROWS, DLRM_WIDE, DLRM_DENSE };

#define DLRM_GRADIENTS_MAX (DLRM_DENSE + DLRM_TENSORS_MAX)

#define DLRM_NONE UINT32_MAX

/* One gradient of one step; all borrowed until the step has ended, and copied fastest if dlrm_host_alloc() gave it. */
struct dlrm_encoded {
    enum codec_id codec;
    uint32_t k; /* topk's; else 0 */
    uint32_t n; /* rows that are encoded */
    const uint32_t
        *from; /* [n], no row twice, or DLRM_NONE: none; NULL: row i of the step is row i */
    const uint32_t *residual_at; /* [n], no row twice, or DLRM_NONE: none; NULL: none at all */
    uint8_t *bytes; /* filled: n rows of the codec's row_bytes; dlrm_host_alloc()'s */
};

/* ---- a step ---- */

/* Steps that may be in flight at a time, at most: one is copied in, one computes, one is copied out. */
#define DLRM_BUFFER_SETS 3u

/* Rows that the device has a replica of (dlrm_replicate_rows()), and how a step changes them. */
struct dlrm_row_update {
    /* [encoded[DLRM_ROWS].n], or DLRM_NONE: the place of each row that is encoded; no place twice. Borrowed. */
    const uint32_t *places;
    struct row_update_factors factors;
};

/* Rows as the servers have sent them, parts of some rows each, copied fastest if dlrm_host_alloc() gave them. Row i of
 * all parts, one behind the other, is row to[i] of the step. */
struct dlrm_pulled {
    enum codec_id codec; /* CODEC_FP32, CODEC_BF16 or CODEC_FP16 */
    uint32_t n_parts;
    const struct codec_rows *parts; /* of n_unique rows in all */
    const uint32_t *to;             /* [n_unique], each row once; dlrm_host_alloc()'s */
};

/* All borrowed until the step has ended. */
struct dlrm_step {
    const struct batch *batch;
    const float *rows; /* [batch->n_unique][dim]; not used with `pulled` */

    /* After dlrm_take_pulled(), or NULL: the device decodes these in place of `rows`, and keeps none of them. */
    const struct dlrm_pulled *pulled;
    const float *wide; /* [n_unique]; NULL unless config.wide */

    /* [n_unique], of a training step where the device keeps rows (dlrm_keep_rows()), and `rows` are then
     * dlrm_host_alloc()'s: a row that had the same place and version before, in any step, has the same bits now. No
     * two rows of a step have one place, but those of version 0, which have none. NULL: no such rows are known. A
     * replica's rows have the bits that updates have made of them since, and `rows` need not have those. */
    const uint64_t *versions;
    const uint32_t *places;

    /* Of the same shapes, filled; a prediction does not look at them. */
    float *row_grads, *wide_grads;

    /* [dlrm_n_gradients()], if dlrm_encodes(): the device sends these in place of row_grads, wide_grads and the dense
     * gradients, which are then not used. NULL: the gradients themselves. */
    const struct dlrm_encoded *encoded;

    /* Feeds dropout's hash, so workers of one job that should drop differently get different numbers
     * or seeds. */
    uint64_t number;

    /* The dense array holds what it held at the step begun before this one: where that has been copied
     * to a device's memory it is good for this one too. */
    bool keeps_dense;

    /* Of a replica: states of the rows whose version is new, [n_unique][n_states], dlrm_host_alloc()'s; and the change,
     * which makes of the encoded rows what the servers will. NULL: none is changed. */
    const float *states;
    const struct dlrm_row_update *update;
};

/* A replica of a table's rows in the device's memory. */
struct dlrm_replica {
    enum row_update_rule rule;
    uint32_t n_states; /* of a row */
    size_t n_bytes;    /* for rows with their states, at most */
};

#endif
