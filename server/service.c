/*
 * The chain: on_request -> a row of `handlers` -> core -> reply.
 *
 * A handler returns what went wrong with the connection, which ends it: a refused request is an
 * answered one.
 */
#include "server/service.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "server/complaints.h"
#include "server/glance.h"
#include "server/joining.h"
#include "server/pushes.h"
#include "server/waiting.h"

#define STEP_MS_MAX 500u /* by which the shard's time moves at once */
#define LATER 1          /* a handler's answer: none yet, as the push log is full */

struct service {
    struct service_config config;
    struct pulls *pulls;              /* owned */
    struct pushes *pushes;            /* owned */
    struct waiting waiting;           /* for room in the push log */
    struct report_requests *requests; /* owned, FRAME_TYPE_END */
    struct buf out;                   /* the reply being made; empty in between */
    struct buf unpacked;              /* a body after decompression */
    struct push glance;               /* glance_more()'s scratch */
    uv_idle_t idle;                   /* active while there is more to do than events bring */
    uint64_t n_idle;
    uint64_t n_left_out;      /* new rows that found no place, as the log has them */
    uint64_t now_ms, loop_ms; /* shard's time, and the loop's when it was taken */
    struct complaints complaints;
    enum { SERVICE_OPEN, SERVICE_STOPPED } state;
};

static void on_push_answered(void *owner, struct connection *c, const struct push_reply *answer,
                             bool ticked);

struct service *service_new(const struct service_config *config)
{
    struct service *s = mem_alloc(sizeof *s);
    struct pulls_config pulls = { .shard = config->shard,
                                  .frame_max_bytes = config->frame_max_bytes,
                                  .park_max_ms = config->park_max_ms,
                                  .replies = config->compress_replies ? PULLS_COMPRESSED
                                                                      : PULLS_PLAIN };
    struct pushes_config pushes = { .shard = config->shard,
                                    .acks = config->acks,
                                    .on_answered = on_push_answered,
                                    .owner = s };

    s->config = *config;
    s->requests = mem_alloc(FRAME_TYPE_END * sizeof *s->requests);
    pulls.requests = &s->requests[FRAME_PULL];
    pushes.requests = &s->requests[FRAME_PUSH];
    s->pulls = pulls_new(&pulls);
    s->pushes = pushes_new(&pushes);
    waiting_init(&s->waiting, config->wait_max_ms);
    uv_idle_init(config->loop, &s->idle);
    s->idle.data = s;
    s->loop_ms = uv_now(config->loop);
    s->now_ms = s->loop_ms;
    return s;
}

void service_free(struct service *s)
{
    if (!s)
        return;
    pulls_free(s->pulls);
    pushes_free(s->pushes);
    waiting_deinit(&s->waiting);
    free(s->requests);
    buf_deinit(&s->out);
    buf_deinit(&s->unpacked);
    free(s);
}

uint64_t service_now_ms(struct service *s)
{
    uint64_t loop_ms = uv_now(s->config.loop), step_ms = loop_ms - s->loop_ms;

    s->now_ms += step_ms < STEP_MS_MAX ? step_ms : STEP_MS_MAX;
    s->loop_ms = loop_ms;
    return s->now_ms;
}

/* A line about a request or a peer, unless there are too many like it. */
static void complain(struct service *s, const struct connection *c, const char *what,
                     int status, const char *sentence)
{
    char more[64];

    if (complaints_pass(&s->complaints, what, status, uv_now(s->config.loop), more))
        log_warn("shard %u: %s from %s (%s): %s%s", s->config.shard_number, what, c->peer,
                 c->hello.name, sentence && sentence[0] ? sentence : status_text(status), more);
}

/* Sends s->out, the reply to *r that says `told`, once all that it may promise is safe.
 * `write_status`: whether there is a reply to send. */
static int reply(struct service *s, const struct request *r, int told, const char *sentence,
                 int write_status) ON_SHARD
{
    struct ack_timing timing = { &s->requests[r->header->type], r->start_ns };

    if (write_status)
        return write_status;
    if (told)
        complain(s, r->connection, frame_type_name(r->header->type), told, sentence);
    timing.requests->n_refused += told != 0;
    if (r->header->type == FRAME_BEAT) { /* promises nothing, and says that we live */
        histogram_record(&timing.requests->latency_ns, uv_hrtime() - r->start_ns);
        return connection_send(r->connection, &s->out);
    }
    return acks_send(s->config.acks, r->connection, &s->out, &timing);
}

/* The worker that speaks on this connection; its lease is renewed. */
static int find_worker(struct service *s, const struct request *r, struct worker **ret_worker)
    ON_SHARD
{
    const struct connection_worker *who = &r->connection->worker;

    if (!who->joined)
        return PS_ENOJOIN;
    return roster_find(shard_roster(s->config.shard), who->job, who->rank, who->incarnation,
                       r->now_ms, ret_worker);
}

/* --- in slices --- */

static void on_idle(uv_idle_t *idle)
{
    struct service *s = idle->data;

    enter_shard();
    if (!pulls_are_under_way(s->pulls) ||
        (pushes_are_under_way(s->pushes) && s->n_idle++ % 2 == 0))
        pushes_more(s->pushes, service_now_ms(s));
    else
        pulls_more(s->pulls);
    if (!pulls_are_under_way(s->pulls) && !pushes_are_under_way(s->pushes))
        uv_idle_stop(&s->idle);
}

/* The loop goes round while there is more to do than one event should take: each time a slice
 * of it, then whatever else has come. */
static void keep_going(struct service *s)
{
    if (s->state == SERVICE_OPEN && !uv_is_active((uv_handle_t *)&s->idle) &&
        (pulls_are_under_way(s->pulls) || pushes_are_under_way(s->pushes)))
        uv_idle_start(&s->idle, on_idle);
}

/* --- handlers --- */

static int on_table(struct service *s, const struct request *r) ON_SHARD
{
    struct table_reply answer = { 0 };
    struct table_request asked = { 0 };
    struct err err = { 0 };
    int status = message_read_table(r->header, r->head, &asked);

    if (status) {
        err_set(&err, status, "%s", status_text(status));
    } else if (request_is_from_reader(r) && !asked.must_exist) {
        status = err_set(&err, -EPERM, "table %s: a reader makes no tables", asked.spec.name);
    } else {
        status = shard_table_ask(s->config.shard, &asked.spec, asked.must_exist,
                                 &answer.table_id, &err);
        if (!status)
            answer.spec = shard_table(s->config.shard, answer.table_id)->spec;
    }
    if (waiting_is_wanted(r, &status))
        return LATER;
    answer.status = status;
    snprintf(answer.text, sizeof answer.text, "%s", err.text);
    if (asked.must_exist && status == PS_ENOTABLE)
        status = 0; /* an answer to "is it there?", and no refusal */
    return reply(s, r, status, err.text,
                 message_write_table_reply(&s->out, r->header->request_id, &answer));
}

static int join(struct service *s, const struct request *r, const struct join *asked,
                struct join_reply *answer, struct err *err) ON_SHARD
{
    struct joining j = { s->config.shard, s->config.shard_number, s->config.lease_ms };
    int status;

    if (request_is_from_reader(r))
        return err_set(err, -EPERM, "a reader joins no job");
    status = joining_ask(&j, r, asked, answer, err);
    if (!status)
        pulls_retry(s->pulls);
    return status;
}

static int on_join(struct service *s, const struct request *r) ON_SHARD
{
    struct join_reply answer = { 0 };
    struct join asked;
    struct err err = { 0 };
    int status = message_read_join(r->header, r->head, &asked);

    if (!status)
        status = join(s, r, &asked, &answer, &err);
    if (waiting_is_wanted(r, &status))
        return LATER;
    answer.status = status;
    if (status)
        snprintf(answer.text, sizeof answer.text, "%s",
                 err.text[0] ? err.text : status_text(status));
    return reply(s, r, status, answer.text,
                 message_write_join_reply(&s->out, r->header->request_id, &answer));
}

static int on_pull(struct service *s, const struct request *r) ON_SHARD
{
    struct worker *worker = NULL;
    uint64_t n_refused = s->requests[FRAME_PULL].n_refused;
    int status = request_is_from_reader(r) ? 0 : find_worker(s, r, &worker);

    if (status)
        status = pulls_refuse(s->pulls, r, status, status_text(status));
    else
        status = pulls_ask(s->pulls, r, worker);
    if (s->requests[FRAME_PULL].n_refused != n_refused)
        complain(s, r->connection, "pull", pulls_last_refusal(s->pulls)->status,
                 pulls_last_refusal(s->pulls)->text);
    return status;
}

static int on_push(struct service *s, const struct request *r) ON_SHARD
{
    return pushes_ask(s->pushes, r);
}

static void on_push_answered(void *owner, struct connection *c, const struct push_reply *answer,
                             bool ticked)
{
    struct service *s = owner;

    enter_shard();
    if (answer->status)
        complain(s, c, "push", answer->status, answer->text);
    if (ticked)
        pulls_retry(s->pulls);
}

static int answer_status(struct service *s, const struct request *r, int told,
                         uint64_t min_clock) ON_SHARD
{
    struct status_reply answer = { .status = told, .min_clock = min_clock };

    if (told)
        snprintf(answer.text, sizeof answer.text, "%s", status_text(told));
    return reply(s, r, told, answer.text,
                 message_write_status_reply(&s->out, (enum frame_type)(r->header->type + 1),
                                            r->header->request_id, &answer));
}

static int on_beat(struct service *s, const struct request *r) ON_SHARD
{
    struct worker *worker;
    uint64_t clock;
    int told = message_read_beat(r->header, r->head, &clock);

    if (!told)
        told = find_worker(s, r, &worker);
    return answer_status(s, r, told, told ? 0 : job_min_clock(worker->job));
}

static int on_leave(struct service *s, const struct request *r) ON_SHARD
{
    struct worker *worker;
    uint64_t clock, min_clock = 0;
    int told = message_read_leave(r->header, r->head, &clock), status;

    if (!told)
        told = find_worker(s, r, &worker);
    if (!told) {
        shard_settle(s->config.shard);
        roster_leave(shard_roster(s->config.shard), worker);
        r->connection->worker.joined = false;
        min_clock = job_min_clock(worker->job);
    }
    status = answer_status(s, r, told, min_clock);
    if (!told) {
        (void)shard_advance(s->config.shard, r->now_ms);
        pulls_retry(s->pulls);
    }
    return status;
}

/* --- the table --- */

static int (*const handlers[FRAME_TYPE_END])(struct service *s, const struct request *r) = {
    [FRAME_JOIN] = on_join, [FRAME_TABLE] = on_table, [FRAME_PULL] = on_pull,
    [FRAME_PUSH] = on_push, [FRAME_BEAT] = on_beat,   [FRAME_LEAVE] = on_leave,
};

static int on_request(void *owner, struct connection *c, const struct frame_header *header,
                      const uint8_t *head, const uint8_t *body)
{
    struct service *s = owner;
    struct request r = { .connection = c,
                         .header = header,
                         .head = head,
                         .n_seen = c->n_seen,
                         .start_ns = uv_hrtime() };
    int status;

    enter_shard();
    c->n_seen = 0;
    if (!handlers[header->type])
        return PS_EPROTO; /* a greeting, a reply, an operator's command: not of this place */
    if (s->state == SERVICE_STOPPED)
        return PS_ESTOPPING;
    r.now_ms = service_now_ms(s);
    r.body_status = message_body(&c->channel.hub->zstd, header, body, s->config.frame_max_bytes,
                                 &s->unpacked, &r.body, &r.body_bytes);
    if (header->flags & FRAME_ZSTD)
        r.unpacked = &s->unpacked;
    s->requests[header->type].n++;
    status = handlers[header->type](s, &r);
    if (status == LATER)
        status = waiting_add(&s->waiting, &r, uv_now(s->config.loop));
    if (status)
        buf_deinit(&s->out);
    keep_going(s);
    return status;
}

/* Those that wait for room in the push log are asked again, until one has to wait again. */
static void ask_waiting(struct service *s) ON_SHARD
{
    const struct request *first;

    while ((first = waiting_first(&s->waiting)) != NULL) {
        struct request r = *first;
        int status;

        r.now_ms = service_now_ms(s);
        r.has_waited = waiting_is_over(&s->waiting, uv_now(s->config.loop));
        status = handlers[r.header->type](s, &r);
        if (status == LATER)
            return;
        waiting_leave(&s->waiting);
        if (status) {
            buf_deinit(&s->out);
            connection_fail(r.connection, status);
        }
    }
}

/* Who waits has been heard of: a held connection lets no beat through. */
static void renew_lease(void *owner, const struct request *waiting)
{
    struct service *s = owner;
    struct request r = *waiting;
    struct worker *worker;

    enter_shard();
    r.now_ms = service_now_ms(s);
    (void)!find_worker(s, &r, &worker);
}

static void on_part(void *owner, struct connection *c, const struct frame_header *header,
                    const uint8_t *head, const uint8_t *body, size_t n_bytes)
{
    struct service *s = owner;

    c->n_seen = glance_more(&s->glance, header, head, body, n_bytes, c->n_seen);
}

static void on_written(void *owner, struct connection *c)
{
    struct service *s = owner;

    enter_shard();
    pulls_written(s->pulls, c);
    keep_going(s);
}

/* Ends that need no words: the peer hung up or vanished, or we closed. */
static bool is_ordinary(int why)
{
    return why == 0 || why == UV_EOF || why == -ECONNRESET || why == -EPIPE ||
           why == -ECANCELED || why == PS_ESTOPPING;
}

static void on_closed(void *owner, struct connection *c, int why)
{
    struct service *s = owner;

    enter_shard();
    pulls_drop(s->pulls, c);
    pushes_drop(s->pushes, c, service_now_ms(s));
    waiting_drop(&s->waiting, c);
    acks_drop(s->config.acks, c);
    if (why == -ETIMEDOUT)
        complain(s, c, "closed: slow peer", why,
                 "a message or its replies stood still for --frame-timeout");
    else if (!is_ordinary(why))
        complain(s, c, "closed: a message", why, NULL);
}

const struct connection_events service_events = {
    .request = on_request, .part = on_part, .written = on_written, .closed = on_closed
};

/* Rows are left out in silence, as far as their workers' steps go: so psd says it. */
static void tell_left_out(struct service *s) ON_SHARD
{
    uint64_t n = shard_counters(s->config.shard)->rows_refused;
    char more[64];

    if (n == s->n_left_out || !complaints_pass(&s->complaints, "rows left out", PS_EBUDGET,
                                               uv_now(s->config.loop), more))
        return;
    log_warn("shard %u: %" PRIu64 " new rows found no place in memory and are left out ("
             "--memory-max, --table-max); psctl tables says of which tables",
             s->config.shard_number, n - s->n_left_out);
    s->n_left_out = n;
}

void service_tick(struct service *s)
{
    uint64_t now_ms;

    if (s->state == SERVICE_STOPPED)
        return;
    now_ms = service_now_ms(s);
    pulls_renew_leases(s->pulls, now_ms);
    pushes_renew_leases(s->pushes, now_ms);
    waiting_each(&s->waiting, renew_lease, s);
    if (shard_advance(s->config.shard, now_ms))
        pulls_retry(s->pulls);
    pulls_expire(s->pulls, uv_now(s->config.loop));
    if (waiting_is_over(&s->waiting, uv_now(s->config.loop)))
        ask_waiting(s);
    tell_left_out(s);
    keep_going(s);
}

void service_go_on(struct service *s)
{
    if (s->state == SERVICE_OPEN)
        ask_waiting(s);
    keep_going(s);
}

/* They are told as who asks later is: by the end of their connection. */
static void fail_waiting(struct service *s)
{
    const struct request *first;

    while ((first = waiting_first(&s->waiting)) != NULL) {
        struct connection *c = first->connection;

        waiting_leave(&s->waiting);
        connection_fail(c, PS_ESTOPPING);
    }
}

void service_stop(struct service *s)
{
    if (s->state == SERVICE_STOPPED)
        return;
    pushes_stop(s->pushes, service_now_ms(s));
    s->state = SERVICE_STOPPED;
    fail_waiting(s);
    pulls_refuse_all(s->pulls, PS_ESTOPPING, status_text(PS_ESTOPPING));
    uv_close((uv_handle_t *)&s->idle, NULL);
}

struct pulls *service_pulls(struct service *s)
{
    return s->pulls;
}

const struct report_requests *service_requests(const struct service *s)
{
    return s->requests;
}

void service_count(const struct service *s, struct service_counts *ret)
{
    ret->refused = 0;
    for (size_t i = 0; i < FRAME_TYPE_END; i++)
        ret->refused += s->requests[i].n_refused;
    pulls_count(s->pulls, &ret->pulls);
}
