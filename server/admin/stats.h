/*
 * A report of one shard: a plain copy that the shard's thread makes a few times a second (shard_thread.c) and that the
 * page, /stats, /metrics, psctl and the watchdog read. A stuck shard shows as an old report, never as a stuck reader.
 */
#ifndef SERVER_ADMIN_STATS_H
#define SERVER_ADMIN_STATS_H

#include <stdatomic.h>
#include <uv.h>

#include "common/histogram.h"
#include "proto/frame.h"
#include "server/core/shard.h"

#define STATS_N_WAITS_MAX 256u

struct stats_table {
    struct table_spec spec;
    uint64_t n_rows, n_removed; /* there now; ever removed */
    /* Held: rows with their heads, index, and what counts keys without a row; and a limit of its own, or 0. */
    uint64_t bytes, slab_bytes, index_bytes, count_min_bytes, bytes_max;
    uint64_t row_bytes, payload_bytes; /* of one row, and of that its weights and state */
    uint64_t n_pushes, rows_refused, rows_pulled, rows_pushed;
    /* Pushes of keys not admitted; rows that went, by why. */
    uint64_t rows_unadmitted, rows_evicted, rows_idle, rows_expired, rows_rare;
};

/* Bytes of rows and index beyond weights and optimizer state, of each row; 0 without rows. A dense table has few
 * blocks and its free places with it for good: of these it is a block's head alone. */
double stats_overhead(const struct stats_table *table);

struct stats_worker {
    char job[TABLE_SPEC_NAME_MAX], name[64];
    uint32_t rank;
    enum worker_state state;
    uint64_t incarnation, clock, last_seq;
    uint64_t silent_ms; /* since its last message */
    uint64_t n_skipped; /* clocks that the others went on for while it was away */
    bool is_suspected;  /* its lease is over at a shard, and not all shards refuse it yet */
    bool is_given_up;   /* as no worker of the job is heard: DEAD for now */
    bool doubts_itself; /* it says that a shard does not answer it */
    /* Who says that a shard suspects it, and that all refuse it. */
    struct witnesses reporters, agreed;
    struct learning_worker learning;
};

struct stats_job {
    char name[TABLE_SPEC_NAME_MAX];
    enum table_spec_mode mode;
    uint32_t bound, n_workers, n_backups;
    uint64_t min_clock, n_fenced, n_deaths, staleness_violations;
    uint64_t
        parked_ms;   /* that pulls have waited for slower workers, those that wait now, too */
    uint64_t n_lost; /* pushes that had been acknowledged, and were not there after a restart */
    struct histogram staleness;
    struct learning_summary learning;
    struct learning_curve *curve; /* owned; NULL: the shard has none; never in a total */
};

#define STATS_WAIT_MAX 480 /* an address, a few words, and a sentence of the wire */
#define STATS_HEALTH_MAX (STATS_WAIT_MAX + 160)
/* A wait: its subject, its reason, its start and its deadline. */
struct stats_wait {
    char what[32];                         /* "parked pull", "worker silent", "checkpoint" */
    char who[96];                          /* "job criteo, worker 1 (psworker host:pid)" */
    char why[STATS_WAIT_MAX];              /* "min clock is 7, needs 12: worker 0 is at 7" */
    uint64_t since_unix_ms, until_unix_ms; /* until 0: no deadline */
};

/* Requests of one frame type. */
struct stats_requests {
    uint64_t n, n_refused;
    /* First byte of the frame complete -> reply handed to the socket; of pulls with the time
     * that they were parked. */
    struct histogram latency_ns;
    struct histogram minute_ns; /* the same, of the last minute or so; in reports only */
};

/* Counters of the connections that a shard (or the listener) serves. */
struct stats_net {
    uint64_t connections, connections_total, bytes_in, bytes_out;
    uint64_t malformed_frames;   /* magic, type, crc, lengths: the connection was closed */
    uint64_t refused_requests;   /* answered with a status */
    uint64_t refused_handshakes; /* listener only */
    uint64_t slow_peers;         /* closed: a frame or handshake not finished in time */
    uint64_t evicted_peers;      /* closed: idle, and for too long or in the way of another */
    uint64_t greedy_peers; /* closed: held most of --client-memory, or of waiting replies */
    uint64_t held_bytes;   /* of messages and replies, now */
    uint64_t refused_connections, unjoined_connections; /* listener only: no place; open now */
    uint64_t parked_pulls, parked_pulls_total, expired_pulls;
    uint64_t delta_bytes; /* of what workers are known to have (delta_rows.h, pulled_keys.h) */
};

/* A shard's write-ahead log. Counters and states only: stats_total() adds them up. */
struct stats_log {
    uint64_t is_on;             /* of a total: shards that have one */
    uint64_t appended, durable; /* numbers of records; of a total: their sums */
    uint64_t held_bytes;        /* in memory, as they are not safe yet */
    uint64_t bytes;             /* written since the start */
    uint64_t n_syncs, n_failures;
    uint64_t n_dropped; /* records that a failing disk has cost */
    uint64_t is_failed, is_full, has_gap;
    uint64_t
        disk_bytes_per_s; /* what the disk takes, as the last syncs measured it; 0: not known */
    uint64_t
        needed_bytes_per_s; /* where pushes wait for it: what it would have to take, about */
    uint64_t n_pushes_waiting,
        push_wait_us;   /* for the log: now; how long those did that wait no longer */
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
    struct stats_net net;
    struct stats_requests requests[FRAME_TYPE_END];
    struct histogram
        read_wait_ns; /* of requests of peers that have not joined, for their turn */
    struct stats_log log;
    char log_line_error[200]; /* "" while it works */
    uint32_t n_tables, n_jobs, n_workers, n_waits;
    struct stats_table *tables;   /* owned */
    struct stats_job *jobs;       /* owned */
    struct stats_worker *workers; /* owned */
    struct stats_wait *waits;     /* owned */
};

/* Of a data directory (server/disk_monitor.h). */
struct stats_disk {
    bool is_on;                           /* there is one */
    uint64_t checkpoint_bytes, log_bytes; /* without what a start has archived, */
    uint64_t archived_bytes;              /* which is this */
    uint64_t free_bytes, size_bytes;      /* of the file system, */
    char file_system[40];                 /* and its name (disk_usage.h) */
    uint64_t fill_bytes_per_s,   /* by how much free_bytes has shrunk, 0: it has not; */
        others_fill_bytes_per_s, /* of it, what was not for the files above; */
        fill_over_ms;            /* measured over so long; 0: not yet (node_stats.c) */
    uint64_t n_scrubs, scrubbed_bytes, scrubbed_unix_ms; /* the last one's end */
    uint32_t n_damaged; /* files that the last one has found so */
    char damage[200];   /* sentence of the first of them; "": none */
};

/* A start that restores its data. */
struct stats_restore {
    bool is_on;
    uint64_t since_unix_ms;
    uint64_t n_rows;    /* loaded so far, */
    uint64_t n_records; /* and records of the write-ahead log replayed */
    uint64_t n_bytes,
        n_total_bytes; /* read of files; all that there is to be read, 0: not known */
};

#define STATS_RESTORE_TEXT_MAX 160

/* "restoring: 45 % of 2.7 GB, 1234 rows, 99 records of the write-ahead log, for 12 s" */
void stats_restore_text(const struct stats_restore *restore, uint64_t now_unix_ms,
                        char dst[static STATS_RESTORE_TEXT_MAX]);

/* A node and the other psd that holds the same shards (server/replication). */
struct stats_standby {
    bool is_on; /* there is, or was, another one */
    char role[16], state[32];
    char peer[128];       /* its address; "": none is known */
    bool peer_is_refused; /* of a primary: it follows nobody, and no group has it */
    uint64_t term, lag_records, lag_ms;
    bool in_sync;
    bool promote_loses; /* of a standby: psctl promote wants --accept-loss here; */
    bool is_unheard;    /* it was in sync, but has not followed since its own start */
    bool is_missing; /* a standby is known, and is not in sync; with ack no: does not follow */
    /* Between two primaries: a standby that becomes one (`term` is its own already), or a primary that hands over. */
    bool is_rising;
    uint64_t n_differences; /* of a primary: so often its standby has found another row */
    /* Why a primary, which lives, does not want its standby; of the primary with the standby's address; "" */
    char refusal[416];
    uint64_t gone_unix_ms; /* of a primary: its standby is gone since then; 0: it is there */
    char note[200];        /* what operators should know of the two; "": nothing */
    char wait[STATS_WAIT_MAX]; /* why it waits for a person or its peer; "": it does not */
    uint64_t wait_since_unix_ms;
    uint64_t dropped_unix_ms; /* since then the log keeps nothing for it: `note`; 0: it does */
};

/* The service that says who is the primary (server/coordination.h). */
struct stats_coordination {
    bool is_on;
    bool is_away;              /* it does not answer: no standby takes over */
    uint64_t away_unix_ms;     /* since when */
    char service[160];         /* its url */
    char error[256];           /* of its last failure while it is away */
    uint32_t n_takeovers;      /* by a standby itself, in the last ten minutes */
    uint64_t takeover_unix_ms; /* the last one */
    uint64_t patience_ms; /* until it does; more than failover_after_ms if there were many */
    uint64_t failover_after_ms;
    bool has_claim; /* it has one of this node's group: */
    uint64_t term;
    char primary[128], standby[128]; /* standby "": none */
    bool in_sync;
};

/* This node's certificates (server/certificates.h). */
struct stats_tls {
    bool is_on;
    uint64_t own_unix_ms, ca_unix_ms; /* when they expire; of the CA's the first that does */
    const char *fault;                /* tls_fault_text(); NULL: none */
};

/* The report of the node as a whole. */
struct node_report {
    const char *version, *address, *http_address; /* borrowed */
    const char *durability;                       /* "off" without a data directory */
    uint32_t node, n_nodes, n_shards, shards_per_node;
    const char (*nodes)[128]; /* [n_nodes], of the map; borrowed; NULL: not known */
    uint64_t started_unix_ms, clock_unix_ms, clock_mono_ms, pid, lease_ms;
    uint64_t rss_bytes, memory_max_bytes, memory_reserve_left_bytes, client_memory_max_bytes;
    uint64_t virtual_bytes, cpu_us, n_fds, n_fds_max, n_threads; /* of the process */
    bool has_huge_pages; /* the system gives them to this process where it asks for them */
    bool ready, stopping;
    struct stats_restore restore;
    struct stats_standby standby;
    struct stats_coordination coordination;
    struct stats_tls tls;
    struct stats_net listener; /* its refused requests are operators' */
    uint64_t admin_requests;
    uint64_t http_connections,
        http_evicted; /* now; ever cut off: slow, or the oldest of too many */
    uint32_t n_waits;
    const struct stats_wait *waits; /* greetings, a checkpoint under way; borrowed */
    uint64_t checkpoints_done, checkpoints_failed;
    uint64_t last_checkpoint_number, last_checkpoint_unix_ms;
    uint64_t last_checkpoint_bytes, last_checkpoint_rows;
    uint64_t last_checkpoint_took_ms; /* 0: another process wrote it */
    uint64_t checkpoint_every_ms;     /* the setting; 0: none */
    uint64_t log_max_bytes;           /* the settings that bound what psd keeps on the disk */
    uint32_t checkpoints_kept, checkpoint_deltas;
    char last_checkpoint_error[200]; /* "" when the last one succeeded */
    /* The one under way: since 0: none; number 0: none yet; until 0: it is late. */
    uint64_t checkpoint_number, checkpoint_since_unix_ms, checkpoint_until_unix_ms;
    struct stats_disk disk;
    uint32_t metrics_tables; /* that have samples of their own; the others are summed */
    /* n_shards of this node, each NULL before its first report; borrowed. */
    const struct shard_report *const *shards;
};

/* Makes a node_report, calls `use(arg, report)` while it holds whatever keeps the report's pointers alive, and returns.
 * Any thread. */
typedef void (*stats_with_report)(void *node,
                                  void (*use)(void *arg, const struct node_report *report),
                                  void *arg);

void shard_report_free(struct shard_report *report);

/*
 * The sum of a node's shards, in the struct that one shard reports, so that one function renders both. Rows, bytes,
 * requests and refusals are sums. A job's and a worker's clock is the minimum. A table's pushes and a job's deaths,
 * which every shard counts for itself, are the maximum. Learning is that of the shard with the newest report.
 * `shard` and the times are 0. Waits are those of all shards, then the node's own. shard_report_free() frees it.
 */
struct shard_report *stats_total(const struct node_report *node);

/* Workers that are live. */
uint32_t stats_n_live_workers(const struct shard_report *report);

/* Rows of all tables. */
uint64_t stats_n_rows(const struct shard_report *report);

/* --- publication of reports: shard thread -> readers --- */

/* A report that readers share. */
struct published_report {
    struct shard_report *report; /* owned; read-only from now on */
    _Atomic uint32_t n_holders;  /* readers, and the publisher itself */
};

/* The newest report of one shard. Readers hold the report, never the shard; the lock is held only while a pointer
 * is exchanged. */
struct report_publisher {
    uv_mutex_t lock;
    struct published_report *newest; /* NULL before the first */
};

int report_publisher_init(struct report_publisher *p) MUST_CHECK;

/* No thread may still read. */
void report_publisher_deinit(struct report_publisher *p);

/* Takes ownership of the report. */
void report_publisher_publish(struct report_publisher *p, struct shard_report *report);

/* The newest report, unchanged until published_report_release(). NULL before the first. Any thread. */
struct published_report *report_publisher_acquire(struct report_publisher *p);
/* NULL is fine. */
void published_report_release(struct published_report *published);

#endif
