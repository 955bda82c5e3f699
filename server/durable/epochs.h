/*
 * Where the logs of a node stand:
 *
 *     DATA_DIR/log/EPOCH/shard-III/NUMBER.psl      log_segment.h
 *
 * An epoch is a stretch of log in which every state comes from the one before without a break. One
 * begins with the node's first start (0), and whenever a node starts from something else than the end
 * of what it had: in another layout, at an older state, with nothing. It has the number of the
 * checkpoint that it begins with, which is written before anybody is served; and every checkpoint and
 * segment of it says so (map_id of its identity). So a start that did not come to its end leaves the
 * epoch before as it was, and what an older one has left stays of use until its checkpoints
 * are gone.
 */
#ifndef SERVER_DURABLE_EPOCHS_H
#define SERVER_DURABLE_EPOCHS_H

#include "common/file.h"
#include "common/status.h"
#include "server/log/log_segment.h"

/* Of one of the node's shards. */
int epochs_log_dir(const char *data_dir, uint64_t epoch, uint32_t shard_index,
                   char ret[static LOG_PATH_MAX], struct err *err) MUST_CHECK;

/* Makes DATA_DIR/log/EPOCH. */
int epochs_make(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                struct err *err) MUST_CHECK;

/* The epochs that are there, ascending. ret->items is the caller's to free, also on failure. */
struct epochs_list {
    uint64_t *items; /* owned */
    size_t n;
};

int epochs_list(const struct file_ops *files, const char *data_dir, struct epochs_list *ret,
                struct err *err) MUST_CHECK;

/* The newest epoch with a record in the log of one of its shards; 0: none is newer than 0. */
int epochs_newest(const struct file_ops *files, const char *data_dir, uint64_t *ret,
                  struct err *err) MUST_CHECK;

/* How many shards of this node have a log in an epoch. */
int epochs_n_shards(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                    uint32_t *ret, struct err *err) MUST_CHECK;

/* Removes the logs of epochs of which no checkpoint is left, but never those of `current` and later
 * ones. What cannot be removed stays for the next time. */
void epochs_tidy(const struct file_ops *files, const char *data_dir, uint64_t current);

#endif
