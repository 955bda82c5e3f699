/*
 * One request while a shard works on it: a frame whose body is as it was before compression.
 * Borrowed from the connection until the handler returns. Who goes on with it later holds the
 * connection (connection.h), so that the frame stays, and takes *unpacked in exchange for another one.
 */
#ifndef SERVER_REQUEST_H
#define SERVER_REQUEST_H

#include <string.h>

#include "proto/frame.h"
#include "server/net/connection.h"

struct request {
    struct connection *connection;
    const struct frame_header *header;
    const uint8_t *head, *body;
    size_t body_bytes;
    size_t n_seen;        /* of the body, as glance.h has it */
    struct buf *unpacked; /* where the body is when it was compressed; may be NULL */
    int body_status;      /* of message_body(): not 0 when there is no body to read */
    uint64_t start_ns;    /* when the frame was complete */
    uint64_t now_ms;      /* the shard's time, see service.h */
    bool has_waited;      /* as long as it may (waiting.h): it is answered now */
};

static inline bool request_is_from_reader(const struct request *r)
{
    return strcmp(r->connection->hello.role, "reader") == 0;
}

/* The request is worked on beyond the handler: its body stays, here or in *ret_unpacked, whose memory the
 * next one's gets. */
static inline void request_keep(const struct request *r, struct buf *ret_unpacked)
{
    struct buf room = *ret_unpacked;

    connection_hold(r->connection);
    if (!r->unpacked)
        return;
    *ret_unpacked = *r->unpacked;
    *r->unpacked = room;
}

#endif
