#include "proto/channel.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <sys/socket.h>

#include "common/memory.h"
#include "common/status.h"

/* ---- receiving ---- */

#define READ_BYTES (256u << 10)     /* of a first read: many small frames */
#define READ_MAX_BYTES (512u << 10) /* of one into a large frame */
#define EXACT_BYTES (32u << 10)     /* larger frames are read one by one, so that few move */
#define SLACK_BYTES (4u << 10)      /* for a frame a little larger than the last */
#define GROW_MIN_BYTES (16u << 10)  /* for the beginning of a new peer's first frame */
#define GROW_LEFT_BYTES (64u << 10) /* less space than that is too little for a read */
#define CAUTIOUS_BYTES (1u << 20)

/* The whole frame at the front is done with. Its owner may have taken it, with the buffer. */
static void drop_frame(struct channel_in *in)
{
    uint32_t n_bytes = (uint32_t)in->next_bytes;

    in->last_bytes[1] = in->last_bytes[0];
    in->last_bytes[0] = n_bytes;
    in->most_bytes = MAX(in->most_bytes, n_bytes);
    if (bytes_len(&in->buf))
        bytes_consume(&in->buf, n_bytes);
    in->next_bytes = 0;
    in->crc = (struct frame_crc){ 0 };
}

static void clear_in(struct channel_in *in)
{
    channel_loop_release(in->channels, &in->buf);
    in->next_bytes = 0;
    in->crc = (struct frame_crc){ 0 };
}

/* Of a frame before, for the next one. At low priority memory follows the bytes, as its first touch takes time. */
static size_t believed_bytes(const struct channel_in *in, size_t n_bytes)
{
    return in->is_cautious ? MIN(n_bytes, CAUTIOUS_BYTES) : n_bytes;
}

/* Space for the frame at the front, of which something has come, but no more than the peer has shown to fill. */
static size_t wanted_bytes(const struct channel_in *in)
{
    size_t shown =
        MAX(2 * bytes_len(&in->buf), MAX(believed_bytes(in, in->most_bytes), GROW_MIN_BYTES));

    return in->next_bytes ? MIN(in->next_bytes, shown) : FRAME_HEADER_BYTES;
}

/* Is there space for what was shown at its beginning, and for a read that is worth its call? (A header always fits.) */
static bool has_space(const struct channel_in *in)
{
    size_t len = bytes_len(&in->buf), cap = in->buf.cap_bytes - in->buf.start;
    size_t shown = MAX(believed_bytes(in, in->most_bytes), GROW_MIN_BYTES);

    return (!in->next_bytes || cap >= MIN(in->next_bytes, shown)) &&
           cap - len >= MIN(in->next_bytes - len, MIN(len / 4, GROW_LEFT_BYTES));
}

/* Moves the beginning of a frame to the front of a buffer for cap_bytes. */
static int move(struct channel_in *in, size_t cap_bytes)
{
    size_t len = bytes_len(&in->buf);
    struct bytes b;
    int status = channel_loop_acquire(in->channels, cap_bytes, &b);

    if (status)
        return status;
    memcpy(b.bytes, bytes_front(&in->buf), len);
    bytes_commit(&b, len);
    channel_loop_release(in->channels, &in->buf);
    in->buf = b;
    return 0;
}

/* Grows its buffer if that is too small for it, or moves it if that is far too large. */
static int fit(struct channel_in *in)
{
    size_t want = wanted_bytes(in);

    if (has_space(in) && in->buf.cap_bytes <= 4 * want + GROW_MIN_BYTES)
        return 0;
    if (in->buf.start || in->buf.cap_bytes < GROW_LEFT_BYTES || in->buf.cap_bytes >= want)
        return move(in, want);
    return channel_loop_grow(in->channels, &in->buf, want);
}

/* Between frames. How much is asked for is a guess: where large frames follow each other, the
 * length of one, so that the next begins where the next read begins. */
static int reserve_next(struct channel_in *in, size_t *ret_bytes)
{
    size_t guess = believed_bytes(in, MAX(in->last_bytes[0], in->last_bytes[1]));
    size_t cap = MAX(guess, MIN(in->most_bytes, READ_MAX_BYTES)) + SLACK_BYTES;

    *ret_bytes = guess > EXACT_BYTES ? MIN(guess, READ_MAX_BYTES) : READ_BYTES;
    return channel_loop_acquire(in->channels, MAX(cap, READ_BYTES), &in->buf);
}

/* For the rest of an unfinished frame. A small one goes back to where many are read at once: to
 * copy a few KiB costs less than a read of its own. */
static int reserve_rest(struct channel_in *in, size_t *ret_bytes)
{
    bool is_large = in->next_bytes > EXACT_BYTES;
    int status = is_large ? fit(in) : move(in, READ_BYTES);

    *ret_bytes = in->buf.cap_bytes - in->buf.end;
    if (is_large)
        *ret_bytes = MIN(MIN(in->next_bytes - bytes_len(&in->buf), *ret_bytes), READ_MAX_BYTES);
    return status;
}

/* Where the next bytes go. -ENOMEM. */
static int reserve_read(struct channel_in *in, uint8_t **ret_space, size_t *ret_bytes)
{
    size_t n_bytes;
    int status = bytes_len(&in->buf) ? reserve_rest(in, &n_bytes) : reserve_next(in, &n_bytes);

    if (status)
        return status;
    *ret_space = in->buf.bytes + in->buf.end;
    *ret_bytes = n_bytes;
    return 0;
}

/* ---- the channel ---- */

size_t channel_leaving_bytes(const struct channel *c)
{
    return uv_stream_get_write_queue_size(c->stream) + c->out.batch_bytes;
}

size_t channel_unsent_bytes(const struct channel *c)
{
    return channel_leaving_bytes(c) + c->out.chunks.n_bytes;
}

/*
 * The chain of callbacks, in the order in which bytes meet them:
 *
 *     on_alloc -> on_read -> deliver -> events.frame                          (in)
 *                 on_turn ----^      -> recycle: what becomes of the buffer
 *     channel_send -> [the delivery's end] -> on_written                      (out)
 *     channel_close | channel_fail | a broken stream
 *         -> linger, when writes are under way: on_shutdown, on_linger_end
 *         -> finish -> on_closed -> events.closed                             (end)
 */
#define FRAME_COST(n) (1024u + 16u * (n)) /* beside its bytes; its head has n */
#define READ_COST_SHARE 4u /* a byte that is only received costs less than one that is used */
#define HIGH_WATER_BYTES (8u << 20) /* of the memory of what is unsent */
#define LOW_WATER_BYTES (2u << 20)
#define LOW_READ_BYTES (64u << 10)     /* of one read, at low priority */
#define SEALED_READ_BYTES (128u << 10) /* of one read of TLS records */

static void on_alloc(uv_handle_t *handle, size_t suggested_bytes, uv_buf_t *ret_space);
static void on_read(uv_stream_t *stream, ssize_t n_bytes, const uv_buf_t *space);
static void on_turn(struct channel_loop_waiter *w);
static void open_sealed(struct channel *c);
static void on_written(struct channel_out *out, int status);

/* --- memory --- */

static void count_held(struct channel *c)
{
    size_t n_bytes = c->finished ? 0
                                 : c->in.buf.cap_bytes + c->sealed.cap_bytes +
                                       c->out.held_bytes + c->owner_bytes;

    if (n_bytes == c->held_bytes)
        return;
    channel_loop_hold_bytes(c->channels, c->held_bytes, n_bytes);
    c->held_bytes = n_bytes;
}

void channel_set_owner_bytes(struct channel *c, size_t n_bytes)
{
    c->owner_bytes = n_bytes;
    count_held(c);
}

/* --- what is written --- */

/* bytes_out counts what TLS has added, too. Returns `status`. */
static int count_seals(struct channel *c, int status)
{
    if (c->tls) {
        c->bytes_out += c->out.seal_bytes;
        c->out.seal_bytes = 0;
    }
    return status;
}

static int write_out(struct channel *c)
{
    return count_seals(c, channel_out_write(&c->out));
}

/* --- the end --- */

static void on_closed(uv_handle_t *handle)
{
    struct channel *c = handle->data;
    struct channel_loop *channels = c->channels;
    struct bytes in = c->in.buf;

    if (--c->n_handles_open)
        return;
    channel_out_drop(&c->out);
    channel_loop_release(channels, &c->sealed);
    tls_session_free(c->tls);
    c->tls = NULL;
    c->closed = &in; /* a held frame is good until it returns */
    c->events->closed(c->owner, c->why);
    channel_loop_release(channels, &in);
}

static void finish(struct channel *c)
{
    if (c->finished)
        return;
    c->finished = true;
    if (c->turn.is_low)
        channel_loop_remove_low(c->channels);
    c->channels->n_ended++;
    count_held(c);
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

/* All is written and the peer knows that no more comes; it now has the rest of the time to hang up. */
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
    channel_loop_cancel(c->channels, &c->waiter);
    if (write_out(c) == 0 && channel_out_is_fresh(&c->out))
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
    channel_loop_cancel(c->channels, &c->waiter);
    finish(c);
}

void channel_abort(struct channel *c, int why)
{
    end_broken(c, why);
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

void channel_set_low_priority(struct channel *c, bool is_low)
{
    if (c->turn.is_low == is_low)
        return;
    c->turn.is_low = is_low;
    if (c->finished)
        return;
    if (is_low)
        channel_loop_add_low(c->channels);
    else
        channel_loop_remove_low(c->channels);
}

uint64_t channel_waited_ns(const struct channel *c, uint64_t now_ns)
{
    uint64_t since_ns = channel_loop_polled_ns(c->channels);

    if (c->waiter.since_ns && c->waiter.since_ns < since_ns)
        since_ns = c->waiter.since_ns;
    return now_ns > since_ns ? now_ns - since_ns : 0;
}

static void use_turn(struct channel *c, size_t n_bytes)
{
    channel_turn_use(&c->turn, c->channels, n_bytes, n_bytes);
}

void channel_use_turn(struct channel *c, size_t n_bytes)
{
    channel_turn_use(&c->turn, c->channels, n_bytes, 0);
}

void channel_use_unpacked(struct channel *c, size_t n_bytes)
{
    channel_use_unpacked_slice(c, n_bytes);
    if (c->turn.is_low)
        use_turn(c, (CHANNEL_LOW_UNPACK_COST - 1) * n_bytes);
}

void channel_use_unpacked_slice(struct channel *c, size_t n_bytes)
{
    use_turn(c, n_bytes);
    c->channels->unpacked_bytes += n_bytes;
}

/* The frame itself is counted when it has been delivered. */
void channel_use_work(struct channel *c, size_t n_bytes)
{
    if (n_bytes > c->in.next_bytes)
        channel_turn_use(&c->turn, c->channels, 0, n_bytes - c->in.next_bytes);
}

static bool waits(const struct channel *c)
{
    return c->waiter.go != NULL;
}

/* --- frames --- */

/* Hands the frame at the front, which is whole, to the owner. */
static int deliver_one(struct channel *c, const struct frame_header *header)
{
    const uint8_t *frame = bytes_front(&c->in.buf), *head = frame + FRAME_HEADER_BYTES;
    int status = frame_crc_check(&c->in.crc, header, frame, c->in.next_bytes);

    if (status)
        return status;
    status = c->events->frame(c->owner, header, head, head + header->head_bytes);
    c->waiter.since_ns = 0;
    use_turn(c, c->in.next_bytes + FRAME_COST(header->head_bytes));
    if (!c->held)
        drop_frame(&c->in);
    return status;
}

/* Shows the owner as much of the frame at the front as has come. */
static void show(struct channel *c, const struct frame_header *header)
{
    size_t before = FRAME_HEADER_BYTES + (size_t)header->head_bytes,
           len = bytes_len(&c->in.buf);
    const uint8_t *frame = bytes_front(&c->in.buf);

    if (len > before + header->body_bytes) /* some of the sum behind it has come */
        len = before + header->body_bytes;
    if (c->events->part && c->in.next_bytes && len > before)
        c->events->part(c->owner, header, frame + FRAME_HEADER_BYTES, frame + before,
                        len - before);
}

/* What becomes of the buffer when no more can be delivered now. `header`: of the frame at the front, if it is there. */
static void recycle(struct channel *c, const struct frame_header *header)
{
    struct channel_in *in = &c->in;
    int status = 0;

    if (c->held)
        return;
    if (c->state == CHANNEL_CLOSING || !bytes_len(&in->buf)) {
        clear_in(in);
    } else if (c->state == CHANNEL_OPEN && !waits(c)) {
        if (in->next_bytes) /* while it is warm */
            status =
                frame_crc_check(&in->crc, header, bytes_front(&in->buf), bytes_len(&in->buf));
        if (!status)
            status = fit(in);
        if (status)
            end(c, status);
        else
            show(c, header);
    }
}

/* Looks for a frame at the front. *ret_header is set if its header is there. Refuses a wrong one as soon as the bytes
 * that show it have come; that they are an HTTP answer is for the owner to report. */
static int scan_frame(struct channel *c, struct frame_header *ret_header)
{
    const size_t len = bytes_len(&c->in.buf);
    int status;

    c->in.next_bytes = 0;
    if (len && !frame_magic_fits(bytes_front(&c->in.buf), len)) {
        c->hears_http = memcmp(bytes_front(&c->in.buf), "HTTP", MIN(len, 4)) == 0;
        return PS_EPROTO;
    }
    if (len < FRAME_HEADER_BYTES)
        return 0;
    status = frame_decode(bytes_front(&c->in.buf), c->frame_max_bytes, ret_header);
    if (!status)
        c->in.next_bytes = frame_bytes(ret_header);
    return status;
}

static void wait_for_turn(struct channel *c)
{
    if (c->turn.is_low)
        channel_loop_enqueue_low(c->channels, &c->waiter, on_turn);
    else
        channel_loop_enqueue(c->channels, &c->waiter, on_turn);
}

/* Hands whole frames in c->in to the owner, as long as it may. */
static void deliver(struct channel *c)
{
    struct frame_header header = { 0 };
    int status;

    c->delivering = true;
    while (c->state == CHANNEL_OPEN && !c->held) {
        status = scan_frame(c, &header);
        if (!status && (!c->in.next_bytes || bytes_len(&c->in.buf) < c->in.next_bytes))
            break;
        /* Those that have begun a turn may have read; what the frames cost shows only now. */
        if (!status && !channel_turn_takes_frame(&c->turn, c->channels, header.flags)) {
            c->n_turns_ended++;
            wait_for_turn(c);
            break;
        }
        if (!status)
            status = deliver_one(c, &header);
        if (status)
            end(c, status);
    }
    c->delivering = false;
    status = write_out(c);
    if (status)
        end_broken(c, status);
    recycle(c, &header);
    count_held(c);
}

/* It may also read in this turn: nobody who has waited for less goes before it. */
static void on_turn(struct channel_loop_waiter *w)
{
    struct channel *c = CONTAINER_OF(w, struct channel, waiter);

    channel_turn_begin(&c->turn, c->channels);
    deliver(c);
    if (c->tls)
        open_sealed(c);
}

/* What kept us from delivering is over: first the frames that have come, then new ones. */
static void go_on(struct channel *c)
{
    int status;

    if (bytes_len(&c->in.buf) || (c->tls && tls_session_has_more(c->tls)))
        wait_for_turn(c);
    else
        clear_in(&c->in);
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

struct bytes *channel_frame_buffer(struct channel *c)
{
    assert(c->delivering && !c->held);
    return c->in.next_bytes > EXACT_BYTES && bytes_len(&c->in.buf) == c->in.next_bytes
               ? &c->in.buf
               : NULL;
}

void channel_release(struct channel *c)
{
    assert(c->held);
    if (c->state == CHANNEL_CLOSING && !c->delivering)
        return;
    c->held = false;
    if (c->delivering)
        return;
    drop_frame(&c->in);
    if (c->state == CHANNEL_OPEN)
        go_on(c);
}

bool channel_mid_frame(const struct channel *c)
{
    return c->state == CHANNEL_OPEN && !c->held && !c->delivering && !waits(c) &&
           bytes_len(&c->in.buf) > 0;
}

/* --- in --- */

static bool may_read(struct channel *c)
{
    return c->state == CHANNEL_OPEN && !c->held && !waits(c) &&
           channel_turn_goes_on(&c->turn, c->channels);
}

/* Where bytes go that the socket has. */
static int reserve_any(struct channel *c, uint8_t **ret_space, size_t *ret_bytes)
{
    int status;

    if (!c->tls)
        return reserve_read(&c->in, ret_space, ret_bytes);
    status = channel_loop_acquire(c->channels, SEALED_READ_BYTES, &c->sealed);
    *ret_space = c->sealed.bytes;
    *ret_bytes = SEALED_READ_BYTES;
    return status;
}

static void on_alloc(uv_handle_t *handle, size_t suggested_bytes, uv_buf_t *ret_space)
{
    struct channel *c = handle->data;
    size_t n_bytes;
    uint8_t *bytes;

    (void)suggested_bytes;
    if (c->channels->n_low)
        channel_loop_note_read(c->channels);
    c->declined = c->state != CHANNEL_CLOSING && !may_read(c);
    c->in.is_cautious = c->turn.is_low;
    *ret_space = (uv_buf_t){ 0 }; /* UV_ENOBUFS follows */
    if (c->state == CHANNEL_CLOSING) {
        *ret_space = (uv_buf_t){ (char *)c->channels->trash, sizeof c->channels->trash };
    } else if (!c->declined && reserve_any(c, &bytes, &n_bytes) == 0) {
        if (c->turn.is_low)
            n_bytes = MIN(n_bytes, LOW_READ_BYTES);
        *ret_space = (uv_buf_t){ (char *)bytes, n_bytes };
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
        if (!channel_turn_has_begun(&c->turn, c->channels))
            wait_for_turn(c);
    }
}

/* A frame has arrived in part, and there is nothing more to read. The peer's kernel may hold back the rest until the
 * bytes so far are acknowledged, and this kernel delays the acknowledgement to send it with a reply, which needs the
 * rest. So the acknowledgement is sent now. Streams other than TCP's ignore this. */
static void acknowledge(const struct channel *c)
{
    const int at_once = 1;
    uv_os_fd_t fd;

    if (uv_fileno((const uv_handle_t *)c->stream, &fd) == 0)
        (void)!setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &at_once, sizeof at_once);
}

/* n_bytes more are there. `is_all`: the socket has no others for now. */
static void take(struct channel *c, size_t n_bytes, bool is_all)
{
    bytes_commit(&c->in.buf, n_bytes);
    deliver(c);
    if (!channel_mid_frame(c))
        return;
    channel_turn_use(&c->turn, c->channels, n_bytes,
                     c->turn.is_low ? n_bytes : n_bytes / READ_COST_SHARE);
    if (is_all)
        acknowledge(c);
}

/* Opens records until the space for the next frames is full, or there are no more. */
static int open_some(struct channel *c)
{
    size_t n_bytes, n_done = 0, n_now;
    uint8_t *space;
    int status = reserve_read(&c->in, &space, &n_bytes);

    while (!status && n_done < n_bytes) {
        status = tls_session_read(c->tls, space + n_done, n_bytes - n_done, &n_now);
        if (!status)
            n_done += n_now;
    }
    if (n_done)
        take(c, n_done, status == -EAGAIN);
    else if (!bytes_len(&c->in.buf))
        clear_in(&c->in);
    return status;
}

/* As many records as may be delivered. The others wait for what ends the pause. */
static void open_sealed(struct channel *c)
{
    int status = 0;

    while (!status && may_read(c) && tls_session_has_more(c->tls))
        status = open_some(c);
    if (c->sealed.cap_bytes && !tls_session_left(c->tls))
        channel_loop_release(c->channels, &c->sealed);
    if (!c->finished && (!status || status == -EAGAIN))
        status = count_seals(c, channel_out_write_reply(&c->out));
    if (status)
        end_broken(c, status);
    else if (c->state == CHANNEL_OPEN && !c->held && !waits(c) && tls_session_has_more(c->tls))
        wait_for_turn(c);
    count_held(c);
}

static void on_read(uv_stream_t *stream, ssize_t n_bytes, const uv_buf_t *space)
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
    if (c->tls) {
        bytes_commit(&c->sealed, (size_t)n_bytes);
        tls_session_feed(c->tls, bytes_front(&c->sealed), bytes_len(&c->sealed));
        open_sealed(c);
    } else {
        take(c, (size_t)n_bytes, (size_t)n_bytes < space->len);
    }
}

void channel_set_tls(struct channel *c, struct tls_session *tls)
{
    c->tls = c->out.tls = tls;
}

int channel_start(struct channel *c, uv_stream_t *stream, struct channel_loop *channels,
                  uint32_t frame_max_bytes, const struct channel_events *events, void *owner)
{
    int status;

    *c = (struct channel){
        .stream = stream,
        .channels = channels,
        .events = events,
        .owner = owner,
        .frame_max_bytes = frame_max_bytes,
        .in = { .channels = channels },
        .out = { .stream = stream, .channels = channels, .written = on_written }
    };
    stream->data = c;
    status = uv_read_start(stream, on_alloc, on_read);
    if (status)
        stream->data = NULL;
    return status;
}

/* --- out --- */

static void drain(struct channel *c)
{
    if (c->state != CHANNEL_CONGESTED || c->out.held_bytes >= LOW_WATER_BYTES)
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
    count_held(c);
    if (c->out.chunks.under_way && c->state != CHANNEL_CLOSING && c->events->written)
        c->events->written(c->owner);
}

/* After something was to be written. */
static int sent(struct channel *c, int status)
{
    if (status)
        end_broken(c, status);
    else if (c->state == CHANNEL_OPEN && !c->reads_always &&
             c->out.held_bytes > HIGH_WATER_BYTES)
        c->state = CHANNEL_CONGESTED;
    if (!c->delivering) /* else when that ends */
        count_held(c);
    return status;
}

/* Not 0: the channel is CLOSING, and the bytes are gone. */
static int count_sent(struct channel *c, struct bytes *bytes)
{
    if (c->state == CHANNEL_CLOSING) {
        channel_loop_release(c->channels, bytes);
        return UV_ECANCELED;
    }
    c->bytes_out += bytes_len(bytes);
    if (c->delivering)
        use_turn(c, bytes_len(bytes));
    return 0;
}

int channel_send(struct channel *c, struct bytes *frame)
{
    int status;

    assert(bytes_len(frame) >= FRAME_HEADER_BYTES);
    status = count_sent(c, frame);
    if (status)
        return status;
    if (c->out.chunks.under_way) {
        status = channel_out_add_waiting(&c->out, frame);
        channel_loop_release(c->channels, frame);
    } else if (channel_out_add(&c->out, frame) || (!c->delivering && !c->corked)) {
        status = write_out(c);
    }
    return sent(c, status);
}

void channel_cork(struct channel *c)
{
    c->corked = true;
}

void channel_uncork(struct channel *c)
{
    const bool writes = c->corked && c->state != CHANNEL_CLOSING && !c->delivering;

    c->corked = false;
    if (writes)
        (void)sent(c, write_out(c)); /* if it fails, events.closed follows */
}

int channel_send_chunk(struct channel *c, struct bytes *chunk)
{
    int status = count_sent(c, chunk);

    if (status)
        return status;
    c->out.chunks.under_way = true;
    (void)channel_out_add(&c->out, chunk);
    return sent(c, write_out(c));
}

int channel_send_last_chunk(struct channel *c, struct bytes *chunk)
{
    int status = count_sent(c, chunk);

    if (status)
        return status;
    (void)channel_out_add(&c->out, chunk);
    status = sent(c, count_seals(c, channel_out_end_chunks(&c->out)));
    if (!status)
        drain(c);
    return status;
}
