/*
 * The error-feedback residuals of a run, as a file in --state-dir, so that a restart loses none of
 * them.
 *
 * Written at the setup of a run (unchanged: a test of the folder), before the first push, every
 * --state-every steps, and at an orderly end: the last step, SIGTERM, an error. If a run was killed
 * between its first push and its end, the next run logs it: rows pushed since the last write then
 * have an old residual, a part of which has been sent already.
 */
#ifndef WORKER_ERROR_FEEDBACK_STATE_H
#define WORKER_ERROR_FEEDBACK_STATE_H

#include "common/file.h"
#include "worker/client/push_encoder.h"
#include "worker/settings.h"

struct error_feedback_state;

/* *ret is NULL without --state-dir. Loads the residuals of this job's and rank's earlier run.
 * A damaged file costs a warning, and the run begins without residuals; one of another job or model,
 * or one that cannot be read or written, is an error. The encoder has all its tables and is
 * borrowed, as the settings are. */
int error_feedback_state_open(const struct file_ops *files, const struct settings *s,
                              struct push_encoder *e, struct error_feedback_state **ret,
                              struct err *err) MUST_CHECK;
void error_feedback_state_free(struct error_feedback_state *state);

/* Steps that earlier runs have made; 0 for NULL. */
uint64_t error_feedback_state_steps_before(const struct error_feedback_state *state);

/* Before a push: the first one marks the file as that of a run that has not ended. NULL is fine,
 * here and below. */
int error_feedback_state_begin(struct error_feedback_state *state, struct err *err) MUST_CHECK;

/* Is it time to write after so many steps, those before included? */
bool error_feedback_state_is_due(const struct error_feedback_state *state, uint64_t n_steps);

/* So many steps are made: writes, if it is time. What fails is a warning;
 * the next write may work. */
void error_feedback_state_stepped(struct error_feedback_state *state, uint64_t n_steps);

/* The end: writes the residuals as of the last push that was handed over. A run without a push leaves the
 * file unchanged. */
int error_feedback_state_end(struct error_feedback_state *state, uint64_t n_steps,
                             struct err *err) MUST_CHECK;

#endif
