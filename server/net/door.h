/*
 * The node's one port: accepts, reads one hello from each guest under a deadline, and either
 * refuses it with a sentence or hands its socket on. Behind the door nobody checks identity
 * again.
 *
 *     role      shard         becomes
 *     worker    0 .. n-1      that shard's connection
 *     reader    0 .. n-1      that shard's connection
 *     operator  the door      an operator's connection
 *     worker    the door      answered with the map of the cluster, and no more
 *     reader    the door      the same
 *
 * Runs on the main thread.
 */
#ifndef SERVER_NET_DOOR_H
#define SERVER_NET_DOOR_H

#include <uv.h>

#include "common/thread_role.h"
#include "proto/message.h"
#include "server/net/address.h"

#define DOOR_GREETINGS_SPARE \
    64u /* guests heard beyond connections_max: to be told why not, or, operators, to come in */

struct door;

struct door_events {
    /* A guest that may come in: `fd` is taken when 0 is returned, else the guest is refused
     * with that status. */
    int (*guest)(void *owner, int fd, uint64_t request_id, const struct hello *hello);
    /* How many connections are open behind the door, operators' too. */
    uint64_t (*n_inside)(void *owner);
    /* Somebody was turned away; for a line in the log. */
    void (*refused)(void *owner, const char *peer, int status, const char *sentence);
};

struct door_config {
    uv_loop_t *loop;    /* borrowed */
    const char *listen; /* HOST:PORT; port 0: any that is free */
    const char *token;  /* borrowed; "": everybody may come in */
    uint64_t greeting_ms;
    uint64_t connections_max;
    const struct hello_reply *map;    /* borrowed: version, nodes, shards, map_id */
    const struct door_events *events; /* borrowed, static */
    void *owner;                      /* borrowed */
};

struct door_counts {
    uint64_t greetings, accepted, refused, malformed, slow, failed_accepts, bytes_in, bytes_out;
};

/* Takes the address, where nobody listens already; who connects is refused by the kernel until
 * door_listen(). *ret_door is freed by door_close(). err: one sentence. */
int door_open(const struct door_config *config, struct door **ret_door, struct err *err)
    ON_MAIN MUST_CHECK;

/* Guests come from now on. err: one sentence, as of door_open(). */
int door_listen(struct door *d, struct err *err) ON_MAIN MUST_CHECK;

/* Where it listens, in numbers, the real port in place of 0. */
const char *door_address(const struct door *d);

/* Stops listening, hangs up on greetings; frees *d once the loop has closed all handles. NULL
 * is fine. */
void door_close(struct door *d) ON_MAIN;

void door_count(const struct door *d, struct door_counts *ret) ON_MAIN;

/* Every guest whose hello is awaited: since when (loop time). */
void door_each_greeting(const struct door *d,
                        void (*each)(void *arg, const char *peer, uint64_t since_ms), void *arg)
    ON_MAIN;

/* Holds a hello against what this node is; fills status and text of the reply, and returns the
 * status. */
int door_judge(const struct door_config *config, const struct hello *hello,
               struct hello_reply *reply);

#endif
