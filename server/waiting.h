/*
 * Joins and tables that wait for room in the push log, in the order in which they came: each as it
 * was read, its connection held. Pushes have a line of their own (pushes.h).
 *
 *     asked -> waits -> asked again, when the log has room
 *                    -> dropped       its connection closed
 */
#ifndef SERVER_WAITING_H
#define SERVER_WAITING_H

#include "server/request.h"

struct waiting {
    struct waiting_request *first, **last; /* owned */
};

void waiting_init(struct waiting *w);
void waiting_deinit(struct waiting *w);

/* Keeps the request, but for its body. -ENOMEM: nothing is held. */
int waiting_add(struct waiting *w, const struct request *r) MUST_CHECK;

/* The first in line as it was asked, or NULL; its frame is there as long as it stands in line. */
const struct request *waiting_first(const struct waiting *w);

/* The first has been answered, or is given up: its connection goes on. */
void waiting_leave(struct waiting *w);

/* The connection is gone. */
void waiting_drop(struct waiting *w, const struct connection *c);

/* on_request(owner, request) for each. */
void waiting_each(const struct waiting *w,
                  void (*on_request)(void *owner, const struct request *r), void *owner);

#endif
