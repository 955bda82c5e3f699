#include "server/requests/job_share.h"

#include <errno.h>

#define JOBS_OF_ONE_MAX (MEMBERSHIP_N_JOBS_MAX / 4)
#define JOBS_OF_HOST_MAX (MEMBERSHIP_N_JOBS_MAX / 4 * 3)

int job_share_check(struct membership *membership, const struct connection *c,
                    const struct job *job, const char *name, struct err *err)
{
    uint32_t n_own = 0, n_of_host = 0;

    if (job && job_is_alive(job))
        return 0;
    for (uint32_t i = 0; i < membership_n_jobs(membership); i++) {
        const struct job *other = membership_job(membership, i);

        if (!job_is_alive(other))
            continue;
        n_own += c->worker.opener && other->opener == c->worker.opener;
        n_of_host += other->host == c->host;
    }
    if (n_own >= JOBS_OF_ONE_MAX)
        return err_set(
            err, -ENOSPC,
            "job %.64s: this connection has started %u jobs that have workers, which is "
            "its share",
            name, JOBS_OF_ONE_MAX);
    if (n_of_host >= JOBS_OF_HOST_MAX)
        return err_set(
            err, -ENOSPC,
            "job %.64s: this address has started %u jobs that have workers, which is its share",
            name, JOBS_OF_HOST_MAX);
    return 0;
}

static bool has_live_worker(const struct job *job)
{
    for (uint32_t i = 0; i < job->n_workers; i++)
        if (job->workers[i].state == WORKER_LIVE && !job->workers[i].is_given_up)
            return true;
    return false;
}

struct job *job_share_waiting(struct membership *membership)
{
    struct job *oldest = NULL;

    for (uint32_t i = 0; i < membership_n_jobs(membership); i++) {
        struct job *job = membership_job(membership, i);

        if (job_is_alive(job) && !has_live_worker(job) && (!oldest || job->run < oldest->run))
            oldest = job;
    }
    return oldest;
}
