/*
 * The files of the newest restore point, for a standby that copies them: all are open from the list on, so that a
 * checkpoint that is removed meanwhile stays readable.
 *
 *     log/EPOCH/BEGINNING, if there is one; shards' files, the oldest checkpoint's first; then the manifests, the
 *     newest one last
 *
 * Names are relative to the data directory.
 */
#ifndef SERVER_STANDBY_FILES_H
#define SERVER_STANDBY_FILES_H

#include <stdbool.h>

#include "common/bytes.h"
#include "common/file.h"
#include "proto/message_replication.h"

#define STANDBY_FILES_MAX 4096u

struct standby_file {
    char name[MESSAGE_FILE_NAME_MAX];
    int fd;
    uint64_t n_bytes;
};

struct standby_files {
    struct standby_file *items; /* owned */
    uint32_t n;
};

/* ret_firsts (n_shards): the record behind which each shard's log is needed; 0: from its beginning. Without a
 * checkpoint there are no files. For the pool. After a failure *ret is closed. */
int standby_files_open(const struct file_ops *files, const char *data_dir, uint64_t timeline,
                       uint32_t n_shards, struct standby_files *ret, uint64_t *ret_firsts,
                       struct err *err) MUST_CHECK;

/* Does the log of this node's shard have all records from `first` on? lost_through: it lacks some up to this one. For
 * the pool. */
int standby_files_has_log(const struct file_ops *files, const char *data_dir, uint64_t timeline,
                          uint32_t shard_index, uint64_t first, uint64_t lost_through,
                          bool *ret, struct err *err) MUST_CHECK;

/* A zeroed one is fine. */
void standby_files_close(const struct file_ops *files, struct standby_files *f);

/* "BYTES NAME", a line each. -ENOMEM. */
int standby_files_list(const struct standby_files *f, struct bytes *ret) MUST_CHECK;

/* NULL: there is no such file. */
const struct standby_file *standby_files_find(const struct standby_files *f, const char *name);

/* Appends up to max_bytes from there. For the pool. -ENOMEM, errors of files. */
int standby_files_read(const struct standby_file *file, uint64_t offset, uint32_t max_bytes,
                       struct bytes *ret) MUST_CHECK;

#endif
