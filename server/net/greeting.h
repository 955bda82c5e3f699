/*
 * A guest before it is let in: one socket on the main loop from which exactly one hello is
 * read.
 *
 *     state      reads            leaves it by
 *     READING    the hello        a whole hello -> events.hello, which answers or takes
 *     ANSWERED   and drops        end of stream, or the door's patience -> CLOSING
 *     CLOSING    no               libuv's close callback -> events.closed, then freed
 *
 * An answered guest is kept until it hangs up, so that a reset does not overtake the answer.
 */
#ifndef SERVER_NET_GREETING_H
#define SERVER_NET_GREETING_H

#include <uv.h>

#include "common/buf.h"
#include "proto/message.h"
#include "server/net/address.h"

#define GREETING_BYTES_MAX \
    2048u /* of a hello frame; a token and two names need a fifth of it */

struct greeting;

struct greeting_events {
    /* 0: g->hello and g->request_id are filled. PS_EPROTO, PS_ECORRUPT, PS_ETOOBIG: no hello,
     * close without a word; PS_EGREETING: a frame, but not one that may come now: `sentence`
     * says why. */
    void (*hello)(void *owner, struct greeting *g, int status, const char *sentence);
    void (*closed)(void *owner, struct greeting *g);
};

enum greeting_state { GREETING_READING, GREETING_ANSWERED, GREETING_CLOSING };

struct greeting {
    uv_tcp_t tcp;
    const struct greeting_events *events; /* borrowed, static */
    void *owner;                          /* borrowed */
    enum greeting_state state;
    uint64_t since_ms; /* when this state began: the door's to compare */
    char peer[ADDRESS_TEXT_MAX];
    struct hello hello;
    uint64_t request_id;
    size_t n_in, n_out;           /* bytes on the wire */
    struct greeting *next, *prev; /* the door's */
    uv_shutdown_t shutdown;
    uint8_t in[GREETING_BYTES_MAX];
};

/* Accepts the connection that waits at `listener`. On failure no event follows. */
int greeting_accept(uv_stream_t *listener, const struct greeting_events *events, void *owner,
                    struct greeting **ret_greeting) MUST_CHECK;

/* Sends one whole frame, which it takes, and waits for the guest to hang up. */
void greeting_answer(struct greeting *g, struct buf *frame);

/* A descriptor of the same socket, the caller's; this one closes. */
int greeting_take_fd(struct greeting *g, int *ret_fd) MUST_CHECK;

/* Idempotent. */
void greeting_close(struct greeting *g);

#endif
