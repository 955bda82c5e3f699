/* Options of a start act once; what it is not made of is archived; all shards are of one history. */
#include "common/log_line.h"
#include "tests/unit/psd/starts.h"

/* --- options act once --- */

static void options_act_once_and_again_after_a_start_without_them(void **state)
{
    static const char *const at[] = { "data-dir", NODE_DIR, "at", "2", NULL };
    struct node n;

    (void)state;
    make(&n, 2);
    must_start(&n, 2, at);
    assert_holds(&n, 20);
    assert_int_equal(newest_epoch(&n), 4);
    train(&n, 20, 23);
    assert_holds(&n, 23);
    for (int i = 0; i < 2; i++)
        must_start(&n, 2, at); /* by whoever restarts it */
    assert_holds(&n, 23);
    assert_int_equal(newest_epoch(&n), 4);
    must_start(&n, 2, START_WITH("at", "job:21")); /* something else */
    assert_holds(&n, 21);
    must_start(&n, 2, PLAIN);
    must_start(&n, 2, START_WITH("at", "job:21"));
    assert_holds(&n, 21);
    assert_true(newest_epoch(&n) > 5);
    node_end(&n);
}

static void a_crash_behind_no_restore_does_not_begin_with_nothing_again(void **state)
{
    static const char *const options[] = { "data-dir", NODE_DIR, "no-restore", "yes", NULL };
    struct node n;

    (void)state;
    make(&n, 1);
    must_start(&n, 1, options);
    n.epoch = newest_epoch(&n);
    node_start(&n);
    node_job(&n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    node_steps(&n, "job", 1, 0, 3);
    node_die(&n);
    must_start(&n, 1, options);
    assert_holds(&n, 3);
    node_end(&n);
}

static void nor_does_one_behind_restore_from_elsewhere(void **state)
{
    static const char *const options[] = { "data-dir", "own", "restore", NODE_DIR, NULL };
    struct shard *one;
    struct node n;
    struct err err;

    (void)state;
    make(&n, 2);
    assert_int_equal(n.files.ops.mkdir(n.files.ops.state, "own"), 0);
    must_start(&n, 1, options);
    train(&n, N_STEPS, N_STEPS + 5); /* goes on elsewhere: not ours any more */
    must_start(&n, 1, options);
    assert_int_equal(node_collect(&n, "own", NULL, &one, &err), 0);
    assert_steps(one, "job", N_STEPS);
    shard_free(one);
    node_end(&n);
}

/* The layout changes while the configuration still tells it. */
static void what_was_done_stays_done_in_another_layout(void **state)
{
    static const char *const at[] = { "data-dir", NODE_DIR, "at", "2", NULL };
    struct node n;

    (void)state;
    make(&n, 2);
    must_start(&n, 2, at);
    train(&n, 20, 23);
    for (uint32_t n_shards = 3; n_shards > 0; n_shards--) {
        must_start(&n, n_shards, at);
        must_start(&n, n_shards, at);
        assert_holds(&n, 23);
    }
    node_end(&n);
}

static void where_it_cannot_be_known_whether_it_was_done_it_is_refused(void **state)
{
    struct node n;

    (void)state;
    make(&n, 1);
    must_start(&n, 1, START_WITH("at", "2"));
    node_damage(crash_files_at(&n.files, NODE_DIR "/log/00000000000000000004/BEGINNING"));
    must_refuse(&n, 1, START_WITH("at", "2"), PS_ECORRUPT, "BEGINNING");
    must_start(&n, 1, PLAIN);
    assert_holds(&n, 20);
    must_start(&n, 1, START_WITH("at", "2")); /* written anew, so it can be known again */
    assert_holds(&n, 20);
    node_end(&n);
}

/* Both the beginning and the log are damaged: the start that the refusal names does, and once. */
static void at_intact_is_done_although_it_cannot_be_known_whether_it_was(void **state)
{
    static const char *const intact[] = { "data-dir", NODE_DIR, "at", "intact", NULL };
    struct node n;

    (void)state;
    make(&n, 1);
    must_start(&n, 1, START_WITH("at", "2"));
    train(&n, 20, 30);
    node_damage(crash_files_at(&n.files, NODE_DIR "/log/00000000000000000004/BEGINNING"));
    node_segment(&n, 0, 1)->bytes[80 + 48 + 60] ^= 1;
    must_refuse(&n, 1, PLAIN, PS_ECORRUPT, "--at intact");
    must_start(&n, 1, intact);
    assert_int_equal(newest_epoch(&n), 5);
    assert_holds(&n, 20);
    must_start(&n, 1, intact);
    assert_int_equal(newest_epoch(&n), 5);
    node_end(&n);
}

static void a_start_from_the_log_alone_names_no_checkpoint(void **state)
{
    struct node n;

    (void)state;
    node_begin(&n, 1);
    node_job(&n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    node_steps(&n, "job", 1, 0, 5);
    node_save(&n, 3);
    node_die(&n);
    node_damage(node_part(&n, 1, 0));
    must_start(&n, 1, PLAIN);
    assert_string_equal(n.sentence, NODE_DIR);
    assert_holds(&n, 5);
    node_end(&n);
}

/* --- archived --- */

static void a_start_from_an_older_checkpoint_archives_the_newer_ones(void **state)
{
    struct node n;

    (void)state;
    make(&n, 2);
    must_start(&n, 2, START_WITH("at", "1"));
    assert_holds(&n, 10);
    assert_true(is_there(&n, 1, "") && is_there(&n, 4, ""));
    assert_true(is_there(&n, 2, ".aside") && is_there(&n, 3, ".aside"));
    assert_false(is_there(&n, 2, "") || is_there(&n, 3, ""));
    n.epoch = 4;
    node_start(&n);
    for (int i = 0; i < 4; i++)
        node_save(&n, 2); /* they take no places of those that are kept, */
    node_die(&n);
    timeline_remove_unused(&n.files.ops, NODE_DIR, 4);
    assert_true(is_there(&n, 7, "") && is_there(&n, 8, "") && !is_there(&n, 1, ""));
    assert_true(is_there(&n, 2, ".aside") && is_there(&n, 3, ".aside"));
    /* and have their log: with its names back, it is what it was. */
    assert_int_equal(n.files.ops.rename(n.files.ops.state,
                                        NODE_DIR "/checkpoints/00000000000000000003.aside",
                                        NODE_DIR "/checkpoints/00000000000000000003"),
                     0);
    must_start(&n, 2, START_WITH("at", "3"));
    assert_holds(&n, 25);
    node_end(&n);
}

static void a_start_with_nothing_archives_all_of_them_and_leaves_a_log_alone(void **state)
{
    struct node n;

    (void)state;
    make(&n, 1);
    must_start(&n, 1, START_WITH("no-restore", "yes"));
    for (uint64_t number = 1; number <= 3; number++)
        assert_true(is_there(&n, number, ".aside"));
    node_end(&n);
    node_begin(&n, 1); /* never a checkpoint */
    node_job(&n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    node_steps(&n, "job", 1, 0, 5);
    node_die(&n);
    must_start(&n, 1, START_WITH("no-restore", "yes"));
    assert_true(crash_files_is_there(&n.files, NODE_DIR "/log/00000000000000000000/LEFT"));
    timeline_remove_unused(&n.files.ops, NODE_DIR, 1);
    assert_non_null(crash_files_at(
        &n.files, NODE_DIR "/log/00000000000000000000/shard-000/00000000000000000001.psl"));
    node_end(&n);
}

/* --keep 2 with a damaged one would be one. */
static void a_damaged_checkpoint_is_archived(void **state)
{
    struct node n;

    (void)state;
    make(&n, 2);
    node_damage(node_part(&n, 3, 1));
    must_start(&n, 2, PLAIN);
    assert_holds(&n, N_STEPS);
    assert_true(is_there(&n, 3, ".aside") && is_there(&n, 2, "") && is_there(&n, 1, ""));
    node_end(&n);
}

/* Of one shard alone, whose log is whole: the other's was cut, as it needs no more than that checkpoint. */
static void a_checkpoint_stays_that_another_shard_needs(void **state)
{
    struct node n;

    (void)state;
    node_begin(&n, 2);
    node_job(&n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    node_steps(&n, "job", 1, 0, 10);
    node_save(&n, 1);
    node_die(&n);
    assert_non_null(crash_files_at(
        &n.files, NODE_DIR "/log/00000000000000000000/shard-000/00000000000000000001.psl"));
    assert_null(crash_files_at(&n.files, NODE_DIR
                               "/log/00000000000000000000/shard-001/00000000000000000001.psl"));
    node_damage(node_part(&n, 1, 0));
    must_start(&n, 2, PLAIN);
    must_start(&n, 2, PLAIN);
    assert_holds(&n, 10);
    assert_true(is_there(&n, 1, ""));
    node_end(&n);
}

/* Checkpoints 1 and 2, and records of shard 1 to be given up that checkpoint 2 has. Is the log of shard 0 that leads up to
 * checkpoint 2 missing? */
static int give_up(struct node *n, bool lacks_log, struct err *err)
{
    uint64_t keep[] = { UINT64_MAX, 0 };
    char dir[WAL_PATH_MAX];

    node_begin(n, 2);
    node_job(n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    node_steps(n, "job", 1, 0, 10);
    node_save(n, 5);
    keep[1] = n->m->files[1].first + 2;
    node_steps(n, "job", 1, 10, 60);
    node_save(n, 5);
    assert_true(keep[1] < n->m->files[1].first);
    node_die(n);
    assert_int_equal(timeline_log_dir(NODE_DIR, 0, 0, dir, err), 0);
    if (lacks_log)
        assert_int_equal(
            wal_segment_truncate(&n->files.ops, dir, n->m->files[0].first + 1, err), 0);
    return start_standby(n, 2, keep, err);
}

/* What it archives no later start may need. */
static void a_standby_that_gives_records_up_does_without_what_has_them(void **state)
{
    struct err err;
    struct node n;

    (void)state;
    if (give_up(&n, false, &err))
        fail_msg("%s", err.text);
    assert_true(is_there(&n, 1, "") && is_there(&n, 2, ".aside"));
    must_start(&n, 2, PLAIN);
    node_end(&n);
    assert_int_equal(give_up(&n, true, &err), PS_ECORRUPT);
    assert_non_null(strstr(err.text, "checkpoints from 2 on have records that are given up"));
    assert_true(is_there(&n, 2, ""));
    node_end(&n);
}

static void another_layout_archives_nothing(void **state)
{
    struct node n;

    (void)state;
    make(&n, 2);
    must_start(&n, 1, PLAIN);
    assert_holds(&n, N_STEPS);
    for (uint64_t number = 1; number <= 4; number++)
        assert_true(is_there(&n, number, ""));
    node_end(&n);
}

/* --- never used --- */

static void a_directory_in_which_nothing_was_kept_is_new_to_another_layout(void **state)
{
    struct node n;

    (void)state;
    node_begin(&n, 2); /* killed before its first checkpoint, */
    node_die(&n);
    must_start(&n, 3, PLAIN);
    assert_string_equal(n.sentence, "");
    assert_int_equal(newest_epoch(&n), 1);
    must_start(&n, 2, PLAIN); /* and behind one */
    assert_string_equal(n.sentence, "");
    assert_int_equal(newest_epoch(&n), 2);
    must_start(&n, 2, PLAIN);
    assert_int_equal(newest_epoch(&n), 2);
    node_end(&n);
}

static void a_directory_with_one_record_is_not_new_to_another_layout(void **state)
{
    struct node n;

    (void)state;
    for (int is_saved = 0; is_saved < 2; is_saved++) {
        node_begin(&n, 2);
        node_join_as(&n, 1, "job", TABLE_SPEC_MODE_ASYNC, 0, 1, 1);
        if (is_saved)
            node_save(&n, 3);
        node_die(&n);
        must_start(&n, 3, PLAIN);
        assert_string_not_equal(n.sentence, "");
        node_end(&n);
    }
}

/* --- one history --- */

/* A checkpoint of a new epoch in which nothing has happened yet: half of it is damaged. */
static void all_shards_are_of_one_epoch(void **state)
{
    struct node n;

    (void)state;
    make(&n, 2);
    must_start(&n, 2, START_WITH("at", "2"));
    node_damage(node_part(&n, 4, 0));
    must_refuse(&n, 2, PLAIN, PS_ECORRUPT, "checkpoint 4");
    must_refuse(&n, 2, START_WITH("at", "job:20"), PS_ECORRUPT, "checkpoint 4");
    must_start(&n, 2, START_WITH("at", "1"));
    assert_holds(&n, 10);
    node_end(&n);
}

static void a_damaged_checkpoint_that_says_all_does_not_stop_a_change_of_layout(void **state)
{
    struct node n;

    (void)state;
    make(&n, 2);
    node_start(&n);
    node_stop(&n, 5);
    node_damage(node_part(&n, 4, 1));
    must_start(&n, 3, PLAIN);
    assert_holds(&n, N_STEPS);
    node_end(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_act_once_and_again_after_a_start_without_them),
        cmocka_unit_test(a_crash_behind_no_restore_does_not_begin_with_nothing_again),
        cmocka_unit_test(nor_does_one_behind_restore_from_elsewhere),
        cmocka_unit_test(what_was_done_stays_done_in_another_layout),
        cmocka_unit_test(at_intact_is_done_although_it_cannot_be_known_whether_it_was),
        cmocka_unit_test(a_start_from_the_log_alone_names_no_checkpoint),
        cmocka_unit_test(where_it_cannot_be_known_whether_it_was_done_it_is_refused),
        cmocka_unit_test(a_start_from_an_older_checkpoint_archives_the_newer_ones),
        cmocka_unit_test(a_start_with_nothing_archives_all_of_them_and_leaves_a_log_alone),
        cmocka_unit_test(a_damaged_checkpoint_is_archived),
        cmocka_unit_test(a_checkpoint_stays_that_another_shard_needs),
        cmocka_unit_test(a_standby_that_gives_records_up_does_without_what_has_them),
        cmocka_unit_test(another_layout_archives_nothing),
        cmocka_unit_test(a_directory_in_which_nothing_was_kept_is_new_to_another_layout),
        cmocka_unit_test(a_directory_with_one_record_is_not_new_to_another_layout),
        cmocka_unit_test(all_shards_are_of_one_epoch),
        cmocka_unit_test(a_damaged_checkpoint_that_says_all_does_not_stop_a_change_of_layout),
    };

    signal(SIGPIPE, SIG_IGN); /* as psd does */
    assert_int_equal(log_line_set_level("error"), 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
