/*
 * The model's arrays as tables of a store: their specs, the pull of a batch and the push of a step.
 *
 *     JOB/emb       sparse, dim   embedding rows of all fields, or of those without options of their own
 *     JOB/wide      sparse, 1     first-order weights of the same (if --wide)
 *     JOB/emb.FIELD, JOB/wide.FIELD   those of fields with options (field_tables.h)
 *     JOB/TENSOR    dense         each array of the MLPs: JOB/bot.0.W ...
 *     JOB/moments   dense         means, then standard deviations of numeric columns (if
 *                                 standardised)
 *     JOB/control   dense, 3      a counter that grows when rank 0 stops early, and the last clock
 *                                 (if --early-stop)
 *
 * A dense table's rows are blocks; an array that does not fill its last block is padded to it in
 * the step's buffers.
 *
 * One thread may pull into a step's buffers while another pushes others, where the store's calls may
 * overlap; model_tables_use() and the model belong to the thread that computes.
 */
#ifndef WORKER_MODEL_TABLES_H
#define WORKER_MODEL_TABLES_H

#include "worker/model/dlrm.h"
#include "worker/param_store.h"
#include "worker/settings.h"
#include "worker/step_buffers.h"
#include "worker/sync_policy.h"

struct model_tables;

/* Makes the tables in the store (train), or finds them there and holds them against the model
 * (eval, predict): the sentence then names the setting that differs. The model and the store
 * are borrowed. */
int model_tables_create(const struct settings *s, struct dlrm *model, uint32_t n_numeric,
                        struct param_store *store, struct model_tables **ret, struct err *err)
    MUST_CHECK;
int model_tables_find(const struct settings *s, struct dlrm *model, uint32_t n_numeric,
                      struct param_store *store, struct model_tables **ret, struct err *err)
    MUST_CHECK;
/* True if the store has tables of this job. */
bool model_tables_exist(const struct settings *s, struct param_store *store);

void model_tables_free(struct model_tables *t);

/* The tables of a pull. For a step: dense tables only if those pulled before are too old (sync_policy.h). */
enum model_tables_want {
    MODEL_TABLES_ROWS = 1,
    MODEL_TABLES_DENSE = 2,
    MODEL_TABLES_ALL = 3,
    MODEL_TABLES_STEP = 7
};

/* Allocates the arrays of empty step buffers. Deinit frees them; if the model used them, it uses its own again. */
int model_tables_step_init(struct model_tables *t, struct step_buffers *buffers,
                           struct err *err) MUST_CHECK;
void model_tables_step_deinit(struct model_tables *t, struct step_buffers *buffers);

/* Pulls the unique rows of the batch, and the model's arrays, at the clock of the step buffers. Makes space for the
 * gradients, too. */
int model_tables_pull(struct model_tables *t, struct step_buffers *buffers,
                      enum model_tables_want want, struct err *err) MUST_CHECK;

/* True if pulls of several steps may be under way at once, each on a thread of its own. */
bool model_tables_pulls_overlap(const struct model_tables *t);

/* Announces the rows of the batch to the store (param_store.h, ahead); 0 at once if the store has no use for it. */
int model_tables_prefetch(struct model_tables *t, struct step_buffers *buffers, struct err *err)
    MUST_CHECK;

/* The model uses the arrays of these step buffers from now on; if they were pulled without dense arrays, they get a
 * copy of the model's. Returns the step to compute, at once or after those in flight: a prediction, or a step whose
 * gradients are floats. */
struct dlrm_step model_tables_use(struct model_tables *t, struct step_buffers *buffers);

/* The same for a training step: the device encodes its gradients, if it can (device_push.h). */
int model_tables_begin(struct model_tables *t, struct step_buffers *buffers,
                       struct dlrm_step *ret, struct err *err) MUST_CHECK;

/* True if the residuals after this step, the last that has begun, are to be written. They are copied to the
 * host when the step has ended, before another one begins, and written after its push. A failure is a warning. */
bool model_tables_copies_residuals(const struct model_tables *t,
                                   const struct step_buffers *buffers);
void model_tables_copy_residuals(struct model_tables *t, struct step_buffers *buffers);

/* Pushes the gradients, and ticks. */
int model_tables_push(struct model_tables *t, struct step_buffers *buffers, struct err *err)
    MUST_CHECK;

/* The codecs and refresh of the tables, and the resume point. */
struct sync_policy *model_tables_sync_policy(const struct model_tables *t);

/* The store's counters, with what only this side knows (sync_policy.h). Any thread. */
void model_tables_stats(const struct model_tables *t, struct ps_stats *ret);

/* Drops rows and dense arrays that were pulled and not computed. */
void model_tables_restart(struct model_tables *t);

/* Ends a run, after success or an error: saves the state that must outlive it beside the tables. Needs no server, but
 * the device; the store is still open, and no step under way. NULL is fine. */
int model_tables_end(struct model_tables *t, struct err *err) MUST_CHECK;

/* Means and deviations: [n_numeric] each. Stored by rank 0, read by eval and predict. */
int model_tables_store_moments(struct model_tables *t, const float *mean, const float *std,
                               struct err *err) MUST_CHECK;
int model_tables_load_moments(struct model_tables *t, float *ret_mean, float *ret_std,
                              struct err *err) MUST_CHECK;

/* --decay plateau: the factor of the learning rates as the servers have it. Rank 0 sets it after a validation and
 * before its next step: the servers take it from that step on, in lock step for all workers. The change and the resume
 * point are one push. Without plateau it is 1. */
float model_tables_rate_factor(const struct model_tables *t);
int model_tables_set_rate_factor(struct model_tables *t, float factor, struct err *err)
    MUST_CHECK;

/* Early stop: rank 0 announces the clock after which all workers end, and each reads it with its next pull. If
 * announced before rank 0 ticks past that clock, all workers of a lock-step job end at the same step. */
int model_tables_set_stop(struct model_tables *t, uint64_t clock, struct err *err) MUST_CHECK;
bool model_tables_stopped(const struct model_tables *t, const struct step_buffers *buffers);

#endif
