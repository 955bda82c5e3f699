#include "server/requests/request_context.h"

#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

#define LINES_AT_ONCE 3u
#define LINE_EVERY_MS 60000u /* two workers that fight for one rank go on for hours */

void request_context_init(struct request_context *x)
{
    x->requests = memory_alloc(FRAME_TYPE_END * sizeof *x->requests);
    x->limit = (struct log_line_limit){ .n_at_once = LINES_AT_ONCE, .every_ms = LINE_EVERY_MS };
}

void request_context_deinit(struct request_context *x)
{
    free(x->requests);
}

int request_context_find_worker(struct request_context *x, const struct connection *c,
                                uint64_t now_ms, struct worker **ret_worker)
{
    const struct connection_worker *w = &c->worker;

    if (!w->joined)
        return PS_ENOJOIN;
    return membership_find(shard_membership(x->shard), w->job, w->rank, w->incarnation, now_ms,
                           ret_worker);
}

/* The worker, if it is live and not suspected; else NULL. Its lease stays as it is. */
static struct worker *find_live(struct request_context *x, const struct connection_worker *w)
    ON_SHARD
{
    struct membership *membership = shard_membership(x->shard);
    struct worker *worker = membership_worker(membership, w->job, w->rank);

    if (!worker || worker->state != WORKER_LIVE || worker->incarnation != w->incarnation)
        return NULL;
    return worker->is_suspected ? NULL : worker;
}

struct worker *request_context_waiting_worker(struct request_context *x,
                                              const struct connection *c)
{
    return find_live(x, &c->worker);
}

static void hear(struct request_context *x, const struct connection_worker *w, uint64_t now_ms)
    ON_SHARD
{
    struct worker *worker = find_live(x, w);

    if (worker)
        membership_hear(worker, now_ms);
}

void request_context_hear_waiting(struct request_context *x, const struct connection *c,
                                  uint64_t now_ms)
{
    if (c->worker.joined)
        hear(x, &c->worker, now_ms);
    if (c->joining.job[0])
        hear(x, &c->joining, now_ms);
}

/* A beat says that we live, a refusal that nothing happened; a reader reads what is there, safe or not. */
static bool promises_nothing(const struct request *r, int result)
{
    return r->header->type == FRAME_BEAT || result || request_is_from_reader(r);
}

int request_context_reply(struct request_context *x, const struct request *r, int result,
                          const char *sentence, struct bytes *out, int write_status)
{
    struct reply_timing timing = { &x->requests[r->header->type], r->start_ns };

    if (write_status) {
        bytes_deinit(out);
        return write_status;
    }
    if (result)
        request_context_log(x, r->connection, frame_type_name(r->header->type), result,
                            sentence);
    timing.requests->n_refused += result != 0;
    if (promises_nothing(r, result)) {
        histogram_record(&timing.requests->latency_ns, uv_hrtime() - r->start_ns);
        return connection_send(r->connection, out);
    }
    return reply_queue_send(x->replies, r->connection, out, &timing);
}

int request_context_deny(const struct connection *c, const char *what, const char *name,
                         struct err *err)
{
    const struct access *a = &c->access;

    return err_set(err, PS_EDENIED, "%s %.100s: role %s%s%s may not use it", what, name,
                   access_role_name(a->role), a->job[0] ? " of job " : "", a->job);
}

void request_context_log(struct request_context *x, const struct connection *c,
                         const char *what, int status, const char *sentence)
{
    char more[64];

    if (log_line_limit_pass(&x->limit, what, status, uv_now(x->loop), more))
        log_line_warn("shard %u: %s from %s (%s): %s%s", x->shard_number, what, c->peer,
                      c->hello.name, sentence && sentence[0] ? sentence : status_text(status),
                      more);
}
