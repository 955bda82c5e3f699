#include "server/answer.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

#define LONG_BYTES ((size_t)2 << 20)     /* of values: from here on it leaves in parts */
#define UNSENT_BYTES ((size_t)512 << 10) /* a part is not made while more are to be written */
#define SPARES_MAX 16u                   /* so many that wait at a time cost no allocation */
#define KEPT_BYTES ((size_t)1 << 20)     /* of keys: those of a large batch */

struct answer *answer_take(struct answer_desk *desk)
{
    struct answer *a = desk->spare;

    if (!a)
        return mem_try_alloc(sizeof *a);
    desk->spare = a->next;
    desk->n_spares--;
    a->next = NULL;
    return a;
}

void answer_free(struct answer *a)
{
    if (!a)
        return;
    buf_deinit(&a->body);
    buf_deinit(&a->unpacked);
    buf_deinit(&a->out);
    buf_deinit(&a->known);
    free(a);
}

void answer_desk_deinit(struct answer_desk *desk)
{
    struct answer *next;

    for (struct answer *a = desk->spare; a; a = next) {
        next = a->next;
        answer_free(a);
    }
}

static void clear_buf(struct buf *b)
{
    if (b->cap_bytes > KEPT_BYTES)
        buf_deinit(b);
    else
        buf_consume(b, buf_len(b));
}

void answer_put_by(struct answer_desk *desk, struct answer *a)
{
    if (desk->n_spares == SPARES_MAX) {
        answer_free(a);
        return;
    }
    clear_buf(&a->body);
    clear_buf(&a->unpacked);
    buf_deinit(&a->out);
    buf_deinit(&a->known);
    a->state = ANSWER_WHOLE;
    a->worker = NULL;
    a->holds = false;
    a->next = desk->spare;
    desk->spare = a;
    desk->n_spares++;
}

static int send_out(struct answer_desk *desk, struct answer *a)
{
    int status = answer_has_left(a) ? channel_send_last_part(&a->connection->channel, &a->out)
                                    : connection_send(a->connection, &a->out);

    channel_hub_give(a->connection->channel.hub, &a->known);
    histogram_record(&desk->requests->latency_ns, uv_hrtime() - a->start_ns);
    if (a->holds)
        connection_release(a->connection);
    a->holds = false;
    return status;
}

int answer_refuse(struct answer_desk *desk, struct answer *a, int told, const char *sentence)
{
    struct pull_reply reply = { .status = told };
    uint8_t *values;
    int status;

    assert(!answer_has_left(a));
    snprintf(reply.text, sizeof reply.text, "%s", sentence);
    err_set(&desk->last_refusal, told, "%s", sentence);
    desk->requests->n_refused++;
    channel_hub_give(a->connection->channel.hub, &a->out);
    status = message_begin_pull_reply(&a->out, a->request_id, &reply, &values);
    if (status)
        return status;
    a->crc = (struct frame_crc){ 0 };
    message_end_pull_reply(&a->out, &a->crc);
    return send_out(desk, a);
}

/* Some sections may have become shorter than planned. */
static bool has_state(const struct pull *pull)
{
    uint32_t i = 0;

    while (i < pull->n_sections && !pull->sections[i].state)
        i++;
    return i < pull->n_sections;
}

static struct pull_reply reply_of(const struct answer *a, uint64_t min_clock, uint64_t version,
                                  const size_t *value_bytes)
{
    struct pull_reply reply = { .n_sections = a->pull.n_sections,
                                .min_clock = min_clock,
                                .version = version };

    for (uint32_t i = 0; i < reply.n_sections; i++)
        reply.sections[i].value_bytes = value_bytes[i];
    return reply;
}

/* The reply's head, and room for its values. */
static int open_reply(struct answer_desk *desk, struct answer *a, const size_t *value_bytes,
                      uint8_t **ret_values) ON_SHARD
{
    struct pull_reply reply = reply_of(a, a->worker ? job_min_clock(a->worker->job) : 0,
                                       shard_version(desk->shard), value_bytes);
    size_t n_bytes = 0;
    int status;

    for (uint32_t i = 0; i < reply.n_sections; i++)
        n_bytes += value_bytes[i];
    a->job_run = a->worker ? a->worker->job->run : 0;
    a->crc = (struct frame_crc){ 0 };
    /* Beside the values: the frame's header and head, a few bytes for each section. */
    status = channel_hub_take(a->connection->channel.hub,
                              n_bytes + FRAME_HEADER_BYTES + 64 + 8 * (size_t)reply.n_sections,
                              &a->out);
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

/* Where the keys would take much of the memory that is spared, nothing is. */
static bool leaves_in_parts(const struct answer_desk *desk, const struct answer *a,
                            const size_t *value_bytes)
{
    size_t n_bytes = 0;

    for (uint32_t i = 0; i < a->pull.n_sections; i++)
        n_bytes += value_bytes[i];
    return a->holds && !desk->compress && n_bytes >= LONG_BYTES &&
           a->connection->hello.frame_flags & FRAME_SUM_BEHIND && !has_state(&a->pull) &&
           n_keys_of(&a->pull) * sizeof(uint64_t) <= n_bytes / 4;
}

/* Room for the next part: its slice, behind what is before and in front of the sum. */
static int take_room(struct answer *a, size_t before_bytes)
{
    return channel_hub_take(a->connection->channel.hub,
                            before_bytes + a->part_bytes + FRAME_SUM_BYTES, &a->out);
}

/* The frame's header and its head stand in the first part. */
static int begin_parts(struct answer_desk *desk, struct answer *a, const size_t *value_bytes)
    ON_SHARD
{
    struct pull_reply reply = reply_of(a, a->run.min_clock, a->run.version, value_bytes);
    int status = channel_hub_take(a->connection->channel.hub,
                                  n_keys_of(&a->pull) * sizeof(uint64_t), &a->known);

    a->part_bytes = shard_pull_slice_room(desk->shard, &a->pull);
    if (!status)
        status = take_room(a, FRAME_HEADER_BYTES + 64 + 8 * (size_t)reply.n_sections);
    if (!status)
        status = message_open_pull_reply(&a->out, a->request_id, &reply, &a->crc);
    a->state = ANSWER_KEYS;
    a->job_run = a->worker ? a->worker->job->run : 0;
    return status;
}

int answer_begin(struct answer_desk *desk, struct answer *a, struct err *err)
{
    size_t value_bytes[SECTIONS_MAX];
    int status = shard_pull_plan(desk->shard, &a->pull, desk->frame_max_bytes - UINT16_MAX,
                                 value_bytes, err);

    a->state = ANSWER_WHOLE;
    if (status)
        return status;
    shard_pull_begin(desk->shard, a->worker, &a->pull, NULL, &a->run);
    if (leaves_in_parts(desk, a, value_bytes))
        status = begin_parts(desk, a, value_bytes);
    else
        status = open_reply(desk, a, value_bytes, &a->run.dst);
    return status ? err_set(err, status, "%s", status_text(status)) : 0;
}

static void trim(struct answer *a)
{
    struct pull_reply reply = reply_of(a, a->run.min_clock, a->run.version, a->run.value_bytes);

    message_trim_pull_reply(&a->out, &reply);
}

static void end_run(struct answer_desk *desk, struct answer *a) ON_SHARD
{
    /* The staleness of a run that has ended is not the next one's. */
    shard_pull_end(desk->shard,
                   a->worker && a->worker->job->run == a->job_run ? a->worker : NULL, &a->run);
}

static int read_keys(struct answer_desk *desk, struct answer *a, bool *ret_done) ON_SHARD
{
    struct err err = { 0 };
    int status =
        shard_pull_know(desk->shard, &a->run, (uint64_t *)(void *)a->known.bytes, &err);

    if (a->run.known)
        a->state = ANSWER_LEAVING;
    *ret_done = status != 0;
    return status ? answer_refuse(desk, a, status, err.text) : 0;
}

/* Makes and sums the next part. Not 0: -ENOMEM, before anything is done, or what should not be. */
static int make_part(struct answer_desk *desk, struct answer *a) ON_SHARD
{
    struct err err = { 0 };
    uint8_t *values;
    int status = a->out.bytes ? 0 : take_room(a, 0);

    if (status)
        return status;
    values = a->run.dst = a->out.bytes + a->out.end;
    status = shard_pull_more(desk->shard, &a->run, &err);
    if (status)
        return status;
    frame_crc_follow(&a->crc, values, (size_t)(a->run.dst - values));
    buf_commit(&a->out, (size_t)(a->run.dst - values));
    return 0;
}

static int send_last(struct answer_desk *desk, struct answer *a) ON_SHARD
{
    frame_put_sum(a->out.bytes + a->out.end, &a->crc);
    buf_commit(&a->out, FRAME_SUM_BYTES);
    end_run(desk, a);
    return send_out(desk, a);
}

/* One slice, as a part, which is still near when it is copied to the socket. */
static int leave(struct answer_desk *desk, struct answer *a, bool *ret_done) ON_SHARD
{
    struct channel *channel = &a->connection->channel;
    int status = make_part(desk, a);

    *ret_done = status || a->run.done;
    if (status)
        return status;
    if (a->run.done)
        return send_last(desk, a);
    status = channel_send_part(channel, &a->out);
    *ret_done = status != 0;
    if (channel_leaving_bytes(channel) > UNSENT_BYTES)
        a->state = ANSWER_WAITS;
    return status;
}

bool answer_can_go_on(struct answer *a)
{
    if (a->state == ANSWER_WAITS &&
        channel_leaving_bytes(&a->connection->channel) <= UNSENT_BYTES)
        a->state = ANSWER_LEAVING;
    return a->state != ANSWER_WAITS;
}

bool answer_is_alive(struct answer *a)
{
    uint64_t before = a->reached_bytes;

    a->reached_bytes = connection_reached_bytes(a->connection);
    return a->state != ANSWER_WAITS || a->reached_bytes != before;
}

bool answer_has_left(const struct answer *a)
{
    return a->state == ANSWER_LEAVING || a->state == ANSWER_WAITS;
}

int answer_more(struct answer_desk *desk, struct answer *a, bool *ret_done)
{
    bool trims = has_state(&a->pull);
    struct err err = { 0 };
    int status = 0;

    if (a->state == ANSWER_KEYS)
        return read_keys(desk, a, ret_done);
    if (a->state != ANSWER_WHOLE)
        return leave(desk, a, ret_done);
    if (!a->run.done)
        status = shard_pull_more(desk->shard, &a->run, &err);
    *ret_done = status || a->run.done;
    if (status)
        return answer_refuse(desk, a, status, err.text);
    if (!desk->compress && !trims)
        message_sum_pull_reply(&a->out, a->run.dst, &a->crc);
    if (!a->run.done)
        return 0;
    end_run(desk, a);
    if (trims)
        trim(a);
    if (desk->compress)
        message_pack_pull_reply(&a->out, &a->connection->channel.hub->zstd);
    else
        message_end_pull_reply(&a->out, &a->crc);
    return send_out(desk, a);
}
