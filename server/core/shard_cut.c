#include "server/core/shard_cut.h"

#include "server/core/shard_lockstep.h"

static const struct shard_queue *queue_of(const struct shard *s, const struct job *job)
{
    const struct shard_queue *q = s->queues;

    while (q && (q->job != job || q->run != job->run))
        q = q->next;
    return q;
}

enum shard_cut shard_cut_of(const struct shard *s, const char *job, uint64_t clock)
{
    const struct worker *any = roster_worker(s->roster, job, 0);
    const struct shard_queue *q;

    /* Of a job that all have left the furthest clock counts. */
    if (!any || job_min_clock(any->job) <= clock)
        return SHARD_CUT_EARLY;
    q = queue_of(s, any->job);
    /* All have ticked past it, but there was no memory to combine it. */
    if (q && q->first->clock <= clock)
        return SHARD_CUT_EARLY;
    return any->job->reached <= clock + 1 ? SHARD_CUT_EXACT : SHARD_CUT_PAST;
}

uint64_t shard_cut_n_steps(const struct shard *s, const struct job *job)
{
    const struct shard_queue *q = queue_of(s, job);
    uint64_t ticked = job_min_clock(job);

    return q && q->first->clock < ticked ? q->first->clock : ticked;
}

uint64_t shard_cut_n_held(const struct shard *s, const struct job *job)
{
    uint64_t n = 0;

    for (const struct shard_queue *q = s->queues; q; q = q->next)
        for (const struct shard_held *h = q->job == job ? q->first : NULL; h; h = h->next)
            n += h->n_sections > 0;
    return n;
}
