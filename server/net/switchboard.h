/*
 * All connections that one loop serves: opens them, welcomes them, watches for slow peers,
 * counts.
 *
 * One thread owns a switchboard, its loop's. A shard has one for workers and readers, the main
 * thread one for operators.
 */
#ifndef SERVER_NET_SWITCHBOARD_H
#define SERVER_NET_SWITCHBOARD_H

#include "server/net/connection.h"

struct switchboard_config {
    struct channel_hub *hub; /* borrowed: the loop's */
    uint32_t frame_max_bytes;
    uint64_t frame_timeout_ms; /* for an unfinished frame, or replies that nobody reads */
    const struct hello_reply *welcome;      /* borrowed: what a guest is told once it is in */
    const struct connection_events *events; /* borrowed, static */
    void *owner;                            /* borrowed */
};

/* Since the start, but for `connections`. */
struct switchboard_counts {
    uint64_t connections, connections_total, malformed, slow, bytes_in, bytes_out;
};

struct switchboard {
    struct switchboard_config config;
    struct connection *first;       /* owned, as long as they are open */
    struct switchboard_counts gone; /* what closed connections have counted, and events */
};

void switchboard_init(struct switchboard *s, const struct switchboard_config *config);

/* Takes `fd` whatever is returned; answers the greeting. */
int switchboard_open(struct switchboard *s, int fd, uint64_t request_id,
                     const struct hello *hello) MUST_CHECK;

/* Closes peers that are too slow. To be called a few times a second. */
void switchboard_sweep(struct switchboard *s, uint64_t now_ms);

/* Closes all, each after what has been sent to it is out; events.closed follows for each. */
void switchboard_close_all(struct switchboard *s);

void switchboard_count(const struct switchboard *s, struct switchboard_counts *ret);

#endif
