/*
 * How a shard stands to "the state after clock c" of a job, which all shards of a cluster can agree on
 * without a word between them. README.md, "A cut", says what that is for each mode, and how a node makes
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

#endif
