/* When an epoch stands, what it began with, what stays of those before, and starts that lead back into them. */
#include "server/checkpoint/directory.h"
#include "server/recovery/timeline.h"
#include "tests/unit/recovery/node_fixture.h"

/* As a start with options begins one: what it was made of, and its checkpoint. */
static void begin_epoch(struct node *n, uint64_t above, const char *options)
{
    const struct timeline_beginning b = { .above = above,
                                          .has_options = true,
                                          .options = (char *)options };
    struct err err;

    node_stop_logs(n);
    n->epoch = n->m->number + 1;
    assert_int_equal(timeline_make(&n->files.ops, NODE_DIR, n->epoch, &err), 0);
    if (timeline_write_beginning(&n->files.ops, NODE_DIR, n->epoch, &b, &err) != 0)
        fail_msg("%s", err.text);
    for (uint32_t i = 0; i < n->n_shards; i++)
        line_open(n, i, &(const struct wal_end){ 0 });
    node_save(n, CHECKPOINT_KEEP_ALL);
    assert_int_equal(n->m->number, n->epoch);
    for (uint64_t number = n->epoch - 1; number > above; number--)
        if (checkpoint_archive(&n->files.ops, NODE_DIR, number, &err))
            assert_int_equal(err.status, -ENOENT);
}

static uint64_t newest(struct node *n, uint64_t below)
{
    uint64_t number;
    struct err err;

    if (timeline_newest(&n->files.ops, NODE_DIR, below, &number, &err) != 0)
        fail_msg("%s", err.text);
    return number;
}

/* The one shard at that clock. */
static struct shard *at_clock(struct node *n, uint64_t clock, int *ret_status, struct err *err)
{
    const struct recover_shard_at at = { .job = "job", .clock = clock };
    struct recover_shard_facts facts;

    return node_rebuild(n, 0, &at, ret_status, &facts, err);
}

static void assert_at(struct node *n, uint64_t clock)
{
    struct err err;
    int status;
    struct shard *s = at_clock(n, clock, &status, &err);

    if (status)
        fail_msg("%s", err.text);
    assert_steps(s, "job", clock);
    shard_free(s);
}

static void assert_not_at(struct node *n, uint64_t clock, int want, const char *says)
{
    struct err err;
    int status;

    assert_null(at_clock(n, clock, &status, &err));
    assert_int_equal(status, want);
    if (!strstr(err.text, says))
        fail_msg("\"%s\" is not in: %s", says, err.text);
}

/* Its shard goes back to that step, and the next epoch begins. */
static void go_back_to(struct node *n, uint64_t clock, uint64_t above)
{
    struct err err;
    int status;
    struct shard *s;

    node_stop_logs(n);
    s = at_clock(n, clock, &status, &err);
    if (status)
        fail_msg("%s", err.text);
    shard_free(n->lines[0].shard);
    n->lines[0].shard = s;
    begin_epoch(n, above, "at job:\n");
}

static void one_stands_from_its_manifest_on(void **state)
{
    uint32_t n_logs;
    struct err err;
    struct node n;

    (void)state;
    node_begin(&n, 1);
    node_job(&n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    node_save(&n, 3);
    assert_int_equal(newest(&n, 0), 0);
    /* All that is there of it before. */
    n.epoch = 2;
    assert_int_equal(timeline_make(&n.files.ops, NODE_DIR, 2, &err), 0);
    assert_int_equal(timeline_make_logs(&n.files.ops, NODE_DIR, 2, 3, &err), 0);
    assert_int_equal(timeline_n_shards(&n.files.ops, NODE_DIR, 2, &n_logs, &err), 0);
    assert_int_equal(n_logs, 3);
    assert_int_equal(timeline_write_beginning(
                         &n.files.ops, NODE_DIR, 2,
                         &(struct timeline_beginning){ .options = (char *)"at 1\n" }, &err),
                     0);
    assert_int_equal(
        n.files.ops.mkdir(n.files.ops.state, NODE_DIR "/checkpoints/00000000000000000002"), 0);
    assert_int_equal(newest(&n, 0), 0);
    assert_int_equal(timeline_check(&n.files.ops, NODE_DIR, 0, 0, &err), 0);
    assert_int_equal(
        n.files.ops.rmdir(n.files.ops.state, NODE_DIR "/checkpoints/00000000000000000002"), 0);
    begin_epoch(&n, 1, "at 1\n");
    assert_int_equal(newest(&n, 0), 2);
    assert_int_equal(newest(&n, 2), 0);
    assert_int_equal(timeline_check(&n.files.ops, NODE_DIR, 2, 0, &err), 0);
    assert_int_equal(timeline_check(&n.files.ops, NODE_DIR, 0, 0, &err), PS_ECORRUPT);
    assert_non_null(strstr(err.text, "checkpoint 2"));
    /* Its log alone says it as well. */
    assert_int_equal(checkpoint_archive(&n.files.ops, NODE_DIR, 2, &err), 0);
    assert_int_equal(newest(&n, 0), 2);
    node_end(&n);
}

/* Whatever fails, it is said, and no reader is asked for more. */
static void a_disk_that_cannot_be_read_is_a_failure_and_no_end_of_the_process(void **state)
{
    struct node n;
    bool all = false;

    (void)state;
    node_begin(&n, 2);
    node_job(&n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    node_save(&n, 3);
    begin_epoch(&n, 1, "");
    node_steps(&n, "job", 1, 0, 3);
    node_die(&n);
    for (long k = 0; !all; k++) {
        struct err err = { 0 };
        uint64_t epoch;
        int status;

        crash_files_heal(&n.files);
        n.files.fail_at = k;
        status = timeline_newest(&n.files.ops, NODE_DIR, 0, &epoch, &err);
        all = n.files.n_ops <= k;
        assert_true(status ? err.text[0] != '\0' : epoch == 2);
        assert_int_equal(crash_files_n_open(&n.files), 0);
    }
    crash_files_heal(&n.files);
    node_end(&n);
}

/* --- its beginning --- */

#define BEGINNING NODE_DIR "/log/00000000000000000005/BEGINNING"

static void make_five(struct crash_files *c)
{
    crash_files_init(c);
    assert_int_equal(c->ops.mkdir(c->ops.state, NODE_DIR), 0);
    assert_int_equal(timeline_make(&c->ops, NODE_DIR, 5, NULL), 0);
}

static void assert_beginning(struct crash_files *c, uint64_t above, bool has_options,
                             const char *options)
{
    struct timeline_beginning b;
    struct err err;

    if (timeline_read_beginning(&c->ops, NODE_DIR, 5, &b, &err) != 0)
        fail_msg("%s", err.text);
    assert_int_equal(b.above, above);
    assert_int_equal(b.has_options, has_options);
    assert_string_equal(b.options, options);
    timeline_beginning_deinit(&b);
}

static void what_one_began_with_is_read_as_it_was_written_or_is_damaged(void **state)
{
    static const struct timeline_beginning all[] = {
        { .above = 0, .options = (char *)"" },
        { .above = 4, .has_options = true, .options = (char *)"" },
        { .above = 3, .has_options = true, .options = (char *)"no-restore\n" },
        { .above = UINT64_MAX,
          .has_options = true,
          .options = (char *)"restore /a b\nat j:1:2\n" },
    };
    struct crash_files c;
    struct timeline_beginning b;
    struct err err;

    (void)state;
    make_five(&c);
    assert_beginning(&c, 5, false, "");
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        assert_int_equal(timeline_write_beginning(&c.ops, NODE_DIR, 5, &all[i], &err), 0);
        assert_beginning(&c, all[i].above, all[i].has_options, all[i].options);
    }
    for (size_t i = 0; i < crash_files_at(&c, BEGINNING)->n_bytes; i++) {
        crash_files_at(&c, BEGINNING)->bytes[i] ^= 1;
        assert_int_equal(timeline_read_beginning(&c.ops, NODE_DIR, 5, &b, &err), PS_ECORRUPT);
        timeline_beginning_deinit(&b);
        crash_files_at(&c, BEGINNING)->bytes[i] ^= 1;
    }
    while (crash_files_at(&c, BEGINNING)->n_bytes) {
        crash_files_at(&c, BEGINNING)->n_bytes--;
        assert_int_equal(timeline_read_beginning(&c.ops, NODE_DIR, 5, &b, &err), PS_ECORRUPT);
        timeline_beginning_deinit(&b);
    }
    assert_int_equal(crash_files_n_open(&c), 0);
    crash_files_deinit(&c);
}

static void one_that_is_written_over_is_the_old_or_the_new_at_every_operation(void **state)
{
    const struct timeline_beginning old = { .above = 1, .options = (char *)"at 1\n" },
                                    new = { .above = 2, .options = (char *)"at 2\n" };
    int status = -EIO;

    (void)state;
    for (long k = 0; status; k++) {
        struct crash_files c;
        struct timeline_beginning b;
        struct err err = { 0 };

        make_five(&c);
        assert_int_equal(timeline_write_beginning(&c.ops, NODE_DIR, 5, &old, &err), 0);
        crash_files_heal(&c);
        c.fail_at = k;
        c.torn = c.dies = true;
        status = timeline_write_beginning(&c.ops, NODE_DIR, 5, &new, &err);
        assert_true(!status || err.text[0]);
        crash_files_power_cut(&c);
        assert_int_equal(timeline_read_beginning(&c.ops, NODE_DIR, 5, &b, &err), 0);
        assert_true(b.above == 2 || (status && b.above == 1));
        assert_string_equal(b.options, b.above == 2 ? "at 2\n" : "at 1\n");
        timeline_beginning_deinit(&b);
        crash_files_deinit(&c);
    }
}

/* --- what stays --- */

static bool has_log(struct node *n, uint64_t epoch)
{
    uint32_t n_shards;

    assert_int_equal(timeline_n_shards(&n->files.ops, NODE_DIR, epoch, &n_shards, NULL), 0);
    return n_shards > 0;
}

static void logs_go_with_the_last_checkpoint_of_their_epoch(void **state)
{
    struct node n;

    (void)state;
    node_begin(&n, 2);
    node_job(&n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    node_save(&n, 3);
    node_save(&n, 3);
    begin_epoch(&n, 2, "at 2\n");
    timeline_remove_unused(&n.files.ops, NODE_DIR, n.epoch);
    assert_true(has_log(&n, 0));
    node_save(&n, 1);
    timeline_remove_unused(&n.files.ops, NODE_DIR, n.epoch);
    assert_false(has_log(&n, 0));
    assert_false(crash_files_is_there(&n.files, NODE_DIR "/log/00000000000000000000"));
    begin_epoch(&n, 1, "at 1\n"); /* checkpoint 4 is archived */
    node_save(&n, 1);
    timeline_remove_unused(&n.files.ops, NODE_DIR, n.epoch);
    assert_true(has_log(&n, 3));
    assert_int_equal(n.files.ops.rename(n.files.ops.state,
                                        NODE_DIR "/checkpoints/00000000000000000004.aside",
                                        NODE_DIR "/checkpoints/taken-away"),
                     0);
    timeline_remove_unused(&n.files.ops, NODE_DIR, n.epoch);
    assert_false(has_log(&n, 3));
    assert_false(crash_files_is_there(&n.files, NODE_DIR "/log/00000000000000000003"));
    node_end(&n);
}

static void a_log_without_a_checkpoint_is_archived_by_a_start_that_begins_anew(void **state)
{
    struct err err;
    struct node n;

    (void)state;
    node_begin(&n, 1);
    node_job(&n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    node_steps(&n, "job", 1, 0, 5);
    begin_epoch(&n, 0, "no-restore\n");
    n.n_reported = 0;
    for (int i = 0; i < 2; i++) /* it is said once */
        assert_int_equal(
            timeline_preserve(&n.files.ops, NODE_DIR, n.epoch, node_hear, &n, &err), 0);
    assert_int_equal(n.n_reported, 1);
    assert_non_null(strstr(n.sentence, "log/00000000000000000000"));
    timeline_remove_unused(&n.files.ops, NODE_DIR, n.epoch);
    assert_true(has_log(&n, 0));
    node_end(&n);
}

static void a_manifest_that_cannot_be_read_keeps_all_logs(void **state)
{
    struct node n;

    (void)state;
    node_begin(&n, 1);
    node_job(&n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    node_save(&n, 3);
    begin_epoch(&n, 1, "");
    node_damage(
        crash_files_at(&n.files, NODE_DIR "/checkpoints/00000000000000000001/MANIFEST"));
    timeline_remove_unused(&n.files.ops, NODE_DIR, n.epoch);
    assert_true(has_log(&n, 0));
    node_end(&n);
}

/* --- back into them --- */

/* Epoch 0: checkpoint 1 behind 10 steps, 2 behind 20, 30 in all. Then back to step 15: epoch 3, 25 steps in all, which
 * has another checkpoint behind 20. */
static void make_two(struct node *n)
{
    node_begin(n, 1);
    node_job(n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    node_steps(n, "job", 1, 0, 10);
    node_save(n, 5);
    node_steps(n, "job", 1, 10, 20);
    node_save(n, 5);
    node_steps(n, "job", 1, 20, 30);
    go_back_to(n, 15, 1);
    assert_int_equal(n->epoch, 3);
    node_steps(n, "job", 1, 15, 20);
    node_save(n, 5);
    node_steps(n, "job", 1, 20, 25);
}

static void a_clock_before_an_epoch_is_found_in_the_one_before(void **state)
{
    struct node n;

    (void)state;
    make_two(&n);
    node_die(&n);
    for (uint64_t clock = 10; clock <= 25; clock++)
        assert_at(&n, clock);
    assert_not_at(&n, 26, PS_ENOCHECKPOINT, "has not finished 26 steps");
    go_back_to(&n, 12, 1); /* and once more */
    assert_int_equal(n.epoch, 5);
    node_steps(&n, "job", 1, 12, 14);
    node_die(&n);
    for (uint64_t clock = 10; clock <= 14; clock++)
        assert_at(&n, clock);
    assert_not_at(&n, 15, PS_ENOCHECKPOINT, "has not finished 15 steps");
    node_end(&n);
}

/* What an older one has of the steps behind the point where a newer one began is another history. */
static void
where_the_beginning_of_an_epoch_is_damaged_no_older_one_stands_in_for_it(void **state)
{
    struct node n;

    (void)state;
    make_two(&n);
    node_die(&n);
    node_damage(node_part(&n, 3, 0));
    assert_at(&n, 22);
    assert_not_at(&n, 17, PS_ECORRUPT, "checkpoint 3");
    assert_not_at(&n, 12, PS_ECORRUPT, "checkpoint 3");
    node_damage(node_part(&n, 4, 0));
    assert_not_at(&n, 22, PS_ECORRUPT, "checkpoint 3");
    node_end(&n);
}

static void what_was_kept_before_a_clock_and_is_gone_is_no_damage(void **state)
{
    struct node n;

    (void)state;
    make_two(&n);
    node_save(&n, 1); /* checkpoint 5 alone is left */
    node_die(&n);
    assert_at(&n, 25);
    assert_not_at(&n, 17, PS_ENOCHECKPOINT, "begins behind step 17");
    assert_not_at(&n, 12, PS_ENOCHECKPOINT, "begins behind step 12");
    node_end(&n);
}

static void
a_checkpoint_that_says_all_is_not_exact_where_a_newer_one_was_passed_over(void **state)
{
    static const struct recover_shard_at end = { 0 };
    struct restore_source s;
    struct err err;
    struct node n;

    (void)state;
    node_begin(&n, 1);
    node_job(&n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    node_steps(&n, "job", 1, 0, 5);
    node_stop(&n, 3);
    assert_int_equal(restore_source_open(&n.files.ops, NODE_DIR, &end, NULL, NULL, &s, &err),
                     0);
    assert_true(s.is_exact && restore_source_is_recoverable(&s));
    restore_source_close(&s);
    n.epoch = 0;
    node_start(&n);
    node_stop(&n, 3); /* another, which says the same */
    node_part(&n, 2, 0)->n_bytes = 50;
    assert_int_equal(restore_source_open(&n.files.ops, NODE_DIR, &end, NULL, NULL, &s, &err),
                     0);
    assert_int_equal(s.checkpoint.links[0].number, 1);
    assert_false(s.is_exact);
    restore_source_close(&s);
    node_end(&n);
}

/* One bit makes 1 shard into 0. */
static void a_log_whose_damaged_header_names_no_shards_is_of_no_other_node(void **state)
{
    static const struct recover_shard_at end = { 0 };
    struct restore_source s;
    struct err err;
    struct node n;

    (void)state;
    node_begin(&n, 1);
    node_job(&n, "job", TABLE_SPEC_MODE_ASYNC, 1);
    node_steps(&n, "job", 1, 0, 5);
    node_stop_logs(&n);
    assert_int_equal(restore_source_open(&n.files.ops, NODE_DIR, &end, NULL, NULL, &s, &err),
                     0);
    assert_true(s.has_log && s.n_nodes == 1);
    restore_source_close(&s);
    node_segment(&n, 0, UINT64_MAX)->bytes[24] ^= 1;
    assert_int_equal(restore_source_open(&n.files.ops, NODE_DIR, &end, NULL, NULL, &s, &err),
                     0);
    assert_false(s.has_log); /* each shard reads what is left of its own */
    restore_source_close(&s);
    node_end(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_log_whose_damaged_header_names_no_shards_is_of_no_other_node),
        cmocka_unit_test(one_stands_from_its_manifest_on),
        cmocka_unit_test(a_disk_that_cannot_be_read_is_a_failure_and_no_end_of_the_process),
        cmocka_unit_test(what_one_began_with_is_read_as_it_was_written_or_is_damaged),
        cmocka_unit_test(one_that_is_written_over_is_the_old_or_the_new_at_every_operation),
        cmocka_unit_test(logs_go_with_the_last_checkpoint_of_their_epoch),
        cmocka_unit_test(a_log_without_a_checkpoint_is_archived_by_a_start_that_begins_anew),
        cmocka_unit_test(a_manifest_that_cannot_be_read_keeps_all_logs),
        cmocka_unit_test(a_clock_before_an_epoch_is_found_in_the_one_before),
        cmocka_unit_test(
            where_the_beginning_of_an_epoch_is_damaged_no_older_one_stands_in_for_it),
        cmocka_unit_test(what_was_kept_before_a_clock_and_is_gone_is_no_damage),
        cmocka_unit_test(
            a_checkpoint_that_says_all_is_not_exact_where_a_newer_one_was_passed_over),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
