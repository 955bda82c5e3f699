#include "server/requests/reply_queue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

#define POOLED_MAX 256u /* so many that wait at a time cost no allocation */

struct queued_reply {
    struct free_list_link pooled; /* once it is sent */
    struct queued_reply *next;
    struct connection *connection; /* borrowed; reply_queue_drop() comes before it goes */
    uint64_t number, since_ns;
    struct bytes frame; /* owned */
    struct reply_timing timing;
};

static uint64_t bytes_of(const struct bytes *frame)
{
    return sizeof(struct queued_reply) + frame->cap_bytes;
}

void reply_queue_init(struct reply_queue *q)
{
    *q = (struct reply_queue){ .pool = { .n_max = POOLED_MAX },
                               .by_standby = UINT64_MAX,
                               .alone_until_ms = UINT64_MAX };
    q->last = &q->first;
}

static void free_reply(struct queued_reply *reply)
{
    bytes_deinit(&reply->frame);
    free(reply);
}

/* Takes *at out of the queue, unsent. */
static struct queued_reply *dequeue(struct reply_queue *q, struct queued_reply **at)
{
    struct queued_reply *reply = *at;

    *at = reply->next;
    if (!*at)
        q->last = at;
    q->n_waiting--;
    q->waiting_bytes -= bytes_of(&reply->frame);
    q->since_ns = q->first ? q->first->since_ns : 0;
    return reply;
}

/* Of one whose connection still stands. */
static struct queued_reply *take(struct reply_queue *q, struct queued_reply **at)
{
    struct queued_reply *reply = dequeue(q, at);
    struct connection *c = reply->connection;

    connection_set_queued_bytes(c, c->queued_bytes - bytes_of(&reply->frame));
    return reply;
}

static struct queued_reply *reply_of(struct free_list_link *pooled)
{
    return pooled ? CONTAINER_OF(pooled, struct queued_reply, pooled) : NULL;
}

void reply_queue_deinit(struct reply_queue *q)
{
    struct queued_reply *reply;

    while (q->first)
        free_reply(dequeue(q, &q->first));
    while ((reply = reply_of(free_list_pop(&q->pool))) != NULL)
        free_reply(reply);
}

static void recycle(struct reply_queue *q, struct queued_reply *reply)
{
    bytes_deinit(&reply->frame);
    if (!free_list_push(&q->pool, &reply->pooled))
        free(reply);
}

/* NULL: no memory. */
static struct queued_reply *acquire(struct reply_queue *q)
{
    struct queued_reply *reply = reply_of(free_list_pop(&q->pool));

    return reply ? reply : memory_try_alloc(sizeof *reply);
}

static void measure(const struct reply_timing *timing)
{
    histogram_record(&timing->requests->latency_ns, uv_hrtime() - timing->start_ns);
}

/* A reply of 60 bytes comes in a buffer of 4 KiB. */
static void shrink(const struct reply_queue *q, struct connection *c, struct bytes *frame)
{
    size_t n_bytes = bytes_len(frame);
    struct bytes exact = { .end = n_bytes, .cap_bytes = n_bytes };

    if (q->waiting_bytes < REPLY_QUEUE_LONG_BYTES || frame->cap_bytes < 2 * n_bytes)
        return;
    exact.bytes = memory_try_alloc(n_bytes);
    if (!exact.bytes)
        return;
    memcpy(exact.bytes, bytes_front(frame), n_bytes);
    channel_loop_release(c->channel.channels, frame);
    *frame = exact;
}

/* The connection that has most in the queue, if `c` had n_bytes more. */
static struct connection *find_greediest(const struct reply_queue *q, struct connection *c,
                                         uint64_t n_bytes)
{
    struct connection *most = c;
    uint64_t most_bytes = c->queued_bytes + n_bytes;

    for (const struct queued_reply *i = q->first; i; i = i->next) {
        if (i->connection == c || i->connection->queued_bytes <= most_bytes)
            continue;
        most = i->connection;
        most_bytes = most->queued_bytes;
    }
    return most;
}

/* -ENOBUFS: it is the connection itself that has most. */
static int make_space(struct reply_queue *q, struct connection *c, uint64_t n_bytes) ON_SHARD
{
    while (q->waiting_bytes + n_bytes > REPLY_QUEUE_BYTES_MAX) {
        struct connection *most = find_greediest(q, c, n_bytes);

        if (most == c)
            return -ENOBUFS;
        connection_fail_greedy(most);
        reply_queue_drop(q, most);
    }
    return 0;
}

/* An error ends the connection: its peer asks again, and gets the reply then. */
static int enqueue(struct reply_queue *q, struct connection *c, struct bytes *frame,
                   const struct reply_timing *timing) ON_SHARD
{
    struct queued_reply *reply = NULL;
    int status;

    shrink(q, c, frame);
    status = make_space(q, c, bytes_of(frame));
    if (!status && !(reply = acquire(q)))
        status = -ENOMEM;
    if (status) {
        bytes_deinit(frame);
        return status;
    }
    *reply = (struct queued_reply){ .connection = c,
                                    .number = q->appended,
                                    .since_ns = uv_hrtime(),
                                    .frame = *frame,
                                    .timing = *timing };
    *frame = (struct bytes){ 0 };
    *q->last = reply;
    q->last = &reply->next;
    q->n_waiting++;
    q->waiting_bytes += bytes_of(&reply->frame);
    connection_set_queued_bytes(c, c->queued_bytes + bytes_of(&reply->frame));
    q->since_ns = q->first->since_ns;
    return 0;
}

int reply_queue_send(struct reply_queue *q, struct connection *c, struct bytes *frame,
                     const struct reply_timing *timing)
{
    if (q->acknowledged < q->appended)
        return enqueue(q, c, frame, timing);
    measure(timing);
    return connection_send(c, frame);
}

static void send_acknowledged(struct reply_queue *q) ON_SHARD
{
    q->acknowledged = q->by_log < q->by_standby ? q->by_log : q->by_standby;
    while (q->first && q->first->number <= q->acknowledged) {
        struct queued_reply *reply = take(q, &q->first);
        int status;

        measure(&reply->timing);
        status = connection_send(reply->connection, &reply->frame);
        if (status)
            connection_fail(reply->connection, status);
        recycle(q, reply);
    }
}

void reply_queue_release(struct reply_queue *q, uint64_t acknowledged)
{
    if (acknowledged > q->by_log)
        q->by_log = acknowledged;
    send_acknowledged(q);
}

void reply_queue_set_standby(struct reply_queue *q, uint64_t acknowledged)
{
    q->by_standby = acknowledged;
    send_acknowledged(q);
}

uint64_t reply_queue_waited_ms(const struct reply_queue *q)
{
    return q->first ? (uv_hrtime() - q->first->since_ns) / 1000000 : 0;
}

void reply_queue_drop(struct reply_queue *q, const struct connection *c)
{
    struct queued_reply **at = &q->first;

    while (*at) {
        if ((*at)->connection == c)
            recycle(q, take(q, at));
        else
            at = &(*at)->next;
    }
}
