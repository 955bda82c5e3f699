/*
 * Checkpoints: each shard writes its tables to one file; the node's manifest, renamed into
 * place last, says that all of them are whole. server/store/README.md gives the formats as byte
 * tables.
 *
 *     DATA_DIR/checkpoints/NUMBER/shard-III.psc   one per shard of this node
 *     DATA_DIR/checkpoints/NUMBER/MANIFEST        JSON: format, number, node, nodes, shards,
 *                                                 files, bytes, crc32c of each
 *
 * NUMBER is 20 digits, one more than the greatest there. A directory without a valid MANIFEST
 * is no checkpoint. A file is a header, then for each table its specification and chunks of
 * rows; every piece carries a crc32c.
 */
#ifndef SERVER_STORE_CHECKPOINT_H
#define SERVER_STORE_CHECKPOINT_H

#include "common/file.h"
#include "common/status.h"
#include "server/core/shard.h"

#define CHECKPOINT_PATH_MAX 1024u

/* What a shard's file turned out to be, for the manifest. */
struct checkpoint_part {
    uint64_t n_bytes;
    uint32_t crc; /* crc32c of the whole file */
    uint64_t n_rows, version;
};

struct checkpoint_id {
    uint64_t number;
    uint32_t node, n_nodes, shards_per_node;
    uint64_t unix_ms;
};

/* The number that a new checkpoint in this data directory gets. Makes the directories, and
 * removes those of checkpoints that were not finished: none may be under way here. */
int checkpoint_next(const struct file_ops *files, const char *data_dir, uint64_t *ret_number,
                    struct err *err) MUST_CHECK;

/* On the shard's thread: writes and syncs this shard's file. `progress(arg)` is called between
 * chunks, and between the syncs of no more than 64 MiB each (it feeds the watchdog). A failure leaves no part that counts. */
int checkpoint_write_shard(const struct file_ops *files, const char *data_dir, uint64_t number,
                           uint32_t shard_index, struct shard *shard, void (*progress)(void *),
                           void *arg, struct checkpoint_part *ret, struct err *err)
    ON_SHARD MUST_CHECK;

/* After all shards: writes, syncs and renames the manifest, then removes all but the newest
 * `keep` checkpoints. What cannot be removed does not fail it, and is tried again after the
 * next one. A failure may come after the rename: then the new checkpoint or the one before is
 * the newest, and both are whole. */
int checkpoint_commit(const struct file_ops *files, const char *data_dir,
                      const struct checkpoint_id *id, const struct checkpoint_part *parts,
                      uint32_t n_parts, uint32_t keep, struct err *err) MUST_CHECK;

/* The directory of the newest checkpoint whose manifest and files are valid (all checksums
 * read). One that is damaged is told to `report` (may be NULL) and skipped. PS_ENOCHECKPOINT
 * when there is none, PS_ECORRUPT when there are some and all are damaged (starting empty would
 * hide a loss); ret_id may be NULL. */
int checkpoint_newest(const struct file_ops *files, const char *data_dir,
                      char ret_dir[CHECKPOINT_PATH_MAX], struct checkpoint_id *ret_id,
                      void (*report)(void *, const char *sentence), void *arg, struct err *err)
    MUST_CHECK;

/* Holds every checksum of one checkpoint directory. */
int checkpoint_verify(const struct file_ops *files, const char *dir,
                      struct checkpoint_id *ret_id, struct err *err) MUST_CHECK;

/* Loads into `shard` those rows of a checkpoint directory that belong to it, whatever number
 * of shards wrote them; makes the tables. Several nodes' checkpoints are loaded one after
 * another. Checksums are read again on the way; after a failure the shard holds some of the
 * rows, and is to be freed. */
int checkpoint_load(const struct file_ops *files, const char *dir, struct shard *shard,
                    void (*progress)(void *), void *arg, struct err *err) ON_SHARD MUST_CHECK;

#endif
