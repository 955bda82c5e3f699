/*
 * The chain of callbacks, in the order in which bytes meet them:
 *
 *     on_alloc -> on_read -> deliver -> events.frame                          (in)
 *                 on_turn ----^      -> settle: what becomes of the buffer
 *     channel_send -> [the delivery's end] -> on_written                      (out)
 *     channel_close | channel_fail | a broken stream
 *         -> linger, when writes are under way: on_shutdown, on_linger_end
 *         -> finish -> on_closed -> events.closed                             (end)
 */
#include "proto/channel.h"

#include <assert.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "common/status.h"

#define FRAME_TURN_BYTES 1024u /* what a frame uses of a turn beside its bytes */
#define HIGH_WATER_BYTES (8u << 20)
#define LOW_WATER_BYTES (2u << 20)

static void on_alloc(uv_handle_t *handle, size_t suggested_bytes, uv_buf_t *ret_room);
static void on_read(uv_stream_t *stream, ssize_t n_bytes, const uv_buf_t *room);
static void on_turn(struct channel_hub_waiter *w);
static void on_written(struct channel_out *out, int status);

/* --- the end --- */

static void on_closed(uv_handle_t *handle)
{
    struct channel *c = handle->data;
    struct channel_hub *hub = c->hub;
    struct buf in = c->in.buf;

    if (--c->n_handles_open)
        return;
    channel_out_drop(&c->out);
    c->events->closed(c->owner, c->why);
    channel_hub_give(hub, &in); /* a held frame was good until now */
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
    channel_hub_leave_line(c->hub, &c->waiter);
    if (channel_out_flush(&c->out) == 0 && channel_out_is_fresh(&c->out))
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
    channel_hub_leave_line(c->hub, &c->waiter);
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

/* --- turns --- */

static bool turn_is_over(struct channel *c)
{
    if (c->turn != c->hub->turn) {
        c->turn = c->hub->turn;
        c->turn_bytes = 0;
    }
    return c->turn_bytes >= CHANNEL_TURN_BYTES;
}

static void use_turn(struct channel *c, size_t n_bytes)
{
    (void)turn_is_over(c); /* a new one may have begun */
    c->turn_bytes += n_bytes;
}

static bool waits(const struct channel *c)
{
    return c->waiter.go != NULL;
}

/* --- frames --- */

/* Hands the frame at the front, which is whole, to the owner. */
static int deliver_one(struct channel *c, const struct frame_header *header)
{
    const uint8_t *head = buf_front(&c->in.buf) + FRAME_HEADER_BYTES;
    int status = channel_in_check(&c->in, header);

    if (status)
        return status;
    status = c->events->frame(c->owner, header, head, head + header->head_bytes);
    use_turn(c, c->in.next_bytes + FRAME_TURN_BYTES);
    if (!c->held)
        channel_in_drop(&c->in);
    return status;
}

/* Shows the owner as much of the frame at the front as has come. */
static void show(struct channel *c, const struct frame_header *header)
{
    size_t before = FRAME_HEADER_BYTES + (size_t)header->head_bytes, len = buf_len(&c->in.buf);
    const uint8_t *frame = buf_front(&c->in.buf);

    if (len > before + header->body_bytes) /* some of the sum behind it has come */
        len = before + header->body_bytes;
    if (c->events->part && c->in.next_bytes && len > before)
        c->events->part(c->owner, header, frame + FRAME_HEADER_BYTES, frame + before,
                        len - before);
}

/* What becomes of the buffer when no more can be delivered from it now. `header` is that of the frame
 * at the front, if it has come. */
static void settle(struct channel *c, const struct frame_header *header)
{
    int status;

    if (c->held)
        return;
    if (c->state == CHANNEL_CLOSING || !buf_len(&c->in.buf)) {
        channel_in_clear(&c->in);
    } else if (c->state == CHANNEL_OPEN && !waits(c)) {
        status = channel_in_settle(&c->in, header);
        if (status)
            end(c, status);
        else
            show(c, header);
    }
}

static void flush(struct channel *c)
{
    int status = channel_out_flush(&c->out);

    if (status)
        end_broken(c, status);
}

/* Looks for a frame at the front. That what is there instead is an HTTP answer is for the owner to tell. */
static int look(struct channel *c, struct frame_header *ret_header)
{
    const size_t len = buf_len(&c->in.buf);
    int status = channel_in_look(&c->in, c->frame_max_bytes, ret_header);

    c->hears_http =
        status == PS_EPROTO && memcmp(buf_front(&c->in.buf), "HTTP", len < 4 ? len : 4) == 0;
    return status;
}

/* Hands whole frames in c->in to the owner, as long as it may. */
static void deliver(struct channel *c)
{
    struct frame_header header = { 0 };
    int status;

    c->delivering = true;
    while (c->state == CHANNEL_OPEN && !c->held) {
        status = look(c, &header);
        if (!status && !channel_in_is_whole(&c->in))
            break;
        if (!status && turn_is_over(c)) {
            c->n_turns_ended++;
            channel_hub_line_up(c->hub, &c->waiter, on_turn);
            break;
        }
        if (!status)
            status = deliver_one(c, &header);
        if (status)
            end(c, status);
    }
    c->delivering = false;
    flush(c);
    settle(c, &header);
}

static void on_turn(struct channel_hub_waiter *w)
{
    deliver(CONTAINER_OF(w, struct channel, waiter));
}

/* What kept us from delivering is over: first the frames that have come, then new ones. */
static void go_on(struct channel *c)
{
    int status;

    if (buf_len(&c->in.buf))
        channel_hub_line_up(c->hub, &c->waiter, on_turn);
    else
        channel_in_clear(&c->in);
    if (!c->stopped)
        return;
    c->stopped = false;
    status = uv_read_start(c->stream, on_alloc, on_read);
    if (status)
        end_broken(c, status);
}

void channel_hold(struct channel *c)
{
    assert(c->delivering && !c->held);
    c->held = true;
}

void channel_release(struct channel *c)
{
    assert(c->held);
    if (c->state == CHANNEL_CLOSING && !c->delivering)
        return;
    c->held = false;
    if (c->delivering)
        return;
    channel_in_drop(&c->in);
    if (c->state == CHANNEL_OPEN)
        go_on(c);
}

bool channel_mid_frame(const struct channel *c)
{
    return c->state == CHANNEL_OPEN && !c->held && !c->delivering && !waits(c) &&
           buf_len(&c->in.buf) > 0;
}

/* --- in --- */

static bool may_read(struct channel *c)
{
    return c->state == CHANNEL_OPEN && !c->held && !waits(c) && !turn_is_over(c);
}

static void on_alloc(uv_handle_t *handle, size_t suggested_bytes, uv_buf_t *ret_room)
{
    struct channel *c = handle->data;
    size_t n_bytes;
    uint8_t *bytes;

    (void)suggested_bytes;
    c->declined = c->state != CHANNEL_CLOSING && !may_read(c);
    *ret_room = (uv_buf_t){ 0 }; /* UV_ENOBUFS follows */
    if (c->state == CHANNEL_CLOSING) {
        *ret_room = (uv_buf_t){ (char *)c->hub->trash, sizeof c->hub->trash };
    } else if (!c->declined && channel_in_room(&c->in, &bytes, &n_bytes) == 0) {
        *ret_room = (uv_buf_t){ (char *)bytes, n_bytes };
    }
}

/* libuv asks again in every iteration until we take the bytes: right while it is a turn that we
 * wait for, too often when nobody knows how long it takes. */
static void on_declined(struct channel *c)
{
    if (c->held || c->state == CHANNEL_CONGESTED) {
        uv_read_stop(c->stream);
        c->stopped = true;
    } else if (!waits(c)) {
        c->n_turns_ended++;
    }
}

/* A frame has come in part, and nothing more is there to read. The rest may be waiting for room in flight, until what has come
 * is acknowledged; and the kernel delays that in the hope of an answer to send it with, which there cannot be before the
 * rest. Other streams than TCP's know nothing of it. */
static void acknowledge(const struct channel *c)
{
    const int at_once = 1;
    uv_os_fd_t fd;

    if (uv_fileno((const uv_handle_t *)c->stream, &fd) == 0)
        (void)!setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &at_once, sizeof at_once);
}

static void on_read(uv_stream_t *stream, ssize_t n_bytes, const uv_buf_t *room)
{
    struct channel *c = stream->data;

    if (n_bytes == UV_ENOBUFS && c->declined) {
        on_declined(c);
        return;
    }
    if (n_bytes < 0) {
        end_broken(c, (int)n_bytes);
        return;
    }
    c->bytes_in += (uint64_t)n_bytes;
    if (c->state == CHANNEL_CLOSING)
        return; /* dropped */
    channel_in_commit(&c->in, (size_t)n_bytes);
    deliver(c);
    if (!channel_mid_frame(c))
        return;
    use_turn(c, (size_t)n_bytes);
    if ((size_t)n_bytes < room->len)
        acknowledge(c);
}

int channel_start(struct channel *c, uv_stream_t *stream, struct channel_hub *hub,
                  uint32_t frame_max_bytes, const struct channel_events *events, void *owner)
{
    int status;

    *c = (struct channel){ .stream = stream,
                           .hub = hub,
                           .events = events,
                           .owner = owner,
                           .frame_max_bytes = frame_max_bytes,
                           .in = { .hub = hub },
                           .out = { .stream = stream, .hub = hub, .written = on_written } };
    stream->data = c;
    status = uv_read_start(stream, on_alloc, on_read);
    if (status)
        stream->data = NULL;
    return status;
}

/* --- out --- */

static void drain(struct channel *c)
{
    if (c->state != CHANNEL_CONGESTED || channel_out_bytes(&c->out) >= LOW_WATER_BYTES)
        return;
    c->state = CHANNEL_OPEN;
    if (!c->held)
        go_on(c);
}

static void on_written(struct channel_out *out, int status)
{
    struct channel *c = CONTAINER_OF(out, struct channel, out);

    if (status) {
        end_broken(c, status);
        return;
    }
    drain(c);
    if (c->out.parts.under_way && c->state != CHANNEL_CLOSING && c->events->written)
        c->events->written(c->owner);
}

size_t channel_unsent_bytes(const struct channel *c)
{
    return channel_out_bytes(&c->out);
}

size_t channel_leaving_bytes(const struct channel *c)
{
    return channel_out_leaving_bytes(&c->out);
}

/* After something was to be written. */
static int sent(struct channel *c, int status)
{
    if (status)
        end_broken(c, status);
    else if (c->state == CHANNEL_OPEN && !c->reads_always &&
             channel_out_bytes(&c->out) > HIGH_WATER_BYTES)
        c->state = CHANNEL_CONGESTED;
    return status;
}

/* Not 0: the channel is CLOSING, and the bytes are gone. */
static int count_sent(struct channel *c, struct buf *bytes)
{
    if (c->state == CHANNEL_CLOSING) {
        channel_hub_give(c->hub, bytes);
        return UV_ECANCELED;
    }
    c->bytes_out += buf_len(bytes);
    if (c->delivering)
        use_turn(c, buf_len(bytes));
    return 0;
}

int channel_send(struct channel *c, struct buf *frame)
{
    int status;

    assert(buf_len(frame) >= FRAME_HEADER_BYTES);
    status = count_sent(c, frame);
    if (status)
        return status;
    if (c->out.parts.under_way) {
        status = channel_out_wait(&c->out, frame);
        channel_hub_give(c->hub, frame);
    } else if (channel_out_add(&c->out, frame) || !c->delivering) {
        status = channel_out_flush(&c->out);
    }
    return sent(c, status);
}

int channel_send_part(struct channel *c, struct buf *part)
{
    int status = count_sent(c, part);

    if (status)
        return status;
    c->out.parts.under_way = true;
    (void)channel_out_add(&c->out, part);
    return sent(c, channel_out_flush(&c->out));
}

int channel_send_last_part(struct channel *c, struct buf *part)
{
    int status = count_sent(c, part);

    if (status)
        return status;
    (void)channel_out_add(&c->out, part);
    status = sent(c, channel_out_end_parts(&c->out));
    if (!status)
        drain(c);
    return status;
}
