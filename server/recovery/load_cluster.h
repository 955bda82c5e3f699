/*
 * Loads the data of a cluster's nodes, in any layout, into the shards of another layout. For tools, which
 * have one thread and serve no requests.
 *
 *     data directories -> load_cluster_open -> load_cluster_into -> shards -> shard_file_writer_save(), or queries
 *
 * Each old shard is recovered in memory, resharded, and freed before the next one. Files of an exact
 * checkpoint that one shard takes are read straight into it. Nothing is written.
 */
#ifndef SERVER_RECOVERY_LOAD_CLUSTER_H
#define SERVER_RECOVERY_LOAD_CLUSTER_H

#include "server/recovery/restore_source.h"

#define LOAD_CLUSTER_N_PATHS_MAX 256u

/* WHOLE: the paths name each node of the cluster once; PART: some of the nodes, once each. */
enum load_cluster_extent { LOAD_CLUSTER_WHOLE, LOAD_CLUSTER_PART };

/* All is borrowed until load_cluster_close(). */
struct load_cluster_config {
    const struct file_ops *files;
    const char *const
        *paths;       /* data directories, or checkpoints in them: restore_source_open() */
    uint32_t n_paths; /* 1 to LOAD_CLUSTER_N_PATHS_MAX */
    enum load_cluster_extent extent;
    struct recover_shard_at at;
    const char *const *tables; /* only these; n_tables 0: all */
    uint32_t n_tables;
    void (*report)(void *arg, const char *sentence); /* what is damaged, torn; NULL is fine */
    void *arg;
};

struct load_cluster_facts {
    uint64_t n_records, n_pushes; /* of logs, replayed */
    uint64_t n_bytes;             /* of checkpoints, read */
};

struct load_cluster;

/* Reads manifests and file headers. PS_ENOCHECKPOINT: there is no data; PS_ECLUSTER: these are not the nodes
 * of one cluster; statuses of restore_source_open(). */
int load_cluster_open(const struct load_cluster_config *config, struct load_cluster **ret,
                      struct err *err) MUST_CHECK;

/* Shards per node of the loaded cluster. */
uint32_t load_cluster_shards_per_node(const struct load_cluster *c);

/* Loads into new shards of one layout: to[0], to[1] ...; each takes the keys of its shard number. now_ms: any
 * time. After a failure they are only good for shard_free(). PS_ENOTABLE: a requested table is in no node. */
int load_cluster_into(struct load_cluster *c, struct shard *const *to, uint32_t n_to,
                      uint64_t now_ms, struct load_cluster_facts *ret, struct err *err)
    ON_SHARD MUST_CHECK;

/* Loads the whole cluster into one shard of a cluster of one, without memory limits; free it with
 * shard_free(). */
int load_cluster_one(const struct load_cluster_config *config, uint64_t now_ms,
                     struct shard **ret, struct load_cluster_facts *ret_facts, struct err *err)
    ON_SHARD MUST_CHECK;

/* NULL is fine. */
void load_cluster_close(struct load_cluster *c);

#endif
