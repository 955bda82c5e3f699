/* etcd as the coordination service: real etcd, one member and three. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "server/cluster/coord_etcd.h"
#include "tests/unit/cluster/coord_calls.h"

struct fixture {
    struct etcd_process etcd;
    uv_loop_t loop;
    struct coord *c;
};

static void start(struct fixture *f, int n_members)
{
    struct err err;

    etcd_process_start(&f->etcd, n_members);
    assert_int_equal(uv_loop_init(&f->loop), 0);
    if (coord_etcd_open(&(struct coord_options){ .url = f->etcd.url }, &f->loop, &f->c, &err))
        fail_msg("%s", err.text);
}

static void stop(struct fixture *f)
{
    calls_close(&f->loop, f->c);
    assert_int_equal(uv_loop_close(&f->loop), 0); /* no handle is left */
    etcd_process_stop(&f->etcd);
}

static int64_t put(struct fixture *f, const char *key, int64_t if_revision, const char *value)
{
    const struct calls_answer *a = calls_put(&f->loop, f->c, key, if_revision, value);

    if (a->err.status)
        fail_msg("%s", a->err.text);
    return a->result.is_made ? a->result.revision : -1;
}

static void what_is_written_can_be_read_one_key_or_all_below_a_prefix(struct fixture *f)
{
    const struct calls_answer *a;
    int64_t first;

    a = calls_get(&f->loop, f->c, "groups/0", false, 5000);
    assert_int_equal(a->err.status, 0);
    assert_int_equal(a->result.n_items, 0);
    first = put(f, "groups/0", 0, "{\"term\":1}");
    put(f, "groups/1", 0, "");
    put(f, "other", 0, "\x01\xff umlauts: \xc3\xa4");
    a = calls_get(&f->loop, f->c, "groups/", true, 5000);
    assert_int_equal(a->result.n_items, 2);
    assert_string_equal(a->items[0].key, "groups/0");
    assert_string_equal(a->items[0].value, "{\"term\":1}");
    assert_int_equal(a->items[0].mod_revision, first);
    assert_string_equal(a->items[1].value, "");
    assert_int_equal(a->result.revision, first + 2);
    a = calls_get(&f->loop, f->c, "other", false, 5000);
    assert_string_equal(a->items[0].value, "\x01\xff umlauts: \xc3\xa4");
}

static void a_transaction_is_made_only_if_none_of_its_keys_has_changed(struct fixture *f)
{
    int64_t first = put(f, "a", 0, "1"), second;
    const struct calls_answer *a;
    struct coord_write writes[3] = {
        { .change = COORD_PUT, .key = "a", .value = "2" },
        { .change = COORD_REMOVE, .key = "b" },
        { .change = COORD_CHECK, .key = "c" },
    };

    assert_int_equal(put(f, "a", 0, "x"), -1);
    writes[1].if_revision = put(f, "b", 0, "1");
    a = calls_put_if(&f->loop, f->c, writes, 3, 5000);
    assert_false(a->result.is_made);
    assert_int_equal(a->result.n_items, 2); /* as they are now */
    assert_int_equal(a->items[0].mod_revision, first);
    writes[0].if_revision = first;
    a = calls_put_if(&f->loop, f->c, writes, 3, 5000);
    assert_true(a->result.is_made);
    second = a->result.revision;
    a = calls_get(&f->loop, f->c, "", true, 5000);
    assert_int_equal(a->result.n_items, 4); /* groups/0, groups/1, other, a */
    assert_int_equal(put(f, "a", first, "3"), -1);
    assert_true(put(f, "a", second, "3") > second);
}

static void the_keys_of_a_lease_go_with_it(struct fixture *f)
{
    struct coord_write write = { .change = COORD_PUT, .key = "nodes/h1", .value = "x" };
    struct calls_view view = { 0 };
    int64_t lease;
    struct coord_watch *w = f->c->ops->watch(f->c, "nodes/", calls_on_event, &view);
    const struct calls_answer *a = calls_grant(&f->loop, f->c, 2000);

    lease = write.lease = a->result.lease;
    assert_true(a->result.ttl_ms >= 1000);
    assert_true(calls_put_if(&f->loop, f->c, &write, 1, 5000)->result.is_made);
    a = calls_keep(&f->loop, f->c, lease);
    assert_int_equal(a->err.status, 0);
    assert_int_equal(a->result.lease, lease);
    assert_true(a->result.ttl_ms >= 1000 && a->result.sent_ms > 0);
    calls_await_value(&f->loop, &view, "nodes/h1", "x", 5000);
    assert_int_equal(calls_revoke(&f->loop, f->c, lease)->err.status, 0);
    calls_await_value(&f->loop, &view, "nodes/h1", NULL, 5000);
    assert_int_equal(calls_revoke(&f->loop, f->c, lease)->err.status, 0); /* once more */
    a = calls_keep(&f->loop, f->c, lease);
    assert_int_equal(a->err.status, -ENOENT);
    a = calls_put_if(&f->loop, f->c, &write, 1, 5000);
    assert_int_equal(a->err.status, -ENOENT);

    /* Without a word its keys go by themselves. */
    write.lease = calls_grant(&f->loop, f->c, 1000)->result.lease;
    assert_true(calls_put_if(&f->loop, f->c, &write, 1, 5000)->result.is_made);
    calls_await_value(&f->loop, &view, "nodes/h1", "x", 5000);
    calls_await_value(&f->loop, &view, "nodes/h1", NULL, 10000);
    f->c->ops->unwatch(w);
}

static void a_watch_reports_what_is_there_and_then_each_change(struct fixture *f)
{
    struct calls_view view = { 0 }, other = { 0 };
    struct coord_watch *w = f->c->ops->watch(f->c, "w/", calls_on_event, &view);
    struct coord_write writes[2] = { { .change = COORD_PUT, .key = "w/1", .value = "b" },
                                     { .change = COORD_PUT, .key = "w/2", .value = "b" } };
    int64_t revision;

    f->c->ops->watch(f->c, "x/", calls_on_event, &other); /* ends with the connection */
    calls_await_value(&f->loop, &view, "w/1", NULL, 5000);
    revision = put(f, "w/1", 0, "a");
    calls_await_value(&f->loop, &view, "w/1", "a", 5000);
    writes[0].if_revision = revision;
    assert_true(calls_put_if(&f->loop, f->c, writes, 2, 5000)->result.is_made);
    calls_await_value(&f->loop, &view, "w/2", "b", 5000);
    assert_string_equal(calls_value(&view, "w/1"), "b");
    assert_int_equal(view.n_all, 1);
    assert_int_equal(view.n_changes, 3);
    assert_int_equal(other.n_changes, 0);
    f->c->ops->unwatch(w);
}

static void one_member_does_what_the_table_says(void **state)
{
    struct fixture f;

    (void)state;
    start(&f, 1);
    what_is_written_can_be_read_one_key_or_all_below_a_prefix(&f);
    a_transaction_is_made_only_if_none_of_its_keys_has_changed(&f);
    a_watch_reports_what_is_there_and_then_each_change(&f);
    the_keys_of_a_lease_go_with_it(&f);
    stop(&f);
}

/* A member that is killed, and is compacted before the watch is back. */
static void a_watch_behind_a_compaction_reads_all_keys_anew(void **state)
{
    struct fixture f;
    struct calls_view view = { 0 };
    struct coord *other;
    struct err err;
    int64_t revision;

    (void)state;
    start(&f, 1);
    f.c->ops->watch(f.c, "w/", calls_on_event, &view);
    put(&f, "w/1", 0, "a");
    calls_await_value(&f.loop, &view, "w/1", "a", 5000);
    etcd_process_signal(&f.etcd, 0, SIGKILL);
    while (!view.n_away)
        uv_run(&f.loop, UV_RUN_ONCE);
    assert_non_null(strstr(view.away, "127.0.0.1"));
    etcd_process_restart(&f.etcd, 0); /* nothing of the watch runs meanwhile */
    {
        uv_loop_t loop;

        assert_int_equal(uv_loop_init(&loop), 0);
        assert_int_equal(
            coord_etcd_open(&(struct coord_options){ .url = f.etcd.url }, &loop, &other, &err),
            0);
        revision = calls_put(&loop, other, "w/2", 0, "b")->result.revision;
        revision = calls_put(&loop, other, "w/2", revision, "c")->result.revision;
        etcd_process_compact(&f.etcd, revision);
        calls_close(&loop, other);
        assert_int_equal(uv_loop_close(&loop), 0);
    }
    calls_await_value(&f.loop, &view, "w/2", "c", 10000);
    assert_int_equal(view.n_all, 2);
    assert_int_equal(view.n_back, 1);
    stop(&f);
}

/* Its revision goes back, below what the watch waits for. */
static void a_watch_of_an_etcd_that_comes_back_empty_reads_all_keys_anew(void **state)
{
    struct fixture f;
    struct calls_view view = { 0 };
    int64_t revision;

    (void)state;
    start(&f, 1);
    f.c->ops->watch(f.c, "w/", calls_on_event, &view);
    revision = put(&f, "w/1", 0, "a");
    put(&f, "w/1", revision, "b");
    calls_await_value(&f.loop, &view, "w/1", "b", 5000);
    etcd_process_signal(&f.etcd, 0, SIGKILL);
    etcd_process_empty(&f.etcd, 0);
    etcd_process_restart(&f.etcd, 0);
    calls_await_value(&f.loop, &view, "w/1", NULL, 10000);
    assert_int_equal(view.n_restored, 1);
    assert_non_null(
        strstr(view.restored, "etcd was restored or replaced: its revision was 3, and is 1"));
    assert_int_equal(view.n_back, view.n_away);
    put(&f, "w/1", 0, "c"); /* with a revision that it has seen before */
    calls_await_value(&f.loop, &view, "w/1", "c", 5000);
    assert_int_equal(view.n_restored, 1);
    stop(&f);
}

static void whatever_happens_to_the_leader_of_three_calls_and_watches_go_on(void **state)
{
    static const int signals[] = { SIGKILL, SIGSTOP };
    struct fixture f;
    struct calls_view view = { 0 };
    int64_t revision = 0;

    (void)state;
    start(&f, 3);
    f.c->ops->watch(f.c, "w/", calls_on_event, &view);
    for (int i = 0; i < 2; i++) {
        const int leader = etcd_process_leader(&f.etcd);
        char value[16];

        snprintf(value, sizeof value, "%d", i);
        revision = put(&f, "w/1", revision, value);
        calls_await_value(&f.loop, &view, "w/1", value, 5000);
        etcd_process_signal(&f.etcd, leader, signals[i]);
        revision = put(&f, "w/1", revision, "after");
        assert_true(revision > 0);
        calls_await_value(&f.loop, &view, "w/1", "after", 10000);
        if (signals[i] == SIGKILL)
            etcd_process_restart(&f.etcd, leader);
        else
            etcd_process_signal(&f.etcd, leader, SIGCONT);
    }
    assert_int_equal(view.n_all, 1); /* it has missed nothing, so nothing was read anew */
    stop(&f);
}

static void without_a_majority_calls_end_at_their_deadline_and_the_watch_says_so(void **state)
{
    struct fixture f;
    struct calls_view view = { 0 };
    const struct calls_answer *a;
    int64_t revision;
    uint64_t since;

    (void)state;
    start(&f, 3);
    revision = put(&f, "w/1", 0, "a");
    f.c->ops->watch(f.c, "w/", calls_on_event, &view);
    calls_await_value(&f.loop, &view, "w/1", "a", 5000);
    etcd_process_signal(&f.etcd, 1, SIGSTOP);
    etcd_process_signal(&f.etcd, 2, SIGSTOP);
    since = clock_mono_ms();
    a = calls_get(&f.loop, f.c, "w/1", false, 1500);
    assert_int_equal(a->err.status, PS_EDEADLINE);
    assert_true(clock_mono_ms() - since < 1800);
    assert_non_null(strstr(a->err.text, "etcd at 127.0.0.1:"));
    while (!view.n_away)
        uv_run(&f.loop, UV_RUN_ONCE);
    etcd_process_signal(&f.etcd, 1, SIGCONT);
    etcd_process_signal(&f.etcd, 2, SIGCONT);
    revision = put(&f, "w/1", revision, "b");
    assert_true(revision > 0);
    calls_await_value(&f.loop, &view, "w/1", "b", 10000);
    assert_int_equal(view.n_back, view.n_away);
    stop(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_member_does_what_the_table_says),
        cmocka_unit_test(a_watch_behind_a_compaction_reads_all_keys_anew),
        cmocka_unit_test(a_watch_of_an_etcd_that_comes_back_empty_reads_all_keys_anew),
        cmocka_unit_test(whatever_happens_to_the_leader_of_three_calls_and_watches_go_on),
        cmocka_unit_test(without_a_majority_calls_end_at_their_deadline_and_the_watch_says_so),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
