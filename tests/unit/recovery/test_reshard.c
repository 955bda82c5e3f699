/* Jobs in lock step whose node died in the middle of a step: rows that are resharded are of one clock, nothing goes
 * without a sentence, and what cannot be had is refused. */
#include "tests/unit/recovery/node_fixture.h"

static void assert_reported(const struct node *n, const char *says)
{
    if (!strstr(n->sentence, says))
        fail_msg("\"%s\" is not in: %s", says, n->sentence);
}

static void assert_resharded(struct node *n, const struct recover_shard_at *at, const char *job,
                             uint64_t n_steps)
{
    struct shard *one;
    struct err err;

    if (node_collect(n, NODE_DIR, at, &one, &err) != 0)
        fail_msg("%s", err.text);
    assert_steps(one, job, n_steps);
    shard_free(one);
}

static void assert_refused(struct node *n, const struct recover_shard_at *at, const char *says)
{
    struct shard *one;
    struct err err;

    assert_int_equal(node_collect(n, NODE_DIR, at, &one, &err), PS_ENOCHECKPOINT);
    if (!strstr(err.text, says))
        fail_msg("\"%s\" is not in: %s", says, err.text);
}

/* Two workers in lock step; `n_steps` whole steps on all shards. */
static void make(struct node *n, uint32_t n_shards, uint64_t n_steps)
{
    node_begin(n, n_shards);
    node_job(n, "job", TABLE_SPEC_MODE_BSP, 2);
    node_steps(n, "job", 2, 0, n_steps);
}

static void shards_that_are_a_step_ahead_go_back_to_what_all_have(void **state)
{
    for (int saved = 0; saved < 3; saved++) {
        struct node n;

        (void)state;
        make(&n, 3, 4);
        if (saved)
            node_save(&n, 3);
        node_steps(&n, "job", 2, 4, 7);
        if (saved == 2)
            node_save(&n, 3);
        node_step(&n, 0, "job", 2, 7);
        node_push(&n, 1, "job", 1, 7);
        node_step(&n, 2, "job", 2, 7);
        node_die(&n);
        assert_resharded(&n, NULL, "job", 7);
        assert_reported(&n, "is brought to 7");
        assert_reported(&n, " 5 pushes of later ones are left out");
        assert_int_equal(n.n_reported, 1);
        node_end(&n);
    }
}

static void what_waits_on_shards_that_are_as_far_is_left_out_and_reported(void **state)
{
    struct node n;

    (void)state;
    make(&n, 2, 4);
    node_push(&n, 0, "job", 1, 4);
    node_push(&n, 1, "job", 0, 4);
    node_die(&n);
    assert_resharded(&n, NULL, "job", 4);
    assert_reported(&n, "as after 4 steps: 2 pushes");
    node_end(&n);
}

/* Its checkpoint has them, and no log is behind it. */
static void what_waited_at_an_orderly_stop_is_reported_too(void **state)
{
    struct node n;

    (void)state;
    make(&n, 2, 4);
    node_step(&n, 0, "job", 2, 4);
    node_push(&n, 1, "job", 0, 4);
    node_stop(&n, 3);
    assert_resharded(&n, NULL, "job", 4);
    assert_reported(&n, "is brought to 4");
    node_end(&n);
    make(&n, 2, 4);
    node_push(&n, 1, "job", 0, 4);
    node_stop(&n, 3);
    assert_resharded(&n, NULL, "job", 4);
    assert_reported(&n, "as after 4 steps: 1 pushes");
    node_end(&n);
}

static void a_job_that_is_over_is_as_it_was(void **state)
{
    struct node n;

    (void)state;
    make(&n, 2, 4);
    enter_shard();
    for (uint32_t i = 0; i < 2; i++)
        for (uint32_t rank = 0; rank < 2; rank++) {
            struct shard *s = n.lines[i].shard;

            membership_leave(shard_membership(s),
                             membership_worker(shard_membership(s), "job", rank));
            line_flush(&n.lines[i]);
        }
    node_die(&n);
    assert_resharded(&n, NULL, "job", 4);
    assert_int_equal(n.n_reported, 0);
    node_end(&n);
}

/* The push that completes it is the last thing in the log. */
static void a_clock_that_is_complete_where_the_log_ends_is_combined(void **state)
{
    struct crash_inode *file;
    struct node n;
    size_t n_bytes;

    (void)state;
    make(&n, 2, 4);
    n.each_apart = true;
    node_step(&n, 1, "job", 2, 4);
    node_step(&n, 0, "job", 2, 4);
    node_die(&n);
    file = node_segment(&n, 0, UINT64_MAX);
    n_bytes = file->n_bytes;
    file->n_bytes -= 104; /* the combined clock: a block of one record */
    assert_resharded(&n, NULL, "job", 5);
    assert_int_equal(n.n_reported, 0);
    file->n_bytes = n_bytes - 50;
    assert_resharded(&n, NULL, "job", 5);
    assert_reported(&n, "torn");
    node_end(&n);
}

static void shards_that_are_ahead_go_back_to_such_a_clock_too(void **state)
{
    struct node n;

    (void)state;
    make(&n, 2, 4);
    n.each_apart = true;
    node_step(&n, 1, "job", 2, 4);
    node_step(&n, 1, "job", 2, 5);
    node_step(&n, 0, "job", 2, 4);
    node_die(&n);
    node_segment(&n, 0, UINT64_MAX)->n_bytes -=
        104; /* the combined clock: a block of one record */
    assert_resharded(&n, NULL, "job", 5);
    assert_reported(&n, "is brought to 5");
    assert_resharded(&n, &(struct recover_shard_at){ .job = "job", .clock = 5 }, "job", 5);
    node_end(&n);
}

static void the_first_step_cannot_be_undone(void **state)
{
    struct node n;

    (void)state;
    make(&n, 2, 0);
    node_step(&n, 1, "job", 2, 0);
    node_die(&n);
    assert_refused(&n, NULL, "job job has finished 1 steps on shard 1, and none on shard 0");
    node_end(&n);
}

static void where_no_restore_point_is_old_enough_it_is_refused(void **state)
{
    struct node n;

    (void)state;
    make(&n, 2, 20);
    node_step(&n, 1, "job", 2, 20);
    node_save(&n, 1);
    node_die(&n);
    assert_refused(&n, NULL, "has finished 21 steps on shard 1, 20 on shard 0");
    assert_refused(&n, NULL, "begins behind step 20");
    assert_refused(&n, NULL, "--at NUMBER");
    node_end(&n);
}

static void what_is_asked_for_is_given_and_reported(void **state)
{
    static const struct recover_shard_at at = { .number = 1 },
                                         clock = { .job = "job", .clock = 4 };
    struct shard *one;
    struct node n;
    struct err err;

    (void)state;
    make(&n, 2, 4);
    node_step(&n, 1, "job", 2, 4);
    node_save(&n, 1);
    node_die(&n);
    assert_int_equal(node_collect(&n, NODE_DIR, &at, &one, &err), 0);
    shard_free(one);
    assert_reported(&n, "rows of shard 1 are as after 5 steps, of shard 0 as after 4");
    assert_int_equal(
        node_collect(&n, NODE_DIR "/checkpoints/00000000000000000001", NULL, &one, &err), 0);
    shard_free(one);
    assert_reported(&n, "rows of shard 1 are as after 5 steps, of shard 0 as after 4");
    assert_refused(&n, &clock, "begins behind step 4");
    node_end(&n);
}

/* psd was stopped in the middle of a step, and has one checkpoint: its log still begins where the tables did. */
static void the_only_checkpoint_is_gone_below_while_more_may_be_kept(void **state)
{
    struct recover_shard_at clock = { .job = "job", .clock = 3 };
    struct node n;

    (void)state;
    make(&n, 2, 4);
    node_step(&n, 1, "job", 2, 4);
    node_stop(&n, 3);
    assert_resharded(&n, NULL, "job", 4);
    assert_resharded(&n, &clock, "job", 3);
    node_end(&n);
}

static void a_job_that_would_lose_pushes_by_anothers_sync_point_is_asked_for(void **state)
{
    static const struct recover_shard_at at = { .job = "job", .clock = 4 };

    for (int behind = 0; behind < 2; behind++) {
        struct node n;

        (void)state;
        node_begin(&n, 2);
        node_job(&n, "job", TABLE_SPEC_MODE_BSP, 2);
        node_job(&n, "other", TABLE_SPEC_MODE_ASYNC, 1);
        node_steps(&n, "other", 1, 0, 3);
        node_steps(&n, "job", 2, 0, 4);
        if (behind)
            node_push(&n, 1, "other", 0, 3);
        node_step(&n, 1, "job", 2, 4);
        node_die(&n);
        if (behind) {
            assert_refused(&n, NULL, "pushes of job other would go with it");
            assert_refused(&n, NULL, "--at job:4");
            assert_resharded(&n, &at, "job", 4);
        } else {
            assert_resharded(&n, NULL, "job", 4);
            assert_resharded(&n, NULL, "other", 3);
        }
        node_end(&n);
    }
}

static void two_jobs_that_stand_at_different_steps_are_refused(void **state)
{
    struct node n;

    (void)state;
    node_begin(&n, 2);
    node_job(&n, "a", TABLE_SPEC_MODE_BSP, 1);
    node_job(&n, "b", TABLE_SPEC_MODE_BSP, 1);
    node_steps(&n, "a", 1, 0, 3);
    node_steps(&n, "b", 1, 0, 2);
    node_step(&n, 0, "b", 1, 2);
    node_step(&n, 1, "a", 1, 3);
    node_die(&n);
    assert_refused(&n, NULL, "have finished more steps on some shards than on others");
    node_end(&n);
}

/* Joined anew on one shard only: the steps before are over on both. */
static void a_job_that_has_just_begun_again_on_a_shard_is_not_behind(void **state)
{
    struct node n;

    (void)state;
    make(&n, 2, 4);
    for (uint32_t rank = 0; rank < 2; rank++)
        for (uint32_t i = 0; i < 2; i++) {
            struct shard *s = n.lines[i].shard;

            enter_shard();
            membership_leave(shard_membership(s),
                             membership_worker(shard_membership(s), "job", rank));
            line_flush(&n.lines[i]);
        }
    (void)node_join_as(&n, 1, "job", TABLE_SPEC_MODE_BSP, 1, 2, 99);
    node_die(&n);
    assert_resharded(&n, NULL, "job", 4);
    node_end(&n);
}

static void steps_of_other_workers_are_not_compared(void **state)
{
    struct node n;

    (void)state;
    make(&n, 2, 4);
    enter_shard();
    for (uint32_t rank = 0; rank < 2; rank++)
        membership_leave(shard_membership(n.lines[1].shard),
                         membership_worker(shard_membership(n.lines[1].shard), "job", rank));
    for (uint32_t rank = 0; rank < 2; rank++)
        (void)node_join_as(&n, 1, "job", TABLE_SPEC_MODE_BSP, rank, 2, 90 + rank);
    node_step(&n, 1, "job", 2, 0);
    node_die(&n);
    assert_refused(&n, NULL, "are not of the same workers");
    node_end(&n);
}

/* Whatever the moment, all rows are of one clock: that of the shard that is least far. */
static void at_any_moment_all_rows_are_of_the_smallest_clock(void **state)
{
    struct dice dice = dice_of_this_run("align");

    (void)state;
    for (int round = 0; round < 40; round++) {
        uint32_t n_shards = 2 + (uint32_t)roll(&dice, 2),
                 n_workers = 1 + (uint32_t)roll(&dice, 3);
        uint64_t done[NODE_N_SHARDS_MAX][3] = { 0 }, least = UINT64_MAX;
        struct node n;

        node_begin(&n, n_shards);
        node_job(&n, "job", TABLE_SPEC_MODE_BSP, n_workers);
        node_steps(&n, "job", n_workers, 0, 1);
        node_save(&n, 9); /* old enough for whatever comes */
        for (uint64_t moves = roll(&dice, 60); moves > 0; moves--) {
            uint32_t shard = (uint32_t)roll(&dice, n_shards),
                     rank = (uint32_t)roll(&dice, n_workers);
            bool may = true;

            /* Nobody is more than a step ahead of anybody, anywhere. */
            for (uint32_t i = 0; i < n_shards; i++)
                for (uint32_t k = 0; k < n_workers; k++)
                    may = may && done[i][k] >= done[shard][rank];
            if (may)
                node_push(&n, shard, "job", rank, 1 + done[shard][rank]++);
            if (roll(&dice, 15) == 0)
                node_save(&n, 9);
        }
        node_die(&n);
        for (uint32_t i = 0; i < n_shards; i++)
            for (uint32_t k = 0; k < n_workers; k++)
                least = done[i][k] < least ? done[i][k] : least;
        assert_resharded(&n, NULL, "job", 1 + least);
        node_end(&n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_that_are_a_step_ahead_go_back_to_what_all_have),
        cmocka_unit_test(what_waits_on_shards_that_are_as_far_is_left_out_and_reported),
        cmocka_unit_test(what_waited_at_an_orderly_stop_is_reported_too),
        cmocka_unit_test(a_job_that_is_over_is_as_it_was),
        cmocka_unit_test(a_clock_that_is_complete_where_the_log_ends_is_combined),
        cmocka_unit_test(shards_that_are_ahead_go_back_to_such_a_clock_too),
        cmocka_unit_test(the_first_step_cannot_be_undone),
        cmocka_unit_test(where_no_restore_point_is_old_enough_it_is_refused),
        cmocka_unit_test(what_is_asked_for_is_given_and_reported),
        cmocka_unit_test(the_only_checkpoint_is_gone_below_while_more_may_be_kept),
        cmocka_unit_test(a_job_that_would_lose_pushes_by_anothers_sync_point_is_asked_for),
        cmocka_unit_test(two_jobs_that_stand_at_different_steps_are_refused),
        cmocka_unit_test(a_job_that_has_just_begun_again_on_a_shard_is_not_behind),
        cmocka_unit_test(steps_of_other_workers_are_not_compared),
        cmocka_unit_test(at_any_moment_all_rows_are_of_the_smallest_clock),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
