#include "proto/channel_out.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

#define SMALL_BYTES 1024u        /* copying costs less than an entry of its own */
#define SMALL_BUFFER_BYTES 4096u /* the loop has none smaller */
#define LARGE_FACTOR \
    3u /* the loop's buffers are up to 2.2 times as large as they were asked for */
#define POOLED_MAX 64u
#define SEAL_BYTES \
    (128u << 10) /* sealed at a time: they are still in the cache when the socket takes them */
#define WAITING_MIN 4u

struct channel_out_batch {
    struct channel_loop_pooled pooled; /* first: the loop frees it as that */
    uv_write_t uv;
    struct channel_out *out; /* borrowed */
    uint32_t n;
    size_t held_bytes;                       /* its own, and those of the buffers */
    struct bytes frames[CHANNEL_OUT_FRAMES]; /* owned */
};

/* --- memory --- */

static int acquire_exact(struct channel_loop *channels, size_t n_bytes, struct bytes *ret)
{
    if (n_bytes >= SMALL_BUFFER_BYTES)
        return channel_loop_acquire(channels, n_bytes, ret);
    *ret = (struct bytes){ .bytes = memory_try_realloc(NULL, n_bytes), .cap_bytes = n_bytes };
    return ret->bytes ? 0 : -ENOMEM;
}

/* A frame that stays. Without memory it stays where it is. */
static void shrink(struct channel_out *o, struct bytes *frame)
{
    size_t n_bytes = bytes_len(frame);
    struct bytes exact;

    if (frame->cap_bytes <= LARGE_FACTOR * frame->end ||
        acquire_exact(o->channels, n_bytes, &exact) != 0)
        return;
    memcpy(exact.bytes, bytes_front(frame), n_bytes);
    bytes_commit(&exact, n_bytes);
    channel_loop_release(o->channels, frame);
    *frame = exact;
}

static void hold(struct channel_out *o, struct channel_out_batch *batch, size_t n_bytes)
{
    batch->held_bytes += n_bytes;
    o->held_bytes += n_bytes;
}

static void unhold(struct channel_out *o, struct channel_out_batch *batch, size_t n_bytes)
{
    batch->held_bytes -= n_bytes;
    o->held_bytes -= n_bytes;
}

/* --- a batch --- */

/* As a loop's channels mostly need no more at a time, those that are written are kept at hand. NULL without memory. */
static struct channel_out_batch *make_batch(struct channel_out *o)
{
    struct channel_loop_pooled *pooled = o->channels->pooled;
    struct channel_out_batch *batch;

    if (pooled) {
        o->channels->pooled = pooled->next;
        o->channels->n_pooled--;
        batch = CONTAINER_OF(pooled, struct channel_out_batch, pooled);
    } else {
        batch = memory_try_alloc(sizeof *batch);
        if (!batch)
            return NULL;
    }
    batch->out = o;
    batch->n = 0;
    batch->held_bytes = 0;
    hold(o, batch, sizeof *batch);
    return batch;
}

static void free_batch(struct channel_out *o, struct channel_out_batch *batch)
{
    struct channel_loop *channels = o->channels;

    unhold(o, batch, batch->held_bytes);
    for (uint32_t i = 0; i < batch->n; i++)
        channel_loop_release(channels, &batch->frames[i]);
    if (channels->n_pooled == POOLED_MAX) {
        free(batch);
        return;
    }
    batch->pooled.next = channels->pooled;
    channels->pooled = &batch->pooled;
    channels->n_pooled++;
}

static void on_batch_written(uv_write_t *uv, int status)
{
    struct channel_out_batch *batch = CONTAINER_OF(uv, struct channel_out_batch, uv);
    struct channel_out *o = batch->out;

    free_batch(o, batch);
    o->n_writes--;
    o->written(o, status);
}

/* Copies a small frame behind the last one. */
static bool join(struct channel_out_batch *batch, const struct bytes *frame)
{
    struct bytes *last = &batch->frames[batch->n - 1];
    size_t n_bytes = bytes_len(frame);

    if (n_bytes > SMALL_BYTES || last->cap_bytes - last->end < n_bytes)
        return false;
    memcpy(last->bytes + last->end, bytes_front(frame), n_bytes);
    bytes_commit(last, n_bytes);
    return true;
}

bool channel_out_add(struct channel_out *o, struct bytes *frame)
{
    struct channel_out_batch *batch = o->batch;

    if (!batch && !o->has_lost)
        o->batch = batch = make_batch(o);
    o->has_lost = !batch;
    if (!batch) {
        channel_loop_release(o->channels, frame);
        return true;
    }
    o->batch_bytes += bytes_len(frame);
    if (batch->n && join(batch, frame)) {
        channel_loop_release(o->channels, frame);
    } else {
        hold(o, batch, frame->cap_bytes);
        batch->frames[batch->n++] = *frame;
        *frame = (struct bytes){ 0 };
    }
    return batch->n == CHANNEL_OUT_FRAMES || o->batch_bytes > CHANNEL_OUT_BYTES ||
           batch->held_bytes > CHANNEL_OUT_HELD_BYTES;
}

/* The n_skip first bytes are written: what they stood in goes, and the rest takes no more memory than it needs. */
static void keep_rest(struct channel_out *o, struct channel_out_batch *batch, size_t n_skip)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < batch->n; i++) {
        struct bytes frame = batch->frames[i];
        size_t len = bytes_len(&frame);

        unhold(o, batch, frame.cap_bytes);
        if (n_skip >= len) {
            n_skip -= len;
            channel_loop_release(o->channels, &frame);
            continue;
        }
        frame.start += n_skip;
        n_skip = 0;
        shrink(o, &frame);
        hold(o, batch, frame.cap_bytes);
        batch->frames[n++] = frame;
    }
    batch->n = n;
}

static void list_frames(const struct channel_out_batch *batch, uv_buf_t *ret)
{
    for (uint32_t i = 0; i < batch->n; i++)
        ret[i] = (uv_buf_t){ .base = (char *)batch->frames[i].bytes + batch->frames[i].start,
                             .len = bytes_len(&batch->frames[i]) };
}

/* The rest is for libuv to write. */
static int write_rest(struct channel_out *o, struct channel_out_batch *batch, size_t n_skip)
{
    uv_buf_t bytes[CHANNEL_OUT_FRAMES];
    int status;

    keep_rest(o, batch, n_skip);
    list_frames(batch, bytes);
    status = uv_write(&batch->uv, o->stream, bytes, batch->n, on_batch_written);
    if (status)
        free_batch(o, batch);
    else
        o->n_writes++;
    return status;
}

/* --- TLS --- */

/* Appends n_bytes of the batch's frames, behind the first n_skip, to *sealed. */
static int seal_frames(struct channel_out *o, const struct channel_out_batch *batch,
                       size_t n_skip, size_t n_bytes, struct bytes *sealed)
{
    int status = 0;

    for (uint32_t i = 0; i < batch->n && n_bytes && !status; i++) {
        const struct bytes *frame = &batch->frames[i];
        size_t len = bytes_len(frame), skip = n_skip < len ? n_skip : len;

        n_skip -= skip;
        len = len - skip < n_bytes ? len - skip : n_bytes;
        n_bytes -= len;
        status = tls_session_write(o->tls, bytes_front(frame) + skip, len, sealed);
    }
    return status;
}

/* The same to a new buffer, behind what the session has to say by itself. */
static int seal(struct channel_out *o, const struct channel_out_batch *batch, size_t n_skip,
                size_t n_bytes, struct bytes *ret)
{
    struct bytes *reply = tls_session_reply(o->tls);
    const size_t reply_bytes = bytes_len(reply);
    /* A record a frame: each has its overhead. */
    size_t space = tls_session_sealed_bytes(n_bytes) + batch->n * tls_session_sealed_bytes(0);
    int status = channel_loop_acquire(o->channels, space + reply_bytes, ret);

    if (status)
        return status;
    memcpy(ret->bytes + ret->end, bytes_front(reply), reply_bytes);
    bytes_commit(ret, reply_bytes);
    bytes_consume(reply, reply_bytes);
    status = seal_frames(o, batch, n_skip, n_bytes, ret);
    if (status)
        channel_loop_release(o->channels, ret);
    else
        o->seal_bytes += bytes_len(ret) - n_bytes;
    return status;
}

/* The sealed bytes take the frames' place in the batch. */
static void replace_frames(struct channel_out *o, struct channel_out_batch *batch,
                           struct bytes *sealed)
{
    for (uint32_t i = 0; i < batch->n; i++) {
        unhold(o, batch, batch->frames[i].cap_bytes);
        channel_loop_release(o->channels, &batch->frames[i]);
    }
    batch->n = 1;
    batch->frames[0] = *sealed;
    hold(o, batch, sealed->cap_bytes);
    *sealed = (struct bytes){ 0 };
}

/* What the socket takes of it, or a status. */
static int try_write(struct channel_out *o, const struct bytes *sealed)
{
    const uv_buf_t bytes = { .base = (char *)sealed->bytes + sealed->start,
                             .len = bytes_len(sealed) };
    int n = uv_try_write(o->stream, &bytes, 1);

    return n == UV_EAGAIN ? 0 : n;
}

/* A portion at a time, as long as the socket takes them; then all of the rest. */
static int write_sealed(struct channel_out *o, struct channel_out_batch *batch, size_t n_bytes)
{
    size_t n_done = 0;
    int status = 0;

    do {
        const size_t left = n_bytes - n_done;
        const size_t n_now = o->n_writes || left < SEAL_BYTES ? left : SEAL_BYTES;
        struct bytes sealed;
        int n;

        status = seal(o, batch, n_done, n_now, &sealed);
        n_done += n_now;
        n = status ? status : try_write(o, &sealed);
        if (n >= 0 && (size_t)n < bytes_len(&sealed)) {
            const size_t before = bytes_len(&sealed);

            status = seal_frames(o, batch, n_done, n_bytes - n_done, &sealed);
            o->seal_bytes += bytes_len(&sealed) - before - (status ? 0 : n_bytes - n_done);
            replace_frames(o, batch, &sealed);
            if (!status)
                return write_rest(o, batch, (size_t)n);
        }
        if (!status)
            channel_loop_release(o->channels, &sealed);
        if (n < 0)
            status = n;
    } while (!status && n_done < n_bytes);
    free_batch(o, batch);
    return status;
}

int channel_out_write_reply(struct channel_out *o)
{
    struct channel_out_batch *batch;

    if (!bytes_len(tls_session_reply(o->tls)))
        return 0;
    batch = make_batch(o);
    return batch ? write_sealed(o, batch, 0) : -ENOMEM;
}

/* --- the batch's end --- */

int channel_out_write(struct channel_out *o)
{
    struct channel_out_batch *batch = o->batch;
    size_t n_bytes = o->batch_bytes;
    uv_buf_t bytes[CHANNEL_OUT_FRAMES];
    int n;

    if (!batch)
        return o->has_lost ? -ENOMEM : 0;
    o->batch = NULL;
    o->batch_bytes = 0;
    o->wrote_turn = o->channels->turn;
    if (o->tls)
        return write_sealed(o, batch, n_bytes);
    list_frames(batch, bytes);
    /* What the socket takes at once needs no callback, and its buffers are still warm. */
    n = uv_try_write(o->stream, bytes, batch->n);
    if (n == UV_EAGAIN)
        n = 0;
    if (n >= 0 && (size_t)n < n_bytes)
        return write_rest(o, batch, (size_t)n);
    free_batch(o, batch);
    return n < 0 ? n : 0;
}

/* --- frames that wait for the last chunk --- */

int channel_out_add_waiting(struct channel_out *o, struct bytes *frame)
{
    size_t cap = o->chunks.cap ? 2 * o->chunks.cap : WAITING_MIN;
    struct bytes *frames = o->chunks.frames;

    if (o->chunks.n_frames == o->chunks.cap) {
        frames = memory_try_alloc(cap * sizeof *frames);
        if (!frames)
            return -ENOMEM;
        if (o->chunks.n_frames)
            memcpy(frames, o->chunks.frames, o->chunks.n_frames * sizeof *frames);
        free(o->chunks.frames);
        o->held_bytes += (cap - o->chunks.cap) * sizeof *frames;
        o->chunks.frames = frames;
        o->chunks.cap = cap;
    }
    shrink(o, frame);
    o->chunks.n_bytes += bytes_len(frame);
    o->held_bytes += frame->cap_bytes;
    frames[o->chunks.n_frames++] = *frame;
    *frame = (struct bytes){ 0 };
    return 0;
}

/* Those from `from` on are still here. */
static void drop_waiting(struct channel_out *o, size_t from)
{
    for (size_t i = from; i < o->chunks.n_frames; i++) {
        o->held_bytes -= o->chunks.frames[i].cap_bytes;
        channel_loop_release(o->channels, &o->chunks.frames[i]);
    }
    o->held_bytes -= o->chunks.cap * sizeof *o->chunks.frames;
    free(o->chunks.frames);
    memset(&o->chunks, 0, sizeof o->chunks);
}

int channel_out_end_chunks(struct channel_out *o)
{
    int status = 0;
    size_t i;

    for (i = 0; i < o->chunks.n_frames && !status; i++) {
        o->held_bytes -= o->chunks.frames[i].cap_bytes; /* the batch counts it */
        if (channel_out_add(o, &o->chunks.frames[i]))
            status = channel_out_write(o);
    }
    drop_waiting(o, i);
    return status ? status : channel_out_write(o);
}

bool channel_out_is_fresh(const struct channel_out *o)
{
    return o->n_writes || (o->wrote_turn && o->channels->turn - o->wrote_turn <= 1);
}

void channel_out_drop(struct channel_out *o)
{
    if (o->batch)
        free_batch(o, o->batch);
    o->batch = NULL;
    o->batch_bytes = 0;
    drop_waiting(o, 0);
}
