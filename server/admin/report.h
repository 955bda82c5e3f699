/*
 * What one shard tells the outside about itself: a plain copy that the shard's thread makes a
 * few times a second (shard_thread.c) and that the page, /stats, /metrics, psctl and the
 * watchdog read. Nobody who reads it touches the shard, so a stuck shard shows as an old
 * report, never as a stuck reader.
 */
#ifndef SERVER_ADMIN_REPORT_H
#define SERVER_ADMIN_REPORT_H

#include "common/histogram.h"
#include "proto/frame.h"
#include "server/core/shard.h"

#define REPORT_N_WAITS_MAX 256u

struct report_table {
    struct table_spec spec;
    uint64_t n_rows, n_removed; /* there now; ever removed */
    /* Held: rows with their heads, index, and what counts keys without a row; and a limit of its
     * own, or 0. */
    uint64_t bytes, slab_bytes, index_bytes, sketch_bytes, bytes_max;
    uint64_t row_bytes, payload_bytes; /* of one row, and of that its weights and state */
    uint64_t n_pushes, rows_refused, rows_pulled, rows_pushed;
    /* Pushes of keys not admitted; rows that went, by why. */
    uint64_t rows_unadmitted, rows_evicted, rows_idle, rows_expired, rows_rare;
};

/* Bytes of rows and index beyond weights and optimizer state, of each row; 0 without rows. */
double report_overhead(const struct report_table *table);

struct report_worker {
    char job[SPEC_NAME_MAX], name[64];
    uint32_t rank;
    enum worker_state state;
    uint64_t incarnation, clock, last_seq;
    uint64_t silent_ms; /* since it was last heard of */
};

struct report_job {
    char name[SPEC_NAME_MAX];
    enum spec_mode mode;
    uint32_t bound, n_workers;
    uint64_t min_clock, n_fenced, n_deaths, staleness_violations;
    uint64_t n_lost; /* pushes that had been acknowledged, and were not there after a restart */
    struct histogram staleness;
};

/* What waits now: for what, since when, until when. */
struct report_wait {
    /* "parked pull", "greeting", "worker expected", "worker silent", "checkpoint" */
    char what[32];
    char who[96];                          /* "job criteo, worker 1 (psworker host:pid)" */
    char why[160];                         /* "min clock is 7, needs 12: worker 0 is at 7" */
    uint64_t since_unix_ms, until_unix_ms; /* until 0: no deadline */
};

/* Requests of one frame type. */
struct report_requests {
    uint64_t n, n_refused;
    /* First byte of the frame complete -> reply handed to the socket; of pulls with the time
     * that they were parked. */
    struct histogram latency_ns;
};

/* Counters of the connections that a shard (or the door) serves. */
struct report_net {
    uint64_t connections, connections_total, bytes_in, bytes_out;
    uint64_t malformed_frames;  /* magic, type, crc, lengths: the connection was closed */
    uint64_t refused_requests;  /* answered with a status */
    uint64_t refused_greetings; /* door only */
    uint64_t slow_peers;        /* closed: a frame or greeting not finished in time */
    uint64_t parked_pulls, parked_pulls_total, expired_pulls;
};

/* A shard's push log. Counters and states only: total.c adds them up. */
struct report_log {
    uint64_t is_on;             /* of a total: shards that have one */
    uint64_t appended, durable; /* numbers of records; of a total: their sums */
    uint64_t held_bytes;        /* in memory, as they are not safe yet */
    uint64_t bytes;             /* written since the start */
    uint64_t n_syncs, n_failures;
    uint64_t n_dropped; /* records that a failing disk has cost */
    uint64_t is_failed, is_full, has_gap;
    uint64_t n_waiting; /* replies that wait for a sync, */
    uint64_t waited_ms; /* and the first of them for how long */
};

struct shard_report {
    uint64_t made_unix_ms; /* when */
    uint64_t made_mono_ms; /* the same on the monotonic clock: its age is the shard's health */
    uint32_t shard;        /* global number */
    uint64_t bytes, memory_max_bytes, version; /* bytes: of tables and of held pushes */
    uint64_t tables_bytes;                     /* what the budget counts */
    uint64_t cpu_us;                           /* of the shard's thread, user and system */
    struct shard_counters counters;
    struct shard_refusal last_refusal;
    struct report_net net;
    struct report_requests requests[FRAME_TYPE_END];
    struct report_log log;
    char log_error[200]; /* "" while it works */
    uint32_t n_tables, n_jobs, n_workers, n_waits;
    struct report_table *tables;   /* owned */
    struct report_job *jobs;       /* owned */
    struct report_worker *workers; /* owned */
    struct report_wait *waits;     /* owned */
};

/* What the node as a whole knows. */
struct node_report {
    const char *version, *address, *http_address; /* borrowed */
    const char *durability;                       /* "off" without a data directory */
    uint32_t node, n_nodes, n_shards, shards_per_node;
    uint64_t started_unix_ms, now_unix_ms, now_mono_ms, pid;
    uint64_t rss_bytes, memory_max_bytes, memory_reserve_left_bytes;
    bool ready, stopping;
    struct report_net door;
    uint32_t n_waits;
    const struct report_wait *waits; /* greetings, a checkpoint under way; borrowed */
    uint64_t checkpoints_done, checkpoints_failed;
    uint64_t last_checkpoint_number, last_checkpoint_unix_ms;
    char last_checkpoint_error[200]; /* "" when the last one succeeded */
    /* The one under way: since 0: none; number 0: none yet; until 0: it is late. */
    uint64_t checkpoint_number, checkpoint_since_unix_ms, checkpoint_until_unix_ms;
    /* n_shards of this node, each NULL before its first report; borrowed. */
    const struct shard_report *const *shards;
};

void shard_report_free(struct shard_report *report);

#endif
