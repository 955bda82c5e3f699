/*
 * The newest report of a worker's training (proto/learning.h), on its way to the servers with a heartbeat. One shard of
 * each node gets it, its first, as /stats of every node shows all jobs. A report that was overtaken before it left is
 * merged into the next one; nobody waits for one, and one that is lost on the way is not sent again.
 *
 * One client after another sends from the same outbox: the worker's, and then that of the reader which validates when
 * the worker has left. That one names the worker.
 *
 *     the trainer's thread        put, wait
 *     a client's network thread   open, has, take, answered; NULL, a client without an outbox, has nothing
 */
#ifndef WORKER_CLIENT_LEARNING_OUTBOX_H
#define WORKER_CLIENT_LEARNING_OUTBOX_H

#include "proto/message.h"

struct learning_outbox;

/* NULL without memory. */
struct learning_outbox *learning_outbox_new(const char *job, uint32_t rank) MUST_CHECK;
/* No client uses it any more. NULL is fine. */
void learning_outbox_free(struct learning_outbox *o);

void learning_outbox_put(struct learning_outbox *o, const struct learning_report *report);

/* Returns when every node has answered the newest report, or after timeout_ms. */
void learning_outbox_wait(struct learning_outbox *o, uint32_t timeout_ms);

/* A client begins: what was put before is not for it. -ENOMEM. */
int learning_outbox_open(struct learning_outbox *o, uint32_t n_nodes) MUST_CHECK;

/* True if the node has not been sent the newest report. */
bool learning_outbox_has(const struct learning_outbox *o, uint32_t node);

/* Fills in the report, if there is one for this node. incarnation: of the worker; 0: a reader asks. */
void learning_outbox_take(struct learning_outbox *o, uint32_t node, uint64_t incarnation,
                          struct beat *ret);

/* The node has answered a heartbeat. */
void learning_outbox_answered(struct learning_outbox *o, uint32_t node);

#endif
