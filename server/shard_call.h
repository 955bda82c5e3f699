/*
 * A call from the main thread to one of this node's shards. A function runs on the shard's thread, then its result is
 * handled on the main thread. To ask several shards, call the next one from `answered`.
 *
 *     main thread:   shard_call_start              answered: shard_call_start for the next shard, or the end
 *     shard:                          ask -> err
 */
#ifndef SERVER_SHARD_CALL_H
#define SERVER_SHARD_CALL_H

#include "common/mailbox.h"
#include "server/shard_thread.h"

/* Borrowed until the last call is answered. */
struct shard_call_config {
    struct mailbox *mailbox;            /* the main thread's; outlives the shards */
    const struct hello_reply *map;      /* the cluster's nodes */
    struct shard_thread *const *shards; /* of this node, map->shards_per_node */
};

/* A member of the caller's request; it stays where it is until `answered`. */
struct shard_call {
    struct mail mail; /* this module's */
    struct shard_call_config config;
    /* On the shard's thread (ON_SHARD). Its status becomes err.status; a sentence is its own to set. */
    int (*ask)(struct shard_call *call, struct shard_thread *t);
    /* On the main thread (ON_MAIN). May call the next shard, or free what this is a member of. */
    void (*answered)(struct shard_call *call);
    uint32_t shard; /* of this node: the one that is called, or was last */
    struct err err; /* of the last answer */
};

/* Calls the shard of that number on this node; err is zeroed before. PS_ESTOPPING, without a sentence: the shard takes
 * no calls any more, and neither function is called. */
int shard_call_start(struct shard_call *call, uint32_t shard) ON_MAIN MUST_CHECK;

#endif
