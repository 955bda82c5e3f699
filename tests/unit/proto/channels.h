/* What the tests of channels share: a channel on one end of a socket pair, and
 * the peer on the other. */
#ifndef TESTS_UNIT_PROTO_CHANNELS_H
#define TESTS_UNIT_PROTO_CHANNELS_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/crc32c.h"
#include "common/status.h"
#include "proto/channel.h"
#include "proto/message.h"

#define FRAME_MAX (1u << 20)

enum channels_what {
    KEEP,
    REFUSE,
    CLOSE,
    REPLY,
    REPLY_AND_CLOSE,
    REPLY_AND_REFUSE,
    HOLD,
    REPLY_BIG,
    UNPACK,
    TAKE /* the buffer, until the next one */
};

/* A frame's body in a buffer that was taken from the channel. */
struct channels_taken {
    struct bytes buffer; /* owned */
    const uint8_t *body;
    size_t n_bytes;
    uint32_t crc, n;
};

struct channels_loop {
    uv_loop_t loop;
    struct channel_loop channels;
};

/* A channel on one end of a socket pair; the test holds the other end's fd. */
struct channels {
    struct channels_loop *on, own; /* `on` is its own, or another's */
    uv_pipe_t pipe;
    struct channel *channel; /* on the heap, so that a touch after its end is seen */
    uv_os_sock_t peer;
    enum channels_what what;
    struct channels *releases; /* whose held frame is released when a frame comes here */
    size_t big_bytes;          /* of a reply, or what a frame unpacks to */
    int n_frames, n_closed, why;
    struct beat last_beat;
    uint64_t body_bytes; /* of all frames */
    uint32_t body_crc;   /* one behind the other */
    int n_parts;
    size_t part_bytes; /* of the body of the frame that comes, as far as it was shown */
    uint32_t part_crc;
    struct frame_header header;
    const uint8_t *head, *body; /* of the held frame, else NULL */
    struct channels_taken taken;
};

struct bytes channels_beat(uint64_t clock);
struct bytes channels_big_frame(size_t n_bytes);
void channels_reply(struct channels *f, size_t n_bytes);
void channels_release(struct channels *f);
void channels_check_taken(struct channels_taken *t);
int channels_on_frame(void *owner, const struct frame_header *header, const uint8_t *head,
                      const uint8_t *body);
void channels_on_part(void *owner, const struct frame_header *header, const uint8_t *head,
                      const uint8_t *body, size_t n_bytes);
void channels_on_closed(void *owner, int why);

static const struct channel_events channels_events = { .frame = channels_on_frame,
                                                       .part = channels_on_part,
                                                       .closed = channels_on_closed };

void channels_loop_init(struct channels_loop *on);
void channels_loop_deinit(struct channels_loop *on);

/* On the first of two ends, both of them taken. */
void channels_open_on(struct channels *f, struct channels_loop *on, const uv_os_sock_t ends[2],
                      enum channels_what what);

void channels_open(struct channels *f, struct channels_loop *on, int type,
                   enum channels_what what);
void channels_set_up(struct channels *f, enum channels_what what);

/* On the loop of `host`, which is torn down after this one. */
void channels_join(struct channels *f, struct channels *host, enum channels_what what);

void channels_hang_up(struct channels *f);
void channels_turn(struct channels *f);

/* The peer hangs up, if it has not; the channel must then have closed exactly once. */
void channels_tear_down(struct channels *f);

void channels_write(struct channels *f, const void *bytes, size_t n_bytes);

/* Sends all of it, however small the socket's buffer is. */
void channels_write_all(struct channels *f, const uint8_t *bytes, size_t n_bytes);

/* Reads what is there; the number of bytes. */
size_t channels_read(struct channels *f);

#endif
