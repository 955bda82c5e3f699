/*
 * The model: bottom MLP, embedding bags, interaction, top MLP -> a logit a sample. Plain arrays
 * in and out; it knows no tables, no network, no files. Naumov et al. 2019 (arXiv:1906.00091);
 * shapes and rules: README.md beside this file.
 *
 *     X [n][n_numeric] -> bottom MLP (ReLU after every layer) -> D [n][dim]
 *     bags: sum, or mean, of the rows of each field's keys    -> E_f [n][dim], f < n_fields
 *     T = [D, E_0, ...]
 *     interaction: dot      R = [D, T_i . T_j for j < i (j <= i with self)]
 *                  concat   R = [T]
 *     R -> top MLP (ReLU between, none after the last)        -> z [n]
 *     wide: z += sum of the first-order weights of all keys of the sample
 *     loss = mean over n of max(z, 0) - z y + log1p(exp(-|z|))   (+ L2 terms)
 *     p = sigmoid(z)
 *
 * Without numeric columns there is no bottom MLP and T = [E_0, ...]; without fields R = D.
 * Batch normalisation (after each product that a ReLU follows, before the ReLU: Ioffe and
 * Szegedy 2015) and dropout (after each hidden ReLU of the top MLP, inverted scaling) are off
 * unless set.
 */
#ifndef WORKER_MODEL_DLRM_H
#define WORKER_MODEL_DLRM_H

#include <stdbool.h>

#include "common/status.h"
#include "proto/table_spec.h"
#include "worker/compute/device.h"
#include "worker/model/dlrm_config.h"
#include "worker/model/dlrm_types.h"

struct dlrm;

/* PS_ESETTING with a sentence, -ENOMEM. Everything that steps need is allocated here. */
int dlrm_new(const struct dlrm_config *config, struct dlrm **ret_model, struct err *err)
    MUST_CHECK;

/* The same on a device of the caller's choice. ops are borrowed for life. */
int dlrm_new_on(const struct device_ops *ops, const struct dlrm_config *config,
                struct dlrm **ret_model, struct err *err) MUST_CHECK;
void dlrm_free(struct dlrm *m);

/* Device, library and threads that compute, for the log. Lives as long as m. */
const char *dlrm_device(const struct dlrm *m);

/* A step or prediction has failed: a sentence for the operator, with what the device says of it. Returns
 * `status`. */
int dlrm_failed(const struct dlrm *m, int status, struct err *err);

/* Logits, and so probabilities, of a sample. */
uint32_t dlrm_n_tasks(const struct dlrm *m);

uint32_t dlrm_n_tensors(const struct dlrm *m);
struct dlrm_tensor *dlrm_tensor(struct dlrm *m, uint32_t i);
/* The table's blocks have this length, which may not be the model's. Before residuals are reserved; the same length at
 * any time. */
void dlrm_set_block(struct dlrm *m, uint32_t i, uint32_t block);

/*
 * All tensors lie in one array of so many floats (dlrm_tensor.at), as the dense tables' blocks want
 * them: of values, and of gradients. dlrm_use() puts other arrays, borrowed, in place of those that
 * the model uses now, and moves the tensors there; nothing is copied. NULL: the model's own.
 */
size_t dlrm_dense_floats(const struct dlrm *m);
float *dlrm_dense(const struct dlrm *m);
void dlrm_use(struct dlrm *m, float *values, float *grads);

/* Zeroed host memory from which the device's copies are fastest: for the arrays of steps. NULL: out of
 * memory. Any thread, also during steps. */
void *dlrm_host_alloc(struct dlrm *m, size_t n_bytes) MUST_CHECK;
void dlrm_host_free(struct dlrm *m, void *memory, size_t n_bytes); /* NULL is fine */

/* device_ops.dedup, if the device has it. Any thread, also while another one makes a step. */
bool dlrm_dedups(const struct dlrm *m);
int dlrm_dedup_new(struct dlrm *m, struct device_dedup **ret, struct err *err) MUST_CHECK;
int dlrm_dedup(struct dlrm *m, struct device_dedup *d, const struct key_dedup *keys,
               uint32_t *ret_n_unique, struct err *err) MUST_CHECK;
void dlrm_dedup_free(struct dlrm *m, struct device_dedup *d);

/* On a device with memory of its own: caches rows in up to n_bytes of it, so that rows with known versions
 * (dlrm_step.versions) are not copied again. At most once, before the first step. Steps then end in the order of their
 * begins, and a failure of one fails all in flight. Does nothing on other devices, or if no row fits. -ENOMEM: no
 * cache. */
int dlrm_keep_rows(struct dlrm *m, size_t n_bytes) MUST_CHECK;

/* In its place: the rows stay there with the states of their table's optimizer, and each step with an update changes
 * them as the servers will (dlrm_step.update), after its gradients have been encoded. One step at a time is in flight.
 * Does nothing on devices without memory of their own, where rows are projected, or if no row fits. -ENOMEM: no
 * replica. */
int dlrm_replicate_rows(struct dlrm *m, const struct dlrm_replica *replica) MUST_CHECK;

/* Frees them. No step is in flight. */
void dlrm_release_rows(struct dlrm *m);

/* Rows that the device has memory for. */
uint32_t dlrm_n_places(const struct dlrm *m);

/* True if the device caches rows. */
bool dlrm_keeps_rows(const struct dlrm *m);

/* True if the device decodes rows as the servers send them (dlrm_step.pulled): it has memory of its own and is the only
 * one, and the model's rows have one width. */
bool dlrm_decodes(const struct dlrm *m);

/* Before the first step: steps may have such rows. Takes memory of the device for them. */
void dlrm_take_pulled(struct dlrm *m);

/* Rows of training steps: copied to the device's memory, and found in its cache. */
struct dlrm_row_counts {
    uint64_t n_copied, n_kept;
    uint64_t row_bytes; /* of the device's memory, for a row that stays */
};

struct dlrm_row_counts dlrm_row_counts(const struct dlrm *m);

/* True if the device encodes gradients (dlrm_types.h): it has memory of its own. */
bool dlrm_encodes(const struct dlrm *m);

/* Arrays of gradients of a step: DLRM_DENSE, and one for each tensor. */
uint32_t dlrm_n_gradients(const struct dlrm *m);

/* Reserves n_rows residual rows for one of them, all 0; once for each, no step in flight. -ENOMEM. */
int dlrm_residual_reserve(struct dlrm *m, uint32_t gradient, uint32_t n_rows) MUST_CHECK;

/* Frees all residual rows; they may be reserved anew. No step is in flight. */
void dlrm_residual_release(struct dlrm *m);

/* Copies residual rows at[0 .. n) from or to rows [n][width] of the host. No step is in flight. -ENOMEM, or the
 * device's errors. */
int dlrm_residual_put(struct dlrm *m, uint32_t gradient, const uint32_t *at, uint32_t n,
                      const float *rows) MUST_CHECK;
int dlrm_residual_get(struct dlrm *m, uint32_t gradient, const uint32_t *at, uint32_t n,
                      float *rows) MUST_CHECK;

/*
 * One training step: gradients of the mean loss in every tensor's grads, in step->row_grads and
 * step->wide_grads. *ret_loss: the mean loss over the batch (without L2; of several tasks the sum with their
 * weights), in double, sums in blocks (device.h); it may be no number. At most config.batch_max samples. -ENOMEM, or
 * the device's errors.
 *
 * In two halves, up to dlrm_n_buffer_sets() steps may be in flight, each in a buffer set of its own, so that the
 * copies of one run beside the ops of another: their ops run in the order of the begins, and the
 * dense arrays are those in use at the begin. After a begin that failed no end is due; after any
 * other the arrays of the step stay as they are until its end.
 */
int dlrm_step(struct dlrm *m, const struct dlrm_step *step, double *ret_loss) MUST_CHECK;
uint32_t dlrm_n_buffer_sets(const struct dlrm *m);
int dlrm_step_begin(struct dlrm *m, uint32_t set, const struct dlrm_step *step) MUST_CHECK;
int dlrm_step_end(struct dlrm *m, uint32_t set, double *ret_loss) MUST_CHECK;

/* Probabilities of the batch's samples, as evaluation has them: running statistics, no dropout. No step
 * is in flight. They stay until the next prediction. [n][n_tasks] */
int dlrm_predict(struct dlrm *m, const struct dlrm_step *step) MUST_CHECK;
const float *dlrm_probs(const struct dlrm *m);

#endif
