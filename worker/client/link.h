/*
 * The client's end of one shard: keeps a connection to it alive, and sees to it that every push
 * arrives exactly once and in order, and that every pull is answered, whatever the connection
 * does.
 *
 *     phase      waits for                    leaves it by
 *     AWAY       the end of the backoff       -> DIALING
 *     DIALING    TCP                          -> GREETING
 *     GREETING   HelloReply                   -> JOINING; a reader -> NAMING
 *     JOINING    JoinReply                    -> NAMING; if fenced: link_rejoin() -> AWAY
 *     NAMING     a TableReply for each table  -> READY; unapplied pushes are sent again
 *     READY      nothing: requests flow       link_leave() -> LEAVING
 *     LEAVING    LeaveReply                   -> OVER
 *     OVER       link_free()
 *
 * A broken connection, a shard that stays silent, and an answer that makes no sense lead from
 * any state to AWAY (from LEAVING to OVER). A refusal that trying again cannot mend leads to
 * OVER, and so does a push that is not judged within give_up_ms, whatever comes in between.
 *
 * Time is an argument: link_tick() must be called every few milliseconds. All functions run on
 * the loop's thread, and events come from link_tick(), from the calls below and from the loop.
 */
#ifndef WORKER_CLIENT_LINK_H
#define WORKER_CLIENT_LINK_H

#include "proto/channel_hub.h"
#include "worker/client/link_owner.h"

struct link;

/* Starts to connect at the next link_tick(). `config` is copied. */
struct link *link_new(struct channel_hub *hub, const struct link_config *config,
                      const struct link_events *events, void *owner);

/* Drops everything; no event follows. The loop needs to run on until libuv is through with the
 * connection. */
void link_free(struct link *l);

void link_tick(struct link *l, uint64_t now_ms);

/* Takes the parcel. Sent now or once the shard is there. */
void link_push(struct link *l, struct parcel *push);

/* Takes the parcel; one at a time. link_drop_pull() forgets it: a late answer is ignored. */
void link_pull(struct link *l, struct parcel *pull);
void link_drop_pull(struct link *l);

/* Asks for a table, now and after every reconnect; numbers count from 0. link_drop_table()
 * forgets the last one. */
void link_table(struct link *l, const struct table_request *request);
void link_drop_table(struct link *l);

/* Drops pushes and pull, and joins as another incarnation after delay_ms. */
void link_rejoin(struct link *l, uint64_t incarnation, uint64_t clock, uint32_t delay_ms);

/* At the next tick a joined link says that it lives: this process stood still for a while. */
void link_beat_soon(struct link *l);

/* Steps that the worker has finished: what beats and joins say. */
void link_set_clock(struct link *l, uint64_t clock);

/* Says goodbye; events.left follows, at once if the shard is away. */
void link_leave(struct link *l);

#endif
