/*
 * In the order of a request: on_request -> a row of `handlers` -> core -> reply. Nothing below calls back up here.
 *
 * A handler returns what went wrong with the connection, which ends it: a refused request is an
 * answered one.
 */
#include "server/requests/dispatch.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/memory.h"
#include "server/core/lock_step.h"
#include "server/core/table_admin.h"
#include "server/requests/beat_learning.h"
#include "server/requests/beat_suspects.h"
#include "server/requests/deferred.h"
#include "server/requests/job_share.h"
#include "server/requests/push_handler.h"

#define STEP_MS_MAX 500u           /* by which the shard's time moves at once */
#define PRECHECK_BYTES (32u << 10) /* of a push, come since the last time */

struct dispatch {
    struct dispatch_config config;
    struct request_context context;
    struct pull_handler *pulls;    /* owned */
    struct push_handler *pushes;   /* owned */
    struct fetch_handler *fetches; /* owned */
    struct deferred deferred;      /* joins, tables, leaves */
    struct unpack_queue *bodies;   /* owned: of long pushes and pulls that came compressed */
    struct bytes out;              /* the reply being made; empty in between */
    struct push precheck;          /* push_handler_precheck()'s scratch */
    uv_idle_t idle;                /* active while there is more to do than events bring */
    uint64_t n_idle;
    uint64_t n_left_out; /* new rows that found no place, as the log has them */
    struct dispatch_full_tables full_tables;
    uint64_t now_ms, loop_ms; /* shard's time, and the loop's when it was taken */
    enum { DISPATCH_OPEN, DISPATCH_STOPPED } state;
};

static int on_late(void *owner, struct request *r);

struct dispatch *dispatch_new(const struct dispatch_config *config)
{
    struct dispatch *d = memory_alloc(sizeof *d);
    struct pull_handler_config pulls = { .context = &d->context,
                                         .park_max_ms = config->park_max_ms };

    d->config = *config;
    d->context = (struct request_context){ .shard = config->shard,
                                           .loop = config->loop,
                                           .channels = config->channels,
                                           .replies = config->replies,
                                           .shard_number = config->shard_number,
                                           .frame_max_bytes = config->frame_max_bytes,
                                           .compress_replies = config->compress_replies };
    request_context_init(&d->context);
    d->pulls = pull_handler_new(&pulls);
    d->pushes = push_handler_new(&d->context);
    d->fetches = fetch_handler_new(&(struct fetch_handler_config){
        .context = &d->context, .on_space = config->on_space, .owner = config->owner });
    deferred_init(&d->deferred, config->wait_max_ms);
    d->bodies = unpack_queue_new(
        &(struct unpack_queue_config){ config->loop, config->shard_number, on_late, d });
    uv_idle_init(config->loop, &d->idle);
    d->idle.data = d;
    d->loop_ms = uv_now(config->loop);
    d->now_ms = d->loop_ms;
    return d;
}

void dispatch_free(struct dispatch *d)
{
    if (!d)
        return;
    pull_handler_free(d->pulls);
    push_handler_free(d->pushes);
    fetch_handler_free(d->fetches);
    unpack_queue_free(d->bodies);
    deferred_deinit(&d->deferred);
    request_context_deinit(&d->context);
    bytes_deinit(&d->out);
    free(d);
}

uint64_t dispatch_now_ms(struct dispatch *d)
{
    uint64_t loop_ms = uv_now(d->config.loop), step_ms = loop_ms - d->loop_ms;

    d->now_ms += step_ms < STEP_MS_MAX ? step_ms : STEP_MS_MAX;
    d->loop_ms = loop_ms;
    return d->now_ms;
}

/* A beat says that we live, a refusal that nothing happened; a reader reads what is there, safe or not. */
static bool promises_nothing(const struct request *r, int result)
{
    return r->header->type == FRAME_BEAT || result || request_is_from_reader(r);
}

/* Sends d->out, the reply to *r that says `result`, once all that it may promise is safe.
 * `write_status`: whether there is a reply to send. */
static int reply(struct dispatch *d, const struct request *r, int result, const char *sentence,
                 int write_status) ON_SHARD
{
    struct reply_timing timing = { &d->context.requests[r->header->type], r->start_ns };

    if (write_status)
        return write_status;
    if (result)
        request_context_log(&d->context, r->connection, frame_type_name(r->header->type),
                            result, sentence);
    timing.requests->n_refused += result != 0;
    if (promises_nothing(r, result)) {
        histogram_record(&timing.requests->latency_ns, uv_hrtime() - r->start_ns);
        return connection_send(r->connection, &d->out);
    }
    return reply_queue_send(d->config.replies, r->connection, &d->out, &timing);
}

/* The worker that speaks on this connection; its lease is renewed. */
static int find_worker(struct dispatch *d, const struct request *r, struct worker **ret_worker)
    ON_SHARD
{
    return request_context_find_worker(&d->context, r->connection, r->now_ms, ret_worker);
}

/* Pushes may have moved a clock, or a combined one has changed its last row: answers the parked pulls that waited for
 * it. */
static void after_push(struct dispatch *d) ON_SHARD
{
    if (!lock_step_has_combined(d->config.shard) && !d->context.clock_moved)
        return;
    d->context.clock_moved = false;
    pull_handler_retry(d->pulls);
}

/* --- in slices --- */

static void retry_deferred(struct dispatch *d) ON_SHARD;

/* Whatever waited for the end of a push goes before the next one begins. Many pushes may have waited for the log: while
 * there are readers they go on a slice at a time. */
static void more_pushes(struct dispatch *d) ON_SHARD
{
    const uint64_t max_bytes = d->config.channels->n_low ? SHARD_SMALL_SLICE_BYTES : UINT64_MAX;
    uint64_t now_ms = dispatch_now_ms(d), n_bytes = 0;

    if (!push_handler_runs(d->pushes) && lock_step_is_combining(d->config.shard)) {
        lock_step_more(d->config.shard);
        retry_deferred(d);
    }
    while (push_handler_more(d->pushes, now_ms, max_bytes, &n_bytes)) {
        after_push(d);
        retry_deferred(d);
    }
    after_push(d);
}

static bool is_pushing(const struct dispatch *d) ON_SHARD
{
    return push_handler_is_busy(d->pushes) || lock_step_is_combining(d->config.shard);
}

bool dispatch_is_still(const struct dispatch *d)
{
    return !push_handler_runs(d->pushes) && !lock_step_is_combining(d->config.shard);
}

static bool is_busy(const struct dispatch *d) ON_SHARD
{
    return is_pushing(d) || pull_handler_is_busy(d->pulls) || unpack_queue_is_busy(d->bodies);
}

/* While there are readers slices are small: a reader's request waits for one at most. */
static void set_slice(struct dispatch *d) ON_SHARD
{
    shard_set_slice(d->config.shard,
                    d->config.channels->n_low ? SHARD_SMALL_SLICE_BYTES : SHARD_SLICE_BYTES);
}

/* False if what has this turn has nothing to do. */
static bool do_slice(struct dispatch *d, uint64_t turn) ON_SHARD
{
    if (turn % 3 == 0 && is_pushing(d))
        more_pushes(d);
    else if (turn % 3 == 1 && pull_handler_is_busy(d->pulls))
        pull_handler_more(d->pulls);
    else if (turn % 3 == 2 && unpack_queue_is_busy(d->bodies))
        unpack_queue_more(d->bodies);
    else
        return false;
    return true;
}

static void on_idle(uv_idle_t *idle)
{
    struct dispatch *d = idle->data;

    enter_shard();
    set_slice(d);
    d->config.channels->is_contended = is_pushing(d);
    while (is_busy(d) && !do_slice(d, d->n_idle++))
        ;
    if (!is_busy(d))
        uv_idle_stop(&d->idle);
}

/* The loop goes round while there is more to do than one event should take: each time a slice
 * of it, then whatever else has come. */
static void start_idle(struct dispatch *d) ON_SHARD
{
    if (d->state == DISPATCH_OPEN && !uv_is_active((uv_handle_t *)&d->idle) && is_busy(d))
        uv_idle_start(&d->idle, on_idle);
}

/* --- table --- */

#define TABLES_COUNTED_EVERY_MS 10000u
#define TABLES_OF_ONE_MIN 256u /* a client's library has no more (PS_TABLES_MAX) */

/* So that no single client takes all places. */
static int check_share(struct dispatch *d, const struct connection *c,
                       const struct table_spec *spec, struct err *err) ON_SHARD
{
    uint32_t share = d->config.tables_max / 4, id;

    share = share < TABLES_OF_ONE_MIN ? TABLES_OF_ONE_MIN : share;
    if (!d->config.tables_max || c->n_tables_made < share ||
        shard_table_open(d->config.shard, spec, true, &id, NULL) == 0)
        return 0;
    return err_set(err, -ENOSPC,
                   "table %s: this connection has made %u tables, which is its share of "
                   "--tables-max",
                   spec->name, c->n_tables_made);
}

/* A table was refused, as there are --tables-max. */
static void note_full(struct dispatch *d, struct err *err) ON_SHARD
{
    struct dispatch_full_tables *full = &d->full_tables;
    uint64_t now_ms = uv_now(d->config.loop);
    size_t n = strlen(err->text);

    if (!full->counted_ms || now_ms - full->counted_ms >= TABLES_COUNTED_EVERY_MS) {
        full->n_most = table_admin_most(d->config.shard, full->job);
        full->counted_ms = now_ms;
    }
    full->refused_ms = now_ms;
    full->n_tables = shard_n_live_tables(d->config.shard);
    if (full->n_most)
        snprintf(err->text + n, sizeof err->text - n, "; %.64s has %u of them", full->job,
                 full->n_most);
}

/* Who makes many is in the log before they are missed. */
static void log_many_tables(struct dispatch *d, const struct connection *c) ON_SHARD
{
    char more[64];

    if (c->n_tables_made == TABLES_OF_ONE_MIN &&
        log_line_limit_pass(&d->context.limit, "many tables", 0, uv_now(d->config.loop), more))
        log_line_info("shard %u: a connection from %s (%s) has made %u tables%s",
                      d->config.shard_number, c->peer, c->hello.name, c->n_tables_made, more);
}

static int get_table(struct dispatch *d, const struct request *r,
                     const struct table_request *asked, uint32_t *ret_id, struct err *err)
    ON_SHARD
{
    uint32_t n_before = shard_n_tables(d->config.shard);
    int status = asked->must_exist ? 0 : check_share(d, r->connection, &asked->spec, err);

    if (!status)
        status =
            shard_table_open(d->config.shard, &asked->spec, asked->must_exist, ret_id, err);
    if (status == -ENOSPC && shard_n_live_tables(d->config.shard) >= d->config.tables_max)
        note_full(d, err);
    if (shard_n_tables(d->config.shard) == n_before)
        return status;
    r->connection->n_tables_made++;
    log_many_tables(d, r->connection);
    return status;
}

/* What its role does not allow. */
static int deny(const struct connection *c, const char *what, const char *name, struct err *err)
{
    const struct access *a = &c->access;

    return err_set(err, PS_EDENIED, "%s %.100s: role %s%s%s may not use it", what, name,
                   access_role_name(a->role), a->job[0] ? " of job " : "", a->job);
}

static int on_table(struct dispatch *d, struct request *r) ON_SHARD
{
    struct table_reply answer = { 0 };
    struct table_request asked = { 0 };
    struct err err = { 0 };
    int status = message_read_table(r->header, r->head, &asked);

    if (status) {
        err_set(&err, status, "%s", status_text(status));
    } else if (request_is_from_reader(r) && !asked.must_exist) {
        status = err_set(&err, -EPERM, "table %s: a reader makes no tables", asked.spec.name);
    } else if (!access_may_use_table(&r->connection->access, asked.spec.name)) {
        status = deny(r->connection, "table", asked.spec.name, &err);
    } else {
        status = get_table(d, r, &asked, &answer.table_id, &err);
        if (!status)
            status = connection_name_table(r->connection, answer.table_id);
        if (!status)
            answer.spec = shard_table(d->config.shard, answer.table_id)->spec;
        answer.features = MESSAGE_FEATURE_WHOLE_TABLES;
    }
    if (deferred_is_wanted(r, &status))
        return REQUEST_LATER;
    answer.status = status;
    snprintf(answer.text, sizeof answer.text, "%s", err.text);
    if (asked.must_exist && status == PS_ENOTABLE)
        status = 0; /* an answer to "is it there?", and no refusal */
    return reply(d, r, status, err.text,
                 message_write_table_reply(&d->out, r->header->request_id, &answer));
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
static void end_oldest_connection(struct dispatch *d, const struct connection *c) ON_SHARD
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
    if (n <= DISPATCH_CONNECTIONS_OF_ONE_MAX)
        return;
    request_context_log(&d->context, oldest, "closed: connection", -EMFILE,
                        "its worker has joined on too many later ones");
    connection_close(oldest);
}

/* Where no place is left, a job without a live worker gives its own up, as if --join-timeout were over for it. */
static int find_place(struct dispatch *d, const struct membership_join *member, uint64_t now_ms,
                      struct worker **ret, struct err *err) ON_SHARD
{
    struct membership *membership = shard_membership(d->config.shard);
    int status = membership_join(membership, member, now_ms, ret, err);
    struct job *job = status == -ENOSPC ? job_share_waiting(membership) : NULL;

    if (!job)
        return status;
    for (uint32_t i = 0; i < job->n_workers; i++)
        membership_give_up(membership, &job->workers[i]);
    (void)shard_advance(d->config.shard, now_ms);
    return membership_join(membership, member, now_ms, ret, err);
}

/* membership_join(), within the shares of jobs that a connection and an address have. */
static int join_job(struct dispatch *d, struct connection *c,
                    const struct membership_join *member, uint64_t now_ms, struct worker **ret,
                    struct err *err) ON_SHARD
{
    struct membership *membership = shard_membership(d->config.shard);
    const struct worker *any = membership_worker(membership, member->job, 0);
    struct job *job = any ? any->job : NULL;
    uint64_t run_before = job ? job->run : 0;
    int status = job_share_check(membership, c, job, member->job, err);

    if (!status)
        status = find_place(d, member, now_ms, ret, err);
    if (status)
        return status;
    job = (*ret)->job;
    if (job->run != run_before || !job->host) { /* not known: of before a restart */
        job->opener = c->worker.opener ? c->worker.opener : (*ret)->join_number;
        job->host = c->host;
    }
    return 0;
}

static void log_lost_pushes(const struct dispatch *d, const struct worker *worker)
{
    if (worker->n_lost)
        log_line_warn(
            "shard %u, job %s: %" PRIu64 " pushes that had been acknowledged to rank %u are "
            "lost: what was not synced when this shard ended (--durability fsync loses none), "
            "or its data directory is gone",
            d->config.shard_number, worker->job->name, worker->n_lost, worker->rank);
}

static void fill_join_reply(const struct dispatch *d, const struct worker *worker,
                            struct join_reply *answer)
{
    answer->last_applied = worker->last_seq;
    answer->clock = worker->clock;
    answer->min_clock = job_min_clock(worker->job);
    answer->lease_ms = d->config.lease_ms;
    answer->resumed = worker->resumed;
    answer->refused_seq = worker->refused_seq;
    answer->refused_status = worker->refused_status;
    answer->lost_first = worker->lost_first;
    answer->lost_last = worker->lost_last;
    answer->skipped_clocks = worker->n_skipped;
}

/* Two processes that have chosen one incarnation would number their pushes alike. One that is dead, or whose host is,
 * holds its next process up for half a lease at most, as in membership_join(). */
static int check_process(struct dispatch *d, const struct connection *c,
                         const struct join *asked, uint64_t now_ms, struct err *err) ON_SHARD
{
    const struct worker *worker =
        membership_worker(shard_membership(d->config.shard), asked->job, asked->rank);

    if (!worker || now_ms - worker->last_seen_ms >= d->config.lease_ms / 2 ||
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
static int join(struct dispatch *d, const struct request *r, const struct join *asked,
                struct join_reply *answer, struct err *err) ON_SHARD
{
    struct membership *membership = shard_membership(d->config.shard);
    const struct worker *before = membership_worker(membership, asked->job, asked->rank);
    const struct membership_join member = { .job = asked->job,
                                            .rank = asked->rank,
                                            .n_workers = asked->n_workers,
                                            .incarnation = asked->incarnation,
                                            .mode = asked->mode,
                                            .bound = asked->bound,
                                            .clock = asked->clock,
                                            .last_acked = asked->last_acked,
                                            .name = asked->name,
                                            .relays = asked->relays && !d->config.is_alone };
    struct worker *worker;
    int status;

    if (request_is_from_reader(r))
        return err_set(err, -EPERM, "a reader joins no job");
    if (!access_may_join(&r->connection->access, asked->job))
        return deny(r->connection, "job", asked->job, err);
    status = table_admin_may_join(d->config.shard, asked->job, r->now_ms, err);
    if (!status)
        status = check_process(d, r->connection, asked, r->now_ms, err);
    /* The reply says which pushes of the rank have been applied. */
    if (!status && before && shard_is_pushing(d->config.shard, before))
        status = err_set(err, -EAGAIN, "a large push of this rank is under way");
    if (!status)
        status = join_job(d, r->connection, &member, r->now_ms, &worker, err);
    if (status == PS_EFENCED)
        answer->fenced_below = membership_fence(membership, asked->job, asked->rank);
    if (status)
        return status;
    bind_connection(r->connection, asked, worker);
    end_oldest_connection(d, r->connection);
    log_lost_pushes(d, worker);
    fill_join_reply(d, worker, answer);
    pull_handler_retry(d->pulls);
    return 0;
}

static int on_join(struct dispatch *d, struct request *r) ON_SHARD
{
    struct join_reply answer = { 0 };
    struct join asked = { 0 };
    struct err err = { 0 };
    int status = message_read_join(r->header, r->head, &asked);

    if (status && asked.wrong)
        err_set(&err, status, "a join's %s", asked.wrong);
    if (!status)
        status = join(d, r, &asked, &answer, &err);
    r->connection->joining = (struct connection_worker){ .joined = false };
    if (deferred_is_wanted(r, &status)) {
        name_worker(&r->connection->joining, &asked);
        return REQUEST_LATER;
    }
    answer.status = status;
    if (status)
        snprintf(answer.text, sizeof answer.text, "%s",
                 err.text[0] ? err.text : status_text(status));
    return reply(d, r, status, answer.text,
                 message_write_join_reply(&d->out, r->header->request_id, &answer));
}

/* --- pull, push --- */

static int on_pull(struct dispatch *d, struct request *r) ON_SHARD
{
    return pull_handler_receive(d->pulls, r);
}

static int on_push(struct dispatch *d, struct request *r) ON_SHARD
{
    int status = push_handler_receive(d->pushes, r);

    after_push(d);
    return status;
}

/* --- fetch --- */

void dispatch_standby_moved(struct dispatch *d)
{
    if (fetch_handler_has_moved(d->fetches))
        pull_handler_retry(d->pulls);
    start_idle(d);
}

static int on_fetch(struct dispatch *d, struct request *r) ON_SHARD
{
    int status = fetch_handler_receive(d->fetches, r);

    dispatch_standby_moved(d);
    return status;
}

/* --- beat, leave --- */

static int reply_status(struct dispatch *d, const struct request *r, int result,
                        struct status_reply *answer) ON_SHARD
{
    if (result) {
        answer->status = result;
        snprintf(answer->text, sizeof answer->text, "%s", status_text(result));
    }
    return reply(d, r, result, answer->text,
                 message_write_status_reply(&d->out, (enum frame_type)(r->header->type + 1),
                                            r->header->request_id, answer));
}

static int on_beat(struct dispatch *d, struct request *r) ON_SHARD
{
    struct status_reply answer = { 0 };
    struct worker *worker;
    struct beat beat;
    bool any = false;
    int result = message_read_beat(r->header, r->head, &beat), status;

    if (!result && request_is_from_reader(r) && beat.has_learning)
        return reply_status(d, r, beat_learning_take_reader(&d->context, r, &beat), &answer);
    if (!result)
        result = find_worker(d, r, &worker);
    if (!result && beat.has_learning)
        beat_learning_take(&d->context, r, worker, &beat);
    if (!result) {
        any = beat_suspects_report(shard_membership(d->config.shard), worker, &beat.suspects,
                                   r->now_ms);
        answer.min_clock = job_min_clock(worker->job);
        if (d->config.groups)
            answer.groups_number = group_view_number(d->config.groups);
        beat_suspects_answer(worker, &beat.suspects, &answer);
    }
    status = reply_status(d, r, result, &answer);
    if (any) {
        (void)shard_advance(d->config.shard, r->now_ms);
        pull_handler_retry(d->pulls);
    }
    return status;
}

static int on_leave(struct dispatch *d, struct request *r) ON_SHARD
{
    struct status_reply answer = { 0 };
    struct worker *worker;
    uint64_t clock;
    int result = message_read_leave(r->header, r->head, &clock), status;

    if (!result)
        result = find_worker(d, r, &worker);
    if (!result && shard_is_pushing(d->config.shard, worker))
        result = -EAGAIN; /* on another connection */
    if (deferred_is_wanted(r, &result))
        return REQUEST_LATER;
    if (!result) {
        membership_leave(shard_membership(d->config.shard), worker);
        connection_left(r->connection);
        answer.min_clock = job_min_clock(worker->job);
    }
    status = reply_status(d, r, result, &answer);
    if (!result) {
        (void)shard_advance(d->config.shard, r->now_ms);
        pull_handler_retry(d->pulls);
    }
    return status;
}

/* --- the table --- */

static int (*const handlers[FRAME_TYPE_END])(struct dispatch *d, struct request *r) = {
    [FRAME_JOIN] = on_join,   [FRAME_TABLE] = on_table, [FRAME_PULL] = on_pull,
    [FRAME_PUSH] = on_push,   [FRAME_BEAT] = on_beat,   [FRAME_LEAVE] = on_leave,
    [FRAME_FETCH] = on_fetch,
};

static int on_request(void *owner, struct request *r)
{
    struct dispatch *d = owner;
    int status;

    enter_shard();
    if (!handlers[r->header->type])
        return PS_EPROTO; /* a handshake, a reply, an operator's command: not of this place */
    if (d->state == DISPATCH_STOPPED)
        return PS_ESTOPPING;
    if (d->config.groups && !group_view_is_primary(d->config.groups))
        return PS_EMOVED; /* it comes back, and the listener tells it where to go */
    r->now_ms = dispatch_now_ms(d);
    set_slice(d);
    d->context.requests[r->header->type].n++;
    status = handlers[r->header->type](d, r);
    if (status == REQUEST_LATER) {
        request_context_hear_waiting(&d->context, r->connection, r->now_ms);
        status = r->packed ? unpack_queue_add(d->bodies, r)
                           : deferred_add(&d->deferred, r, uv_now(d->config.loop));
    }
    if (status)
        bytes_deinit(&d->out);
    start_idle(d);
    return status;
}

/* Its body is there, or is not. */
static int on_late(void *owner, struct request *r)
{
    struct dispatch *d = owner;

    enter_shard();
    r->now_ms = dispatch_now_ms(d);
    return handlers[r->header->type](d, r);
}

/* Handles the requests that wait, until one has to wait again. */
static void retry_deferred(struct dispatch *d) ON_SHARD
{
    const struct request *first;

    while ((first = deferred_first(&d->deferred)) != NULL) {
        struct request r = *first;
        int status;

        r.now_ms = dispatch_now_ms(d);
        r.has_waited = deferred_is_over(&d->deferred, uv_now(d->config.loop));
        status = handlers[r.header->type](d, &r);
        if (status == REQUEST_LATER)
            return;
        deferred_leave(&d->deferred);
        if (status) {
            bytes_deinit(&d->out);
            connection_fail(r.connection, status);
        }
    }
}

/* A worker that psd keeps waiting is not silent: a held connection lets no beat through, and a client that waits for
 * the reply to its JOIN or TABLE sends none. A pull that is parked keeps no lease: its client sends beats meanwhile. */
static void keep_leases(struct dispatch *d, uint64_t now_ms) ON_SHARD
{
    for (struct connection *c = d->config.connections->first; c; c = c->next)
        if (connection_is_kept_waiting(c))
            request_context_hear_waiting(&d->context, c, now_ms);
}

/* --- other events of a connection --- */

static void on_partial(void *owner, struct connection *c, const struct frame_header *header,
                       const uint8_t *head, const uint8_t *body, size_t n_bytes)
{
    struct dispatch *d = owner;

    enter_shard();
    /* What a reader pushes is refused, and a head is unpacked each time. */
    if (!c->worker.joined || n_bytes < c->partial_bytes + PRECHECK_BYTES)
        return;
    c->partial_bytes = n_bytes;
    c->prechecked_bytes =
        push_handler_precheck(&d->precheck, header, head, body, n_bytes, c->prechecked_bytes,
                              shard_gradient_max(d->context.shard));
}

static void on_written(void *owner, struct connection *c)
{
    struct dispatch *d = owner;

    enter_shard();
    pull_handler_written(d->pulls, c);
    start_idle(d);
}

/* Ends that need no words: the peer hung up or vanished, or we closed. */
static bool is_ordinary(int why)
{
    return why == 0 || why == UV_EOF || why == -ECONNRESET || why == -EPIPE ||
           why == -ECANCELED || why == PS_ESTOPPING;
}

static void on_closed(void *owner, struct connection *c, int why)
{
    struct dispatch *d = owner;

    enter_shard();
    pull_handler_drop(d->pulls, c);
    push_handler_drop(d->pushes, c);
    deferred_drop(&d->deferred, c);
    unpack_queue_drop(d->bodies, c);
    fetch_handler_drop(d->fetches, c);
    reply_queue_drop(d->config.replies, c);
    start_idle(d);
    if (why == -ETIMEDOUT)
        request_context_log(&d->context, c, "closed: slow peer", why,
                            "a message or its replies stood still for --frame-timeout");
    else if (why == -ENOBUFS)
        request_context_log(&d->context, c, "closed: greedy peer", why,
                            "it held most of --client-memory, or of the replies that wait for "
                            "the log, which are as many as may be");
    else if (!is_ordinary(why))
        request_context_log(&d->context, c, "closed: a message", why, NULL);
}

const struct connection_events dispatch_events = { .on_request = on_request,
                                                   .on_partial = on_partial,
                                                   .on_written = on_written,
                                                   .on_closed = on_closed };

/* A left-out row fails no push, so the log reports it. */
static void log_left_out(struct dispatch *d) ON_SHARD
{
    uint64_t n = shard_counters(d->config.shard)->rows_refused;
    char more[64];

    if (n == d->n_left_out || !log_line_limit_pass(&d->context.limit, "rows left out",
                                                   PS_EBUDGET, uv_now(d->config.loop), more))
        return;
    log_line_warn("shard %u: %" PRIu64 " new rows found no place in memory and are left out ("
                  "--memory-max, --table-max); psctl tables says of which tables",
                  d->config.shard_number, n - d->n_left_out);
    d->n_left_out = n;
}

void dispatch_tick(struct dispatch *d)
{
    uint64_t now_ms;

    if (d->state == DISPATCH_STOPPED)
        return;
    now_ms = dispatch_now_ms(d);
    keep_leases(d, now_ms);
    if (shard_advance(d->config.shard, now_ms))
        pull_handler_retry(d->pulls);
    pull_handler_expire(d->pulls, uv_now(d->config.loop), now_ms);
    if (deferred_is_over(&d->deferred, uv_now(d->config.loop)))
        retry_deferred(d);
    fetch_handler_tick(d->fetches);
    log_left_out(d);
    start_idle(d);
}

void dispatch_tables_changed(struct dispatch *d)
{
    pull_handler_refuse_dropped(d->pulls);
    pull_handler_retry(d->pulls); /* clocks may have been combined before */
    start_idle(d);
}

void dispatch_resume(struct dispatch *d)
{
    if (d->state == DISPATCH_OPEN)
        retry_deferred(d);
    start_idle(d);
}

/* A request that comes later gets the same answer: the end of its connection. */
static void fail_deferred(struct dispatch *d)
{
    const struct request *first;

    while ((first = deferred_first(&d->deferred)) != NULL) {
        struct connection *c = first->connection;

        deferred_leave(&d->deferred);
        connection_fail(c, PS_ESTOPPING);
    }
}

static void stop(struct dispatch *d, bool decides) ON_SHARD
{
    if (d->state == DISPATCH_STOPPED)
        return;
    push_handler_stop(d->pushes, dispatch_now_ms(d));
    unpack_queue_stop(d->bodies, PS_ESTOPPING);
    if (decides)
        lock_step_finish(d->config.shard);
    after_push(d);
    d->state = DISPATCH_STOPPED;
    fail_deferred(d);
    fetch_handler_stop(d->fetches);
    pull_handler_refuse_all(d->pulls, PS_ESTOPPING, status_text(PS_ESTOPPING));
    uv_close((uv_handle_t *)&d->idle, NULL);
}

void dispatch_stop(struct dispatch *d)
{
    stop(d, true);
}

void dispatch_give_up(struct dispatch *d)
{
    stop(d, false);
}

struct fetch_handler *dispatch_fetches(struct dispatch *d)
{
    return d->fetches;
}

struct pull_handler *dispatch_pulls(struct dispatch *d)
{
    return d->pulls;
}

const struct unpack_queue *dispatch_bodies(const struct dispatch *d)
{
    return d->bodies;
}

const struct stats_requests *dispatch_requests(const struct dispatch *d)
{
    return d->context.requests;
}

const struct dispatch_full_tables *dispatch_full_tables(const struct dispatch *d)
{
    return &d->full_tables;
}

void dispatch_count(const struct dispatch *d, struct dispatch_counts *ret)
{
    ret->refused = 0;
    for (size_t i = 0; i < FRAME_TYPE_END; i++)
        ret->refused += d->context.requests[i].n_refused;
    pull_handler_count(d->pulls, &ret->pulls);
}
