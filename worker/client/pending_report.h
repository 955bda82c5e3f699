/*
 * The newest report of a worker's training (proto/learning.h), on its way to the servers with a heartbeat. One shard of
 * each node gets it, its first, as /stats of every node shows all jobs. A report that was overtaken before it left is
 * merged into the next one; nobody waits for one, and one that is lost on the way is not sent again.
 *
 * One client after another sends the same worker's: the worker's, and then that of the reader which validates when
 * the worker has left. That one names the worker.
 *
 *     the trainer's thread        put, wait
 *     a client's network thread   open, has, take, answered; of a client that reports nothing: NULL
 */
#ifndef WORKER_CLIENT_PENDING_REPORT_H
#define WORKER_CLIENT_PENDING_REPORT_H

#include "proto/message.h"

struct pending_report;

/* NULL without memory. */
struct pending_report *pending_report_new(const char *job, uint32_t rank) MUST_CHECK;
/* No client uses it any more. NULL is fine. */
void pending_report_free(struct pending_report *o);

void pending_report_put(struct pending_report *o, const struct learning_report *report);

/* Returns when every node has answered the newest report, or after timeout_ms. */
void pending_report_wait(struct pending_report *o, uint32_t timeout_ms);

/* A client begins: what was put before is not for it. -ENOMEM. */
int pending_report_open(struct pending_report *o, uint32_t n_nodes) MUST_CHECK;

/* True if the node has not been sent the newest report. */
bool pending_report_has(const struct pending_report *o, uint32_t node);

/* Fills in the report, if there is one for this node. incarnation: of the worker; 0: a reader asks. */
void pending_report_take(struct pending_report *o, uint32_t node, uint64_t incarnation,
                         struct beat *ret);

/* The node has answered a heartbeat. */
void pending_report_answered(struct pending_report *o, uint32_t node);

#endif
