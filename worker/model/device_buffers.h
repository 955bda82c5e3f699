/*
 * The host and device arrays of a step. On a device that shares the host's memory (device_ops.shares_memory) ops read
 * and write the caller's own arrays and nothing is copied. On another device each buffer set has its own memory for
 * inputs and outputs, so that the copies of one step run beside the ops of another:
 *
 *     in, each step        numeric, label, starts, row_of, the bags' transpose or what it is made of, wide, dropout's
 *                          keys; rows, except those that the device has kept (device_row_cache.h), or encoded
 *     in, when changed     values of the dense array; unchanged ones come from the buffer set that has them
 *     out                  row_grads, wide_grads, gradients of the dense array, loss; or probs
 *
 * Activations and their gradients are the model's, one set for all buffer sets: the ops of steps do not overlap. The
 * dense array has the same layout in the device's memory as in the host's, gaps included, and is one copy.
 *
 * Arrays of keys and rows grow when a batch needs more, by half more than it needs. Then the buffer set's addresses
 * change, and with them the key of each of its records (device_ops.begin).
 */
#ifndef WORKER_MODEL_DEVICE_BUFFERS_H
#define WORKER_MODEL_DEVICE_BUFFERS_H

#include "worker/compute/bag_transpose.h"
#include "worker/compute/device.h"
#include "worker/model/device_row_cache.h"
#include "worker/model/dlrm_config.h"

/* The arrays of a buffer set in the device's memory. */
enum device_buffers_array {
    BUFFER_NUMERIC,
    BUFFER_LABEL,
    BUFFER_STARTS,
    BUFFER_ROW_OF,
    BUFFER_TRANSPOSE,
    BUFFER_ORDER, /* as the next one only for a device that makes the transpose */
    BUFFER_ORDER_STARTS,
    BUFFER_PULLED, /* as the next one only where rows come encoded */
    BUFFER_PULLED_TO,
    BUFFER_ROWS,
    BUFFER_WIDE,
    BUFFER_DROP_KEYS,
    BUFFER_VALUES,
    BUFFER_ROW_GRADS,
    BUFFER_WIDE_GRADS,
    BUFFER_GRADS,
    BUFFER_LOSS,
    BUFFER_PROBS,
    BUFFER_N_ARRAYS
};

/* Arguments of the ops of one step. */
struct dlrm_io {
    uint32_t n;      /* samples */
    uint32_t n_rows; /* the arrays' capacity; rows behind the batch's own are never read */
    const float *numeric, *label, *rows, *wide, *values;
    const uint64_t *drop_keys; /* a training step's (mlp_forward()) */
    size_t n_row_floats;       /* of rows and row_grads, as n_rows */
    struct bags bags;
    const struct bag_transposition
        *transposition; /* the step's first op; NULL: it is made, or has no use */
    float *row_grads, *wide_grads, *grads, *probs;
    double *loss;
    const struct device_encode *encodes; /* device_push_encode.h */
    uint32_t n_encodes;                  /* 0: gradients are copied as floats */
    const struct row_update *update;     /* behind them, of a replica's rows; NULL: none */
    uint64_t key;                        /* of the record */
};

struct device_buffers_set {
    void *arrays
        [BUFFER_N_ARRAYS]; /* owned, of the device; NULL where there is none, and everywhere on
                                     a device that shares its memory */
    uint32_t keys_cap, rows_cap;
    void *
        host_transpose; /* owned, of the host: the source of BUFFER_TRANSPOSE; of its first word, the number of
                             rows, if the device makes the rest */
    struct bag_transpose_arrays fill;
    struct bag_transpose transpose;
    struct bag_transposition transposition;
    uint64_t *host_drop_keys; /* owned, of the host; NULL without dropout */
    double *loss;             /* owned, of the host: of each task */
    uint64_t generation;      /* of the addresses */
    uint64_t values_version;  /* of the dense array in this buffer set */
    bool values_copied;       /* from another buffer set, in the step in flight */
    uint64_t n_failures;      /* device_buffers.n_failures then */
    bool busy;                /* a step is in flight */
};

struct device_buffers {
    const struct device_ops *ops;
    struct compute *c;                /* borrowed */
    const struct dlrm_config *config; /* borrowed */
    uint32_t row_width;               /* floats of the widest row, as it comes */
    uint32_t n_max, n_tasks, n_numeric, n_fields, dim;
    float task_weights[DLRM_TASKS_MAX];
    bool wide;
    bool takes_pulled;
    uint32_t n_drop_keys; /* hidden layers of the top MLP; 0 without dropout */
    uint64_t seed;        /* dropout */
    size_t dense_floats;
    float *values, *grads;           /* owned, of the host: the model's own dense array */
    float *host_values, *host_grads; /* borrowed: the one in use */
    float *probs;                    /* owned, of the host */
    uint64_t n_generations, n_values;
    uint64_t n_failures; /* each of them invalidates the values of all buffer sets */
    struct device_buffers_set sets[DLRM_BUFFER_SETS];
    struct device_row_cache rows; /* those that stay there from step to step */
};

/* Of the host alone: the model's own dense array, and the probabilities. -ENOMEM: deinit is still due. ops, c and
 * config are borrowed. */
int device_buffers_init_host(struct device_buffers *p, const struct device_ops *ops,
                             struct compute *c, const struct dlrm_config *config,
                             size_t dense_floats) MUST_CHECK;

/* And on the device: allocates the arrays whose size is the model's. Likewise. */
int device_buffers_init(struct device_buffers *p, const struct device_ops *ops,
                        struct compute *c, const struct dlrm_config *config,
                        size_t dense_floats) MUST_CHECK;

/* Accepts a zeroed struct. No step is in flight. */
void device_buffers_deinit(struct device_buffers *p);

/* dlrm_take_pulled() */
void device_buffers_take_pulled(struct device_buffers *p);

/* Sets the host's dense array; NULL: the model's own. */
void device_buffers_use(struct device_buffers *p, float *values, float *grads);

enum device_buffers_pass { DEVICE_BUFFERS_TRAIN, DEVICE_BUFFERS_PREDICT };

/* Reserves the memory of a step; the buffer set has none in flight. -ENOMEM. */
int device_buffers_reserve(struct device_buffers *p, uint32_t set, const struct batch *batch)
    MUST_CHECK;

/* And of a replica's update of n rows. -ENOMEM. */
int device_buffers_reserve_update(struct device_buffers *p, uint32_t set, uint32_t n)
    MUST_CHECK;

/* After the reserve: copies in what the step needs, and says where the ops find it. */
void device_buffers_in(struct device_buffers *p, uint32_t set, const struct dlrm_step *step,
                       enum device_buffers_pass pass, struct dlrm_io *ret);

/* After the last op: copies the outputs out, except the gradients of a step that has step->encoded. */
void device_buffers_out(struct device_buffers *p, uint32_t set, const struct dlrm_step *step,
                        enum device_buffers_pass pass);

/* Waits for the buffer set: its outputs are in the host's memory. *ret_loss: of a training step. The device's error:
 * *ret_loss is NaN. */
int device_buffers_wait(struct device_buffers *p, uint32_t set, double *ret_loss) MUST_CHECK;

#endif
