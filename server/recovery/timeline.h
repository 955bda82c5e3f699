/*
 * Timelines of a node's log, as directories:
 *
 *     DATA_DIR/log/EPOCH/shard-III/NUMBER.psl      wal_segment.h
 *                        BEGINNING                 below; epoch 0 has none
 *
 * An epoch is a stretch of log in which every state follows from the previous one without a break. Epoch 0
 * begins with the node's first start. A new epoch begins when a node starts from anything but the end of its
 * log: in another layout, at an older state, with nothing. Its number is that of its first checkpoint, and
 * every checkpoint and segment of it carries the number (map_id of its identity).
 *
 *     number, BEGINNING -> files of its checkpoint -> the manifest -> its logs -> requests are served
 *                   the epoch does not exist       |  it exists
 *
 * So a start that ends before the manifest leaves the previous epoch unchanged. An older epoch stays usable
 * until its checkpoints are removed.
 */
#ifndef SERVER_RECOVERY_TIMELINE_H
#define SERVER_RECOVERY_TIMELINE_H

#include <stdbool.h>

#include "common/file.h"
#include "common/status.h"
#include "server/wal/wal_segment.h"

/* The log directory of one of the node's shards. */
int timeline_log_dir(const char *data_dir, uint64_t epoch, uint32_t shard_index,
                     char ret[static WAL_PATH_MAX], struct err *err) MUST_CHECK;

/* Makes DATA_DIR/log/EPOCH. */
int timeline_make(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                  struct err *err) MUST_CHECK;

/* The directories of its logs: all of them before any log begins, since their number is the layout of a node
 * that has no checkpoint yet. */
int timeline_make_logs(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                       uint32_t n_shards, struct err *err) MUST_CHECK;

/* The epochs that are there, ascending. ret->items is the caller's to free, also on failure. */
struct timeline_list {
    uint64_t *items; /* owned */
    size_t n;
};

int timeline_list(const struct file_ops *files, const char *data_dir, struct timeline_list *ret,
                  struct err *err) MUST_CHECK;

/* The newest existing epoch below `below` (0: of all): it has a manifest, or a log segment, which is written
 * after its first manifest. Archived checkpoints do not count. 0: none is newer than 0. */
int timeline_newest(const struct file_ops *files, const char *data_dir, uint64_t below,
                    uint64_t *ret, struct err *err) MUST_CHECK;

/* Checks that no existing epoch is newer than `epoch`, the one of a restore point. A newer epoch may have
 * acknowledged pushes that an older one does not have: PS_ECORRUPT, with the operator's options. */
int timeline_check(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                   uint64_t below, struct err *err) MUST_CHECK;

/* Shards of this node in an epoch, as far as the directories of their logs say: one behind the last that is there. */
int timeline_n_shards(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                      uint32_t *ret, struct err *err) MUST_CHECK;

/* For a start with options (at, restore ...): protects the logs of epochs below `current` that have no
 * checkpoint, not even an archived one, from removal (log/EPOCH/LEFT), because they are the only copy. Reports
 * each. */
int timeline_preserve(const struct file_ops *files, const char *data_dir, uint64_t current,
                      void (*report)(void *arg, const char *sentence), void *arg,
                      struct err *err) MUST_CHECK;

/* Removes the logs of one epoch, protected ones too, on an operator's request. Files that cannot be removed stay. */
void timeline_remove(const struct file_ops *files, const char *data_dir, uint64_t epoch);

/* Removes the segments of one epoch that a start has archived (NUMBER.psl.unread). */
void timeline_remove_unread(const struct file_ops *files, const char *data_dir, uint64_t epoch);

/* Removes the logs of epochs without any checkpoint, archived ones included; but never logs of `current` and later
 * epochs, nor protected ones. Files that cannot be removed stay for the next call. */
void timeline_remove_unused(const struct file_ops *files, const char *data_dir,
                            uint64_t current);

/*
 * The beginning of a timeline, in a file beside its logs:
 *
 *     DATA_DIR/log/EPOCH/BEGINNING
 *
 *     psd epoch, format 1
 *     above 7                     checkpoints above this one and below EPOCH do not belong to it: a start
 *                                 archives them, as an earlier start may have been interrupted
 *     told                        the start had options; else there is no such line
 *     at 7                        the options, a line each: an automatic restart repeats them, and must not
 *                                 apply them again
 *     crc32c 01234567             of all bytes before this line
 *
 * It is written before the first checkpoint of the epoch, and counts with that checkpoint.
 */
struct timeline_beginning {
    uint64_t above;
    bool has_options; /* the start had options: timeline_preserve() */
    char *options;    /* owned: one a line, or "" if they no longer count */
};

/* Writes and syncs the file as a whole, after timeline_make(). */
int timeline_write_beginning(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                             const struct timeline_beginning *b, struct err *err) MUST_CHECK;

/* Without the file, there were no options and nothing is above. Free with timeline_beginning_deinit(), also on
 * failure. PS_ECORRUPT, also where the disk cannot read it (-EIO). */
int timeline_read_beginning(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                            struct timeline_beginning *ret, struct err *err) MUST_CHECK;

/* A zeroed one is fine. */
void timeline_beginning_deinit(struct timeline_beginning *b);

#endif
