/* Writes one shard's file of a checkpoint. */
#ifndef SERVER_STORE_PART_WRITE_H
#define SERVER_STORE_PART_WRITE_H

#include "common/file.h"
#include "server/store/part.h"

/* Writes and syncs the file; the directory that it stands in is the caller's to sync.
 * `progress(arg)` (NULL is fine) is called between chunks. After a failure the file is gone, or
 * is left where it cannot be removed. */
int part_write(const struct file_ops *files, const char *path, uint64_t number,
               uint32_t shard_index, struct shard *shard, void (*progress)(void *), void *arg,
               struct part_facts *ret, struct err *err) ON_SHARD MUST_CHECK;

#endif
