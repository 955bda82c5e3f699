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
#include "server/requests/deferred.h"
#include "server/requests/membership_handler.h"
#include "server/requests/push_handler.h"

#define STEP_MS_MAX 500u           /* by which the shard's time moves at once */
#define PRECHECK_BYTES (32u << 10) /* of a push, come since the last time */

struct dispatch {
    struct dispatch_config config;
    struct request_context context;
    struct pull_handler *pulls;    /* owned */
    struct push_handler *pushes;   /* owned */
    struct fetch_handler *fetches; /* owned */
    struct table_handler tables;
    struct deferred deferred;    /* joins, tables, leaves */
    struct unpack_queue *bodies; /* owned: of long pushes and pulls that came compressed */
    struct push precheck;        /* push_handler_precheck()'s scratch */
    uv_idle_t idle;              /* active while there is more to do than events bring */
    uint64_t n_idle;
    uint64_t n_left_out;      /* new rows that found no place, as the log has them */
    uint64_t now_ms, loop_ms; /* shard's time, and the loop's when it was taken */
    enum { DISPATCH_OPEN, DISPATCH_STOPPED } state;
};

static int on_late(void *owner, struct request *r);

struct dispatch *dispatch_new(const struct dispatch_config *config)
{
    struct dispatch *d = memory_alloc(sizeof *d);
    struct pull_handler_config pulls = { .context = &d->context,
                                         .park_max_ms = config->park_max_ms,
                                         .deltas_max_bytes = config->deltas_max_bytes };

    d->config = *config;
    d->context = (struct request_context){ .shard = config->shard,
                                           .loop = config->loop,
                                           .channels = config->channels,
                                           .replies = config->replies,
                                           .groups = config->groups,
                                           .shard_number = config->shard_number,
                                           .frame_max_bytes = config->frame_max_bytes,
                                           .lease_ms = config->lease_ms,
                                           .compress_replies = config->compress_replies,
                                           .is_alone = config->is_alone };
    request_context_init(&d->context);
    d->pulls = pull_handler_new(&pulls);
    d->pushes = push_handler_new(&d->context);
    d->fetches = fetch_handler_new(&(struct fetch_handler_config){
        .context = &d->context, .on_space = config->on_space, .owner = config->owner });
    d->tables =
        (struct table_handler){ .context = &d->context, .tables_max = config->tables_max };
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
    push_handler_free(d->pushes); /* it has keys of pulls */
    pull_handler_free(d->pulls);
    fetch_handler_free(d->fetches);
    unpack_queue_free(d->bodies);
    deferred_deinit(&d->deferred);
    request_context_deinit(&d->context);
    free(d);
}

uint64_t dispatch_now_ms(struct dispatch *d)
{
    uint64_t loop_ms = uv_now(d->config.loop), step_ms = loop_ms - d->loop_ms;

    d->now_ms += step_ms < STEP_MS_MAX ? step_ms : STEP_MS_MAX;
    d->loop_ms = loop_ms;
    return d->now_ms;
}

/* A clock may have moved, or a combined one has changed its last row: answers the parked pulls that waited for it. */
static void answer_parked(struct dispatch *d) ON_SHARD
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
        answer_parked(d);
        retry_deferred(d);
    }
    answer_parked(d);
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

/* --- the table --- */

static int on_join(struct dispatch *d, struct request *r) ON_SHARD
{
    return membership_handler_join(&d->context, r);
}

static int on_beat(struct dispatch *d, struct request *r) ON_SHARD
{
    return membership_handler_beat(&d->context, r);
}

static int on_leave(struct dispatch *d, struct request *r) ON_SHARD
{
    return membership_handler_leave(&d->context, r);
}

static int on_table(struct dispatch *d, struct request *r) ON_SHARD
{
    return table_handler_receive(&d->tables, r);
}

static int on_pull(struct dispatch *d, struct request *r) ON_SHARD
{
    return pull_handler_receive(d->pulls, r);
}

static int on_push(struct dispatch *d, struct request *r) ON_SHARD
{
    return push_handler_receive(d->pushes, r);
}

static int on_fetch(struct dispatch *d, struct request *r) ON_SHARD
{
    int status = fetch_handler_receive(d->fetches, r);

    dispatch_standby_moved(d);
    return status;
}

static int (*const handlers[FRAME_TYPE_END])(struct dispatch *d, struct request *r) = {
    [FRAME_JOIN] = on_join,   [FRAME_TABLE] = on_table, [FRAME_PULL] = on_pull,
    [FRAME_PUSH] = on_push,   [FRAME_BEAT] = on_beat,   [FRAME_LEAVE] = on_leave,
    [FRAME_FETCH] = on_fetch,
};

static int handle(struct dispatch *d, struct request *r) ON_SHARD
{
    int status = handlers[r->header->type](d, r);

    answer_parked(d);
    return status;
}

static int on_request(void *owner, struct request *r)
{
    struct dispatch *d = owner;
    int status;

    enter_shard();
    if (!handlers[r->header->type])
        return PS_EPROTO; /* a handshake, a reply, an operator's command: not of this place */
    if (d->state == DISPATCH_STOPPED)
        return PS_ESTOPPING;
    /* A worker comes back, and the listener tells it where to go. A standby may not have heard yet that this psd hands
     * over to it: its next fetch is answered with that, or with what else it has to know. */
    if (r->header->type != FRAME_FETCH && d->config.groups &&
        !group_view_is_primary(d->config.groups))
        return PS_EMOVED;
    r->now_ms = dispatch_now_ms(d);
    set_slice(d);
    d->context.requests[r->header->type].n++;
    status = handle(d, r);
    if (status == REQUEST_LATER) {
        request_context_hear_waiting(&d->context, r->connection, r->now_ms);
        status = r->packed ? unpack_queue_add(d->bodies, r)
                           : deferred_add(&d->deferred, r, uv_now(d->config.loop));
    }
    start_idle(d);
    return status;
}

/* Its body is there, or is not. */
static int on_late(void *owner, struct request *r)
{
    struct dispatch *d = owner;

    enter_shard();
    r->now_ms = dispatch_now_ms(d);
    return handle(d, r);
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
        status = handle(d, &r);
        if (status == REQUEST_LATER)
            return;
        deferred_leave(&d->deferred);
        if (status)
            connection_fail(r.connection, status);
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

void dispatch_standby_moved(struct dispatch *d)
{
    if (fetch_handler_has_moved(d->fetches))
        pull_handler_retry(d->pulls);
    start_idle(d);
}

void dispatch_tables_changed(struct dispatch *d)
{
    pull_handler_refuse_dropped(d->pulls, d->config.connections->first);
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
    answer_parked(d);
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

const struct table_handler_full *dispatch_full_tables(const struct dispatch *d)
{
    return &d->tables.full;
}

void dispatch_count(const struct dispatch *d, struct dispatch_counts *ret)
{
    ret->refused = 0;
    for (size_t i = 0; i < FRAME_TYPE_END; i++)
        ret->refused += d->context.requests[i].n_refused;
    pull_handler_count(d->pulls, &ret->pulls);
}
