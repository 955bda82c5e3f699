/*
 * A job's only worker with its cache of rows (param_store_exact_cache.h) before servers without a network
 * (cluster.h): two sparse tables and a dense one, random batches, and each pull held against the
 * servers' own answer.
 */
#ifndef TESTS_UNIT_WORKER_MIRROR_BENCH_H
#define TESTS_UNIT_WORKER_MIRROR_BENCH_H

#include <stdio.h>
#include <string.h>

#include "common/hash.h"
#include "tests/unit/worker/cluster.h"
#include "worker/param_store_exact_cache.h"

#define KEYS_MAX 24u
#define DIM 5u
#define N_FLOATS 37u
#define BLOCK 16u
#define N_TABLES 3u
#define LARGE (UINT64_C(1) << 30)

/* One batch: the same keys in the sparse tables, all blocks of the dense one. */
struct batch {
    uint32_t n;
    uint64_t keys[KEYS_MAX];
};

/* What one pull brings. */
struct rows {
    float emb[KEYS_MAX * DIM], wide[KEYS_MAX], dense[3 * BLOCK];
};

struct setup {
    uint32_t n_shards;
    enum table_spec_mode mode;
    enum table_spec_optim optim;
    enum table_spec_storage storage;
    enum codec_id push, pull;
    uint64_t cache_bytes;
    uint64_t memory_max_bytes;       /* of a server's shard */
    struct table_spec_limits limits; /* of the embedding table */
};

struct bench {
    struct setup setup;
    struct cluster *cluster;
    struct param_store *cache;
    uint64_t seed, n_random, clock;
    uint32_t tables[N_TABLES];
};

static const uint64_t blocks[3] = { 0, 1, 2 };

static inline uint64_t draw(struct bench *b, uint64_t below)
{
    return hash_mix2(b->seed, b->n_random++) % below;
}

static inline void make_table(struct bench *b, uint32_t i, struct table_spec spec)
{
    struct err err;

    spec.optim = b->setup.optim;
    spec.params = table_spec_optim_defaults(spec.optim);
    spec.params.weight_decay = 0.01f;
    spec.storage = b->setup.storage;
    spec.seed = i + 1;
    spec.init = TABLE_SPEC_INIT_UNIFORM;
    spec.init_scale = 0.1f;
    snprintf(spec.name, sizeof spec.name, "job/%u", i);
    assert_int_equal(b->cache->ops->table(b->cache, &spec, &b->tables[i], &err), 0);
}

static inline void bench_init(struct bench *b, struct setup setup, uint64_t seed)
{
    *b = (struct bench){ .setup = setup, .seed = seed };
    b->cluster = cluster_new(setup.n_shards, setup.mode, setup.memory_max_bytes);
    b->cache = param_store_exact_cache_new(
        &b->cluster->store, &(struct param_store_exact_cache_options){
                                .max_bytes = setup.cache_bytes, .mode = setup.mode });
    make_table(b, 0, (struct table_spec){ .dim = DIM, .limits = setup.limits });
    make_table(b, 1, (struct table_spec){ .dim = 1 });
    make_table(
        b, 2,
        (struct table_spec){ .kind = TABLE_SPEC_DENSE, .dim = BLOCK, .n_floats = N_FLOATS });
}

static inline void bench_deinit(struct bench *b)
{
    b->cache->ops->close(b->cache);
}

/* Few keys come often, many seldom. */
static inline struct batch draw_batch(struct bench *b)
{
    struct batch batch = { 0 };
    uint64_t key = 0;

    while (batch.n < KEYS_MAX && draw(b, 12)) {
        key += 1 + draw(b, 2) * draw(b, 60);
        batch.keys[batch.n++] = key * UINT64_C(0x100000001);
    }
    return batch;
}

static inline uint32_t ask(const struct bench *b, const struct batch *batch, struct rows *rows,
                           struct ps_pull_section *ret)
{
    ret[0] = (struct ps_pull_section){ .table = b->tables[0],
                                       .codec = b->setup.pull,
                                       .n_keys = batch->n,
                                       .keys = batch->keys,
                                       .dst = rows->emb };
    ret[1] = ret[0];
    ret[1].table = b->tables[1];
    ret[1].codec = CODEC_FP32;
    ret[1].dst = rows->wide;
    ret[2] = (struct ps_pull_section){
        .table = b->tables[2], .n_keys = 3, .keys = blocks, .dst = rows->dense
    };
    return 3;
}

static inline int pull(struct bench *b, struct param_store *s, const struct batch *batch,
                       struct rows *ret)
{
    struct ps_pull_section sections[N_TABLES];
    uint32_t n = ask(b, batch, ret, sections);
    struct err err;
    int status;

    memset(ret, 0, sizeof *ret);
    status = s->ops->pull_start(s, b->clock, sections, n, &err);
    return status ? status : s->ops->pull_wait(s, &err);
}

static inline void check_pull(struct bench *b, const struct batch *batch)
{
    struct rows got, want;

    assert_int_equal(pull(b, b->cache, batch, &got), 0);
    assert_int_equal(pull(b, &b->cluster->store, batch, &want), 0);
    assert_memory_equal(&got, &want, sizeof got);
}

static inline uint32_t tell(struct bench *b, const struct batch *batch, struct rows *grads,
                            struct ps_push_section *ret)
{
    float *all = grads->emb;

    for (uint32_t i = 0; i < sizeof *grads / sizeof *all; i++)
        all[i] = hash_unit(hash_mix2(b->seed, b->n_random++)) - 0.5f;
    ret[0] = (struct ps_push_section){ .table = b->tables[0],
                                       .codec = b->setup.push,
                                       .topk_fraction = 0.5f,
                                       .n_keys = batch->n,
                                       .keys = batch->keys,
                                       .values = grads->emb };
    ret[1] = ret[0];
    ret[1].table = b->tables[1];
    ret[1].values = grads->wide;
    ret[2] = ret[0];
    ret[2].table = b->tables[2];
    ret[2].n_keys = 3;
    ret[2].keys = blocks;
    ret[2].values = grads->dense;
    return 3;
}

static inline int push(struct bench *b, const struct batch *batch)
{
    struct ps_push_section sections[N_TABLES];
    struct rows grads;
    struct err err;
    uint32_t n = tell(b, batch, &grads, sections);
    int status = b->cache->ops->push(b->cache, b->clock, 8, true, sections, n, &err);

    b->clock += !status;
    return status;
}

static inline void push_of_somebody_else(struct bench *b, const struct batch *batch)
{
    struct ps_push_section sections[N_TABLES];
    struct rows grads;
    uint32_t n = tell(b, batch, &grads, sections);

    enter_shard();
    cluster_send(b->cluster, "other", b->cluster->other_encoder, ++b->cluster->other_seq,
                 b->clock, sections, n);
}

/* Steps, each with the next batch told ahead or not, and reading in between that pushes nothing. */
static inline void train(struct bench *b, uint32_t n_steps)
{
    struct batch batch = draw_batch(b);

    for (uint32_t i = 0; i < n_steps; i++) {
        struct batch next = draw_batch(b), other = draw_batch(b);
        struct ps_pull_section sections[N_TABLES];
        struct rows unused;
        struct err err;
        uint32_t n = ask(b, &next, &unused, sections);

        check_pull(b, &batch);
        if (draw(b, 2))
            assert_int_equal(b->cache->ops->prefetch(b->cache, sections, n, &err), 0);
        assert_int_equal(push(b, &batch), 0);
        if (draw(b, 4) == 0)
            check_pull(b, &other);
        batch = next;
    }
}

static inline struct ps_stats stats_of(const struct bench *b)
{
    struct ps_stats stats;

    b->cache->ops->stats(b->cache, &stats);
    return stats;
}

#endif
