/*
 * What a link (link.h) is told by its owner, and what it tells the owner.
 */
#ifndef WORKER_CLIENT_LINK_OWNER_H
#define WORKER_CLIENT_LINK_OWNER_H

#include "proto/message.h"
#include "worker/client/address.h"
#include "worker/client/parcel.h"

struct link_events {
    /* Connected, joined, all tables known: at the start, and after every return. */
    void (*ready)(void *owner, uint32_t shard, const struct join_reply *joined);

    /* The first unacknowledged push was judged: reply->status may be a refusal. The parcel is
     * freed after the call. */
    void (*pushed)(void *owner, uint32_t shard, const struct parcel *push,
                   const struct push_reply *reply);

    /* The pull was answered or refused. The reply's values are borrowed until the call returns.
     */
    void (*pulled)(void *owner, uint32_t shard, const struct parcel *pull,
                   const struct pull_reply *reply);

    /* A table that link_table() asked for is known or refused. */
    void (*told)(void *owner, uint32_t shard, uint32_t table, const struct table_reply *reply);

    /* This incarnation of the worker no longer counts (or the shard's count of its pushes makes
     * no sense). fenced_below: the smallest that the shard lets join; 0: it has not said. */
    void (*fenced)(void *owner, uint32_t shard, uint64_t fenced_below);

    void (*left)(void *owner, uint32_t shard);
    void (*min_clock)(void *owner, uint32_t shard, uint64_t min_clock);
    void (*traffic)(void *owner, uint64_t bytes_in,
                    uint64_t bytes_out); /* since the last such event */
    void (*reconnected)(void *owner, uint32_t shard, uint64_t n_resent);
    void (*notice)(void *owner, const char *sentence);

    /* The link has given up: its state is OVER. */
    void (*failed)(void *owner, uint32_t shard, int status, const char *sentence);
};

struct link_config {
    uint32_t shard; /* of the cluster, from 0 */
    struct address address;
    struct hello hello; /* shard: its index on the node; map_id: the cluster's */
    bool joins;         /* a worker; a reader does not */
    struct join join;   /* job, rank, incarnation ... */
    /* Pushes of this incarnation that another process had: all were judged up to the one number, some sent up to
     * the other. Those in between are the first ones that the link is given; the clock is that of the first. */
    uint64_t acked_seq, sent_seq, sent_clock;
    uint32_t connect_ms; /* until the shard is there for the first time */
    uint32_t give_up_ms; /* until it is back, or has answered a push */
    uint32_t answer_ms;  /* of silence, until something is done about it */
    bool compress;
};

#endif
