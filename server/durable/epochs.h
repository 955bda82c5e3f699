/*
 * Where the logs of a node stand:
 *
 *     DATA_DIR/log/EPOCH/shard-III/NUMBER.psl      log_segment.h
 *                        BEGINNING                 beginning.h; epoch 0 has none
 *
 * An epoch is a stretch of log in which every state comes from the one before without a break. One
 * begins with the node's first start (0), and whenever a node starts from something else than the end
 * of what it had: in another layout, at an older state, with nothing. It has the number of the
 * checkpoint that it begins with; and every checkpoint and segment of it says so (map_id of its
 * identity).
 *
 *     its number, its BEGINNING -> its checkpoint's files -> the manifest -> its logs -> somebody is served
 *                   there is no such epoch                 |  it stands
 *
 * So a start that does not come as far as the manifest leaves the epoch before as it was, and what an
 * older one has left stays of use until its checkpoints are gone.
 */
#ifndef SERVER_DURABLE_EPOCHS_H
#define SERVER_DURABLE_EPOCHS_H

#include "common/file.h"
#include "common/status.h"
#include "server/log/log_segment.h"

/* DATA_DIR/log/EPOCH */
int epochs_dir(const char *data_dir, uint64_t epoch, char ret[static LOG_PATH_MAX],
               struct err *err) MUST_CHECK;

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

/* The newest epoch below `below` (0: of all) that stands: there is a manifest of it, or a segment of a log, which comes
 * behind its first manifest. Those that were set aside do not count. 0: none is newer than 0. */
int epochs_newest(const struct file_ops *files, const char *data_dir, uint64_t below,
                  uint64_t *ret, struct err *err) MUST_CHECK;

/* Is none of those newer than `epoch`, to which a restore point belongs? Somebody may have been served in a newer one, and
 * what an older one leads to is not what was acknowledged last: PS_ECORRUPT, with what a person can do. */
int epochs_check(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                 uint64_t below, struct err *err) MUST_CHECK;

/* How many shards of this node have a log in an epoch. */
int epochs_n_shards(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                    uint32_t *ret, struct err *err) MUST_CHECK;

/* For a start that was told to begin from something else: marks the logs of epochs below `current` of which there is no
 * checkpoint, not even one that was set aside (log/EPOCH/LEFT), as not to be removed: nobody else has what they say. Each
 * is told to `report`. */
int epochs_leave(const struct file_ops *files, const char *data_dir, uint64_t current,
                 void (*report)(void *arg, const char *sentence), void *arg, struct err *err)
    MUST_CHECK;

/* Removes the logs of epochs of which no checkpoint is left, nor one that was set aside, but never those of `current` and
 * later ones, and none that is marked. What cannot be removed stays for the next time. */
void epochs_tidy(const struct file_ops *files, const char *data_dir, uint64_t current);

#endif
