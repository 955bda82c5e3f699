#include "server/joining.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/log.h"

/* From here on the connection speaks for the worker. */
static void remember_worker(struct connection *c, const struct join *join,
                            const struct worker *worker)
{
    c->worker.joined = true;
    snprintf(c->worker.job, sizeof c->worker.job, "%s", join->job);
    c->worker.rank = join->rank;
    c->worker.incarnation = join->incarnation;
    c->worker.join_number = worker->join_number;
}

static void tell_lost(const struct joining *j, const struct worker *worker)
{
    if (worker->n_lost)
        log_warn(
            "shard %u, job %s: %" PRIu64 " pushes that had been acknowledged to rank %u are "
            "lost: what was not synced when this shard ended (--durability fsync loses none), "
            "or its data directory is gone",
            j->shard_number, worker->job->name, worker->n_lost, worker->rank);
}

static void fill_answer(const struct joining *j, const struct worker *worker,
                        struct join_reply *answer)
{
    answer->last_applied = worker->last_seq;
    answer->clock = worker->clock;
    answer->min_clock = job_min_clock(worker->job);
    answer->lease_ms = j->lease_ms;
    answer->resumed = worker->resumed;
    answer->refused_seq = worker->refused_seq;
    answer->refused_status = worker->refused_status;
}

int joining_ask(const struct joining *j, const struct request *r, const struct join *asked,
                struct join_reply *answer, struct err *err)
{
    struct roster *roster = shard_roster(j->shard);
    struct roster_join wish = { .job = asked->job,
                                .rank = asked->rank,
                                .n_workers = asked->n_workers,
                                .incarnation = asked->incarnation,
                                .mode = asked->mode,
                                .bound = asked->bound,
                                .clock = asked->clock,
                                .last_acked = asked->last_acked,
                                .name = asked->name };
    struct worker *worker;
    int status;

    shard_settle(j->shard);
    status = roster_join(roster, &wish, r->now_ms, &worker, err);
    if (status == PS_EFENCED)
        answer->fenced_below = roster_fence(roster, asked->job, asked->rank);
    if (status)
        return status;
    remember_worker(r->connection, asked, worker);
    tell_lost(j, worker);
    fill_answer(j, worker, answer);
    return 0;
}
