/*
 * A node's shards as one: the same struct that one shard reports, holding sums (rows, bytes,
 * requests, refusals), minima (a job's and a worker's clock) and maxima (a table's pushes and a
 * job's deaths, which every shard counts for itself). So one function renders a shard and the
 * whole.
 */
#ifndef SERVER_ADMIN_TOTAL_H
#define SERVER_ADMIN_TOTAL_H

#include "server/admin/report.h"

/* shard_report_free() frees it. `shard` and the times are 0; waits are all the shards', then
 * the node's own. */
struct shard_report *total_new(const struct node_report *node);

/* Workers that are live. */
uint32_t total_n_live(const struct shard_report *report);

/* Rows of all tables. */
uint64_t total_n_rows(const struct shard_report *report);

#endif
