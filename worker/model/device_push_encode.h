/*
 * A step's gradients encoded on the device (dlrm_types.h, "encoded gradients"): the residuals, for the model's life;
 * in each buffer set memory for inputs and outputs; the encode ops.
 *
 * A buffer set's memory is one block of the device's,
 *
 *     counts [gradients], from and residual_at of each, bytes of the rows, of the wide weights, of all tensors
 *
 * and grows with a step's rows, as the arrays of device_buffers.h do. The tensors' bytes are contiguous: a caller
 * whose own bytes are contiguous gets one copy. Gradients that are sent as floats, all rows in order and without
 * residuals, need no op: their bytes are the gradients themselves.
 *
 * Codecs, and which arrays there are, are arguments of the ops and so part of their record (device_ops.begin): a key
 * stands for the step's key without them and for every argument of every encode.
 */
#ifndef WORKER_MODEL_DEVICE_PUSH_ENCODE_H
#define WORKER_MODEL_DEVICE_PUSH_ENCODE_H

#include "worker/compute/device.h"
#include "worker/model/device_buffers.h"
#include "worker/model/dlrm_types.h"

#define DEVICE_PUSH_ENCODE_KEYS 8u /* that a buffer set remembers */

struct device_push_encode_residual {
    uint32_t width;           /* 0: the model has none */
    size_t at;                /* tensors: where in the dense array */
    uint32_t n_residual_rows; /* rows */
    float *residual;          /* owned, of the device; NULL: none */
};

struct device_push_encode_buffers {
    void *memory; /* owned, of the device */
    size_t n_bytes;
    uint32_t *counts; /* owned, of the host */
    uint32_t rows_cap[DLRM_GRADIENTS_MAX];
    size_t bytes_cap[DLRM_DENSE + 1]; /* the last: of all tensors */

    const uint8_t *bytes
        [DLRM_GRADIENTS_MAX]; /* of the step in flight, where they are in the device's memory */

    /* Owned: arguments of the ops of the step in flight, and those of known keys. */
    struct device_encode *encodes;
    struct device_push_encode_key {
        uint64_t step, key;
        uint32_t n;
        struct device_encode *encodes; /* owned */
    } keys[DEVICE_PUSH_ENCODE_KEYS];
    uint32_t n_keys; /* so far; the oldest goes */
};

struct device_push_encode {
    const struct device_ops *ops; /* borrowed, as c */
    struct compute *c;
    uint32_t n;
    struct device_push_encode_residual at[DLRM_GRADIENTS_MAX];
    struct device_push_encode_buffers buffers[DLRM_BUFFER_SETS];
    uint64_t n_keys;
};

/* tensors: n of them, with their places; read here alone. */
void device_push_encode_init(struct device_push_encode *f, const struct device_ops *ops,
                             struct compute *c, const struct dlrm_config *config,
                             const struct dlrm_tensor *tensors, uint32_t n_tensors);

/* Floats of a row of the gradient. Another width than before only while it has no residuals. */
void device_push_encode_set_width(struct device_push_encode *f, uint32_t gradient,
                                  uint32_t width);

/* Accepts a zeroed struct. No step is in flight. */
void device_push_encode_deinit(struct device_push_encode *f);

/* dlrm_residual_reserve(), dlrm_residual_release(), dlrm_residual_put(), dlrm_residual_get() */
int device_push_encode_reserve_residual(struct device_push_encode *f, uint32_t gradient,
                                        uint32_t n_rows) MUST_CHECK;
void device_push_encode_release_residuals(struct device_push_encode *f);
int device_push_encode_put_residual(struct device_push_encode *f, uint32_t gradient,
                                    const uint32_t *at, uint32_t n, const float *rows)
    MUST_CHECK;
int device_push_encode_get_residual(struct device_push_encode *f, uint32_t gradient,
                                    const uint32_t *at, uint32_t n, float *rows) MUST_CHECK;

/* Reserves the memory of a step; the buffer set has none in flight. -ENOMEM. */
int device_push_encode_reserve(struct device_push_encode *f, uint32_t set,
                               const struct dlrm_encoded *encoded) MUST_CHECK;

/* After device_buffers_in() and the reserve: copies in, and sets ops and key of io. */
void device_push_encode_in(struct device_push_encode *f, uint32_t set,
                           const struct dlrm_encoded *encoded, struct dlrm_io *io);

/* After the last op: copies the bytes out. */
void device_push_encode_out(struct device_push_encode *f, uint32_t set,
                            const struct dlrm_encoded *encoded);

#endif
