/* Random runs, crashed at random moments: what a shard was is made again from a walk and a journal. */
#include "replay_world.h"

static void run(const char *test, const struct shape *shape, uint32_t n_rounds, uint32_t every,
                struct world *ret)
{
    struct world sum = { 0 };

    for (uint32_t round = 0; round < n_rounds; round++) {
        struct world w = begin_world(test, shape, round);

        for (uint32_t i = 0; i < shape->n_steps; i++) {
            step(&w);
            if (i % every == 0)
                (void)check(&w);
        }
        sum.n_checks += w.n_checks;
        sum.n_full += w.n_full;
        sum.n_deltas += w.n_deltas;
        sum.n_large += w.n_large;
        sum.n_overtaken += w.n_overtaken;
        sum.n_crashes += w.n_crashes;
        sum.n_half_done += w.n_half_done;
        for (int op = 0; op < SHARD_ROWS_OP_END; op++)
            sum.walks[op].n_slices += n_of_type(w.journal, SHARD_EVENT_ROWS, op);
        sum.incarnations += n_of_type(w.journal, SHARD_EVENT_COMBINE, 0);
        sum.now_ms += n_of_type(w.journal, SHARD_EVENT_GONE, 0);
        end_world(&w);
    }
    print_message(
        "%llu checks, %llu full walks, %llu deltas, %llu crashes; %llu large pushes, %llu "
        "overtaken, %llu half done; %llu clocks combined, %llu ends; rows events: %zu "
        "gone, %zu left, %zu touches\n",
        (unsigned long long)sum.n_checks, (unsigned long long)sum.n_full,
        (unsigned long long)sum.n_deltas, (unsigned long long)sum.n_crashes,
        (unsigned long long)sum.n_large, (unsigned long long)sum.n_overtaken,
        (unsigned long long)sum.n_half_done, (unsigned long long)sum.incarnations,
        (unsigned long long)sum.now_ms, sum.walks[0].n_slices, sum.walks[1].n_slices,
        sum.walks[2].n_slices);
    *ret = sum;
}

static void after_every_event_of_small_runs(void **state)
{
    static const struct shape shape = {
        .n_keys = 60, .n_large = 50, .n_steps = 400, .limits = true
    };
    struct world sum;

    (void)state;
    run("after every event", &shape, 12, 1, &sum);
    assert_true(sum.n_checks > 1000 && sum.n_deltas > 5);
}

static void with_budgets_admission_and_sweeps(void **state)
{
    static const struct shape shape = {
        .n_keys = 2500, .n_large = 1400, .n_steps = 700, .limits = true
    };
    struct world sum;

    (void)state;
    run("with limits", &shape, 6, 13, &sum);
    assert_true(sum.n_large > 10 && sum.n_overtaken > 0);
    for (int op = 0; op < SHARD_ROWS_OP_END; op++)
        assert_true(sum.walks[op].n_slices > 0);
}

static void when_all_memory_is_full(void **state)
{
    static const struct shape shape = { .n_keys = 2500,
                                        .n_large = 1400,
                                        .n_steps = 500,
                                        .limits = true,
                                        .memory_max_bytes = 1 << 20 };
    struct world sum;

    (void)state;
    run("with little memory", &shape, 4, 17, &sum);
    assert_true(sum.walks[SHARD_ROWS_LEFT].n_slices > 0);
}

static void without_limits(void **state)
{
    static const struct shape shape = { .n_keys = 2500, .n_large = 1400, .n_steps = 600 };
    struct world sum;

    (void)state;
    run("without limits", &shape, 4, 19, &sum);
    assert_int_equal(sum.walks[SHARD_ROWS_GONE].n_slices + sum.walks[SHARD_ROWS_LEFT].n_slices +
                         sum.walks[SHARD_ROWS_TOUCHES].n_slices,
                     0);
}

/* Of 230 seeds these were the ones that failed: rows that the newest push had changed went to make room for
 * a push in slices. */
static void seeds_that_failed_once(void **state)
{
    static const struct shape shape = {
        .n_keys = 2500, .n_large = 1400, .n_steps = 700, .limits = true
    };
    static const uint64_t seeds[] = { 1795241587, 1795241651, 1795241672 };

    (void)state;
    for (size_t k = 0; k < COUNT_OF(seeds); k++)
        for (uint64_t round = 0; round < 6; round++) {
            struct world w =
                begin_world_of((struct dice){ .seed = hash_mix(seeds[k]) }, &shape, round);

            for (uint32_t i = 0; i < shape.n_steps; i++) {
                step(&w);
                if (i % 13 == 0)
                    (void)check(&w);
            }
            end_world(&w);
        }
}

/* The same requests, to both. */
static void what_was_made_again_goes_on_as_what_it_was(void **state)
{
    static const struct shape shape = { .n_keys = 400, .n_large = 300, .n_steps = 250 };

    (void)state;
    for (uint64_t round = 0; round < 12; round++) {
        struct world w = begin_world("goes on", &shape, round), twin;
        struct kept_journal *other = journal_new();

        enter_shard();
        for (uint32_t i = 0; i < shape.n_steps; i++)
            step(&w);
        settle(&w);
        if (w.going.walk)
            walk_end(w.s, &w.going, SHARD_WALK_DROPPED);
        kept_walk_free(&w.going);
        twin = w;
        twin.s = restore(&w);
        twin.journal = other;
        shard_listen(twin.s, &other->journal);
        /* The other's leases and deadlines begin when it is made again. */
        roster_renew(shard_roster(w.s), w.now_ms);
        memset(w.walks, 0, sizeof w.walks);
        w.n_walks = 0;
        for (uint32_t i = 0; i < shape.n_steps; i++) {
            uint64_t before = w.dice.n;

            if (roll(&w.dice, 3) == 0) {
                go_on(&w), go_on(&twin);
            } else if (roll(&w.dice, 6) == 0) {
                twin.dice = w.dice;
                join_one(&w), join_one(&twin);
            } else if (roll(&w.dice, 6) == 0) {
                twin.dice = w.dice;
                time_passes(&w), time_passes(&twin);
            } else {
                twin.dice = w.dice;
                push_one(&w), push_one(&twin);
            }
            assert_true(w.dice.n > before);
        }
        settle(&w), settle(&twin);
        assert_same_shard(w.s, twin.s);
        drop_walks(&twin);
        shard_free(w.s);
        shard_free(twin.s);
        journal_free(w.journal);
        journal_free(other);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(after_every_event_of_small_runs),
        cmocka_unit_test(with_budgets_admission_and_sweeps),
        cmocka_unit_test(when_all_memory_is_full),
        cmocka_unit_test(without_limits),
        cmocka_unit_test(seeds_that_failed_once),
        cmocka_unit_test(what_was_made_again_goes_on_as_what_it_was),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
