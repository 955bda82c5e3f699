/*
 * Compares a shard with "the state after clock c" of a job, on which all shards of a cluster agree without
 * messages. README.md, "Sync points", describes this state for each mode, and how a node checkpoints it.
 *
 *     state   pushes of clocks up to c                         of later clocks
 *     EARLY   a counted worker has not finished c, or c is     any
 *             not combined
 *     EXACT   all have changed their rows                      none has
 *     PAST    all have changed their rows                      some have, too
 */
#ifndef SERVER_CORE_SYNC_POINT_H
#define SERVER_CORE_SYNC_POINT_H

#include "server/core/shard.h"

enum sync_point { SYNC_POINT_EARLY, SYNC_POINT_EXACT, SYNC_POINT_PAST };

/* To be called after an event of the job (shard_events.h): a push, a combined clock, an end, a moved-up
 * clock. An unknown job is EARLY. The clocks describe only tables that no other job pushes to. */
enum sync_point sync_point_of(const struct shard *s, const char *job, uint64_t clock) ON_SHARD;

/* Steps of the job whose rows have all changed: clocks up to n - 1 are not EARLY. The job is one of the
 * shard's membership. */
uint64_t sync_point_n_steps(const struct shard *s, const struct job *job) ON_SHARD;

/* Held pushes of the job that have rows for this shard. */
uint64_t sync_point_n_held(const struct shard *s, const struct job *job) ON_SHARD;

/*
 * The sync points of an SSP job (shard_config.sync_steps = N): steps N, 2N, 3N ... of its clock, known to
 * every shard without messages. No row of step kN or later is read or changed before every counted worker
 * has finished the first kN steps; so the event of the last arrival is EXACT.
 *
 *     step     0  1 ..  N-1 |  N     N+1 ..  2N-1 | 2N
 *     bound    0  1 ..  s   |  0     1   ..  s    | 0      a pull's largest lead over min clock
 */

/* The last sync point at or before that clock; 0: none. */
uint64_t sync_point_before(const struct shard *s, const struct job *job, uint64_t clock);

/* A push of that clock, its worker's next, reports that all earlier steps are finished: moves the worker
 * up to a sync point that it has passed (else two such workers would wait for each other). 0 if the push
 * may take effect; -EBUSY and a sentence if another worker has not arrived. */
int sync_point_arrive(const struct shard *s, struct worker *worker, uint64_t clock,
                      struct err *err) MUST_CHECK;

#endif
