/*
 * Which psd is the primary of each node's shards, as a client knows it: the greatest term that anybody has said counts,
 * and a smaller one is never believed again.
 *
 * Where a node has, or had, a standby, the primary and the standby are watched: so the client hears of a
 * new primary from either of them, also when the old one is still there, or stands still. Where no node has one, nobody
 * is watched, and nothing is sent. One thing more: while a node's shards are away, and the user has named servers that
 * the list of nodes does not have, these are asked, too: a client that starts after a standby has taken over knows it
 * from there.
 *
 * Time is an argument; all functions run on the loop's thread.
 */
#ifndef WORKER_CLIENT_GROUP_WATCH_H
#define WORKER_CLIENT_GROUP_WATCH_H

#include "common/address.h"
#include "proto/channel_loop.h"
#include "proto/message.h"

struct group_watch;

struct group_watch_config {
    struct channel_loop *channels; /* borrowed */
    const struct hello *hello;     /* copied: token and name */
    const struct address *servers; /* copied: those that the user has named */
    uint32_t n_servers;
    const struct address *found; /* copied: one of them, which has sent this: */
    const struct hello_reply
        *reply; /* read: the nodes, and what it knows of the groups. Status 0 or PS_EMOVED */
    /* The shards of `node` are at `to` from here on. */
    void (*moved)(void *owner, uint32_t node, const struct address *from,
                  const struct address *to, uint64_t term);
    void *owner; /* borrowed */
};

/* Asks nobody before the first tick. -EINVAL: the address of a node, with a sentence. -ENOMEM. */
int group_watch_new(const struct group_watch_config *config, struct group_watch **ret,
                    struct err *err) MUST_CHECK;

/* No event follows. The loop must run on until libuv has closed the connections. NULL is fine. */
void group_watch_free(struct group_watch *g);

/* Where the shards of `node` are. Borrowed until the next event. */
const struct address *group_watch_at(const struct group_watch *g, uint32_t node);

/* What some psd of the cluster says. May move nodes. */
void group_watch_learn(struct group_watch *g, const struct groups *groups);

/* Has the node's primary had a greater term than a psd that knows this? Then it is not the primary any more. */
bool group_watch_is_behind(const struct group_watch *g, uint32_t node,
                           const struct groups *groups);

/* Have primary and standby both been asked who the primary is, or tried in vain? Else who serves the node's shards may
 * be an old primary that has not heard of the new one. At most 16 s after a member's address was heard of. */
bool group_watch_is_sure(const struct group_watch *g, uint32_t node);

/* The node has something to say of its group: it is asked, if it is not yet. */
void group_watch_ask(struct group_watch *g, uint32_t node);

/* A shard of the node is not there, or all of them are. */
void group_watch_set_away(struct group_watch *g, uint32_t node, bool is_away);

void group_watch_tick(struct group_watch *g, uint64_t now_ms);

/* False: it makes a connection, or is about to. NULL is fine. */
bool group_watch_is_quiet(const struct group_watch *g);

#endif
