/*
 * Manifest of a checkpoint: a small JSON file, written last and renamed into place, so its presence means that
 * the checkpoint is whole. Its last two lines are `"crc32c": "XXXXXXXX"` and `}`: the crc32c of all bytes before
 * them. A corrupt manifest does not count.
 *
 *     field                           content
 *     format, format_version          "psd checkpoint", 2
 *     number                          as in the directory's name
 *     node, nodes, shards_per_node    the node that wrote it, and its cluster
 *     unix_ms                         time of day
 *     base                            the checkpoint that its files are deltas to; 0: all files are full
 *     shards                          of the cluster
 *     map_id                          16 hexadecimal digits
 *     jobs                            name, mode, min_clock (the slowest shard's) of each job: for display
 *     files                           of shard 0, 1, 2 ...: name, bytes, crc32c, rows, version, shard, delta (or full),
 *                                     gone, first, through
 *
 * The crc32c of a file is the footer's first crc, extended over the footer's 56 bytes. Version 1 is still read: it
 * ends after unix_ms and version; its files are of format 1 or 2, and their crc32c is that of the whole file.
 */
#ifndef SERVER_CHECKPOINT_MANIFEST_H
#define SERVER_CHECKPOINT_MANIFEST_H

#include <stdbool.h>

#include "common/file.h"
#include "common/status.h"
#include "server/checkpoint/shard_file.h"

#define MANIFEST_N_FILES_MAX 1024u
#define MANIFEST_N_JOBS_MAX 64u
#define MANIFEST_NAME_MAX 64u /* of a shard's file, with NUL */

/* A job at the time of the checkpoint: for display, and for recovery to a clock. */
struct manifest_job {
    char name[TABLE_SPEC_NAME_MAX];
    enum table_spec_mode mode;
    uint64_t min_clock; /* the slowest shard's */
};

struct manifest {
    uint64_t number, unix_ms;
    uint64_t base; /* the checkpoint that its deltas are deltas to; 0: all files are full */
    uint32_t node, n_nodes, shards_per_node;
    uint32_t n_shards; /* of the cluster; 0: written before files had an identity */
    uint64_t map_id;   /* of the slot map */
    uint32_t n_files, n_jobs;
    struct shard_file_facts files[MANIFEST_N_FILES_MAX]; /* of shard 0, 1, 2 ... of the node */
    struct manifest_job jobs[MANIFEST_N_JOBS_MAX];
};

/* shard-000.psc */
void manifest_file_name(uint32_t shard_index, char ret_name[static MANIFEST_NAME_MAX]);

/* Notes the job's min clock at one shard; the manifest has the smallest. Jobs beyond MANIFEST_N_JOBS_MAX are left
 * out. */
void manifest_note_job(struct manifest *m, const char *name, enum table_spec_mode mode,
                       uint64_t min_clock);

/* Writes DIR/MANIFEST.tmp, syncs it and the directory, renames it to MANIFEST, syncs the
 * directory. */
int manifest_write(const struct file_ops *files, const char *dir, const struct manifest *m,
                   struct err *err) MUST_CHECK;

/* -ENOENT when there is none; PS_ECORRUPT and a sentence when it is damaged. */
int manifest_read(const struct file_ops *files, const char *dir, struct manifest *ret,
                  struct err *err) MUST_CHECK;

#endif
