#include "server/answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

#define SPARES_MAX 16u               /* so many that wait at a time cost no allocation */
#define KEPT_BYTES ((size_t)1 << 20) /* of keys: those of a large batch */

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
    free(a);
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
    a->worker = NULL;
    a->holds = false;
    a->next = desk->spare;
    desk->spare = a;
    desk->n_spares++;
}

static int send_out(struct answer_desk *desk, struct answer *a)
{
    int status = connection_send(a->connection, &a->out);

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

int answer_begin(struct answer_desk *desk, struct answer *a, struct err *err)
{
    size_t value_bytes[SECTIONS_MAX];
    uint8_t *values;
    int status = shard_pull_plan(desk->shard, &a->pull, desk->frame_max_bytes - UINT16_MAX,
                                 value_bytes, err);

    if (status)
        return status;
    status = open_reply(desk, a, value_bytes, &values);
    if (status)
        return err_set(err, status, "%s", status_text(status));
    shard_pull_begin(desk->shard, a->worker, &a->pull, values, &a->run);
    return 0;
}

static void trim(struct answer *a)
{
    struct pull_reply reply = reply_of(a, a->run.min_clock, a->run.version, a->run.value_bytes);

    message_trim_pull_reply(&a->out, &reply);
}

int answer_more(struct answer_desk *desk, struct answer *a, bool *ret_done)
{
    bool trims = has_state(&a->pull);
    struct err err = { 0 };
    int status = 0;

    if (!a->run.done)
        status = shard_pull_more(desk->shard, &a->run, &err);
    *ret_done = status || a->run.done;
    if (status)
        return answer_refuse(desk, a, status, err.text);
    if (!desk->compress && !trims)
        message_sum_pull_reply(&a->out, a->run.dst, &a->crc);
    if (!a->run.done)
        return 0;
    /* The staleness of a run that has ended is not the next one's. */
    shard_pull_end(desk->shard,
                   a->worker && a->worker->job->run == a->job_run ? a->worker : NULL, &a->run);
    if (trims)
        trim(a);
    if (desk->compress)
        message_pack_pull_reply(&a->out, &a->connection->channel.hub->zstd);
    else
        message_end_pull_reply(&a->out, &a->crc);
    return send_out(desk, a);
}
