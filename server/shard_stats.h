/* Copies the state of a shard into a report (admin/stats.h), which other threads may read at any time. */
#ifndef SERVER_SHARD_STATS_H
#define SERVER_SHARD_STATS_H

#include "server/net/connection.h"
#include "server/requests/dispatch.h"
#include "server/shard_wal.h"

/* Copies of the latencies, up to a minute old: the difference to now is the last minute. */
#define SHARD_STATS_N_KEPT 4u
#define SHARD_STATS_KEPT_EVERY_MS 15000u
struct shard_stats_minute {
    struct histogram
        *kept[SHARD_STATS_N_KEPT]; /* owned, one for each type of request; NULL: none yet */
    uint64_t kept_ms;              /* when the newest was kept, monotonic */
    uint32_t oldest;               /* of kept: the next to go */
};

/* What the reports before have seen of a job's steps. */
struct shard_stats_steps {
    uint64_t run, position;  /* job.run; the sum of its workers' clocks and pushes */
    uint64_t since_ms;       /* it is there since then, monotonic */
    uint64_t unexplained_ms; /* and nothing else says why since then */
};

/* A zeroed one is fine. */
void shard_stats_minute_deinit(struct shard_stats_minute *m);

struct shard_stats_inputs {
    struct shard *shard;
    struct dispatch *dispatch;
    struct shard_wal *log; /* NULL: nothing is logged */
    const struct reply_queue *replies;
    const struct connection_set *connections;
    uv_loop_t *loop;
    struct shard_stats_minute *minute;
    struct shard_stats_steps
        *steps; /* MEMBERSHIP_N_JOBS_MAX of them; borrowed, zeroed at first */
    uint32_t shard_number, lease_ms, park_max_ms;
    uint64_t memory_max_bytes;
    bool follows; /* a standby's: its workers talk to the primary */
};

/* The report is the caller's: shard_report_free(). */
struct shard_report *shard_stats_make(const struct shard_stats_inputs *in) ON_SHARD;

#endif
