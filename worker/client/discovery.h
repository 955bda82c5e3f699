/*
 * Finds the cluster: asks the servers of a list in turn, until one of them describes all nodes.
 *
 * Time is an argument, as in shard_link.h; all functions run on the loop's thread.
 */
#ifndef WORKER_CLIENT_DISCOVERY_H
#define WORKER_CLIENT_DISCOVERY_H

#include "common/address.h"
#include "proto/channel_loop.h"
#include "proto/message.h"

#define DISCOVERY_SERVERS_MAX 64u

struct discovery;

struct discovery_events {
    /* `reply` is that of the server at `address`, counts checked: status 0, or PS_EMOVED with groups that name the
     * primary. Discovery is over. */
    void (*found)(void *owner, const struct address *address, const struct hello_reply *reply);
    void (*notice)(void *owner, const char *sentence);
    /* A refusal that waiting cannot mend, or limit_ms are over. */
    void (*failed)(void *owner, int status, const char *sentence);
};

/* Starts at the first discovery_tick(). Everything is copied; hello->shard and map_id are set here. NULL without
 * memory. */
struct discovery *discovery_new(struct channel_loop *channels, const struct address *servers,
                                uint32_t n_servers, const struct hello *hello,
                                uint32_t limit_ms, const struct discovery_events *events,
                                void *owner) MUST_CHECK;

/* No event follows. The loop must run on until libuv has closed its handles. NULL is fine. */
void discovery_free(struct discovery *s);

/* All of the list. Borrowed. */
const struct address *discovery_servers(const struct discovery *s, uint32_t *ret_n);

void discovery_tick(struct discovery *s, uint64_t now_ms);

#endif
