/*
 * An outgoing connection: resolves a name, tries each of its addresses, then speaks frames. A connector is one attempt;
 * the next attempt needs a new one.
 *
 *     RESOLVING -> CONNECTING -> [HANDSHAKE, with channels->tls] -> OPEN      any failure or end: events.closed, once
 *
 * Every function runs on the loop's thread.
 */
#ifndef PROTO_CONNECTOR_H
#define PROTO_CONNECTOR_H

#include <stdbool.h>
#include <uv.h>

#include "common/address.h"
#include "proto/channel_loop.h"
#include "proto/frame.h"

struct channel;
struct connector;

struct connector_events {
    /* Frames may be sent from here on. */
    void (*connected)(void *owner);

    /* As channel_events.frame. */
    int (*frame)(void *owner, const struct frame_header *header, const uint8_t *head,
                 const uint8_t *body);

    /* The connector is freed; no event follows. PS_EHTTP: the peer speaks HTTP. */
    void (*closed)(void *owner, int why);
};

/* As uv_loop_init(): for the loop of connectors. -ENOMEM. */
int connector_loop_init(uv_loop_t *loop) MUST_CHECK;

/* Starts an attempt. `address` is copied. No event comes from inside this call. A numeric
 * address needs no resolver. -ENOMEM, or a status of libuv's. */
int connector_new(struct channel_loop *channels, const struct address *address,
                  const struct connector_events *events, void *owner, struct connector **ret)
    MUST_CHECK;

/* Before events.connected: the largest frame that is received, head and body; else it is FRAME_MAX_BYTES_DEFAULT. */
void connector_set_frame_max(struct connector *d, uint32_t n_bytes);

/* The channel for sending frames, from events.connected to the end; a call that fails is followed by events.closed.
 * Borrowed. */
struct channel *connector_channel(struct connector *d);

/* Closes the connection at once; no event follows, also not from the event that calls this. The loop must run on until
 * libuv has closed it. NULL is fine. */
void connector_drop(struct connector *d);

/* The delay before the next attempt after n_failed: 50 ms, 100 ms ... 2 s, each times 0.5 to 1, so that those
 * who come back do not come all at once. seed: any number, of which the factor is made. */
uint64_t connector_backoff_ms(uint32_t n_failed, uint64_t seed);

/* The failure as a sentence: status_text(), except for the end of the stream. */
const char *connector_why(int status);

/* True of a failure that the next attempt meets again, until somebody changes something: the peer speaks HTTP, or the
 * TLS handshake failed. */
bool connector_is_final(int status);

#endif
