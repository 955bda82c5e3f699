/*
 * The relay of suspicions. The shards of a job must agree that a worker is dead, as a worker that is silent at one
 * shard may still reach others. Workers are connected to all shards, so their heartbeats carry suspicions between the
 * shards. A shard that suspects a worker refuses it, but still waits for it. Once all shards refuse it, all may go on
 * without it. Then all have the same pushes of it, except those that were under way.
 *
 *     state    of one suspect at one shard                next
 *     NOTHING  the shard has not confirmed it             a heartbeat names the suspect -> ASKED
 *     DOUBTED  it hears the worker, and waits for another the next heartbeat that is due names it again -> ASKED
 *              one that says so, too
 *     ASKED    a heartbeat asks the shard to suspect it   its reply -> REFUSES, or DOUBTED; connection lost -> NOTHING
 *     REFUSES  the shard refuses the worker               once all shards do, a heartbeat says so -> AGREED;
 *                                                         connection lost before that -> NOTHING
 *     AGREED   a heartbeat reports the agreement          its reply -> DONE; connection lost -> REFUSES
 *     DONE     the shard has declared it dead             when all shards are DONE the entry is removed;
 *                                                         the shard suspects it again -> REFUSES
 *
 * A suspect that no shard refuses any more is forgotten.
 *
 * After a lost connection the shard is asked again, because it may have been restarted without its suspicions. Several
 * workers may relay the same suspicion: a shard accepts it any number of times.
 */
#ifndef WORKER_CLIENT_SUSPECTS_H
#define WORKER_CLIENT_SUSPECTS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/message.h"

struct suspects_relay;

/* NULL without memory. */
struct suspects_relay *suspects_new(uint32_t n_shards) MUST_CHECK;
/* NULL is fine. */
void suspects_free(struct suspects_relay *r);

/* Fills in the suspects of the next heartbeat to this shard. One heartbeat to a shard is under way at a time. */
void suspects_ask(struct suspects_relay *r, uint32_t shard, struct suspects *ret);

/* The shard has answered the heartbeat; `suspected`: the workers that it suspects; `doubted`: those that the heartbeat
 * named and it does not. */
void suspects_answered(struct suspects_relay *r, uint32_t shard,
                       const struct suspects *suspected, const struct suspects *doubted);

/* The connection to the shard was lost. */
void suspects_lost(struct suspects_relay *r, uint32_t shard);

/* True if there is a suspect that some shard still counts. */
bool suspects_are_open(const struct suspects_relay *r);

/* True if a heartbeat is to tell this shard of a suspect now. */
bool suspects_has_update(const struct suspects_relay *r, uint32_t shard);

#endif
