#include "server/requests/membership_handler.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "common/clock.h"
#include "server/core/suspicion.h"
#include "server/core/table_admin.h"
#include "server/requests/deferred.h"

/* --- places of jobs: no single client takes all (MEMBERSHIP_N_JOBS_MAX) --- */

#define JOBS_OF_ONE_MAX (MEMBERSHIP_N_JOBS_MAX / 4)
#define JOBS_OF_HOST_MAX (MEMBERSHIP_N_JOBS_MAX / 4 * 3)

/* May this connection start the job, or its next run? `job`: as it is, or NULL. -ENOSPC: the connection, or its
 * address, has started as many that have workers as it may. */
static int check_share(struct membership *membership, const struct connection *c,
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

/* The job that has waited longest, without a live worker, for those that never came; or NULL. */
static struct job *find_waiting_job(struct membership *membership)
{
    struct job *oldest = NULL;

    for (uint32_t i = 0; i < membership_n_jobs(membership); i++) {
        struct job *job = membership_job(membership, i);

        if (job_is_alive(job) && !has_live_worker(job) && (!oldest || job->run < oldest->run))
            oldest = job;
    }
    return oldest;
}

/* --- join --- */

static void name_worker(struct connection_worker *w, const struct join *join)
{
    snprintf(w->job, sizeof w->job, "%s", join->job);
    w->rank = join->rank;
    w->incarnation = join->incarnation;
}

/* From here on the connection speaks for the worker. */
static void bind_connection(struct connection *c, const struct join *join,
                            const struct worker *worker)
{
    connection_joined(c);
    name_worker(&c->worker, join);
    c->worker.join_number = worker->join_number;
    if (!c->worker.opener)
        c->worker.opener = worker->join_number;
}

static bool speaks_for(const struct connection *c, const char *job, uint32_t rank,
                       uint64_t incarnation)
{
    return c->worker.joined && c->channel.state != CHANNEL_CLOSING &&
           c->worker.incarnation == incarnation && c->worker.rank == rank &&
           strcmp(c->worker.job, job) == 0;
}

/* Of the worker of `c`, if it has too many: one that is broken and not known to be is the oldest. */
static void end_oldest_connection(struct request_context *x, const struct connection *c)
    ON_SHARD
{
    struct connection *oldest = NULL;
    uint32_t n = 0;

    for (struct connection *i = c->set->first; i; i = i->next) {
        if (!speaks_for(i, c->worker.job, c->worker.rank, c->worker.incarnation))
            continue;
        n++;
        if (!oldest || i->worker.join_number < oldest->worker.join_number)
            oldest = i;
    }
    if (n <= MEMBERSHIP_HANDLER_CONNECTIONS_OF_ONE_MAX)
        return;
    request_context_log(x, oldest, "closed: connection", -EMFILE,
                        "its worker has joined on too many later ones");
    connection_close(oldest);
}

/* Where no place is left, a job without a live worker gives its own up, as if --join-timeout were over for it. */
static int find_place(struct request_context *x, const struct membership_join *member,
                      uint64_t now_ms, struct worker **ret, struct err *err) ON_SHARD
{
    struct membership *membership = shard_membership(x->shard);
    int status = membership_join(membership, member, now_ms, ret, err);
    struct job *job = status == -ENOSPC ? find_waiting_job(membership) : NULL;

    if (!job)
        return status;
    for (uint32_t i = 0; i < job->n_workers; i++)
        membership_give_up(membership, &job->workers[i]);
    (void)shard_advance(x->shard, now_ms);
    x->clock_moved = true;
    return membership_join(membership, member, now_ms, ret, err);
}

/* membership_join(), within the shares of jobs that a connection and an address have. */
static int join_job(struct request_context *x, struct connection *c,
                    const struct membership_join *member, uint64_t now_ms, struct worker **ret,
                    struct err *err) ON_SHARD
{
    struct membership *membership = shard_membership(x->shard);
    const struct worker *any = membership_worker(membership, member->job, 0);
    struct job *job = any ? any->job : NULL;
    uint64_t run_before = job ? job->run : 0;
    int status = check_share(membership, c, job, member->job, err);

    if (!status)
        status = find_place(x, member, now_ms, ret, err);
    if (status)
        return status;
    job = (*ret)->job;
    if (job->run != run_before || !job->host) { /* not known: of before a restart */
        job->opener = c->worker.opener ? c->worker.opener : (*ret)->join_number;
        job->host = c->host;
    }
    return 0;
}

static void log_lost_pushes(const struct request_context *x, const struct worker *worker)
{
    if (worker->n_lost)
        log_line_warn(
            "shard %u, job %s: %" PRIu64 " pushes that had been acknowledged to rank %u are "
            "lost: what was not synced when this shard ended (--durability fsync loses none), "
            "or its data directory is gone",
            x->shard_number, worker->job->name, worker->n_lost, worker->rank);
}

static void fill_join_reply(const struct request_context *x, const struct worker *worker,
                            struct join_reply *answer)
{
    answer->last_applied = worker->last_seq;
    answer->clock = worker->clock;
    answer->min_clock = job_min_clock(worker->job);
    answer->lease_ms = x->lease_ms;
    answer->resumed = worker->resumed;
    answer->refused_seq = worker->refused_seq;
    answer->refused_status = worker->refused_status;
    answer->lost_first = worker->lost_first;
    answer->lost_last = worker->lost_last;
    answer->skipped_clocks = worker->n_skipped;
    answer->n_backups = worker->job->n_backups;
}

/* Two processes that have chosen one incarnation would number their pushes alike. One that is dead, or whose host is,
 * holds its next process up for half a lease at most, as in membership_join(). */
static int check_process(struct request_context *x, const struct connection *c,
                         const struct join *asked, uint64_t now_ms, struct err *err) ON_SHARD
{
    const struct worker *worker =
        membership_worker(shard_membership(x->shard), asked->job, asked->rank);

    if (!worker || now_ms - worker->last_seen_ms >= x->lease_ms / 2 ||
        strcmp(worker->name, asked->name) == 0)
        return 0;
    for (const struct connection *i = c->set->first; i; i = i->next)
        if (i != c && speaks_for(i, asked->job, asked->rank, asked->incarnation))
            return err_set(
                err, -EBUSY,
                "job %.64s: another process, %.63s, is rank %u with this incarnation",
                asked->job, worker->name, asked->rank);
    return 0;
}

/* 0 and the answer; else membership_join()'s refusal, of PS_EFENCED with answer->fenced_below. */
static int join(struct request_context *x, const struct request *r, const struct join *asked,
                struct join_reply *answer, struct err *err) ON_SHARD
{
    struct membership *membership = shard_membership(x->shard);
    const struct worker *before = membership_worker(membership, asked->job, asked->rank);
    const struct membership_join member = { .job = asked->job,
                                            .rank = asked->rank,
                                            .n_workers = asked->n_workers,
                                            .incarnation = asked->incarnation,
                                            .mode = asked->mode,
                                            .bound = asked->bound,
                                            .n_backups = asked->n_backups,
                                            .clock = asked->clock,
                                            .last_acked = asked->last_acked,
                                            .name = asked->name,
                                            .relays = asked->relays && !x->is_alone };
    struct worker *worker;
    int status;

    if (request_is_from_reader(r))
        return err_set(err, -EPERM, "a reader joins no job");
    if (!access_may_join(&r->connection->access, asked->job))
        return request_context_deny(r->connection, "job", asked->job, err);
    status = table_admin_may_join(x->shard, asked->job, r->now_ms, err);
    if (!status)
        status = check_process(x, r->connection, asked, r->now_ms, err);
    /* The reply says which pushes of the rank have been applied. */
    if (!status && before && shard_is_pushing(x->shard, before))
        status = err_set(err, -EAGAIN, "a large push of this rank is under way");
    if (!status)
        status = join_job(x, r->connection, &member, r->now_ms, &worker, err);
    if (status == PS_EFENCED)
        answer->fenced_below = membership_fence(membership, asked->job, asked->rank);
    if (status)
        return status;
    bind_connection(r->connection, asked, worker);
    end_oldest_connection(x, r->connection);
    log_lost_pushes(x, worker);
    fill_join_reply(x, worker, answer);
    x->clock_moved = true;
    return 0;
}

int membership_handler_join(struct request_context *x, struct request *r)
{
    struct join_reply answer = { 0 };
    struct join asked = { 0 };
    struct bytes out = { 0 };
    struct err err = { 0 };
    int status = message_read_join(r->header, r->head, &asked);

    if (status && asked.wrong)
        err_set(&err, status, "a join's %s", asked.wrong);
    if (!status)
        status = join(x, r, &asked, &answer, &err);
    r->connection->joining = (struct connection_worker){ .joined = false };
    if (deferred_is_wanted(r, &status)) {
        name_worker(&r->connection->joining, &asked);
        return REQUEST_LATER;
    }
    answer.status = status;
    if (status)
        snprintf(answer.text, sizeof answer.text, "%s",
                 err.text[0] ? err.text : status_text(status));
    return request_context_reply(
        x, r, status, answer.text, &out,
        message_write_join_reply(&out, r->header->request_id, &answer));
}

/* --- beat: suspects, in it and in its reply (server/core/suspicion.h) --- */

/* What a worker has heard of others, and of itself. True if one of these stopped counting. */
static bool report_suspects(struct membership *membership, struct worker *from,
                            const struct suspects *all, uint64_t now_ms)
{
    bool any = false;

    from->doubts_itself = false;
    for (uint32_t i = 0; i < all->n; i++) {
        const struct membership_report report = { .from = from->rank,
                                                  .rank = all->items[i].rank,
                                                  .incarnation = all->items[i].incarnation,
                                                  .is_agreed = all->items[i].is_agreed };

        if (membership_suspect(membership, from->job, &report, now_ms))
            any = true;
    }
    return any;
}

/* For this worker: those that it has not said are refused by all. */
static void list_suspects(const struct worker *to, struct suspects *ret)
{
    const struct job *job = to->job;

    for (uint32_t i = 0; i < job->n_workers && ret->n < MESSAGE_SUSPECTS_MAX; i++) {
        struct worker *w = &job->workers[i];

        if (!w->is_suspected || w == to || suspicion_has(&w->agreed, to->rank))
            continue;
        w->is_reported = true;
        ret->items[ret->n++] = (struct suspect){ .rank = w->rank,
                                                 .incarnation = w->incarnation,
                                                 .clock = w->clock };
    }
}

/* Names what this shard does not do: the worker would take a plain answer for a refusal of all that it has ever named
 * here; older workers take each answer with status 0 so. */
static void list_doubted(const struct worker *to, const struct suspects *named,
                         struct status_reply *answer)
{
    const struct job *job = to->job;

    for (uint32_t i = 0; i < job->n_workers && !answer->status; i++) {
        if (!membership_doubts(&job->workers[i], to->rank))
            continue;
        answer->status = -EINPROGRESS;
        snprintf(answer->text, sizeof answer->text,
                 "rank %u is heard here, so another worker has to say, too, that a shard "
                 "suspects it",
                 i);
    }
    for (uint32_t i = 0; i < named->n; i++) {
        const struct suspect *s = &named->items[i];

        if (s->rank < job->n_workers && job->workers[s->rank].incarnation == s->incarnation &&
            membership_doubts(&job->workers[s->rank], to->rank))
            answer->doubted.items[answer->doubted.n++] = *s;
    }
}

/* --- beat: its worker's training (server/core/learning.h) --- */

/* Of numbers that make no sense the peer hears nothing, as its heartbeat renews a lease whatever stands in it: they are
 * ignored and logged. */
static void take_learning(struct request_context *x, struct request *r, struct worker *worker,
                          const struct beat *beat) ON_SHARD
{
    const int status = membership_learn(shard_membership(x->shard), worker, &beat->learning,
                                        r->now_ms, clock_unix_ms());

    if (status == -EINVAL)
        request_context_log(x, r->connection, "a report of learning", status,
                            learning_report_wrong(&beat->learning));
}

/* A worker that has left validates as a reader, and reports that as itself. PS_EDENIED; PS_ENOJOIN: it is not the one
 * that left. */
static int take_readers_learning(struct request_context *x, struct request *r,
                                 const struct beat *beat) ON_SHARD
{
    struct worker *worker =
        membership_worker(shard_membership(x->shard), beat->job, beat->rank);

    if (!access_may_join(&r->connection->access, beat->job))
        return PS_EDENIED;
    if (!worker || worker->state != WORKER_LEFT || worker->incarnation != beat->incarnation)
        return PS_ENOJOIN;
    take_learning(x, r, worker, beat);
    return 0;
}

/* --- beat, leave --- */

static int reply_status(struct request_context *x, const struct request *r, int result,
                        struct status_reply *answer) ON_SHARD
{
    struct bytes out = { 0 };

    if (result) {
        answer->status = result;
        snprintf(answer->text, sizeof answer->text, "%s", status_text(result));
    }
    return request_context_reply(
        x, r, result, answer->text, &out,
        message_write_status_reply(&out, (enum frame_type)(r->header->type + 1),
                                   r->header->request_id, answer));
}

int membership_handler_beat(struct request_context *x, struct request *r)
{
    struct status_reply answer = { 0 };
    struct worker *worker;
    struct beat beat;
    bool any = false;
    int result = message_read_beat(r->header, r->head, &beat), status;

    if (!result && request_is_from_reader(r) && beat.has_learning)
        return reply_status(x, r, take_readers_learning(x, r, &beat), &answer);
    if (!result)
        result = request_context_find_worker(x, r->connection, r->now_ms, &worker);
    if (!result && beat.has_learning)
        take_learning(x, r, worker, &beat);
    if (!result) {
        any = report_suspects(shard_membership(x->shard), worker, &beat.suspects, r->now_ms);
        answer.min_clock = job_min_clock(worker->job);
        if (x->groups)
            answer.groups_number = group_view_number(x->groups);
        list_suspects(worker, &answer.suspects);
        list_doubted(worker, &beat.suspects, &answer);
    }
    status = reply_status(x, r, result, &answer);
    if (any) {
        (void)shard_advance(x->shard, r->now_ms);
        x->clock_moved = true;
    }
    return status;
}

int membership_handler_leave(struct request_context *x, struct request *r)
{
    struct status_reply answer = { 0 };
    struct worker *worker;
    uint64_t clock;
    int result = message_read_leave(r->header, r->head, &clock), status;

    if (!result)
        result = request_context_find_worker(x, r->connection, r->now_ms, &worker);
    if (!result && shard_is_pushing(x->shard, worker))
        result = -EAGAIN; /* on another connection */
    if (deferred_is_wanted(r, &result))
        return REQUEST_LATER;
    if (!result) {
        membership_leave(shard_membership(x->shard), worker);
        connection_left(r->connection);
        answer.min_clock = job_min_clock(worker->job);
    }
    status = reply_status(x, r, result, &answer);
    if (!result) {
        (void)shard_advance(x->shard, r->now_ms);
        x->clock_moved = true;
    }
    return status;
}
