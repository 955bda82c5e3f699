/*
 * The other end of a connection, for tests: a socket that the test reads and writes while it
 * turns the loop that is under test.
 */
#ifndef TESTS_UNIT_NET_PEER_H
#define TESTS_UNIT_NET_PEER_H

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uv.h>

#include "common/bytes.h"
#include "proto/frame.h"
#include "proto/message.h"

struct peer {
    int fd;
    uv_loop_t *loop;
    struct bytes in; /* owned */
    struct frame_header header;
    const uint8_t *head,
        *body; /* of the frame that peer_receive() found; good until the next call */
    size_t frame_bytes;
};

/* One turn of the loop; waits a moment for the peer's socket when nothing happens. */
void peer_turn(struct peer *p);

void peer_send_bytes(struct peer *p, const uint8_t *bytes, size_t n_bytes);

/* Sends what message_write_*() made, and frees it. */
void peer_send(struct peer *p, struct bytes *frame);

/* The next frame, however many turns it takes; false at the end of the stream. */
bool peer_receive(struct peer *p);

void peer_close(struct peer *p);

#endif
