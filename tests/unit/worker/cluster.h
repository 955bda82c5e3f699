/*
 * Servers without a network: a store over shards of server/core in this process, which answers at
 * once. What a test wants to know of them it asks a shard.
 */
#ifndef TESTS_UNIT_WORKER_CLUSTER_H
#define TESTS_UNIT_WORKER_CLUSTER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>

#include "common/memory.h"
#include "server/core/shard.h"
#include "worker/client/cluster_client.h"
#include "worker/client/push_encoder.h"
#include "worker/param_store.h"

#define SHARDS_MAX 3u
#define CLUSTER_KEYS_MAX 24u

struct cluster {
    struct param_store store;
    uint32_t n_shards;
    struct shard *shards[SHARDS_MAX];
    struct pull_deltas *deltas[SHARDS_MAX]; /* of the worker's connection */
    struct delta_memory deltas_memory;
    struct cluster_client_version versions[SHARDS_MAX];
    struct push_encoder *encoder, *other_encoder; /* of the job's worker; of somebody else */
    struct bytes answers[SHARDS_MAX];
    size_t value_bytes[SHARDS_MAX][SECTIONS_MAX];
    struct pull pulls[SHARDS_MAX];
    struct request_set pull_set, push_set;
    struct partition partition; /* of the pull */
    struct push push;
    struct ps_tap tap;
    const struct ps_pull_section *sections;
    uint32_t n, n_tables;
    uint64_t seq, other_seq;
    struct ps_stats stats;
    int fail;             /* what the next call returns */
    bool garbles;         /* answers with state cannot be read */
    long tap_fails_after; /* memory_fail_after() for the tap alone */
};

/* One push of job `job`'s worker to all shards; the tap sees it if it is the store's own. */
void cluster_send(struct cluster *c, const char *job, struct push_encoder *encoder,
                  uint64_t seq, uint64_t clock, const struct ps_push_section *sections,
                  uint32_t n) ON_SHARD;

/* The same of a job beside it, at this clock; no tap sees it. */
void cluster_send_as_other(struct cluster *c, uint64_t clock,
                           const struct ps_push_section *sections, uint32_t n);

/* Keys of a batch, ascending. */
struct cluster_keys {
    uint32_t n;
    uint64_t keys[CLUSTER_KEYS_MAX];
};

/* Few keys come often, and many, from key to key up to `spread` on, seldom. */
struct cluster_keys cluster_draw_keys(uint64_t seed, uint64_t *n_random, uint32_t spread);

/* memory_max_bytes: of each shard; 0: no limit. */
struct cluster *cluster_new(uint32_t n_shards, enum table_spec_mode mode,
                            uint64_t memory_max_bytes);

#endif
