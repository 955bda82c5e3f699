/*
 * In the order of a push's life:
 *
 *     push_handler_precheck ... -> push_handler_receive -> begin -> [queue -> push_handler_more ...] -> reply
 */
#include "server/requests/push_handler.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/free_list.h"
#include "common/memory.h"
#include "proto/codec_catalog.h"
#include "server/requests/pulled_keys.h"

#define POOLED_MAX 16u /* so many that wait at a time cost no allocation */

/* A push and its way back. */
struct pending_push {
    struct free_list_link pooled;      /* once it is answered */
    struct pending_push *next;         /* in the queue */
    struct connection *connection;     /* borrowed; NULL: it has closed while the push runs */
    struct connection_remains remains; /* owned: its bytes, then */
    uint64_t request_id, start_ns;
    uint64_t log_since_ns;    /* it waits for the log; 0: it does not */
    bool is_running, holds;   /* holds: its connection */
    bool came_behind;         /* others, whose turn it was */
    struct pulled_keys *keys; /* acquired: those that it names; NULL: it names none */
    struct push push;         /* its sections point into the request's body */
};

struct push_handler {
    struct request_context *context; /* borrowed */
    struct pending_push
        *first; /* owned: the one that runs, or the next to be; then the queue */
    struct pending_push **last;    /* where the next one is queued */
    struct pending_push *received; /* owned: the one being read; NULL: to be acquired */
    struct free_list pool;         /* owned: answered, for the next ones */
    bool is_behind; /* the queue has had its time and could go on: others go behind it */
};

struct push_handler *push_handler_new(struct request_context *context)
{
    struct push_handler *p = memory_alloc(sizeof *p);

    p->context = context;
    p->last = &p->first;
    p->pool.n_max = POOLED_MAX;
    return p;
}

static struct pending_push *pending_of(struct free_list_link *pooled)
{
    return pooled ? CONTAINER_OF(pooled, struct pending_push, pooled) : NULL;
}

static void release_keys(struct pending_push *a)
{
    pulled_keys_release(a->keys);
    a->keys = NULL;
}

static void destroy(struct pending_push *a)
{
    if (a)
        release_keys(a);
    free(a);
}

void push_handler_free(struct push_handler *p)
{
    struct pending_push *a;

    if (!p)
        return;
    while ((a = p->first) != NULL) {
        p->first = a->next;
        destroy(a);
    }
    while ((a = pending_of(free_list_pop(&p->pool))) != NULL)
        destroy(a);
    destroy(p->received);
    free(p);
}

/* The log takes no push, so this one waits. */
static void begin_log_wait(struct push_handler *p, struct pending_push *a)
{
    if (a->log_since_ns || reply_queue_takes_pushes(p->context->replies))
        return;
    a->log_since_ns = uv_hrtime();
    p->context->replies->push_waits.n_now++;
}

static void end_log_wait(struct push_handler *p, struct pending_push *a)
{
    struct push_waits *waits = &p->context->replies->push_waits;

    if (!a->log_since_ns)
        return;
    waits->n_now--;
    waits->n_over++;
    waits->over_ns += uv_hrtime() - a->log_since_ns;
    a->log_since_ns = 0;
}

static void recycle(struct push_handler *p, struct pending_push *a)
{
    end_log_wait(p, a);
    connection_remains_release(&a->remains);
    release_keys(a);
    a->is_running = a->holds = false;
    if (!free_list_push(&p->pool, &a->pooled))
        free(a);
}

bool push_handler_is_busy(const struct push_handler *p)
{
    return p->first && (p->first->is_running || reply_queue_takes_pushes(p->context->replies));
}

bool push_handler_runs(const struct push_handler *p)
{
    return p->first && p->first->is_running;
}

/* --- precheck --- */

static bool is_plain(const struct section *s)
{
    return s->codec == CODEC_FP32 && s->n_keys && s->op != SECTION_ASSIGN_STATE &&
           s->op != SECTION_GRADIENT_AT;
}

/* Rows of the section that end before n_bytes of the body do. */
static uint32_t rows_before(const struct section *s, const uint8_t *body, size_t n_bytes)
{
    size_t at = (size_t)(s->values - body), row_bytes = s->value_bytes / s->n_keys;

    if (n_bytes <= at)
        return 0;
    return n_bytes - at < s->value_bytes ? (uint32_t)((n_bytes - at) / row_bytes) : s->n_keys;
}

size_t push_handler_precheck(struct push *scratch, const struct frame_header *header,
                             const uint8_t *head, const uint8_t *body, size_t n_bytes,
                             size_t prechecked_bytes, uint32_t max)
{
    const struct codec *codec = codec_by_id(CODEC_FP32);

    if (header->type != FRAME_PUSH || (header->flags & FRAME_ZSTD) ||
        message_read_push(header, head, body, header->body_bytes, scratch) != 0)
        return 0;
    for (uint32_t i = 0; i < scratch->n_sections; i++) {
        const struct section *s = &scratch->sections[i];
        size_t row_bytes = is_plain(s) ? s->value_bytes / s->n_keys : 0;
        uint32_t first, row, end;

        if (!row_bytes)
            continue;
        first = rows_before(s, body, prechecked_bytes);
        end = rows_before(s, body, n_bytes);
        for (row = first; row < end; row++)
            if (codec->check(
                    s->values + row * row_bytes, (uint32_t)(row_bytes / 4), 0,
                    s->op == SECTION_GRADIENT ? max : codec_bytes_of_float(SECTION_ASSIGN_MAX)))
                break;
        if (row > first)
            prechecked_bytes = (size_t)(s->values - body) + row * row_bytes;
        if (row < s->n_keys)
            break;
    }
    return prechecked_bytes;
}

void push_handler_set_finite(struct push *push, const uint8_t *body, size_t prechecked_bytes)
{
    for (uint32_t i = 0; i < push->n_sections; i++) {
        struct section *s = &push->sections[i];

        if (is_plain(s))
            s->n_finite = rows_before(s, body, prechecked_bytes);
    }
}

/* --- the reply --- */

/* `status`: what the push, or its beginning, ended with. Not 0: the connection cannot go on. */
static int reply(struct push_handler *p, struct pending_push *a, int status,
                 const struct shard_push_result *result) ON_SHARD
{
    struct push_reply reply = { .status = status ? status : result->status,
                                .seq = a->push.seq,
                                .min_clock = result->min_clock,
                                .version = result->version,
                                .rows_refused = result->rows_refused,
                                .repeated = result->repeated,
                                .late = result->late };
    struct reply_timing timing = { &p->context->requests[FRAME_PUSH], a->start_ns };
    struct bytes out = { 0 };

    if (reply.status)
        snprintf(reply.text, sizeof reply.text, "%s",
                 result->text[0] ? result->text : status_text(reply.status));
    status = channel_loop_acquire(a->connection->channel.channels, 1, &out);
    if (!status)
        status = message_write_push_reply(&out, a->request_id, &reply);
    if (status)
        bytes_deinit(&out);
    else
        status = reply_queue_send(p->context->replies, a->connection, &out, &timing);
    if (a->holds)
        connection_release(a->connection);
    a->holds = false;
    if (reply.status) {
        timing.requests->n_refused++;
        request_context_log(p->context, a->connection, "push", reply.status, reply.text);
    }
    if (reply.seq)
        p->context->clock_moved = true;
    return status;
}

/* --- running it --- */

static int find_worker(struct push_handler *p, struct pending_push *a, uint64_t now_ms,
                       struct worker **ret_worker) ON_SHARD
{
    int status = request_context_find_worker(p->context, a->connection, now_ms, ret_worker);

    if (status == PS_EFENCED)
        shard_push_fenced(p->context->shard);
    return status;
}

/* Starts or completes the push. If the log is full, or not yet ready for another push, nothing is done and the push
 * waits for its turn: a refusal would only make the worker send it again. */
static int begin(struct push_handler *p, struct pending_push *a, uint64_t now_ms,
                 struct shard_push_result *ret, enum shard_push_state *ret_state) ON_SHARD
{
    struct shard *shard = p->context->shard;
    struct worker *worker;
    int status = find_worker(p, a, now_ms, &worker);

    if (status)
        return status;
    *ret_state = SHARD_PUSH_BUSY;
    if (!reply_queue_takes_pushes(p->context->replies))
        return 0;
    status = shard_push_begin(shard, worker, &a->push, now_ms, ret, ret_state);
    if (status == -EAGAIN)
        *ret_state = SHARD_PUSH_BUSY;
    if (*ret_state != SHARD_PUSH_BUSY || reply_queue_takes_pushes(p->context->replies))
        end_log_wait(p, a);
    return status == -EAGAIN ? 0 : status;
}

/* --- the queue --- */

static void enqueue(struct push_handler *p, struct pending_push *a)
{
    /* The one that runs goes before those that wait. */
    struct pending_push **at = a->is_running ? &p->first : p->last;

    a->next = *at;
    *at = a;
    if (!a->next)
        p->last = &a->next;
}

static struct pending_push *dequeue(struct push_handler *p, struct pending_push **at)
{
    struct pending_push *a = *at;

    *at = a->next;
    if (!*at)
        p->last = at;
    return a;
}

static void answer(struct push_handler *p, struct pending_push **at, int status,
                   const struct shard_push_result *result) ON_SHARD
{
    struct pending_push *a = dequeue(p, at);

    if (!a->connection)
        p->context->clock_moved = true;
    else if ((status = reply(p, a, status, result)) != 0)
        connection_fail(a->connection, status);
    recycle(p, a);
}

/* Those that came while no push was taken, and may go between the slices of the one that runs; of max_bytes. Those that
 * have to wait for its end stay where they are. */
static void overtake(struct push_handler *p, uint64_t now_ms, uint64_t max_bytes) ON_SHARD
{
    struct pending_push **at = &p->first->next;
    uint64_t n_bytes = 0;

    while (*at && n_bytes < max_bytes && reply_queue_takes_pushes(p->context->replies)) {
        enum shard_push_state state = SHARD_PUSH_BUSY;
        struct shard_push_result result = { 0 };
        uint64_t cost = 0;
        int status = 0;

        if ((*at)->log_since_ns || (*at)->came_behind) {
            cost = shard_push_cost(p->context->shard, &(*at)->push);
            state = SHARD_PUSH_DONE;
            status = begin(p, *at, now_ms, &result, &state);
        }
        if (state == SHARD_PUSH_DONE) {
            answer(p, at, status, &result);
            n_bytes += cost;
        } else {
            at = &(*at)->next;
        }
    }
}

/* One slice of the first. */
static enum shard_push_state run_first(struct push_handler *p, uint64_t now_ms,
                                       struct shard_push_result *ret, int *ret_status) ON_SHARD
{
    enum shard_push_state state = SHARD_PUSH_DONE;
    struct pending_push *a = p->first;

    if (!a->is_running) {
        *ret_status = begin(p, a, now_ms, ret, &state);
        return state;
    }
    *ret_status = shard_push_more(p->context->shard, now_ms, ret, &state);
    /* The log is full: it begins again when there is space, if there is somebody to answer. */
    if (state == SHARD_PUSH_DONE && *ret_status == -EAGAIN && a->connection)
        state = SHARD_PUSH_BUSY;
    return state;
}

bool push_handler_more(struct push_handler *p, uint64_t now_ms, uint64_t max_bytes,
                       uint64_t *n_bytes)
{
    struct shard_push_result result = { 0 };
    struct pending_push *a = p->first;
    enum shard_push_state state;
    int status;

    p->is_behind = a && !a->is_running && *n_bytes >= max_bytes;
    if (!a || p->is_behind)
        return false;
    *n_bytes += shard_push_cost(p->context->shard, &a->push);
    state = run_first(p, now_ms, &result, &status);
    a->is_running = state == SHARD_PUSH_RUNNING;
    if (state == SHARD_PUSH_BUSY)
        begin_log_wait(p, a);
    if (state == SHARD_PUSH_DONE)
        answer(p, &p->first, status, &result);
    else if (a->is_running)
        overtake(p, now_ms, max_bytes);
    return state == SHARD_PUSH_DONE;
}

/* --- what dispatch calls --- */

/* p->received, for this request; its push is still to be read. */
static int acquire_received(struct push_handler *p, const struct request *r)
{
    struct pending_push *a = p->received;

    if (!a)
        a = pending_of(free_list_pop(&p->pool));
    if (!a)
        a = memory_try_alloc(sizeof *a);
    if (!a)
        return -ENOMEM;
    p->received = a;
    a->connection = r->connection;
    a->request_id = r->header->request_id;
    a->start_ns = r->start_ns;
    a->log_since_ns = 0;
    a->came_behind = false;
    a->push.seq = 0;
    return 0;
}

/* Of a push that names a pull: its keys, as if they had come with it. */
static int find_keys(const struct push_handler *p, struct pending_push *a,
                     const struct request *r)
{
    if (!a->push.keys_of)
        return 0;
    release_keys(a);
    a->keys = pulled_keys_acquire(r->connection->pulled_keys, a->push.keys_of);
    return a->keys ? pulled_keys_put(a->keys, p->context->frame_max_bytes, &a->push) : PS_EKEYS;
}

/* Reads it. A compressed body is unpacked for a worker of a job alone. */
static int read_push(struct push_handler *p, struct pending_push *a, struct request *r) ON_SHARD
{
    struct worker *worker;
    int status = request_open_body(r);

    if (!status)
        status = message_read_push(r->header, r->head, r->body, r->body_bytes, &a->push);
    if (!status)
        status = connection_check_sections(r->connection, a->push.sections, a->push.n_sections);
    if (!status && r->packed)
        status = find_worker(p, a, r->now_ms, &worker);
    if (!status)
        status = request_unpack(r);
    if (!status)
        status = find_keys(p, a, r);
    if (!status && p->context->channels->n_low)
        channel_use_work(&r->connection->channel, shard_push_cost(p->context->shard, &a->push));
    if (!status && r->prechecked_bytes)
        push_handler_set_finite(&a->push, r->body, r->prechecked_bytes);
    return status;
}

int push_handler_receive(struct push_handler *p, struct request *r)
{
    enum shard_push_state state = SHARD_PUSH_DONE;
    struct shard_push_result result = { 0 };
    int status = acquire_received(p, r);
    struct pending_push *a = p->received;

    if (status)
        return status;
    status = read_push(p, a, r);
    if (status == REQUEST_LATER)
        return status;
    a->came_behind = !status && p->is_behind && p->first;
    if (a->came_behind)
        state = SHARD_PUSH_BUSY;
    else if (!status)
        status = begin(p, a, r->now_ms, &result, &state);
    if (state == SHARD_PUSH_DONE) {
        release_keys(a);
        return reply(p, a, status, &result);
    }
    p->received = NULL;
    request_hold(r);
    a->holds = true;
    if (state == SHARD_PUSH_BUSY)
        begin_log_wait(p, a);
    a->is_running = state == SHARD_PUSH_RUNNING;
    enqueue(p, a);
    return 0;
}

void push_handler_drop(struct push_handler *p, struct connection *c)
{
    struct pending_push **at = &p->first;

    if (p->first && p->first->is_running && p->first->connection == c) {
        connection_keep_request(c, &p->first->remains);
        p->first->connection = NULL;
        p->first->holds = false;
    }
    while (*at) {
        if ((*at)->connection == c)
            recycle(p, dequeue(p, at));
        else
            at = &(*at)->next;
    }
}

void push_handler_stop(struct push_handler *p, uint64_t now_ms)
{
    const struct shard_push_result nothing = { 0 };

    if (p->first && p->first->is_running) {
        uint64_t n_bytes = 0;

        shard_finish_push(p->context->shard);
        (void)push_handler_more(p, now_ms, UINT64_MAX, &n_bytes);
    }
    while (p->first)
        answer(p, &p->first, PS_ESTOPPING, &nothing);
}
