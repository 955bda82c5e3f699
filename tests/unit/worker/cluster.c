#include "tests/unit/worker/cluster.h"

#include "common/hash.h"

static struct cluster *cluster_of(const struct param_store *s)
{
    return (struct cluster *)(void *)(uintptr_t)s;
}

static int cluster_failure(struct cluster *c, struct err *err)
{
    int status = c->fail;

    c->fail = 0;
    return status ? err_set(err, status, "%s", status_text(status)) : 0;
}

static int cluster_table(struct param_store *s, const struct table_spec *spec, uint32_t *ret,
                         struct err *err)
{
    struct cluster *c = cluster_of(s);

    enter_shard();
    for (uint32_t i = 0; i < c->n_shards; i++)
        assert_int_equal(shard_table_open(c->shards[i], spec, false, ret, err), 0);
    assert_int_equal(*ret, c->n_tables);
    assert_int_equal(push_encoder_add_table(c->encoder, c->n_tables, spec), 0);
    assert_int_equal(push_encoder_add_table(c->other_encoder, c->n_tables++, spec), 0);
    return 0;
}

/* The shards number the tables as the store does. */
static const uint32_t cluster_table_ids[] = { 0, 1, 2, 3, 4, 5, 6, 7 };

/* At once: a push that is sent later comes later. */
static int cluster_answer(struct cluster *c, uint32_t shard, struct err *err) ON_SHARD
{
    struct shard_pull_op run;
    size_t planned[SECTIONS_MAX], n_bytes = 0;
    struct bytes *out = &c->answers[shard];
    uint8_t *answer;
    int status = shard_pull_plan(c->shards[shard], &c->pulls[shard], SIZE_MAX, planned, err);

    for (uint32_t i = 0; i < c->n && !status; i++)
        n_bytes += planned[i];
    bytes_consume(out, bytes_len(out));
    answer = bytes_reserve(out, n_bytes + 1);
    if (status || !answer)
        return status ? status : err_set(err, -ENOMEM, "no memory");
    shard_pull_begin(c->shards[shard], NULL, &c->pulls[shard], answer, &run);
    run.deltas = c->deltas[shard];
    while (!run.done && !status)
        status = shard_pull_more(c->shards[shard], &run, err);
    for (uint32_t i = 0; i < c->n && !status; i++) {
        c->value_bytes[shard][i] = run.value_bytes[i];
        assert_true(run.value_bytes[i] <= planned[i]);
    }
    cluster_client_version_pulled(&c->versions[shard], run.version);
    return status;
}

static int cluster_pull_start(struct param_store *s, uint64_t clock,
                              const struct ps_pull_section *sections, uint32_t n,
                              struct err *err)
{
    struct cluster *c = cluster_of(s);
    int status = cluster_failure(c, err);

    enter_shard();
    if (status)
        return status;
    c->sections = sections;
    c->n = n;
    c->stats.pulls++;
    c->stats.pulled_clock = c->stats.min_clock;
    if (clock > c->stats.min_clock && clock - c->stats.min_clock > c->stats.staleness_max)
        c->stats.staleness_max = clock - c->stats.min_clock;
    for (uint32_t i = 0; i < n; i++)
        c->stats.rows_pulled += sections[i].n_keys;
    request_set_release(&c->pull_set);
    status = request_set_acquire(&c->pull_set, n);
    if (!status)
        status =
            push_encoder_pull(c->encoder, sections, n, &c->partition, c->pull_set.requests);
    for (uint32_t i = 0; i < c->n_shards && !status; i++)
        request_pull(c->pull_set.requests[i], cluster_table_ids, 0, &c->pulls[i]);
    for (uint32_t i = 0; i < c->n_shards && !status; i++)
        status = cluster_answer(c, i, err);
    return status ? err_set(err, status, "pull: %s", status_text(status)) : 0;
}

static int cluster_decode(struct cluster *c, uint32_t shard)
{
    const uint8_t *values[SECTIONS_MAX], *at = c->answers[shard].bytes;

    for (uint32_t i = 0; i < c->n; i++) {
        values[i] = at;
        at += c->value_bytes[shard][i];
        if (c->garbles && c->sections[i].sink)
            c->value_bytes[shard][i]--;
    }
    return push_encoder_pulled(c->encoder, c->sections, c->n, &c->partition, shard, values,
                               c->value_bytes[shard]);
}

static int cluster_pull_wait(struct param_store *s, struct err *err)
{
    struct cluster *c = cluster_of(s);
    int status = cluster_failure(c, err);

    for (uint32_t i = 0; i < c->n_shards && !status; i++)
        status = cluster_decode(c, i);
    return status;
}

void cluster_send(struct cluster *c, const char *job, struct push_encoder *encoder,
                  uint64_t seq, uint64_t clock, const struct ps_push_section *sections,
                  uint32_t n) ON_SHARD
{
    bool own = encoder == c->encoder;

    request_set_release(&c->push_set);
    assert_int_equal(request_set_acquire(&c->push_set, n), 0);
    assert_int_equal(push_encoder_push(encoder, sections, n, c->push_set.requests), 0);
    for (uint32_t i = 0; i < c->n_shards; i++) {
        struct request *push = c->push_set.requests[i];
        struct shard_push_result result;
        struct worker *worker;
        uint64_t n_versions = 1;

        push->seq = seq;
        push->clock = clock;
        push->n_samples = 8;
        push->tick = n != 1 || sections[0].op != SECTION_ASSIGN;
#ifdef PS_FAULTS
        memory_fail_after(c->tap_fails_after);
#endif
        if (own && c->tap.push)
            n_versions = c->tap.push(c->tap.arg, i, push);
#ifdef PS_FAULTS
        memory_fail_after(-1);
#endif
        assert_int_equal(membership_find(shard_membership(c->shards[i]), job, 0, 1, 0, &worker),
                         0);
        request_push(push, cluster_table_ids, &c->push);
        assert_int_equal(shard_push(c->shards[i], worker, &c->push, 0, &result), 0);
        assert_int_equal(result.status, 0);
        c->stats.rows_refused += result.rows_refused;
        if (own)
            c->stats.foreign +=
                cluster_client_version_pushed(&c->versions[i], n_versions, result.version);
    }
}

static int cluster_push(struct param_store *s, uint64_t clock, uint32_t n_samples, bool tick,
                        const struct ps_push_section *sections, uint32_t n, struct err *err)
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

static int cluster_done(struct param_store *s, struct err *err)
{
    (void)s;
    (void)err;
    return 0;
}

static void cluster_stats(const struct param_store *s, struct ps_stats *ret)
{
    *ret = cluster_of(s)->stats;
}

static struct push_encoder *cluster_encoder(const struct param_store *s)
{
    return cluster_of(s)->encoder;
}

static uint32_t cluster_set_tap(struct param_store *s, const struct ps_tap *tap)
{
    cluster_of(s)->tap = *tap;
    return cluster_of(s)->n_shards;
}

static uint64_t cluster_resume(struct param_store *s)
{
    (void)s;
    return 0;
}

static void cluster_close(struct param_store *s)
{
    struct cluster *c = cluster_of(s);

    enter_shard();
    for (uint32_t i = 0; i < c->n_shards; i++) {
        pull_deltas_free(c->deltas[i]);
        shard_free(c->shards[i]);
        bytes_deinit(&c->answers[i]);
    }
    delta_memory_deinit(&c->deltas_memory);
    push_encoder_free(c->encoder);
    push_encoder_free(c->other_encoder);
    request_set_deinit(&c->pull_set);
    partition_deinit(&c->partition);
    request_set_deinit(&c->push_set);
    free(c);
}

static void cluster_join(struct cluster *c, uint32_t shard, const char *job,
                         enum table_spec_mode mode) ON_SHARD
{
    struct membership_join join = {
        .job = job, .n_workers = 1, .incarnation = 1, .mode = mode, .name = "test"
    };
    struct worker *worker;
    struct err err;

    assert_int_equal(
        membership_join(shard_membership(c->shards[shard]), &join, 0, &worker, &err), 0);
}

struct cluster *cluster_new(uint32_t n_shards, enum table_spec_mode mode,
                            uint64_t memory_max_bytes)
{
    static const struct param_store_ops ops = { .table = cluster_table,
                                                .pull_start = cluster_pull_start,
                                                .pull_wait = cluster_pull_wait,
                                                .push = cluster_push,
                                                .flush = cluster_done,
                                                .leave = cluster_done,
                                                .stats = cluster_stats,
                                                .encoder = cluster_encoder,
                                                .set_tap = cluster_set_tap,
                                                .close = cluster_close,
                                                .resume = cluster_resume };
    struct cluster *c = memory_alloc(sizeof *c);

    enter_shard();
    *c = (struct cluster){ .store.ops = &ops, .n_shards = n_shards, .tap_fails_after = -1 };
    for (uint32_t i = 0; i < n_shards; i++) {
        c->deltas[i] = pull_deltas_new(&c->deltas_memory);
        c->shards[i] = shard_new(&(struct shard_config){ .shard = i,
                                                         .n_shards = n_shards,
                                                         .memory_max_bytes = memory_max_bytes,
                                                         .lease_ms = UINT32_MAX,
                                                         .join_ms = UINT32_MAX });
        cluster_join(c, i, "job", mode);
        cluster_join(c, i, "other", TABLE_SPEC_MODE_ASYNC);
    }
    request_set_init(&c->pull_set, n_shards, 0);
    partition_init(&c->partition, n_shards);
    request_set_init(&c->push_set, n_shards, 0);
    c->encoder = push_encoder_new(n_shards);
    c->other_encoder = push_encoder_new(n_shards);
    return c;
}

void cluster_send_as_other(struct cluster *c, uint64_t clock,
                           const struct ps_push_section *sections, uint32_t n)
{
    enter_shard();
    cluster_send(c, "other", c->other_encoder, ++c->other_seq, clock, sections, n);
}

struct cluster_keys cluster_draw_keys(uint64_t seed, uint64_t *n_random, uint32_t spread)
{
    struct cluster_keys batch = { 0 };
    uint64_t key = 0;

    while (batch.n < CLUSTER_KEYS_MAX && hash_mix2(seed, (*n_random)++) % 12) {
        const uint64_t is_far = hash_mix2(seed, (*n_random)++) % 2;

        key += 1 + is_far * (hash_mix2(seed, (*n_random)++) % spread);
        batch.keys[batch.n++] = key * UINT64_C(0x100000001);
    }
    return batch;
}
