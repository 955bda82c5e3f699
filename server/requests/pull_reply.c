#include "server/requests/pull_reply.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "server/requests/pulled_keys.h"

#define LONG_BYTES ((size_t)2 << 20)     /* of values: from here on it is sent in chunks */
#define UNSENT_BYTES ((size_t)512 << 10) /* a chunk is not made while more are to be written */
#define SMALL_BYTES ((size_t)64 << 10)   /* a reply that does not count while it is made */
#define POOLED_MAX 16u                   /* so many that wait at a time cost no allocation */
#define POOLED_BYTES ((size_t)1 << 20)   /* of keys: those of a large batch */

static struct stats_requests *counters_of(const struct pull_context *x)
{
    return &x->request->requests[FRAME_PULL];
}

struct pending_pull *pull_reply_acquire(struct pull_context *x)
{
    struct pending_pull *a = x->pool;

    if (!a)
        return memory_try_alloc(sizeof *a);
    x->pool = a->next;
    x->n_pooled--;
    a->next = NULL;
    return a;
}

void pull_reply_free(struct pending_pull *a)
{
    if (!a)
        return;
    bytes_deinit(&a->body);
    bytes_deinit(&a->out);
    bytes_deinit(&a->known);
    free(a);
}

void pull_reply_deinit_context(struct pull_context *x)
{
    struct pending_pull *next;

    for (struct pending_pull *a = x->pool; a; a = next) {
        next = a->next;
        pull_reply_free(a);
    }
    delta_memory_deinit(&x->deltas);
}

static void clear_bytes(struct bytes *b)
{
    if (b->cap_bytes > POOLED_BYTES)
        bytes_deinit(b);
    else
        bytes_consume(b, bytes_len(b));
}

void pull_reply_recycle(struct pull_context *x, struct pending_pull *a)
{
    if (x->n_pooled == POOLED_MAX) {
        pull_reply_free(a);
        return;
    }
    clear_bytes(&a->body);
    bytes_deinit(&a->out);
    bytes_deinit(&a->known);
    a->state = PULL_REPLY_WHOLE;
    a->worker = NULL;
    a->holds = a->runs = false;
    a->next = x->pool;
    x->pool = a;
    x->n_pooled++;
}

static int send_out(struct pull_context *x, struct pending_pull *a)
{
    int status = pull_reply_is_partly_sent(a)
                     ? connection_send_last_chunk(a->connection, &a->out)
                     : connection_send(a->connection, &a->out);

    channel_loop_release(a->connection->channel.channels, &a->known);
    connection_set_reply_bytes(a->connection, 0);
    histogram_record(&counters_of(x)->latency_ns, uv_hrtime() - a->start_ns);
    if (a->holds)
        connection_release(a->connection);
    a->holds = false;
    return status;
}

int pull_reply_refuse(struct pull_context *x, struct pending_pull *a, int refusal,
                      const char *sentence)
{
    struct pull_reply reply = { .status = refusal };
    uint8_t *values;
    int status;

    assert(!pull_reply_is_partly_sent(a));
    snprintf(reply.text, sizeof reply.text, "%s", sentence);
    err_set(&x->last_refusal, refusal, "%s", sentence);
    counters_of(x)->n_refused++;
    channel_loop_release(a->connection->channel.channels, &a->out);
    status = message_begin_pull_reply(&a->out, a->request_id, &reply, &values);
    if (status)
        return status;
    a->crc = (struct frame_crc){ 0 };
    message_end_pull_reply(&a->out, &a->crc);
    return send_out(x, a);
}

/* Some sections may have become shorter than planned. */
static bool is_trimmed(const struct pull *pull)
{
    uint32_t i = 0;

    while (i < pull->n_sections && !pull->sections[i].state && !pull->sections[i].scan_bytes &&
           !pull->sections[i].delta.asked)
        i++;
    return i < pull->n_sections;
}

static bool has_deltas(const struct pull *pull)
{
    uint32_t i = 0;

    while (i < pull->n_sections && !pull->sections[i].delta.asked)
        i++;
    return i < pull->n_sections;
}

/* What its client has, if it asks for differences. -ENOMEM. */
static int find_deltas(struct pull_context *x, struct pending_pull *a)
{
    struct connection *c = a->connection;

    if (!has_deltas(&a->pull))
        return 0;
    if (!c->deltas)
        c->deltas = pull_deltas_new(&x->deltas);
    a->reading.deltas = c->deltas;
    return c->deltas ? 0 : -ENOMEM;
}

/* What stands behind the values of a section is known when they are all written. */
static bool has_present(const struct pull *pull)
{
    uint32_t i = 0;

    while (i < pull->n_sections && !pull->sections[i].present)
        i++;
    return i < pull->n_sections;
}

static struct pull_reply reply_of(const struct pending_pull *a, uint64_t min_clock,
                                  uint64_t version, const size_t *value_bytes)
{
    struct pull_reply reply = { .n_sections = a->pull.n_sections,
                                .min_clock = min_clock,
                                .version = version,
                                .kept = a->kept };

    for (uint32_t i = 0; i < reply.n_sections; i++)
        reply.sections[i].value_bytes = value_bytes[i];
    return reply;
}

/* The reply's head, and space for its values. */
static int open_reply(struct pull_context *x, struct pending_pull *a, const size_t *value_bytes,
                      uint8_t **ret_values) ON_SHARD
{
    struct pull_reply reply = reply_of(a, a->worker ? job_min_clock(a->worker->job) : 0,
                                       shard_version(x->request->shard), value_bytes);
    size_t n_bytes = 0;
    int status;

    for (uint32_t i = 0; i < reply.n_sections; i++)
        n_bytes += value_bytes[i];
    a->job_run = a->worker ? a->worker->job->run : 0;
    a->crc = (struct frame_crc){ 0 };
    /* Beside the values: the frame's header and head, a few bytes for each section. */
    status = channel_loop_acquire(
        a->connection->channel.channels,
        n_bytes + FRAME_HEADER_BYTES + 64 + 8 * (size_t)reply.n_sections, &a->out);
    return status ? status
                  : message_begin_pull_reply(&a->out, a->request_id, &reply, ret_values);
}

static uint64_t n_keys_of(const struct pull *pull)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < pull->n_sections; i++)
        n += pull->sections[i].n_keys;
    return n;
}

/* Not where the keys would take much of the memory that chunks save. */
static bool is_chunked(const struct pull_context *x, const struct pending_pull *a,
                       const size_t *value_bytes)
{
    size_t n_bytes = 0;

    for (uint32_t i = 0; i < a->pull.n_sections; i++)
        n_bytes += value_bytes[i];
    return a->holds && !x->request->compress_replies && n_bytes >= LONG_BYTES &&
           a->connection->hello.frame_flags & FRAME_SUM_BEHIND && !is_trimmed(&a->pull) &&
           !has_present(&a->pull) && n_keys_of(&a->pull) * sizeof(uint64_t) <= n_bytes / 4;
}

/* Memory for the next chunk: its slice, behind before_bytes and in front of the sum. */
static int acquire_chunk(struct pending_pull *a, size_t before_bytes)
{
    return channel_loop_acquire(a->connection->channel.channels,
                                before_bytes + a->chunk_bytes + FRAME_SUM_BYTES, &a->out);
}

/* The frame's header and its head stand in the first chunk. */
static int begin_chunks(struct pull_context *x, struct pending_pull *a,
                        const size_t *value_bytes) ON_SHARD
{
    struct pull_reply reply =
        reply_of(a, a->reading.min_clock, a->reading.version, value_bytes);
    int status = channel_loop_acquire(a->connection->channel.channels,
                                      n_keys_of(&a->pull) * sizeof(uint64_t), &a->known);

    a->chunk_bytes = shard_pull_slice_bytes(x->request->shard, &a->pull);
    if (!status)
        status = acquire_chunk(a, FRAME_HEADER_BYTES + 64 + 8 * (size_t)reply.n_sections);
    if (!status)
        status = message_open_pull_reply(&a->out, a->request_id, &reply, &a->crc);
    a->state = PULL_REPLY_KEYS;
    a->job_run = a->worker ? a->worker->job->run : 0;
    return status;
}

int pull_reply_begin(struct pull_context *x, struct pending_pull *a, struct err *err)
{
    size_t value_bytes[SECTIONS_MAX];
    int status = shard_pull_plan(x->request->shard, &a->pull,
                                 x->request->frame_max_bytes - UINT16_MAX, value_bytes, err);

    a->state = PULL_REPLY_WHOLE;
    if (status)
        return status;
    shard_pull_begin(x->request->shard, a->worker, &a->pull, NULL, &a->reading);
    status = find_deltas(x, a);
    if (status)
        return err_set(err, status, "%s", status_text(status));
    a->kept = a->pull.keep && a->worker &&
              pulled_keys_keep(&a->connection->pulled_keys, &x->deltas.budget, a->request_id,
                               &a->pull);
    if (is_chunked(x, a, value_bytes))
        status = begin_chunks(x, a, value_bytes);
    else
        status = open_reply(x, a, value_bytes, &a->reading.dst);
    if (!status && (a->runs || a->out.cap_bytes > SMALL_BYTES))
        connection_set_reply_bytes(a->connection,
                                   sizeof *a + a->out.cap_bytes + a->known.cap_bytes);
    return status ? err_set(err, status, "%s", status_text(status)) : 0;
}

static void trim(struct pending_pull *a)
{
    struct pull_reply reply =
        reply_of(a, a->reading.min_clock, a->reading.version, a->reading.value_bytes);

    message_trim_pull_reply(&a->out, &reply);
}

static void end_reading(struct pull_context *x, struct pending_pull *a) ON_SHARD
{
    /* The staleness of a run that has ended is not the next one's. */
    shard_pull_end(x->request->shard,
                   a->worker && a->worker->job->run == a->job_run ? a->worker : NULL,
                   &a->reading);
}

static int read_keys(struct pull_context *x, struct pending_pull *a, bool *ret_done) ON_SHARD
{
    struct err err = { 0 };
    int status = shard_pull_decode_keys(x->request->shard, &a->reading,
                                        (uint64_t *)(void *)a->known.bytes, &err);

    if (a->reading.known)
        a->state = PULL_REPLY_SENDING;
    *ret_done = status != 0;
    return status ? pull_reply_refuse(x, a, status, err.text) : 0;
}

/* Makes and sums the next chunk. Not 0: -ENOMEM, before anything is done, or what should not be. */
static int make_chunk(struct pull_context *x, struct pending_pull *a) ON_SHARD
{
    struct err err = { 0 };
    uint8_t *values;
    int status = a->out.bytes ? 0 : acquire_chunk(a, 0);

    if (status)
        return status;
    values = a->reading.dst = a->out.bytes + a->out.end;
    status = shard_pull_more(x->request->shard, &a->reading, &err);
    if (status)
        return status;
    frame_crc_follow(&a->crc, values, (size_t)(a->reading.dst - values));
    bytes_commit(&a->out, (size_t)(a->reading.dst - values));
    return 0;
}

static int send_last(struct pull_context *x, struct pending_pull *a) ON_SHARD
{
    frame_put_sum(a->out.bytes + a->out.end, &a->crc);
    bytes_commit(&a->out, FRAME_SUM_BYTES);
    end_reading(x, a);
    return send_out(x, a);
}

/* One slice, as a chunk, which is in the cache when it is copied to the socket. */
static int send_chunk(struct pull_context *x, struct pending_pull *a, bool *ret_done) ON_SHARD
{
    struct channel *channel = &a->connection->channel;
    int status = make_chunk(x, a);

    *ret_done = status || a->reading.done;
    if (status)
        return status;
    if (a->reading.done)
        return send_last(x, a);
    status = channel_send_chunk(channel, &a->out);
    *ret_done = status != 0;
    if (channel_leaving_bytes(channel) > UNSENT_BYTES)
        a->state = PULL_REPLY_WAITS;
    return status;
}

bool pull_reply_can_go_on(struct pending_pull *a)
{
    if (a->state == PULL_REPLY_WAITS &&
        channel_leaving_bytes(&a->connection->channel) <= UNSENT_BYTES)
        a->state = PULL_REPLY_SENDING;
    return a->state != PULL_REPLY_WAITS;
}

bool pull_reply_is_partly_sent(const struct pending_pull *a)
{
    return a->state == PULL_REPLY_SENDING || a->state == PULL_REPLY_WAITS;
}

int pull_reply_more(struct pull_context *x, struct pending_pull *a, bool *ret_done)
{
    bool trims = is_trimmed(&a->pull);
    struct err err = { 0 };
    int status = 0;

    if (a->state == PULL_REPLY_KEYS)
        return read_keys(x, a, ret_done);
    if (a->state != PULL_REPLY_WHOLE)
        return send_chunk(x, a, ret_done);
    if (!a->reading.done)
        status = shard_pull_more(x->request->shard, &a->reading, &err);
    *ret_done = status || a->reading.done;
    if (status)
        return pull_reply_refuse(x, a, status, err.text);
    if (!x->request->compress_replies && !trims)
        message_sum_pull_reply(&a->out, a->reading.dst, &a->crc);
    if (!a->reading.done)
        return 0;
    end_reading(x, a);
    if (trims)
        trim(a);
    if (x->request->compress_replies)
        message_pack_pull_reply(&a->out, &a->connection->channel.channels->zstd);
    else
        message_end_pull_reply(&a->out, &a->crc);
    return send_out(x, a);
}
