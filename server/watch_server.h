/*
 * The watchers' connections, on the main thread. Each asks for the groups (FRAME_WATCH), once at a time, and gets its
 * answer when they are newer than what it knows, or its time is over.
 *
 * WATCH_SERVER_CONNECTIONS_MAX watchers have places of their own. One more ends the oldest of its own address, if that
 * has more than a sixteenth of the places, or else the oldest of all. What one of them holds is a few hundred bytes: it
 * counts for no --client-memory-max.
 */
#ifndef SERVER_WATCH_SERVER_H
#define SERVER_WATCH_SERVER_H

#include "server/net/connection.h"
#include "server/net/group_view.h"

#define WATCH_SERVER_CONNECTIONS_MAX 1024u
#define WATCH_SERVER_WAIT_MS_MAX 60000u /* who wants to wait longer asks again */

struct watch_server;

struct watch_server_config {
    uv_loop_t *loop;                   /* borrowed */
    const struct hello_reply *welcome; /* borrowed */
    struct group_view *groups;         /* borrowed; takes its group_view_on_change() */
    uint64_t frame_timeout_ms;
};

struct watch_server_counts {
    uint64_t n_requests, n_evicted; /* since the start */
    struct connection_set_counts net;
};

struct watch_server *watch_server_new(const struct watch_server_config *config) ON_MAIN;

/* All connections have closed. NULL is fine. */
void watch_server_free(struct watch_server *w) ON_MAIN;

/* Takes the socket whatever is returned. */
int watch_server_receive(struct watch_server *w, const struct connection_socket *socket,
                         uint64_t request_id, const struct hello *hello) ON_MAIN MUST_CHECK;

/* A few times a second. */
void watch_server_sweep(struct watch_server *w) ON_MAIN;

/* Answers all who wait, and closes all connections. */
void watch_server_close(struct watch_server *w) ON_MAIN;

void watch_server_count(const struct watch_server *w, struct watch_server_counts *ret) ON_MAIN;

#endif
