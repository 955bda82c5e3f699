/*
 * How a shard stands to "the state after clock c" of a job, which all shards of a cluster can agree on
 * without a word between them, and what makes sure that there is such a state. README.md, "A cut", says what that is for each mode, and how a node makes
 * a checkpoint of it.
 *
 *     state   pushes of clocks up to c               of later clocks
 *     EARLY   a counted worker has still to finish
 *             c, or c has still to be combined
 *     EXACT   all have changed their rows            none has
 *     PAST    all have changed their rows            some have, too
 */
#ifndef SERVER_CORE_SHARD_CUT_H
#define SERVER_CORE_SHARD_CUT_H

#include "server/core/shard.h"

enum shard_cut { SHARD_CUT_EARLY, SHARD_CUT_EXACT, SHARD_CUT_PAST };

/* To be asked when an event of the job has been told (shard_journal.h): a push, a combined clock, an end,
 * a moved-up clock. A job that is not there is EARLY. Only rows of tables that this job pushes to alone
 * are what its clocks say. */
enum shard_cut shard_cut_of(const struct shard *s, const char *job, uint64_t clock) ON_SHARD;

/* How many steps of the job have changed rows, all of each: of clock n - 1 and below it is not EARLY. The
 * job is one of the shard's roster. */
uint64_t shard_cut_n_steps(const struct shard *s, const struct job *job) ON_SHARD;

/* Its pushes that wait for their clock, of those that have a row for it. */
uint64_t shard_cut_n_held(const struct shard *s, const struct job *job) ON_SHARD;

/*
 * Where a job in bounded staleness meets (shard_config.meet_steps = N): at steps N, 2N, 3N ... of its
 * clock, known to every shard without a word. Nothing of step kN or later is read or changed before
 * every counted worker has finished the kN steps in front of it; so the event with which the last one
 * has is EXACT.
 *
 *     step     0  1 ..  N-1 |  N     N+1 ..  2N-1 | 2N
 *     bound    0  1 ..  s   |  0     1   ..  s    | 0      of what a pull may be ahead of min clock
 */

/* The last meeting that a pull or push of that clock is behind; 0: none. */
uint64_t shard_cut_met(const struct shard *s, const struct job *job, uint64_t clock);

/* A push of that clock, its worker's next, says that all steps before it are finished: moves the worker up to
 * the meeting where it has passed it by (or two who did would wait for each other). May the push take
 * effect, or has somebody still to come? -EBUSY and a sentence. */
int shard_cut_arrive(const struct shard *s, struct worker *worker, uint64_t clock,
                     struct err *err) MUST_CHECK;

#endif
