/* What is appended is what is read, and what is durable when: the log without faults. */
#include <errno.h>

#include "tests/unit/wal/fixture.h"

static void append_n(struct fixture_log *l, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(fixture_append(l), 0);
}

static void start(struct fixture_log *l, struct crash_files *c, enum wal_durability durability)
{
    const struct wal_writer_config config = fixture_config(&c->ops, durability);

    crash_files_init(c);
    assert_int_equal(fixture_reopen(l, &config), 0);
}

static void stop(struct fixture_log *l, struct crash_files *c)
{
    fixture_free(l);
    assert_int_equal(crash_files_n_open(c), 0);
    crash_files_deinit(c);
}

static void what_was_appended_is_read_again_over_many_segments(void **state)
{
    (void)state;
    for (enum wal_durability d = WAL_NONE; d <= WAL_FSYNC; d++) {
        struct crash_files c;
        struct fixture_log l;
        struct wal_end end;

        start(&l, &c, d);
        for (uint32_t i = 0; i < 100; i++) {
            append_n(&l, 5);
            fixture_work(&l);
        }
        assert_int_equal(wal_writer_close(l.writer, l.now_ms, 0), 0);
        assert_true(wal_writer_progress(l.writer)->n_segments > 10);
        assert_int_equal(fixture_read(&c.ops, 1, &end), 0);
        assert_int_equal(end.verdict, WAL_CLEAN);
        assert_int_equal(end.last, 500);
        assert_int_equal(end.version, 250);
        assert_int_equal(end.durable, d == WAL_NONE ? 0 : 500);
        for (uint64_t from = 2; from < 503; from += 7) {
            assert_int_equal(fixture_read(&c.ops, from, &end), 0);
            assert_int_equal(end.verdict, WAL_CLEAN);
            assert_int_equal(end.last, 500);
        }
        stop(&l, &c);
    }
}

static void under_fsync_a_group_is_acknowledged_after_its_one_sync(void **state)
{
    struct crash_files c;
    struct fixture_log l;
    uint64_t n_syncs;

    (void)state;
    start(&l, &c, WAL_FSYNC);
    n_syncs = wal_writer_progress(l.writer)->n_syncs;
    append_n(&l, 4);
    assert_int_equal(wal_queue_acknowledged(&l.queue), 0);
    fixture_work(&l);
    assert_int_equal(wal_queue_acknowledged(&l.queue), 4);
    assert_int_equal(wal_writer_progress(l.writer)->n_syncs, n_syncs + 1);
    append_n(&l, 3); /* they come while the writer is at work: the next group */
    assert_int_equal(wal_queue_acknowledged(&l.queue), 4);
    fixture_work(&l);
    assert_int_equal(wal_queue_acknowledged(&l.queue), 7);
    assert_int_equal(wal_writer_progress(l.writer)->n_syncs, n_syncs + 2);
    assert_true(l.due_ms == UINT64_MAX);
    fixture_work(&l);
    assert_int_equal(wal_writer_progress(l.writer)->n_syncs, n_syncs + 2);
    stop(&l, &c);
}

static void under_async_a_record_is_durable_after_the_interval(void **state)
{
    struct crash_files c;
    struct fixture_log l;

    (void)state;
    start(&l, &c, WAL_ASYNC);
    append_n(&l, 1);
    assert_int_equal(wal_queue_acknowledged(&l.queue), 1);
    fixture_work(&l);
    assert_int_equal(l.due_ms, 2000);
    l.now_ms = 1600;
    append_n(&l, 1);
    fixture_work(&l);
    assert_int_equal(l.due_ms, 2000);
    assert_int_equal(wal_writer_progress(l.writer)->written, 2);
    assert_int_equal(wal_writer_progress(l.writer)->durable, 0);
    l.now_ms = 2000;
    fixture_work(&l);
    assert_int_equal(wal_writer_progress(l.writer)->durable, 2);
    assert_true(l.due_ms == UINT64_MAX);
    stop(&l, &c);
}

static void under_none_nothing_is_synced_and_a_dead_process_loses_nothing_written(void **state)
{
    struct crash_files c;
    struct fixture_log l;
    struct wal_end end;

    (void)state;
    start(&l, &c, WAL_NONE);
    for (uint32_t i = 0; i < 50; i++) {
        append_n(&l, 2);
        l.now_ms += 5000;
        fixture_work(&l);
        assert_true(l.due_ms == UINT64_MAX);
    }
    assert_int_equal(wal_writer_progress(l.writer)->n_syncs, 0);
    assert_int_equal(l.queue.held_bytes, 0);
    fixture_free(&l);
    assert_int_equal(fixture_read(&c.ops, 1, &end), 0);
    assert_int_equal(end.verdict, WAL_CLEAN);
    assert_int_equal(end.last, 100);
    crash_files_deinit(&c);
}

static void a_truncation_removes_older_segments_and_nothing_else(void **state)
{
    struct crash_files c;
    struct fixture_log l;
    struct wal_segments all;
    struct wal_end end;
    struct err err;

    (void)state;
    start(&l, &c, WAL_ASYNC);
    for (uint32_t i = 0; i < 100; i++) {
        append_n(&l, 3);
        fixture_work(&l);
    }
    for (uint64_t number = 1; number <= 301; number += 20) {
        assert_int_equal(wal_writer_truncate(l.writer, number, &err), 0);
        assert_int_equal(fixture_read(&c.ops, number, &end), 0);
        assert_int_equal(end.verdict, WAL_CLEAN);
        assert_int_equal(end.last, 300);
        assert_int_equal(wal_segment_list(&c.ops, LOG_DIR, &all, &err), 0);
        assert_true(all.firsts[0] <= number);
        assert_true(all.n == 1 || all.firsts[1] > number);
        free(all.firsts);
    }
    /* What was cut off and is needed all the same is told. */
    assert_int_equal(fixture_read(&c.ops, 1, &end), 0);
    assert_int_equal(end.verdict, WAL_DAMAGED);
    assert_int_equal(end.last, 0);
    stop(&l, &c);
}

struct unread {
    uint32_t n;
    uint64_t least;
};

static int count_unread(void *arg, const char *name)
{
    struct unread *u = arg;

    if (!strstr(name, ".psl.unread"))
        return 0;
    if (!u->n++ || strtoull(name, NULL, 10) < u->least)
        u->least = strtoull(name, NULL, 10);
    return 0;
}

static struct unread unread_of(struct crash_files *c)
{
    struct unread u = { 0 };

    assert_int_equal(c->ops.list(c, LOG_DIR, count_unread, &u), 0);
    return u;
}

static void archived_segments_go_when_the_log_is_truncated_behind_them(void **state)
{
    const struct wal_end at = { .verdict = WAL_STOPPED, .last = 90, .last_present = 90 };
    struct wal_writer_config config;
    struct crash_files c;
    struct fixture_log l;
    uint32_t n_unread;
    struct err err;

    (void)state;
    start(&l, &c, WAL_ASYNC);
    config = fixture_config(&c.ops, WAL_ASYNC);
    for (uint32_t i = 0; i < 100; i++) {
        append_n(&l, 3);
        fixture_work(&l);
    }
    fixture_free(&l);
    assert_int_equal(fixture_open(&l, &config, &at), 0);
    n_unread = unread_of(&c).n;
    assert_true(n_unread > 3);
    assert_int_equal(wal_writer_truncate(l.writer, 91, &err), 0);
    assert_int_equal(unread_of(&c).n, n_unread); /* a person may still look at it */
    assert_int_equal(wal_writer_truncate(l.writer, 200, &err), 0);
    assert_true(unread_of(&c).n < n_unread && unread_of(&c).least >= 200);
    assert_int_equal(wal_writer_truncate(l.writer, 400, &err), 0);
    assert_int_equal(unread_of(&c).n, 0);
    stop(&l, &c);
}

static void a_slow_disk_is_reported_and_memory_stays_bounded(void **state)
{
    struct crash_files c;
    struct fixture_log l;

    (void)state;
    start(&l, &c, WAL_FSYNC);
    while (l.queue.state == WAL_QUEUE_OPEN) {
        append_n(&l, 1);
        assert_true(l.queue.held_bytes < l.queue.max_bytes + 2 * l.queue.block_bytes + 3000);
    }
    assert_int_equal(l.queue.state, WAL_QUEUE_FULL);
    assert_int_equal(wal_queue_reserve(&l.queue, 100), -EAGAIN);
    fixture_work(&l);
    assert_int_equal(l.queue.state, WAL_QUEUE_OPEN);
    assert_int_equal(l.queue.held_bytes, 0);
    assert_int_equal(l.queue.n_dropped, 0);
    stop(&l, &c);
}

static void keys_and_floats_are_compressed_and_noise_is_not(void **state)
{
    struct crash_files c;
    struct fixture_log l;
    const struct wal_progress *p;
    struct push push = { .seq = 1, .n_sections = 1 };
    struct wal_record r = { .event = { .type = SHARD_EVENT_PUSH,
                                       .push = { { "j", 0, 1 }, &push, 0 } } };
    static uint8_t values[1500];

    (void)state;
    start(&l, &c, WAL_ASYNC);
    push.sections[0] = (struct section){ .values = values, .value_bytes = sizeof values };
    assert_int_equal(wal_queue_reserve(&l.queue, wal_record_bytes(&r)), 0);
    (void)wal_queue_append(&l.queue, &r, 0);
    fixture_work(&l);
    p = wal_writer_progress(l.writer);
    assert_true(p->stored_bytes < 500);
    for (size_t i = 0; i < sizeof values; i++)
        values[i] = (uint8_t)hash_mix(i);
    for (int i = 0; i < 40; i++) {
        assert_int_equal(wal_queue_reserve(&l.queue, wal_record_bytes(&r)), 0);
        (void)wal_queue_append(&l.queue, &r, 0);
        fixture_work(&l);
    }
    assert_true(p->stored_bytes > p->raw_bytes - 1500);
    stop(&l, &c);
}

static void a_log_of_another_shard_is_refused(void **state)
{
    struct wal_identity other = fixture_identity;
    struct wal_reader *r;
    struct crash_files c;
    struct fixture_log l;
    struct err err;

    (void)state;
    start(&l, &c, WAL_FSYNC);
    other.shard++;
    assert_int_equal(wal_reader_open(&c.ops, LOG_DIR, &other, 1, &r, &err), PS_ECLUSTER);
    assert_non_null(strstr(err.text, "expected shard 6 of 8"));
    assert_int_equal(wal_reader_open(&c.ops, LOG_DIR, NULL, 1, &r, &err), 0);
    assert_int_equal(wal_reader_identity(r)->map_id, 99);
    wal_reader_free(r);
    stop(&l, &c);
}

/* A checkpoint at record 50 is newer than what of the log was synced. */
static void a_log_that_ends_before_the_checkpoint_goes_on_behind_it(void **state)
{
    struct crash_files c;
    struct fixture_log l;
    struct wal_end end;
    const struct wal_writer_config config = fixture_config(&c.ops, WAL_FSYNC);

    (void)state;
    start(&l, &c, WAL_FSYNC);
    append_n(&l, 30);
    fixture_work(&l);
    fixture_free(&l);
    assert_int_equal(fixture_read(&c.ops, 51, &end), 0);
    assert_int_equal(end.last, 50);
    assert_int_equal(end.last_present, 30);
    assert_int_equal(fixture_open(&l, &config, &end), 0);
    append_n(&l, 10);
    fixture_work(&l);
    assert_int_equal(fixture_read(&c.ops, 51, &end), 0);
    assert_int_equal(end.verdict, WAL_CLEAN);
    assert_int_equal(end.last, 60);
    /* From an older checkpoint on there is a hole, and it is told. */
    assert_int_equal(fixture_read(&c.ops, 11, &end), 0);
    assert_int_equal(end.verdict, WAL_GAP);
    assert_int_equal(end.last, 30);
    stop(&l, &c);
}

/* The process dies with records that are written and not synced. The next one tells workers that they
 * were applied, so then they must be durable, although nothing was appended since. */
static void what_a_start_has_read_is_durable_from_then_on(void **state)
{
    struct crash_files c;
    struct fixture_log l;
    struct wal_end end;
    const struct wal_writer_config config = fixture_config(&c.ops, WAL_ASYNC);

    (void)state;
    start(&l, &c, WAL_ASYNC);
    append_n(&l, 9);
    fixture_work(&l);
    assert_int_equal(wal_writer_progress(l.writer)->durable, 0);
    fixture_free(&l);
    assert_int_equal(fixture_reopen(&l, &config), 0);
    assert_int_equal(wal_writer_progress(l.writer)->durable, 9);
    fixture_free(&l);
    crash_files_power_cut(&c);
    assert_int_equal(fixture_read(&c.ops, 1, &end), 0);
    assert_int_equal(end.verdict, WAL_CLEAN);
    assert_int_equal(end.last, 9);
    crash_files_deinit(&c);
}

/* Against a reference that is a number: what was written, and what of it was synced. */
static void random_runs_lose_nothing_that_they_must_keep(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 150; seed++) {
        enum wal_durability d = (enum wal_durability)(seed % 3);
        struct crash_files c;
        struct fixture_log l;
        struct wal_end end;
        struct wal_writer_config config = fixture_config(&c.ops, d);
        uint64_t first_kept = 1, written = 0;

        start(&l, &c, d);
        for (uint64_t i = 0; i < 200; i++) {
            uint64_t dice = hash_mix2(seed, i) % 100;

            if (dice < 60 && l.queue.state == WAL_QUEUE_OPEN)
                append_n(&l, 1 + (uint32_t)(dice % 4));
            else if (dice < 85)
                fixture_work(&l);
            else if (dice < 94)
                l.now_ms += dice * 10;
            else if (dice < 97 && l.queue.progress.durable > first_kept)
                first_kept += hash_mix2(i, seed) % (l.queue.progress.durable - first_kept);
            else if (dice >= 98) {
                if (dice == 98)
                    assert_int_equal(wal_writer_close(l.writer, l.now_ms, 0), 0);
                written = wal_writer_progress(l.writer)->written;
                fixture_free(&l);
                if (fixture_read(&c.ops, first_kept, &end) || end.verdict != WAL_CLEAN ||
                    end.last != written)
                    fail_msg("seed %llu, step %llu: %s", (unsigned long long)seed,
                             (unsigned long long)i, end.text);
                assert_int_equal(fixture_open(&l, &config, &end), 0);
            }
            assert_int_equal(wal_writer_truncate(l.writer, first_kept, NULL), 0);
            assert_true(l.queue.progress.durable <= l.queue.progress.written);
        }
        stop(&l, &c);
    }
}

static size_t n_segments(struct crash_files *c, uint64_t *ret_newest)
{
    struct wal_segments all;
    size_t n;

    assert_int_equal(wal_segment_list(&c->ops, LOG_DIR, &all, NULL), 0);
    n = all.n;
    *ret_newest = all.n ? all.firsts[all.n - 1] : 0;
    free(all.firsts);
    return n;
}

/* A checkpoint begins behind record 10, and is written when there are 20: what is before it can go, and so can all of
 * a log that has nothing behind a checkpoint. */
static void a_checkpoint_begins_a_segment_and_leaves_nothing_that_is_not_needed(void **state)
{
    struct crash_files c;
    struct fixture_log l;
    const struct wal_writer_config config = fixture_config(&c.ops, WAL_ASYNC);
    struct wal_end end;
    uint64_t newest;

    (void)state;
    crash_files_init(&c);
    assert_int_equal(fixture_reopen(&l, &config), 0);
    while (l.queue.next_number <= 10)
        assert_int_equal(fixture_append(&l), 0);
    wal_queue_begin_segment(&l.queue);
    while (l.queue.next_number <= 12)
        assert_int_equal(fixture_append(&l), 0);
    fixture_work(&l);
    assert_true(n_segments(&c, &newest) >= 2);
    assert_int_equal(newest, 11);
    assert_int_equal(wal_writer_truncate(l.writer, 11, NULL), 0);
    assert_int_equal(n_segments(&c, &newest), 1);
    wal_queue_begin_segment(&l.queue);
    wal_writer_leave(l.writer, 13);
    fixture_work(&l);
    assert_int_equal(wal_writer_truncate(l.writer, 13, NULL), 0);
    assert_int_equal(n_segments(&c, &newest), 1);
    assert_int_equal(newest, 13);
    assert_int_equal(fixture_append(&l), 0); /* it begins no other */
    fixture_work(&l);
    assert_int_equal(n_segments(&c, &newest), 1);
    assert_int_equal(wal_writer_close(l.writer, l.now_ms, 0), 0);
    fixture_free(&l);
    assert_int_equal(fixture_read(&c.ops, 13, &end), 0);
    assert_int_equal(end.last, 13);
    assert_int_equal(end.verdict, WAL_CLEAN);
    crash_files_deinit(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_appended_is_read_again_over_many_segments),
        cmocka_unit_test(under_fsync_a_group_is_acknowledged_after_its_one_sync),
        cmocka_unit_test(under_async_a_record_is_durable_after_the_interval),
        cmocka_unit_test(under_none_nothing_is_synced_and_a_dead_process_loses_nothing_written),
        cmocka_unit_test(a_truncation_removes_older_segments_and_nothing_else),
        cmocka_unit_test(archived_segments_go_when_the_log_is_truncated_behind_them),
        cmocka_unit_test(a_slow_disk_is_reported_and_memory_stays_bounded),
        cmocka_unit_test(keys_and_floats_are_compressed_and_noise_is_not),
        cmocka_unit_test(a_log_of_another_shard_is_refused),
        cmocka_unit_test(a_log_that_ends_before_the_checkpoint_goes_on_behind_it),
        cmocka_unit_test(what_a_start_has_read_is_durable_from_then_on),
        cmocka_unit_test(random_runs_lose_nothing_that_they_must_keep),
        cmocka_unit_test(a_checkpoint_begins_a_segment_and_leaves_nothing_that_is_not_needed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
