#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/hash.h"
#include "tests/support/seed.h"
#include "tests/unit/worker/cluster.h"
#include "worker/cache/replica.h"
#include "worker/param_store_exact_cache.h"

/* A job's only worker with its cache of rows (param_store_exact_cache.h) before servers without a network
 * (cluster.h): two sparse tables and a dense one, random batches, and each pull held against the
 * servers' own answer.
 */
#define DIM 5u
#define N_FLOATS 37u
#define BLOCK 16u
#define N_TABLES 3u
#define LARGE (UINT64_C(1) << 30)

/* What one pull brings. */
struct rows {
    float emb[CLUSTER_KEYS_MAX * DIM], wide[CLUSTER_KEYS_MAX], dense[3 * BLOCK];
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
    float row_decay;                 /* of the sparse tables */
};

struct bench {
    struct setup setup;
    struct cluster *cluster;
    struct param_store *cache;
    uint64_t seed, n_random, clock;
    uint32_t tables[N_TABLES];
};

static const uint64_t blocks[3] = { 0, 1, 2 };

static uint64_t draw(struct bench *b, uint64_t below)
{
    return hash_mix2(b->seed, b->n_random++) % below;
}

static void make_table(struct bench *b, uint32_t i, struct table_spec spec)
{
    struct err err;

    spec.optim = b->setup.optim;
    spec.params = table_spec_optim_defaults(spec.optim);
    spec.params.weight_decay = 0.01f;
    spec.storage = b->setup.storage;
    if (spec.kind == TABLE_SPEC_SPARSE)
        spec.row_decay = b->setup.row_decay;
    spec.seed = i + 1;
    spec.init = TABLE_SPEC_INIT_UNIFORM;
    spec.init_scale = 0.1f;
    snprintf(spec.name, sizeof spec.name, "job/%u", i);
    assert_int_equal(b->cache->ops->table(b->cache, &spec, &b->tables[i], &err), 0);
}

static void bench_init(struct bench *b, struct setup setup, uint64_t seed)
{
    *b = (struct bench){ .setup = setup, .seed = seed };
    b->cluster = cluster_new(setup.n_shards, setup.mode, setup.memory_max_bytes);
    b->cache = param_store_exact_cache_new(
        &b->cluster->store,
        &(struct param_store_exact_cache_options){ .max_bytes = setup.cache_bytes,
                                                   .mode = setup.mode,
                                                   .n_threads = seed % 2 ? 3 : 1 });
    make_table(b, 0, (struct table_spec){ .dim = DIM, .limits = setup.limits });
    make_table(b, 1, (struct table_spec){ .dim = 1 });
    make_table(
        b, 2,
        (struct table_spec){ .kind = TABLE_SPEC_DENSE, .dim = BLOCK, .n_floats = N_FLOATS });
}

static void bench_deinit(struct bench *b)
{
    b->cache->ops->close(b->cache);
}

static struct cluster_keys draw_batch(struct bench *b)
{
    return cluster_draw_keys(b->seed, &b->n_random, 60);
}

static uint32_t ask(const struct bench *b, const struct cluster_keys *batch, struct rows *rows,
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

static int pull(struct bench *b, struct param_store *s, const struct cluster_keys *batch,
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

static void check_pull(struct bench *b, const struct cluster_keys *batch)
{
    struct rows got, want;

    assert_int_equal(pull(b, b->cache, batch, &got), 0);
    assert_int_equal(pull(b, &b->cluster->store, batch, &want), 0);
    assert_memory_equal(&got, &want, sizeof got);
}

static uint32_t report_push(struct bench *b, const struct cluster_keys *batch,
                            struct rows *grads, struct ps_push_section *ret)
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

static int push(struct bench *b, const struct cluster_keys *batch)
{
    struct ps_push_section sections[N_TABLES];
    struct rows grads;
    struct err err;
    uint32_t n = report_push(b, batch, &grads, sections);
    int status = b->cache->ops->push(b->cache, b->clock, 8, true, sections, n, &err);

    b->clock += !status;
    return status;
}

static void push_of_somebody_else(struct bench *b, const struct cluster_keys *batch)
{
    struct ps_push_section sections[N_TABLES];
    struct rows grads;
    uint32_t n = report_push(b, batch, &grads, sections);

    cluster_send_as_other(b->cluster, b->clock, sections, n);
}

/* A batch, and where its rows go. */
struct step {
    struct cluster_keys batch;
    struct rows rows;
};

/* Its rows are those that the servers have; some may have been read ahead. */
static void check_step(struct bench *b, struct step *step)
{
    struct ps_pull_section sections[N_TABLES];
    const uint32_t n = ask(b, &step->batch, &step->rows, sections);
    struct rows want;
    struct err err;

    assert_int_equal(b->cache->ops->pull_start(b->cache, b->clock, sections, n, &err), 0);
    assert_int_equal(b->cache->ops->pull_wait(b->cache, &err), 0);
    assert_int_equal(pull(b, &b->cluster->store, &step->batch, &want), 0);
    assert_memory_equal(&step->rows, &want, sizeof want);
}

static void prefetch(struct bench *b, struct step *step)
{
    struct ps_pull_section sections[N_TABLES];
    const uint32_t n = ask(b, &step->batch, &step->rows, sections);
    struct err err;

    assert_int_equal(b->cache->ops->prefetch(b->cache, sections, n, &err), 0);
}

/* Steps, each with the next batch announced or not, and reading in between that pushes nothing. What an announcement
 * has begun goes on beside the push, or is over before it. */
static void train(struct bench *b, uint32_t n_steps)
{
    struct step steps[2] = { { .batch = draw_batch(b) } };

    for (uint32_t i = 0; i < n_steps; i++) {
        struct step *step = &steps[i % 2], *next = &steps[(i + 1) % 2];
        struct cluster_keys other = draw_batch(b);

        check_step(b, step);
        *next = (struct step){ .batch = draw_batch(b) };
        if (draw(b, 4))
            prefetch(b, next);
        if (draw(b, 4))
            b->cache->ops->prefetch_end(b->cache);
        assert_int_equal(push(b, &step->batch), 0);
        if (draw(b, 4) == 0)
            check_pull(b, &other);
    }
    b->cache->ops->prefetch_end(b->cache); /* the steps' memory ends here */
}

static struct ps_stats stats_of(const struct bench *b)
{
    struct ps_stats stats;

    b->cache->ops->stats(b->cache, &stats);
    return stats;
}

static const struct setup plain = { .n_shards = 3,
                                    .mode = TABLE_SPEC_MODE_BSP,
                                    .optim = TABLE_SPEC_ADAGRAD,
                                    .cache_bytes = LARGE };

static void what_is_read_from_the_copy_has_the_bits_of_a_pull(void **state)
{
    static const enum codec_id pushes[] = { CODEC_FP32, CODEC_INT8, CODEC_ONEBIT, CODEC_TOPK };
    static const enum codec_id pulls[] = { CODEC_FP32, CODEC_BF16, CODEC_INT8 };
    static const enum table_spec_mode modes[] = { TABLE_SPEC_MODE_BSP, TABLE_SPEC_MODE_ASYNC };
    const uint64_t seed = seed_by_the_clock();

    (void)state;
    for (uint32_t i = 0; i < 2 * TABLE_SPEC_OPTIM_END * TABLE_SPEC_STORAGE_END; i++) {
        struct setup setup = { .n_shards = i % 2 ? 3 : 1,
                               .mode = modes[i / 2 % 2],
                               .optim = (enum table_spec_optim)(i / 2 % TABLE_SPEC_OPTIM_END),
                               .storage =
                                   (enum table_spec_storage)(i / 2 / TABLE_SPEC_OPTIM_END),
                               .push = pushes[i % 4],
                               .pull = pulls[i % 3],
                               .cache_bytes = i % 5 ? LARGE : 1,
                               .row_decay = i % 7 ? 0 : 0.01f };
        struct bench b;

        if (setup.optim == TABLE_SPEC_FTRL) /* its weights do not decay */
            setup.row_decay = 0;
        print_message("run %u\n", i);
        bench_init(&b, setup, seed + i);
        train(&b, 60);
        assert_true(stats_of(&b).rows_cached > 0 ||
                    (setup.row_decay > 0 && setup.storage != TABLE_SPEC_FP32));
        assert_true(stats_of(&b).rows_read_ahead <= stats_of(&b).rows_cached);
        assert_true(stats_of(&b).rows_read_ahead == 0 || setup.row_decay == 0);
        assert_true(b.cluster->stats.foreign == 0);
        bench_deinit(&b);
    }
}

static void a_row_that_is_held_is_not_pulled_again(void **state)
{
    struct cluster_keys batch = { 3, { 1, 2, 3 } };
    struct bench b;
    uint64_t n_rows;

    (void)state;
    bench_init(&b, plain, 1);
    check_pull(&b, &batch);
    assert_int_equal(push(&b, &batch), 0);
    n_rows = b.cluster->stats.rows_pulled;
    for (int i = 0; i < 5; i++) {
        struct rows rows;

        assert_int_equal(pull(&b, b.cache, &batch, &rows), 0);
        assert_int_equal(push(&b, &batch), 0);
    }
    assert_int_equal(b.cluster->stats.rows_pulled, n_rows);
    assert_int_equal(stats_of(&b).rows_asked, 2 * 3 * 6);
    assert_int_equal(stats_of(&b).rows_cached, 2 * 3 * 5);
    assert_int_equal(stats_of(&b).rows_pulled_again, 0);
    assert_true(stats_of(&b).bytes_saved > 0);
    bench_deinit(&b);
}

static void a_small_copy_stays_small_and_counts_what_it_pulls_again(void **state)
{
    struct setup setup = plain;
    struct bench b;

    (void)state;
    setup.cache_bytes = 3 * 2 * CLUSTER_KEYS_MAX * 80; /* a few batches */
    bench_init(&b, setup, seed_by_the_clock());
    train(&b, 300);
    assert_true(stats_of(&b).rows_pulled_again > 0);
    assert_true(stats_of(&b).rows_cached > 0);
    bench_deinit(&b);
}

static void
somebody_elses_push_is_seen_with_the_next_push_and_the_copy_begins_anew(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, plain, seed_by_the_clock());
    for (int i = 0; i < 5; i++) {
        struct cluster_keys batch = draw_batch(&b), all = { 0 };

        train(&b, 20);
        batch.n = batch.n ? batch.n : 1;
        push_of_somebody_else(&b, &batch);
        assert_int_equal(push(&b, &batch), 0); /* the answer tells */
        check_pull(&b, &batch);
        check_pull(&b, &all);
    }
    train(&b, 20);
    bench_deinit(&b);
}

static void after_too_many_pushes_of_others_all_is_pulled_plainly(void **state)
{
    struct cluster_keys batch = { 3, { 1, 2, 3 } };
    struct bench b;
    uint64_t n_rows;

    (void)state;
    bench_init(&b, plain, 5);
    for (int i = 0; i < 20; i++) {
        check_pull(&b, &batch);
        push_of_somebody_else(&b, &batch);
        assert_int_equal(push(&b, &batch), 0);
    }
    n_rows = stats_of(&b).rows_asked;
    check_pull(&b, &batch);
    assert_int_equal(stats_of(&b).rows_asked, n_rows);
    bench_deinit(&b);
}

static void rows_that_a_server_leaves_out_switch_the_copy_off_before_it_is_read(void **state)
{
    struct setup setup = plain;
    struct bench b;

    (void)state;
    setup.memory_max_bytes = 300000;
    bench_init(&b, setup, 3);
    for (uint32_t i = 0; i < 600; i++) {
        struct cluster_keys batch = { .n = CLUSTER_KEYS_MAX };

        for (uint32_t k = 0; k < CLUSTER_KEYS_MAX; k++)
            batch.keys[k] = (uint64_t)(i * CLUSTER_KEYS_MAX + k) / 2 * 1000003 + k;
        check_pull(&b, &batch);
        assert_int_equal(push(&b, &batch), 0);
        check_pull(&b, &batch);
    }
    assert_true(b.cluster->stats.rows_refused > 0);
    bench_deinit(&b);
}

static void tables_whose_rows_come_late_or_go_are_pulled_plainly(void **state)
{
    struct setup setup = plain;
    struct bench b;

    (void)state;
    setup.limits = (struct table_spec_limits){ .admit_touches = 3, .admit_clocks = 100 };
    bench_init(&b, setup, seed_by_the_clock());
    train(&b, 100);
    assert_true(stats_of(&b).rows_cached > 0); /* of the other table */
    bench_deinit(&b);
}

static void a_worker_declared_dead_begins_with_an_empty_copy(void **state)
{
    struct cluster_keys batch = { 3, { 1, 2, 3 } };
    struct rows rows;
    struct bench b;

    (void)state;
    bench_init(&b, plain, 9);
    train(&b, 10);
    b.cluster->fail = PS_EFENCED;
    assert_int_equal(push(&b, &batch), PS_EFENCED);
    b.cluster->stats.rejoins++;
    /* What was under way is lost, and somebody may have pushed meanwhile. */
    push_of_somebody_else(&b, &batch);
    check_pull(&b, &batch);
    b.cluster->fail = PS_EFENCED;
    batch.keys[0] = 77;
    batch.n = 1;
    assert_int_equal(pull(&b, b.cache, &batch, &rows), PS_EFENCED);
    train(&b, 10);
    bench_deinit(&b);
}

static void an_answer_that_cannot_be_read_switches_the_copy_off(void **state)
{
    struct cluster_keys batch = { 3, { 1, 2, 3 } };
    struct bench b;

    (void)state;
    bench_init(&b, plain, 9);
    b.cluster->garbles = true;
    check_pull(&b, &batch);
    assert_int_equal(push(&b, &batch), 0);
    train(&b, 10);
    assert_int_equal(stats_of(&b).rows_cached, 0);
    bench_deinit(&b);
}

/* A push is fenced; the copy begins anew, and the servers have rows that it has not. */
static void rejoin(struct bench *b, const struct cluster_keys *batch)
{
    b->cluster->fail = PS_EFENCED;
    assert_int_equal(push(b, batch), PS_EFENCED);
    b->cluster->stats.rejoins++;
}

static void a_push_fenced_after_rows_were_asked_ahead_leaves_the_next_pull_whole(void **state)
{
    struct cluster_keys batch = { 3, { 1, 2, 3 } }, next = { 2, { 7, 8 } };
    struct ps_pull_section sections[N_TABLES];
    struct setup setup = plain;
    struct rows unused;
    struct bench b;
    uint64_t n_pulls;
    struct err err;

    (void)state;
    setup.limits = (struct table_spec_limits){ .admit_touches = 3, .admit_clocks = 100 };
    bench_init(&b, setup, 11);
    for (int i = 0; i < 5; i++) { /* its rows are there, and not zero */
        check_pull(&b, &batch);
        assert_int_equal(push(&b, &batch), 0);
    }
    rejoin(&b, &batch);
    check_pull(&b, &batch);
    n_pulls = b.cluster->stats.pulls;
    assert_int_equal(
        b.cache->ops->prefetch(b.cache, sections, ask(&b, &next, &unused, sections), &err), 0);
    b.cache->ops->prefetch_end(b.cache);
    assert_int_equal(b.cluster->stats.pulls, n_pulls + 1);
    rejoin(&b, &batch);
    check_pull(&b, &batch);
    train(&b, 10);
    bench_deinit(&b);
}

/* One step, and the next one's rows read ahead: 1 and 2 of them no push of the step changes, 3 it does. */
static void begin_steps(struct bench *b, struct step *step, struct step *next)
{
    const struct cluster_keys all = { 5, { 1, 2, 3, 4, 5 } };

    check_pull(b, &all);
    assert_int_equal(push(b, &all), 0);
    *step = (struct step){ .batch = { 3, { 3, 4, 5 } } };
    *next = (struct step){ .batch = { 3, { 1, 2, 3 } } };
    check_step(b, step);
    prefetch(b, next);
    b->cache->ops->prefetch_end(b->cache);
}

static void rows_that_the_push_does_not_change_are_read_before_it(void **state)
{
    struct step step, next;
    struct bench b;

    (void)state;
    bench_init(&b, plain, 21);
    begin_steps(&b, &step, &next);
    assert_true(next.rows.emb[0] != 0 && next.rows.wide[1] != 0);
    assert_true(next.rows.emb[2 * DIM] == 0 && next.rows.wide[2] == 0);
    assert_int_equal(push(&b, &step.batch), 0);
    check_step(&b, &next);
    assert_int_equal(stats_of(&b).rows_read_ahead, 2 * 2);
    assert_int_equal(stats_of(&b).rows_asked, 2 * (5 + 3 + 3));
    assert_int_equal(stats_of(&b).rows_cached, 2 * (3 + 3));
    bench_deinit(&b);
}

static void a_push_to_other_rows_voids_what_was_read_ahead(void **state)
{
    const struct cluster_keys other = { 2, { 1, 3 } };
    struct step step, next;
    struct bench b;

    (void)state;
    bench_init(&b, plain, 22);
    begin_steps(&b, &step, &next);
    assert_int_equal(push(&b, &other), 0);
    assert_int_equal(push(&b, &step.batch), 0);
    check_step(&b, &next);
    assert_int_equal(stats_of(&b).rows_read_ahead, 0);
    bench_deinit(&b);
}

static void a_push_with_rows_of_old_residuals_voids_what_was_read_ahead(void **state)
{
    struct setup setup = plain;
    struct step step, next;
    struct bench b;

    (void)state;
    setup.push = CODEC_ONEBIT;
    bench_init(&b, setup, 23);
    begin_steps(&b, &step, &next);
    push_encoder_bound_residuals(b.cluster->encoder, 1);
    assert_int_equal(push(&b, &step.batch), 0);
    check_step(&b, &next);
    assert_int_equal(stats_of(&b).rows_read_ahead, 0);
    bench_deinit(&b);
}

static void somebody_elses_push_voids_what_was_read_ahead(void **state)
{
    const struct cluster_keys other = { 2, { 1, 3 } };
    struct step step, next;
    struct bench b;

    (void)state;
    bench_init(&b, plain, 24);
    begin_steps(&b, &step, &next);
    push_of_somebody_else(&b, &other);
    assert_int_equal(push(&b, &step.batch), 0); /* the answer tells */
    check_step(&b, &next);
    bench_deinit(&b);
}

static void a_pull_outside_training_has_the_same_bits_and_changes_nothing(void **state)
{
    struct cluster_keys batch = { 3, { 1, 2, 3 } }, other = { 3, { 2, 3, 900 } };
    struct ps_pull_section sections[N_TABLES];
    struct ps_stats before, after;
    struct rows got = { 0 }, want;
    uint64_t n_rows;
    struct bench b;
    struct err err;

    (void)state;
    bench_init(&b, plain, 12);
    assert_int_equal(push(&b, &other), 0);
    rejoin(&b, &other);
    for (int i = 0; i < 9; i++) {
        check_pull(&b, &batch);
        assert_int_equal(push(&b, &batch), 0);
    }
    before = stats_of(&b);
    n_rows = b.cluster->stats.rows_pulled;
    assert_true(before.bytes_saved > 0);
    assert_int_equal(b.cache->ops->pull_for_eval(b.cache, b.clock, sections,
                                                 ask(&b, &other, &got, sections), &err),
                     0);
    assert_int_equal(b.cache->ops->pull_wait(b.cache, &err), 0);
    assert_int_equal(b.cluster->stats.rows_pulled, n_rows + 9); /* all of three tables */
    after = stats_of(&b);
    assert_int_equal(pull(&b, &b.cluster->store, &other, &want), 0);
    assert_memory_equal(&got, &want, sizeof got);
    assert_int_equal(after.rows_asked, before.rows_asked);
    assert_int_equal(after.rows_cached, before.rows_cached);
    assert_int_equal(after.rows_pulled_again, before.rows_pulled_again);
    assert_int_equal(after.bytes_saved, before.bytes_saved);
    n_rows = b.cluster->stats.rows_pulled;
    assert_int_equal(pull(&b, b.cache, &other, &got), 0);
    assert_int_equal(b.cluster->stats.rows_pulled, n_rows + 2); /* key 900 was not kept */
    bench_deinit(&b);
}

static void a_copy_that_begins_anew_has_lost_nothing(void **state)
{
    static const struct table_spec spec = { .dim = DIM, .name = "job/t" };
    static const struct table_spec late = {
        .dim = DIM, .name = "job/late", .limits = { .admit_touches = 3, .admit_clocks = 9 }
    };
    struct replica *r = replica_new(
        &(struct replica_options){ .n_shards = 1, .mode = TABLE_SPEC_MODE_BSP, .n_turns = 1 });
    struct err err;

    (void)state;
    enter_shard();
    assert_int_equal(replica_add_table(r, 0, &spec, &err), 0);
    assert_int_equal(replica_add_table(r, 1, &late, &err), 0);
    replica_note_evicted(r, 0, 5);
    assert_true(replica_was_evicted(r, 0, 5));
    assert_int_equal(replica_clear(r, &err), 0);
    assert_false(replica_was_evicted(r, 0, 5));
    assert_true(replica_covers(r, 0));
    assert_false(replica_covers(r, 1)); /* nor does it begin to hold what it must not */
    replica_free(r);
}

#ifdef PS_FAULTS
static void the_kth_allocation_fails_and_no_bit_is_wrong(void **state)
{
    (void)state;
    for (long k = 0; k < 60; k++) {
        struct cluster_keys batch;
        struct rows got;
        struct bench b;

        bench_init(&b, plain, (uint64_t)k);
        train(&b, 3);
        batch = draw_batch(&b);
        memory_fail_after(k);
        (void)!pull(&b, b.cache, &batch, &got);
        memory_fail_after(-1);
        check_pull(&b, &batch);
        b.cluster->tap_fails_after = k;
        assert_int_equal(push(&b, &batch), 0);
        b.cluster->tap_fails_after = -1;
        train(&b, 5);
        bench_deinit(&b);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_read_from_the_copy_has_the_bits_of_a_pull),
        cmocka_unit_test(a_row_that_is_held_is_not_pulled_again),
        cmocka_unit_test(a_small_copy_stays_small_and_counts_what_it_pulls_again),
        cmocka_unit_test(
            somebody_elses_push_is_seen_with_the_next_push_and_the_copy_begins_anew),
        cmocka_unit_test(after_too_many_pushes_of_others_all_is_pulled_plainly),
        cmocka_unit_test(rows_that_a_server_leaves_out_switch_the_copy_off_before_it_is_read),
        cmocka_unit_test(tables_whose_rows_come_late_or_go_are_pulled_plainly),
        cmocka_unit_test(a_worker_declared_dead_begins_with_an_empty_copy),
        cmocka_unit_test(an_answer_that_cannot_be_read_switches_the_copy_off),
        cmocka_unit_test(a_push_fenced_after_rows_were_asked_ahead_leaves_the_next_pull_whole),
        cmocka_unit_test(rows_that_the_push_does_not_change_are_read_before_it),
        cmocka_unit_test(a_push_to_other_rows_voids_what_was_read_ahead),
        cmocka_unit_test(a_push_with_rows_of_old_residuals_voids_what_was_read_ahead),
        cmocka_unit_test(somebody_elses_push_voids_what_was_read_ahead),
        cmocka_unit_test(a_pull_outside_training_has_the_same_bits_and_changes_nothing),
        cmocka_unit_test(a_copy_that_begins_anew_has_lost_nothing),
#ifdef PS_FAULTS
        cmocka_unit_test(the_kth_allocation_fails_and_no_bit_is_wrong),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
