/*
 * Finds the cluster: asks the servers of a list in turn, again and again, until one tells of
 * all.
 *
 * Time is an argument, as in link.h; all functions run on the loop's thread.
 */
#ifndef WORKER_CLIENT_SEEK_H
#define WORKER_CLIENT_SEEK_H

#include "proto/channel_hub.h"
#include "proto/message.h"
#include "worker/client/address.h"

#define SEEK_SERVERS_MAX 64u

struct seek;

struct seek_events {
    /* `reply` is that of the server at `address`, status 0, counts checked. The seek is over.
     */
    void (*found)(void *owner, const struct address *address, const struct hello_reply *reply);
    void (*notice)(void *owner, const char *sentence);
    /* A refusal that waiting cannot mend, or limit_ms are over. */
    void (*failed)(void *owner, int status, const char *sentence);
};

/* Starts at the first seek_tick(). Everything is copied; hello->shard and map_id are set here.
 */
struct seek *seek_new(struct channel_hub *hub, const struct address *servers,
                      uint32_t n_servers, const struct hello *hello, uint32_t limit_ms,
                      const struct seek_events *events, void *owner);

/* No event follows. The loop needs to run on until libuv is through. NULL is fine. */
void seek_free(struct seek *s);

void seek_tick(struct seek *s, uint64_t now_ms);

#endif
