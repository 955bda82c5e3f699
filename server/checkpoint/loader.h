/*
 * A restore point (checkpoint.h) -> shards. Two ways:
 *
 *     loader_load   the shard that wrote the file, whole: tables, rows, membership, held pushes. Same layout only. Then
 *                   its log is replayed, from record `first` + 1 on (wal_replay.h), and replay_end()
 *     loader_reshard   rows and step counts alone, each to the shard that its key routes to, whatever wrote them: of
 *                   each file, or of each node's restore points, one after another. Exact where the files' `first` and
 *                   `through` are the same
 *
 * Files are read once: all that checkpoint_verify() holds is held on the way. After any failure the shard is
 * only good for shard_free(); where checkpoint_is_damage() an older restore point may do.
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
    void (*progress)(void *arg); /* between chunks; NULL is fine */
    /* Of loader_reshard(): only tables of which this is said; NULL: all. */
    bool (*wants)(void *arg, const char *table);
    void *arg;
};

/* File number `shard_index` of the restore point and what it is a delta to, into a new shard, for which
 * checkpoint_is_of() has been asked. Calls replay_begin(); replay_end() is the caller's, behind the log. */
int loader_load(const struct loader_config *config, uint32_t shard_index, struct shard *shard,
                uint64_t now_ms, struct loader_facts *ret, struct err *err) ON_SHARD MUST_CHECK;

/* All files of the restore point: what of it belongs to `shard`, which may have tables and rows of others' already. */
int loader_reshard(const struct loader_config *config, struct shard *shard,
                   struct loader_facts *ret, struct err *err) ON_SHARD MUST_CHECK;

#endif
