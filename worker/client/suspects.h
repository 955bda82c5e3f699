/*
 * How the shards of a job agree on the end of a worker that one of them no longer hears: this worker, which is connected
 * to all of them, tells each what the others suspect. A shard that suspects a worker refuses it, and still waits for it;
 * once all refuse it, all may go on without it, and have the same of its pushes but for those that were under way.
 *
 *     what a shard was told of a suspect            next
 *     nothing                                       a heartbeat goes out -> ASKED
 *     ASKED    to suspect it                        its reply -> REFUSES; connection lost -> nothing
 *     REFUSES  it                                   all shards do: agreed; connection lost before -> nothing
 *     AGREED   told that all do                     its reply -> DONE; connection lost -> REFUSES
 *     DONE     counts it no more                    all shards are: the suspect is forgotten; suspects it again -> REFUSES
 *
 * A connection that is lost may mean that the shard was restarted, and suspects nobody any more: so it is asked again.
 * Several workers may do this at the same time: a shard takes the same news any number of times.
 */
#ifndef WORKER_CLIENT_SUSPECTS_H
#define WORKER_CLIENT_SUSPECTS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/message.h"

struct suspects_relay;

struct suspects_relay *suspects_new(uint32_t n_shards);
/* NULL is fine. */
void suspects_free(struct suspects_relay *r);

/* Fills in what the next heartbeat to this shard says. One heartbeat to a shard is under way at a time. */
void suspects_ask(struct suspects_relay *r, uint32_t shard, struct suspects *ret);

/* The shard has taken the heartbeat; it suspects these workers. */
void suspects_answered(struct suspects_relay *r, uint32_t shard,
                       const struct suspects *suspected);

void suspects_lost(struct suspects_relay *r, uint32_t shard);

/* True if suspects_ask() has something to say to this shard. */
bool suspects_has_news(const struct suspects_relay *r, uint32_t shard);

#endif
