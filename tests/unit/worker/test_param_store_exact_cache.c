#include "worker/param_store_exact_cache.h"

#include <errno.h>
#include <string.h>

#include "tests/support/seed.h"
#include "tests/unit/worker/exact_cache_bench.h"
#include "worker/cache/replica.h"

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
                               .cache_bytes = i % 5 ? LARGE : 1 };
        struct bench b;

        print_message("run %u\n", i);
        bench_init(&b, setup, seed + i);
        train(&b, 60);
        assert_true(stats_of(&b).rows_cached > 0);
        assert_true(b.cluster->stats.foreign == 0);
        bench_deinit(&b);
    }
}

static void a_row_that_is_held_is_not_pulled_again(void **state)
{
    struct batch batch = { 3, { 1, 2, 3 } };
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
    setup.cache_bytes = 3 * 2 * KEYS_MAX * 80; /* a few batches */
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
        struct batch batch = draw_batch(&b), all = { 0 };

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
    struct batch batch = { 3, { 1, 2, 3 } };
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
        struct batch batch = { .n = KEYS_MAX };

        for (uint32_t k = 0; k < KEYS_MAX; k++)
            batch.keys[k] = (uint64_t)(i * KEYS_MAX + k) / 2 * 1000003 + k;
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
    struct batch batch = { 3, { 1, 2, 3 } };
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
    struct batch batch = { 3, { 1, 2, 3 } };
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
static void rejoin(struct bench *b, const struct batch *batch)
{
    b->cluster->fail = PS_EFENCED;
    assert_int_equal(push(b, batch), PS_EFENCED);
    b->cluster->stats.rejoins++;
}

static void a_push_fenced_after_rows_were_asked_ahead_leaves_the_next_pull_whole(void **state)
{
    struct batch batch = { 3, { 1, 2, 3 } }, next = { 2, { 7, 8 } };
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
    assert_int_equal(b.cluster->stats.pulls, n_pulls + 1);
    rejoin(&b, &batch);
    check_pull(&b, &batch);
    train(&b, 10);
    bench_deinit(&b);
}

static void a_pull_aside_has_the_same_bits_and_leaves_no_trace(void **state)
{
    struct batch batch = { 3, { 1, 2, 3 } }, other = { 3, { 2, 3, 900 } };
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
        struct batch batch;
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
        cmocka_unit_test(a_pull_aside_has_the_same_bits_and_leaves_no_trace),
        cmocka_unit_test(a_copy_that_begins_anew_has_lost_nothing),
#ifdef PS_FAULTS
        cmocka_unit_test(the_kth_allocation_fails_and_no_bit_is_wrong),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
