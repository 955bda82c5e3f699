/* What a heartbeat says of its worker's training (server/core/learning.h). */
#ifndef SERVER_REQUESTS_BEAT_LEARNING_H
#define SERVER_REQUESTS_BEAT_LEARNING_H

#include "server/requests/request_context.h"

/* Of numbers that make no sense the peer hears nothing, as its heartbeat renews a lease whatever stands in it: they are
 * ignored and logged. */
void beat_learning_take(struct request_context *x, struct request *r, struct worker *worker,
                        const struct beat *beat) ON_SHARD;

/* A worker that has left validates as a reader, and reports that as itself. PS_EDENIED; PS_ENOJOIN: it is not the one
 * that left. */
int beat_learning_take_reader(struct request_context *x, struct request *r,
                              const struct beat *beat) ON_SHARD MUST_CHECK;

#endif
