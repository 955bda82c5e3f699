/*
 * What a node starts from, and how its push logs are opened behind it.
 *
 *     what is found                                  what is done
 *     this node's own data, in this layout           every shard is made again (rebuild.h), and
 *                                                    its log goes on where it ended
 *     the same, --at an older state                  every shard is made again up to there; a new
 *                                                    epoch of the log (epochs.h) begins
 *     other data (--restore), or another layout      the old shards are made again one by one, and
 *                                                    their rows dealt out; a new epoch begins
 *     nothing, or --no-restore                       empty shards; with --no-restore, a new epoch
 *
 * A new epoch stands on a checkpoint of its own (opening.h). A restart that is told the same as the start that began the
 * epoch goes on where it ended.
 */
#ifndef SERVER_RESTORE_H
#define SERVER_RESTORE_H

#include "common/mailbox.h"
#include "server/keeper.h"
#include "server/settings.h"

struct restore;

struct restore_config {
    uv_loop_t *loop;                 /* borrowed: the main thread's, */
    struct mailbox *mailbox;         /* borrowed: and its mailbox */
    struct keeper *keeper;           /* borrowed; NULL without a data directory; idle */
    const bool *is_to_stop;          /* borrowed: no epoch begins any more; NULL: never */
    const struct file_ops *files;    /* borrowed */
    const struct settings *settings; /* borrowed */
    uint32_t n_nodes, n_shards;
    struct shard_thread *const *shards; /* borrowed */
};

/* err.status 0: n_tables and n_rows of this node are loaded, 0 of them when there was nothing to
 * start from, or it was to stop. PS_ESTOPPING: it was to stop, and what was asked for is not done. */
struct restore_result {
    struct err err;
    uint32_t n_tables;
    uint64_t n_rows, n_records;     /* records of logs that were done again, */
    uint64_t n_log_bytes;           /* and their bytes, if the logs go on */
    char from[CHECKPOINT_PATH_MAX]; /* the (first) checkpoint or data directory; "" for none */
};

/* `done` is called once, later, from the loop. */
void restore_start(const struct restore_config *config,
                   void (*done)(void *arg, const struct restore_result *result), void *arg)
    ON_MAIN;

#endif
