/*
 * What a link says to its shard: each function sends one request (or one for each waiting
 * parcel) and notes its number. A failure loses the connection, which is for link_state.h to
 * mend: callers need not look.
 */
#ifndef WORKER_CLIENT_LINK_ASK_H
#define WORKER_CLIENT_LINK_ASK_H

#include "worker/client/link_state.h"

/* These move the link to GREETING, JOINING and LEAVING. */
void link_ask_hello(struct link *l);
void link_ask_join(struct link *l);
void link_ask_leave(struct link *l);

void link_ask_table(struct link *l, struct name *name);
void link_ask_beat(struct link *l);

/* Nothing happens unless the link is READY. */
void link_ask_push(struct link *l, struct parcel *p);
void link_ask_pull(struct link *l);

/* Pushes and pull, in the order in which they were asked for; returns how many pushes had been
 * sent before. */
uint64_t link_ask_all(struct link *l);

#endif
