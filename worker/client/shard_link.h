/*
 * The client's link to one shard: reconnects, delivers every push exactly once and in order, and gets
 * every pull answered, also when connections break.
 *
 *     phase      waits for                    leaves it by
 *     AWAY       the end of the backoff       -> DIALING
 *     DIALING    TCP                          -> HANDSHAKE
 *     HANDSHAKE  HelloReply                   -> GREETED; a reader -> TABLES
 *     GREETED    events.may_join              -> JOINING
 *     JOINING    JoinReply                    -> TABLES; if fenced: shard_link_rejoin() -> AWAY
 *     TABLES     a TableReply for each table  -> READY; unapplied pushes are sent again
 *     READY      nothing: requests flow       shard_link_leave() -> LEAVING
 *     LEAVING    LeaveReply                   -> OVER
 *     OVER       shard_link_free()
 *
 * A broken connection, a shard that stays silent, and an answer that makes no sense lead from
 * any state to AWAY (from LEAVING to OVER). A permanent refusal leads to OVER. So does a push that is not
 * acknowledged within give_up_ms, however often the link reconnects.
 *
 * Time is an argument: shard_link_tick() must be called every few milliseconds. All functions run on
 * the loop's thread, and events come from shard_link_tick(), from the calls below and from the loop.
 */
#ifndef WORKER_CLIENT_SHARD_LINK_H
#define WORKER_CLIENT_SHARD_LINK_H

#include "common/address.h"
#include "proto/channel_loop.h"
#include "proto/message.h"
#include "worker/client/request.h"

/* Events for the owner. */
struct shard_link_events {
    /* Connected, joined, all tables known: at the start, and after every return. */
    void (*ready)(void *owner, uint32_t shard, const struct join_reply *joined);

    /* The first unacknowledged push is acknowledged; reply->status may be a refusal. The request
     * is freed after the call. */
    void (*pushed)(void *owner, uint32_t shard, const struct request *push,
                   const struct push_reply *reply);

    /* The pull was answered or refused. The reply's values are borrowed until the call returns.
     */
    void (*pulled)(void *owner, uint32_t shard, const struct request *pull,
                   const struct pull_reply *reply);

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

    /* Called before a heartbeat is sent: fills in the suspects that it names (zeroed). */
    void (*fill_beat)(void *owner, uint32_t shard, struct suspects *ret);

    /* The heartbeat was answered; the workers that the shard suspects, and those that it was told of and hears. */
    void (*beat_answered)(void *owner, uint32_t shard, const struct suspects *suspects,
                          const struct suspects *doubted);

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
};

struct shard_link;

/* Starts to connect at the next shard_link_tick(). `config` is copied. NULL without memory. */
struct shard_link *shard_link_new(struct channel_loop *channels,
                                  const struct shard_link_config *config,
                                  const struct shard_link_events *events, void *owner)
    MUST_CHECK;

/* Drops everything; no event follows. The loop must run on until libuv has closed the connection. */
void shard_link_free(struct shard_link *l);

void shard_link_tick(struct shard_link *l, uint64_t now_ms);

/* Takes ownership. Sent now, or once the link is READY. */
void shard_link_push(struct shard_link *l, struct request *push);

/* Takes ownership. Sent now, or once the link is READY and the shard has answered enough of the others
 * (pull_queue.h); answered in any order. After shard_link_drop_ended_pulls() a late answer to one that has ended is
 * ignored. */
void shard_link_pull(struct shard_link *l, struct request *pull);
void shard_link_drop_ended_pulls(struct shard_link *l);

/* Requests between the two leave together, as far as they can. */
void shard_link_cork(struct shard_link *l);
void shard_link_uncork(struct shard_link *l);

/* Requests a table, now and after every reconnect; tables are numbered from 0. Its space was reserved before.
 * shard_link_drop_table() removes the last one. */
int shard_link_reserve_table(struct shard_link *l) MUST_CHECK;
void shard_link_table(struct shard_link *l, const struct table_request *request);
void shard_link_drop_table(struct shard_link *l);

/* Drops pushes and pulls, and joins as another incarnation after delay_ms. */
void shard_link_rejoin(struct shard_link *l, uint64_t incarnation, uint64_t clock,
                       uint32_t delay_ms);

/* The shard is at another address: drops the connection, or the attempt of one, and dials there at the next tick. What
 * follows is as after every lost connection. */
void shard_link_move(struct shard_link *l, const struct address *address);

/* True if the shard has answered the handshake of this connection. */
bool shard_link_is_greeted(const struct shard_link *l);

/* True if the shard has answered this worker nothing for a lease, so that it may not hear it any more. */
bool shard_link_is_silent(const struct shard_link *l);

/* Sends a heartbeat at the next tick: this process stood still for a while, or has a suspicion to relay. */
void shard_link_beat_soon(struct shard_link *l);

/* Steps that the worker has finished, for heartbeats and joins. */
void shard_link_set_clock(struct shard_link *l, uint64_t clock);

/* Leaves the job, also if the join or a table is under way; events.left follows, at once if the shard is away. */
void shard_link_leave(struct shard_link *l);

#endif
