/*
 * The end of a start: every shard is as it is to be, and what comes from here on is written down.
 *
 *     plain                                       opening (shards) -> tidying (pool) -> done
 *     a new epoch   naming (pool) -> saving (keeper) -> opening ...
 *
 * A new epoch stands on a checkpoint of its own (server/durable/epochs.h). Until that is there the epoch before is
 * as it was, so an interrupted start has done nothing. Then what the start has not begun from is set
 * aside: checkpoints that are newer than what it was made of, and logs of which there are none.
 */
#ifndef SERVER_OPENING_H
#define SERVER_OPENING_H

#include "server/keeper.h"
#include "server/settings.h"

struct opening_config {
    uv_loop_t *loop;                 /* borrowed: the main thread's, */
    struct mailbox *mailbox;         /* borrowed: and its mailbox */
    struct keeper *keeper;           /* borrowed; NULL without a data directory; idle */
    const struct file_ops *files;    /* borrowed */
    const struct settings *settings; /* borrowed */
    uint32_t n_nodes, n_shards;
    struct shard_thread *const *shards; /* borrowed: nothing changes them before `done` */
};

struct opening_from {
    bool begins_epoch;
    uint64_t epoch;             /* else: of the logs, */
    const struct log_end *ends; /* and n_shards places where these go on; borrowed until done */
    uint64_t
        above; /* the oldest of the data directory's checkpoints that it was made of; 0: of none */
    const char *told; /* beginning.h; borrowed until done */
    /* The checkpoint that every shard was made of, and its place in its chain; 0: none, or not the same. */
    uint64_t number;
    uint32_t n_deltas;
};

/* err.status 0: n_tables and n_rows are those of the node's shards, and all are published. */
struct opening_result {
    struct err err;
    uint32_t n_tables;
    uint64_t n_rows;
};

/* `done` is called once, later, from the loop. */
void opening_start(const struct opening_config *config, const struct opening_from *from,
                   void (*done)(void *arg, const struct opening_result *result), void *arg)
    ON_MAIN;

#endif
