#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/hash.h"
#include "common/memory.h"
#include "proto/channel.h"
#include "tests/support/seed.h"
#include "tests/unit/client/fixture.h"
#include "worker/client/io_thread.h"

/* Connections on an I/O thread (io_thread.h) to a server that sends back what it gets. The test is the network's
 * thread. */

#define N_FRAMES 40u
#define HEAD_BYTES 24u

/* ---- the server ---- */

struct echo {
    int fd;
    uint16_t port;
    pthread_t thread;
};

static void send_all(int fd, const uint8_t *bytes, ssize_t n)
{
    ssize_t sent = 0;

    while (n > 0 && (sent = send(fd, bytes, (size_t)n, MSG_NOSIGNAL)) > 0) {
        bytes += sent;
        n -= sent;
    }
}

/* One connection after the other, until the listener is shut down. What a peer sends before it reads fits its socket,
 * or it reads meanwhile. */
static void *echo_main(void *arg)
{
    static _Thread_local uint8_t bytes[1 << 16];
    const struct echo *e = arg;
    int fd;

#ifdef PS_FAULTS
    memory_exempt_this_thread();
#endif
    while ((fd = accept(e->fd, NULL, NULL)) >= 0) {
        ssize_t n;

        while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0)
            send_all(fd, bytes, n);
        close(fd);
    }
    return NULL;
}

static void echo_start(struct echo *e)
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t n = sizeof address;

    e->fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(e->fd, (struct sockaddr *)&address, n), 0);
    assert_int_equal(listen(e->fd, 8), 0);
    assert_int_equal(getsockname(e->fd, (struct sockaddr *)&address, &n), 0);
    e->port = ntohs(address.sin_port);
    assert_int_equal(pthread_create(&e->thread, NULL, echo_main, e), 0);
}

static void echo_stop(struct echo *e)
{
    shutdown(e->fd, SHUT_RDWR);
    pthread_join(e->thread, NULL);
    close(e->fd);
}

/* ---- the network's thread, and what it hears ---- */

struct home {
    uv_loop_t loop;
    struct mailbox mailbox;
    struct channel_loop channels;
    struct io_thread *io;
    struct io_connection *connection; /* NULL: it was dropped, or has ended */
    uint64_t seed;
    bool is_connected, is_closed, takes_buffers;
    bool is_short; /* few frames, and none of megabytes */
    int why;
    uint32_t n_sent, n_frames, n_buffers;
    uint32_t drop_at; /* after so many frames; 0: never */
    struct bytes kept;
    const uint8_t *kept_body;
    size_t kept_bytes;
};

static size_t body_bytes(const struct home *h, uint32_t number)
{
    static const size_t sizes[] = { 0, 1, 100, 4000, 40000, 300000, 3000000 };

    return sizes[hash_mix2(h->seed, number) % (COUNT_OF(sizes) - h->is_short)];
}

static uint8_t byte_of(const struct home *h, uint32_t number, size_t at)
{
    return (uint8_t)hash_mix2(h->seed + number, at / 4096);
}

static void check_body(const struct home *h, uint32_t number, const uint8_t *body, size_t n)
{
    assert_int_equal(n, body_bytes(h, number));
    for (size_t i = 0; i < n; i += 1009)
        assert_int_equal(body[i], byte_of(h, number, i));
    if (n)
        assert_int_equal(body[n - 1], byte_of(h, number, n - 1));
}

static void send_frame(struct home *h)
{
    const struct frame_header header = { .type = FRAME_PULL_REPLY,
                                         .head_bytes = HEAD_BYTES,
                                         .body_bytes = (uint32_t)body_bytes(h, h->n_sent),
                                         .request_id = h->n_sent };
    struct bytes frame = { 0 };
    uint8_t *at;

    if (!h->connection || channel_loop_acquire(&h->channels, frame_bytes(&header), &frame))
        return;
    at = frame.bytes;
    memset(at + FRAME_HEADER_BYTES, (int)h->n_sent, HEAD_BYTES);
    for (size_t i = 0; i < header.body_bytes; i += 4096)
        memset(at + FRAME_HEADER_BYTES + HEAD_BYTES + i, byte_of(h, h->n_sent, i),
               header.body_bytes - i < 4096 ? header.body_bytes - i : 4096);
    frame_encode(at, &header);
    bytes_commit(&frame, frame_bytes(&header));
    h->n_sent++;
    io_connection_send(h->connection, &frame);
    assert_int_equal(bytes_len(&frame), 0);
}

static void on_connected(void *owner)
{
    struct home *h = owner;

    assert_false(h->is_connected || h->is_closed);
    h->is_connected = true;
    for (uint32_t i = 0; i < 3; i++)
        send_frame(h);
}

/* The buffer of the frame before stays as it was meanwhile. */
static void keep(struct home *h, const uint8_t *body, size_t n_bytes, struct bytes *buffer)
{
    struct bytes last = h->kept;

    if (h->kept_body)
        check_body(h, h->n_frames - 1, h->kept_body, h->kept_bytes);
    h->kept_body = NULL;
    if (!buffer || !h->takes_buffers)
        return;
    h->kept = *buffer;
    h->kept_body = body;
    h->kept_bytes = n_bytes;
    bytes_consume(&last, bytes_len(&last));
    *buffer = last;
}

static int on_frame(void *owner, const struct frame_header *header, const uint8_t *head,
                    const uint8_t *body)
{
    struct home *h = owner;
    struct bytes *buffer = io_connection_frame_buffer(h->connection);

    assert_true(h->is_connected && !h->is_closed);
    assert_int_equal(header->request_id, h->n_frames);
    assert_int_equal(header->head_bytes, HEAD_BYTES);
    for (uint32_t i = 0; i < HEAD_BYTES; i++)
        assert_int_equal(head[i], (uint8_t)h->n_frames);
    check_body(h, h->n_frames, body, header->body_bytes);
    h->n_buffers += buffer != NULL;
    keep(h, body, header->body_bytes, buffer);
    h->n_frames++;
    if (h->n_frames == h->drop_at) {
        io_connection_drop(h->connection);
        h->connection = NULL;
    } else if (h->n_sent < (h->is_short ? N_FRAMES / 4 : N_FRAMES)) {
        send_frame(h);
    }
    return 0;
}

static void on_closed(void *owner, int why)
{
    struct home *h = owner;

    assert_false(h->is_closed);
    h->is_closed = true;
    h->why = why;
    h->connection = NULL;
}

static const struct connector_events events = { on_connected, on_frame, on_closed };

static int home_init(struct home *h, uint64_t seed)
{
    *h = (struct home){ .seed = seed, .takes_buffers = seed % 2 };
    assert_int_equal(uv_loop_init(&h->loop), 0);
    assert_int_equal(mailbox_init(&h->mailbox, &h->loop, h), 0);
    uv_ref((uv_handle_t *)&h->mailbox.async);
    channel_loop_init(&h->channels, &h->loop);
    return io_thread_new(&h->mailbox, &h->channels, &h->io);
}

static int connect_to(struct home *h, uint16_t port)
{
    struct address address;
    char text[32];
    struct err err;

    snprintf(text, sizeof text, "127.0.0.1:%u", port);
    assert_int_equal(address_parse(text, strlen(text), &address, &err), 0);
    return io_connection_new(h->io, &address, &events, h, &h->connection);
}

static void home_deinit(struct home *h)
{
    io_connection_drop(h->connection);
    channel_loop_close(&h->channels);
    mailbox_close(&h->mailbox);
    uv_run(&h->loop, UV_RUN_DEFAULT);
    io_thread_free(h->io);
    assert_int_equal(uv_loop_close(&h->loop), 0);
    channel_loop_deinit(&h->channels);
    mailbox_deinit(&h->mailbox);
    bytes_deinit(&h->kept);
}

static void frames_come_back_whole_and_in_their_order(void **state)
{
    const uint64_t seed = seed_by_the_clock();
    struct echo echo;

    (void)state;
    echo_start(&echo);
    for (uint64_t i = 0; i < 4; i++) {
        struct home h;

        assert_int_equal(home_init(&h, seed + i), 0);
        assert_int_equal(connect_to(&h, echo.port), 0);
        while (h.n_frames < N_FRAMES && !h.is_closed)
            uv_run(&h.loop, UV_RUN_ONCE);
        assert_false(h.is_closed);
        assert_true(h.n_buffers > 0 && h.n_buffers < N_FRAMES);
        assert_true(io_thread_cpu_ns(h.io) > 0);
        home_deinit(&h);
    }
    echo_stop(&echo);
}

static void nothing_is_heard_of_a_connection_that_was_dropped(void **state)
{
    struct echo echo;

    (void)state;
    echo_start(&echo);
    for (uint32_t i = 0; i < 12; i++) {
        struct home h;

        assert_int_equal(home_init(&h, i), 0);
        h.drop_at = i;
        assert_int_equal(connect_to(&h, echo.port), 0);
        while (i && h.connection)
            uv_run(&h.loop, UV_RUN_ONCE);
        assert_int_equal(h.n_frames, i);
        home_deinit(
            &h); /* frames may be on their way in both directions; i 0: it is not there yet */
        assert_false(h.is_closed);
    }
    echo_stop(&echo);
}

static void a_server_that_is_not_there_is_said_to_be_closed(void **state)
{
    struct echo echo;
    struct home h;

    (void)state;
    echo_start(&echo);
    echo_stop(&echo); /* nobody else takes its port so soon */
    assert_int_equal(home_init(&h, 1), 0);
    assert_int_equal(connect_to(&h, echo.port), 0);
    while (!h.is_closed)
        uv_run(&h.loop, UV_RUN_ONCE);
    assert_int_equal(h.why, UV_ECONNREFUSED);
    assert_false(h.is_connected);
    home_deinit(&h);
}

/* With 2 threads and more a shard's connection is of another thread; with 4 there are more than shards. */
static void a_job_has_the_same_rows_with_any_number_of_threads(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n++) {
        const struct fake_plan plan = { .n_shards = 3,
                                        .fault_at = 20 + (long)n,
                                        .fault = FAKE_DROP_AFTER };
        struct fake *f = fake_start(&plan);
        char address[64], text[8];
        struct ps_stats stats;
        struct err err;

        fake_address(f, address);
        snprintf(text, sizeof text, "%u", n);
        setenv("PS_NET_THREADS", text, 1);
        if (run_job(address, &stats, &err))
            fail_msg("%u threads: %s", n, err.text);
        unsetenv("PS_NET_THREADS");
        fake_stop(f);
        check_applied_once(f);
        assert_true(stats.net_ns > 0);
        fake_free(f);
    }
}

#ifdef PS_FAULTS
static void the_kth_allocation_fails_and_the_connection_ends_or_all_comes(void **state)
{
    struct echo echo;
    long n_failed = 1;

    (void)state;
    echo_start(&echo);
    for (long k = 0; n_failed && k < 400; k += k < 40 ? 1 : 9) {
        struct home h;
        int status;

        memory_fail_anywhere(k, 1);
        status = home_init(&h, (uint64_t)k);
        h.is_short = true;
        if (!status)
            status = connect_to(&h, echo.port);
        while (!status && h.n_frames < h.n_sent + !h.is_connected && !h.is_closed)
            uv_run(&h.loop, UV_RUN_ONCE);
        n_failed = memory_n_failed_anywhere();
        memory_fail_anywhere(-1, 0);
        home_deinit(&h);
    }
    assert_int_equal(n_failed, 0); /* the last run had all that it wanted */
    echo_stop(&echo);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_come_back_whole_and_in_their_order),
        cmocka_unit_test(nothing_is_heard_of_a_connection_that_was_dropped),
        cmocka_unit_test(a_server_that_is_not_there_is_said_to_be_closed),
        cmocka_unit_test(a_job_has_the_same_rows_with_any_number_of_threads),
#ifdef PS_FAULTS
        cmocka_unit_test(the_kth_allocation_fails_and_the_connection_ends_or_all_comes),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
