/* Writes one shard's file of a checkpoint. */
#ifndef SERVER_STORE_PART_WRITE_H
#define SERVER_STORE_PART_WRITE_H

#include "common/file.h"
#include "server/store/part.h"

/* A slow disk takes long to sync what has piled up in memory, and nobody shows life meanwhile;
 * so it never has more than this, and a chunk, to do at once. */
#define PART_WRITE_SYNC_BYTES (UINT64_C(64) << 20)

/* Writes and syncs the file; the directory that it stands in is the caller's to sync.
 * `progress(arg)` (NULL is fine) is called after each chunk and each sync but the last. After a failure the file is gone, or
 * is left where it cannot be removed. */
int part_write(const struct file_ops *files, const char *path, uint64_t number,
               uint32_t shard_index, struct shard *shard, void (*progress)(void *), void *arg,
               struct part_facts *ret, struct err *err) ON_SHARD MUST_CHECK;

#endif
