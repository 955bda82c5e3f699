#include "proto/channel_in.h"

#include <string.h>

#include "common/status.h"

#define READ_BYTES (256u << 10)     /* of a first read: many small frames */
#define READ_MAX_BYTES (512u << 10) /* of one into a large frame */
#define EXACT_BYTES (32u << 10)     /* larger frames are read one by one, so that few move */
#define SLACK_BYTES (4u << 10)      /* for a frame a little larger than the last */
#define GROW_MIN_BYTES (16u << 10)  /* for the beginning of a new peer's first frame */

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

int channel_in_look(struct channel_in *in, uint32_t max_bytes, struct frame_header *ret_header)
{
    size_t len = buf_len(&in->buf);
    int status;

    in->next_bytes = 0;
    if (len && !frame_magic_fits(buf_front(&in->buf), len))
        return PS_EPROTO;
    if (len < FRAME_HEADER_BYTES)
        return 0;
    status = frame_decode(buf_front(&in->buf), max_bytes, ret_header);
    if (!status)
        in->next_bytes = frame_bytes(ret_header);
    return status;
}

bool channel_in_is_whole(const struct channel_in *in)
{
    return in->next_bytes && buf_len(&in->buf) >= in->next_bytes;
}

int channel_in_check(struct channel_in *in, const struct frame_header *header)
{
    return frame_crc_check(&in->crc, header, buf_front(&in->buf), in->next_bytes);
}

void channel_in_drop(struct channel_in *in)
{
    uint32_t n_bytes = (uint32_t)in->next_bytes;

    in->last_bytes[1] = in->last_bytes[0];
    in->last_bytes[0] = n_bytes;
    if (in->most_bytes < n_bytes)
        in->most_bytes = n_bytes;
    buf_consume(&in->buf, n_bytes);
    in->next_bytes = 0;
    in->crc = (struct frame_crc){ 0 };
}

void channel_in_clear(struct channel_in *in)
{
    channel_hub_give(in->hub, &in->buf);
    in->next_bytes = 0;
    in->crc = (struct frame_crc){ 0 };
}

/* Room for the frame at the front, of which something has come, but for no more than the peer
 * has shown that it fills. */
static size_t wanted_bytes(const struct channel_in *in)
{
    size_t shown = larger(2 * buf_len(&in->buf), larger(in->most_bytes, GROW_MIN_BYTES));

    return in->next_bytes ? smaller(in->next_bytes, shown) : FRAME_HEADER_BYTES;
}

/* Moves the beginning of a frame to the front of a buffer for cap_bytes. */
static int move(struct channel_in *in, size_t cap_bytes)
{
    size_t len = buf_len(&in->buf);
    struct buf b;
    int status = channel_hub_take(in->hub, cap_bytes, &b);

    if (status)
        return status;
    memcpy(b.bytes, buf_front(&in->buf), len);
    buf_commit(&b, len);
    channel_hub_give(in->hub, &in->buf);
    in->buf = b;
    return 0;
}

/* Moves it if its buffer is too small for it, or far too large. */
static int fit(struct channel_in *in)
{
    size_t want = wanted_bytes(in);

    if (in->buf.cap_bytes - in->buf.start >= want &&
        in->buf.cap_bytes <= 4 * want + GROW_MIN_BYTES)
        return 0;
    return move(in, want);
}

int channel_in_settle(struct channel_in *in, const struct frame_header *header)
{
    int status = 0;

    if (in->next_bytes) /* while it is warm */
        status = frame_crc_check(&in->crc, header, buf_front(&in->buf), buf_len(&in->buf));
    return status ? status : fit(in);
}

/* Between frames. How much is asked for is a guess: where large frames follow each other, the
 * length of one, so that the next begins where the next read begins. */
static int room_for_next(struct channel_in *in, size_t *ret_bytes)
{
    size_t guess = larger(in->last_bytes[0], in->last_bytes[1]);
    size_t cap = larger(guess, smaller(in->most_bytes, READ_MAX_BYTES)) + SLACK_BYTES;

    *ret_bytes = guess > EXACT_BYTES ? smaller(guess, READ_MAX_BYTES) : READ_BYTES;
    return channel_hub_take(in->hub, larger(cap, READ_BYTES), &in->buf);
}

/* For the rest of an unfinished frame. A small one goes back to where many are read at once: to
 * copy a few KiB costs less than a read of its own. */
static int room_for_rest(struct channel_in *in, size_t *ret_bytes)
{
    bool is_large = in->next_bytes > EXACT_BYTES;
    int status = is_large ? fit(in) : move(in, READ_BYTES);

    *ret_bytes = in->buf.cap_bytes - in->buf.end;
    if (is_large)
        *ret_bytes =
            smaller(smaller(in->next_bytes - buf_len(&in->buf), *ret_bytes), READ_MAX_BYTES);
    return status;
}

int channel_in_room(struct channel_in *in, uint8_t **ret_room, size_t *ret_bytes)
{
    size_t n_bytes;
    int status = buf_len(&in->buf) ? room_for_rest(in, &n_bytes) : room_for_next(in, &n_bytes);

    if (status)
        return status;
    *ret_room = in->buf.bytes + in->buf.end;
    *ret_bytes = n_bytes;
    return 0;
}

void channel_in_commit(struct channel_in *in, size_t n_bytes)
{
    buf_commit(&in->buf, n_bytes);
}
