#include "server/core/sync_point.h"

#include <errno.h>
#include <inttypes.h>

#include "server/core/bsp.h"

static const struct bsp_queue *queue_of(const struct shard *s, const struct job *job)
{
    const struct bsp_queue *q = s->queues;

    while (q && (q->job != job || q->run != job->run))
        q = q->next;
    return q;
}

enum sync_point sync_point_of(const struct shard *s, const char *job, uint64_t clock)
{
    const struct worker *any = membership_worker(s->membership, job, 0);
    const struct bsp_queue *q;

    /* Of a job that all have left the furthest clock counts. */
    if (!any || job_min_clock(any->job) <= clock)
        return SYNC_POINT_EARLY;
    q = queue_of(s, any->job);
    /* All have ticked past it, but there was no memory to combine it. */
    if (q && q->first->clock <= clock)
        return SYNC_POINT_EARLY;
    return any->job->applied_end <= clock + 1 ? SYNC_POINT_EXACT : SYNC_POINT_PAST;
}

uint64_t sync_point_n_steps(const struct shard *s, const struct job *job)
{
    const struct bsp_queue *q = queue_of(s, job);
    uint64_t ticked = job_min_clock(job);

    return q && q->first->clock < ticked ? q->first->clock : ticked;
}

uint64_t sync_point_n_held(const struct shard *s, const struct job *job)
{
    uint64_t n = 0;

    for (const struct bsp_queue *q = s->queues; q; q = q->next)
        for (const struct bsp_held *h = q->job == job ? q->first : NULL; h; h = h->next)
            n += h->n_sections > 0;
    return n;
}

uint64_t sync_point_before(const struct shard *s, const struct job *job, uint64_t clock)
{
    uint64_t every = job->mode == TABLE_SPEC_MODE_SSP ? s->config.sync_steps : 0;

    return every ? clock - clock % every : 0;
}

static int wait_for_others(const struct job *job, uint64_t clock, uint64_t sync_point,
                           struct err *err)
{
    uint64_t least = job_min_clock(job);
    uint32_t rank = 0;

    if (least >= sync_point)
        return 0;
    while (job->workers[rank].clock != least || !job_counts(&job->workers[rank]))
        rank++;
    return err_set(err, -EBUSY,
                   "a push of clock %" PRIu64 " waits for the sync point at %" PRIu64
                   ": worker %" PRIu32 " is at %" PRIu64,
                   clock, sync_point, rank, least);
}

int sync_point_arrive(const struct shard *s, struct worker *worker, uint64_t clock,
                      struct err *err)
{
    uint64_t sync_point = sync_point_before(s, worker->job, clock);

    if (!sync_point)
        return 0;
    if (worker->clock < sync_point) {
        worker->is_behind = false; /* all before this push are acknowledged */
        (void)membership_advance_clock(worker, sync_point);
    }
    return wait_for_others(worker->job, clock, sync_point, err);
}
