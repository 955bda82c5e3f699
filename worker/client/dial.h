/*
 * An outgoing connection: resolves a name, tries each of its addresses, then speaks frames. One
 * dial is one attempt; whoever wants another makes another.
 *
 *     RESOLVING -> CONNECTING -> OPEN      any failure or end: events.closed, once
 *
 * Every function runs on the loop's thread.
 */
#ifndef WORKER_CLIENT_DIAL_H
#define WORKER_CLIENT_DIAL_H

#include <uv.h>

#include "common/buf.h"
#include "proto/channel_hub.h"
#include "proto/frame.h"
#include "worker/client/address.h"

struct dial;

struct dial_events {
    /* Frames may be sent from here on. */
    void (*connected)(void *owner);

    /* As channel_events.frame. */
    int (*frame)(void *owner, const struct frame_header *header, const uint8_t *head,
                 const uint8_t *body);

    /* The dial is gone; no call follows. PS_EHTTP: whoever answers speaks HTTP, and no frames. */
    void (*closed)(void *owner, int why);
};

/* Starts an attempt. `address` is copied. No event comes from inside this call. A numeric
 * address needs no resolver. */
int dial_new(struct channel_hub *hub, const struct address *address,
             const struct dial_events *events, void *owner, struct dial **ret) MUST_CHECK;

/* Sends one whole frame and leaves *frame empty. Only after events.connected. When it fails,
 * events.closed follows. */
int dial_send(struct dial *d, struct buf *frame);

/* The largest frame that the peer may send from now on. */
void dial_set_frame_max(struct dial *d, uint32_t frame_max_bytes);

/* Hangs up without ceremony; no event follows, also not from the event that calls this. The
 * loop needs to run on until libuv is through. NULL is fine. */
void dial_drop(struct dial *d);

/* What went wrong, in words: status_text(), but for the end of the stream. */
const char *dial_why(int status);

#endif
