/*
 * Gradients that leave a device encoded (dlrm_types.h). The device's memory holds the error-feedback
 * residuals of each table that is pushed; the host holds their index: key -> row number
 * (client/error_feedback_index.h). The device writes the bytes that the host's encoder would write, so
 * that both make the same pushes.
 *
 *     table    1:1    gradient of the model    1:1    section of a push
 *
 *     a step   begins      device_push_begin(): row numbers and the place of the bytes go to the device;
 *                          the step's sections point at these bytes
 *              has ended   the bytes are there
 *              is pushed   with these sections
 *
 * Steps take residuals in the order in which they begin, and several may be in flight: each has arrays
 * of its own (struct device_push_step). Residuals of a step that begins and is never pushed are lost, as
 * with a push that servers refuse: the worker was declared dead, or the run failed.
 *
 * Residuals move from the encoder to the device before the first step. A copy goes back to be written
 * (sync_policy.h); in between the encoder has none of these tables.
 *
 * Threads: the thread that computes calls everything, with two exceptions: device_push_swap() belongs to
 * the thread that pushes, and any thread may call device_push_stats().
 */
#ifndef WORKER_DEVICE_PUSH_H
#define WORKER_DEVICE_PUSH_H

#include "worker/client/error_feedback_index.h"
#include "worker/client/ps_types.h"
#include "worker/client/push_encoder.h"
#include "worker/model/dlrm.h"

struct device_push;

/* A table that is pushed with every step, and the number of its gradient (dlrm_n_gradients()). */
struct device_push_table {
    uint32_t gradient;
    uint32_t table;    /* the encoder's number */
    uint32_t n_blocks; /* of a dense table; 0: it is sparse */
    bool has_feedback; /* its codec may be one with error feedback */
};

/* The encoded rows of one step. Zeroed: none. */
struct device_push_step {
    uint32_t n;
    struct error_feedback_index *indexes; /* owned, n: by table */
    struct dlrm_encoded *encoded;         /* owned: for dlrm_step.encoded */
    uint32_t *buffer; /* owned, by dlrm_host_alloc(): all that the device reads and writes */
    size_t buffer_bytes;
};

/* The residuals, on the host. Zeroed: none. */
struct device_push_copy {
    uint32_t n;
    struct error_feedback *residuals; /* owned, n: by table */
};

/* tables, n of them in the order of a push's sections, are copied. The model, which must be able to
 * encode, and the encoder, which has these tables and their residuals, are borrowed. Reserves the
 * device's memory. -ENOMEM: the device has too little, or residuals have no bound; or the device's
 * errors. A failure leaves nothing reserved. */
int device_push_new(struct dlrm *model, struct push_encoder *encoder,
                    const struct device_push_table *tables, uint32_t n,
                    struct device_push **ret, struct err *err) MUST_CHECK;
void device_push_free(struct device_push *t);

/* Before the first step: moves the encoder's residuals to the device; later calls do nothing. After a
 * failure the encoder still has them. */
int device_push_load(struct device_push *t, struct err *err) MUST_CHECK;
bool device_push_is_loaded(const struct device_push *t);

/* Begins a step. sections, one for each table, name codec and keys of its gradients; the keys stay
 * borrowed as long as the step's arrays. On return the sections are those of the push: keys, codec and
 * the bytes that the device writes. -ENOMEM: nothing has changed. */
int device_push_begin(struct device_push *t, struct device_push_step *step,
                      struct ps_push_section *sections, struct err *err) MUST_CHECK;
void device_push_step_deinit(struct device_push_step *step, struct dlrm *model);

/* Copies the residuals as of the last step that has begun; none is in flight. -ENOMEM, or the device's
 * errors: *ret is empty. */
int device_push_copy(struct device_push *t, struct device_push_copy *ret, struct err *err)
    MUST_CHECK;
void device_push_copy_deinit(struct device_push_copy *copy);

/* Exchanges the copy and the encoder's residuals. */
void device_push_swap(struct device_push *t, struct device_push_copy *copy);

/* Adds the number and bytes of residual rows, the device's included, and the rows that were flushed. */
void device_push_stats(const struct device_push *t, struct ps_stats *stats);

#endif
