/* Rows of a job's only worker on a device (worker/cache/device_rows.h) before servers without a network (cluster.h). The
 * device is a few arrays here, which the CPU's operation changes; each row that a batch would gather from them is held
 * against the servers' own answer. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/hash.h"
#include "proto/codec_catalog.h"
#include "tests/support/seed.h"
#include "tests/unit/worker/cluster.h"
#include "worker/cache/device_rows.h"
#include "worker/compute/device.h"
#include "worker/param_store_exact_cache.h"

enum { DIM = 21, PLACES_MAX = 400, ROW_BYTES_MAX = 6 * DIM };

struct setup {
    uint32_t n_shards, n_places;
    enum table_spec_mode mode;
    enum table_spec_optim optim;
    enum codec_id codec;
    bool odd; /* weight decay, momentum's look-ahead, a falling rate */
};

/* What a pull fills; NaN where it does not. */
struct answer {
    float rows[CLUSTER_KEYS_MAX][DIM], states[CLUSTER_KEYS_MAX * 2 * DIM],
        wide[CLUSTER_KEYS_MAX];
    uint64_t versions[CLUSTER_KEYS_MAX];
    uint32_t places[CLUSTER_KEYS_MAX];
};

struct bench {
    struct setup setup;
    struct cluster *cluster;
    struct param_store *cache;
    uint32_t tables[2], n_states;
    uint64_t seed, n_random, clock;
    float kept[PLACES_MAX][DIM], states[PLACES_MAX * 2 * DIM];
    uint64_t versions[PLACES_MAX];
    uint64_t n_there, n_copied, n_placeless;
};

static uint64_t draw(struct bench *b, uint64_t below)
{
    return hash_mix2(b->seed, b->n_random++) % below;
}

static float draw_float(struct bench *b)
{
    return hash_unit(hash_mix2(b->seed, b->n_random++)) - 0.5f;
}

static struct table_spec spec_of(const struct bench *b, uint32_t dim)
{
    struct table_spec spec = { .dim = dim,
                               .optim = b->setup.optim,
                               .params = table_spec_optim_defaults(b->setup.optim),
                               .seed = dim,
                               .init = TABLE_SPEC_INIT_UNIFORM,
                               .init_scale = 0.1f };

    snprintf(spec.name, sizeof spec.name, "job/%u", dim);
    if (!b->setup.odd)
        return spec;
    spec.params.weight_decay = 0.01f;
    if (spec.optim == TABLE_SPEC_MOMENTUM)
        spec.params.nesterov = 1;
    if (spec.optim == TABLE_SPEC_ADAGRAD || spec.optim == TABLE_SPEC_ROWWISE_ADAGRAD)
        spec.params.lr_decay = 0.1f;
    spec.schedule.warmup_clocks = 20;
    return spec;
}

static void bench_init(struct bench *b, struct setup setup, uint64_t seed)
{
    const uint32_t dims[] = { DIM, 1 };
    struct err err;

    memset(b, 0, sizeof *b);
    b->setup = setup;
    b->seed = seed;
    b->cluster = cluster_new(setup.n_shards, setup.mode, 0);
    b->cache = param_store_exact_cache_new(
        &b->cluster->store,
        &(struct param_store_exact_cache_options){ .max_bytes = 1 << 30, .mode = setup.mode });
    for (uint32_t i = 0; i < 2; i++) {
        const struct table_spec spec = spec_of(b, dims[i]);

        assert_int_equal(b->cache->ops->table(b->cache, &spec, &b->tables[i], &err), 0);
        b->n_states = i ? b->n_states : table_spec_state_floats(&spec);
    }
    assert_true(b->cache->ops->replicate(b->cache, b->tables[0], setup.n_places));
}

static void bench_deinit(struct bench *b)
{
    b->cache->ops->close(b->cache);
}

static struct cluster_keys draw_batch(struct bench *b)
{
    return cluster_draw_keys(b->seed, &b->n_random, 40);
}

static uint32_t ask(const struct bench *b, const struct cluster_keys *batch, struct answer *a,
                    struct ps_pull_section *ret)
{
    ret[0] = (struct ps_pull_section){ .table = b->tables[0],
                                       .n_keys = batch->n,
                                       .keys = batch->keys,
                                       .dst = a->rows[0],
                                       .versions = a->versions,
                                       .places = a->places,
                                       .states = a->states };
    ret[1] = (struct ps_pull_section){
        .table = b->tables[1], .n_keys = batch->n, .keys = batch->keys, .dst = a->wide
    };
    return 2;
}

static int pull(struct bench *b, const struct cluster_keys *batch, struct answer *a)
{
    struct ps_pull_section sections[2];
    const uint32_t n = ask(b, batch, a, sections);
    struct err err;
    int status;

    memset(a, 0xff, sizeof *a);
    status = b->cache->ops->pull_start(b->cache, b->clock, sections, n, &err);
    return status ? status : b->cache->ops->pull_wait(b->cache, &err);
}

/* What the servers have. */
static void pull_plainly(struct bench *b, const struct cluster_keys *batch, struct answer *ret)
{
    struct ps_pull_section sections[2];
    const uint32_t n = ask(b, batch, ret, sections);
    struct param_store *s = &b->cluster->store;
    struct err err;

    sections[0].versions = NULL;
    sections[0].places = NULL;
    sections[0].states = NULL;
    assert_int_equal(s->ops->pull_start(s, b->clock, sections, n, &err), 0);
    assert_int_equal(s->ops->pull_wait(s, &err), 0);
}

/* As the device does: row i is where it stays, or on its way there. */
static const float *gather(struct bench *b, const struct answer *a, uint32_t i)
{
    const uint32_t place = a->places[i];

    if (!a->versions[i]) {
        b->n_placeless++;
        return a->rows[i];
    }
    assert_true(place < b->setup.n_places);
    if (b->versions[place] == a->versions[i]) {
        b->n_there++;
        return b->kept[place];
    }
    b->n_copied++;
    b->versions[place] = a->versions[i];
    memcpy(b->kept[place], a->rows[i], sizeof b->kept[place]);
    memcpy(b->states + place * b->n_states, a->states + i * b->n_states,
           b->n_states * sizeof *b->states);
    return b->kept[place];
}

static void check_rows(struct bench *b, const struct cluster_keys *batch,
                       const struct answer *a)
{
    struct answer want;

    pull_plainly(b, batch, &want);
    for (uint32_t i = 0; i < batch->n; i++) {
        assert_memory_equal(gather(b, a, i), want.rows[i], sizeof want.rows[i]);
        for (uint32_t k = 0; k < i; k++)
            assert_true(!a->versions[i] || !a->versions[k] || a->places[i] != a->places[k]);
    }
    assert_memory_equal(a->wide, want.wide, batch->n * sizeof *want.wide);
}

static const enum row_update_rule rules[] = {
    [TABLE_SPEC_SGD] = ROW_UPDATE_SGD,
    [TABLE_SPEC_MOMENTUM] = ROW_UPDATE_MOMENTUM,
    [TABLE_SPEC_ADAGRAD] = ROW_UPDATE_ADAGRAD,
    [TABLE_SPEC_ROWWISE_ADAGRAD] = ROW_UPDATE_ROWWISE,
    [TABLE_SPEC_ADAM] = ROW_UPDATE_ADAM,
};

/* The gradients of a push, as a device has encoded them. */
struct gradients {
    struct cluster_keys batch; /* and rows with residuals of earlier ones */
    uint32_t k;
    uint8_t bytes[2 * CLUSTER_KEYS_MAX * ROW_BYTES_MAX];
    float wide[CLUSTER_KEYS_MAX];
};

static void encode(struct bench *b, struct gradients *g)
{
    const struct codec *codec = codec_by_id(b->setup.codec);
    float row[DIM];

    g->k = b->setup.codec == CODEC_TOPK ? DIM / 2 : 0;
    for (uint32_t i = 0; i < g->batch.n; i++) {
        for (uint32_t k = 0; k < DIM; k++)
            row[k] = draw_float(b);
        codec->encode(row, DIM, g->k, g->bytes + i * codec->row_bytes(DIM, g->k));
        g->wide[i] = draw_float(b);
    }
}

static void change(struct bench *b, struct gradients *g)
{
    uint32_t places[CLUSTER_KEYS_MAX];
    struct device_rows_step step = { .table = b->tables[0],
                                     .clock = b->clock,
                                     .n = g->batch.n,
                                     .keys = g->batch.keys,
                                     .places = places };
    struct row_update_factors factors;

    b->cache->ops->begin_update(b->cache, &step);
    factors = (struct row_update_factors){ step.rate,  step.epsilon,   step.weight_decay,
                                           step.beta1, step.rest1,     step.beta2,
                                           step.rest2, step.root_scale };
    device_cpu.update_rows(NULL, &(struct row_update){ .rule = rules[b->setup.optim],
                                                       .codec = b->setup.codec,
                                                       .dim = DIM,
                                                       .n_states = b->n_states,
                                                       .k = g->k,
                                                       .n = &step.n,
                                                       .factors = &factors,
                                                       .bytes = g->bytes,
                                                       .places = places,
                                                       .kept = b->kept[0],
                                                       .states = b->states });
}

static uint32_t report_push(const struct bench *b, const struct gradients *g,
                            struct ps_push_section *ret)
{
    ret[0] = (struct ps_push_section){ .table = b->tables[0],
                                       .codec = b->setup.codec,
                                       .topk_fraction = (float)g->k / DIM + 1e-4f,
                                       .n_keys = g->batch.n,
                                       .keys = g->batch.keys,
                                       .encoded = g->bytes };
    ret[1] = (struct ps_push_section){
        .table = b->tables[1], .n_keys = g->batch.n, .keys = g->batch.keys, .values = g->wide
    };
    return 2;
}

static int push(struct bench *b, const struct gradients *g)
{
    struct ps_push_section sections[2];
    const uint32_t n = report_push(b, g, sections);
    struct err err;
    const int status = b->cache->ops->push(b->cache, b->clock, 8, true, sections, n, &err);

    b->clock += !status;
    return status;
}

static void push_of_somebody_else(struct bench *b, const struct cluster_keys *batch)
{
    struct gradients g = { .batch = *batch };
    struct ps_push_section sections[2];
    uint32_t n;

    encode(b, &g);
    n = report_push(b, &g, sections);
    cluster_send_as_other(b->cluster, b->clock, sections, n);
}

/* Some rows of another batch among the batch's own: their residuals go with this push. */
static void add_residuals(struct bench *b, struct cluster_keys *batch)
{
    const struct cluster_keys one = *batch, other = draw_batch(b);
    uint32_t i = 0, k = 0;

    batch->n = 0;
    while (batch->n < CLUSTER_KEYS_MAX && (i < one.n || k < other.n)) {
        const uint64_t mine = i < one.n ? one.keys[i] : UINT64_MAX,
                       theirs = k < other.n ? other.keys[k] : UINT64_MAX;

        batch->keys[batch->n++] = mine < theirs ? mine : theirs;
        i += mine <= theirs;
        k += theirs <= mine;
    }
}

/* A batch and what its pull fills. */
struct step {
    struct cluster_keys batch;
    struct answer answer;
};

static void prefetch(struct bench *b, struct step *step)
{
    struct ps_pull_section sections[2];
    const uint32_t n = ask(b, &step->batch, &step->answer, sections);
    struct err err;

    memset(&step->answer, 0xff, sizeof step->answer);
    assert_int_equal(b->cache->ops->prefetch(b->cache, sections, n, &err), 0);
}

/* A pull that keeps what has been read ahead. */
static void pull_step(struct bench *b, struct step *step, bool is_announced)
{
    struct ps_pull_section sections[2];
    const uint32_t n = ask(b, &step->batch, &step->answer, sections);
    struct err err;

    if (!is_announced)
        memset(&step->answer, 0xff, sizeof step->answer);
    assert_int_equal(b->cache->ops->pull_start(b->cache, b->clock, sections, n, &err), 0);
    assert_int_equal(b->cache->ops->pull_wait(b->cache, &err), 0);
}

static void evaluate(struct bench *b)
{
    const struct cluster_keys batch = draw_batch(b);
    struct ps_pull_section sections[2];
    struct answer got, want;
    const uint32_t n = ask(b, &batch, &got, sections);
    struct err err;

    assert_int_equal(b->cache->ops->pull_for_eval(b->cache, b->clock, sections, n, &err), 0);
    assert_int_equal(b->cache->ops->pull_wait(b->cache, &err), 0);
    pull_plainly(b, &batch, &want);
    assert_memory_equal(got.rows, want.rows, batch.n * sizeof *want.rows);
    for (uint32_t i = 0; i < batch.n; i++)
        assert_int_equal(got.versions[i], 0);
}

/* Steps, the next batch announced or not, and another than the one that comes, too. What goes wrong is drawn: a step
 * that is not begun or not pushed, a death, another worker. */
static void train(struct bench *b, uint32_t n_steps, uint32_t troubles)
{
    static struct step steps[3];
    struct step *step = &steps[0], *next = &steps[1], *other = &steps[2], *last;
    bool is_announced = false;

    next->batch = draw_batch(b);
    for (uint32_t i = 0; i < n_steps; i++) {
        const uint64_t trouble = troubles ? draw(b, troubles) : UINT64_MAX;
        struct gradients g;

        last = step;
        step = next;
        next = last;
        pull_step(b, step, is_announced);
        check_rows(b, &step->batch, &step->answer);
        next->batch = draw_batch(b);
        is_announced = draw(b, 4) > 0;
        g.batch = step->batch;
        if (draw(b, 6) == 0)
            add_residuals(b, &g.batch);
        encode(b, &g);
        if (is_announced)
            prefetch(b, next);
        if (draw(b, 2))
            b->cache->ops->prefetch_end(b->cache);
        if (trouble == 0)
            continue; /* pulled, and no more */
        change(b, &g);
        if (trouble == 1) {
            b->cache->ops->prefetch_end(b->cache); /* the push alone fails */
            b->cluster->fail = PS_EFENCED;
            assert_int_equal(push(b, &g), PS_EFENCED);
            b->cluster->stats.rejoins++;
            is_announced = false;
            continue;
        }
        if (trouble == 2)
            push_of_somebody_else(b, &step->batch);
        assert_int_equal(push(b, &g), 0);
        if (draw(b, 8) == 0)
            evaluate(b);
        if (draw(b, 8) == 0) { /* what was announced stays as it is */
            last = next;
            next = other;
            other = last;
            next->batch = draw_batch(b);
            is_announced = false;
        }
    }
    b->cache->ops->prefetch_end(b->cache);
}

static struct setup draw_setup(uint32_t i)
{
    static const uint32_t n_places[] = { PLACES_MAX, 1, 7, CLUSTER_KEYS_MAX, 60, 3 };
    static const enum table_spec_optim optims[] = { TABLE_SPEC_ROWWISE_ADAGRAD,
                                                    TABLE_SPEC_ADAGRAD, TABLE_SPEC_SGD,
                                                    TABLE_SPEC_ADAM, TABLE_SPEC_MOMENTUM };

    return (struct setup){ .n_shards = i % 2 ? 3 : 1,
                           .n_places = n_places[i % COUNT_OF(n_places)],
                           .mode = i % 3 ? TABLE_SPEC_MODE_BSP : TABLE_SPEC_MODE_ASYNC,
                           .optim = optims[i / 2 % COUNT_OF(optims)],
                           .codec = (enum codec_id)(i % CODEC_ID_END),
                           .odd = i / 2 % 3 == 1 };
}

static void what_the_device_has_are_the_servers_bits(void **state)
{
    const uint64_t seed = seed_by_the_clock();
    static struct bench b;

    (void)state;
    for (uint32_t i = 0; i < 60; i++) {
        print_message("run %u\n", i);
        bench_init(&b, draw_setup(i), seed + i);
        train(&b, 60, 0);
        assert_true(b.n_there > 0 || b.setup.n_places < CLUSTER_KEYS_MAX);
        assert_int_equal(b.n_placeless > 0, b.setup.n_places < CLUSTER_KEYS_MAX);
        assert_true(b.cluster->stats.foreign == 0);
        bench_deinit(&b);
    }
}

/* Deaths, steps that are dropped, pushes of others: the device's rows begin anew where they are not the servers'. */
static void what_goes_wrong_costs_no_bit(void **state)
{
    const uint64_t seed = seed_by_the_clock();
    static struct bench b;

    (void)state;
    for (uint32_t i = 0; i < 60; i++) {
        print_message("run %u\n", i);
        bench_init(&b, draw_setup(i), seed + i);
        train(&b, 60, 24);
        bench_deinit(&b);
    }
}

static void rows_that_stay_are_neither_pulled_nor_copied(void **state)
{
    const struct cluster_keys batch = { 3, { 1, 2, 3 } };
    static struct bench b;
    struct ps_stats stats;
    struct gradients g = { .batch = batch };
    struct answer a;
    uint64_t n_rows;

    (void)state;
    bench_init(&b,
               (struct setup){ .n_shards = 3,
                               .n_places = 9,
                               .mode = TABLE_SPEC_MODE_BSP,
                               .optim = TABLE_SPEC_ADAM },
               1);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(pull(&b, &batch, &a), 0);
        if (i)
            for (uint32_t k = 0; k < batch.n; k++)
                assert_true(isnan(a.rows[k][0]) && isnan(a.states[k]));
        n_rows = i ? n_rows : b.cluster->stats.rows_pulled;
        for (uint32_t k = 0; k < batch.n; k++)
            (void)gather(&b, &a, k);
        encode(&b, &g);
        change(&b, &g);
        assert_int_equal(push(&b, &g), 0);
    }
    assert_int_equal(b.cluster->stats.rows_pulled, n_rows);
    b.cache->ops->stats(b.cache, &stats);
    assert_int_equal(stats.rows_on_device, 3);
    assert_int_equal(stats.rows_cached, 2 * 3 * 5);
    assert_int_equal(b.n_copied, 3);
    assert_int_equal(b.n_there, 3 * 5);
    bench_deinit(&b);
}

static void tables_with_other_rules_stay_where_they_are(void **state)
{
    static const struct table_spec specs[] = {
        { .dim = 2, .optim = TABLE_SPEC_FTRL },
        { .dim = 2, .storage = TABLE_SPEC_BF16 },
        { .dim = 2, .row_decay = 0.1f },
        { .dim = 2, .clip_norm = 1 },
        { .dim = 2, .limits = { .admit_touches = 3, .admit_clocks = 9 } },
        { .kind = TABLE_SPEC_DENSE, .dim = 2, .n_floats = 2 },
    };
    static struct bench b;
    struct err err;

    (void)state;
    bench_init(&b, (struct setup){ .n_shards = 1, .n_places = 9, .mode = TABLE_SPEC_MODE_BSP },
               1);
    for (uint32_t i = 0; i < COUNT_OF(specs); i++) {
        struct table_spec spec = specs[i];
        uint32_t table;

        spec.params = table_spec_optim_defaults(spec.optim);
        snprintf(spec.name, sizeof spec.name, "job/other%u", i);
        assert_int_equal(b.cache->ops->table(b.cache, &spec, &table, &err), 0);
        assert_false(b.cache->ops->replicate(b.cache, table, 9));
    }
    bench_deinit(&b);
}

#ifdef PS_FAULTS
static void the_kth_allocation_fails_and_no_bit_is_wrong(void **state)
{
    static struct bench b;

    (void)state;
    for (long k = 0; k < 80; k++) {
        struct cluster_keys batch;
        struct gradients g;
        struct answer a;

        bench_init(&b, draw_setup((uint32_t)k), (uint64_t)k);
        train(&b, 3, 0);
        batch = draw_batch(&b);
        memory_fail_after(k);
        (void)!pull(&b, &batch, &a);
        memory_fail_after(-1);
        assert_int_equal(pull(&b, &batch, &a), 0);
        check_rows(&b, &batch, &a);
        g.batch = batch;
        encode(&b, &g);
        change(&b, &g);
        b.cluster->tap_fails_after = k;
        assert_int_equal(push(&b, &g), 0);
        b.cluster->tap_fails_after = -1;
        train(&b, 5, 0);
        bench_deinit(&b);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_device_has_are_the_servers_bits),
        cmocka_unit_test(what_goes_wrong_costs_no_bit),
        cmocka_unit_test(rows_that_stay_are_neither_pulled_nor_copied),
        cmocka_unit_test(tables_with_other_rules_stay_where_they_are),
#ifdef PS_FAULTS
        cmocka_unit_test(the_kth_allocation_fails_and_no_bit_is_wrong),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
