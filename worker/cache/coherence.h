/*
 * Whether the copy may be used, from the servers' answers (rules: param_store_exact_cache.h).
 *
 *     used     --- a doubt, a rejoin --->   emptied: a new generation
 *              --- too many doubts, rows left out --->   off, for good
 */
#ifndef WORKER_CACHE_COHERENCE_H
#define WORKER_CACHE_COHERENCE_H

#include "worker/cache/replica.h"

#define COHERENCE_DROPS_MAX 8u /* of the copy, for pushes of others */

struct coherence {
    struct replica *replica; /* borrowed */
    bool off;
    bool
        limited; /* a server may leave rows out: pushes are acknowledged before the next pull */
    bool
        must_count; /* another worker may have pushed: the next pull has to check the step counts */
    int doubt; /* not resolved: PS_ESEQ, PS_ECOUNT as replica_receive(); -EAGAIN: once; 0: none */
    uint32_t n_drops;
    uint64_t generation;  /* how often it was emptied */
    struct ps_stats seen; /* at the last check */
};

/* Empties the copy. */
void coherence_drop(struct coherence *t) ON_SHARD;

/* The first one stays until it is resolved. */
static inline void coherence_doubt(struct coherence *t, int status)
{
    if (status && !t->doubt)
        t->doubt = status;
}

/* Empties the copy or turns it off, as the doubt requires, and logs why. */
void coherence_resolve(struct coherence *t) ON_SHARD;

/* Resolves the doubt, and compares the client library's counters with those of the last check. */
void coherence_check(struct coherence *t, const struct ps_stats *now) ON_SHARD;

#endif
