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

#include "common/mem.h"
#include "server/core/shard.h"
#include "worker/client/encode.h"
#include "worker/client/follow.h"
#include "worker/store.h"

#define SHARDS_MAX 3u

struct cluster {
    struct store store;
    uint32_t n_shards;
    struct shard *shards[SHARDS_MAX];
    struct follow follow[SHARDS_MAX];
    struct encoder *encoder, *other_encoder; /* of the job's worker; of somebody else */
    struct buf bufs[SHARDS_MAX], push_bufs[SHARDS_MAX], answers[SHARDS_MAX];
    size_t value_bytes[SHARDS_MAX][SECTIONS_MAX];
    struct pull pulls[SHARDS_MAX];
    struct push pushes[SHARDS_MAX];
    struct ps_tap tap;
    const struct ps_pull_section *sections;
    uint32_t n, n_tables;
    uint64_t seq, other_seq;
    struct ps_stats stats;
    int fail;             /* what the next call returns */
    bool garbles;         /* answers with state cannot be read */
    long tap_fails_after; /* mem_fail_after() for the tap alone */
};

static inline struct cluster *cluster_of(const struct store *s)
{
    return (struct cluster *)(void *)(uintptr_t)s;
}

static inline int cluster_failure(struct cluster *c, struct err *err)
{
    int status = c->fail;

    c->fail = 0;
    return status ? err_set(err, status, "%s", status_text(status)) : 0;
}

static inline int cluster_table(struct store *s, const struct table_spec *spec, uint32_t *ret,
                                struct err *err)
{
    struct cluster *c = cluster_of(s);

    enter_shard();
    for (uint32_t i = 0; i < c->n_shards; i++)
        assert_int_equal(shard_table_ask(c->shards[i], spec, false, ret, err), 0);
    assert_int_equal(*ret, c->n_tables);
    assert_int_equal(encoder_add_table(c->encoder, c->n_tables, spec), 0);
    assert_int_equal(encoder_add_table(c->other_encoder, c->n_tables++, spec), 0);
    return 0;
}

/* At once: a push that is sent later comes later. */
static inline int cluster_answer(struct cluster *c, uint32_t shard, struct err *err) ON_SHARD
{
    struct shard_pull_run run;
    size_t planned[SECTIONS_MAX], n_bytes = 0;
    struct buf *out = &c->answers[shard];
    uint8_t *answer;
    int status = shard_pull_plan(c->shards[shard], &c->pulls[shard], SIZE_MAX, planned, err);

    for (uint32_t i = 0; i < c->n && !status; i++)
        n_bytes += planned[i];
    buf_consume(out, buf_len(out));
    answer = buf_reserve(out, n_bytes + 1);
    if (status || !answer)
        return status ? status : err_set(err, -ENOMEM, "no memory");
    shard_pull_begin(c->shards[shard], NULL, &c->pulls[shard], answer, &run);
    while (!run.done && !status)
        status = shard_pull_more(c->shards[shard], &run, err);
    for (uint32_t i = 0; i < c->n && !status; i++) {
        c->value_bytes[shard][i] = run.value_bytes[i];
        assert_true(run.value_bytes[i] <= planned[i]);
    }
    follow_pulled(&c->follow[shard], run.version);
    return status;
}

static inline int cluster_pull_start(struct store *s, uint64_t clock,
                                     const struct ps_pull_section *sections, uint32_t n,
                                     struct err *err)
{
    struct cluster *c = cluster_of(s);
    int status = cluster_failure(c, err);

    (void)clock;
    enter_shard();
    if (status)
        return status;
    for (uint32_t i = 0; i < c->n_shards; i++)
        buf_consume(&c->bufs[i], buf_len(&c->bufs[i]));
    c->sections = sections;
    c->n = n;
    c->stats.pulls++;
    for (uint32_t i = 0; i < n; i++)
        c->stats.rows_pulled += sections[i].n_keys;
    status = encoder_pull(c->encoder, sections, n, c->bufs, c->pulls);
    for (uint32_t i = 0; i < c->n_shards && !status; i++)
        status = cluster_answer(c, i, err);
    return status ? err_set(err, status, "pull: %s", status_text(status)) : 0;
}

static inline int cluster_decode(struct cluster *c, uint32_t shard)
{
    const uint8_t *values[SECTIONS_MAX], *at = c->answers[shard].bytes;

    for (uint32_t i = 0; i < c->n; i++) {
        values[i] = at;
        at += c->value_bytes[shard][i];
        if (c->garbles && c->sections[i].sink)
            c->value_bytes[shard][i]--;
    }
    return encoder_pulled(c->encoder, c->sections, c->n, shard, values, c->value_bytes[shard]);
}

static inline int cluster_pull_wait(struct store *s, struct err *err)
{
    struct cluster *c = cluster_of(s);
    int status = cluster_failure(c, err);

    for (uint32_t i = 0; i < c->n_shards && !status; i++)
        status = cluster_decode(c, i);
    return status;
}

/* One push of job `job`'s worker to all shards; the tap sees it if it is the store's own. */
static inline void cluster_send(struct cluster *c, const char *job, struct encoder *encoder,
                                uint64_t seq, uint64_t clock,
                                const struct ps_push_section *sections, uint32_t n) ON_SHARD
{
    bool own = encoder == c->encoder;

    for (uint32_t i = 0; i < c->n_shards; i++)
        buf_consume(&c->push_bufs[i], buf_len(&c->push_bufs[i]));
    assert_int_equal(encoder_push(encoder, sections, n, c->push_bufs, c->pushes), 0);
    for (uint32_t i = 0; i < c->n_shards; i++) {
        struct push *push = &c->pushes[i];
        struct shard_push_result result;
        struct worker *worker;
        uint64_t n_versions = 1;

        push->seq = seq;
        push->clock = clock;
        push->n_samples = 8;
        push->tick = n != 1 || sections[0].op != SECTION_ASSIGN;
#ifdef PS_FAULTS
        mem_fail_after(c->tap_fails_after);
#endif
        if (own && c->tap.push)
            n_versions = c->tap.push(c->tap.arg, i, push);
#ifdef PS_FAULTS
        mem_fail_after(-1);
#endif
        assert_int_equal(roster_find(shard_roster(c->shards[i]), job, 0, 1, 0, &worker), 0);
        assert_int_equal(shard_push(c->shards[i], worker, push, 0, &result), 0);
        assert_int_equal(result.status, 0);
        c->stats.rows_refused += result.rows_refused;
        if (own)
            c->stats.foreign += follow_pushed(&c->follow[i], n_versions, result.version);
    }
}

static inline int cluster_push(struct store *s, uint64_t clock, uint32_t n_samples, bool tick,
                               const struct ps_push_section *sections, uint32_t n,
                               struct err *err)
{
    struct cluster *c = cluster_of(s);
    int status = cluster_failure(c, err);

    (void)n_samples;
    (void)tick;
    enter_shard();
    if (!status)
        cluster_send(c, "job", c->encoder, ++c->seq, clock, sections, n);
    return status;
}

static inline int cluster_done(struct store *s, struct err *err)
{
    (void)s;
    (void)err;
    return 0;
}

static inline void cluster_stats(const struct store *s, struct ps_stats *ret)
{
    *ret = cluster_of(s)->stats;
}

static inline uint32_t cluster_set_tap(struct store *s, const struct ps_tap *tap)
{
    cluster_of(s)->tap = *tap;
    return cluster_of(s)->n_shards;
}

static inline void cluster_close(struct store *s)
{
    struct cluster *c = cluster_of(s);

    enter_shard();
    for (uint32_t i = 0; i < c->n_shards; i++) {
        shard_free(c->shards[i]);
        buf_deinit(&c->bufs[i]);
        buf_deinit(&c->push_bufs[i]);
        buf_deinit(&c->answers[i]);
    }
    encoder_free(c->encoder);
    encoder_free(c->other_encoder);
    free(c);
}

static inline void cluster_join(struct cluster *c, uint32_t shard, const char *job,
                                enum spec_mode mode) ON_SHARD
{
    struct roster_join join = {
        .job = job, .n_workers = 1, .incarnation = 1, .mode = mode, .name = "test"
    };
    struct worker *worker;
    struct err err;

    assert_int_equal(roster_join(shard_roster(c->shards[shard]), &join, 0, &worker, &err), 0);
}

/* memory_max_bytes: of each shard; 0: no limit. */
static inline struct cluster *cluster_new(uint32_t n_shards, enum spec_mode mode,
                                          uint64_t memory_max_bytes)
{
    static const struct store_ops ops = { .table = cluster_table,
                                          .pull_start = cluster_pull_start,
                                          .pull_wait = cluster_pull_wait,
                                          .push = cluster_push,
                                          .flush = cluster_done,
                                          .leave = cluster_done,
                                          .stats = cluster_stats,
                                          .set_tap = cluster_set_tap,
                                          .close = cluster_close };
    struct cluster *c = mem_alloc(sizeof *c);

    enter_shard();
    *c = (struct cluster){ .store.ops = &ops, .n_shards = n_shards, .tap_fails_after = -1 };
    for (uint32_t i = 0; i < n_shards; i++) {
        c->shards[i] = shard_new(&(struct shard_config){ .shard = i,
                                                         .n_shards = n_shards,
                                                         .memory_max_bytes = memory_max_bytes,
                                                         .lease_ms = UINT32_MAX,
                                                         .join_ms = UINT32_MAX });
        cluster_join(c, i, "job", mode);
        cluster_join(c, i, "other", SPEC_MODE_ASYNC);
    }
    c->encoder = encoder_new(n_shards);
    c->other_encoder = encoder_new(n_shards);
    return c;
}

#endif
