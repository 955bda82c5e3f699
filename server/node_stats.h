/*
 * The node's report for readers on other threads. A few times a second the main thread publishes its own numbers, and
 * the shards publish their reports (server/admin/stats.h). A reader gets both as one struct node_report.
 */
#ifndef SERVER_NODE_STATS_H
#define SERVER_NODE_STATS_H

#include "server/admin/stats.h"
#include "server/settings.h"
#include "server/shard_thread.h"

#define NODE_STATS_N_WAITS_MAX 64u

struct node_stats;

/* What does not change while psd runs; the rest is 0. Strings are borrowed. */
struct node_report node_stats_first(const struct settings *s, const struct hello_reply *map);

/* `shards` is borrowed and lives longer than the last reader. */
struct node_stats *node_stats_new(struct shard_thread *const *shards, uint32_t n_shards);
void node_stats_free(struct node_stats *s);

/* Copies *node and its waits, at most NODE_STATS_N_WAITS_MAX; pointers that it borrows must stay valid. Its shards and
 * the current time are filled in for each reader. */
void node_stats_publish(struct node_stats *s, const struct node_report *node) ON_MAIN;

/* A stats_with_report: calls `use` with everything. `stats`: the struct node_stats. Any thread. */
void node_stats_with_report(void *stats,
                            void (*use)(void *arg, const struct node_report *report),
                            void *arg);

/* Rows that the shards hold, as their newest reports say. */
uint64_t node_stats_n_rows(const struct node_stats *s);

#endif
