#include "server/requests/beat_learning.h"

#include <errno.h>

#include "common/clock.h"

void beat_learning_take(struct request_context *x, struct request *r, struct worker *worker,
                        const struct beat *beat)
{
    const int status = membership_learn(shard_membership(x->shard), worker, &beat->learning,
                                        r->now_ms, clock_unix_ms());

    if (status == -EINVAL)
        request_context_log(x, r->connection, "a report of learning", status,
                            learning_report_wrong(&beat->learning));
}

int beat_learning_take_reader(struct request_context *x, struct request *r,
                              const struct beat *beat)
{
    struct worker *worker =
        membership_worker(shard_membership(x->shard), beat->job, beat->rank);

    if (!access_may_join(&r->connection->access, beat->job))
        return PS_EDENIED;
    if (!worker || worker->state != WORKER_LEFT || worker->incarnation != beat->incarnation)
        return PS_ENOJOIN;
    beat_learning_take(x, r, worker, beat);
    return 0;
}
