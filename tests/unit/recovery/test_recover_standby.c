/* The shard of a standby: up to a record that its primary has, too, and then further. */
#include "server/core/replay.h"
#include "tests/unit/recovery/node_fixture.h"

enum { N_STEPS = 12 };

/* So many restore points, each with a step behind it; the log of `keep` of them is there. */
static void make(struct node *n, uint32_t n_saves, uint32_t keep)
{
    node_begin(n, 1);
    n->each_apart = true;
    node_job(n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    for (uint32_t i = 0; i < N_STEPS; i++) {
        node_steps(n, "job", 1, i, i + 1);
        if (i % 3 == 2 && i / 3 < n_saves)
            node_save(n, keep);
    }
}

static struct shard *follow(struct node *n, uint64_t keep, uint64_t below, int *ret_status,
                            struct recover_shard_facts *ret, struct err *err)
{
    const struct recover_shard_config config = { .files = &n->files.ops,
                                                 .data_dir = NODE_DIR,
                                                 .identity = { .n_shards = 1 },
                                                 .follows = true,
                                                 .keep = keep,
                                                 .below = below,
                                                 .report = node_hear,
                                                 .arg = n };
    struct shard *s = make_shard(0, 1, 0);

    enter_shard();
    *err = (struct err){ 0 };
    *ret = (struct recover_shard_facts){ 0 };
    *ret_status = recover_shard_run(&config, s, 0, ret, err);
    assert_int_equal(crash_files_n_open(&n->files), 0);
    return s;
}

/* From the whole log, without a checkpoint. */
static struct shard *reference(struct node *n, uint64_t through)
{
    struct shard *s = make_shard(0, 1, 0);
    const struct wal_identity identity = { .n_shards = 1 };
    struct wal_replay_config config = {
        .files = &n->files.ops, .identity = &identity, .from = 1, .through = through
    };
    struct wal_replay_facts facts;
    char dir[WAL_PATH_MAX];
    struct wal_end end;
    struct err err;

    enter_shard();
    assert_int_equal(timeline_log_dir(NODE_DIR, 0, 0, dir, &err), 0);
    config.dir = dir;
    replay_begin(s);
    assert_int_equal(wal_replay_run(s, &config, 0, &facts, &end, &err), 0);
    assert_int_equal(facts.last, through);
    replay_end(s, 0);
    return s;
}

static void recovers_up_to_any_record(void **state)
{
    struct recover_shard_facts facts;
    struct shard *s, *want;
    uint64_t last, n_from_checkpoints = 0;
    struct err err;
    struct node n;
    int status;

    (void)state;
    make(&n, 3, CHECKPOINT_KEEP_ALL);
    node_die(&n);
    s = follow(&n, UINT64_MAX, 0, &status, &facts, &err);
    assert_int_equal(status, 0);
    last = facts.end.last;
    assert_true(last > N_STEPS);
    shard_free(s);
    for (uint64_t keep = 1; keep <= last; keep++) {
        s = follow(&n, keep, 0, &status, &facts, &err);
        if (status)
            fail_msg("record %llu: %s", (unsigned long long)keep, err.text);
        assert_int_equal(facts.end.last, keep);
        assert_true(facts.needs <= keep);
        n_from_checkpoints += facts.number > 0;
        replay_end(s, 0);
        want = reference(&n, keep);
        assert_same_shard(want, s);
        shard_free(want);
        shard_free(s);
    }
    assert_true(n_from_checkpoints > last / 3);
    node_end(&n);
}

/* It goes on: what came behind `keep` is another's. */
static void goes_on_behind_it(void **state)
{
    struct recover_shard_facts facts;
    struct shard *s;
    struct err err;
    struct node n;
    int status;

    (void)state;
    make(&n, 2, CHECKPOINT_KEEP_ALL);
    node_die(&n);
    s = follow(&n, 5, 0, &status, &facts, &err);
    assert_int_equal(status, 0);
    assert_false(replay_waits(s));
    replay_end(s, 0);
    shard_free(n.lines[0].shard);
    n.lines[0].shard = s;
    line_open(&n, 0, &facts.end);
    line_flush(&n.lines[0]);
    node_die(&n);
    for (uint64_t number = n.m->number; number > facts.number; number--) /* as a start does */
        assert_int_equal(checkpoint_archive(&n.files.ops, NODE_DIR, number, &err), 0);
    shard_free(follow(&n, UINT64_MAX, 0, &status, &facts, &err));
    assert_int_equal(status, 0);
    assert_int_equal(facts.end.last, 5);
    node_end(&n);
}

static void refuses_what_is_not_kept(void **state)
{
    struct recover_shard_facts facts;
    struct err err;
    struct node n;
    int status;

    (void)state;
    make(&n, 4, 1);
    node_die(&n);
    shard_free(follow(&n, 2, 0, &status, &facts, &err));
    assert_int_equal(status, PS_ENOCHECKPOINT);
    assert_non_null(strstr(err.text, "no checkpoint of before record 2"));
    node_end(&n);
}

/* Without the newest restore points: where another shard has more of these than its primary. */
static void does_without_newer_restore_points(void **state)
{
    struct recover_shard_facts facts;
    struct shard *s, *want;
    uint64_t last;
    struct err err;
    struct node n;
    int status;

    (void)state;
    make(&n, 3, CHECKPOINT_KEEP_ALL);
    node_die(&n);
    shard_free(follow(&n, UINT64_MAX, 0, &status, &facts, &err));
    last = facts.end.last;
    assert_int_equal(facts.number, 3);
    want = reference(&n, last);
    for (uint64_t below = 3; below > 0; below--) {
        s = follow(&n, UINT64_MAX, below, &status, &facts, &err);
        assert_int_equal(status, 0);
        assert_int_equal(facts.number, below - 1);
        assert_int_equal(facts.end.last, last);
        replay_end(s, 0);
        assert_same_shard(want, s);
        shard_free(s);
    }
    shard_free(want);
    node_end(&n);
    make(&n, 4, 1); /* its log does not lead up */
    node_die(&n);
    shard_free(follow(&n, UINT64_MAX, 1, &status, &facts, &err));
    assert_int_equal(status, PS_ECORRUPT);
    node_end(&n);
}

/* Of a copy there are files alone: what their scan needs of the log, the primary has. */
static void takes_a_checkpoint_without_its_log(void **state)
{
    struct recover_shard_facts facts;
    struct shard *s;
    struct err err;
    struct node n;
    int status;

    (void)state;
    make(&n, 4, 1);
    node_die(&n);
    for (long i = 0; i < n.files.n_names; i++) /* the log goes */
        if (strstr(n.files.names[i].path, ".psl") || strstr(n.files.names[i].path, "wal-"))
            n.files.names[i].live = -1;
    s = follow(&n, UINT64_MAX, 0, &status, &facts, &err);
    if (status)
        fail_msg("%s", err.text);
    assert_int_equal(n.n_reported, 0);
    assert_int_equal(facts.end.last, n.m->files[0].first);
    assert_true(facts.needs >= facts.end.last);
    replay_end(s, 0);
    shard_free(s);
    node_end(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recovers_up_to_any_record),
        cmocka_unit_test(goes_on_behind_it),
        cmocka_unit_test(refuses_what_is_not_kept),
        cmocka_unit_test(does_without_newer_restore_points),
        cmocka_unit_test(takes_a_checkpoint_without_its_log),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
