/* Pushes that wait for the clock of lock step: who releases them, and which of them count. */
#include "server/core/shard.h"

#include <errno.h>

#include "fixture.h"

static void one_worker_in_lock_step_is_one_worker(void **state)
{
    struct table_spec spec = sparse_spec("emb", UNIT_DIM, TABLE_SPEC_ADAM);
    struct shard *a = make_shard(0, 1, 0), *b = make_shard(0, 1, 0);
    struct worker *wa = join(a, TABLE_SPEC_MODE_BSP, 0, 0, 1),
                  *wb = join(b, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    float got[UNIT_DIM], want[UNIT_DIM];
    struct dice dice = dice_of_this_run("one worker");

    (void)state;
    enter_shard();
    make_table(a, &spec);
    make_table(b, &spec);
    for (uint64_t clock = 0; clock < 30; clock++) {
        float g = roll_float(&dice);
        uint32_t n = (uint32_t)roll(&dice, 3) * 43; /* also 0: nothing to weigh by */

        must_push(a, wa, unit_push(wa, clock, n, g));
        must_push(b, wb, unit_push(wb, clock, n, g));
    }
    read_weights(a, 0, &(uint64_t){ 1 }, 1, got);
    read_weights(b, 0, &(uint64_t){ 1 }, 1, want);
    assert_floats_equal(got, want, UNIT_DIM);
    shard_free(a);
    shard_free(b);
}

static void nothing_is_applied_until_the_last_worker_has_ticked(void **state)
{
    struct shard *s = unit_shard();
    struct worker *a = join(s, TABLE_SPEC_MODE_BSP, 0, 0, 2),
                  *b = join(s, TABLE_SPEC_MODE_BSP, 0, 1, 2);
    struct push *push;
    uint64_t n_bytes;

    (void)state;
    enter_shard();
    n_bytes = shard_bytes(s);
    must_push(s, a, unit_push(a, 0, 1, 4));
    assert_true(shard_bytes(s) > n_bytes); /* what is held is counted */
    push = unit_push(b, 0, 2, 8);
    push->tick = false;
    must_push(s, b, push);
    push = unit_push(b, 0, 3, 16); /* a second push of the same step */
    push->tick = false;
    must_push(s, b, push);
    assert_true(unit_weight(s, 1) == 0);
    assert_false(ready(s, a, 1, 0));
    push = next_push(b, 0); /* only now the tick */
    must_push(s, b, push);  /* the step's samples: the most that it said, 3 */
    assert_true(unit_weight(s, 1) == -(0.25f * 4 + 0.75f * 8 + 0.75f * 16));
    assert_true(ready(s, a, 1, 0));
    assert_int_equal(shard_table(s, 0)->n_pushes, 1);
    assert_int_equal(row_version(find_row(s, 0, 1)), 1);
    shard_free(s);
}

static void a_dead_worker_no_longer_holds_up_lock_step(void **state)
{
    struct shard *s = unit_shard();
    struct worker *a = join(s, TABLE_SPEC_MODE_BSP, 0, 0, 2),
                  *b = join(s, TABLE_SPEC_MODE_BSP, 0, 1, 2), *found;
    struct push *push = unit_push(b, 1, 1, 100);

    (void)state;
    enter_shard();
    must_push(s, b, unit_push(b, 0, 1, 2)); /* b finishes clock 0, and dies in clock 1 */
    push->seq = 2;
    push->tick = false;
    must_push(s, b, push);
    must_push(s, a, unit_push(a, 0, 1, 4));
    assert_true(unit_weight(s, 1) == -3);
    must_push(s, a, unit_push(a, 1, 1, 4));
    assert_false(ready(s, a, 2, 0));
    assert_int_equal(membership_find(shard_membership(s), "job", 0, 1, LEASE_MS, &found), 0);
    assert_false(shard_advance(s, LEASE_MS));
    assert_true(shard_advance(s, LEASE_MS + 1));
    assert_true(ready(s, a, 2, 0));
    assert_true(unit_weight(s, 1) == -7); /* half a clock of a dead worker does not count */
    assert_int_equal(shard_counters(s)->pushes_dropped, 1);
    shard_free(s);
}

static void a_worker_that_leaves_counts_for_its_finished_clocks(void **state)
{
    struct shard *s = unit_shard();
    struct worker *a = join(s, TABLE_SPEC_MODE_BSP, 0, 0, 3),
                  *b = join(s, TABLE_SPEC_MODE_BSP, 0, 1, 3);
    struct worker *c = join(s, TABLE_SPEC_MODE_BSP, 0, 2, 3);

    (void)state;
    enter_shard();
    must_push(s, b, unit_push(b, 0, 1, 2));
    membership_leave(shard_membership(s), b);
    must_push(s, a, unit_push(a, 0, 1, 4));
    membership_leave(shard_membership(s), c);
    /* Complete, but not yet combined: nobody may look. */
    assert_true(ready(s, a, 0, 0) == false);
    assert_true(shard_advance(s, 0));
    assert_true(ready(s, a, 1, 0));
    assert_true(unit_weight(s, 1) == -3);
    shard_free(s);
}

static void a_worker_that_comes_back_and_does_its_step_again_counts_once(void **state)
{
    struct shard *s = unit_shard();
    struct worker *a = join(s, TABLE_SPEC_MODE_BSP, 0, 0, 2),
                  *b = join(s, TABLE_SPEC_MODE_BSP, 0, 1, 2);

    (void)state;
    enter_shard();
    must_push(s, b, unit_push(b, 0, 1, 100));
    /* It crashed behind its push, and starts at min clock 0. */
    b = join_at(s, TABLE_SPEC_MODE_BSP, 0, 1, 2, 2, 0);
    assert_int_equal(b->clock, 0);
    must_push(s, b, unit_push(b, 0, 1, 2));
    must_push(s, a, unit_push(a, 0, 1, 4));
    assert_true(unit_weight(s, 1) == -3);
    assert_int_equal(shard_counters(s)->pushes_dropped, 1);
    shard_free(s);
}

static void a_worker_at_a_clock_without_a_tick_has_finished_those_before(void **state)
{
    struct shard *s = unit_shard();
    struct worker *a = join(s, TABLE_SPEC_MODE_BSP, 0, 0, 2),
                  *b = join(s, TABLE_SPEC_MODE_BSP, 0, 1, 2);
    struct push *push = unit_push(b, 0, 1, 2);

    (void)state;
    enter_shard();
    push->tick = false;
    must_push(s, b, push);
    must_push(s, a, unit_push(a, 0, 1, 4));
    assert_true(unit_weight(s, 1) == 0);
    assert_true(membership_advance_clock(b, 1));
    assert_false(membership_advance_clock(b, 1));
    assert_true(shard_advance(s, 0));
    assert_true(unit_weight(s, 1) == -3);
    assert_int_equal(shard_counters(s)->pushes_dropped, 0);
    shard_free(s);
}

static void a_worker_does_not_advance_before_its_push_was_acknowledged(void **state)
{
    struct shard *s = unit_shard();
    struct worker *a = join(s, TABLE_SPEC_MODE_BSP, 0, 0, 2),
                  *b = join(s, TABLE_SPEC_MODE_BSP, 0, 1, 2);
    struct push *push = unit_push(b, 0, 1, 2);

    (void)state;
    enter_shard();
    must_push(s, a, unit_push(a, 0, 1, 4));
    push->seq++; /* as if the one before had found no memory */
    assert_int_equal(try_push(s, b, push).status, PS_ESEQ);
    assert_false(membership_advance_clock(b, 1)); /* what a pull behind it says */
    must_push(s, b, unit_push(b, 0, 1, 2));
    assert_true(unit_weight(s, 1) == -3);
    assert_true(membership_advance_clock(b, 2));
    shard_free(s);
}

static void a_job_that_starts_afresh_keeps_what_was_finished(void **state)
{
    struct shard *s = unit_shard();
    struct worker *a = join(s, TABLE_SPEC_MODE_BSP, 0, 0, 2),
                  *b = join(s, TABLE_SPEC_MODE_BSP, 0, 1, 2);
    struct push *push;

    (void)state;
    enter_shard();
    must_push(s, a, unit_push(a, 0, 1, 4));
    push = unit_push(a, 1, 1, 100);
    push->tick = false;
    must_push(s, a, push);
    membership_leave(shard_membership(s), a);
    membership_leave(shard_membership(s), b);
    a = join_at(s, TABLE_SPEC_MODE_BSP, 0, 0, 1, 5,
                0); /* before anybody called shard_advance() */
    assert_int_equal(a->clock, 0);
    must_push(s, a, unit_push(a, 0, 1, 1));
    assert_true(unit_weight(s, 1) == -5);
    assert_int_equal(shard_counters(s)->pushes_dropped, 1);
    assert_int_equal(shard_table(s, 0)->n_pushes, 2);
    shard_free(s);
}

static void a_gradient_for_a_clock_that_is_over_is_refused(void **state)
{
    struct table_spec spec = unit_spec(), async = unit_spec();
    struct shard *s = make_shard(0, 1, 0);
    struct worker *a = join(s, TABLE_SPEC_MODE_BSP, 0, 0, 1);
    struct shard_push_result result;
    struct push *push;

    (void)state;
    enter_shard();
    make_table(s, &spec);
    snprintf(async.name, sizeof async.name, "async");
    async.mode = TABLE_SPEC_MODE_ASYNC;
    make_table(s, &async);
    must_push(s, a, unit_push(a, 5, 1, 1));
    assert_int_equal(a->clock, 6);
    push = unit_push(a, 5, 1, 1);
    assert_int_equal(shard_push(s, a, push, 0, &result), 0);
    assert_int_equal(result.status, PS_EPROTO);
    free_push(push);
    push = unit_push(a, 5, 1, 1);
    push->sections[0].table_id = 1; /* where nothing waits, late is fine */
    must_push(s, a, push);
    assert_int_equal(a->clock, 6);
    assert_true(unit_weight(s, 1) == -1);
    assert_int_equal(shard_counters(s)->pushes_dropped, 0);
    shard_free(s);
}

/* Table 0 is lock step whatever the job says; table 1 takes pushes as they come. */
static void a_table_may_be_in_lock_step_in_an_asynchronous_job(void **state)
{
    static const uint64_t key = 1;
    struct table_spec bsp = unit_spec(), async = unit_spec();
    struct shard *s = make_shard(0, 1, 0);
    struct worker *a = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 2),
                  *b = join(s, TABLE_SPEC_MODE_ASYNC, 0, 1, 2);
    const float g[UNIT_DIM] = { 8, 8, 8, 8, 8 };
    struct push *push = unit_push(a, 0, 3, 4);
    float row[UNIT_DIM];

    (void)state;
    enter_shard();
    bsp.mode = TABLE_SPEC_MODE_BSP;
    make_table(s, &bsp);
    snprintf(async.name, sizeof async.name, "async");
    make_table(s, &async);
    add_gradient(push, 1, UNIT_DIM, &key, 1, g);
    must_push(s, a, push);
    read_weights(s, 1, &key, 1, row);
    assert_true(row[0] == -8);
    assert_true(unit_weight(s, 1) == 0);
    assert_true(ready(s, a, 1, 1));
    assert_false(ready(s, a, 1, 0));
    push = next_push(b, 0); /* no rows here, but its samples are part of the whole */
    must_push(s, b, push);
    assert_true(unit_weight(s, 1) == -3);
    assert_int_equal(shard_version(s), 2);
    shard_free(s);
}

static void an_assignment_does_not_wait(void **state)
{
    static const uint64_t key = 1;
    const float w0[UNIT_DIM] = { 7, 7, 7, 7, 7 };
    struct shard *s = unit_shard();
    struct worker *a = join(s, TABLE_SPEC_MODE_BSP, 0, 0, 2);
    struct push *push = next_push(a, 0);

    (void)state;
    push->tick = false;
    add_assign(push, 0, UNIT_DIM, &key, 1, w0);
    must_push(s, a, push);
    assert_true(unit_weight(s, 1) == 7);
    enter_shard();
    shard_free(s);
}

static void what_one_worker_may_leave_waiting_has_an_end(void **state)
{
    struct shard *s = unit_shard();
    struct worker *a = join(s, TABLE_SPEC_MODE_BSP, 0, 0, 2);
    struct shard_push_result result;
    struct push *push;

    (void)state;
    enter_shard();
    for (uint64_t i = 0; i < 1024; i++)
        must_push(s, a, unit_push(a, i, 1, 1));
    push = unit_push(a, 1024, 1, 1);
    assert_int_equal(shard_push(s, a, push, 0, &result), 0);
    assert_int_equal(result.status, PS_ETOOBIG);
    free_push(push);
    shard_free(s); /* and all that is held goes with it */
}

enum { N_WIDE = 4096, WIDE = 1024 }; /* 16 MiB of values */

static struct push *wide_push(const struct worker *w, uint64_t clock)
{
    static uint64_t keys[N_WIDE];
    static const float g[N_WIDE * WIDE];
    struct push *push = next_push(w, clock);

    for (uint32_t i = 0; i < N_WIDE; i++)
        keys[i] = i;
    add_gradient(push, 0, WIDE, keys, N_WIDE, g);
    return push;
}

/* A budget for rows does not count against what waits, but bounds it too: here to 64 MiB. */
static void what_waits_does_not_fill_the_memory(void **state)
{
    struct table_spec spec = sparse_spec("emb", WIDE, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 100000);
    struct worker *w[5];
    uint64_t held_bytes;

    (void)state;
    enter_shard();
    make_table(s, &spec);
    for (uint32_t rank = 0; rank < 5; rank++)
        w[rank] = join(s, TABLE_SPEC_MODE_BSP, 0, rank, 5);
    for (uint32_t rank = 0; rank < 3; rank++)
        must_push(s, w[rank], wide_push(w[rank], 0));
    held_bytes = shard_bytes(s);
    assert_true(held_bytes > (uint64_t)3 * N_WIDE * WIDE * sizeof(float));
    assert_int_equal(try_push(s, w[3], wide_push(w[3], 0)).status, PS_EBUDGET);
    assert_int_equal(w[3]->clock, 1); /* refused for good: the clock goes on without it */
    assert_int_equal(shard_bytes(s), held_bytes);
    must_push(s, w[4], next_push(w[4], 0));
    assert_true(shard_bytes(s) <= 100000);
    shard_free(s);
}

/* Pushes rank 0's clocks until one finds no place; returns its clock. */
static uint64_t fill(struct shard *s, struct worker *w)
{
    struct shard_push_result result = { 0 };
    uint64_t clock = 0;

    while (!result.status) {
        assert_true(clock < 200);
        result = try_push(s, w, wide_push(w, clock++));
    }
    assert_int_equal(result.status, -ENOMEM);
    assert_non_null(strstr(result.text, "slower workers"));
    return clock - 1;
}

/* With a budget and without one. */
static void a_worker_that_is_ahead_retries_until_the_others_have_caught_up(void **state)
{
    static const struct {
        uint64_t memory_max_bytes, held_bytes_max;
    } cases[] = { { 100000, UINT64_C(64) << 20 }, { 0, UINT64_C(1) << 30 } };
    struct table_spec spec = sparse_spec("emb", WIDE, TABLE_SPEC_SGD);

    (void)state;
    enter_shard();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct shard *s = make_shard(0, 1, cases[i].memory_max_bytes);
        struct worker *a = join(s, TABLE_SPEC_MODE_BSP, 0, 0, 2),
                      *b = join(s, TABLE_SPEC_MODE_BSP, 0, 1, 2);
        uint64_t n_bytes, clock;

        make_table(s, &spec);
        n_bytes = shard_bytes(s);
        clock = fill(s, a);
        n_bytes = shard_bytes(s) - n_bytes;
        assert_true(clock > 0 && n_bytes <= cases[i].held_bytes_max / 2);
        assert_int_equal(a->last_seq,
                         clock); /* not acknowledged: its number is still to come */
        assert_int_equal(a->clock, clock);
        must_push(s, b, wide_push(b, 0)); /* the clock that is waited for has a place */
        must_push(s, a, wide_push(a, clock));
        shard_free(s);
    }
}

/* Two pushes of one clock, each as large as a float can be: their sum is none. */
static void
gradients_that_add_up_to_more_than_a_float_holds_leave_numbers_in_the_row(void **state)
{
    const float huge[UNIT_DIM] = { 3e38f, -3e38f, 1 };
    struct table_spec spec = sparse_spec("clipped", UNIT_DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = join(s, TABLE_SPEC_MODE_BSP, 0, 0, 1);
    const uint64_t key = 7;
    float row[UNIT_DIM];

    (void)state;
    enter_shard();
    spec.clip_norm = 1;
    (void)make_table(s, &spec);
    for (int ends = 0; ends < 2; ends++) {
        struct push *push = next_push(w, 0);

        push->tick = ends;
        (void)add_gradient(push, 0, UNIT_DIM, &key, 1, huge);
        (void)must_push(s, w, push);
    }
    assert_int_equal(row_version(find_row(s, 0, key)), 1);
    read_weights(s, 0, &key, 1, row);
    for (uint32_t i = 0; i < UNIT_DIM; i++)
        assert_true(row[i] > -2 && row[i] < 2);
    shard_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_worker_in_lock_step_is_one_worker),
        cmocka_unit_test(nothing_is_applied_until_the_last_worker_has_ticked),
        cmocka_unit_test(a_dead_worker_no_longer_holds_up_lock_step),
        cmocka_unit_test(a_worker_that_leaves_counts_for_its_finished_clocks),
        cmocka_unit_test(a_worker_that_comes_back_and_does_its_step_again_counts_once),
        cmocka_unit_test(a_worker_at_a_clock_without_a_tick_has_finished_those_before),
        cmocka_unit_test(a_worker_does_not_advance_before_its_push_was_acknowledged),
        cmocka_unit_test(a_job_that_starts_afresh_keeps_what_was_finished),
        cmocka_unit_test(a_gradient_for_a_clock_that_is_over_is_refused),
        cmocka_unit_test(a_table_may_be_in_lock_step_in_an_asynchronous_job),
        cmocka_unit_test(an_assignment_does_not_wait),
        cmocka_unit_test(what_one_worker_may_leave_waiting_has_an_end),
        cmocka_unit_test(what_waits_does_not_fill_the_memory),
        cmocka_unit_test(a_worker_that_is_ahead_retries_until_the_others_have_caught_up),
        cmocka_unit_test(
            gradients_that_add_up_to_more_than_a_float_holds_leave_numbers_in_the_row),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
