/* Watchers over socket pairs, on a loop that the test turns. */
#include "server/watch_server.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/memory.h"
#include "common/status.h"
#include "proto/message_replication.h"
#include "server/standby.h"
#include "tests/unit/net/peer.h"

struct fixture {
    uv_loop_t loop;
    struct hello_reply map;
    struct group_view *groups;
    struct watch_server *server;
    struct watch_reply reply; /* the last one that hear() read */
};

static void set_up(struct fixture *f)
{
    struct watch_server_config config = { .loop = &f->loop,
                                          .welcome = &f->map,
                                          .frame_timeout_ms = 10000 };

    enter_main();
    *f = (struct fixture){
        .map = { .version = 1, .n_nodes = 1, .shards_per_node = 2, .nodes = { "a:1" } }
    };
    assert_int_equal(uv_loop_init(&f->loop), 0);
    config.groups = f->groups = group_view_new(&f->map);
    f->server = watch_server_new(&config);
}

static void tear_down(struct fixture *f)
{
    if (f->server) {
        watch_server_close(f->server);
        uv_run(&f->loop, UV_RUN_DEFAULT);
        watch_server_free(f->server);
    }
    group_view_free(f->groups);
    assert_int_equal(uv_loop_close(&f->loop), 0);
}

static struct peer connect_peer(struct fixture *f)
{
    const struct hello hello = {
        .version_min = 1, .version_max = 1, .role = "watcher", .name = "peer"
    };
    struct peer p = { .loop = &f->loop };
    struct hello_reply reply;
    int ends[2];

    assert_int_equal(uv_socketpair(SOCK_STREAM, 0, ends, UV_NONBLOCK_PIPE, 0), 0);
    assert_int_equal(watch_server_receive(
                         f->server, &(struct connection_socket){ .fd = ends[0] }, 5, &hello),
                     0);
    p.fd = ends[1];
    assert_true(peer_receive(&p));
    assert_int_equal(message_read_hello_reply(&p.header, p.head, &reply), 0);
    assert_int_equal(reply.groups.number, group_view_number(f->groups));
    return p;
}

static void ask(struct peer *p, uint64_t id, uint64_t above, uint32_t wait_ms)
{
    struct bytes frame = { 0 };

    assert_int_equal(
        message_write_watch(&frame, id, &(struct watch){ .above = above, .wait_ms = wait_ms }),
        0);
    peer_send(p, &frame);
}

static const struct watch_reply *hear(struct fixture *f, struct peer *p, uint64_t id)
{
    assert_true(peer_receive(p));
    assert_int_equal(p->header.type, FRAME_WATCH_REPLY);
    assert_int_equal(p->header.request_id, id);
    assert_int_equal(message_read_watch_reply(&p->header, p->head, &f->reply), 0);
    return &f->reply;
}

static void set_primary(struct fixture *f, uint64_t term, const char *primary)
{
    struct group own = { .term = term };

    enter_main();
    snprintf(own.primary, sizeof own.primary, "%s", primary);
    group_view_set_own(f->groups, GROUP_VIEW_OTHER, &own);
}

static struct watch_server_counts count(const struct fixture *f)
{
    struct watch_server_counts counts;

    enter_main();
    watch_server_count(f->server, &counts);
    return counts;
}

/* All of so many requests have come, and those that have no answer wait for one. */
static void wait_until_parked(struct fixture *f, struct peer *p, uint64_t n_requests)
{
    while (count(f).n_requests < n_requests)
        peer_turn(p);
}

static bool has_heard(const struct peer *p)
{
    uint8_t byte;

    return recv(p->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

static void who_knows_less_is_answered_at_once(void **state)
{
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    set_primary(&f, 3, "b:1");
    p = connect_peer(&f);
    ask(&p, 9, 0, 60000);
    assert_int_equal(hear(&f, &p, 9)->status, 0);
    assert_int_equal(f.reply.groups.number, 1);
    assert_int_equal(f.reply.groups.items[0].term, 3);
    assert_string_equal(f.reply.groups.items[0].primary, "b:1");
    peer_close(&p);
    tear_down(&f);
}

static void who_knows_all_is_answered_by_the_next_change(void **state)
{
    struct fixture f;
    struct peer p, other;

    (void)state;
    set_up(&f);
    set_primary(&f, 3, "b:1");
    p = connect_peer(&f);
    other = connect_peer(&f);
    ask(&p, 1, 1, 60000);
    ask(&other, 2, 2, 60000);
    wait_until_parked(&f, &p, 2);
    set_primary(&f, 4, "c:1");
    assert_string_equal(hear(&f, &p, 1)->groups.items[0].primary, "c:1");
    assert_false(has_heard(&other)); /* it knows of two changes */
    set_primary(&f, 5, "d:1");
    assert_string_equal(hear(&f, &other, 2)->groups.items[0].primary, "d:1");
    peer_close(&p);
    peer_close(&other);
    tear_down(&f);
}

static void a_wait_ends_with_its_time(void **state)
{
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    p = connect_peer(&f);
    ask(&p, 1, 0, 0);
    assert_int_equal(hear(&f, &p, 1)->groups.n, 0);
    ask(&p, 2, 0, 1);
    wait_until_parked(&f, &p, 2);
    while (!has_heard(&p)) {
        peer_turn(&p);
        watch_server_sweep(f.server);
    }
    assert_int_equal(hear(&f, &p, 2)->groups.number, 0);
    peer_close(&p);
    tear_down(&f);
}

static void a_second_request_is_refused_and_another_frame_ends_the_connection(void **state)
{
    struct bytes frame = { 0 };
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    p = connect_peer(&f);
    ask(&p, 1, 0, 60000);
    ask(&p, 2, 0, 60000);
    assert_int_equal(hear(&f, &p, 2)->status, -EBUSY);
    assert_int_equal(message_write_beat(&frame, 3, &(struct beat){ .clock = 0 }), 0);
    peer_send(&p, &frame);
    assert_false(peer_receive(&p));
    while (count(&f).net.connections)
        uv_run(&f.loop, UV_RUN_ONCE);
    peer_close(&p);
    tear_down(&f);
}

static void the_end_answers_who_waits(void **state)
{
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    set_primary(&f, 3, "b:1");
    p = connect_peer(&f);
    ask(&p, 1, 1, 60000);
    wait_until_parked(&f, &p, 1);
    watch_server_close(f.server);
    assert_int_equal(hear(&f, &p, 1)->groups.items[0].term, 3);
    assert_false(peer_receive(&p));
    uv_run(&f.loop, UV_RUN_DEFAULT);
    watch_server_free(f.server);
    f.server = NULL;
    set_primary(&f, 4, "c:1"); /* nobody is told any more */
    peer_close(&p);
    tear_down(&f);
}

static void one_more_than_there_are_places_ends_the_oldest(void **state)
{
    enum { N = WATCH_SERVER_CONNECTIONS_MAX + 1 };
    const struct hello hello = { .version_min = 1, .version_max = 1, .role = "watcher" };
    int(*ends)[2] = calloc(N, sizeof *ends);
    struct fixture f;
    struct peer p;

    (void)state;
    set_up(&f);
    for (int i = 0; i < N; i++) {
        if (uv_socketpair(SOCK_STREAM, 0, ends[i], UV_NONBLOCK_PIPE, 0)) {
            print_message("skipped: there are descriptors for %d watchers only\n", i);
            while (i-- > 0)
                close(ends[i][1]);
            free(ends);
            tear_down(&f);
            return;
        }
        assert_int_equal(watch_server_receive(f.server,
                                              &(struct connection_socket){ .fd = ends[i][0] },
                                              5, &hello),
                         0);
        assert_int_equal(count(&f).n_evicted, i == N - 1);
    }
    p = (struct peer){ .fd = ends[0][1], .loop = &f.loop };
    assert_true(peer_receive(&p)); /* the hello's reply */
    assert_false(peer_receive(&p));
    peer_close(&p);
    for (int i = 1; i < N; i++)
        close(ends[i][1]);
    free(ends);
    tear_down(&f);
}

#ifdef PS_FAULTS
/* The question, and the answer that names the new primary, while the k-th allocation fails: it comes, or the connection
 * ends, and who comes again hears it. True: none has failed. */
static bool watch_while_the_kth_allocation_fails(long k)
{
    struct fixture f;
    struct peer p, again;
    long n_failed;

    set_up(&f);
    set_primary(&f, 3, "b:1");
    p = connect_peer(&f);
    ask(&p, 1, 1, 60000);
    memory_fail_anywhere(k, 1);
    for (int i = 0; i < 50; i++)
        uv_run(&f.loop, UV_RUN_NOWAIT);
    set_primary(&f, 4, "c:1");
    for (int i = 0; i < 50; i++)
        uv_run(&f.loop, UV_RUN_NOWAIT);
    n_failed = memory_n_failed_anywhere();
    memory_fail_anywhere(-1, 0);
    if (peer_receive(&p))
        assert_int_equal(message_read_watch_reply(&p.header, p.head, &f.reply), 0);
    else
        assert_true(n_failed);
    again = connect_peer(&f);
    ask(&again, 9, 1, 60000);
    assert_string_equal(hear(&f, &again, 9)->groups.items[0].primary, "c:1");
    peer_close(&p);
    peer_close(&again);
    tear_down(&f);
    return !n_failed;
}

static void a_watcher_without_memory_hears_it_or_comes_again(void **state)
{
    long k = 0;

    (void)state;
    while (!watch_while_the_kth_allocation_fails(k))
        assert_true(++k < 1000);
    assert_true(k > 0);
}
#endif

/* Operators hear of its address; workers would go there. */
static void a_psd_that_is_refused_is_not_the_groups_standby(void **state)
{
    struct fixture f;
    struct stats_standby report = {
        .is_on = true, .role = "primary", .term = 7, .peer = "b:1", .peer_is_refused = true
    };
    struct groups groups;

    (void)state;
    set_up(&f);
    standby_report_groups(&report, "a:1", true, f.groups);
    group_view_get(f.groups, &groups);
    assert_string_equal(groups.items[0].primary, "a:1");
    assert_string_equal(groups.items[0].standby, "");
    report.peer_is_refused = false;
    standby_report_groups(&report, "a:1", true, f.groups);
    group_view_get(f.groups, &groups);
    assert_string_equal(groups.items[0].standby, "b:1");
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_knows_less_is_answered_at_once),
        cmocka_unit_test(who_knows_all_is_answered_by_the_next_change),
        cmocka_unit_test(a_wait_ends_with_its_time),
        cmocka_unit_test(a_second_request_is_refused_and_another_frame_ends_the_connection),
        cmocka_unit_test(the_end_answers_who_waits),
        cmocka_unit_test(one_more_than_there_are_places_ends_the_oldest),
#ifdef PS_FAULTS
        cmocka_unit_test(a_watcher_without_memory_hears_it_or_comes_again),
#endif
        cmocka_unit_test(a_psd_that_is_refused_is_not_the_groups_standby),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
