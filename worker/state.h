/*
 * What a run must remember beside the servers' tables: the residuals of lossy codecs, as a file
 * in --state-dir, so that a restart loses none of them.
 *
 * Written when a run is set up (as it was found: this shows whether it can be), before the first
 * push, every --state-every steps, and at an end that the run knows of: the last step, SIGTERM, an
 * error. A run that was killed between its first push and its end is told of by the next one: rows
 * pushed since the last write then have an old residual, a part of which has been sent already.
 */
#ifndef WORKER_STATE_H
#define WORKER_STATE_H

#include "common/file.h"
#include "worker/client/encode.h"
#include "worker/settings.h"

struct state;

/* *ret is NULL without --state-dir. Takes over what an earlier run of this job and rank has left.
 * A damaged file costs a warning, and the run begins owing nothing; one of another job or model,
 * or one that cannot be read or written, is an error. The encoder has all its tables and is
 * borrowed, as the settings are. */
int state_open(const struct file_ops *files, const struct settings *s, struct encoder *e,
               struct state **ret, struct err *err) MUST_CHECK;
void state_free(struct state *state);

/* Steps that earlier runs have made; 0 for NULL. */
uint64_t state_steps_before(const struct state *state);

/* Before a push: the first one marks the file as that of a run that has not ended. NULL is fine,
 * here and below. */
int state_begin(struct state *state, struct err *err) MUST_CHECK;

/* Is it time to write after so many steps, those before included? */
bool state_is_due(const struct state *state, uint64_t n_steps);

/* So many steps are made: writes, if it is time. What fails is a warning;
 * the next write may work. */
void state_stepped(struct state *state, uint64_t n_steps);

/* The end, all that is owed being as of the last push that was handed over. A run that has pushed
 * nothing leaves the file as it was found. */
int state_end(struct state *state, uint64_t n_steps, struct err *err) MUST_CHECK;

#endif
