/*
 * A push is judged: it is refused, or takes effect. What that means beside the rows: its number,
 * the version, counters, the note of a refusal, its clock's tick.
 *
 * All of it happens at one moment, also for a push whose rows then change in slices: who looks
 * at a row, a clock or a version from then on finds the push done (shard_change.h).
 */
#ifndef SERVER_CORE_SHARD_VERDICT_H
#define SERVER_CORE_SHARD_VERDICT_H

#include "server/core/shard_state.h"

/* May this push be judged now? Else why not: PS_ENOJOIN, PS_EFENCED, PS_ESEQ; or it has been,
 * long ago. */
int shard_verdict_turn(const struct worker *worker, const struct push *push, bool *ret_repeated,
                       struct err *err) MUST_CHECK;

/* Fills *ret, but for what only some answers have. */
void shard_verdict_tell(const struct shard *s, const struct worker *worker,
                        const struct err *err, struct shard_push_result *ret);

/* What has been judged before is told again. */
void shard_verdict_repeat(struct shard *s, const struct worker *worker, const struct push *push,
                          struct shard_push_result *ret);

/* run->fault says why it is not applied. -ENOMEM, -EAGAIN, -EBUSY and what shard_verdict_turn() says judge
 * nothing: its number is still to come. */
void shard_verdict_refuse(struct shard *s, struct shard_run *run, int status);

/* What a journal says was refused, with `status`, is refused again. PS_ECORRUPT: that is no refusal. */
int shard_verdict_refuse_again(struct shard *s, struct shard_run *run, int status) MUST_CHECK;

/* The last that can fail: a copy of what must wait for its clock, rows for blocks of dense tables. -EAGAIN (the
 * journal is full), -ENOMEM, or a refusal. */
int shard_verdict_prepare(struct shard *s, struct shard_run *run) MUST_CHECK;

/* Its rows are found, and no mark is set. Those of s->small are changed by this, those of
 * s->large may be changed from here on. */
void shard_verdict_accept(struct shard *s, struct shard_run *run);

#endif
