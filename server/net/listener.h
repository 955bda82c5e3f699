/*
 * The node's one port: accepts, reads one hello from each peer under a deadline, and either refuses it with a sentence
 * or hands its socket on. Identity is checked here only: the role of its certificate, or of its token, says as what a
 * peer may greet (access.h). With TLS the handshake of it is a part of the same deadline.
 *
 *     role      shard              becomes
 *     worker    0 .. n-1           that shard's connection
 *     reader    0 .. n-1           that shard's connection
 *     operator  MESSAGE_SHARD_LISTENER an operator's connection
 *     watcher   MESSAGE_SHARD_LISTENER a watcher's connection
 *     standby   MESSAGE_SHARD_LISTENER a standby's connection, also before the node serves
 *     standby   0 .. n-1           that shard's connection
 *     worker    MESSAGE_SHARD_LISTENER answered with the map of the cluster, and no more
 *     reader    MESSAGE_SHARD_LISTENER the same
 *
 * Where another psd is the primary, workers and readers are refused with PS_EMOVED, and told who it is.
 *
 * Runs on the main thread.
 */
#ifndef SERVER_NET_LISTENER_H
#define SERVER_NET_LISTENER_H

#include <uv.h>

#include "common/address.h"
#include "common/thread_role.h"
#include "common/token_file.h"
#include "proto/message.h"
#include "server/net/connection.h"
#include "server/net/group_view.h"

/* At a time; then the oldest of the address that has most goes, so that a peer which says hello at once always gets an
 * answer, and one of another address whenever it says it in time. More than the kernel's backlog, all of which may come
 * before the first hello is read. */
#define LISTENER_HANDSHAKES_MAX 1024u

struct listener;

/* A peer whose hello is good. */
struct listener_client {
    struct connection_socket socket;
    uint64_t request_id;
    const struct hello *hello;              /* borrowed */
    const struct sockaddr_storage *address; /* borrowed */
};

struct listener_events {
    /* A peer whose handshake is complete. 0: the socket is taken. Else the connection is closed without a
     * reply, and on_refused() gets the status. */
    int (*on_client)(void *owner, const struct listener_client *client);
    /* Called for a worker or a reader: 0 if the node serves workers. An error and its sentence refuse the
     * peer, which retries later. NULL: always 0. */
    int (*check_serving)(void *owner, struct err *err);
    /* Called before on_client(), for a worker or a reader: 0 if there is a place. An error and its sentence
     * refuse the peer. */
    int (*admit)(void *owner, const struct sockaddr_storage *address, struct err *err);
    /* The same for an operator. NULL: always 0. */
    int (*admit_operator)(void *owner, struct err *err);
    /* The same for a standby, at the listener. NULL: always 0. */
    int (*admit_standby)(void *owner, struct err *err);
    /* A peer was turned away; for a line in the log. */
    void (*on_refused)(void *owner, const char *peer, int status, const char *sentence);
};

struct listener_config {
    uv_loop_t *loop;         /* borrowed */
    const char *listen;      /* HOST:PORT; port 0: any that is free */
    struct tls_context *tls; /* borrowed; NULL: this port is plain */
    const char
        *token; /* borrowed; "": none is asked for. A peer with a certificate needs none */
    const struct token_list
        *tokens; /* borrowed: of roles, in its place if there are any; NULL: none */
    uint64_t handshake_ms;
    uint32_t handshakes_max;              /* 0: LISTENER_HANDSHAKES_MAX */
    const struct hello_reply *map;        /* borrowed: version, nodes, shards, map_id */
    struct group_view *groups;            /* borrowed; NULL: this is the primary */
    const struct listener_events *events; /* borrowed, static */
    void *owner;                          /* borrowed */
};

struct listener_counts {
    uint64_t retry_later; /* refused by check_serving() or with PS_EMOVED: they retry later */
    uint64_t handshakes, accepted, refused, malformed, slow, evicted, failed_accepts, bytes_in,
        bytes_out;
};

/* Binds the address, and fails if it is in use; the kernel refuses connections until
 * listener_listen(). *ret_listener is freed by listener_close(). err: one sentence. */
int listener_open(const struct listener_config *config, struct listener **ret_listener,
                  struct err *err) ON_MAIN MUST_CHECK;

/* Peers are accepted from now on. err: one sentence, as of listener_open(). */
int listener_listen(struct listener *l, struct err *err) ON_MAIN MUST_CHECK;

/* The numeric address on which it listens, with the real port in place of 0. */
const char *listener_address(const struct listener *l);

/* Stops listening, closes handshakes; frees *l once the loop has closed all handles. NULL is
 * fine. */
void listener_close(struct listener *l) ON_MAIN;

void listener_count(const struct listener *l, struct listener_counts *ret) ON_MAIN;

/* Every peer whose hello is awaited: since when (loop time). */
void listener_each_handshake(const struct listener *l,
                             void (*each)(void *arg, const char *peer, uint64_t since_ms),
                             void *arg) ON_MAIN;

/* Checks a hello against what this node is; fills status and text of the reply, and returns the status. `cert`: who
 * the peer is by its certificate; NULL: it has shown none. *ret: who it is. */
int listener_check_hello(const struct listener_config *config, const struct hello *hello,
                         const struct access *cert, struct hello_reply *reply,
                         struct access *ret);

#endif
