/* Tables with a period over servers in this process: a random run against a plain reference, and what happens at the edges. */
#include "worker/param_store_periodic.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "common/hash.h"
#include "tests/support/seed.h"
#include "tests/unit/worker/cluster.h"
#include "tests/unit/worker/fake_store.h"

#define DIM 8u
#define N_BLOCKS 3u
#define FLOATS (DIM * N_BLOCKS)
#define N_DENSE 3u
#define RATE 0.125f

static const uint64_t all_blocks[N_BLOCKS] = { 0, 1, 2 };

/* By name: the last one only adds, and so has none. */
static const uint32_t periods[N_DENSE] = { 3, 5, 4 };

static uint32_t period_of(const void *arg, const char *table)
{
    (void)arg;
    assert_int_equal(strncmp(table, "job/d", 5), 0);
    return periods[table[5] - '0'];
}

/* What the store promises of one table, in plain words. */
struct reference {
    float here[FLOATS], base[FLOATS], sum[FLOATS];
    bool is_here, is_due; /* the next pull asks */
};

struct bench {
    struct cluster *cluster;
    struct param_store *store;
    enum local_tensor_rule rule;
    uint32_t ids[N_DENSE];
    struct reference references[N_DENSE - 1];
    uint64_t seed, n, clock;
    bool is_still; /* gradients are 0 */
    uint64_t blocks[N_BLOCKS];
    float got[N_DENSE][FLOATS], servers[N_DENSE][FLOATS], gradients[N_DENSE][FLOATS];
};

static uint64_t draw(struct bench *b)
{
    return hash_mix2(b->seed, b->n++);
}

static struct table_spec dense_spec(uint32_t i)
{
    const bool adds = i == N_DENSE - 1;
    struct table_spec spec = { .kind = TABLE_SPEC_DENSE,
                               .dim = DIM,
                               .n_floats = FLOATS,
                               .init = TABLE_SPEC_INIT_UNIFORM,
                               .init_scale = 1,
                               .optim = TABLE_SPEC_SGD,
                               .params = table_spec_optim_defaults(TABLE_SPEC_SGD) };

    snprintf(spec.name, sizeof spec.name, "job/d%u", i);
    spec.params.learning_rate = adds ? 1 : RATE;
    spec.params.weight_decay = 0;
    return spec;
}

static void bench_init(struct bench *b, enum local_tensor_rule rule, uint64_t seed)
{
    const struct param_store_periodic_options options = { .rule = rule,
                                                          .slow_lr = 1,
                                                          .period_of = period_of };
    struct err err;

    *b = (struct bench){ .seed = seed, .rule = rule };
    b->cluster = cluster_new(2, TABLE_SPEC_MODE_ASYNC, 0);
    b->store = param_store_periodic_new(&b->cluster->store, &options);
    for (uint32_t i = 0; i < N_DENSE; i++) {
        const struct table_spec spec = dense_spec(i);

        assert_int_equal(b->store->ops->table(b->store, &spec, &b->ids[i], &err), 0);
    }
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        b->blocks[i] = i;
}

static void bench_deinit(struct bench *b)
{
    b->store->ops->close(b->store);
}

static void set_sections(struct bench *b, float (*dst)[FLOATS], struct ps_pull_section *out)
{
    for (uint32_t i = 0; i < N_DENSE; i++)
        out[i] = (struct ps_pull_section){
            .table = b->ids[i], .n_keys = N_BLOCKS, .keys = b->blocks, .dst = dst[i]
        };
}

static int pull_from(struct bench *b, struct param_store *store, float (*dst)[FLOATS])
{
    struct ps_pull_section sections[N_DENSE];
    struct err err;
    int status;

    set_sections(b, dst, sections);
    status = store->ops->pull_start(store, b->clock, sections, N_DENSE, &err);
    return status ? status : store->ops->pull_wait(store, &err);
}

static void see_servers(struct bench *b)
{
    assert_int_equal(pull_from(b, &b->cluster->store, b->servers), 0);
}

static void draw_gradients(struct bench *b, struct ps_push_section *out)
{
    for (uint32_t i = 0; i < N_DENSE; i++) {
        for (uint32_t k = 0; k < FLOATS; k++)
            b->gradients[i][k] = b->is_still ? 0 : (float)(hash_unit(draw(b)) - 0.5);
        out[i] = (struct ps_push_section){
            .table = b->ids[i], .n_keys = N_BLOCKS, .keys = b->blocks, .values = b->gradients[i]
        };
    }
}

static void change_by_another(struct bench *b)
{
    struct ps_push_section sections[N_DENSE];

    draw_gradients(b, sections);
    enter_shard();
    cluster_send(b->cluster, "other", b->cluster->other_encoder, ++b->cluster->other_seq, 0,
                 sections, N_DENSE);
}

/* --- the reference --- */

/* Of a pull that brought this of the servers. */
static void reference_pull(const struct bench *b, struct reference *t, const float *server,
                           float *ret)
{
    const bool asks = !t->is_here || t->is_due;

    for (uint32_t k = 0; k < FLOATS && asks; k++) {
        const float own =
            t->is_here && b->rule == LOCAL_TENSOR_STEPS ? t->here[k] - t->base[k] : 0;

        t->base[k] = server[k];
        t->here[k] = server[k] + own;
        if (!t->is_here)
            t->sum[k] = 0;
    }
    t->is_here = true;
    t->is_due = false;
    memcpy(ret, t->here, sizeof t->here);
}

/* *ret: what the servers have afterwards. */
static void reference_push(const struct bench *b, uint32_t i, float *server)
{
    struct reference *t = (struct reference *)&b->references[i];
    const bool ends = (b->clock + 1) % periods[i] == 0;

    for (uint32_t k = 0; k < FLOATS; k++) {
        const float g = b->gradients[i][k];

        if (b->rule == LOCAL_TENSOR_STEPS)
            t->here[k] -= RATE * g;
        t->sum[k] += g;
        if (!ends)
            continue;
        server[k] -= b->rule == LOCAL_TENSOR_STEPS ? t->base[k] - t->here[k] : RATE * t->sum[k];
        t->base[k] = t->here[k];
        t->sum[k] = 0;
    }
    t->is_due = t->is_due || ends;
}

static void assert_close(const float *got, const float *want, const char *what)
{
    for (uint32_t k = 0; k < FLOATS; k++)
        if (!(fabsf(got[k] - want[k]) <= 2e-5f))
            fail_msg("%s, float %u: got %g, expected %g", what, k, (double)got[k],
                     (double)want[k]);
}

static void pull_and_compare(struct bench *b)
{
    uint64_t rows = b->cluster->stats.rows_pulled, n_asked = 1; /* that which only adds */
    float want[FLOATS];

    see_servers(b);
    rows = b->cluster->stats.rows_pulled;
    assert_int_equal(pull_from(b, b->store, b->got), 0);
    for (uint32_t i = 0; i < N_DENSE - 1; i++) {
        n_asked += !b->references[i].is_here || b->references[i].is_due;
        reference_pull(b, &b->references[i], b->servers[i], want);
        assert_close(b->got[i], want, "pull");
    }
    assert_memory_equal(b->got[N_DENSE - 1], b->servers[N_DENSE - 1], sizeof b->got[0]);
    assert_int_equal(b->cluster->stats.rows_pulled - rows, n_asked * N_BLOCKS);
}

static void push_and_compare(struct bench *b)
{
    struct ps_push_section sections[N_DENSE];
    float want[N_DENSE][FLOATS];
    struct err err;

    see_servers(b);
    memcpy(want, b->servers, sizeof want);
    draw_gradients(b, sections);
    assert_int_equal(b->store->ops->push(b->store, b->clock, 8, true, sections, N_DENSE, &err),
                     0);
    for (uint32_t i = 0; i < N_DENSE - 1; i++)
        reference_push(b, i, want[i]);
    for (uint32_t k = 0; k < FLOATS; k++)
        want[N_DENSE - 1][k] -= b->gradients[N_DENSE - 1][k];
    b->clock++;
    see_servers(b);
    for (uint32_t i = 0; i < N_DENSE; i++)
        assert_close(b->servers[i], want[i], "servers after a push");
}

static void join_again(struct bench *b)
{
    (void)b->store->ops->resume(b->store);
    for (uint32_t i = 0; i < N_DENSE - 1; i++)
        b->references[i].is_here = false;
}

/* A worker that validates sees the servers' tables, and its own are as they were. */
static void validate(struct bench *b)
{
    struct ps_pull_section sections[N_DENSE];
    struct err err;

    see_servers(b);
    set_sections(b, b->got, sections);
    assert_int_equal(b->store->ops->pull_for_eval(b->store, b->clock, sections, N_DENSE, &err),
                     0);
    assert_int_equal(b->store->ops->pull_wait(b->store, &err), 0);
    assert_memory_equal(b->got, b->servers, sizeof b->got);
}

static void run_at_random(enum local_tensor_rule rule, uint64_t seed)
{
    struct bench b;

    bench_init(&b, rule, seed);
    pull_and_compare(&b);
    for (uint32_t round = 0; round < 400; round++) {
        const uint64_t dice = draw(&b) % 16;

        if (dice < 5)
            change_by_another(&b);
        if (dice == 5)
            validate(&b);
        if (dice == 6)
            join_again(&b);
        b.cluster->fail = dice == 7 ? PS_EFENCED : 0;
        if (dice == 7) {
            assert_int_equal(pull_from(&b, b.store, b.got), PS_EFENCED);
            join_again(&b);
        }
        /* Else the step before is pushed after this one's pull: a worker that is ahead. */
        if (dice != 8 || !b.references[0].is_here)
            pull_and_compare(&b);
        push_and_compare(&b);
    }
    bench_deinit(&b);
}

static void a_random_run_is_that_of_a_plain_reference(void **state)
{
    const uint64_t seed = seed_by_the_clock();

    (void)state;
    run_at_random(LOCAL_TENSOR_STEPS, seed);
    run_at_random(LOCAL_TENSOR_SUM, seed);
}

static void what_is_left_goes_when_the_worker_leaves(void **state)
{
    struct bench b;
    struct err err;

    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        bench_init(&b, i ? LOCAL_TENSOR_SUM : LOCAL_TENSOR_STEPS, seed_by_the_clock());
        for (uint32_t step = 0; step < 7; step++) {
            pull_and_compare(&b);
            push_and_compare(&b);
        }
        assert_int_equal(b.store->ops->leave(b.store, &err), 0);
        see_servers(&b);
        for (uint32_t d = 0; d < N_DENSE - 1; d++) {
            float want[FLOATS];

            for (uint32_t k = 0; k < FLOATS; k++)
                want[k] = i ? b.references[d].base[k] - RATE * b.references[d].sum[k]
                            : b.references[d].here[k];
            assert_close(b.servers[d], want, "servers at the end");
        }
        bench_deinit(&b);
    }
}

static uint32_t always_four(const void *arg, const char *table)
{
    (void)arg;
    (void)table;
    return 4;
}

/* Four tables alike, of one period: each step pushes one of them. */
static void tables_take_turns(void **state)
{
    const struct param_store_periodic_options options = { .rule = LOCAL_TENSOR_SUM,
                                                          .rotates = true,
                                                          .period_of = always_four };
    struct cluster *cluster = cluster_new(1, TABLE_SPEC_MODE_ASYNC, 0);
    struct param_store *store = param_store_periodic_new(&cluster->store, &options);
    static const uint64_t keys[N_BLOCKS] = { 0, 1, 2 };
    static float values[4][FLOATS];
    struct ps_pull_section pulls[4];
    struct ps_push_section pushes[4];
    struct err err;
    uint32_t id;

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        struct table_spec spec = dense_spec(0);

        snprintf(spec.name, sizeof spec.name, "job/e%u", i);
        assert_int_equal(store->ops->table(store, &spec, &id, &err), 0);
        pulls[i] = (struct ps_pull_section){
            .table = id, .n_keys = N_BLOCKS, .keys = keys, .dst = values[i]
        };
        pushes[i] = (struct ps_push_section){
            .table = id, .n_keys = N_BLOCKS, .keys = keys, .values = values[i]
        };
    }
    for (uint64_t clock = 0; clock < 12; clock++) {
        const uint64_t before = cluster->stats.rows_pulled;

        assert_int_equal(store->ops->pull_start(store, clock, pulls, 4, &err), 0);
        assert_int_equal(store->ops->pull_wait(store, &err), 0);
        assert_int_equal(cluster->stats.rows_pulled - before, clock ? N_BLOCKS : 4 * N_BLOCKS);
        assert_int_equal(store->ops->push(store, clock, 1, true, pushes, 4, &err), 0);
    }
    store->ops->close(store);
}

static uint32_t always_two(const void *arg, const char *table)
{
    (void)arg;
    (void)table;
    return 2;
}

static void see_variance(struct bench *b, float *ret)
{
    const struct ps_pull_section section = {
        .table = b->ids[0] + 1, .n_keys = N_BLOCKS, .keys = b->blocks, .dst = ret
    };
    struct param_store *servers = &b->cluster->store;
    struct err err;

    assert_int_equal(servers->ops->pull_start(servers, 0, &section, 1, &err), 0);
    assert_int_equal(servers->ops->pull_wait(servers, &err), 0);
}

/* One table alone. Returns the rows that the pull asked for. */
static uint64_t make_step(struct bench *b)
{
    const uint64_t before = b->cluster->stats.rows_pulled;
    struct ps_push_section pushes[N_DENSE];
    struct ps_pull_section pulls[N_DENSE];
    struct err err;

    set_sections(b, b->got, pulls);
    draw_gradients(b, pushes);
    assert_int_equal(b->store->ops->pull_start(b->store, b->clock, pulls, 1, &err), 0);
    assert_int_equal(b->store->ops->pull_wait(b->store, &err), 0);
    assert_int_equal(b->store->ops->push(b->store, b->clock++, 8, true, pushes, 1, &err), 0);
    return b->cluster->stats.rows_pulled - before;
}

/* With the push of clock 3; also for a worker that comes later, which a second run is like. */
static void second_moments_are_shared_once_and_stay(void **state)
{
    const struct param_store_periodic_options options = {
        .rule = LOCAL_TENSOR_STEPS, .slow_lr = 1, .period_of = always_two, .freeze_at = 4
    };
    static const float zeros[FLOATS];
    float variance[FLOATS], again[FLOATS];
    struct table_spec spec = dense_spec(0);
    struct bench b = { .seed = seed_by_the_clock() };
    struct err err;

    (void)state;
    spec.optim = TABLE_SPEC_ADAM;
    spec.params = table_spec_optim_defaults(TABLE_SPEC_ADAM);
    b.cluster = cluster_new(2, TABLE_SPEC_MODE_ASYNC, 0);
    b.store = param_store_periodic_new(&b.cluster->store, &options);
    assert_int_equal(b.store->ops->table(b.store, &spec, &b.ids[0], &err), 0);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        b.blocks[i] = i;
    assert_int_equal(make_step(&b), 2 * N_BLOCKS); /* is there one of an earlier run? */
    for (uint32_t i = 1; i < 4; i++) {
        see_variance(&b, variance);
        assert_memory_equal(variance, zeros, sizeof zeros);
        assert_int_equal(make_step(&b), i == 2 ? N_BLOCKS : 1); /* 1: to wait for others */
    }
    see_variance(&b, variance);
    for (uint32_t i = 0; i < FLOATS; i++)
        assert_true(variance[i] > 0 && variance[i] < 0.25f); /* of gradients within 0.5 */
    assert_int_equal(make_step(&b), 2 * N_BLOCKS);
    for (uint32_t i = 5; i < 12; i++)
        assert_int_equal(make_step(&b), i % 2 ? 1 : N_BLOCKS);
    (void)b.store->ops->resume(b.store);
    assert_int_equal(make_step(&b), 2 * N_BLOCKS);
    for (uint32_t i = 13; i < 20; i++)
        assert_int_equal(make_step(&b), i % 2 ? 1 : N_BLOCKS);
    see_variance(&b, again);
    assert_memory_equal(variance, again, sizeof again);
    bench_deinit(&b);
}

/* Without a gradient there is no second moment to freeze: one of zeros would give steps without a bound. */
static void a_second_moment_of_zeros_is_shared_again(void **state)
{
    const struct param_store_periodic_options options = {
        .rule = LOCAL_TENSOR_STEPS, .slow_lr = 1, .period_of = always_two, .freeze_at = 4
    };
    static const float zeros[FLOATS];
    struct table_spec spec = dense_spec(0);
    struct bench b = { .seed = seed_by_the_clock() };
    float before[FLOATS], variance[FLOATS];
    struct err err;

    (void)state;
    spec.optim = TABLE_SPEC_ADAM;
    spec.params = table_spec_optim_defaults(TABLE_SPEC_ADAM);
    b.cluster = cluster_new(2, TABLE_SPEC_MODE_ASYNC, 0);
    b.store = param_store_periodic_new(&b.cluster->store, &options);
    assert_int_equal(b.store->ops->table(b.store, &spec, &b.ids[0], &err), 0);
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        b.blocks[i] = i;
    b.is_still = true;
    for (uint32_t i = 0; i < 6; i++)
        (void)make_step(&b);
    b.is_still = false;
    see_variance(&b, variance);
    assert_memory_equal(variance, zeros, sizeof zeros);
    for (uint32_t i = 0; i < 12; i++) {
        memcpy(before, b.got[0], sizeof before);
        (void)make_step(&b);
        for (uint32_t k = 0; k < FLOATS; k++)
            assert_true(fabsf(b.got[0][k] - before[k]) < 1);
    }
    see_variance(&b, variance);
    for (uint32_t i = 0; i < FLOATS; i++)
        assert_true(variance[i] > 0 && variance[i] < 0.25f);
    bench_deinit(&b);
}

/* Notes what the store asks of the one behind it. */
struct recorder {
    struct param_store store;
    uint32_t n_prefetch_ends, n_prefetches, n_cancels, n_flushes, n_leaves, n_copies, n_tables;
    uint32_t
        n_variances; /* tables of second moments that were asked for: the first one fails */
    uint64_t clock;
    uint32_t n_samples, n_sections;
    bool tick;
};

static struct recorder *recorder_of(const struct param_store *s)
{
    return (struct recorder *)(uintptr_t)s;
}

static int record_table(struct param_store *s, const struct table_spec *spec, uint32_t *ret,
                        struct err *err)
{
    (void)spec;
    (void)err;
    *ret = recorder_of(s)->n_tables++;
    return 0;
}

static int record_pull(struct param_store *s, uint64_t clock,
                       const struct ps_pull_section *sections, uint32_t n, struct err *err)
{
    (void)s;
    (void)clock;
    (void)err;
    for (uint32_t i = 0; i < n; i++)
        memset(sections[i].dst, 0, sizeof(float[FLOATS]));
    return 0;
}

static int record_wait(struct param_store *s, struct err *err)
{
    (void)s;
    (void)err;
    return 0;
}

static int record_push(struct param_store *s, uint64_t clock, uint32_t n_samples, bool tick,
                       const struct ps_push_section *sections, uint32_t n, struct err *err)
{
    struct recorder *r = recorder_of(s);

    (void)sections;
    (void)err;
    r->clock = clock;
    r->n_samples = n_samples;
    r->n_sections = n;
    r->tick = tick;
    return 0;
}

static int record_flush(struct param_store *s, struct err *err)
{
    (void)err;
    recorder_of(s)->n_flushes++;
    return 0;
}

static int record_leave(struct param_store *s, struct err *err)
{
    (void)err;
    recorder_of(s)->n_leaves++;
    return 0;
}

static int record_prefetch(struct param_store *s, const struct ps_pull_section *sections,
                           uint32_t n, struct err *err)
{
    (void)sections;
    (void)n;
    (void)err;
    recorder_of(s)->n_prefetches++;
    return 0;
}

static void record_prefetch_end(struct param_store *s)
{
    recorder_of(s)->n_prefetch_ends++;
}

static void record_cancel(struct param_store *s)
{
    recorder_of(s)->n_cancels++;
}

static int record_copy(struct param_store *s, struct param_store *to, struct err *err)
{
    (void)to;
    (void)err;
    recorder_of(s)->n_copies++;
    return 0;
}

static uint64_t record_clock(const struct param_store *s)
{
    (void)s;
    return 17;
}

static void record_stats(const struct param_store *s, struct ps_stats *ret)
{
    (void)s;
    ret->min_clock = 19;
}

static struct push_encoder *record_encoder(const struct param_store *s)
{
    return (struct push_encoder *)(uintptr_t)s;
}

static uint64_t record_resume(struct param_store *s)
{
    (void)s;
    return 23;
}

static void record_close(struct param_store *s)
{
    (void)s;
}

static const struct param_store_ops record_ops = { .table = record_table,
                                                   .pull_start = record_pull,
                                                   .pull_wait = record_wait,
                                                   .push = record_push,
                                                   .flush = record_flush,
                                                   .leave = record_leave,
                                                   .clock = record_clock,
                                                   .stats = record_stats,
                                                   .encoder = record_encoder,
                                                   .close = record_close,
                                                   .resume = record_resume,
                                                   .prefetch = record_prefetch,
                                                   .prefetch_end = record_prefetch_end,
                                                   .cancel = record_cancel,
                                                   .copy = record_copy,
                                                   .overlaps = true,
                                                   .has_places = true };

static void what_is_not_replaced_is_forwarded(void **state)
{
    const struct param_store_periodic_options options = { .period_of = always_two };
    struct recorder r = { .store.ops = &record_ops };
    struct param_store *s = param_store_periodic_new(&r.store, &options);
    struct ps_stats stats = { 0 };
    struct err err;

    (void)state;
    assert_true(s->ops->overlaps && s->ops->has_places);
    assert_int_equal(s->ops->prefetch(s, NULL, 0, &err), 0);
    assert_non_null(s->ops->prefetch_end);
    s->ops->prefetch_end(s);
    s->ops->cancel(s);
    assert_int_equal(s->ops->flush(s, &err), 0);
    assert_int_equal(s->ops->copy(s, NULL, &err), 0);
    assert_int_equal(s->ops->leave(s, &err), 0);
    assert_int_equal(r.n_prefetches, 1);
    assert_int_equal(r.n_prefetch_ends, 1);
    assert_int_equal(r.n_cancels, 1);
    assert_int_equal(r.n_flushes, 1);
    assert_int_equal(r.n_copies, 1);
    assert_int_equal(r.n_leaves, 1);
    assert_int_equal(s->ops->clock(s), 17);
    s->ops->stats(s, &stats);
    assert_int_equal(stats.min_clock, 19);
    assert_ptr_equal(s->ops->encoder(s), &r);
    assert_int_equal(s->ops->resume(s), 23);
    s->ops->close(s);
}

/* In lock step what is left weighs as the step before, and a step ends with it, also if nothing is left. */
static void see_leaving(uint32_t n_steps, bool drops, uint32_t n_left)
{
    const struct param_store_periodic_options options = {
        .rule = LOCAL_TENSOR_STEPS, .slow_lr = 1, .lock_step = true, .period_of = always_two
    };
    struct recorder r = { .store.ops = &record_ops };
    struct param_store *s = param_store_periodic_new(&r.store, &options);
    struct table_spec spec = dense_spec(0);
    float floats[FLOATS];
    struct ps_pull_section pull = { .n_keys = N_BLOCKS, .keys = all_blocks, .dst = floats };
    struct ps_push_section push = { .n_keys = N_BLOCKS, .keys = all_blocks, .values = floats };
    struct err err;

    assert_int_equal(s->ops->table(s, &spec, &pull.table, &err), 0);
    for (uint64_t clock = 0; clock < n_steps; clock++) {
        assert_int_equal(s->ops->pull_start(s, clock, &pull, 1, &err), 0);
        assert_int_equal(s->ops->pull_wait(s, &err), 0);
        assert_int_equal(s->ops->push(s, clock, 100 + (uint32_t)clock, true, &push, 1, &err),
                         0);
    }
    if (drops)
        s->ops->drop_unpushed(s);
    assert_int_equal(s->ops->leave(s, &err), 0);
    assert_int_equal(r.clock, n_steps);
    assert_int_equal(r.n_samples, 99 + n_steps);
    assert_int_equal(r.n_sections, n_left);
    assert_true(r.tick);
    s->ops->close(s);
}

static void what_is_left_weighs_as_the_step_before(void **state)
{
    (void)state;
    see_leaving(5, false, 1);
    see_leaving(6, false, 0);
    see_leaving(5, true, 0);
}

/* The step that a worker ends as it leaves is one of the incarnation that it then is. */
static void a_worker_that_joined_again_leaves_at_its_new_clock(void **state)
{
    const struct param_store_periodic_options options = {
        .rule = LOCAL_TENSOR_STEPS, .slow_lr = 1, .lock_step = true, .period_of = always_two
    };
    struct recorder r = { .store.ops = &record_ops };
    struct param_store *s = param_store_periodic_new(&r.store, &options);
    struct err err;

    (void)state;
    assert_int_equal(s->ops->push(s, 4, 8, true, NULL, 0, &err), 0);
    assert_int_equal(s->ops->resume(s), 23);
    assert_int_equal(s->ops->leave(s, &err), 0);
    assert_int_equal(r.clock, 23);
    assert_true(r.tick);
    s->ops->close(s);
}

static int record_variance(struct param_store *s, const struct table_spec *spec, uint32_t *ret,
                           struct err *err)
{
    *ret = strncmp(spec->name, "job/variance.", 13) == 0;
    return *ret && !recorder_of(s)->n_variances++ ? err_set(err, PS_ESPEC, "refused") : 0;
}

/* A second moment: its table is made by the call after one that failed, and nothing is pushed before a step. */
static void a_second_moment_needs_its_table_and_a_step(void **state)
{
    const struct param_store_periodic_options options = {
        .rule = LOCAL_TENSOR_STEPS, .slow_lr = 1, .period_of = always_two, .freeze_at = 4
    };
    struct param_store_ops ops = record_ops;
    struct recorder r = { .store.ops = &ops };
    struct param_store *s = param_store_periodic_new(&r.store, &options);
    struct table_spec spec = dense_spec(0);
    float floats[FLOATS] = { 0 };
    const struct ps_push_section push = {
        .op = SECTION_ASSIGN, .n_keys = N_BLOCKS, .keys = all_blocks, .values = floats
    };
    uint32_t table;
    struct err err;

    (void)state;
    ops.table = record_variance;
    spec.optim = TABLE_SPEC_ADAM;
    spec.params = table_spec_optim_defaults(TABLE_SPEC_ADAM);
    assert_int_equal(s->ops->table(s, &spec, &table, &err), PS_ESPEC);
    assert_int_equal(s->ops->table(s, &spec, &table, &err), 0);
    assert_int_equal(r.n_variances, 2);
    assert_int_equal(s->ops->push(s, 9, 8, true, &push, 1, &err), 0);
    assert_int_equal(r.n_sections, 1);
    s->ops->close(s);
}

#define N_PERMITS 3u
#define N_AHEAD_STEPS 200u

/* A worker that pulls ahead: pulls on a thread of their own, pushes here. */
struct ahead {
    struct param_store *store;
    uint32_t table;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t n_pulled, n_pushed;
    float weights[FLOATS];
};

static void *pull_ahead(void *arg)
{
    struct ahead *a = arg;
    const struct ps_pull_section section = {
        .table = a->table, .n_keys = N_BLOCKS, .keys = all_blocks, .dst = a->weights
    };
    struct err err;
    int status = 0;

    for (uint64_t clock = 0; clock < N_AHEAD_STEPS && !status; clock++) {
        pthread_mutex_lock(&a->lock);
        while (clock >= a->n_pushed + N_PERMITS)
            pthread_cond_wait(&a->changed, &a->lock);
        pthread_mutex_unlock(&a->lock);
        status = a->store->ops->pull_start(a->store, clock, &section, 1, &err);
        if (!status)
            status = a->store->ops->pull_wait(a->store, &err);
        pthread_mutex_lock(&a->lock);
        a->n_pulled++;
        pthread_cond_broadcast(&a->changed);
        pthread_mutex_unlock(&a->lock);
    }
    return status ? a : NULL;
}

static void push_behind(struct ahead *a)
{
    float gradient[FLOATS];
    const struct ps_push_section section = {
        .table = a->table, .n_keys = N_BLOCKS, .keys = all_blocks, .values = gradient
    };
    struct err err;

    for (uint32_t i = 0; i < FLOATS; i++)
        gradient[i] = 0.01f * (float)i;
    for (uint64_t clock = 0; clock < N_AHEAD_STEPS; clock++) {
        pthread_mutex_lock(&a->lock);
        while (a->n_pulled <= clock)
            pthread_cond_wait(&a->changed, &a->lock);
        pthread_mutex_unlock(&a->lock);
        assert_int_equal(a->store->ops->push(a->store, clock, 8, true, &section, 1, &err), 0);
        pthread_mutex_lock(&a->lock);
        a->n_pushed++;
        pthread_cond_broadcast(&a->changed);
        pthread_mutex_unlock(&a->lock);
    }
}

/* fake_deinit() does that. */
/* A store that counts what is announced to it. */
struct announced {
    struct param_store store;
    int n_prefetches, n_ends;
};

static int note_prefetch(struct param_store *s, const struct ps_pull_section *sections,
                         uint32_t n, struct err *err)
{
    (void)sections;
    (void)n;
    (void)err;
    ((struct announced *)(void *)s)->n_prefetches++;
    return 0;
}

static void note_end(struct param_store *s)
{
    ((struct announced *)(void *)s)->n_ends++;
}

static void close_nothing(struct param_store *s)
{
    (void)s;
}

static void pulls_and_pushes_go_on_at_once(void **state)
{
    const struct fake_plan plan = fake_plan_of(seed_by_the_clock(), N_PERMITS);
    const struct param_store_periodic_options options = { .rule = LOCAL_TENSOR_STEPS,
                                                          .slow_lr = 1,
                                                          .period_of = always_two };
    const struct table_spec spec = dense_spec(0);
    struct ahead a = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
    struct param_store_ops ops = fake_overlaps;
    struct fake fake;
    pthread_t puller;
    void *failed;
    struct err err;

    (void)state;
    ops.close = close_nothing;
    fake_init(&fake, &ops, &plan);
    a.store = param_store_periodic_new(&fake.store, &options);
    assert_int_equal(a.store->ops->table(a.store, &spec, &a.table, &err), 0);
    assert_int_equal(pthread_create(&puller, NULL, pull_ahead, &a), 0);
    push_behind(&a);
    pthread_join(puller, &failed);
    assert_null(failed);
    a.store->ops->close(a.store);
    fake_deinit(&fake);
}

static void what_is_announced_is_for_the_store_behind_it(void **state)
{
    static const struct param_store_ops ops = { .prefetch = note_prefetch,
                                                .prefetch_end = note_end,
                                                .close = close_nothing };
    static const struct param_store_ops none = { .close = close_nothing };
    const struct param_store_periodic_options options = { .period_of = period_of };
    struct announced a = { .store.ops = &ops };
    struct param_store *s = param_store_periodic_new(&a.store, &options);
    struct err err;

    (void)state;
    assert_int_equal(s->ops->prefetch(s, NULL, 0, &err), 0);
    s->ops->prefetch_end(s);
    assert_int_equal(a.n_prefetches, 1);
    assert_int_equal(a.n_ends, 1);
    s->ops->close(s);
    a.store.ops = &none;
    s = param_store_periodic_new(&a.store, &options);
    assert_true(!s->ops->prefetch && !s->ops->prefetch_end);
    s->ops->close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_random_run_is_that_of_a_plain_reference),
        cmocka_unit_test(what_is_left_goes_when_the_worker_leaves),
        cmocka_unit_test(tables_take_turns),
        cmocka_unit_test(second_moments_are_shared_once_and_stay),
        cmocka_unit_test(a_second_moment_of_zeros_is_shared_again),
        cmocka_unit_test(what_is_not_replaced_is_forwarded),
        cmocka_unit_test(what_is_left_weighs_as_the_step_before),
        cmocka_unit_test(a_worker_that_joined_again_leaves_at_its_new_clock),
        cmocka_unit_test(a_second_moment_needs_its_table_and_a_step),
        cmocka_unit_test(pulls_and_pushes_go_on_at_once),
        cmocka_unit_test(what_is_announced_is_for_the_store_behind_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
