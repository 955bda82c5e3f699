/*
 * Joins and tables that wait for room in the push log, in the order in which they came: each as it
 * was read, its connection held. Pushes have a line of their own (pushes.h).
 *
 *     asked -> waits -> asked again    the log has room
 *                    -> refused        it has waited for WAITING_MS, and is told why
 *                    -> dropped        its connection closed
 *
 * A held connection is not read, so nobody sees its peer hang up. Without the deadline each peer that asks anew on another
 * one, as clients do after a few seconds, would leave one behind, for as long as the disk stands still.
 */
#ifndef SERVER_WAITING_H
#define SERVER_WAITING_H

#include "server/request.h"

/* Less than the 5 s after which clients give a silent join up: so they hear the reason. */
#define WAITING_MS 3000u

struct waiting {
    struct waiting_request *first, **last; /* owned */
    uint64_t max_ms;
};

/* max_ms: how long each may wait; 0: WAITING_MS. */
void waiting_init(struct waiting *w, uint64_t max_ms);
void waiting_deinit(struct waiting *w);

/* A request has come to *status. Is it to wait, as the log is full (-EAGAIN)? One that has waited is not: it is
 * refused with -EBUSY, and asks again. */
bool waiting_is_wanted(const struct request *r, int *status);

/* Keeps the request, but for its body. loop_ms: now. -ENOMEM: nothing is held. */
int waiting_add(struct waiting *w, const struct request *r, uint64_t loop_ms) MUST_CHECK;

/* The first in line as it was asked, or NULL; its frame is there as long as it stands in line. */
const struct request *waiting_first(const struct waiting *w);

/* Is there a first, and has it waited as long as it may? */
bool waiting_is_over(const struct waiting *w, uint64_t loop_ms);

/* The first has been answered, or is given up: its connection goes on. */
void waiting_leave(struct waiting *w);

/* The connection is gone. */
void waiting_drop(struct waiting *w, const struct connection *c);

/* on_request(owner, request) for each. */
void waiting_each(const struct waiting *w,
                  void (*on_request)(void *owner, const struct request *r), void *owner);

#endif
