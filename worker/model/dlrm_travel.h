/*
 * How the gradients of a step leave a device that has memory of its own: as the wire has them (proto/codec.h), so that neither
 * floats nor what lossy codecs owe cross the bus. A flow is an array of gradient rows, as the table has them where they go:
 *
 *     DLRM_ROWS        [n_unique][dim]    embedding rows
 *     DLRM_WIDE        [n_unique][1]      first-order weights; none (n is 0) unless config.wide
 *     DLRM_DENSE + i   [blocks][width]    tensor i: width is its n_floats, SPEC_DENSE_BLOCK at most; behind its floats the
 *                                         last block has zeros
 *
 * and its owed rows are an array in the device's memory, of rows as wide, which dlrm_owed_reserve() makes. Which key has which
 * of them is the caller's to know. Row i of n that leave is
 *
 *     v = gradient of row from[i] + owed row owed_at[i]
 *
 * encoded; then the owed row is v less what was encoded, of codecs with feedback, and 0 of others. As the CPU does it
 * (worker/client/row_format.c), a gradient that is not finite leaves, of a codec with feedback, as a row of NaN and the owed
 * row as it was; other codecs encode it as it is.
 */
#ifndef WORKER_MODEL_DLRM_TRAVEL_H
#define WORKER_MODEL_DLRM_TRAVEL_H

#include "common/base.h"
#include "proto/codec_id.h"
#include "worker/model/dlrm_tensor.h"

/* The flows of a model: DLRM_DENSE and one for each tensor (dlrm_n_flows()). */
enum dlrm_flow { DLRM_ROWS, DLRM_WIDE, DLRM_DENSE };

#define DLRM_FLOWS_MAX (DLRM_DENSE + DLRM_TENSORS_MAX)

#define DLRM_NONE UINT32_MAX

/* One flow of one step; all borrowed until the step has ended, and copied fastest if dlrm_host_alloc() gave it. */
struct dlrm_travel {
    enum codec_id codec;
    uint32_t k; /* topk's; else 0 */
    uint32_t n; /* rows that leave */
    const uint32_t
        *from; /* [n], no row twice, or DLRM_NONE: none; NULL: row i of the step is row i */
    const uint32_t *owed_at; /* [n], no row twice, or DLRM_NONE: none; NULL: none at all */
    uint8_t *bytes;          /* filled: n rows of the codec's row_bytes; dlrm_host_alloc()'s */
};

#endif
