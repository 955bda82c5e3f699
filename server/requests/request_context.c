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

void request_context_log(struct request_context *x, const struct connection *c,
                         const char *what, int status, const char *sentence)
{
    char more[64];

    if (log_line_limit_pass(&x->limit, what, status, uv_now(x->loop), more))
        log_line_warn("shard %u: %s from %s (%s): %s%s", x->shard_number, what, c->peer,
                      c->hello.name, sentence && sentence[0] ? sentence : status_text(status),
                      more);
}
