/*
 * Log lines about workers: each one that has joined, left, was declared dead or never came. They are made from the
 * reports of one of the node's shards, because every worker joins all shards.
 */
#ifndef SERVER_WORKER_EVENTS_H
#define SERVER_WORKER_EVENTS_H

#include "common/log_line.h"
#include "common/thread_role.h"
#include "server/admin/stats.h"

struct worker_events;

/* Gets each line; NULL in its place: the log. */
typedef void (*worker_events_on_line)(void *arg, enum log_line_level level, const char *line);

struct worker_events *worker_events_new(worker_events_on_line on_line, void *arg) ON_MAIN;
/* NULL is fine. */
void worker_events_free(struct worker_events *e) ON_MAIN;

/* Called when a node is about to serve: its workers come from checkpoint and log, and have not joined now. Logs a line
 * for each job that has live ones. */
void worker_events_restore(struct worker_events *e, const struct shard_report *report) ON_MAIN;

/* Logs the changes since the last report. Of a worker that joins and leaves between two, only the end is logged. */
void worker_events_update(struct worker_events *e, const struct shard_report *report) ON_MAIN;

#endif
