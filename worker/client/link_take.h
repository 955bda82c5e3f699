/*
 * What a link does with the frames that its shard sends.
 */
#ifndef WORKER_CLIENT_LINK_TAKE_H
#define WORKER_CLIENT_LINK_TAKE_H

#include "worker/client/link_state.h"

/* One frame. Anything but 0: it makes no sense, and the connection is to be lost for that
 * reason. */
int link_take(struct link *l, const struct frame_header *h, const uint8_t *head,
              const uint8_t *body) MUST_CHECK;

/* What the shard had judged, by what it said when the worker joined, is no longer waited for. */
void link_take_applied(struct link *l);

/* Nothing more to ask: requests may flow. */
void link_take_ready(struct link *l);

#endif
