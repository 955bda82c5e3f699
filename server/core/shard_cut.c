#include "server/core/shard_cut.h"

#include "server/core/shard_lockstep.h"

enum shard_cut shard_cut_of(const struct shard *s, const char *job, uint64_t clock)
{
    const struct worker *any = roster_worker(s->roster, job, 0);
    const struct shard_queue *q = s->queues;

    if (!any || !job_all_ticked(any->job, clock))
        return SHARD_CUT_EARLY;
    while (q && (q->job != any->job || q->run != any->job->run))
        q = q->next;
    /* All have ticked past it, but there was no memory to combine it. */
    if (q && q->first->clock <= clock)
        return SHARD_CUT_EARLY;
    return any->job->reached <= clock + 1 ? SHARD_CUT_EXACT : SHARD_CUT_PAST;
}
