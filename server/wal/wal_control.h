/*
 * A shard's control file and mark: facts about its write-ahead log outside of the log's own files, so that removed or
 * truncated log files are noticed.
 *
 *     DATA_DIR/wal-III.control
 *
 *     psd wal control, format 1
 *     epoch 7                     of the log (server/recovery/timeline.h)
 *     segment 153                 the newest one: the number of its first record; 0: not known
 *     durable 190                 all records up to this one were on the disk
 *     closed                      and nothing was written behind it; else there is no such line
 *     mark 89abcdef               the mark file goes on from here; not beside "closed"
 *     crc32c 01234567             of all bytes before this line
 *
 * The log's writer replaces it as a whole: when a segment begins, a second after records became durable at the latest,
 * and when the log is closed. It is never ahead of the log's files, which are synced before. So it may be old, as
 * after a power cut or an older psd, but it was true, and stays true. Without the file nothing is known.
 *
 *     DATA_DIR/wal-III.control.mark: two slots, at byte 0 and at byte 4096
 *
 *     offset  bytes  field
 *          0      8  magic    "PSDMARK" and NUL
 *          8      8  epoch
 *         16      8  durable
 *         24      4  mark     the control file's; a slot with another one says nothing
 *         28      4  crc32c   of bytes 0..27
 *
 * The mark says what is durable after each sync, before anything of it is acknowledged. It is written in place, into
 * the slots in turn, and never synced: that costs a system call. So it outlives psd, and whatever was acknowledged and
 * is missing after a kill is noticed. A power cut may leave an old one; then the control file's number counts. Its name
 * is durable before the control file says "mark", so one that is missing was removed (or an older psd, which did not
 * sync the name, lost it in a power cut). A start logs that and goes on, as without a control file.
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
    uint32_t mark;   /* 0: there is no mark, or none that belongs to this control file */
    int mark_status; /* of what was read: why the mark cannot be, -ENOENT: it is gone */
};

/* shard_index: on its node. -ENAMETOOLONG. */
int wal_control_path(const char *data_dir, uint32_t shard_index, char ret[static WAL_PATH_MAX],
                     struct err *err) MUST_CHECK;

/* Statuses of the file system. Its new name may be lost in a power cut; the one before is there then. */
int wal_control_write(const struct file_ops *files, const char *path,
                      const struct wal_control *c, struct err *err) MUST_CHECK;

/* ret->durable is the mark's, if that is the greater one. *ret zeros: there is no such file. PS_ECORRUPT, also where
 * the disk cannot read it (-EIO); other statuses of the file system. */
int wal_control_read(const struct file_ops *files, const char *path, struct wal_control *ret,
                     struct err *err) MUST_CHECK;

/* PS_ECORRUPT and a sentence, if the mark of what was read is gone or cannot be read. */
int wal_control_check_mark(const struct wal_control *c, const char *path, struct err *err)
    MUST_CHECK;

/* The control files of a data directory, by shard. (*ret)[i] zeros: there is none, or it is damaged; `damaged` gets a
 * sentence for each of the latter, and for each mark that is gone. *ret: the caller's to free, also on failure.
 * Statuses of the file system. */
#define WAL_CONTROL_N_MAX 1024u

int wal_control_read_all(const struct file_ops *files, const char *data_dir,
                         void (*damaged)(void *arg, const char *sentence), void *arg,
                         struct wal_control **ret, uint32_t *ret_n, struct err *err) MUST_CHECK;

/* Zeroes those of epochs before the newest that they name, and before `epoch`: these were left by a layout with more
 * shards, and say nothing. */
void wal_control_keep_newest(struct wal_control *all, uint32_t n, uint64_t epoch);

/* Called when the segment with record `first` is abandoned. Forgets the number of the newest segment, as older ones
 * may have been removed since the abandoned one began, and limits `durable` to below `first`. False: there was nothing
 * to forget. */
bool wal_control_reset(struct wal_control *c, uint64_t first);

/* Before files with records from `first` on are given up, to be written anew: the file forgets these, durably. */
int wal_control_rewind(const struct file_ops *files, const char *path, uint64_t epoch,
                       uint64_t first, struct err *err) MUST_CHECK;

/* --- the mark --- */

/* Makes it, empty, beside the control file, and its name durable; the caller closes it. */
int wal_control_mark_create(const struct file_ops *files, const char *path, int *ret_fd)
    MUST_CHECK;

/* Writes epoch, durable and mark of *c. `n`: 0, 1, 2 ... in the order of the calls. */
int wal_control_mark_write(const struct file_ops *files, int fd, const struct wal_control *c,
                           uint32_t n) MUST_CHECK;

#endif
