/*
 * The operators' server: connections on the main thread that send commands (FRAME_ADMIN) and get
 * JSON. It also drafts the node's report.
 *
 *     status tables workers why stats     the node's report, rendered (render.h)
 *     checkpoint                          takes one, and replies when it is done
 *     config                              the settings in force (settings_reload.h)
 *     row                                 row_lookup.h
 *     drop-check drop set-check set       table_command.h
 *     promote                             this psd becomes the primary (standby.h)
 *     switch                              its standby does (standby_server.h)
 *
 * A connection waits for one reply of the last five at a time. While the node restores its data it answers only the
 * report, without the workers: an unfinished list of workers looks like that of a job that has ended.
 *
 * ADMIN_SERVER_CONNECTIONS_MAX operators have places of their own. One more ends the oldest connection that waits
 * for no reply, with a line in the log; if all wait, it is refused.
 */
#ifndef SERVER_ADMIN_SERVER_H
#define SERVER_ADMIN_SERVER_H

#include "server/checkpointer.h"
#include "server/net/connection.h"
#include "server/net/listener.h"
#include "server/node_stats.h"
#include "server/row_lookup.h"
#include "server/watch_server.h"

#define ADMIN_SERVER_CONNECTIONS_MAX 64u

struct admin_server;

struct admin_server_config {
    uv_loop_t *loop;                   /* borrowed */
    const struct hello_reply *welcome; /* borrowed */
    uint64_t frame_timeout_ms;
    struct channel_memory *client_memory; /* borrowed */
    struct node_stats *stats;             /* borrowed */
    struct checkpointer *checkpointer;    /* borrowed; NULL: no data directory */
    struct shard_call_config shards;
    void (*refresh)(void *node); /* publishes the newest report */
    /* 0 if the node has restored its data. Else a status and a sentence for requests that need them. NULL: always 0. */
    int (*check_serving)(void *node, struct err *err);
    /* The settings in force as JSON, the caller's to free. NULL: there is no such command. */
    char *(*describe_settings)(void *node);
    /* 0: `done` follows, once, later. NULL: there is no such command. */
    int (*promote)(void *node, const char *argument,
                   void (*done)(void *arg, const struct err *err), void *arg, struct err *err);
    /* The same. json: what psctl is to print. */
    int (*switch_over)(void *node,
                       void (*done)(void *arg, const struct err *err, const char *json),
                       void *arg, struct err *err);
    void *node; /* borrowed */
};

struct admin_server *admin_server_new(const struct admin_server_config *config) ON_MAIN;

/* All connections have closed. NULL is fine. */
void admin_server_free(struct admin_server *d) ON_MAIN;

/* -EMFILE and a sentence: there is no place for one more, and no connection that would go for it. */
int admin_server_admit(const struct admin_server *d, struct err *err) ON_MAIN MUST_CHECK;

/* Takes the socket whatever is returned. After admin_server_admit(). */
int admin_server_receive(struct admin_server *d, const struct connection_socket *socket,
                         uint64_t request_id, const struct hello *hello) ON_MAIN MUST_CHECK;

/* A few times a second. */
void admin_server_sweep(struct admin_server *d) ON_MAIN;

/* Refuses waiting requests, closes all connections. */
void admin_server_close(struct admin_server *d) ON_MAIN;

/* Whether a peer may have this command: reports are for all roles, and what changes something is for admins. PS_EDENIED,
 * with a sentence. */
int admin_server_check_access(const struct access *a, const char *command, struct err *err)
    MUST_CHECK;

uint64_t admin_server_n_connections(const struct admin_server *d) ON_MAIN;

/* The node's report, as the main thread drafts it. */
struct admin_server_draft {
    struct node_report node; /* the caller sets the constant fields */
    struct stats_wait waits[NODE_STATS_N_WAITS_MAX];
};

struct admin_server_inputs {
    const struct listener *listener; /* NULL: closed; the draft keeps its last counts */
    const struct watch_server *watches;
    const struct connection_limits *limits;
    uint64_t handshake_ms;
    bool ready, stopping;
};

/* Fills the draft from the listener, the operators and the checkpointer, and publishes it (node_stats.h). */
void admin_server_publish(const struct admin_server *d, const struct admin_server_inputs *in,
                          struct admin_server_draft *draft) ON_MAIN;

#endif
