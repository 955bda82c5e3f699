/*
 * The model: bottom MLP, embedding bags, interaction, top MLP -> a logit a sample. Plain arrays in and out; it knows no
 * tables, no network, no files. Naumov et al. 2019 (arXiv:1906.00091); shapes and rules: golden/README.md ("What a C implementer must
 * get right").
 *
 *     X [n][n_numeric] -> bottom MLP (ReLU after every layer) -> D [n][dim]
 *     bags: sum of rows of each field's keys                  -> E_f [n][dim], f < n_fields
 *     T = [D, E_0, ...]; interaction: dot  R = [D, T_i . T_j for j < i (j <= i with self)]   or   concat  R = [T]
 *     R -> top MLP (ReLU between, none after the last)        -> z [n]
 *     wide: z += sum of the first-order weights of all keys of the sample
 *     loss = mean over n of max(z,0) - z y + log1p(exp(-|z|)) (+ L2 terms); p = sigmoid(z)
 *
 * Without numeric columns there is no bottom MLP and T = [E_0, ...]; without fields R = D. Batch normalisation (after each hidden
 * product, before ReLU: Ioffe and Szegedy 2015) and dropout (after each hidden ReLU of the top MLP, inverted scaling) are off unless set.
 */
#ifndef WORKER_MODEL_DLRM_H
#define WORKER_MODEL_DLRM_H

#include <stdbool.h>

#include "common/status.h"
#include "proto/spec.h"
#include "worker/data/batch.h"

#define DLRM_LAYERS_MAX 8u
#define DLRM_TENSORS_MAX 128u

struct dlrm;

struct dlrm_config {
    uint32_t batch_max, n_numeric, n_fields, dim;
    uint32_t n_bottom, bottom[DLRM_LAYERS_MAX]; /* hidden widths; the last layer, to dim, is added by itself */
    uint32_t n_top, top[DLRM_LAYERS_MAX];       /* hidden widths; the last layer, to 1, is added by itself */
    bool concat;            /* interaction: concat instead of dot */
    bool self_interaction;
    bool wide;
    bool batch_norm;
    float dropout;          /* probability of 0, in [0, 1) */
    float l2_dense;         /* loss += l2_dense / 2 * |W|^2 over weight matrices (not biases, not norms) */
    float l2_rows;          /* loss += l2_rows / 2 * |row|^2 over the batch's unique rows */
    uint64_t seed;          /* dropout */
};

/* A dense array of the model: what it is called in the store, how it starts, where its values and gradients are. */
struct dlrm_tensor {
    char name[32];         /* "bot.0.W" (out x in), "bot.0.b", "top.0.W", "bot.0.gamma", "bot.0.mean" ... */
    uint32_t n_floats;
    enum spec_init init;   /* golden/README.md, 8: W ~ N(0, 2/(in+out)), b ~ N(0, 1/out) */
    float init_scale;
    float init_offset;     /* gamma and running variances start at 1: stored as value - offset, see dlrm_tensor() */
    bool statistic;        /* running mean or variance: no loss gradient; grads hold momentum * (running - batch), to be applied with SGD at rate 1 */
    float *values;         /* n_floats, filled by the trainer before forward, WITHOUT the offset (the model adds it) */
    float *grads;          /* n_floats, filled by backward */
};

int dlrm_new(const struct dlrm_config *config, struct dlrm **ret_model, struct err *err) MUST_CHECK;
void dlrm_free(struct dlrm *m);

uint32_t dlrm_n_tensors(const struct dlrm *m);
struct dlrm_tensor *dlrm_tensor(struct dlrm *m, uint32_t i);

/* rows: [batch->n_unique][dim]; wide: [n_unique] or NULL. Fills probs (and logits) of batch->n samples. training: dropout and
 * batch statistics; `step` feeds dropout's counter hash. All borrowed until backward is done. -ENOMEM. */
int dlrm_forward(struct dlrm *m, const struct batch *batch, const float *rows, const float *wide, bool training, uint64_t step) MUST_CHECK;
const float *dlrm_probs(const struct dlrm *m);
const float *dlrm_logits(const struct dlrm *m);

/* Mean loss over the batch of the last forward (without L2), in double, sums in sample order. */
double dlrm_loss(const struct dlrm *m, const struct batch *batch);

/* Gradients of the mean loss: every tensor's grads; row_grads [n_unique][dim]; wide_grads [n_unique] or NULL. After a training forward. */
int dlrm_backward(struct dlrm *m, const struct batch *batch, const float *rows, const float *wide, float *row_grads,
                  float *wide_grads) MUST_CHECK;

/* Intermediates of the last forward/backward, for tests: "bot_0_pre", "bot_0_out", "T", "Zflat", "R", "top_0_pre", "d_R" ...
 * NULL for a name that is unknown. */
const float *dlrm_peek(const struct dlrm *m, const char *name, uint32_t *ret_n);

#endif
