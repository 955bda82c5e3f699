/*
 * A restore source: the data directory of a node, or one checkpoint in it, from which a start or a tool
 * begins. It reads manifests and the headers of files and logs, never whole tables.
 */
#ifndef SERVER_RECOVERY_RESTORE_SOURCE_H
#define SERVER_RECOVERY_RESTORE_SOURCE_H

#include "server/recovery/recover_shard.h"

struct restore_source {
    char data_dir[CHECKPOINT_PATH_MAX]; /* "": a checkpoint that stands in none */
    struct recover_shard_at at;         /* job is borrowed */
    bool has_checkpoint, has_log;
    struct checkpoint checkpoint; /* owned; the newest, or the one of `at` */
    uint32_t node, n_nodes, shards_per_node;
    /* The checkpoint's files are complete: they need no log, and no lock-step job can have held pushes in them; or
     * an older psd without a log wrote them. Then loader_reshard(), else recover_shard_run() of each shard. */
    bool is_exact;
};

/* `path` is a data directory, or DATA_DIR/checkpoints/NUMBER, or such a directory copied elsewhere. An empty
 * or absent data directory has neither checkpoint nor log. Statuses as checkpoint_find() and
 * checkpoint_open(); PS_ECORRUPT: a checkpoint that was taken under load, without its log. */
int restore_source_open(const struct file_ops *files, const char *path,
                        const struct recover_shard_at *at,
                        void (*report)(void *arg, const char *sentence), void *arg,
                        struct restore_source *ret, struct err *err) MUST_CHECK;

/* A zeroed one is fine. */
void restore_source_close(struct restore_source *s);

/* The first source that was requested at an older state, as requested; zeros: none. */
struct recover_shard_at restore_source_requested(const struct restore_source *sources,
                                                 uint32_t n_sources);

/* Sets the source to that state of a lock-step job (reshard.h): recovered if it has such a job; an exact
 * source has none. at->job is borrowed. */
void restore_source_rewind(struct restore_source *s, const struct recover_shard_at *at);

/* True if the shards of this node wrote it, in this layout, so each shard can be recovered whole. */
bool restore_source_is_of(const struct restore_source *s, uint32_t node, uint32_t n_nodes,
                          uint32_t shards_per_node);

/* *ret: psd has run there, but nothing was ever kept: no table, no job, no record of a log. False where this cannot be
 * known, as with damage, and for a data directory in which psd has never run. Statuses of the file system. */
int restore_source_is_unused(const struct restore_source *s, const struct file_ops *files,
                             bool *ret, struct err *err) MUST_CHECK;

/* True if recover_shard_run() can recover its shards although files of its checkpoint are corrupt. */
bool restore_source_is_recoverable(const struct restore_source *s);

/* Checks that the n_sources, of `paths`, are different nodes of one cluster and, with is_whole, all of them.
 * PS_ECLUSTER; PS_ENOCHECKPOINT: one of them has no data. */
int restore_source_check_set(const struct restore_source *sources, const char *const *paths,
                             uint32_t n_sources, bool is_whole, struct err *err) MUST_CHECK;

/* Recovers its i'th shard into a new shard without memory limits. */
int restore_source_recover(const struct restore_source *s, const struct file_ops *files,
                           uint32_t i, const struct recover_shard_config *how, uint64_t now_ms,
                           struct shard **ret, struct recover_shard_facts *ret_facts,
                           struct err *err) ON_SHARD MUST_CHECK;

#endif
