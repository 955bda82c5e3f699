/* What a start makes of damage: an older restore point and the log behind it, or a refusal that names a way out; for
 * the shard itself, for another layout, and for tools. */
#include "server/wal/wal_block.h"
#include "tests/unit/recovery/node_fixture.h"

/* A job whose every push is on the disk: a checkpoint behind 10 steps, 20 more behind it. */
static void make(struct node *n, uint32_t n_shards)
{
    node_begin(n, n_shards);
    node_job(n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    node_steps(n, "job", 1, 0, 10);
    node_save(n, 3);
    node_steps(n, "job", 1, 10, 30);
}

static void assert_refused(struct node *n, uint32_t i, const struct recover_shard_at *at,
                           int want, const char *says)
{
    struct recover_shard_facts facts;
    struct err err;
    int status;

    assert_null(node_rebuild(n, i, at, &status, &facts, &err));
    assert_int_equal(status, want);
    if (!strstr(err.text, says))
        fail_msg("\"%s\" is not in: %s", says, err.text);
}

static struct crash_inode *manifest_of(struct node *n, uint64_t number)
{
    char path[CRASH_PATH_MAX];

    snprintf(path, sizeof path, NODE_DIR "/checkpoints/%020llu/MANIFEST",
             (unsigned long long)number);
    return crash_files_at(&n->files, path);
}

static void assert_collect_refused(struct node *n, const struct recover_shard_at *at, int want,
                                   const char *says)
{
    struct shard *one;
    struct err err;

    assert_int_equal(node_collect(n, NODE_DIR, at, &one, &err), want);
    assert_null(one);
    if (!strstr(err.text, says))
        fail_msg("\"%s\" is not in: %s", says, err.text);
}

/* Each shard is what it was, and so are all of them together. */
static void assert_all_there(struct node *n, const char *job, uint64_t n_steps)
{
    struct shard *one;
    struct err err;

    for (uint32_t i = 0; i < n->n_shards; i++) {
        struct recover_shard_facts facts;
        int status;
        struct shard *s = node_rebuild(n, i, NULL, &status, &facts, &err);

        if (status)
            fail_msg("%s", err.text);
        assert_same_shard(n->lines[i].shard, s);
        shard_free(s);
    }
    if (node_collect(n, NODE_DIR, NULL, &one, &err) != 0)
        fail_msg("%s", err.text);
    assert_steps(one, job, n_steps);
    shard_free(one);
}

static void one_shard_at(struct node *n, const struct recover_shard_at *at, uint64_t n_steps)
{
    struct shard *one;
    struct err err;

    if (node_collect(n, NODE_DIR, at, &one, &err) != 0)
        fail_msg("%s", err.text);
    assert_steps(one, "job", n_steps);
    shard_free(one);
}

static void
damage_behind_the_newest_checkpoint_is_refused_by_all_and_a_state_before_it_is_not(void **state)
{
    static const struct recover_shard_at before = { .job = "job", .clock = 12 },
                                         behind = { .job = "job", .clock = 28 },
                                         checkpoint = { .number = 1 };
    struct crash_inode *file;
    struct node n;

    (void)state;
    make(&n, 2);
    node_die(&n);
    assert_all_there(&n, "job", 30);
    file = node_segment(&n, 1, 20);
    node_damage(file);
    assert_refused(&n, 1, NULL, PS_ECORRUPT, "--at JOB:CLOCK");
    assert_refused(&n, 1, NULL, PS_ECORRUPT, "damaged behind record");
    assert_refused(&n, 1, &behind, PS_ECORRUPT, "--at JOB:CLOCK");
    assert_collect_refused(&n, NULL, PS_ECORRUPT, "--at JOB:CLOCK");
    assert_collect_refused(&n, &behind, PS_ECORRUPT, "--at JOB:CLOCK");
    one_shard_at(&n, &before, 12);
    one_shard_at(&n, &checkpoint, 10);
    node_damage(file);
    assert_all_there(&n, "job", 30);
    node_end(&n);
}

/* 30 steps; the block of the 20th is damaged: 19 are there, not only the checkpoint's 10. */
static void records_before_the_damage_can_be_recovered_on_request(void **state)
{
    static const struct recover_shard_at intact = { .intact = true };
    struct crash_inode *file;
    struct recover_shard_facts facts;
    struct shard *s;
    struct node n;
    struct err err;
    int status;

    (void)state;
    make(&n, 1);
    node_die(&n);
    one_shard_at(&n, &intact, 30);
    file = node_segment(&n, 0, 22);
    node_damage(file);
    assert_refused(&n, 0, NULL, PS_ECORRUPT, "--at intact");
    s = node_rebuild(&n, 0, &intact, &status, &facts, &err);
    assert_non_null(s);
    assert_int_equal(facts.number, 1);
    assert_true(facts.end.last > 12 && facts.end.last < 32); /* a join and a table come first */
    assert_steps(s, "job", facts.end.last - 2);
    assert_non_null(strstr(n.sentence, "damaged behind record"));
    shard_free(s);
    one_shard_at(&n, &intact, facts.end.last - 2);
    node_end(&n);
}

/* The log before the checkpoint is damaged, the one behind it is not. */
static void damage_that_no_restore_point_needs_is_not_in_the_way(void **state)
{
    struct crash_inode *file;
    struct node n;

    (void)state;
    node_begin(&n, 1);
    node_job(&n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    node_steps(&n, "job", 1, 0, 5);
    node_save(&n, 3);
    node_steps(&n, "job", 1, 5, 8);
    node_die(&n);
    file = node_segment(&n, 0, 1);
    file->bytes[WAL_SEGMENT_HEADER_BYTES + WAL_BLOCK_HEADER_BYTES + 8] ^= 1; /* record 1 */
    assert_all_there(&n, "job", 8);
    file->bytes[WAL_SEGMENT_HEADER_BYTES + 8] ^= 1; /* and the header of its block */
    assert_all_there(&n, "job", 8);
    node_end(&n);
}

static void a_torn_end_is_no_damage(void **state)
{
    struct crash_inode *file;
    struct node n;

    (void)state;
    make(&n, 1);
    node_die(&n);
    file = node_segment(&n, 0, UINT64_MAX);
    file->n_bytes -= 5;
    one_shard_at(&n, NULL, 29);
    assert_non_null(strstr(n.sentence, "torn"));
    node_end(&n);
}

/* Stopped in order, started, killed: what stands behind the last checkpoint is one damaged block. */
static void
a_log_that_cannot_be_read_behind_a_whole_checkpoint_is_not_taken_for_its_end(void **state)
{
    struct crash_inode *file;
    struct node n;

    (void)state;
    make(&n, 1);
    node_stop(&n, 3);
    one_shard_at(&n, NULL, 30);
    node_start(&n);
    node_steps(&n, "job", 1, 30, 33);
    node_die(&n);
    assert_all_there(&n, "job", 33);
    file = node_segment(&n, 0, UINT64_MAX);
    file->bytes[80 + 48 + 60] ^= 1; /* in the first block */
    assert_collect_refused(&n, NULL, PS_ECORRUPT, "damaged");
    file->bytes[80 + 48 + 60] ^= 1;
    file->bytes[80] ^= 1; /* its header */
    assert_collect_refused(&n, NULL, PS_ECORRUPT, "damaged");
    file->bytes[80] ^= 1;
    assert_all_there(&n, "job", 33);
    node_end(&n);
}

static void
with_its_only_checkpoint_damaged_and_the_log_truncated_there_is_no_empty_start(void **state)
{
    static const struct recover_shard_at at = { .job = "job", .clock = 29 };
    struct node n;

    (void)state;
    make(&n, 1);
    node_save(&n, 1);
    node_die(&n);
    assert_all_there(&n, "job", 30);
    node_damage(node_part(&n, 2, 0));
    assert_refused(&n, 0, NULL, PS_ECORRUPT, "does not lead there");
    assert_refused(&n, 0, &at, PS_ECORRUPT, "does not lead there");
    assert_refused(&n, 0, &(const struct recover_shard_at){ .intact = true }, PS_ECORRUPT,
                   "does not lead there");
    assert_int_equal(n.n_reported, 1); /* the checkpoint itself */
    manifest_of(&n, 2)->bytes[40] ^= 1;
    assert_refused(&n, 0, NULL, PS_ECORRUPT, "does not lead there");
    assert_collect_refused(&n, NULL, PS_ECORRUPT, "no checkpoint of 1 is whole");
    node_end(&n);
}

/* With all damaged, the log alone does, if it is whole from its first record on. */
static void
with_its_only_checkpoint_damaged_the_log_from_its_beginning_leads_there(void **state)
{
    struct node n;

    (void)state;
    make(&n, 2);
    node_die(&n);
    manifest_of(&n, 1)->bytes[40] ^= 1;
    assert_all_there(&n, "job", 30);
    one_shard_at(&n, NULL, 30);
    manifest_of(&n, 1)->bytes[40] ^= 1;
    node_part(&n, 1, 0)->bytes[20] ^= 1; /* the header of a file */
    assert_all_there(&n, "job", 30);
    manifest_of(&n, 1)->bytes[40] ^= 1;
    node_damage(node_segment(&n, 0, 8));
    assert_refused(&n, 0, NULL, PS_ECORRUPT, "--at intact");
    node_end(&n);
}

/* The blocks fit the crc that the header has, or should have. */
static void a_damaged_header_of_a_segment_costs_no_record(void **state)
{
    struct crash_inode *file;
    struct node n;

    (void)state;
    make(&n, 1);
    node_die(&n);
    file = node_segment(&n, 0, UINT64_MAX);
    for (size_t i = 0; i < 80; i++) {
        file->bytes[i] ^= 1;
        assert_all_there(&n, "job", 30);
        assert_true(n.n_reported > 0);
        assert_non_null(strstr(n.sentence, "its records are there"));
        file->bytes[i] ^= 1;
        n.files.n_opens = 0;
    }
    node_end(&n);
}

/* As psctl restore leaves a directory: a checkpoint with which an epoch begins, and nothing else. */
static void a_damaged_checkpoint_that_no_log_leads_to_is_no_empty_start(void **state)
{
    struct node n;

    (void)state;
    node_begin(&n, 1);
    node_job(&n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    node_steps(&n, "job", 1, 0, 5);
    node_stop_logs(&n);
    crash_files_deinit(&n.files);
    crash_files_init(&n.files);
    assert_int_equal(n.files.ops.mkdir(n.files.ops.state, NODE_DIR), 0);
    n.epoch = 1;
    assert_int_equal(timeline_make(&n.files.ops, NODE_DIR, 1, NULL), 0);
    line_open(&n, 0, &(const struct wal_end){ 0 });
    node_save(&n, 1);
    node_die(&n);
    one_shard_at(&n, NULL, 5);
    node_damage(node_part(&n, 1, 0));
    assert_refused(&n, 0, NULL, PS_ECORRUPT, "checkpoints/00000000000000000001");
    node_end(&n);
}

static void the_log_behind_an_older_checkpoint_must_lead_to_what_a_damaged_one_had(void **state)
{
    struct recover_shard_facts facts;
    struct crash_inode *file;
    struct shard *s;
    struct node n;
    struct err err;
    int status;

    (void)state;
    make(&n, 1);
    node_save(&n, 3);
    node_die(&n);
    node_damage(node_part(&n, 2, 0));
    s = node_rebuild(&n, 0, NULL, &status, &facts, &err);
    assert_int_equal(status, 0);
    assert_int_equal(facts.number, 1);
    assert_same_shard(n.lines[0].shard, s);
    shard_free(s);
    assert_non_null(strstr(n.sentence, "00000000000000000002"));
    file = node_segment(&n, 0, UINT64_MAX);
    file->n_bytes -= 5; /* what a torn end looks like; but the checkpoint was behind it */
    assert_refused(&n, 0, NULL, PS_ECORRUPT, "checkpoint 2, which is damaged, had all up to");
    node_damage(node_part(&n, 2, 0));
    one_shard_at(&n, NULL, 30);
    node_end(&n);
}

/* Nothing is behind it, so that its files would be resharded as they are. */
static void
a_damaged_checkpoint_that_says_all_is_made_up_for_by_the_one_before_and_the_log(void **state)
{
    struct node n;

    (void)state;
    make(&n, 3);
    node_stop(&n, 3);
    node_damage(node_part(&n, 2, 1));
    one_shard_at(&n, NULL, 30);
    assert_int_equal(n.n_reported, 2); /* the files, and the shard that is made again */
    assert_collect_refused(&n, &(const struct recover_shard_at){ .number = 2 }, PS_ECORRUPT,
                           "chunk");
    node_damage(node_segment(&n, 1, 15));
    assert_collect_refused(&n, NULL, PS_ECORRUPT, "--at JOB:CLOCK");
    node_end(&n);
}

static void a_clock_that_is_no_longer_kept_is_distinguished_from_damage(void **state)
{
    static const struct recover_shard_at early = { .job = "job", .clock = 3 },
                                         between = { .job = "job", .clock = 20 };
    struct node n;

    (void)state;
    make(&n, 1);
    node_save(&n, 2);
    node_steps(&n, "job", 1, 30, 40);
    node_save(&n, 2);
    node_die(&n);
    assert_refused(&n, 0, &early, PS_ENOCHECKPOINT, "begins behind step 3");
    assert_refused(&n, 0, &between, PS_ENOCHECKPOINT, "begins behind step 20");
    node_end(&n);
}

/* A newer epoch has been served; the checkpoint with which it began is damaged. */
static void
an_older_checkpoint_that_says_all_is_not_resharded_where_a_newer_epoch_was_served(void **state)
{
    struct crash_inode *manifest;
    struct node n;

    (void)state;
    make(&n, 1);
    node_stop(&n, 3);
    n.epoch = 3;
    assert_int_equal(timeline_make(&n.files.ops, NODE_DIR, 3, NULL), 0);
    line_open(&n, 0, &(const struct wal_end){ 0 });
    node_save(&n, 3);
    node_steps(&n, "job", 1, 30, 32);
    node_die(&n);
    one_shard_at(&n, NULL, 32);
    manifest = crash_files_at(&n.files, NODE_DIR "/checkpoints/00000000000000000003/MANIFEST");
    assert_non_null(manifest);
    node_damage(manifest);
    assert_collect_refused(&n, NULL, PS_ECORRUPT, "checkpoint 3");
    assert_refused(&n, 0, NULL, PS_ECORRUPT, "checkpoint 3");
    one_shard_at(&n, &(const struct recover_shard_at){ .number = 2 }, 30);
    node_end(&n);
}

static void
a_clock_of_a_job_that_is_not_in_lock_step_says_that_later_pushes_are_in_it(void **state)
{
    static const struct recover_shard_at at = { .job = "job", .clock = 2 };
    struct recover_shard_facts facts;
    struct shard *one;
    struct node n;
    struct err err;
    int status;

    (void)state;
    node_begin(&n, 2);
    node_job(&n, "job", TABLE_SPEC_MODE_SSP, 2);
    for (uint32_t i = 0; i < 2; i++) {
        node_push(&n, i, "job", 0, 0);
        node_push(&n, i, "job", 0, 1);
        if (i == 1)
            node_push(&n, i, "job", 0, 2); /* ahead, there */
        node_push(&n, i, "job", 1, 0);
        node_push(&n, i, "job", 1, 1);
    }
    node_die(&n);
    for (uint32_t i = 0; i < 2; i++) {
        struct shard *s = node_rebuild(&n, i, &at, &status, &facts, &err);

        assert_int_equal(status, 0);
        assert_int_equal(facts.has_later, i == 1);
        shard_free(s);
    }
    assert_int_equal(node_collect(&n, NODE_DIR, &at, &one, &err), 0);
    assert_int_equal(n.n_reported, 1);
    assert_non_null(strstr(n.sentence, "job job is not in lock step"));
    shard_free(one);
    assert_int_equal(node_collect(&n, NODE_DIR, NULL, &one, &err), 0);
    assert_int_equal(n.n_reported, 0);
    shard_free(one);
    node_end(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            damage_behind_the_newest_checkpoint_is_refused_by_all_and_a_state_before_it_is_not),
        cmocka_unit_test(records_before_the_damage_can_be_recovered_on_request),
        cmocka_unit_test(damage_that_no_restore_point_needs_is_not_in_the_way),
        cmocka_unit_test(a_torn_end_is_no_damage),
        cmocka_unit_test(
            a_log_that_cannot_be_read_behind_a_whole_checkpoint_is_not_taken_for_its_end),
        cmocka_unit_test(
            with_its_only_checkpoint_damaged_and_the_log_truncated_there_is_no_empty_start),
        cmocka_unit_test(
            with_its_only_checkpoint_damaged_the_log_from_its_beginning_leads_there),
        cmocka_unit_test(a_damaged_header_of_a_segment_costs_no_record),
        cmocka_unit_test(a_damaged_checkpoint_that_no_log_leads_to_is_no_empty_start),
        cmocka_unit_test(
            the_log_behind_an_older_checkpoint_must_lead_to_what_a_damaged_one_had),
        cmocka_unit_test(
            a_damaged_checkpoint_that_says_all_is_made_up_for_by_the_one_before_and_the_log),
        cmocka_unit_test(a_clock_that_is_no_longer_kept_is_distinguished_from_damage),
        cmocka_unit_test(
            an_older_checkpoint_that_says_all_is_not_resharded_where_a_newer_epoch_was_served),
        cmocka_unit_test(
            a_clock_of_a_job_that_is_not_in_lock_step_says_that_later_pushes_are_in_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
