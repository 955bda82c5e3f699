/*
 * What the nodes of a cluster hold, in whatever layout, into the shards of another: for tools, which have
 * one thread and serve nobody.
 *
 *     data directories -> collect_open -> collect_into -> shards -> saver_save(), or a look at their rows
 *
 * Each old shard is made again in memory as it was, dealt out, and freed before the next one. Files whose
 * checkpoint says all, and which one shard takes, are read straight into it. Nothing is written.
 */
#ifndef SERVER_DURABLE_COLLECT_H
#define SERVER_DURABLE_COLLECT_H

#include "server/durable/source.h"

#define COLLECT_N_PATHS_MAX 256u

/* Of which nodes? WHOLE: each node of the cluster once; PART: of some of them, once each. */
enum collect_extent { COLLECT_WHOLE, COLLECT_PART };

/* All is borrowed until collect_close(). */
struct collect_config {
    const struct file_ops *files;
    const char *const *paths; /* data directories, or checkpoints in them: source_open() */
    uint32_t n_paths;         /* 1 to COLLECT_N_PATHS_MAX */
    enum collect_extent extent;
    struct rebuild_at at;
    const char *const *tables; /* only these; n_tables 0: all */
    uint32_t n_tables;
    void (*report)(void *arg, const char *sentence); /* what is damaged, torn; NULL is fine */
    void *arg;
};

struct collect_facts {
    uint64_t n_records, n_pushes; /* of logs, done again */
    uint64_t n_bytes;             /* of checkpoints, read */
};

struct collect;

/* Looks at manifests and heads. PS_ENOCHECKPOINT: there is nothing; PS_ECLUSTER: these are not the nodes of
 * one cluster; what source_open() says. */
int collect_open(const struct collect_config *config, struct collect **ret, struct err *err)
    MUST_CHECK;

/* How many shards the nodes have of which the data is. */
uint32_t collect_shards_per_node(const struct collect *c);

/* Into new shards of one layout: to[0], to[1] ...; each takes what its number says. now_ms: any time. On
 * failure they are only good for shard_free(). PS_ENOTABLE: one that was asked for is nowhere. */
int collect_into(struct collect *c, struct shard *const *to, uint32_t n_to, uint64_t now_ms,
                 struct collect_facts *ret, struct err *err) ON_SHARD MUST_CHECK;

/* The whole of it as the one shard of a cluster of one, without limits of memory; shard_free() it. */
int collect_one(const struct collect_config *config, uint64_t now_ms, struct shard **ret,
                struct collect_facts *ret_facts, struct err *err) ON_SHARD MUST_CHECK;

/* NULL is fine. */
void collect_close(struct collect *c);

#endif
