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

#include "common/crc32c.h"
#include "common/status.h"
#include "proto/channel.h"
#include "proto/message.h"

#define FRAME_MAX (1u << 20)

enum channels_what {
    KEEP,
    REFUSE,
    CLOSE,
    REPLY,
    REPLY_AND_CLOSE,
    REPLY_AND_REFUSE,
    HOLD,
    REPLY_BIG
};

struct channels_loop {
    uv_loop_t loop;
    struct channel_loop channels;
};

/* A channel on one end of a socket pair; the test holds the other end's fd. */
struct channels {
    struct channels_loop *on, own; /* `on` is its own, or another's */
    uv_pipe_t pipe;
    struct channel *channel; /* on the heap, so that a touch after its end is seen */
    uv_os_sock_t peer;
    enum channels_what what;
    struct channels *releases; /* whose held frame is released when a frame comes here */
    size_t big_bytes;
    int n_frames, n_closed, why;
    uint64_t last_clock;
    uint64_t body_bytes; /* of all frames */
    uint32_t body_crc;   /* one behind the other */
    int n_parts;
    size_t part_bytes; /* of the body of the frame that comes, as far as it was shown */
    uint32_t part_crc;
    struct frame_header header;
    const uint8_t *head, *body; /* of the held frame, else NULL */
};

static inline struct bytes channels_beat(uint64_t clock)
{
    struct bytes b = { 0 };

    assert_int_equal(message_write_beat(&b, 1, clock), 0);
    return b;
}

static inline struct bytes channels_big_frame(size_t n_bytes)
{
    struct status_reply r = { 0 };
    char *json = calloc(1, n_bytes);
    struct bytes b = { 0 };

    assert_int_equal(message_write_admin_reply(&b, 1, &r, json, n_bytes), 0);
    free(json);
    return b;
}

static inline void channels_reply(struct channels *f, size_t n_bytes)
{
    struct bytes b = n_bytes ? channels_big_frame(n_bytes) : channels_beat(7);

    assert_int_equal(channel_send(f->channel, &b), 0);
    assert_null(b.bytes);
}

static inline void channels_release(struct channels *f)
{
    f->head = f->body = NULL;
    channel_release(f->channel);
}

static inline int channels_on_frame(void *owner, const struct frame_header *header,
                                    const uint8_t *head, const uint8_t *body)
{
    struct channels *f = owner;

    assert_int_equal(f->n_closed, 0);
    assert_true(f->part_bytes <= header->body_bytes);
    assert_int_equal(crc32c_extend(0, body, f->part_bytes), f->part_crc); /* and still there */
    f->part_bytes = f->part_crc = 0;
    f->n_frames++;
    assert_false(channel_mid_frame(f->channel));
    f->body_bytes += header->body_bytes;
    f->body_crc = crc32c_extend(f->body_crc, body, header->body_bytes);
    if (header->type == FRAME_BEAT)
        assert_int_equal(message_read_beat(header, head, &f->last_clock), 0);
    if (f->what == REPLY || f->what == REPLY_AND_CLOSE || f->what == REPLY_AND_REFUSE ||
        f->what == REPLY_BIG)
        channels_reply(f, f->what == REPLY_BIG ? f->big_bytes : 0);
    if (f->what == CLOSE || f->what == REPLY_AND_CLOSE)
        channel_close(f->channel);
    if (f->what == HOLD) {
        channel_hold(f->channel);
        f->header = *header;
        f->head = head;
        f->body = body;
    }
    if (f->releases && f->releases->head)
        channels_release(f->releases);
    assert_ptr_equal(body, head + header->head_bytes);
    return f->what == REFUSE || f->what == REPLY_AND_REFUSE ? PS_EGREETING : 0;
}

static inline void channels_on_part(void *owner, const struct frame_header *header,
                                    const uint8_t *head, const uint8_t *body, size_t n_bytes)
{
    struct channels *f = owner;

    assert_int_equal(f->n_closed, 0);
    assert_ptr_equal(body, head + header->head_bytes);
    assert_true(n_bytes >= f->part_bytes &&
                n_bytes < header->body_bytes + (header->flags & FRAME_SUM_BEHIND ? 1u : 0u));
    f->n_parts++;
    f->part_bytes = n_bytes;
    f->part_crc = crc32c_extend(0, body, n_bytes);
}

static inline void channels_on_closed(void *owner, int why)
{
    struct channels *f = owner;

    f->n_closed++;
    f->why = why;
    if (f->head && f->header.type == FRAME_BEAT) /* what is held still stands */
        assert_int_equal(message_read_beat(&f->header, f->head, &f->last_clock), 0);
    free(f->channel);
    f->channel = NULL;
}

static const struct channel_events channels_events = { .frame = channels_on_frame,
                                                       .part = channels_on_part,
                                                       .closed = channels_on_closed };

static inline void channels_loop_init(struct channels_loop *on)
{
    assert_int_equal(uv_loop_init(&on->loop), 0);
    channel_loop_init(&on->channels, &on->loop);
}

static inline void channels_loop_deinit(struct channels_loop *on)
{
    channel_loop_close(&on->channels);
    uv_run(&on->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&on->loop), 0);
    channel_loop_deinit(&on->channels);
}

/* On the first of two ends, both of them taken. */
static inline void channels_open_on(struct channels *f, struct channels_loop *on,
                                    const uv_os_sock_t ends[2], enum channels_what what)
{
    f->on = on;
    f->what = what;
    f->channel = malloc(sizeof *f->channel);
    assert_int_equal(uv_pipe_init(&on->loop, &f->pipe, 0), 0);
    assert_int_equal(uv_pipe_open(&f->pipe, ends[0]), 0);
    assert_int_equal(channel_start(f->channel, (uv_stream_t *)&f->pipe, &on->channels,
                                   FRAME_MAX, &channels_events, f),
                     0);
    f->peer = ends[1];
}

static inline void channels_open(struct channels *f, struct channels_loop *on, int type,
                                 enum channels_what what)
{
    uv_os_sock_t ends[2];

    assert_int_equal(uv_socketpair(type, 0, ends, UV_NONBLOCK_PIPE, UV_NONBLOCK_PIPE), 0);
    channels_open_on(f, on, ends, what);
}

static inline void channels_set_up(struct channels *f, enum channels_what what)
{
    *f = (struct channels){ 0 };
    channels_loop_init(&f->own);
    channels_open(f, &f->own, SOCK_STREAM, what);
}

/* On the loop of `host`, which is torn down after this one. */
static inline void channels_join(struct channels *f, struct channels *host,
                                 enum channels_what what)
{
    *f = (struct channels){ 0 };
    channels_open(f, host->on, SOCK_STREAM, what);
}

static inline void channels_hang_up(struct channels *f)
{
    close(f->peer);
    f->peer = -1;
}

static inline void channels_turn(struct channels *f)
{
    for (int i = 0; i < 4; i++)
        uv_run(&f->on->loop, UV_RUN_NOWAIT);
}

/* The peer hangs up, if it has not; the channel must then have closed exactly once. */
static inline void channels_tear_down(struct channels *f)
{
    if (f->peer >= 0)
        channels_hang_up(f);
    if (f->head && f->channel) /* it does not read, and so would not notice */
        channel_close(f->channel);
    if (f->on != &f->own) {
        while (!f->n_closed)
            uv_run(&f->on->loop, UV_RUN_ONCE);
        assert_int_equal(f->n_closed, 1);
        return;
    }
    uv_run(&f->on->loop, UV_RUN_DEFAULT);
    assert_int_equal(f->n_closed, 1);
    channels_loop_deinit(f->on);
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
