/*
 * The chain of callbacks, in the order in which bytes meet them:
 *
 *     on_alloc -> on_read -> deliver -> events.frame                          (in)
 *     channel_send -> on_written                                              (out)
 *     channel_close | channel_fail | a broken stream
 *         -> linger, when writes are under way: on_shutdown, on_linger_end
 *         -> finish -> on_closed -> events.closed                             (end)
 */
#include "proto/channel.h"

#include <assert.h>
#include <stdlib.h>

#include "common/mem.h"
#include "common/status.h"

#define READ_MIN_BYTES (64u << 10)
#define READ_MAX_BYTES (256u << 10)
#define KEEP_BYTES (4u << 20) /* of an empty buffer; more is given back */
#define HIGH_WATER_BYTES (8u << 20)
#define LOW_WATER_BYTES (2u << 20)

struct write_req {
    uv_write_t uv;
    struct buf frame; /* owned */
};

/* One call of events.frame, on the stack: what is left of the channel if the call detaches
 * it. */
struct channel_delivery {
    size_t frame_bytes;
    bool detached;
    struct buf in; /* owned once detached: head and body lie in it */
};

static void on_alloc(uv_handle_t *handle, size_t suggested_bytes, uv_buf_t *ret_room);
static void on_read(uv_stream_t *stream, ssize_t n_bytes, const uv_buf_t *room);

static void on_closed(uv_handle_t *handle)
{
    struct channel *c = handle->data;

    if (--c->n_handles_open)
        return;
    buf_deinit(&c->in);
    c->events->closed(c->owner, c->why);
}

static void finish(struct channel *c)
{
    if (c->finished)
        return;
    c->finished = true;
    c->n_handles_open = 1;
    uv_close((uv_handle_t *)c->stream, on_closed);
    if (c->lingering) {
        c->n_handles_open++;
        uv_close((uv_handle_t *)&c->linger, on_closed);
    }
}

static void on_linger_end(uv_timer_t *timer)
{
    finish(timer->data);
}

/* All is written and the peer knows that no more comes; it now has the rest of the time to hang
 * up. */
static void on_shutdown(uv_shutdown_t *req, int status)
{
    struct channel *c = req->handle->data;

    if (status)
        finish(c);
}

static void linger(struct channel *c)
{
    int status;

    uv_update_time(c->stream->loop); /* a timer counts from when the loop last looked */
    uv_timer_init(c->stream->loop, &c->linger);
    c->linger.data = c;
    c->lingering = true;
    uv_timer_start(&c->linger, on_linger_end, CHANNEL_LINGER_MS, 0);
    status = uv_read_start(c->stream, on_alloc, on_read);
    if (!status || status == UV_EALREADY)
        status = uv_shutdown(&c->shutdown, c->stream, on_shutdown);
    if (status)
        finish(c);
}

/* The end for a reason of ours: the peer may still get what was sent. */
static void end(struct channel *c, int why)
{
    if (c->state == CHANNEL_CLOSING)
        return;
    c->state = CHANNEL_CLOSING;
    c->why = why;
    if (c->n_writes)
        linger(c);
    else
        finish(c);
}

/* The end because the stream has ended: there is nobody to wait for. */
static void end_broken(struct channel *c, int why)
{
    if (c->state != CHANNEL_CLOSING)
        c->why = why;
    c->state = CHANNEL_CLOSING;
    finish(c);
}

void channel_close(struct channel *c)
{
    end(c, 0);
}

void channel_fail(struct channel *c, int why)
{
    end(c, why);
}

void channel_detach(struct channel *c)
{
    assert(c->state != CHANNEL_CLOSING && c->n_writes == 0);
    uv_read_stop(c->stream);
    c->stream->data = NULL;
    if (c->delivery) {
        c->delivery->detached = true;
        c->delivery->in = c->in;
        c->in = (struct buf){ 0 };
    }
    buf_deinit(&c->in);
}

bool channel_mid_frame(const struct channel *c)
{
    return buf_len(&c->in) > (c->delivery ? c->delivery->frame_bytes : 0);
}

/* Is there a whole frame at the front? *ret_bytes is its length, 0 while it is not all there.
 * Refuses a wrong one as soon as the bytes that tell have come. */
static int next_frame(const struct channel *c, struct frame_header *ret_header,
                      size_t *ret_bytes)
{
    size_t len = buf_len(&c->in);
    int status;

    *ret_bytes = 0;
    if (len && !frame_magic_fits(buf_front(&c->in), len))
        return PS_EPROTO;
    if (len < FRAME_HEADER_BYTES)
        return 0;
    status = frame_decode(buf_front(&c->in), c->frame_max_bytes, ret_header);
    if (status)
        return status;
    if (len - FRAME_HEADER_BYTES < (size_t)ret_header->head_bytes + ret_header->body_bytes)
        return 0;
    *ret_bytes = FRAME_HEADER_BYTES + (size_t)ret_header->head_bytes + ret_header->body_bytes;
    return frame_verify(buf_front(&c->in), ret_header);
}

/* Hands whole frames in c->in to the owner, as long as it may. False if the channel was
 * detached: then *c may be no more. */
static bool deliver(struct channel *c)
{
    struct channel_delivery d = { 0 };
    struct frame_header header;
    const uint8_t *head;
    int status;

    while (c->state == CHANNEL_OPEN) {
        status = next_frame(c, &header, &d.frame_bytes);
        if (!status && !d.frame_bytes)
            break;
        if (!status) {
            head = buf_front(&c->in) + FRAME_HEADER_BYTES;
            c->delivery = &d;
            status = c->events->frame(c->owner, &header, head, head + header.head_bytes);
            if (d.detached) {
                buf_deinit(&d.in);
                return false;
            }
            c->delivery = NULL;
            buf_consume(&c->in, d.frame_bytes);
        }
        if (status)
            end(c, status);
    }
    if (buf_len(&c->in) == 0 && c->in.cap_bytes > KEEP_BYTES)
        buf_deinit(&c->in);
    return true;
}

/* Room for the rest of the frame, but for no more than has come of it: a header alone reserves
 * nothing. */
static size_t room_wanted(const struct channel *c)
{
    size_t len = buf_len(&c->in), most = len > READ_MAX_BYTES ? len : READ_MAX_BYTES, rest;
    struct frame_header header;

    if (len < FRAME_HEADER_BYTES ||
        frame_decode(buf_front(&c->in), c->frame_max_bytes, &header))
        return READ_MIN_BYTES;
    rest = FRAME_HEADER_BYTES + (size_t)header.head_bytes + header.body_bytes;
    rest = rest > len ? rest - len : 0;
    if (rest > most)
        rest = most;
    return rest > READ_MIN_BYTES ? rest : READ_MIN_BYTES;
}

static void on_alloc(uv_handle_t *handle, size_t suggested_bytes, uv_buf_t *ret_room)
{
    struct channel *c = handle->data;
    size_t n_bytes;
    uint8_t *room;

    (void)suggested_bytes;
    if (c->state == CHANNEL_CLOSING)
        buf_consume(&c->in, buf_len(&c->in));
    n_bytes = room_wanted(c);
    room = buf_reserve(&c->in, n_bytes);
    ret_room->base = (char *)room;
    ret_room->len = room ? n_bytes : 0; /* 0: UV_ENOBUFS follows */
}

static void on_read(uv_stream_t *stream, ssize_t n_bytes, const uv_buf_t *room)
{
    struct channel *c = stream->data;

    (void)room;
    if (n_bytes < 0) {
        end_broken(c, (int)n_bytes);
        return;
    }
    c->bytes_in += (uint64_t)n_bytes;
    if (c->state == CHANNEL_CLOSING)
        return; /* dropped */
    buf_commit(&c->in, (size_t)n_bytes);
    (void)deliver(c);
}

/* The peer has read enough: first the frames that came before the reading stopped, then new
 * ones. */
static void resume(struct channel *c)
{
    int status;

    c->state = CHANNEL_OPEN;
    if (!deliver(c) || c->state != CHANNEL_OPEN)
        return;
    status = uv_read_start(c->stream, on_alloc, on_read);
    if (status)
        end_broken(c, status);
}

static void on_written(uv_write_t *uv, int status)
{
    struct write_req *req = CONTAINER_OF(uv, struct write_req, uv);
    struct channel *c = uv->handle->data;

    buf_deinit(&req->frame);
    free(req);
    c->n_writes--;
    if (status)
        end_broken(c, status);
    else if (c->state == CHANNEL_CONGESTED &&
             uv_stream_get_write_queue_size(c->stream) < LOW_WATER_BYTES)
        resume(c);
}

int channel_start(struct channel *c, uv_stream_t *stream, uint32_t frame_max_bytes,
                  const struct channel_events *events, void *owner)
{
    int status;

    *c = (struct channel){
        .stream = stream, .events = events, .owner = owner, .frame_max_bytes = frame_max_bytes
    };
    stream->data = c;
    status = uv_read_start(stream, on_alloc, on_read);
    if (status)
        stream->data = NULL;
    return status;
}

int channel_send(struct channel *c, struct buf *frame)
{
    struct write_req *req = mem_alloc(sizeof *req);
    uv_buf_t bytes = { .base = (char *)frame->bytes + frame->start, .len = buf_len(frame) };
    int status = UV_ECANCELED;

    assert(bytes.len >= FRAME_HEADER_BYTES);
    req->frame = *frame;
    *frame = (struct buf){ 0 };
    if (c->state != CHANNEL_CLOSING)
        status = uv_write(&req->uv, c->stream, &bytes, 1, on_written);
    if (status) {
        buf_deinit(&req->frame);
        free(req);
        if (c->state != CHANNEL_CLOSING)
            end_broken(c, status);
        return status;
    }
    c->n_writes++;
    c->bytes_out += bytes.len;
    if (c->state == CHANNEL_OPEN && !c->reads_always &&
        uv_stream_get_write_queue_size(c->stream) > HIGH_WATER_BYTES) {
        c->state = CHANNEL_CONGESTED;
        uv_read_stop(c->stream);
    }
    return 0;
}
