/*
 * One client behind the door: a socket that speaks frames, what its greeting said, and, once it
 * has joined a job, which worker it is. Nobody checks the greeting again.
 *
 * A connection lives on the loop that it was made on, and only that loop's thread touches it:
 *
 *     connection_new -> events.request ...
 *         -> connection_close | connection_fail | end of stream
 *         -> events.closed -> freed
 */
#ifndef SERVER_NET_CONNECTION_H
#define SERVER_NET_CONNECTION_H

#include <stdbool.h>
#include <uv.h>

#include "proto/channel.h"
#include "proto/message.h"
#include "server/net/address.h"

struct connection;

struct connection_events {
    /* One whole frame, as channel.h gives it. Anything but 0 closes the connection for that
     * reason. */
    int (*request)(void *owner, struct connection *c, const struct frame_header *header,
                   const uint8_t *head, const uint8_t *body);
    /* NULL, or a part of one, as channel.h gives it. */
    void (*part)(void *owner, struct connection *c, const struct frame_header *header,
                 const uint8_t *head, const uint8_t *body, size_t n_bytes);
    /* NULL, or as channel.h says: room for more of a frame that is sent in parts. */
    void (*written)(void *owner, struct connection *c);
    /* The last call; *c is freed when it returns. `why` as channel.h says. */
    void (*closed)(void *owner, struct connection *c, int why);
};

/* Which worker speaks here. */
struct connection_worker {
    bool joined;
    char job[SPEC_NAME_MAX];
    uint32_t rank;
    uint64_t incarnation;
    uint64_t join_number; /* roster.h */
};

/* Something that ought to go on: since when it has been at the same point. */
struct connection_stall {
    uint64_t since_ms, progress;
};

struct connection {
    struct channel channel;
    uv_tcp_t tcp;
    const struct connection_events *events; /* borrowed, static */
    void *owner;                            /* borrowed */
    struct hello hello;
    char peer[ADDRESS_TEXT_MAX];
    struct connection_worker worker; /* the service's to fill */
    struct {                         /* requests kept aside: the service's to count */
        uint32_t n;
        size_t n_bytes;
    } parked;
    size_t n_seen;                  /* of the body that is coming (glance.h): the service's */
    struct connection *next, *prev; /* the switchboard's */
    uint64_t n_frames;              /* whole ones received */
    struct connection_stall in;     /* a frame that is not finished */
    struct connection_stall out;    /* replies that are not read */
};

/* Takes `fd`, an open stream socket, whatever is returned. */
int connection_new(struct channel_hub *hub, int fd, uint32_t frame_max_bytes,
                   const struct hello *hello, const struct connection_events *events,
                   void *owner, struct connection **ret_connection) MUST_CHECK;

/* Takes the frame, as channel_send() does. */
int connection_send(struct connection *c, struct buf *frame);

/* Inside events.request: its frame is kept, and no other comes, until connection_release(); as
 * channel_hold() and channel_release() say. */
void connection_hold(struct connection *c);
void connection_release(struct connection *c);

void connection_close(struct connection *c);
void connection_fail(struct connection *c, int why);

/*
 * To be asked a few times a second. True once a frame has been unfinished, or replies have
 * waited for a peer that reads none of them, for more than limit_ms. A peer that is idle
 * between frames is never slow, nor is one that waits for us: while its frame is held, or while
 * it sends more than its turns let us read.
 */
bool connection_is_slow(struct connection *c, uint64_t now_ms, uint64_t limit_ms);

/* Bytes of what was sent that have reached the peer's host: who moves on here is there, and reads. */
uint64_t connection_reached_bytes(const struct connection *c);

#endif
