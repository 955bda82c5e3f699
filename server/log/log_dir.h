/*
 * The directory of a shard's log as a whole: made, made durable, set aside, cut. Stateless; whoever writes
 * a segment in it does so beside (log_writer.h).
 *
 * All answer what files do, with a sentence.
 */
#ifndef SERVER_LOG_LOG_DIR_H
#define SERVER_LOG_LOG_DIR_H

#include "common/file.h"
#include "common/status.h"

/* Makes it; its parent is there. */
int log_dir_make(const struct file_ops *files, const char *dir, struct err *err) MUST_CHECK;

/* Its own name, and those of its segments, are durable. */
int log_dir_sync_names(const struct file_ops *files, const char *dir, struct err *err)
    MUST_CHECK;

/* Syncs the segments that may hold records above `durable`, up to `last`: also those that nobody has
 * open any more. */
int log_dir_sync(const struct file_ops *files, const char *dir, uint64_t durable, uint64_t last,
                 struct err *err) MUST_CHECK;

/* Renames the segments that begin with record `first` or later to NAME.unread, the last one first: what is
 * left has no hole, wherever this stops. */
int log_dir_set_aside(const struct file_ops *files, const char *dir, uint64_t first,
                      struct err *err) MUST_CHECK;

/* Removes the segments that hold only records below `number`, in ascending order: what is left has no
 * hole, wherever this stops. Then those that were set aside and begin below it. */
int log_dir_cut(const struct file_ops *files, const char *dir, uint64_t number, struct err *err)
    MUST_CHECK;

#endif
