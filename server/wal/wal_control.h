/*
 * A shard's control file: facts about its write-ahead log outside of the log's own files, so that removed or truncated
 * log files are noticed.
 *
 *     DATA_DIR/wal-III.control
 *
 *     psd wal control, format 1
 *     epoch 7                     of the log (server/recovery/timeline.h)
 *     segment 153                 the newest one: the number of its first record; 0: not known
 *     durable 190                 all records up to this one were on the disk
 *     closed                      and nothing was written behind it; else there is no such line
 *     crc32c 01234567             of all bytes before this line
 *
 * The log's writer replaces it as a whole: when a segment begins, a second after records became durable at the latest,
 * and when the log is closed. It is never ahead of the log's files, which are synced before. So it may be old, as
 * after a power cut or an older psd, but it was true, and stays true. Without the file nothing is known.
 */
#ifndef SERVER_WAL_WAL_CONTROL_H
#define SERVER_WAL_WAL_CONTROL_H

#include <stdbool.h>

#include "common/file.h"
#include "common/status.h"
#include "server/wal/wal_segment.h"

struct wal_control {
    uint64_t epoch, segment, durable;
    bool is_closed;
};

/* shard_index: on its node. -ENAMETOOLONG. */
int wal_control_path(const char *data_dir, uint32_t shard_index, char ret[static WAL_PATH_MAX],
                     struct err *err) MUST_CHECK;

/* Statuses of the file system. Its new name may be lost in a power cut; the one before is there then. */
int wal_control_write(const struct file_ops *files, const char *path,
                      const struct wal_control *c, struct err *err) MUST_CHECK;

/* *ret zeros: there is no such file. PS_ECORRUPT; statuses of the file system. */
int wal_control_read(const struct file_ops *files, const char *path, struct wal_control *ret,
                     struct err *err) MUST_CHECK;

/* Called when the segment with record `first` is abandoned. Forgets the number of the newest segment, as older ones
 * may have been removed since the abandoned one began, and limits `durable` to below `first`. False: there was nothing
 * to forget. */
bool wal_control_reset(struct wal_control *c, uint64_t first);

/* Before files with records from `first` on are given up, to be written anew: the file forgets these, durably. */
int wal_control_rewind(const struct file_ops *files, const char *path, uint64_t epoch,
                       uint64_t first, struct err *err) MUST_CHECK;

#endif
