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

#include "worker/client/link_types.h"

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
