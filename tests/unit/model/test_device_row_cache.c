/* Rows that stay on a device: the CPU's bits, whatever is kept; what is there is not copied; after a failure nothing is
 * taken for granted. */
#include "tests/support/far_device.h"
#include "tests/unit/model/row_cache_world.h"

static const struct far_device_plan plans[] = {
    { .late = false, .replays = false },
    { .late = true, .replays = true, .seed = 2 },
    { .late = true, .replays = false, .seed = 3 },
};

static void check_world(const struct world *w, const struct far_device_plan *plan)
{
    const struct world_way on_cpu = { .ops = &device_cpu, .keeps = true };
    struct world_way far = { .keeps = true, .blanks = true };
    struct world_end want, got;

    assert_true(world_play(w, &on_cpu, &want));
    assert_int_equal(want.counts.n_copied + want.counts.n_kept, 0);
    far.ops = far_device_ops(&device_cpu, plan);
    assert_true(world_play(w, &far, &got));
    assert_int_equal(world_n_failed(&got), 0);
    assert_int_equal(world_n_wrong(w, &got, &want), 0);
    assert_int_equal(got.counts.n_kept, world_n_there(w));
    assert_int_equal(got.counts.n_copied, world_n_rows(w) - world_n_there(w));
    world_end_free(&want);
    world_end_free(&got);
}

static void any_run_ends_in_the_cpus_bits_and_what_is_there_is_not_read(void **state)
{
    static const uint32_t n_places[] = { 0, 1, 5, WORLD_KEYS };
    const uint64_t seed = seed_of_run(20261122);

    (void)state;
    for (uint64_t i = 0; i < 24; i++) {
        struct world w;

        world_init(&w, 1 + (uint32_t)(hash_mix2(seed, i) % 9), n_places[i % COUNT_OF(n_places)],
                   hash_mix2(seed, ~i));
        assert_true(n_places[i % 4] < 5 || world_n_there(&w) > WORLD_STEPS);
        check_world(&w, &plans[i % COUNT_OF(plans)]);
        world_deinit(&w);
    }
}

static void rows_that_are_there_do_not_cross_the_bus(void **state)
{
    const struct far_device_plan *plan = &plans[1];
    struct world_end end;
    struct world_way way = { 0 };
    struct world w;
    uint64_t all, some;

    (void)state;
    world_init(&w, 64, WORLD_KEYS, seed_of_run(20261122));
    way.ops = far_device_ops(&device_cpu, plan);
    assert_true(world_play(&w, &way, &end));
    all = far_device_counts().upload_bytes;
    world_end_free(&end);
    way.ops = far_device_ops(&device_cpu, plan);
    way.keeps = true;
    assert_true(world_play(&w, &way, &end));
    some = far_device_counts().upload_bytes - world_n_rows(&w) * sizeof(uint32_t);
    assert_int_equal(all - some, world_n_there(&w) * world_row_bytes(&w));
    world_end_free(&end);
    world_deinit(&w);
}

/* The one that fails, and what was under way with it; those that begin later are right again. */
static void a_failure_is_that_of_all_steps_under_way_and_of_no_other(void **state)
{
    const struct world_way on_cpu = { .ops = &device_cpu };
    struct world_end want, got;
    struct world w;

    (void)state;
    world_init(&w, 4, WORLD_KEYS, seed_of_run(20261122));
    assert_true(world_play(&w, &on_cpu, &want));
    for (uint64_t k = 1; k <= WORLD_STEPS; k++) {
        const struct far_device_plan plan = { .late = true, .replays = true, .bad_wait = k };
        const struct world_way way = { .ops = far_device_ops(&device_cpu, &plan),
                                       .keeps = true };
        const uint64_t n_left = WORLD_STEPS + 1 - k;

        assert_true(world_play(&w, &way, &got));
        assert_int_equal(got.status[k - 1], PS_EDEVICE);
        assert_int_equal(world_n_failed(&got),
                         n_left < DLRM_BUFFER_SETS ? n_left : DLRM_BUFFER_SETS);
        assert_int_equal(world_n_wrong(&w, &got, &want), 0);
        world_end_free(&got);
    }
    world_end_free(&want);
    world_deinit(&w);
}

static void a_prediction_neither_reads_nor_keeps(void **state)
{
    static const struct far_device_plan plan = { .late = true };
    struct fixture_rng rng = { 7, 0 };
    struct fixture f;
    struct dlrm_step step;
    struct world w;

    (void)state;
    world_init(&w, 4, WORLD_KEYS, 1);
    fixture_init_on(&f, far_device_ops(&device_cpu, &plan), &w.config, WORLD_SAMPLES, &rng);
    assert_int_equal(dlrm_keep_rows(f.m, 1 << 16), 0);
    step = fixture_step_of(&f, 0);
    step.versions =
        w.steps[0].versions; /* no batch of this one: whoever looks at them is lost */
    assert_int_equal(dlrm_predict(f.m, &step), 0);
    assert_int_equal(dlrm_row_counts(f.m).n_copied + dlrm_row_counts(f.m).n_kept, 0);
    fixture_deinit(&f);
    world_deinit(&w);
}

#ifdef PS_FAULTS
/* A model that cannot be made, rows that cannot stay, a step that finds no room: each is told, and nothing else is lost. */
static void every_failing_allocation_is_reported_or_costs_copies(void **state)
{
    const struct world_way on_cpu = { .ops = &device_cpu };
    struct world_end want, got;
    uint32_t n_refused = 0, n_without = 0;
    struct world w;
    bool failed = true;

    (void)state;
    world_init(&w, 4, WORLD_KEYS, seed_of_run(20261122));
    assert_true(world_play(&w, &on_cpu, &want));
    for (long k = 0; failed; k++) {
        const struct world_way way = { .ops = far_device_ops(&device_cpu, &plans[1]),
                                       .keeps = true };

        memory_fail_after(k);
        if (!world_play(&w, &way, &got))
            continue;
        memory_fail_after(-1);
        assert_int_equal(world_n_wrong(&w, &got, &want), 0);
        assert_true(world_n_failed(&got) <= 1);
        n_refused += world_n_failed(&got);
        n_without += !got.counts.n_kept;
        failed = world_n_failed(&got) || !got.counts.n_kept;
        world_end_free(&got);
    }
    assert_true(n_refused >= WORLD_STEPS + 4); /* rows that are given, and plans */
    assert_int_equal(n_without, 2);            /* versions, rows */
    world_end_free(&want);
    world_deinit(&w);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_run_ends_in_the_cpus_bits_and_what_is_there_is_not_read),
        cmocka_unit_test(rows_that_are_there_do_not_cross_the_bus),
        cmocka_unit_test(a_failure_is_that_of_all_steps_under_way_and_of_no_other),
        cmocka_unit_test(a_prediction_neither_reads_nor_keeps),
#ifdef PS_FAULTS
        cmocka_unit_test(every_failing_allocation_is_reported_or_costs_copies),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
