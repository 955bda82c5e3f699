#include "proto/channel_out.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

#define SMALL_BYTES 1024u /* copying costs less than an entry of its own */
#define SPARES_MAX 64u
#define WAITING_MIN 4u

struct channel_out_batch {
    struct channel_hub_spare spare; /* first: the hub frees it as that */
    uv_write_t uv;
    struct channel_out *out; /* borrowed */
    uint32_t n;
    size_t n_bytes;
    struct buf frames[CHANNEL_OUT_FRAMES]; /* owned */
};

/* As a loop's channels mostly need no more at a time, those that are written are kept at hand. */
static struct channel_out_batch *make_batch(struct channel_out *o)
{
    struct channel_hub_spare *spare = o->hub->spare;
    struct channel_out_batch *batch;

    if (spare) {
        o->hub->spare = spare->next;
        o->hub->n_spares--;
        batch = CONTAINER_OF(spare, struct channel_out_batch, spare);
    } else {
        batch = mem_alloc(sizeof *batch);
    }
    batch->out = o;
    batch->n = 0;
    batch->n_bytes = 0;
    return batch;
}

static void free_batch(struct channel_hub *hub, struct channel_out_batch *batch)
{
    for (uint32_t i = 0; i < batch->n; i++)
        channel_hub_give(hub, &batch->frames[i]);
    if (hub->n_spares == SPARES_MAX) {
        free(batch);
        return;
    }
    batch->spare.next = hub->spare;
    hub->spare = &batch->spare;
    hub->n_spares++;
}

static void on_written(uv_write_t *uv, int status)
{
    struct channel_out_batch *batch = CONTAINER_OF(uv, struct channel_out_batch, uv);
    struct channel_out *o = batch->out;

    free_batch(o->hub, batch);
    o->n_writes--;
    o->written(o, status);
}

/* Copies a small frame behind the last one. */
static bool join(struct channel_out_batch *batch, const struct buf *frame)
{
    struct buf *last = &batch->frames[batch->n - 1];
    size_t n_bytes = buf_len(frame);

    if (n_bytes > SMALL_BYTES || last->cap_bytes - last->end < n_bytes)
        return false;
    memcpy(last->bytes + last->end, buf_front(frame), n_bytes);
    buf_commit(last, n_bytes);
    return true;
}

bool channel_out_add(struct channel_out *o, struct buf *frame)
{
    struct channel_out_batch *batch = o->batch ? o->batch : make_batch(o);

    o->batch = batch;
    batch->n_bytes += buf_len(frame);
    if (batch->n && join(batch, frame)) {
        channel_hub_give(o->hub, frame);
    } else {
        batch->frames[batch->n++] = *frame;
        *frame = (struct buf){ 0 };
    }
    return batch->n == CHANNEL_OUT_FRAMES || batch->n_bytes > CHANNEL_OUT_BYTES;
}

/* The n_skip first bytes are written; the rest is for libuv to write. */
static int write_rest(struct channel_out *o, struct channel_out_batch *batch, uv_buf_t *bytes,
                      size_t n_skip)
{
    uint32_t first = 0;
    int status;

    for (; n_skip >= bytes[first].len; first++)
        n_skip -= bytes[first].len;
    bytes[first].base += n_skip;
    bytes[first].len -= n_skip;
    status = uv_write(&batch->uv, o->stream, bytes + first, batch->n - first, on_written);
    if (status)
        free_batch(o->hub, batch);
    else
        o->n_writes++;
    return status;
}

int channel_out_flush(struct channel_out *o)
{
    struct channel_out_batch *batch = o->batch;
    uv_buf_t bytes[CHANNEL_OUT_FRAMES];
    int n;

    if (!batch)
        return 0;
    o->batch = NULL;
    o->wrote_turn = o->hub->turn;
    for (uint32_t i = 0; i < batch->n; i++)
        bytes[i] = (uv_buf_t){ .base = (char *)batch->frames[i].bytes + batch->frames[i].start,
                               .len = buf_len(&batch->frames[i]) };
    /* What the socket takes at once needs no callback, and its buffers are still warm. */
    n = uv_try_write(o->stream, bytes, batch->n);
    if (n == UV_EAGAIN)
        n = 0;
    if (n >= 0 && (size_t)n < batch->n_bytes)
        return write_rest(o, batch, bytes, (size_t)n);
    free_batch(o->hub, batch);
    return n < 0 ? n : 0;
}

int channel_out_wait(struct channel_out *o, struct buf *frame)
{
    size_t cap = o->parts.cap ? 2 * o->parts.cap : WAITING_MIN;
    struct buf *frames = o->parts.frames;

    if (o->parts.n_frames == o->parts.cap) {
        frames = mem_try_alloc(cap * sizeof *frames);
        if (!frames)
            return -ENOMEM;
        if (o->parts.n_frames)
            memcpy(frames, o->parts.frames, o->parts.n_frames * sizeof *frames);
        free(o->parts.frames);
        o->parts.frames = frames;
        o->parts.cap = cap;
    }
    o->parts.n_bytes += buf_len(frame);
    frames[o->parts.n_frames++] = *frame;
    *frame = (struct buf){ 0 };
    return 0;
}

static void drop_waiting(struct channel_out *o, size_t from)
{
    for (size_t i = from; i < o->parts.n_frames; i++)
        channel_hub_give(o->hub, &o->parts.frames[i]);
    free(o->parts.frames);
    memset(&o->parts, 0, sizeof o->parts);
}

int channel_out_end_parts(struct channel_out *o)
{
    int status = 0;
    size_t i;

    for (i = 0; i < o->parts.n_frames && !status; i++)
        if (channel_out_add(o, &o->parts.frames[i]))
            status = channel_out_flush(o);
    drop_waiting(o, i);
    return status ? status : channel_out_flush(o);
}

size_t channel_out_leaving_bytes(const struct channel_out *o)
{
    return uv_stream_get_write_queue_size(o->stream) + (o->batch ? o->batch->n_bytes : 0);
}

size_t channel_out_bytes(const struct channel_out *o)
{
    return channel_out_leaving_bytes(o) + o->parts.n_bytes;
}

bool channel_out_is_fresh(const struct channel_out *o)
{
    return o->n_writes || (o->wrote_turn && o->hub->turn - o->wrote_turn <= 1);
}

void channel_out_drop(struct channel_out *o)
{
    if (o->batch)
        free_batch(o->hub, o->batch);
    o->batch = NULL;
    drop_waiting(o, 0);
}
