/*
 * May the copy be used? What the servers' answers say about it (store_mirror.h tells the rules).
 *
 *     used     --- a doubt, a rejoin --->   begins anew: a new generation
 *              --- too many doubts, rows left out --->   off, for good
 */
#ifndef WORKER_MIRROR_TRUST_H
#define WORKER_MIRROR_TRUST_H

#include "worker/mirror/replica.h"

#define TRUST_DROPS_MAX 8u /* for what others did */

struct trust {
    struct replica *replica; /* borrowed */
    bool off;
    bool
        limited; /* a server may leave rows out: pushes are acknowledged before the next pull */
    bool must_count; /* somebody may have pushed: the step counts are to be asked for */
    int doubt; /* not settled: PS_ESEQ, PS_ECOUNT as replica_take(); -EAGAIN: once; 0: none */
    uint32_t n_drops;
    uint64_t generation;  /* how often it began anew */
    struct ps_stats seen; /* of the servers, at the last look */
};

/* The copy begins anew. */
void trust_drop(struct trust *t) ON_SHARD;

/* The first one stands until it is settled. */
static inline void trust_doubt(struct trust *t, int status)
{
    if (status && !t->doubt)
        t->doubt = status;
}

/* Does what a doubt asks for, and says so. */
void trust_settle(struct trust *t) ON_SHARD;

/* What has happened since the last look: the doubt, and what the client library has counted. */
void trust_look(struct trust *t, const struct ps_stats *now) ON_SHARD;

#endif
