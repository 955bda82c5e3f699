#include "tests/unit/proto/channels.h"

struct bytes channels_beat(uint64_t clock)
{
    struct bytes b = { 0 };

    assert_int_equal(message_write_beat(&b, 1, &(struct beat){ .clock = clock }), 0);
    return b;
}

struct bytes channels_big_frame(size_t n_bytes)
{
    struct status_reply r = { 0 };
    char *json = calloc(1, n_bytes);
    struct bytes b = { 0 };

    assert_int_equal(message_write_admin_reply(&b, 1, &r, json, n_bytes), 0);
    free(json);
    return b;
}

void channels_reply(struct channels *f, size_t n_bytes)
{
    struct bytes b = n_bytes ? channels_big_frame(n_bytes) : channels_beat(7);

    assert_int_equal(channel_send(f->channel, &b), 0);
    assert_null(b.bytes);
}

void channels_release(struct channels *f)
{
    f->head = f->body = NULL;
    channel_release(f->channel);
}

/* The body that was taken before is still as it came; its buffer goes to the channel. */
void channels_check_taken(struct channels_taken *t)
{
    assert_int_equal(crc32c_extend(0, t->body, t->n_bytes), t->crc);
    bytes_consume(&t->buffer, bytes_len(&t->buffer));
}

static void take(struct channels *f, const uint8_t *body, size_t n_bytes)
{
    struct bytes *buffer = channel_frame_buffer(f->channel), taken;

    if (!buffer)
        return;
    channels_check_taken(&f->taken);
    taken = *buffer;
    *buffer = f->taken.buffer;
    f->taken = (struct channels_taken){ taken, body, n_bytes, crc32c_extend(0, body, n_bytes),
                                        f->taken.n + 1 };
}

int channels_on_frame(void *owner, const struct frame_header *header, const uint8_t *head,
                      const uint8_t *body)
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
        assert_int_equal(message_read_beat(header, head, &f->last_beat), 0);
    if (f->what == REPLY || f->what == REPLY_AND_CLOSE || f->what == REPLY_AND_REFUSE ||
        f->what == REPLY_BIG)
        channels_reply(f, f->what == REPLY_BIG ? f->big_bytes : 0);
    if (f->what == TAKE)
        take(f, body, header->body_bytes);
    if (f->what == UNPACK)
        channel_use_unpacked(f->channel, f->big_bytes);
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

void channels_on_part(void *owner, const struct frame_header *header, const uint8_t *head,
                      const uint8_t *body, size_t n_bytes)
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

void channels_on_closed(void *owner, int why)
{
    struct channels *f = owner;

    f->n_closed++;
    f->why = why;
    if (f->head && f->header.type == FRAME_BEAT) /* what is held still stands */
        assert_int_equal(message_read_beat(&f->header, f->head, &f->last_beat), 0);
    free(f->channel);
    f->channel = NULL;
}

void channels_loop_init(struct channels_loop *on)
{
    assert_int_equal(uv_loop_init(&on->loop), 0);
    channel_loop_init(&on->channels, &on->loop);
}

void channels_loop_deinit(struct channels_loop *on)
{
    channel_loop_close(&on->channels);
    uv_run(&on->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&on->loop), 0);
    channel_loop_deinit(&on->channels);
}

void channels_open_on(struct channels *f, struct channels_loop *on, const uv_os_sock_t ends[2],
                      enum channels_what what)
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

void channels_open(struct channels *f, struct channels_loop *on, int type,
                   enum channels_what what)
{
    uv_os_sock_t ends[2];

    assert_int_equal(uv_socketpair(type, 0, ends, UV_NONBLOCK_PIPE, UV_NONBLOCK_PIPE), 0);
    channels_open_on(f, on, ends, what);
}

void channels_set_up(struct channels *f, enum channels_what what)
{
    *f = (struct channels){ 0 };
    channels_loop_init(&f->own);
    channels_open(f, &f->own, SOCK_STREAM, what);
}

void channels_join(struct channels *f, struct channels *host, enum channels_what what)
{
    *f = (struct channels){ 0 };
    channels_open(f, host->on, SOCK_STREAM, what);
}

void channels_hang_up(struct channels *f)
{
    close(f->peer);
    f->peer = -1;
}

void channels_turn(struct channels *f)
{
    for (int i = 0; i < 4; i++)
        uv_run(&f->on->loop, UV_RUN_NOWAIT);
}

void channels_tear_down(struct channels *f)
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

void channels_write(struct channels *f, const void *bytes, size_t n_bytes)
{
    assert_int_equal(write(f->peer, bytes, n_bytes), n_bytes);
    channels_turn(f);
}

void channels_write_all(struct channels *f, const uint8_t *bytes, size_t n_bytes)
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

size_t channels_read(struct channels *f)
{
    static uint8_t sink[1 << 16];
    size_t sum = 0;
    ssize_t n;

    while ((n = read(f->peer, sink, sizeof sink)) > 0)
        sum += (size_t)n;
    return sum;
}
