/* Backup workers of lock step: which pushes make a step, and that each shard does it by its own log. */
#include <errno.h>

#include "events_fixture.h"

#define N_WORKERS 4u
#define N_CLOCKS 40u

/* Who had so many pushes acknowledged, a step each. */
static struct worker *come_back(struct shard *s, uint32_t rank, uint32_t n_workers,
                                uint32_t n_backups, uint64_t n_acked)
{
    const struct membership_join join = { .job = "job",
                                          .rank = rank,
                                          .n_workers = n_workers,
                                          .incarnation = 1 + rank,
                                          .clock = n_acked,
                                          .last_acked = n_acked,
                                          .mode = TABLE_SPEC_MODE_BSP,
                                          .n_backups = n_backups,
                                          .name = "tester" };
    struct worker *w = NULL;
    struct err err = { 0 };

    enter_shard();
    if (membership_join(shard_membership(s), &join, 0, &w, &err) != 0)
        fail_msg("%s", err.text);
    return w;
}

static struct worker *join_with(struct shard *s, uint32_t rank, uint32_t n_workers,
                                uint32_t n_backups)
{
    return come_back(s, rank, n_workers, n_backups, 0);
}

static void the_first_ones_make_the_step(void **state)
{
    struct shard *s = unit_shard();
    struct worker *w[3];
    struct shard_push_result late;

    (void)state;
    for (uint32_t rank = 0; rank < 3; rank++)
        w[rank] = join_with(s, rank, 3, 1);
    must_push(s, w[2], unit_push(w[2], 0, 3, 4));
    assert_true(unit_weight(s, 1) == 0);
    assert_false(ready(s, w[2], 1, 0));
    must_push(s, w[0], unit_push(w[0], 0, 1, 8));
    assert_true(unit_weight(s, 1) == -5); /* by their samples */
    assert_true(ready(s, w[2], 1, 0));
    late = try_push(s, w[1], unit_push(w[1], 0, 1, 100));
    assert_int_equal(late.status, 0);
    assert_true(late.late);
    assert_int_equal(late.min_clock, 1);
    assert_true(unit_weight(s, 1) == -5);
    assert_int_equal(shard_counters(s)->pushes_dropped, 1);
    assert_int_equal(shard_table(s, 0)->n_pushes, 1);
    /* Who was late may be among the first of the next step. */
    late = try_push(s, w[1], unit_push(w[1], 1, 1, 1));
    assert_false(late.late);
    must_push(s, w[0], unit_push(w[0], 1, 1, 1));
    assert_true(unit_weight(s, 1) == -6);
    shard_free(s);
}

static void a_worker_that_is_behind_goes_on_where_the_job_is(void **state)
{
    struct shard *s = unit_shard();
    struct worker *w[2];

    (void)state;
    for (uint32_t rank = 0; rank < 2; rank++)
        w[rank] = join_with(s, rank, 2, 1);
    for (uint64_t clock = 0; clock < 7; clock++)
        must_push(s, w[0], unit_push(w[0], clock, 1, 1));
    assert_int_equal(job_min_clock(w[1]->job), 7);
    assert_true(ready(s, w[1], 7, 0));
    assert_false(try_push(s, w[1], unit_push(w[1], 7, 1, 1)).late);
    assert_true(unit_weight(s, 1) == -8);
    assert_int_equal(w[1]->clock, 8);
    shard_free(s);
}

/* Of a step in parts, of which some came before it was over. */
static void a_step_that_comes_in_part_is_dropped_whole(void **state)
{
    struct shard *s = unit_shard();
    struct worker *a = join_with(s, 0, 2, 1), *b = join_with(s, 1, 2, 1);
    struct push *part = unit_push(b, 0, 1, 100);

    (void)state;
    part->tick = false;
    must_push(s, b, part);
    must_push(s, a, unit_push(a, 0, 1, 1));
    assert_true(try_push(s, b, unit_push(b, 0, 1, 100)).late);
    assert_true(unit_weight(s, 1) == -1);
    assert_int_equal(job_min_clock(a->job), 1);
    must_push(s, b, unit_push(b, 1, 1, 2));
    assert_true(unit_weight(s, 1) == -3);
    shard_free(s);
}

static void the_last_workers_go_on_to_their_end(void **state)
{
    struct shard *s = unit_shard();
    struct worker *a = join_with(s, 0, 3, 2), *b = join_with(s, 1, 3, 2),
                  *c = join_with(s, 2, 3, 2);

    (void)state;
    must_push(s, a, unit_push(a, 0, 1, 1));
    must_push(s, a, unit_push(a, 1, 1, 1));
    membership_leave(shard_membership(s), a);
    membership_leave(shard_membership(s), b);
    (void)shard_advance(s, 0);
    assert_int_equal(job_min_clock(c->job),
                     2); /* it does not fall to that of the one that is left */
    assert_true(try_push(s, c, unit_push(c, 1, 1, 100)).late);
    assert_false(try_push(s, c, unit_push(c, 2, 1, 1)).late);
    assert_true(unit_weight(s, 1) == -3);
    shard_free(s);
}

/* The shard was restarted from nothing. The last one's push of clock 9 was under way; the job goes on at clock 10. */
static void a_push_that_comes_again_after_a_restart_from_nothing_is_late(void **state)
{
    struct shard *s = unit_shard();
    struct worker *w[3];
    struct shard_push_result result;
    struct push *push;
    const uint64_t key = 1;
    const float row[UNIT_DIM] = { 7, 7, 7, 7, 7 };

    (void)state;
    for (uint32_t rank = 0; rank < 3; rank++)
        w[rank] = come_back(s, rank, 3, 1, rank < 2 ? 10 : 9);
    assert_int_equal(w[2]->clock, 10);
    must_push(s, w[0], unit_push(w[0], 10, 1, 1));
    result = try_push(s, w[2], unit_push(w[2], 9, 1, 100));
    assert_int_equal(result.status, 0);
    assert_true(result.late);
    assert_int_equal(shard_counters(s)->pushes_dropped, 1);
    assert_true(unit_weight(s, 1) == 0);
    assert_int_equal(w[2]->clock, 10);
    /* A second gradient of a step that is not over is an error, as ever. */
    assert_false(try_push(s, w[2], unit_push(w[2], 10, 1, 3)).late);
    assert_true(unit_weight(s, 1) == -2);
    must_push(s, w[1], unit_push(w[1], 11, 1, 1));
    assert_int_equal(try_push(s, w[1], unit_push(w[1], 11, 1, 1)).status, PS_EPROTO);
    push = next_push(w[0], 9);
    push->tick = false;
    add_section(push, 0, SECTION_ASSIGN, CODEC_FP32, UNIT_DIM, &key, 1, row);
    assert_false(try_push(s, w[0], push).late);
    shard_free(s);
}

/* What is assigned waits for nothing, also in a step that is over. */
static void an_assignment_is_never_late(void **state)
{
    struct shard *s = unit_shard();
    struct worker *a = join_with(s, 0, 2, 1), *b = join_with(s, 1, 2, 1);
    struct push *push;
    const uint64_t key = 1;
    const float row[UNIT_DIM] = { 7, 7, 7, 7, 7 };

    (void)state;
    must_push(s, a, unit_push(a, 0, 1, 1));
    push = next_push(b, 0);
    push->tick = false;
    add_section(push, 0, SECTION_ASSIGN, CODEC_FP32, UNIT_DIM, &key, 1, row);
    assert_false(try_push(s, b, push).late);
    assert_true(unit_weight(s, 1) == 7);
    assert_int_equal(shard_counters(s)->pushes_dropped, 0);
    shard_free(s);
}

static void other_numbers_of_backups_are_another_job(void **state)
{
    struct shard *s = unit_shard();
    struct membership_join other = { .job = "job",
                                     .rank = 1,
                                     .n_workers = 3,
                                     .incarnation = 9,
                                     .mode = TABLE_SPEC_MODE_BSP,
                                     .name = "tester" };
    struct worker *w;
    struct err err = { 0 };

    (void)state;
    must_push(s, join_with(s, 0, 3, 1), unit_push(join_with(s, 0, 3, 1), 0, 1, 1));
    assert_int_equal(membership_join(shard_membership(s), &other, 0, &w, &err), PS_EJOB);
    assert_string_equal(err.text, "job job runs with 1 backup worker, rank 1 asked for 0");
    shard_free(s);
}

/* --- random orders against a trivial reference --- */

/* Clock by clock: who has pushed, in the order of arrival. */
struct reference {
    uint32_t n_workers, n_backups, n_first[N_CLOCKS];
    float weight, sums[N_CLOCKS];
    uint64_t clock; /* the job's */
};

/* True: too late. Gradients are whole numbers, and all have the same samples. */
static bool reference_push(struct reference *t, uint64_t clock, float g)
{
    if (clock < t->clock)
        return true;
    t->sums[clock] += g;
    if (++t->n_first[clock] < t->n_workers - t->n_backups)
        return false;
    t->weight -= t->sums[clock] / (float)t->n_first[clock];
    t->clock = clock + 1;
    return false;
}

static void any_order_of_arrival(void **state)
{
    struct dice dice = dice_of_this_run("backup workers");

    (void)state;
    for (uint32_t round = 0; round < 20; round++) {
        struct shard *s = unit_shard();
        struct reference t = { .n_workers = N_WORKERS,
                               .n_backups = (uint32_t)roll(&dice, N_WORKERS) };
        struct worker *w[N_WORKERS];
        uint64_t clocks[N_WORKERS] = { 0 };

        for (uint32_t rank = 0; rank < N_WORKERS; rank++)
            w[rank] = join_with(s, rank, N_WORKERS, t.n_backups);
        while (t.clock < N_CLOCKS) {
            uint32_t rank = (uint32_t)roll(&dice, N_WORKERS);
            uint64_t clock = clocks[rank] < t.clock && roll(&dice, 2) ? t.clock : clocks[rank];
            float g = (float)roll(&dice, 64) * 12; /* thirds and quarters of sums are whole */
            bool is_late;

            if (clock > t.clock || !ready(s, w[rank], clock, 0))
                continue;
            is_late = reference_push(&t, clock, g);
            assert_int_equal(try_push(s, w[rank], unit_push(w[rank], clock, 5, g)).late,
                             is_late);
            clocks[rank] = clock + 1;
            assert_int_equal(job_min_clock(w[0]->job), t.clock);
            if (unit_weight(s, 1) != t.weight)
                fail_msg("seed %llu, clock %llu: %g, expected %g",
                         (unsigned long long)dice.seed, (unsigned long long)clock,
                         (double)unit_weight(s, 1), (double)t.weight);
        }
        shard_free(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_ones_make_the_step),
        cmocka_unit_test(a_worker_that_is_behind_goes_on_where_the_job_is),
        cmocka_unit_test(a_step_that_comes_in_part_is_dropped_whole),
        cmocka_unit_test(the_last_workers_go_on_to_their_end),
        cmocka_unit_test(a_push_that_comes_again_after_a_restart_from_nothing_is_late),
        cmocka_unit_test(an_assignment_is_never_late),
        cmocka_unit_test(other_numbers_of_backups_are_another_job),
        cmocka_unit_test(any_order_of_arrival),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
