/*
 * What says that a checkpoint is whole: a small JSON file, written last and renamed into place.
 * Its last line is the crc32c of all bytes before that line, so that a damaged manifest is
 * none.
 */
#ifndef SERVER_STORE_MANIFEST_H
#define SERVER_STORE_MANIFEST_H

#include "common/file.h"
#include "common/status.h"

#define MANIFEST_N_FILES_MAX 1024u
#define MANIFEST_NAME_MAX 64u /* of a shard's file, with NUL */

struct manifest_file {
    uint64_t n_bytes;
    uint32_t crc;
    uint64_t n_rows, version;
};

struct manifest {
    uint64_t number, unix_ms;
    uint32_t node, n_nodes, shards_per_node;
    uint32_t n_files;
    struct manifest_file files[MANIFEST_N_FILES_MAX]; /* of shard 0, 1, 2 ... of the node */
};

/* shard-000.psc */
void manifest_file_name(uint32_t shard_index, char ret_name[static MANIFEST_NAME_MAX]);

/* Writes DIR/MANIFEST.tmp, syncs it and the directory, renames it to MANIFEST, syncs the
 * directory. */
int manifest_write(const struct file_ops *files, const char *dir, const struct manifest *m,
                   struct err *err) MUST_CHECK;

/* -ENOENT when there is none; PS_ECORRUPT and a sentence when it is damaged. */
int manifest_read(const struct file_ops *files, const char *dir, struct manifest *ret,
                  struct err *err) MUST_CHECK;

#endif
