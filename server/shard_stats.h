/* Copies what a shard knows about itself into a report (admin/stats.h) that others may read at
 * leisure. */
#ifndef SERVER_SHARD_STATS_H
#define SERVER_SHARD_STATS_H

#include "server/net/connection.h"
#include "server/requests/dispatch.h"
#include "server/shard_wal.h"

struct shard_stats_inputs {
    struct shard *shard;
    struct dispatch *dispatch;
    struct shard_wal *log; /* NULL: nothing is logged */
    const struct reply_queue *replies;
    const struct connection_set *connections;
    uv_loop_t *loop;
    uint32_t shard_number, lease_ms;
    uint64_t memory_max_bytes;
};

/* The report is the caller's: shard_report_free(). */
struct shard_report *shard_stats_make(const struct shard_stats_inputs *in) ON_SHARD;

#endif
