/*
 * What a link to a shard (shard_link.h) is given, and what it tells its owner.
 */
#ifndef WORKER_CLIENT_LINK_TYPES_H
#define WORKER_CLIENT_LINK_TYPES_H

#include "common/address.h"
#include "proto/channel_loop.h"
#include "proto/message.h"
#include "worker/client/request.h"

struct io_thread;

/* Events for the owner. */
struct shard_link_events {
    /* Connected, joined, all tables known: at the start, and after every return. */
    void (*ready)(void *owner, uint32_t shard, const struct join_reply *joined);

    /* The first unacknowledged push is acknowledged; reply->status may be a refusal. The request
     * is freed after the call. */
    void (*pushed)(void *owner, uint32_t shard, const struct request *push,
                   const struct push_reply *reply);

    /* The pull was answered or refused. The reply's values are borrowed until the call returns. `values`: NULL, or the
     * buffer that they are in, which the owner may take if it leaves another one without bytes in its place. */
    void (*pulled)(void *owner, uint32_t shard, const struct request *pull,
                   const struct pull_reply *reply, struct bytes *values);

    /* The handshake was answered by a node of the cluster, maybe with a refusal; the reply says what it knows of the
     * groups. False: the link drops this connection, as the node is behind, or as the owner has moved the link. */
    bool (*greeted)(void *owner, uint32_t shard, const struct hello_reply *reply);

    /* A table that shard_link_table() asked for is known or refused. */
    void (*table)(void *owner, uint32_t shard, uint32_t table, const struct table_reply *reply);

    /* This incarnation of the worker is fenced, or the shard's count of its pushes makes no sense. fenced_below: the
     * smallest incarnation that the shard lets join; 0: unknown. */
    void (*fenced)(void *owner, uint32_t shard, uint64_t fenced_below);

    /* True if a shard that is GREETED may be joined, and one that is READY gets heartbeats. Called at each tick. */
    bool (*may_join)(void *owner);

    /* True if there is a report of learning for this shard: a heartbeat goes soon, a reader's too. */
    bool (*has_report)(void *owner, uint32_t shard);

    /* Called before a heartbeat is sent: fills in the suspects and the report (all zeroed). */
    void (*fill_beat)(void *owner, uint32_t shard, struct beat *ret);

    /* The heartbeat was answered; the workers that the shard suspects, and those that it was told of and hears. */
    void (*beat_answered)(void *owner, uint32_t shard, const struct suspects *suspects,
                          const struct suspects *doubted);

    /* The node knows more of the groups than when it answered the handshake: it may have a standby now. */
    void (*groups_changed)(void *owner, uint32_t shard);

    /* True while shards of the job are being told of a suspect. */
    bool (*has_suspects)(void *owner);

    /* The connection has ended: its requests get no answer. */
    void (*lost)(void *owner, uint32_t shard);

    void (*left)(void *owner, uint32_t shard);
    void (*min_clock)(void *owner, uint32_t shard, uint64_t min_clock);
    void (*traffic)(void *owner, uint64_t bytes_in,
                    uint64_t bytes_out); /* since the last such event */
    void (*reconnected)(void *owner, uint32_t shard, uint64_t n_resent);
    /* Pushes that waited after that. */
    void (*resent)(void *owner, uint32_t shard, uint64_t n_pushes);
    void (*notice)(void *owner, const char *sentence);

    /* The link has given up: its state is OVER. */
    void (*failed)(void *owner, uint32_t shard, int status, const char *sentence);
};

struct shard_link_config {
    uint32_t shard; /* of the cluster, from 0 */
    struct address address;
    struct hello hello; /* shard: its index on the node; map_id: the cluster's */
    bool joins;         /* a worker; a reader does not */
    struct join join;   /* job, rank, incarnation ... */
    /* Pushes of this incarnation that another process had: all are acknowledged up to acked_seq, some sent up to
     * sent_seq. Those in between are the first that shard_link_push() gets; sent_clock is the clock of the first. */
    uint64_t acked_seq, sent_seq, sent_clock;
    uint32_t connect_ms; /* until the shard is there for the first time */
    uint32_t give_up_ms; /* until it is back, or has answered a push */
    uint32_t answer_ms;  /* of silence, until something is done about it */
    bool compress;
    bool names_keys; /* pushes name the keys of their pulls (named_pulls.h) */
    struct io_thread
        *io; /* borrowed: has its connections; NULL: they are of the links' own loop */
};

#endif
