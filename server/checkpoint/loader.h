/*
 * Loads a restore point (checkpoint.h) into shards, in one of two ways:
 *
 *     loader_load      recovers a shard from its own file: tables, rows, membership, held pushes. The layout must be
 *                      the same. The caller then replays the log from record `first` + 1 on (wal_replay.h) and calls
 *                      replay_end()
 *     loader_reshard   loads rows and step counts only, for another layout: each row goes to the shard of its key.
 *                      Called for each node's restore point in turn. Exact if all files have the same `first` and
 *                      `through`
 *
 * Each file is read once, with the checks of checkpoint_verify(). After a failure the shard can only be freed. If
 * checkpoint_is_damage() is true of the status, the caller may try an older restore point with a new shard.
 */
#ifndef SERVER_CHECKPOINT_LOADER_H
#define SERVER_CHECKPOINT_LOADER_H

#include "common/file.h"
#include "server/checkpoint/checkpoint.h"
#include "server/core/shard.h"

struct loader_facts {
    uint64_t first, through; /* of the newest file: records of the shard's log */
    uint64_t version;        /* the shard's at `first` */
    uint64_t n_rows;         /* read, of all files */
    uint64_t n_bytes;
};

struct loader_config {
    const struct file_ops *files;
    const struct checkpoint *checkpoint;
    /* Between chunks; anything but 0 ends the loading with that status. NULL is fine. */
    int (*progress)(void *arg);
    /* Of loader_reshard(): true for the tables to load; NULL: all. */
    bool (*wants)(void *arg, const char *table);
    void *arg;
};

/* Loads file number `shard_index` of the restore point, and the files that it is a delta to, into a new shard. The
 * caller has checked checkpoint_is_of(). Calls replay_begin(); the caller calls replay_end() after the log. */
int loader_load(const struct loader_config *config, uint32_t shard_index, struct shard *shard,
                uint64_t now_ms, struct loader_facts *ret, struct err *err) ON_SHARD MUST_CHECK;

/* Loads from all files of the restore point the rows that belong to `shard`. The shard may already have tables and
 * rows from other restore points. */
int loader_reshard(const struct loader_config *config, struct shard *shard,
                   struct loader_facts *ret, struct err *err) ON_SHARD MUST_CHECK;

#endif
