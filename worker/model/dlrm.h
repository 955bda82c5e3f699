/*
 * The model: bottom MLP, embedding bags, interaction, top MLP -> a logit a sample. Plain arrays
 * in and out; it knows no tables, no network, no files. Naumov et al. 2019 (arXiv:1906.00091);
 * shapes and rules: README.md beside this file.
 *
 *     X [n][n_numeric] -> bottom MLP (ReLU after every layer) -> D [n][dim]
 *     bags: sum of rows of each field's keys                  -> E_f [n][dim], f < n_fields
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
#include "proto/spec.h"
#include "worker/compute/compute.h"
#include "worker/data/batch.h"
#include "worker/model/dlrm_config.h"
#include "worker/model/dlrm_tensor.h"

struct dlrm;

/* PS_ESETTING with a sentence, -ENOMEM. Everything that steps need is allocated here. */
int dlrm_new(const struct dlrm_config *config, struct dlrm **ret_model, struct err *err)
    MUST_CHECK;

/* The same on a device of the caller's choice. ops are borrowed for life. */
int dlrm_new_on(const struct compute_ops *ops, const struct dlrm_config *config,
                struct dlrm **ret_model, struct err *err) MUST_CHECK;
void dlrm_free(struct dlrm *m);

/* Device, library and threads that compute, for the log. Lives as long as m. */
const char *dlrm_device(const struct dlrm *m);

uint32_t dlrm_n_tensors(const struct dlrm *m);
struct dlrm_tensor *dlrm_tensor(struct dlrm *m, uint32_t i);

/* rows: [batch->n_unique][dim]; wide: [n_unique], NULL unless config.wide. Fills probs (and
 * logits) of batch->n samples, at most config.batch_max. training: dropout and batch
 * statistics; `step` feeds dropout's counter hash, so workers of one job that should drop
 * differently get different steps or seeds. All borrowed until backward is done. The device's
 * errors. */
int dlrm_forward(struct dlrm *m, const struct batch *batch, const float *rows,
                 const float *wide, bool training, uint64_t step) MUST_CHECK;
const float *dlrm_probs(const struct dlrm *m);
const float *dlrm_logits(const struct dlrm *m);

/* Mean loss over the batch of the last forward (without L2), in double, sums in blocks
 * (compute.h). Makes the logits' gradients too, so that a backward that follows need not. */
double dlrm_loss(struct dlrm *m, const struct batch *batch);

/* Gradients of the mean loss: every tensor's grads; row_grads [n_unique][dim]; wide_grads
 * [n_unique], NULL unless config.wide. After a training forward of the same batch, once. */
int dlrm_backward(struct dlrm *m, const struct batch *batch, const float *rows,
                  const float *wide, float *row_grads, float *wide_grads) MUST_CHECK;

/*
 * Intermediates of the last forward and backward, for tests:
 *
 *     bot_I_pre bot_I_out bag_F T Zflat R top_I_pre top_I_out logit prob
 *
 * and d_ before each but prob. They are looked up or computed anew, nothing is kept for them.
 * Valid until the next call on m. NULL for a name that is unknown or does not exist in this
 * model; NULL without memory.
 */
const float *dlrm_peek(struct dlrm *m, const char *name, uint32_t *ret_n);

#endif
