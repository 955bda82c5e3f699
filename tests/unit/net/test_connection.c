#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/status.h"
#include "server/net/connection.h"
#include "tests/unit/net/peer.h"

#define LIMIT_MS 1000u

/* A connection set with one connection, whose other end is the test's. */
struct fixture {
    uv_loop_t loop;
    struct channel_loop channels;
    struct connection_set connections;
    struct hello_reply welcome;
    struct connection *connection;
    struct peer peer;
    uint32_t n_requests, n_closed;
    int why, answer; /* what the request handler returns */
    bool holds;      /* each request */
};

static int on_request(void *owner, struct request *r)
{
    struct fixture *f = owner;

    assert_ptr_equal(r->connection, f->connection);
    f->n_requests++;
    if (f->holds)
        connection_hold(r->connection);
    return f->answer;
}

static void on_closed(void *owner, struct connection *c, int why)
{
    struct fixture *f = owner;

    assert_ptr_equal(c, f->connection);
    f->n_closed++;
    f->why = why;
}

static const struct connection_events events = { .on_request = on_request,
                                                 .on_closed = on_closed };

static void set_up(struct fixture *f)
{
    struct hello hello = {
        .version_min = 1, .version_max = 1, .role = "worker", .name = "peer"
    };
    struct connection_set_config config = { .channels = &f->channels,
                                            .frame_max_bytes = 1 << 20,
                                            .frame_timeout_ms = LIMIT_MS,
                                            .welcome = &f->welcome,
                                            .events = &events,
                                            .owner = f };
    int ends[2];

    *f = (struct fixture){ .welcome = { .version = 1,
                                        .n_nodes = 1,
                                        .shards_per_node = 1,
                                        .map_id = 77,
                                        .nodes = { "here:1" } } };
    assert_int_equal(uv_loop_init(&f->loop), 0);
    channel_loop_init(&f->channels, &f->loop);
    assert_int_equal(uv_socketpair(SOCK_STREAM, 0, ends, UV_NONBLOCK_PIPE, 0), 0);
    connection_set_init(&f->connections, &config);
    assert_int_equal(connection_set_open(&f->connections,
                                         &(struct connection_socket){ .fd = ends[0] }, 5,
                                         &hello, NULL),
                     0);
    f->connection = f->connections.first;
    f->peer = (struct peer){ .fd = ends[1], .loop = &f->loop };
}

static void welcome(struct fixture *f)
{
    struct hello_reply reply;

    assert_true(peer_receive(&f->peer));
    assert_int_equal(f->peer.header.type, FRAME_HELLO_REPLY);
    assert_int_equal(f->peer.header.request_id, 5);
    assert_int_equal(message_read_hello_reply(&f->peer.header, f->peer.head, &reply), 0);
    assert_int_equal(reply.status, 0);
    assert_int_equal(reply.map_id, 77);
}

static void tear_down(struct fixture *f)
{
    peer_close(&f->peer);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    channel_loop_close(&f->channels);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(f->n_closed, 1);
    assert_null(f->connections.first);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    channel_loop_deinit(&f->channels);
}

static void send_beat(struct fixture *f)
{
    struct bytes frame = { 0 };

    assert_int_equal(message_write_beat(&frame, 1, &(struct beat){ .clock = 0 }), 0);
    peer_send(&f->peer, &frame);
}

static struct connection_set_counts count(const struct fixture *f)
{
    struct connection_set_counts counts;

    connection_set_count(&f->connections, &counts);
    return counts;
}

static void a_client_is_accepted_and_its_requests_are_counted_and_served(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    welcome(&f);
    send_beat(&f);
    send_beat(&f);
    while (f.n_requests < 2)
        peer_turn(&f.peer);
    assert_int_equal(count(&f).connections, 1);
    assert_int_equal(count(&f).connections_total, 1);
    assert_true(count(&f).bytes_in > 0 && count(&f).bytes_out > 0);
    tear_down(&f);
    assert_int_equal(f.why, UV_EOF);
    assert_int_equal(count(&f).connections, 0);
    assert_int_equal(count(&f).malformed, 0);
    assert_true(count(&f).bytes_in > 0);
}

static void a_request_that_may_not_come_ends_the_connection_as_malformed(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    welcome(&f);
    f.answer = PS_EPROTO;
    send_beat(&f);
    assert_false(peer_receive(&f.peer));
    tear_down(&f);
    assert_int_equal(f.why, PS_EPROTO);
    assert_int_equal(count(&f).malformed, 1);
}

static void a_frame_that_stands_still_is_slow_and_one_that_comes_whole_is_not(void **state)
{
    struct fixture f;
    struct bytes frame = { 0 };

    (void)state;
    set_up(&f);
    welcome(&f);
    assert_int_equal(message_write_beat(&frame, 1, &(struct beat){ .clock = 0 }), 0);
    for (uint64_t now_ms = 1; now_ms < 20 * LIMIT_MS; now_ms += LIMIT_MS / 2) {
        connection_set_sweep(&f.connections, now_ms); /* idle */
        peer_send_bytes(&f.peer, bytes_front(&frame), 10);
        peer_turn(&f.peer);
        connection_set_sweep(&f.connections, now_ms + 1); /* begun */
        peer_send_bytes(&f.peer, bytes_front(&frame) + 10, bytes_len(&frame) - 10);
        peer_turn(&f.peer);
    }
    assert_int_equal(count(&f).slow, 0);
    peer_send_bytes(&f.peer, bytes_front(&frame), 10);
    while (!channel_mid_frame(&f.connection->channel))
        peer_turn(&f.peer);
    connection_set_sweep(&f.connections, 100000);
    connection_set_sweep(&f.connections, 100000 + LIMIT_MS);
    assert_int_equal(count(&f).slow, 0);
    connection_set_sweep(&f.connections, 100001 + LIMIT_MS);
    connection_set_sweep(&f.connections, 100002 + LIMIT_MS);
    assert_int_equal(count(&f).slow, 1);
    assert_false(peer_receive(&f.peer));
    bytes_deinit(&frame);
    tear_down(&f);
    assert_int_equal(f.why, UV_ETIMEDOUT);
}

static void a_peer_that_waits_for_us_is_not_slow(void **state)
{
    struct bytes all = { 0 };
    struct fixture f;

    (void)state;
    set_up(&f);
    welcome(&f);
    f.holds = true;
    assert_int_equal(message_write_beat(&all, 1, &(struct beat){ .clock = 0 }), 0);
    assert_int_equal(message_write_beat(&all, 2, &(struct beat){ .clock = 0 }), 0);
    peer_send_bytes(&f.peer, bytes_front(&all),
                    bytes_len(&all) - 1); /* the second is unfinished */
    while (f.n_requests < 1)
        peer_turn(&f.peer);
    for (uint64_t now_ms = 1; now_ms < 20 * LIMIT_MS; now_ms += LIMIT_MS)
        connection_set_sweep(&f.connections, now_ms);
    assert_int_equal(count(&f).slow, 0);
    connection_release(f.connection);
    while (!channel_mid_frame(&f.connection->channel))
        peer_turn(&f.peer);
    connection_set_sweep(&f.connections, 100000); /* its time begins here */
    connection_set_sweep(&f.connections, 100000 + LIMIT_MS);
    assert_int_equal(count(&f).slow, 0);
    connection_set_sweep(&f.connections, 100001 + LIMIT_MS);
    assert_int_equal(count(&f).slow, 1);
    tear_down(&f);
    bytes_deinit(&all);
}

/* A frame that takes many turns is not unfinished for lack of bytes. */
static void a_peer_that_fills_its_turns_is_not_slow(void **state)
{
    struct fixture f;
    struct bytes frame = { 0 };

    (void)state;
    set_up(&f);
    welcome(&f);
    assert_int_equal(message_write_beat(&frame, 1, &(struct beat){ .clock = 0 }), 0);
    peer_send_bytes(&f.peer, bytes_front(&frame), 10);
    while (!channel_mid_frame(&f.connection->channel))
        peer_turn(&f.peer);
    for (uint64_t now_ms = 1; now_ms < 20 * LIMIT_MS; now_ms += LIMIT_MS) {
        connection_set_sweep(&f.connections, now_ms);
        f.connection->channel.n_turns_ended++; /* as the channel counts it */
    }
    assert_int_equal(count(&f).slow, 0);
    tear_down(&f);
    bytes_deinit(&frame);
}

static void a_peer_that_reads_none_of_its_replies_is_slow(void **state)
{
    struct status_reply reply = { 0 };
    struct fixture f;

    (void)state;
    set_up(&f);
    while (uv_stream_get_write_queue_size(f.connection->channel.stream) == 0) {
        struct bytes frame = { 0 };

        assert_int_equal(message_write_status_reply(&frame, FRAME_BEAT_REPLY, 1, &reply), 0);
        f.connection->n_unanswered++; /* as if it had asked */
        assert_int_equal(connection_send(f.connection, &frame), 0);
    }
    connection_set_sweep(&f.connections, 1);
    connection_set_sweep(&f.connections, 1 + LIMIT_MS);
    assert_int_equal(count(&f).slow, 0);
    connection_set_sweep(&f.connections, 2 + LIMIT_MS);
    assert_int_equal(count(&f).slow, 1);
    tear_down(&f);
}

static void closing_all_lets_replies_out_first(void **state)
{
    struct status_reply reply = { .status = PS_ESTOPPING };
    struct bytes frame = { 0 };
    struct fixture f;

    (void)state;
    set_up(&f);
    assert_int_equal(message_write_status_reply(&frame, FRAME_BEAT_REPLY, 9, &reply), 0);
    f.connection->n_unanswered++;
    assert_int_equal(connection_send(f.connection, &frame), 0);
    connection_set_close_all(&f.connections);
    welcome(&f);
    assert_true(peer_receive(&f.peer));
    assert_int_equal(f.peer.header.request_id, 9);
    assert_false(peer_receive(&f.peer));
    tear_down(&f);
    assert_int_equal(f.why, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_is_accepted_and_its_requests_are_counted_and_served),
        cmocka_unit_test(a_request_that_may_not_come_ends_the_connection_as_malformed),
        cmocka_unit_test(a_frame_that_stands_still_is_slow_and_one_that_comes_whole_is_not),
        cmocka_unit_test(a_peer_that_waits_for_us_is_not_slow),
        cmocka_unit_test(a_peer_that_fills_its_turns_is_not_slow),
        cmocka_unit_test(a_peer_that_reads_none_of_its_replies_is_slow),
        cmocka_unit_test(closing_all_lets_replies_out_first),
    };

    signal(SIGPIPE, SIG_IGN); /* as psd does */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
