/*
 * The start of a node: recovers its shards and opens their write-ahead logs.
 *
 *     data found                                     action
 *     this node's own data, in this layout           every shard is recovered (recover_shard.h), and
 *                                                    its log continues where it ended
 *     the same, --at an older state                  every shard is recovered up to there; a new
 *                                                    epoch of the log (timeline.h) begins
 *     other data (--restore), or another layout      the old shards are rebuilt one by one, and
 *                                                    their rows resharded; a new epoch begins
 *     this node's own data, as a standby             every shard is recovered, up to a record at most,
 *                                                    and goes on as its primary's follower
 *     nothing, or --no-restore                       empty shards; with --no-restore, a new epoch
 *
 * A new epoch begins with a checkpoint of its own (server/recovery/timeline.h). Until that is written the epoch before
 * is unchanged, so an interrupted start changes nothing. Then data that the start did not use is archived: newer
 * checkpoints, and logs without a checkpoint. A restart with the same options as the start that began the epoch
 * continues that epoch (start_source.h).
 */
#ifndef SERVER_START_H
#define SERVER_START_H

#include <stdatomic.h>

#include "server/checkpointer.h"
#include "server/settings.h"

/* Progress: the sum of recover_shard_progress of all shards. The start writes it, any thread reads it. */
struct start_progress {
    _Atomic uint64_t n_bytes, n_total_bytes, n_records;
};

struct start_config {
    uv_loop_t *loop;                   /* borrowed: the main thread's, */
    struct mailbox *mailbox;           /* borrowed: and its mailbox */
    struct checkpointer *checkpointer; /* borrowed; NULL without a data directory; idle */
    const _Atomic bool
        *is_to_stop; /* borrowed: the recovery ends early, and no epoch begins; NULL: never */
    struct start_progress *progress; /* borrowed; NULL: no progress is wanted */
    const struct file_ops *files;    /* borrowed */
    const struct settings *settings; /* borrowed */
    uint32_t node, n_nodes,
        n_shards; /* node: of a standby the primary's, whatever --node says */
    struct shard_thread *const *shards; /* borrowed: nothing changes them before `done` */
    bool follows; /* of a standby: without the options at, restore, no-restore */
    const uint64_t *
        keep; /* borrowed, n_shards: the last record to be recovered; UINT64_MAX: all there is */
};

/* err.status 0: n_tables and n_rows of this node are loaded, 0 of them when there was nothing to
 * start from, or it was to stop. PS_ESTOPPING: it was to stop, and what was asked for is not done. */
struct start_result {
    struct err err;
    uint32_t n_tables;
    uint64_t n_rows, n_records;     /* records of logs that were replayed, */
    uint64_t n_log_bytes;           /* and their bytes, if the logs continue */
    uint64_t epoch;                 /* of the logs */
    char from[CHECKPOINT_PATH_MAX]; /* the (first) checkpoint or data directory; "" for none */
};

/* `done` is called once, later, from the loop. */
void start_run(const struct start_config *config,
               void (*done)(void *arg, const struct start_result *result), void *arg) ON_MAIN;

#endif
