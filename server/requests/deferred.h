/*
 * Joins, tables and leaves that wait for space in the write-ahead log, or for the end of a large push, in the order of
 * arrival: each as it was received, its connection held. Pushes have a queue of their own (push_handler.h).
 *
 *     received -> waits -> handled again    the log has space, or a push has ended
 *                       -> refused          it has waited for DEFERRED_MS: -EBUSY
 *                       -> dropped          its connection closed
 *
 * A held connection is not read, so a peer that hangs up is not noticed. Clients ask anew on another connection after a
 * few seconds; without the deadline, each of these would stay here for as long as the disk stands still.
 */
#ifndef SERVER_REQUESTS_DEFERRED_H
#define SERVER_REQUESTS_DEFERRED_H

#include "server/net/connection.h"

/* Less than the 5 s after which clients give up a join: so they get the reason. */
#define DEFERRED_MS 3000u

struct deferred {
    struct deferred_request *first, **last; /* owned */
    uint64_t max_ms;
};

/* max_ms: how long each may wait; 0: DEFERRED_MS. */
void deferred_init(struct deferred *q, uint64_t max_ms);
void deferred_deinit(struct deferred *q);

/* True if a request with this result is to wait (-EAGAIN). A request that has waited is not: its
 * *status becomes -EBUSY, and its client asks again. */
bool deferred_is_wanted(const struct request *r, int *status);

/* Keeps the request, but for its body. loop_ms: now. -ENOMEM: nothing is held. */
int deferred_add(struct deferred *q, const struct request *r, uint64_t loop_ms) MUST_CHECK;

/* The first as it was received, or NULL; its frame stays as long as it is queued. */
const struct request *deferred_first(const struct deferred *q);

/* True if there is a first and it has waited as long as it may. */
bool deferred_is_over(const struct deferred *q, uint64_t loop_ms);

/* Removes the first, which has been answered or refused; releases its connection. */
void deferred_leave(struct deferred *q);

/* Removes the deferred requests of a connection that is closed. */
void deferred_drop(struct deferred *q, const struct connection *c);

#endif
