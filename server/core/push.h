/*
 * The push state machine: check, commit or refuse, apply, in slices of rows. shard.h has its interface
 * for requests, push_op in shard_internal.h its states.
 *
 * A push takes effect at one moment, also if its rows change in slices after it: number, version, tick and counters
 * change together, and a reader of its rows finds them changed (push_apply.h). The borders of slices change nothing,
 * except the order of requests for memory when a budget is full, or for admission when keys are admitted by their
 * count.
 */
#ifndef SERVER_CORE_PUSH_H
#define SERVER_CORE_PUSH_H

#include "server/core/shard_internal.h"

/* True while the push is between its beginning and its result. */
static inline bool push_is_running(const struct push_op *op)
{
    return op->phase != PUSH_IDLE && op->phase != PUSH_DONE;
}

/* A push that the log says was applied, or held for its clock. PS_ECORRUPT or -ENOMEM with a sentence:
 * it cannot have been. */
int push_replay_applied(struct shard *s, struct worker *worker, const struct push *push,
                        struct err *err) MUST_CHECK;

/* A push that the log says was refused with `status`. PS_ECORRUPT: no push is refused with that. */
int push_replay_refused(struct shard *s, struct worker *worker, const struct push *push,
                        int status) MUST_CHECK;

/* Frees the scratch of its sections. */
void push_deinit(struct push_op *op);

#endif
