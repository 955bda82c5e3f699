/*
 * A libuv stream that speaks whole frames.
 *
 * Both ends of the wire use it: a psd connection and a psworker link. It turns
 * bytes into frames and back, holds the peer to the protocol (header, limits, crc32c),
 * and stops reading while the peer does not read its replies.
 *
 *     state      reading  may send  leaves it by
 *     OPEN         yes      yes     channel_close(), any error, end of stream
 *     CONGESTED    no       yes     the queue draining below LOW_WATER_BYTES
 *     CLOSING      no       no      libuv's close callback, then events.closed
 *
 * While CLOSING lingers, what the peer still sends is read and dropped: a socket that is closed
 * with unread bytes is reset, and the reset may overtake the reply that the peer should see.
 *
 * Two ends that both stop reading would wait for each other for good; so an end that bounds
 * by itself what it sends (a client) sets reads_always, and is never CONGESTED.
 *
 * Every function here runs on the thread of the stream's loop.
 */
#ifndef PROTO_CHANNEL_H
#define PROTO_CHANNEL_H

#include <stdbool.h>
#include <uv.h>

#include "common/buf.h"
#include "proto/frame.h"

struct channel_events {
    /* One whole frame, crc checked; head and body are borrowed until the call
     * returns. A body with FRAME_ZSTD is still compressed. Anything but 0 closes the
     * channel for that reason. */
    int (*frame)(void *owner, const struct frame_header *header, const uint8_t *head,
                 const uint8_t *body);

    /* The last call ever made: the channel and its stream may now be freed.
     * `why` is 0 after channel_close(), else what went wrong. */
    void (*closed)(void *owner, int why);
};

#define CHANNEL_LINGER_MS 1000u

enum channel_state { CHANNEL_OPEN, CHANNEL_CONGESTED, CHANNEL_CLOSING };

struct channel {
    uv_stream_t *stream;                 /* borrowed; ours to close */
    const struct channel_events *events; /* borrowed, static */
    void *owner;                         /* borrowed, outlives the channel */
    struct buf in;                       /* owned: received, not yet delivered */
    uint32_t frame_max_bytes;
    enum channel_state state;
    int why;
    uint64_t bytes_in, bytes_out; /* on the wire, headers included */
    bool reads_always;            /* the owner's, after the start: never CONGESTED */

    struct channel_delivery *delivery; /* borrowed; while events.frame runs, else NULL */
    size_t n_writes;                   /* whose callback is to come */
    uv_timer_t linger;                 /* used by a close that waits */
    uv_shutdown_t shutdown;
    int n_handles_open; /* that a close waits for */
    bool lingering, finished;
};

/* Starts reading. `stream` is open and connected. On failure nothing has been
 * taken over and no event will follow. */
int channel_start(struct channel *c, uv_stream_t *stream, uint32_t frame_max_bytes,
                  const struct channel_events *events, void *owner) MUST_CHECK;

/* Sends *frame, one whole frame (see message_*), and leaves *frame empty: the bytes are
 * the channel's from here on, whatever is returned. */
int channel_send(struct channel *c, struct buf *frame);

/* Has an unfinished frame been in the buffer? (How a slow sender is told from an idle peer.)
 * Inside events.frame: has anything come behind the frame that is being delivered? */
bool channel_mid_frame(const struct channel *c);

/* Stops reading for good, without closing: what comes after a greeting is another thread's.
 * channel_detach() also gives the stream back: no event follows, *c may be dropped. Bytes that
 * came behind the last frame delivered are lost (channel_mid_frame() tells). Nothing has been
 * sent, or all of it is written. */
void channel_detach(struct channel *c);

/* Idempotent. events.closed follows, never from inside this call. Frames already handed to
 * channel_send() are given a chance to leave: the close waits for the write queue, at most
 * until the peer hangs up or CHANNEL_LINGER_MS. channel_fail() is the same with a reason. */
void channel_close(struct channel *c);
void channel_fail(struct channel *c, int why);

#endif
