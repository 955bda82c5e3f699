/*
 * What a node starts from: finds the checkpoint (or the ones that --restore names, one of each
 * node that wrote them), holds all their checksums, and has every shard load the rows that are
 * its own.
 */
#ifndef SERVER_RESTORE_H
#define SERVER_RESTORE_H

#include "common/mailbox.h"
#include "server/settings.h"
#include "server/shard_thread.h"
#include "server/store/checkpoint.h"

struct restore;

struct restore_config {
    uv_loop_t *loop;                 /* borrowed: the main thread's, */
    struct mailbox *mailbox;         /* borrowed: and its mailbox */
    const struct file_ops *files;    /* borrowed */
    const struct settings *settings; /* borrowed */
    uint32_t n_nodes, n_shards;
    struct shard_thread *const *shards; /* borrowed */
};

/* status 0: n_tables and n_rows of this node are loaded, 0 of them when there was nothing to
 * start from. */
struct restore_result {
    struct err err;
    uint32_t n_tables, n_dirs;
    uint64_t n_rows;
    char dir[CHECKPOINT_PATH_MAX]; /* the (first) directory; "" for none */
};

/* `done` is called once, later, from the loop. */
void restore_start(const struct restore_config *config,
                   void (*done)(void *arg, const struct restore_result *result), void *arg)
    ON_MAIN;

#endif
