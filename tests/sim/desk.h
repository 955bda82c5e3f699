/* What all requests of a simulated shard need: replies, who asks, and lists of what waits. */
#ifndef TESTS_SIM_DESK_H
#define TESTS_SIM_DESK_H

#include "tests/sim/server_state.h"

struct server_waiting {
    struct server_waiting *next;
    struct net_connection *from;
    struct message message;
};

/* The reply to *m, which it becomes: at once, or when what it promises is safe. */
void desk_answer(struct server *s, struct net_connection *c, struct message *m, int status);

/* The worker that speaks here; its lease is renewed. */
int desk_find_worker(struct server *s, const struct net_connection *c, struct worker **ret);

/* Adds to the end of a list; takes away what a connection has there, or all (NULL). */
void desk_keep(struct server_waiting **at, struct net_connection *c, const struct message *m);
void desk_drop(struct server_waiting **at, const struct net_connection *c);

#endif
