/*
 * One shard in a simulated process: the product's shard and log behind a loop that is played here as
 * server/service.c, server/pushes.c and server/pulls.c do it: one request at a time, large pushes in slices,
 * pulls parked until the clocks allow. Each pull that is answered is held against the twin and the bound.
 */
#ifndef TESTS_SIM_SERVER_H
#define TESTS_SIM_SERVER_H

#include "tests/sim/server_state.h"

void server_init(struct server *s, struct world *world, uint32_t shard, struct disk *disk);
void server_deinit(struct server *s);

/* `core`, taken, is as the log says that ends at *end. What logger_start() answers; `core` is then the caller's. */
int server_start(struct server *s, uint64_t life, struct shard *core, const char *log_dir,
                 const struct log_identity *identity, const struct log_end *end,
                 struct err *err) MUST_CHECK;
/* The process is gone. */
void server_stop(struct server *s);

void server_request(struct server *s, struct net_connection *c, const struct message *m);
void server_closed(struct server *s, struct net_connection *c);

/* Is no push half applied? Then rows are what the twin says. */
bool server_is_settled(const struct server *s);

#endif
