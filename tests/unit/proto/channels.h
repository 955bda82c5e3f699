/* What the tests of channels share: a channel on one end of a socket pair, and
 * the peer on the other. */
#ifndef TESTS_UNIT_PROTO_CHANNELS_H
#define TESTS_UNIT_PROTO_CHANNELS_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/status.h"
#include "proto/channel.h"
#include "proto/message.h"

#define FRAME_MAX (1u << 20)

enum channels_what {
    KEEP,
    REFUSE,
    CLOSE,
    REPLY_AND_CLOSE,
    REPLY_AND_REFUSE,
    DETACH,
    REPLY_BIG
};

/* A channel on one end of a socket pair; the test holds the other end's fd. */
struct channels {
    uv_loop_t loop;
    uv_pipe_t pipe;
    struct channel *channel; /* on the heap, so that a touch after its end is seen */
    uv_os_sock_t peer;
    enum channels_what what;
    size_t big_bytes;
    bool mid_frame;
    int n_frames, n_closed, why;
    uint64_t last_clock;
};

static inline struct buf channels_beat(uint64_t clock)
{
    struct buf b = { 0 };

    assert_int_equal(message_write_beat(&b, 1, clock), 0);
    return b;
}

static inline struct buf channels_big_frame(size_t n_bytes)
{
    struct status_reply r = { 0 };
    char *json = calloc(1, n_bytes);
    struct buf b = { 0 };

    assert_int_equal(message_write_admin_reply(&b, 1, &r, json, n_bytes), 0);
    free(json);
    return b;
}

static inline void channels_reply(struct channels *f, size_t n_bytes)
{
    struct buf b = n_bytes ? channels_big_frame(n_bytes) : channels_beat(7);

    assert_int_equal(channel_send(f->channel, &b), 0);
    assert_null(b.bytes);
}

static inline int channels_on_frame(void *owner, const struct frame_header *header,
                                    const uint8_t *head, const uint8_t *body)
{
    struct channels *f = owner;

    assert_int_equal(f->n_closed, 0);
    f->n_frames++;
    f->mid_frame = channel_mid_frame(f->channel);
    if (header->type == FRAME_BEAT)
        assert_int_equal(message_read_beat(header, head, &f->last_clock), 0);
    if (f->what == REPLY_AND_CLOSE || f->what == REPLY_AND_REFUSE || f->what == REPLY_BIG)
        channels_reply(f, f->what == REPLY_BIG ? f->big_bytes : 0);
    if (f->what == CLOSE || f->what == REPLY_AND_CLOSE)
        channel_close(f->channel);
    if (f->what == DETACH) {
        channel_detach(f->channel);
        free(f->channel);
        f->channel = NULL;
        /* What was lent for the call still stands. */
        assert_int_equal(message_read_beat(header, head, &f->last_clock), 0);
    }
    assert_ptr_equal(body, head + header->head_bytes);
    return f->what == REFUSE || f->what == REPLY_AND_REFUSE ? PS_EGREETING : 0;
}

static inline void channels_on_closed(void *owner, int why)
{
    struct channels *f = owner;

    f->n_closed++;
    f->why = why;
    free(f->channel);
    f->channel = NULL;
}

static const struct channel_events channels_events = { channels_on_frame, channels_on_closed };

static inline void channels_set_up(struct channels *f, enum channels_what what)
{
    uv_os_sock_t ends[2];

    *f = (struct channels){ .what = what, .channel = malloc(sizeof *f->channel) };
    assert_int_equal(uv_loop_init(&f->loop), 0);
    assert_int_equal(uv_socketpair(SOCK_STREAM, 0, ends, UV_NONBLOCK_PIPE, UV_NONBLOCK_PIPE),
                     0);
    assert_int_equal(uv_pipe_init(&f->loop, &f->pipe, 0), 0);
    assert_int_equal(uv_pipe_open(&f->pipe, ends[0]), 0);
    assert_int_equal(
        channel_start(f->channel, (uv_stream_t *)&f->pipe, FRAME_MAX, &channels_events, f), 0);
    f->peer = ends[1];
}

static inline void channels_hang_up(struct channels *f)
{
    close(f->peer);
    f->peer = -1;
}

/* The peer hangs up, if it has not; the channel must then have closed exactly once. */
static inline void channels_tear_down(struct channels *f)
{
    if (f->peer >= 0)
        channels_hang_up(f);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(f->n_closed, 1);
    assert_int_equal(uv_loop_close(&f->loop), 0);
}

static inline void channels_turn(struct channels *f)
{
    for (int i = 0; i < 4; i++)
        uv_run(&f->loop, UV_RUN_NOWAIT);
}

static inline void channels_write(struct channels *f, const void *bytes, size_t n_bytes)
{
    assert_int_equal(write(f->peer, bytes, n_bytes), n_bytes);
    channels_turn(f);
}

/* Sends all of it, however small the socket's buffer is. */
static inline void channels_write_all(struct channels *f, const uint8_t *bytes, size_t n_bytes)
{
    while (n_bytes) {
        ssize_t n = write(f->peer, bytes, n_bytes);

        assert_true(n > 0 || errno == EAGAIN);
        if (n > 0) {
            bytes += n;
            n_bytes -= (size_t)n;
        }
        channels_turn(f);
    }
}

/* Reads what is there; the number of bytes. */
static inline size_t channels_read(struct channels *f)
{
    static uint8_t sink[1 << 16];
    size_t sum = 0;
    ssize_t n;

    while ((n = read(f->peer, sink, sizeof sink)) > 0)
        sum += (size_t)n;
    return sum;
}

#endif
