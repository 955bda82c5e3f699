/* A simulated shard's pulls: parked until the clocks allow, each held against the twin and the bound when it is answered. */
#ifndef TESTS_SIM_PULLS_H
#define TESTS_SIM_PULLS_H

#include "tests/sim/server_state.h"

void pulls_ask(struct server *s, struct net_connection *c, struct message *m);

/* Clocks may have moved. */
void pulls_retry(struct server *s);

#endif
