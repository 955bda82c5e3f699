/*
 * A connection on which one psd is asked who the primaries are (FRAME_WATCH), again and again: it answers at once, and
 * then when there is news. A failed attempt is repeated for as long as the watcher has an address.
 *
 *     state     waits for              leaves it by
 *     OFF       watcher_set()          -> IDLE
 *     IDLE      its next attempt       -> DUE
 *     DUE       the next tick          -> DIALING    (a tick later: cluster_client_is_steady())
 *     DIALING   TCP                    -> GREETING
 *     GREETING  HelloReply             -> OPEN
 *     OPEN      the next tick          -> ASKING
 *     ASKING    WatchReply             -> OPEN       events.groups
 *
 * Any failure leads to IDLE. Time is an argument; all functions run on the loop's thread.
 */
#ifndef WORKER_CLIENT_WATCHER_H
#define WORKER_CLIENT_WATCHER_H

#include "common/address.h"
#include "proto/channel_loop.h"
#include "proto/message.h"

struct connector;

#define WATCHER_HURRY_MS 500u  /* at most between two attempts, while a shard is away */
#define WATCHER_REST_MS 10000u /* after some attempts in vain, while all shards are there */
#define WATCHER_WAIT_MS 10000u /* for news */

enum watcher_state {
    WATCHER_OFF,
    WATCHER_IDLE,
    WATCHER_DUE,
    WATCHER_DIALING,
    WATCHER_GREETING,
    WATCHER_OPEN,
    WATCHER_ASKING
};

struct watcher_config {
    struct channel_loop *channels; /* borrowed */
    const struct hello *hello;     /* borrowed: token, name, map_id */
    /* What a psd knows. May call watcher_set() and watcher_stop(). */
    void (*groups)(void *owner, const struct groups *groups);
    void *owner; /* borrowed */
};

/* Zeroed and watcher_init(): OFF. Its fields are watcher.c's. */
struct watcher {
    struct watcher_config config;
    struct address address;
    enum watcher_state state;
    struct connector *connector; /* owned; NULL: no connection */
    bool hurries;
    uint64_t now_ms, since_ms, next_ms;
    uint64_t request_id, above;
    uint32_t n_attempts; /* since the last answer */
};

void watcher_init(struct watcher *w, const struct watcher_config *config);

/* Asks this psd from here on; nothing changes if it does already. */
void watcher_set(struct watcher *w, const struct address *address);

/* No event follows. The loop must run on until libuv has closed the connection. */
void watcher_stop(struct watcher *w);

/* True: its next attempt is soon, and so are those after it. */
void watcher_set_hurry(struct watcher *w, bool hurries);

void watcher_tick(struct watcher *w, uint64_t now_ms);

/* False: it makes a connection, or is about to. */
bool watcher_is_quiet(const struct watcher *w);

#endif
