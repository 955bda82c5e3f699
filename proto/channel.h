/*
 * A libuv stream that speaks whole frames.
 *
 * Both ends of the wire use it: a psd connection and a psworker link. It turns
 * bytes into frames and back, holds the peer to the protocol (header, limits, crc32c),
 * and stops reading while the peer does not read its replies.
 *
 *     state      delivers  may send  leaves it by
 *     OPEN         yes       yes     channel_close(), any error, end of stream
 *     CONGESTED    no        yes     the queue's memory draining below LOW_WATER_BYTES
 *     CLOSING      no        no      libuv's close callback, then events.closed
 *
 * While OPEN it also pauses as long as its owner holds a frame, and, once its turn is used up, until the loop's next
 * iteration (channel_loop.h). A channel of low priority has small turns, and waits once the channels of low priority
 * have used up their share of an iteration. A channel that does not deliver does not read either: the peer's bytes
 * wait in the socket.
 *
 * While CLOSING lingers, bytes that still arrive are read and dropped: a socket that is closed with unread bytes is
 * reset, and the reset may overtake the last reply.
 *
 * Two ends that both stop reading would wait for each other for ever. So an end that limits what it sends by itself (a
 * client) sets reads_always, and is never CONGESTED.
 *
 * Between frames a channel owns no buffer, and a header alone does not make it allocate one for the whole frame. So
 * idle and slow peers cost little memory.
 *
 * With TLS the peer's records are read to a buffer of their own, and opened to where frames are read to, as far as the
 * channel delivers; the rest waits there. What is sent is sealed as it is handed to libuv:
 *
 *     socket -> sealed -> tls_session_read() -> in -> frames
 *     frames -> out -> tls_session_write() -> socket
 *
 * Every function here runs on the thread of the stream's loop.
 */
#ifndef PROTO_CHANNEL_H
#define PROTO_CHANNEL_H

#include <stdbool.h>
#include <uv.h>

#include "common/tls.h"
#include "proto/channel_loop.h"
#include "proto/channel_out.h"
#include "proto/frame.h"

/* ---- receiving ---- */

/*
 * The way in of a channel: received bytes, and the frames that they make.
 *
 *     reserve_read -> (read) -> scan_frame: whole? -> its sums -> (delivered) -> drop_frame -> scan_frame
 *         -> no more that is whole: recycle
 *
 * A frame is read to where it is delivered from: many small ones with one read, a large one into
 * a buffer of its size. Only the beginning of an unfinished frame moves: a large one's to a buffer
 * where the rest has space; a small one's, from the large buffer of many, to one of its own size
 * while it waits, and back for the next read. Its crc is extended as it comes. A header alone
 * reserves nothing: there is space for twice what has come of the frame, or for as much as the largest
 * frame that the peer has sent. Of a peer of low priority 1 MiB of that counts. A buffer doubles when it is full, and
 * from 1 MiB on nothing is copied for that (channel_pool_grow()).
 */
struct channel_in {
    struct channel_loop *channels; /* borrowed */
    struct bytes buf;              /* owned, from the loop; none while nothing is unfinished */
    size_t next_bytes;             /* length of the frame at the front; 0: not known yet */
    struct frame_crc crc;          /* of that frame, as far as it has come */
    uint32_t last_bytes[2];        /* lengths of the two frames before it */
    uint32_t most_bytes;           /* the largest so far */
    bool is_cautious;              /* low_priority, at the last read */
};

/* ---- the channel ---- */

struct channel_events {
    /* One whole frame, crc checked; head and body are borrowed until the call returns, or until
     * channel_release(). A body with FRAME_ZSTD is still compressed. Anything but 0 closes the
     * channel for that reason. */
    int (*frame)(void *owner, const struct frame_header *header, const uint8_t *head,
                 const uint8_t *body);

    /* NULL, or the first n_bytes of the body of a frame that has still to come as a whole: so that
     * what would read them can do it while they are warm. Nothing is checked yet; the same again
     * follows, with more, or the frame, or the end. Not for an owner's other calls. */
    void (*part)(void *owner, const struct frame_header *header, const uint8_t *head,
                 const uint8_t *body, size_t n_bytes);

    /* NULL, or: some of a frame that is sent in chunks has left, and space may be there for more. */
    void (*written)(void *owner);

    /* The last call ever made: the channel and its stream may now be freed.
     * `why` is 0 after channel_close(), else what went wrong. A frame that was held is good
     * until this returns, or is the owner's by channel_take_held(). */
    void (*closed)(void *owner, int why);
};

#define CHANNEL_LINGER_MS 1000u

enum channel_state { CHANNEL_OPEN, CHANNEL_CONGESTED, CHANNEL_CLOSING };

struct channel {
    uv_stream_t *stream;                 /* borrowed; ours to close */
    struct channel_loop *channels;       /* borrowed */
    const struct channel_events *events; /* borrowed, static */
    void *owner;                         /* borrowed, outlives the channel */
    enum channel_state state;
    int why;
    uint32_t frame_max_bytes;
    bool reads_always;            /* the owner's, after the start: never CONGESTED */
    uint64_t bytes_in, bytes_out; /* on the wire, headers included */

    struct tls_session *tls; /* owned; NULL: plain */
    struct bytes
        sealed; /* owned, from the loop: records that are not opened yet; none while there are none */
    struct channel_in in;
    struct channel_out out;
    bool delivering, held;    /* the frame at the front, by events.frame or its owner */
    bool corked;              /* by its owner: frames wait for others */
    bool declined;            /* to take what the socket has, just now */
    bool hears_http;          /* what it ended of, as no frame begins so */
    bool stopped;             /* reading, at libuv */
    bool lingering, finished; /* see channel_close() */
    struct channel_loop_waiter waiter;
    struct channel_turn turn;
    size_t held_bytes, owner_bytes; /* as the loop counts them; of them, its owner's */
    uint64_t n_turns_ended;         /* by CHANNEL_TURN_BYTES, with more to come */
    uv_timer_t linger;
    uv_shutdown_t shutdown;
    int n_handles_open;   /* that a close waits for */
    struct bytes *closed; /* inside events.closed: the buffer of the held frame */
};

/* Starts reading. `stream` is open and connected, on the loop's own; the loop outlives the
 * channel. On failure nothing has been taken over and no event will follow. */
int channel_start(struct channel *c, uv_stream_t *stream, struct channel_loop *channels,
                  uint32_t frame_max_bytes, const struct channel_events *events, void *owner)
    MUST_CHECK;

/* Before the loop goes on: all is sealed with this session, whose handshake is done. Takes it. NULL is fine. */
void channel_set_tls(struct channel *c, struct tls_session *tls);

/* Sends *frame, one whole frame (see message_*), and leaves *frame empty: the bytes are
 * the channel's from here on, whatever is returned, and their buffer goes to the loop. Inside
 * events.frame it may wait until the delivery ends, for others to go with it. Not 0: the channel ends; -ENOMEM: for
 * want of memory. */
int channel_send(struct channel *c, struct bytes *frame);

/* Until channel_uncork() frames may wait for others to go with them, as inside events.frame. Nothing happens to a
 * channel that is CLOSING, nor by channel_uncork() to one that is not corked. */
void channel_cork(struct channel *c);
void channel_uncork(struct channel *c);

/* Sends a frame whose end is not made yet, in chunks. Each is written at once; other frames that are sent meanwhile
 * wait for the last one. The caller checks channel_leaving_bytes() first, and waits for events.written if it is much. A
 * frame that has begun to leave must end, or the channel. */
int channel_send_chunk(struct channel *c, struct bytes *chunk);
int channel_send_last_chunk(struct channel *c, struct bytes *chunk);

/* Of what could be written now: bytes that the socket has not taken yet. */
size_t channel_leaving_bytes(const struct channel *c);

/* Inside events.frame: its frame stays where it is, and no other is delivered, until
 * channel_release(). That the peer has hung up is noticed only then, or by a write. */
void channel_hold(struct channel *c);

/* Inside events.frame, of a frame that is not held: the buffer with its bytes, if it is a large one and no others are
 * there. The owner may take the buffer, and leave any other one without bytes in its place: then the frame's bytes stay
 * where they are for as long as the owner likes. NULL: they have to be copied. */
struct bytes *channel_frame_buffer(struct channel *c);

/* Releases the held frame's bytes. Delivery goes on, but not from inside this call; on a channel that is CLOSING
 * nothing happens. */
void channel_release(struct channel *c);

/* Inside events.closed: the buffer of the held frame becomes the caller's, for channel_loop_release(). */
static inline struct bytes channel_take_held(struct channel *c)
{
    struct bytes held = *c->closed;

    *c->closed = (struct bytes){ 0 };
    return held;
}

/* Low for peers that may be many, and are to leave time for the others. False at first. At any time. */
void channel_set_low_priority(struct channel *c, bool is_low);

/* Inside events.frame, on a channel of low priority: for how long, at most, its frame has waited for its turn. */
uint64_t channel_waited_ns(const struct channel *c, uint64_t now_ns);

/* Inside events.frame: the owner's work on it is worth so many bytes, where these are more than the frame's. It counts
 * where channels share turns. */
void channel_use_work(struct channel *c, size_t n_bytes);

/* Inside events.frame: n_bytes more count for how long the channel's own turn may be. What they cost the others is for
 * channel_use_work(). */
void channel_use_turn(struct channel *c, size_t n_bytes);

/* Inside events.frame: the owner has decompressed n_bytes of it, which count as if they had come. */
void channel_use_unpacked(struct channel *c, size_t n_bytes);

/* The same of a held frame, which is decompressed a slice at a time. */
void channel_use_unpacked_slice(struct channel *c, size_t n_bytes);

/* True if the rest of a frame is still to come. (How a slow sender differs from an idle peer.) Not
 * while it is we who do not read. */
bool channel_mid_frame(const struct channel *c);

/* Bytes sent that the socket has not taken yet. */
size_t channel_unsent_bytes(const struct channel *c);

/* The owner holds n_bytes for this channel beside the channel's own bytes: both are counted together. */
void channel_set_owner_bytes(struct channel *c, size_t n_bytes);

/* Ends the channel without a linger: unsent bytes are dropped, and events.closed follows at once in the loop. */
void channel_abort(struct channel *c, int why);

/* Idempotent. events.closed follows, never from inside this call. Frames already handed to
 * channel_send() are given a chance to leave: the close waits for the write queue, at most
 * until the peer hangs up or CHANNEL_LINGER_MS. channel_fail() is the same with a reason. */
void channel_close(struct channel *c);
void channel_fail(struct channel *c, int why);

#endif
