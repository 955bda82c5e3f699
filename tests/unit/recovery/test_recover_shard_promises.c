/* A checkpoint that has closed a gap of the log is damaged: what came behind it was acknowledged, and the one before
 * does not lead there. */
#include "tests/unit/recovery/node_fixture.h"

/* Records of the only shard are lost behind its log, which goes on. */
static void lose_records(struct node *n, uint64_t n_lost)
{
    struct wal_end end = { 0 };

    node_stop_logs(n);
    end.last_present = recorder_last(&n->lines[0].recorder);
    end.last = end.last_present + n_lost;
    end.version = shard_version(n->lines[0].shard);
    line_open(n, 0, &end);
}

/* Checkpoint 1, 20 steps, a gap, and, where it is mended, checkpoint 2; then 10 steps that were acknowledged. */
static void make(struct node *n, bool is_mended)
{
    node_begin(n, 1);
    node_job(n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    node_steps(n, "job", 1, 0, 10);
    node_save(n, 3);
    node_steps(n, "job", 1, 10, 30);
    lose_records(n, 5);
    if (is_mended)
        node_save(n, 3);
    node_steps(n, "job", 1, 30, 40);
    node_die(n);
}

/* From that restore point; the shard has seen so many steps. */
static void assert_rebuilt(struct node *n, uint64_t number, uint64_t n_steps)
{
    struct recover_shard_facts facts;
    struct shard *s;
    struct err err;
    int status;

    s = node_rebuild(n, 0, NULL, &status, &facts, &err);
    if (status)
        fail_msg("%s", err.text);
    assert_int_equal(facts.number, number);
    assert_steps(s, "job", n_steps);
    shard_free(s);
}

static void assert_refused(struct node *n, const char *says)
{
    struct recover_shard_facts facts;
    struct shard *one;
    struct err err;
    int status;

    assert_null(node_rebuild(n, 0, NULL, &status, &facts, &err));
    assert_int_equal(status, PS_ECORRUPT);
    if (!strstr(err.text, says) || !strstr(err.text, "--at NUMBER"))
        fail_msg("\"%s\" is not in: %s", says, err.text);
    assert_int_equal(node_collect(n, NODE_DIR, NULL, &one, &err), PS_ECORRUPT);
}

static struct crash_inode *manifest_of(struct node *n, uint64_t number)
{
    char path[CRASH_PATH_MAX];

    snprintf(path, sizeof path, NODE_DIR "/checkpoints/%020llu/MANIFEST",
             (unsigned long long)number);
    return crash_files_at(&n->files, path);
}

static void what_came_behind_a_mended_gap_is_not_given_up_with_its_checkpoint(void **state)
{
    static const struct recover_shard_at at = { .job = "job", .clock = 20 };
    struct shard *one;
    struct node n;
    struct err err;

    (void)state;
    make(&n, true);
    assert_rebuilt(&n, 2, 40);
    node_damage(node_part(&n, 2, 0));
    assert_refused(&n, "checkpoint 2, which is damaged, had all up to");
    node_part(&n, 2, 0)->n_bytes = 50; /* found without being read */
    assert_refused(&n, "checkpoint 2, which is damaged, had all up to");
    if (node_collect(&n, NODE_DIR, &at, &one, &err) != 0) /* before it all is well */
        fail_msg("%s", err.text);
    assert_steps(one, "job", 20);
    shard_free(one);
    node_end(&n);
}

static void nor_where_its_manifest_is_damaged(void **state)
{
    struct node n;

    (void)state;
    make(&n, true);
    node_damage(manifest_of(&n, 2));
    assert_refused(&n, "checkpoint 2, which is damaged, may have what came behind");
    node_damage(manifest_of(&n, 2));
    assert_rebuilt(&n, 2, 40);
    node_end(&n);
}

/* Nothing behind it was acknowledged. */
static void a_gap_that_was_never_mended_ends_the_log(void **state)
{
    struct node n;

    (void)state;
    make(&n, false);
    assert_rebuilt(&n, 1, 30);
    node_end(&n);
}

/* Its log leads further than the damaged one did: to the gap, behind which nothing was acknowledged. */
static void an_older_checkpoint_does_where_the_damaged_one_stands_before_the_gap(void **state)
{
    struct node n;

    (void)state;
    node_begin(&n, 1);
    node_job(&n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    node_steps(&n, "job", 1, 0, 10);
    node_save(&n, 3);
    node_steps(&n, "job", 1, 10, 20);
    node_save(&n, 3);
    node_steps(&n, "job", 1, 20, 30);
    lose_records(&n, 5);
    node_steps(&n, "job", 1, 30, 40);
    node_die(&n);
    node_damage(node_part(&n, 2, 0));
    assert_rebuilt(&n, 1, 30);
    node_end(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_came_behind_a_mended_gap_is_not_given_up_with_its_checkpoint),
        cmocka_unit_test(nor_where_its_manifest_is_damaged),
        cmocka_unit_test(a_gap_that_was_never_mended_ends_the_log),
        cmocka_unit_test(an_older_checkpoint_does_where_the_damaged_one_stands_before_the_gap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
