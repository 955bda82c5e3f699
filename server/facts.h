/*
 * What the node knows about itself, for readers on other threads: the main thread publishes its
 * own numbers a few times a second, the shards their reports (bulletin.h), and a reader gets
 * both as one struct node_report.
 */
#ifndef SERVER_FACTS_H
#define SERVER_FACTS_H

#include "server/admin/report.h"
#include "server/shard_thread.h"

#define FACTS_N_WAITS_MAX 64u

struct facts;

/* `shards` is borrowed and lives longer than the last reader. */
struct facts *facts_new(struct shard_thread *const *shards, uint32_t n_shards);
void facts_free(struct facts *f);

/* Copies *node and its waits, at most FACTS_N_WAITS_MAX; what it borrows must stay. Its shards
 * and the current time are filled in for each reader. */
void facts_publish(struct facts *f, const struct node_report *node) ON_MAIN;

/* http.h's with_report: calls `use` with everything. `facts`: the struct facts. Any thread. */
void facts_with_report(void *facts, void (*use)(void *arg, const struct node_report *report),
                       void *arg);

#endif
