/*
 * What a start or a tool is told to begin from: the data directory of a node, or one checkpoint in it.
 * Looks at manifests and at the heads of files and logs; nothing of the size of a table is read.
 */
#ifndef SERVER_DURABLE_SOURCE_H
#define SERVER_DURABLE_SOURCE_H

#include "server/durable/rebuild.h"

struct source {
    char data_dir[CHECKPOINT_PATH_MAX]; /* "": a checkpoint that stands in none */
    struct rebuild_at at;               /* job is borrowed */
    bool has_checkpoint, has_log;
    struct checkpoint checkpoint; /* owned; the newest, or the one of `at` */
    uint32_t node, n_nodes, shards_per_node;
    /* The checkpoint's files say all: nothing behind them, no job in lock step whose pushes may wait in them; or it is
     * of an older psd that kept no log. Then loader_deal(), else rebuild_shard() of each of its shards. */
    bool is_exact;
};

/* `path` is a data directory, or DATA_DIR/checkpoints/NUMBER, or such a directory copied elsewhere. An empty or absent data directory has neither
 * checkpoint nor log. Statuses as checkpoint_find() and checkpoint_open(); PS_ECORRUPT: a checkpoint
 * that was taken under load, without its log. */
int source_open(const struct file_ops *files, const char *path, const struct rebuild_at *at,
                void (*report)(void *arg, const char *sentence), void *arg, struct source *ret,
                struct err *err) MUST_CHECK;

/* A zeroed one is fine. */
void source_close(struct source *s);

/* The first of these that was asked for at an older state, as it was; zeros: none. */
struct rebuild_at source_asked(const struct source *sources, uint32_t n_sources);

/* From here on it is the source at that state of a job in lock step (align.h): rebuilt, if it has such a job; what is
 * exact has none. at->job is borrowed. */
void source_go_back(struct source *s, const struct rebuild_at *at);

/* Was it written by the shards of this node, in this layout, so that each can be made again whole? */
bool source_is_of(const struct source *s, uint32_t node, uint32_t n_nodes,
                  uint32_t shards_per_node);

/* Can its shards be made again, by rebuild_shard(), where the files of the checkpoint that it names are damaged? */
bool source_may_be_rebuilt(const struct source *s);

/* Are these n_sources, of `paths`, nodes of one cluster, none of them twice, and is_whole: all of them? PS_ECLUSTER;
 * PS_ENOCHECKPOINT: there is nothing in one of them. */
int source_check_set(const struct source *sources, const char *const *paths, uint32_t n_sources,
                     bool is_whole, struct err *err) MUST_CHECK;

/* Its i'th shard, new and without limits of memory, as it was. */
int source_rebuild(const struct source *s, const struct file_ops *files, uint32_t i,
                   const struct rebuild_config *how, uint64_t now_ms, struct shard **ret,
                   struct rebuild_facts *ret_facts, struct err *err) ON_SHARD MUST_CHECK;

#endif
