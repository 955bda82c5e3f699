/*
 * Do the shards of the job agree on who takes part? A silent worker is first suspected, and dead when all shards refuse it; so
 * what a shard goes on without is nothing that another one still takes.
 *
 *     shard S declares an incarnation dead    every other shard has refused it before (proto/README.md, "Suspects"); by itself
 *                                             only where the job starts afresh, as S heard no worker of it
 *     S combines a clock without a push that  S has not acknowledged it, and it is the last of its incarnation, unless S was
 *     T has in it                             restarted; and if that was declared dead at S, T took the push before
 *     a suspect                               ends within AGREE_LEASES, while as many workers that relay are heard at all
 *                                             shards as each shard believes, and no push of theirs waits for a log: such a
 *                                             push renews a lease, but lets no heartbeat of its connection through
 *
 * A shard that is started again has forgotten whom it refused, and is told once more: what it takes until then is allowed.
 */
#ifndef TESTS_SIM_AGREE_H
#define TESTS_SIM_AGREE_H

#include "tests/sim/world.h"

#define AGREE_LEASES 2u

/* The shard has recorded this; the model has it. */
void agree_recorded(struct world *w, uint32_t shard, const struct fact *fact);

/* A join is looked at, and has been: it may start the job afresh. */
void agree_begin_join(struct world *w, uint32_t shard);
void agree_end_join(struct world *w, uint32_t shard);

/* Of a plan without faults of workers (plan_is_exact()): where a shard has combined a clock without a worker, that one is dead
 * there, or some shard had suspected it, so that it came back as another incarnation at a later clock. */
void agree_check_end(const struct world *w, uint32_t shard);

/* How many clocks, from the first one on, it has combined with all workers: so many are those of a run that nothing
 * disturbs. */
uint64_t agree_n_whole(const struct world *w, uint32_t shard);

/* It may suspect others than before. */
void agree_suspected(struct world *w, uint32_t shard);

/* It is started again. */
void agree_started(struct world *w, uint32_t shard);

/* Its loop has gone round. */
void agree_turn(struct world *w, uint32_t shard);

/* A worker has joined: is what it is told to be lost (JoinReply.lost_first, lost_last) what is lost? */
void agree_joined(struct world *w, uint32_t shard, const struct membership_join *join,
                  const struct worker *worker);

#endif
