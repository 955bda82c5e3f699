/*
 * One request while a shard works on it: a frame whose body is as it was before compression.
 * Borrowed from the connection until the handler returns.
 */
#ifndef SERVER_REQUEST_H
#define SERVER_REQUEST_H

#include "proto/frame.h"
#include "server/net/connection.h"

struct request {
    struct connection *connection;
    const struct frame_header *header;
    const uint8_t *head, *body;
    size_t body_bytes;
    int body_status;   /* of message_body(): not 0 when there is no body to read */
    uint64_t start_ns; /* when the frame was complete */
    uint64_t now_ms;   /* the shard's time, see service.h */
};

#endif
