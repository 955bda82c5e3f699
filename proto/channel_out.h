/*
 * The way out of a channel: frames that wait to be handed to libuv, many in one system call.
 *
 *     channel_out_add ... -> channel_out_write -> all written at once
 *                                              -> libuv has the rest -> written()
 *
 * A small frame is copied behind the one before it where there is space, so that a run of
 * acknowledgements travels in one buffer. Every buffer goes to the loop once it is written.
 *
 * What the socket does not take stays, for as long as the peer likes. So all of it counts as the memory that it takes
 * (held_bytes), and a frame that stands in a buffer of far more than its length, as a reply that became shorter than
 * planned, moves to one of its own size first.
 *
 * A frame may leave in chunks, each as soon as it is made. Whole frames that come meanwhile wait for
 * the last chunk:
 *
 *     chunks.under_way -> channel_out_add, channel_out_write ... -> channel_out_end_chunks
 *                         channel_out_add_waiting ...
 */
#ifndef PROTO_CHANNEL_OUT_H
#define PROTO_CHANNEL_OUT_H

#include <stdbool.h>
#include <uv.h>

#include "common/tls.h"
#include "proto/channel_loop.h"

#define CHANNEL_OUT_FRAMES 16u
#define CHANNEL_OUT_BYTES (256u << 10)    /* more than that is not kept waiting, */
#define CHANNEL_OUT_HELD_BYTES (1u << 20) /* nor in buffers of more than that */

struct channel_out {
    uv_stream_t *stream;             /* borrowed */
    struct channel_loop *channels;   /* borrowed */
    struct tls_session *tls;         /* borrowed; NULL: plain */
    uint64_t seal_bytes;             /* that sealing has added, since they were last counted */
    struct channel_out_batch *batch; /* owned: not yet handed to libuv; or NULL */
    size_t batch_bytes;              /* of its frames */
    size_t
        held_bytes;  /* memory of all that is here or with libuv: buffers, not their contents */
    size_t n_writes; /* libuv's, whose callback is to come */
    uint64_t wrote_turn; /* the loop's turn of the last write; 0: none */
    bool has_lost;       /* a frame, without memory for its batch: the end */
    struct {
        bool under_way;       /* a frame that leaves in chunks */
        struct bytes *frames; /* owned, and what is in them: n_frames that wait for its end */
        size_t n_frames, cap, n_bytes;
    } chunks;
    void (*written)(struct channel_out *o, int status); /* after each of the n_writes */
};

/* Takes the frame. True: write the batch, as it is full, or as it and what comes behind it are lost without memory. */
bool channel_out_add(struct channel_out *o, struct bytes *frame);

/* Hands the batch, if there is one, to the socket and libuv. On failure the frames are gone. */
int channel_out_write(struct channel_out *o);

/* Sends what the TLS session has to say by itself, if there is anything. As channel_out_write(). */
int channel_out_write_reply(struct channel_out *o);

/* Takes a whole frame while another leaves in chunks. -ENOMEM: it is still the caller's. */
int channel_out_add_waiting(struct channel_out *o, struct bytes *frame);

/* The last chunk has been added: the frames that waited go behind it. As channel_out_write(). */
int channel_out_end_chunks(struct channel_out *o);

/* Has something been sent of which the peer may not know yet? */
bool channel_out_is_fresh(const struct channel_out *o);

/* Drops what has not been handed to libuv. */
void channel_out_drop(struct channel_out *o);

#endif
