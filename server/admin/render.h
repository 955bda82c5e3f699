/*
 * A report as text: JSON for /stats and psctl, Prometheus text for /metrics, and the sentence
 * for /healthz. Pure functions; the text is malloc'ed and the caller's.
 */
#ifndef SERVER_ADMIN_RENDER_H
#define SERVER_ADMIN_RENDER_H

#include "server/admin/stats.h"

#define RENDER_STUCK_MS 5000u /* a report older than this: the shard's loop is stuck */
#define RENDER_DISK_MS \
    10000u /* replies that wait longer for their records to be safe: the disk is slow */

/* `what`: "stats" (everything), "status", "tables", "workers" or "why", as in proto/README.md,
 * "Operators". NULL for another word, or without memory. */
char *render_json(const struct node_report *node, const char *what);

/* What the page hears each second: the node, its totals, jobs and waits, without lists that grow with tables or shards;
 * and the same without jobs and waits. NULL: no memory. */
char *render_live(const struct node_report *node);
char *render_live_short(const struct node_report *node);

/* {"job":NAME,"points":[...]}, oldest first; without points if no shard of this node has a curve of that job. NULL
 * without memory. */
char *render_curve(const struct node_report *node, const char *job);

char *render_metrics(const struct node_report *node);

/* 0 when every shard reported lately and its write-ahead log is whole and can be written, and the last
 * checkpoint did not fail; else fills a sentence and returns -1. */
int render_health(const struct node_report *node, char *ret_sentence, size_t n_bytes);

#endif
