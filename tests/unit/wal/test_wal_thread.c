/* The thread around the log, with a loop as a shard has one. Under TSan it shows that they meet under the lock alone. */
#include <unistd.h>

#include "server/wal/wal_thread.h"
#include "tests/unit/wal/fixture.h"

#define N_RECORDS 3000u

struct loop {
    uv_loop_t loop;
    struct mailbox mailbox;
    uv_timer_t patience;
    struct wal_thread *log;
    uint64_t n_reports, acknowledged;
    char dir[200];
};

static void on_progress(void *owner)
{
    struct loop *l = owner;
    struct wal_thread_view view;

    wal_thread_view(l->log, &view);
    assert_true(view.acknowledged >= l->acknowledged);
    l->acknowledged = view.acknowledged;
    l->n_reports++;
}

static void on_patience(uv_timer_t *timer)
{
    (void)timer;
    fail_msg("no progress for 20 s");
}

static void start(struct loop *l, enum wal_durability durability, uint64_t from)
{
    struct wal_thread_config config = { .mailbox = &l->mailbox,
                                        .on_progress = on_progress,
                                        .owner = l,
                                        .block_bytes = 20000,
                                        .max_bytes = 200000 };
    struct wal_reader *r;
    const struct wal_record *record;
    struct err err = { 0 };

    config.writer = fixture_config(&file_os, durability);
    config.writer.segment_bytes = 100000;
    config.writer.interval_ms = 40;
    snprintf(config.writer.dir, sizeof config.writer.dir, "%s", l->dir);
    assert_int_equal(uv_loop_init(&l->loop), 0);
    assert_int_equal(mailbox_init(&l->mailbox, &l->loop, l), 0);
    uv_timer_init(&l->loop, &l->patience);
    uv_timer_start(&l->patience, on_patience, 20000, 0);
    assert_int_equal(wal_reader_open(&file_os, l->dir, NULL, from, &r, &err), 0);
    while (wal_reader_next(r, &record, &err) == 0 && record)
        continue;
    if (wal_thread_start(&config, wal_reader_end(r), &l->log, &err))
        fail_msg("%s", err.text);
    wal_reader_free(r);
}

static void stop(struct loop *l)
{
    struct err err = { 0 };

    if (wal_thread_close(l->log, &err))
        fail_msg("%s", err.text);
    uv_timer_stop(&l->patience);
    uv_close((uv_handle_t *)&l->patience, NULL);
    mailbox_close(&l->mailbox);
    uv_run(&l->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&l->loop), 0);
    mailbox_deinit(&l->mailbox);
}

static uint64_t append(struct loop *l, uint64_t seed)
{
    static struct fixture_storage storage;
    struct wal_record r = fixture_record(&storage, seed);

    while (shard_event_is_asked_for(r.event.type) &&
           wal_thread_reserve(l->log, wal_record_bytes(&r)) != 0)
        uv_run(&l->loop, UV_RUN_ONCE); /* FULL: progress comes when it is over */
    return wal_thread_append(l->log, &r, uv_hrtime() / 1000000);
}

static uint64_t count(const char *dir, uint64_t from, struct wal_end *ret_end)
{
    struct wal_reader *r;
    const struct wal_record *record;
    struct err err = { 0 };
    uint64_t n = 0;

    assert_int_equal(wal_reader_open(&file_os, dir, &fixture_identity, from, &r, &err), 0);
    while (wal_reader_next(r, &record, &err) == 0 && record) {
        assert_true(fixture_is(record, from + n, from + n));
        n++;
    }
    *ret_end = *wal_reader_end(r);
    wal_reader_free(r);
    return n;
}

static void make_dir(struct loop *l)
{
    const char *tmp = getenv("TMPDIR");

    *l = (struct loop){ 0 };
    snprintf(l->dir, sizeof l->dir, "%s/psd-log-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(l->dir));
}

static int remove_one(void *arg, const char *name)
{
    char path[600];

    snprintf(path, sizeof path, "%s/%s", (const char *)arg, name);
    return unlink(path);
}

static void remove_dir(struct loop *l)
{
    assert_int_equal(file_os.list(NULL, l->dir, remove_one, l->dir), 0);
    assert_int_equal(rmdir(l->dir), 0);
}

static void under_fsync_the_loop_learns_what_is_durable(void **state)
{
    struct wal_end end;
    struct loop l;

    (void)state;
    make_dir(&l);
    start(&l, WAL_FSYNC, 1);
    for (uint64_t i = 1; i <= 200; i++) {
        assert_int_equal(append(&l, i), i);
        if (i % 10 == 0)
            while (l.acknowledged < i)
                uv_run(&l.loop, UV_RUN_ONCE);
    }
    assert_true(l.n_reports >= 20);
    stop(&l);
    assert_int_equal(count(l.dir, 1, &end), 200);
    assert_int_equal(end.verdict, WAL_CLEAN);
    remove_dir(&l);
}

static void under_async_all_is_durable_soon_and_the_loop_need_not_ask(void **state)
{
    struct wal_end end;
    struct wal_thread_view view;
    struct loop l;

    (void)state;
    make_dir(&l);
    for (uint32_t life = 0; life < 3; life++) {
        start(&l, WAL_ASYNC, 1);
        for (uint64_t i = 0; i < N_RECORDS / 3; i++) {
            assert_int_equal(append(&l, life * (N_RECORDS / 3) + i + 1),
                             life * (N_RECORDS / 3) + i + 1);
            wal_thread_view(l.log, &view);
            while (view.state == WAL_QUEUE_FULL) { /* told when it is over */
                uv_run(&l.loop, UV_RUN_ONCE);
                wal_thread_view(l.log, &view);
            }
            assert_int_equal(view.acknowledged, view.appended);
        }
        do /* nothing comes any more, and still it becomes durable */
            wal_thread_view(l.log, &view);
        while (view.progress.durable < view.appended);
        stop(&l);
        assert_int_equal(count(l.dir, 1, &end), (life + 1) * (N_RECORDS / 3));
        assert_int_equal(end.verdict, WAL_CLEAN);
    }
    remove_dir(&l);
}

static void a_truncation_runs_beside_the_writing(void **state)
{
    struct wal_segments all = { 0 };
    struct wal_end end;
    struct loop l;

    (void)state;
    make_dir(&l);
    start(&l, WAL_ASYNC, 1);
    for (uint64_t i = 1; i <= 1000; i++)
        (void)append(&l, i);
    for (struct wal_thread_view view = { 0 }; view.progress.durable < 1000;)
        wal_thread_view(l.log, &view);
    wal_thread_truncate(l.log, 900);
    do {
        free(all.firsts);
        assert_int_equal(wal_segment_list(&file_os, l.dir, &all, NULL), 0);
    } while (all.firsts[0] == 1);
    free(all.firsts);
    stop(&l);
    assert_int_equal(count(l.dir, 900, &end), 101);
    remove_dir(&l);
}

static void a_requested_sync_reports_progress_also_under_none(void **state)
{
    struct wal_thread_view view = { 0 };
    struct wal_end end;
    struct loop l;

    (void)state;
    make_dir(&l);
    start(&l, WAL_NONE, 1);
    for (uint64_t i = 50; i <= 300; i += 50) {
        const uint64_t n_before = l.n_reports;

        for (uint64_t number = i - 49; number <= i; number++)
            (void)append(&l, number);
        wal_thread_sync(l.log, i);
        /* The view may be ahead of the message. */
        for (; view.progress.durable < i || l.n_reports == n_before;
             wal_thread_view(l.log, &view))
            uv_run(&l.loop, UV_RUN_ONCE);
    }
    assert_int_equal(view.lost_first, 0);
    stop(&l);
    assert_int_equal(count(l.dir, 1, &end), 300);
    assert_int_equal(end.durable, 300);
    remove_dir(&l);
}

static void a_directory_that_cannot_be_made_is_reported_at_the_start(void **state)
{
    struct wal_end end = { 0 };
    struct wal_thread_config config = { 0 };
    struct wal_thread *t;
    struct err err = { 0 };

    (void)state;
    config.writer = fixture_config(&file_os, WAL_FSYNC);
    snprintf(config.writer.dir, sizeof config.writer.dir, "/proc/nowhere/log");
    assert_int_not_equal(wal_thread_start(&config, &end, &t, &err), 0);
    assert_non_null(strstr(err.text, "/proc/nowhere/log"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(under_fsync_the_loop_learns_what_is_durable),
        cmocka_unit_test(under_async_all_is_durable_soon_and_the_loop_need_not_ask),
        cmocka_unit_test(a_truncation_runs_beside_the_writing),
        cmocka_unit_test(a_requested_sync_reports_progress_also_under_none),
        cmocka_unit_test(a_directory_that_cannot_be_made_is_reported_at_the_start),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
