/*
 * Whom a shard believes about a worker of the job (membership.h, "Suspicion"). A shard hears of other shards only from
 * the job's workers, and one of these may say what is not so: by mistake, or as an attacker. So
 *
 *     a worker is suspected     when its lease is over at this shard; or when two workers say that another shard
 *                               suspects it. It may be one of the two itself, if a shard does not answer it any more
 *     a suspect is dead         when two workers say that all shards refuse it; or one does, and this shard has taken
 *                               nothing of it for a lease. Only who said so since the shard refuses it counts
 *     a worker is given up      when its lease is over, and no worker of the job is heard: nobody could tell others
 *
 * One is enough where only one is there that could say so, in the moment when it says it. Then a worker that is
 * healthy, and was refused by the word of another one alone, has a lease to notice, and to end everywhere, before any
 * shard goes on without it.
 */
#ifndef SERVER_CORE_SUSPICION_H
#define SERVER_CORE_SUSPICION_H

#include "server/core/job.h"

bool suspicion_lease_is_over(const struct worker *w, uint32_t lease_ms, uint64_t now_ms);

/* Is a worker of the job heard that tells all shards of those that are suspected, as far as is known? */
bool suspicion_has_relay(const struct job *job, uint32_t lease_ms, uint64_t now_ms);

/* Is no live worker of the job heard, and would one of them relay, as far as is known? */
bool suspicion_is_deserted(const struct job *job, uint32_t lease_ms, uint64_t now_ms);

/* Adds a rank; false: it had said so before, or two others have. */
bool suspicion_add(struct witnesses *all, uint32_t rank);
bool suspicion_has(const struct witnesses *all, uint32_t rank);

/* LIVE and not suspected: is what workers say of it enough? */
bool suspicion_is_believed(const struct worker *w, uint32_t lease_ms, uint64_t now_ms);

/* Suspected: is it dead, as all shards refuse it? */
bool suspicion_is_agreed(const struct worker *w, uint32_t lease_ms, uint64_t now_ms);

/* Suspected: by this shard's own decision, of which nobody has been told? */
bool suspicion_is_private(const struct worker *w);

/* Suspected: the first worker that relays and has not said that all shards refuse it; NULL: there is none. */
const struct worker *suspicion_silent_relay(const struct worker *w, uint32_t lease_ms,
                                            uint64_t now_ms);

/* Another incarnation, or another life of the shard. */
void suspicion_clear(struct worker *w);

#endif
