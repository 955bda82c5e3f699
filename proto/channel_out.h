/*
 * The way out of a channel: frames that wait to be handed to libuv, many in one system call.
 *
 *     channel_out_add ... -> channel_out_flush -> all written at once
 *                                              -> libuv has the rest -> written()
 *
 * A small frame is copied behind the one before it where there is room, so that a run of
 * acknowledgements travels in one buffer. Every buffer goes to the hub once it is written.
 *
 * A frame may leave in parts, each as soon as it is made. Whole frames that come meanwhile wait for
 * the last part:
 *
 *     parts.under_way -> channel_out_add, channel_out_flush ... -> channel_out_end_parts
 *                        channel_out_wait ...
 */
#ifndef PROTO_CHANNEL_OUT_H
#define PROTO_CHANNEL_OUT_H

#include <stdbool.h>
#include <uv.h>

#include "proto/channel_hub.h"

#define CHANNEL_OUT_FRAMES 16u
#define CHANNEL_OUT_BYTES (256u << 10) /* more than that is not kept waiting */

struct channel_out {
    uv_stream_t *stream;             /* borrowed */
    struct channel_hub *hub;         /* borrowed */
    struct channel_out_batch *batch; /* owned: not yet handed to libuv; or NULL */
    size_t n_writes;                 /* libuv's, whose callback is to come */
    uint64_t wrote_turn;             /* the hub's turn of the last write; 0: none */
    struct {
        bool under_way;     /* a frame that leaves in parts */
        struct buf *frames; /* owned, and what is in them: n_frames that wait for its end */
        size_t n_frames, cap, n_bytes;
    } parts;
    void (*written)(struct channel_out *o, int status); /* after each of the n_writes */
};

/* Takes the frame. True: the batch is full, flush it. */
bool channel_out_add(struct channel_out *o, struct buf *frame);

/* Writes what waits. On failure the frames are gone. */
int channel_out_flush(struct channel_out *o);

/* Takes a whole frame while another leaves in parts. -ENOMEM: it is still the caller's. */
int channel_out_wait(struct channel_out *o, struct buf *frame) MUST_CHECK;

/* The last part has been added: what has waited goes behind it. As channel_out_flush(). */
int channel_out_end_parts(struct channel_out *o);

/* Bytes that are here or with libuv, without those that wait for the end of a frame in parts. */
size_t channel_out_leaving_bytes(const struct channel_out *o);

/* Bytes that are here or with libuv. */
size_t channel_out_bytes(const struct channel_out *o);

/* Has something been sent of which the peer may not know yet? */
bool channel_out_is_fresh(const struct channel_out *o);

/* Drops what has not been handed to libuv. */
void channel_out_drop(struct channel_out *o);

#endif
