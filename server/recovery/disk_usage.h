/*
 * Bytes of a data directory, by purpose. Sizes are looked up by name, so a running psd may write meanwhile; files that
 * cannot be examined count as 0.
 */
#ifndef SERVER_RECOVERY_DISK_USAGE_H
#define SERVER_RECOVERY_DISK_USAGE_H

#include <stdbool.h>

#include "common/file.h"
#include "common/status.h"

struct disk_usage {
    uint64_t checkpoint_bytes, log_bytes; /* without archived files */
    uint64_t archived_bytes;              /* checkpoints and logs that a start has archived */
    uint64_t free_bytes, size_bytes;      /* of the file system, for this process */
    char file_system
        [40]; /* its number on this machine since it booted: two psds with the same one share it; "": not known */
};

/* Bytes of the files of a directory whose names end so; "": of all. */
uint64_t disk_usage_dir(const char *path, const char *end);

/* A log's epoch (timeline.h) that no start continues any more: it is older than the newest one, and has no checkpoint
 * but archived ones. */
int disk_usage_is_archived(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                           bool *ret, struct err *err) MUST_CHECK;

/* The bytes of one epoch's logs that are not, and that are, archived within it (NUMBER.psl.unread). */
void disk_usage_log(const struct file_ops *files, const char *data_dir, uint64_t epoch,
                    uint64_t *ret_bytes, uint64_t *ret_unread_bytes);

/* Those of the segments of one shard's log that hold its records from `from` on. 0: they cannot be measured. */
uint64_t disk_usage_segments(const struct file_ops *files, const char *dir, uint64_t from);

void disk_usage_read(const struct file_ops *files, const char *data_dir,
                     struct disk_usage *ret);

#endif
