/*
 * A stream of bytes as a channel gets it: u8 how | u8 piece | stream.
 *
 * The stream comes through a socket in pieces, and some frames are held for a while. What is
 * delivered is what a plain loop over the bytes finds, whatever the pieces; and a channel ends once. The
 * checksums are real here, and are set right before: but for frames whose checksum says ffffffff, and
 * for sums behind the body of frames whose request_id is 2^64 - 1.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/status.h"
#include "proto/channel.h"
#include "proto/message.h"
#include "tests/fuzz/harness.h"

#define FRAME_MAX (1u << 16)
#define HOWS_HELD 3u

struct found {
    uint64_t digest;
    unsigned n_frames;
    int status; /* 0: the stream ended */
};

static void find(struct found *f, const struct frame_header *header, const uint8_t *head,
                 const uint8_t *body)
{
    size_t body_bytes = header->flags & FRAME_SUM_BEHIND ? 0 : header->body_bytes;
    uint8_t again[FRAME_HEADER_BYTES];
    struct frame_crc crc = { 0 };

    assert(body == head + header->head_bytes);
    frame_crc_extend(&crc, head - FRAME_HEADER_BYTES,
                     FRAME_HEADER_BYTES + header->head_bytes + body_bytes);
    frame_open(again, header);
    frame_close(again, crc.crc);
    assert(memcmp(again, head - FRAME_HEADER_BYTES, sizeof again) == 0);
    harness_digest(&f->digest, again, sizeof again);
    harness_digest(&f->digest, head, header->head_bytes);
    harness_digest(&f->digest, body, header->body_bytes);
    f->n_frames++;
}

/* The frame at the front of n_bytes, if it is whole; its length, or 0. */
static size_t open_front(const uint8_t *at, size_t n_bytes, struct found *f,
                         struct frame_header *header)
{
    size_t n_frame;

    if (!frame_magic_fits(at, n_bytes))
        f->status = PS_EPROTO;
    else if (n_bytes >= FRAME_HEADER_BYTES)
        f->status = frame_decode(at, FRAME_MAX, header);
    if (f->status || n_bytes < FRAME_HEADER_BYTES)
        return 0;
    n_frame = frame_bytes(header);
    return n_frame <= n_bytes ? n_frame : 0;
}

static void set_sums(uint8_t *frame, const struct frame_header *header)
{
    size_t n_bytes = FRAME_HEADER_BYTES + (size_t)header->head_bytes + header->body_bytes;
    struct frame_crc crc = { 0 };

    frame_encode(frame, header);
    frame_crc_extend(&crc, frame, n_bytes);
    if (header->flags & FRAME_SUM_BEHIND && header->request_id != UINT64_MAX)
        frame_put_sum(frame + n_bytes, &crc);
}

static void set_crcs(uint8_t *at, size_t n_bytes)
{
    struct found f = { 0 };
    struct frame_header header;
    size_t n_frame;

    while ((n_frame = open_front(at, n_bytes, &f, &header)) != 0) {
        if (header.crc != UINT32_MAX)
            set_sums(at, &header);
        at += n_frame;
        n_bytes -= n_frame;
    }
}

/* The definition. */
static struct found find_plainly(const uint8_t *at, size_t n_bytes)
{
    struct found f = { 0 };
    struct frame_header header;
    size_t n_frame;

    while ((n_frame = open_front(at, n_bytes, &f, &header)) != 0) {
        f.status = frame_verify(at, &header);
        if (f.status)
            break;
        find(&f, &header, at + FRAME_HEADER_BYTES, at + FRAME_HEADER_BYTES + header.head_bytes);
        at += n_frame;
        n_bytes -= n_frame;
    }
    if (!f.status &&
        n_bytes >= FRAME_HEADER_BYTES) /* never whole: what has come may be wrong already */
        f.status = frame_crc_check(&(struct frame_crc){ 0 }, &header, at, n_bytes);
    return f;
}

/* --- the same through a channel --- */

struct end {
    uv_loop_t loop;
    struct channel_loop channels;
    uv_pipe_t pipe;
    struct channel *channel; /* owned; on the heap, so that a touch after its end is seen */
    struct found found;
    unsigned how;
    bool held;
    int n_closed;
};

static int on_frame(void *owner, const struct frame_header *header, const uint8_t *head,
                    const uint8_t *body)
{
    struct end *e = owner;
    struct bytes reply = { 0 };
    int status;

    assert(!e->n_closed && !e->held);
    find(&e->found, header, head, body);
    status = message_write_beat(&reply, header->request_id, &(struct beat){ .clock = 1 });
    assert(status == 0);
    status = channel_send(e->channel, &reply);
    assert(status == 0);
    if (e->how && (e->found.n_frames + e->how) % HOWS_HELD == 0) {
        e->held = true;
        channel_hold(e->channel);
    }
    return 0;
}

static void on_closed(void *owner, int why)
{
    struct end *e = owner;

    e->n_closed++;
    e->found.status = why;
    free(e->channel);
    e->channel = NULL;
}

static const struct channel_events events = { .frame = on_frame, .closed = on_closed };

static void turn(struct end *e)
{
    uv_run(&e->loop, UV_RUN_NOWAIT);
    if (e->held && e->channel) {
        e->held = false;
        channel_release(e->channel);
    }
    uv_run(&e->loop, UV_RUN_NOWAIT);
}

/* Sends the stream, and then that it has ended; reads what is replied. */
static void loader(struct end *e, int fd, const uint8_t *at, size_t n_bytes, size_t piece)
{
    uint8_t sink[1 << 12];

    while (!e->n_closed) {
        ssize_t n = send(fd, at, n_bytes < piece ? n_bytes : piece, MSG_NOSIGNAL);

        if (n > 0) {
            at += n;
            n_bytes -= (size_t)n;
        }
        if (!n_bytes)
            (void)!shutdown(fd, SHUT_WR);
        turn(e);
        while (read(fd, sink, sizeof sink) > 0)
            ;
    }
}

static void check_end(const struct found *want, const struct end *e)
{
    assert(e->n_closed == 1);
    assert(e->found.n_frames == want->n_frames && e->found.digest == want->digest);
    assert(e->found.status == (want->status ? want->status : UV_EOF));
}

static void must(int status)
{
    assert(status == 0);
}

static void run_channel(const struct found *want, const uint8_t *at, size_t n_bytes,
                        unsigned how, size_t piece)
{
    struct end *e = calloc(1, sizeof *e);
    uv_os_sock_t ends[2];

    assert(e);
    e->how = how;
    must(uv_loop_init(&e->loop));
    channel_loop_init(&e->channels, &e->loop);
    e->channel = malloc(sizeof *e->channel);
    must(uv_socketpair(SOCK_STREAM, 0, ends, UV_NONBLOCK_PIPE, UV_NONBLOCK_PIPE));
    must(uv_pipe_init(&e->loop, &e->pipe, 0));
    must(uv_pipe_open(&e->pipe, ends[0]));
    must(channel_start(e->channel, (uv_stream_t *)&e->pipe, &e->channels, FRAME_MAX, &events,
                       e));
    loader(e, ends[1], at, n_bytes, piece);
    close(ends[1]);
    channel_loop_close(&e->channels);
    uv_run(&e->loop, UV_RUN_DEFAULT);
    must(uv_loop_close(&e->loop));
    channel_loop_deinit(&e->channels);
    check_end(want, e);
    free(e);
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    struct harness_bytes in = { bytes, bytes + n_bytes };
    unsigned how = (unsigned)harness_number(&in, 1) % 4;
    size_t piece = 1 + (size_t)harness_number(&in, 1) * 7, n;
    uint8_t *stream = harness_take(&in, SIZE_MAX, &n);
    struct found want;

    set_crcs(stream, n);
    want = find_plainly(stream, n);
    run_channel(&want, stream, n, how, piece < n / 64 ? n / 64 : piece);
    free(stream);
}

bool harness_seed(uint32_t i, struct bytes *out)
{
    const uint8_t pieces[] = { 0, 3, 255 };
    struct admin admin = { .command = "checkpoint", .argument = "now" };
    struct status_reply reply = { 0 };
    static const char json[3000];

    if (i >= 4 * COUNT_OF(pieces))
        return false;
    harness_put_number(out, i % 4, 1);
    harness_put_number(out, pieces[i / 4], 1);
    must(message_write_beat(out, i, &(struct beat){ .clock = 7 }));
    must(message_write_admin(out, i + 1, &admin));
    must(message_write_admin_reply(out, 2, &reply, json, i * 256));
    must(message_write_leave(out, i, 7));
    return true;
}
