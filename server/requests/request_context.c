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

struct worker *request_context_waiting_worker(struct request_context *x,
                                              const struct connection *c)
{
    struct membership *membership = shard_membership(x->shard);
    const struct connection_worker *w = &c->worker;
    struct worker *worker;
    struct job *job;

    for (uint32_t i = 0; i < membership_n_jobs(membership); i++) {
        job = membership_job(membership, i);
        if (strcmp(job->name, w->job) != 0 || w->rank >= job->n_workers)
            continue;
        worker = &job->workers[w->rank];
        if (worker->state == WORKER_LIVE && worker->incarnation == w->incarnation)
            return worker->is_suspected ? NULL : worker;
    }
    return NULL;
}

void request_context_renew_lease(struct request_context *x, const struct connection *c,
                                 uint64_t now_ms)
{
    struct worker *worker = request_context_waiting_worker(x, c);

    if (worker)
        membership_hear(worker, now_ms);
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
