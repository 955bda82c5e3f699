/*
 * The synchronisation of a run's tables: the codec of each table and direction at each step
 * (codec_policy.h), the refresh of dense tables, and the state that a restart needs: resume point and
 * residuals. model_tables.c calls it with a step's sections; it calls the store.
 *
 * Dense tables, once pulled, are good for later steps while both hold:
 *
 *     --dense-refresh K      fewer than K steps have used them
 *     the bound s            step - min clock of that pull <= s (lock step: s = 0, so never)
 *
 * In between the worker sees neither its own dense pushes nor others'. A push of clock c that is
 * missing is one of the last K - 1 steps, which the bound allows to be missing.
 *
 * Residuals are a file in --state-dir, so that a restart loses none of them. It is written at the setup of a run
 * (unchanged: a test of the folder), before the first push, every --state-every steps, and at an orderly end: the
 * last step, SIGTERM, an error. If a run was killed between its first push and its end, the next run logs it: rows
 * pushed since the last write then have an old residual, a part of which has been sent already.
 *
 * Threads: one may pull (sync_policy_wants_dense(), sync_policy_pulled(), sync_policy_reset()) while
 * another pushes.
 */
#ifndef WORKER_SYNC_POLICY_H
#define WORKER_SYNC_POLICY_H

#include "worker/codec_policy.h"
#include "worker/param_store.h"
#include "worker/resume_point.h"
#include "worker/settings.h"
#include "worker/step_buffers.h"

struct sync_policy;

/* The store has all of the run's tables. n_dense_floats: of all dense tables that are trained.
 * has_layers: blocks of theirs are longer than topk takes.
 * `trains`: for a run that pushes; others use settings alone, and fp32 where they say auto. */
int sync_policy_new(const struct settings *s, struct param_store *store,
                    uint64_t n_dense_floats, bool has_layers, bool trains,
                    struct sync_policy **ret, struct err *err) MUST_CHECK;
void sync_policy_free(struct sync_policy *w);

/* The run's resume point. Read and changed while no push is in flight; a push advances it by its step. */
struct resume_point *sync_policy_resume_point(struct sync_policy *w);
/* True if an earlier process left the resume point. */
bool sync_policy_resumes(const struct sync_policy *w);
/* Stores it, as it is now, with the next push that ends no step. */
void sync_policy_save_resume_point(struct sync_policy *w);

enum codec_id sync_policy_codec(struct sync_policy *w, enum codec_policy_direction direction);

/* Plans the codecs of the next step: before its push, or, if a device encodes, when it begins. */
void sync_policy_plan(struct sync_policy *w, struct codec_policy_plan *ret);
/* A device encodes the gradients. */
void sync_policy_set_device_encodes(struct sync_policy *w);

/* True if dense tables must be pulled for the step at this clock. */
/* True if every pull of a step brings the dense tables: then none depends on the one before it. */
bool sync_policy_always_pulls_dense(const struct sync_policy *w);

bool sync_policy_wants_dense(struct sync_policy *w, uint64_t clock);
/* The pull of the step at this clock has been answered; with dense tables or without. */
void sync_policy_pulled(struct sync_policy *w, uint64_t clock, bool with_dense);
/* After a restart: dense tables are pulled again, and steps that were not pushed are planned again. */
void sync_policy_reset(struct sync_policy *w);

/* Pushes step->sections with a tick, and measures the push if step->plan says so. */
int sync_policy_push(struct sync_policy *w, const struct step_buffers *step, struct err *err)
    MUST_CHECK;

/* True if residuals are saved at the end of the run; and if they are saved after
 * the step of this number. */
bool sync_policy_saves_residuals(const struct sync_policy *w);
bool sync_policy_saves_residuals_at(const struct sync_policy *w, uint64_t number);
/* Before the first push, and before the encoder's residuals change: marks the saved ones as of an unfinished
 * run. */
int sync_policy_begin(struct sync_policy *w, struct err *err) MUST_CHECK;
/* After a push: saves the encoder's residuals, if it is time. */
void sync_policy_save_residuals(struct sync_policy *w);

/* The store's, with the age of dense tables that were used again, and with the time that timed pushes
 * waited for their answers, as window_ns. Any thread. */
void sync_policy_stats(const struct sync_policy *w, struct ps_stats *ret);

/* The end of a run, well or with an error: writes the state. Needs no server, but the store's
 * encoder. NULL is fine. */
int sync_policy_end(struct sync_policy *w, struct err *err) MUST_CHECK;

#endif
