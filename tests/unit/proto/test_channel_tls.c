/*
 * Channels with TLS: two of them, one on each end of a socket pair, and random frames both ways. The twin is what was
 * sent: all of it comes, once, in order, whatever is held, however small the socket's buffers are.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/crc32c.h"
#include "common/memory.h"
#include "common/status.h"
#include "proto/channel.h"
#include "proto/message.h"
#include "tests/support/seed.h"
#include "tests/support/tls_dir.h"

#define FRAME_MAX (8u << 20)

struct rig;

struct end {
    struct rig *rig;
    uv_pipe_t pipe;
    struct channel channel;
    bool is_closed, holds, was_held;
    int why;
    uint32_t sent_crc, got_crc;
    uint64_t n_sent, n_got;
};

struct rig {
    struct tls_dir dir;
    uv_loop_t loop;
    struct channel_loop channels;
    struct end ends[2];
    uint64_t random;
};

static uint32_t draw(struct rig *r, uint32_t below)
{
    r->random = r->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->random >> 33) % below;
}

static int on_frame(void *owner, const struct frame_header *header, const uint8_t *head,
                    const uint8_t *body)
{
    struct end *e = owner;

    (void)head;
    e->got_crc = crc32c_extend(e->got_crc, body, header->body_bytes);
    e->n_got++;
    if (e->holds && draw(e->rig, 4) == 0) {
        channel_hold(&e->channel);
        e->was_held = true;
    }
    return 0;
}

static void on_closed(void *owner, int why)
{
    struct end *e = owner;

    e->is_closed = true;
    e->why = why;
}

static const struct channel_events events = { .frame = on_frame, .closed = on_closed };

static void send_body(struct end *e, size_t n_bytes)
{
    struct status_reply reply = { 0 };
    char *body = malloc(n_bytes + 1);
    struct bytes frame = { 0 };

    for (size_t i = 0; i < n_bytes; i++)
        body[i] = (char)draw(e->rig, 251);
    assert_int_equal(message_write_admin_reply(&frame, e->n_sent, &reply, body, n_bytes), 0);
    e->sent_crc = crc32c_extend(e->sent_crc, (uint8_t *)body, n_bytes);
    e->n_sent++;
    free(body);
    assert_int_equal(channel_send(&e->channel, &frame), 0);
}

/* The handshake, without a socket. */
static void shake(struct rig *r, struct tls_session *sessions[2])
{
    struct tls_context *client = tls_dir_context(&r->dir, "worker", "ca"),
                       *server = tls_dir_context(&r->dir, "node", "ca");
    int status[2] = { -EAGAIN, -EAGAIN };

    assert_int_equal(tls_session_connect(client, "localhost", &sessions[0]), 0);
    assert_int_equal(tls_session_accept(server, &sessions[1]), 0);
    for (int i = 0; status[0] || status[1]; i = 1 - i) {
        struct bytes *said = tls_session_reply(sessions[1 - i]);

        tls_session_feed(sessions[i], bytes_front(said), bytes_len(said));
        status[i] = tls_session_handshake(sessions[i]);
        assert_true(!status[i] || status[i] == -EAGAIN);
        assert_int_equal(tls_session_left(sessions[i]), 0);
        bytes_consume(said, bytes_len(said));
    }
    tls_context_free(client);
    tls_context_free(server);
}

static void set_up(struct rig *r, uint64_t seed, int buffer_bytes)
{
    struct tls_session *sessions[2];
    int fds[2];

    *r = (struct rig){ .random = seed };
    tls_dir_make(&r->dir);
    shake(r, sessions);
    assert_int_equal(uv_loop_init(&r->loop), 0);
    channel_loop_init(&r->channels, &r->loop);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    for (int i = 0; i < 2; i++) {
        struct end *e = &r->ends[i];

        setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
        e->rig = r;
        assert_int_equal(uv_pipe_init(&r->loop, &e->pipe, 0), 0);
        assert_int_equal(uv_pipe_open(&e->pipe, fds[i]), 0);
        assert_int_equal(channel_start(&e->channel, (uv_stream_t *)&e->pipe, &r->channels,
                                       FRAME_MAX, &events, e),
                         0);
        channel_set_tls(&e->channel, sessions[i]);
    }
}

static void tear_down(struct rig *r)
{
    for (int i = 0; i < 2; i++)
        channel_close(&r->ends[i].channel);
    while (!r->ends[0].is_closed || !r->ends[1].is_closed)
        uv_run(&r->loop, UV_RUN_ONCE);
    assert_int_equal(r->channels.held_bytes, 0);
    channel_loop_close(&r->channels);
    uv_run(&r->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&r->loop), 0);
    channel_loop_deinit(&r->channels);
    tls_dir_remove(&r->dir);
}

static void release_some(struct rig *r)
{
    for (int i = 0; i < 2; i++)
        if (r->ends[i].was_held && draw(r, 2)) {
            r->ends[i].was_held = false;
            channel_release(&r->ends[i].channel);
        }
}

static bool is_done(const struct rig *r)
{
    return r->ends[0].n_got == r->ends[1].n_sent && r->ends[1].n_got == r->ends[0].n_sent;
}

static void run_random(uint64_t seed, int buffer_bytes, bool holds, bool is_low)
{
    struct rig r;

    set_up(&r, seed, buffer_bytes);
    r.ends[0].channel.reads_always = true;
    for (int i = 0; i < 2; i++)
        r.ends[i].holds = holds;
    channel_set_low_priority(&r.ends[1].channel, is_low);
    for (int i = 0; i < 60; i++) {
        const uint32_t kind = draw(&r, 10);

        send_body(&r.ends[draw(&r, 2)], kind == 0  ? draw(&r, 3u << 20)
                                        : kind < 4 ? draw(&r, 100000)
                                                   : draw(&r, 400));
        if (draw(&r, 3) == 0)
            uv_run(&r.loop, UV_RUN_NOWAIT);
        release_some(&r);
    }
    while (!is_done(&r)) {
        assert_false(r.ends[0].is_closed || r.ends[1].is_closed);
        uv_run(&r.loop, holds ? UV_RUN_NOWAIT : UV_RUN_ONCE);
        release_some(&r);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r.ends[i].sent_crc, r.ends[1 - i].got_crc);
        /* Records are longer than what is in them; both ends count the same on the wire. */
        assert_int_equal(r.ends[i].channel.bytes_out, r.ends[1 - i].channel.bytes_in);
        if (r.ends[i].was_held)
            channel_release(&r.ends[i].channel);
    }
    tear_down(&r);
}

static void random_frames_come_as_they_were_sent(void **state)
{
    uint64_t seed = seed_by_the_clock();

    (void)state;
    for (uint64_t i = 0; i < 3; i++) {
        run_random(seed + 4 * i, 4096, false, false);
        run_random(seed + 4 * i + 1, 200000, true, false);
        run_random(seed + 4 * i + 2, 4096, true, true);
        run_random(seed + 4 * i + 3, 1 << 20, false, true);
    }
}

static void an_idle_channel_holds_no_buffer(void **state)
{
    struct rig r;

    (void)state;
    set_up(&r, 1, 1 << 20);
    send_body(&r.ends[0], 100000);
    while (!is_done(&r))
        uv_run(&r.loop, UV_RUN_ONCE);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r.ends[i].channel.sealed.cap_bytes, 0);
        assert_int_equal(r.ends[i].channel.held_bytes, 0);
    }
    tear_down(&r);
}

static void bytes_that_are_no_record_end_the_channel(void **state)
{
    struct rig r;
    uv_buf_t bytes =
        uv_buf_init((char *)(uintptr_t) "no record, but plain text of 40 bytes...", 40);

    (void)state;
    set_up(&r, 1, 1 << 20);
    assert_int_equal(uv_try_write((uv_stream_t *)&r.ends[0].pipe, &bytes, 1), 40);
    while (!r.ends[1].is_closed)
        uv_run(&r.loop, UV_RUN_ONCE);
    assert_true(r.ends[1].why <= PS_ETLS && r.ends[1].why >= PS_ETLS_LAST);
    assert_int_equal(r.ends[1].n_got, 0);
    tear_down(&r);
}

#ifdef PS_FAULTS
/* From the k-th on all allocations fail: the channels end, or all comes. */
static void without_memory_a_channel_ends(void **state)
{
    (void)state;
    for (long k = 0; k < 12; k++) {
        struct rig r;
        struct bytes frame = { 0 };

        set_up(&r, 1, 1 << 20);
        assert_int_equal(
            message_write_admin_reply(&frame, 1, &(struct status_reply){ 0 }, "12345", 5), 0);
        memory_fail_after(k);
        (void)channel_send(&r.ends[0].channel, &frame);
        for (int i = 0; i < 20; i++)
            uv_run(&r.loop, UV_RUN_NOWAIT);
        memory_fail_after(-1);
        assert_true(r.ends[0].is_closed || r.ends[1].is_closed || r.ends[1].n_got == 1);
        tear_down(&r);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_frames_come_as_they_were_sent),
        cmocka_unit_test(an_idle_channel_holds_no_buffer),
        cmocka_unit_test(bytes_that_are_no_record_end_the_channel),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_a_channel_ends),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
