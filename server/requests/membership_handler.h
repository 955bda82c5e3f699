/*
 * JOIN, BEAT and LEAVE: who takes part in a job. A heartbeat also carries suspects from shard to shard, and what its
 * worker reports of its training. Parked pulls are to be tried again after some of these: context->clock_moved.
 */
#ifndef SERVER_REQUESTS_MEMBERSHIP_HANDLER_H
#define SERVER_REQUESTS_MEMBERSHIP_HANDLER_H

#include "server/requests/request_context.h"

/* One incarnation of a worker has at most so many connections to a shard; the next JOIN ends that of its oldest JOIN.
 * A worker of the library has one, and while it reconnects two. */
#define MEMBERSHIP_HANDLER_CONNECTIONS_OF_ONE_MAX 16u

/* REQUEST_LATER: it waits for space in the log, or for the end of a large push. */
int membership_handler_join(struct request_context *x, struct request *r) ON_SHARD MUST_CHECK;
int membership_handler_leave(struct request_context *x, struct request *r) ON_SHARD MUST_CHECK;

int membership_handler_beat(struct request_context *x, struct request *r) ON_SHARD MUST_CHECK;

#endif
