#include "tests/bench/psbench_conn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/mem.h"
#include "proto/codec_catalog.h"
#include "proto/keys.h"
#include "proto/route.h"

#define FILL_KEYS 4096u
#define CONTROL_ID UINT64_MAX /* hello, join, table, leave */
#define BEAT_ID (UINT64_MAX - 1)

enum phase {
    DIALING,
    GREETING,
    JOINING,
    NAMING,
    FILLING,
    IDLE,
    LOADING,
    DRAINING,
    LEAVING,
    GONE
};

struct psbench_conn {
    struct psbench_conn_config config;
    enum phase phase;
    struct dial *dial; /* owned */
    uint64_t *sent_ns; /* owned, [depth]: when the request in this slot left */
    uint32_t in_flight, next_set;
    uint64_t seq, next_row, n_turns;
    struct push push; /* one section; the table's number is known after NAMING */
    struct pull pull;
    uint64_t *fill_keys; /* owned, FILL_KEYS, as what follows */
    uint8_t *fill_key_bytes;
    uint8_t *fill_values;
    struct buf body;
    struct pull_reply answer;
};

static void fail(struct psbench_conn *c, const char *what, const char *why)
{
    char text[512];

    snprintf(text, sizeof text, "shard %u at %s: %s: %s", c->config.shard,
             c->config.address.text, what, why);
    c->phase = GONE;
    dial_drop(c->dial);
    c->dial = NULL;
    c->config.failed(c->config.owner, text);
}

static void send_frame(struct psbench_conn *c, int status, struct buf *frame)
{
    size_t n_bytes = buf_len(frame);

    if (!status)
        status = dial_send(c->dial, frame);
    buf_deinit(frame);
    if (status)
        fail(c, "sending", dial_why(status));
    else if (*c->config.measuring)
        c->config.counts->bytes_out += n_bytes;
}

static void on_connected(void *owner)
{
    struct psbench_conn *c = owner;
    struct hello hello = { .version_min = PROTO_VERSION_MIN,
                           .version_max = PROTO_VERSION_MAX,
                           .role = "worker",
                           .shard = c->config.shard_on_node,
                           .map_id = c->config.map_id,
                           .name = "psbench" };
    struct buf frame = { 0 };

    memcpy(hello.token, c->config.settings->token,
           strnlen(c->config.settings->token, sizeof hello.token - 1));
    c->phase = GREETING;
    send_frame(c, message_write_hello(&frame, CONTROL_ID, &hello), &frame);
}

static int take_hello(struct psbench_conn *c, const struct frame_header *h, const uint8_t *head)
{
    struct join join = { .job = "psbench",
                         .rank = c->config.rank,
                         .n_workers = c->config.n_ranks,
                         .incarnation = c->config.incarnation,
                         .mode = SPEC_MODE_ASYNC,
                         .name = "psbench" };
    struct hello_reply *r = mem_alloc(sizeof *r);
    struct buf frame = { 0 };
    int status = message_read_hello_reply(h, head, r);

    if (!status && r->status) {
        fail(c, "greeting", r->text);
    } else if (!status) {
        if (r->frame_max_bytes)
            dial_set_frame_max(c->dial, r->frame_max_bytes);
        c->phase = JOINING;
        send_frame(c, message_write_join(&frame, CONTROL_ID, &join), &frame);
    }
    free(r);
    return status;
}

static int take_join(struct psbench_conn *c, const struct frame_header *h, const uint8_t *head)
{
    const struct psbench_settings *s = c->config.settings;
    struct table_request request = { .spec = { .kind = SPEC_SPARSE,
                                               .dim = s->dim,
                                               .seed = 1,
                                               .init = SPEC_INIT_UNIFORM,
                                               .init_scale = 0.01f,
                                               .optim = (enum spec_optim)s->optimizer,
                                               .mode = SPEC_MODE_JOB } };
    struct buf frame = { 0 };
    struct join_reply r;
    int status = message_read_join_reply(h, head, &r);

    if (status || r.status) {
        if (!status)
            fail(c, "joining", r.text);
        return status;
    }
    request.spec.params = spec_optim_defaults(request.spec.optim);
    snprintf(request.spec.name, sizeof request.spec.name, "psbench/%u", s->dim);
    c->push.clock = c->pull.clock = r.clock;
    c->phase = NAMING;
    send_frame(c, message_write_table(&frame, CONTROL_ID, &request), &frame);
    return 0;
}

static void become_idle(struct psbench_conn *c)
{
    c->phase = IDLE;
    c->config.idle(c->config.owner);
}

static int compare_keys(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* The next rows of this connection's share: every n_ranks-th, if the shard owns it. */
static uint32_t next_fill(struct psbench_conn *c)
{
    uint32_t n = 0;
    uint64_t key;

    for (; c->next_row <= c->config.settings->rows && n < FILL_KEYS;
         c->next_row += c->config.n_ranks) {
        key = hash_mix(c->next_row);
        if (route_shard(key, 0, c->config.n_shards) == c->config.shard)
            c->fill_keys[n++] = key;
    }
    qsort(c->fill_keys, n, sizeof *c->fill_keys, compare_keys);
    return n;
}

/* One push at a time; the answer brings the next. */
static void fill(struct psbench_conn *c)
{
    struct section *s = &c->push.sections[0];
    struct section kept = *s;
    uint32_t n = c->config.settings->no_fill ? 0 : next_fill(c);
    struct buf frame = { 0 };

    if (!n) {
        become_idle(c);
        return;
    }
    s->codec = CODEC_FP32;
    s->k = 0;
    s->n_keys = n;
    s->keys = c->fill_key_bytes;
    s->key_bytes = keys_encode(c->fill_keys, n, c->fill_key_bytes);
    s->values = c->fill_values;
    s->value_bytes = (size_t)n * c->config.settings->dim * sizeof(float);
    c->push.seq = ++c->seq;
    c->config.counts->n_filled += n;
    send_frame(c, message_write_push(&frame, 0, &c->push, false), &frame);
    *s = kept;
    c->push.clock++;
}

static int take_table(struct psbench_conn *c, const struct frame_header *h, const uint8_t *head)
{
    struct table_reply r;
    int status = message_read_table_reply(h, head, &r);

    if (status)
        return status;
    if (r.status) {
        fail(c, "table", r.text);
        return 0;
    }
    c->push.sections[0].table_id = c->pull.sections[0].table_id = r.table_id;
    c->phase = FILLING;
    fill(c);
    return 0;
}

static void next_keys(struct psbench_conn *c, struct section *s)
{
    const struct psbench_pool *p = c->config.pool;
    uint32_t i = c->next_set++ % p->n_sets;

    s->keys = buf_front(&p->bytes) + p->starts[i];
    s->key_bytes = p->starts[i + 1] - p->starts[i];
    s->n_keys = c->config.settings->keys_per_request;
}

/* mix: push what was pulled, as a trainer does. */
static bool is_push_next(struct psbench_conn *c)
{
    if (c->config.settings->load == PSBENCH_MIX)
        return c->n_turns++ % 2;
    return c->config.settings->load == PSBENCH_PUSH;
}

static void send_request(struct psbench_conn *c, uint32_t slot)
{
    struct buf frame = { 0 };
    int status;

    c->sent_ns[slot] = uv_hrtime();
    if (is_push_next(c)) {
        next_keys(c, &c->push.sections[0]);
        c->push.seq = ++c->seq;
        status = message_write_push(&frame, slot, &c->push, c->config.settings->compress);
        c->pull.clock = ++c->push.clock;
    } else {
        next_keys(c, &c->pull.sections[0]);
        status = message_write_pull(&frame, slot, &c->pull, c->config.settings->compress);
    }
    c->in_flight++;
    send_frame(c, status, &frame);
}

static void count_error(struct psbench_conn *c, int status, const char *text)
{
    struct psbench_counts *counts = c->config.counts;

    if (!counts->n_errors++)
        snprintf(counts->first_error, sizeof counts->first_error, "%s",
                 text[0] ? text : status_text(status));
}

/* An answer to the request in `slot` of the load. */
static int take_answer(struct psbench_conn *c, uint64_t slot, int status, const char *text)
{
    struct psbench_counts *counts = c->config.counts;

    if (slot >= c->config.settings->depth || !c->in_flight)
        return PS_EPROTO;
    c->in_flight--;
    if (*c->config.measuring) {
        if (status)
            count_error(c, status, text);
        counts->n_requests++;
        counts->n_rows += status ? 0 : c->config.settings->keys_per_request;
        histogram_record(&counts->latency_ns, uv_hrtime() - c->sent_ns[slot]);
    }
    if (c->phase == LOADING)
        send_request(c, (uint32_t)slot);
    else if (!c->in_flight)
        become_idle(c);
    return 0;
}

static int take_push(struct psbench_conn *c, const struct frame_header *h, const uint8_t *head)
{
    struct push_reply r;
    int status = message_read_push_reply(h, head, &r);

    if (status)
        return status;
    if (c->phase != FILLING)
        return take_answer(c, h->request_id, r.status, r.text);
    if (r.status)
        fail(c, "filling the table", r.text[0] ? r.text : status_text(r.status));
    else
        fill(c);
    return 0;
}

static int take_pull(struct psbench_conn *c, const struct frame_header *h, const uint8_t *head,
                     const uint8_t *body)
{
    size_t n_bytes = 0;
    int status = message_body(h, body, FRAME_MAX_BYTES_DEFAULT, &c->body, &body, &n_bytes);

    if (!status)
        status = message_read_pull_reply(h, head, body, n_bytes, &c->answer);
    if (status)
        return status;
    if (!c->answer.status && c->answer.n_sections != 1)
        return PS_ECOUNT;
    return take_answer(c, h->request_id, c->answer.status, c->answer.text);
}

static int take(struct psbench_conn *c, const struct frame_header *h, const uint8_t *head,
                const uint8_t *body)
{
    if (h->type == FRAME_HELLO_REPLY && c->phase == GREETING)
        return take_hello(c, h, head);
    if (h->type == FRAME_JOIN_REPLY && c->phase == JOINING)
        return take_join(c, h, head);
    if (h->type == FRAME_TABLE_REPLY && c->phase == NAMING)
        return take_table(c, h, head);
    if (h->type == FRAME_PUSH_REPLY)
        return take_push(c, h, head);
    if (h->type == FRAME_PULL_REPLY)
        return take_pull(c, h, head, body);
    if (h->type == FRAME_BEAT_REPLY)
        return 0;
    if (h->type != FRAME_LEAVE_REPLY || c->phase != LEAVING)
        return PS_EPROTO;
    c->phase = GONE;
    c->config.gone(c->config.owner);
    return 0;
}

static int on_frame(void *owner, const struct frame_header *header, const uint8_t *head,
                    const uint8_t *body)
{
    struct psbench_conn *c = owner;
    int status;

    if (*c->config.measuring)
        c->config.counts->bytes_in +=
            FRAME_HEADER_BYTES + (uint64_t)header->head_bytes + header->body_bytes;
    status = take(c, header, head, body);
    if (status)
        fail(c, frame_type_name(header->type), status_text(status));
    return 0;
}

static void on_closed(void *owner, int why)
{
    struct psbench_conn *c = owner;

    c->dial = NULL;
    if (c->phase != GONE)
        fail(c, "the connection", dial_why(why));
}

static const struct dial_events dial_events = { on_connected, on_frame, on_closed };

struct psbench_conn *psbench_conn_new(const struct psbench_conn_config *config)
{
    struct psbench_conn *c = mem_alloc(sizeof *c);
    const struct psbench_settings *s = config->settings;
    struct section *push = &c->push.sections[0], *pull = &c->pull.sections[0];
    int status;

    c->config = *config;
    c->sent_ns = mem_alloc(s->depth * sizeof *c->sent_ns);
    c->fill_keys = mem_alloc(FILL_KEYS * sizeof *c->fill_keys);
    c->fill_key_bytes = mem_alloc((size_t)FILL_KEYS * KEYS_BYTES_MAX);
    c->fill_values = mem_alloc((size_t)FILL_KEYS * s->dim * sizeof(float));
    c->next_row = config->rank + 1;
    c->next_set = config->rank * (config->pool->n_sets / config->n_ranks);
    c->push.n_samples = 1;
    c->push.tick = true;
    c->push.n_sections = c->pull.n_sections = 1;
    push->codec = (enum codec_id)s->codec;
    push->k = s->codec == CODEC_TOPK ? (s->dim >= 10 ? s->dim / 10 : 1) : 0;
    push->values = config->pool->values;
    push->value_bytes = config->pool->value_bytes;
    pull->codec = codec_by_id((uint32_t)s->codec)->feedback ? CODEC_FP32 : push->codec;
    status = dial_new(config->loop, &config->address, &dial_events, c, &c->dial);
    if (status)
        fail(c, "the connection", dial_why(status));
    return c;
}

void psbench_conn_free(struct psbench_conn *c)
{
    if (!c)
        return;
    dial_drop(c->dial);
    free(c->sent_ns);
    free(c->fill_keys);
    free(c->fill_key_bytes);
    free(c->fill_values);
    buf_deinit(&c->body);
    free(c);
}

void psbench_conn_load(struct psbench_conn *c)
{
    uint32_t slot;

    c->phase = LOADING;
    for (slot = 0; slot < c->config.settings->depth && c->phase == LOADING; slot++)
        send_request(c, slot);
}

void psbench_conn_drain(struct psbench_conn *c)
{
    if (c->phase == LOADING)
        c->phase = DRAINING;
}

void psbench_conn_beat(struct psbench_conn *c)
{
    struct buf frame = { 0 };

    if (c->phase >= FILLING && c->phase <= DRAINING)
        send_frame(c, message_write_beat(&frame, BEAT_ID, c->push.clock), &frame);
}

void psbench_conn_leave(struct psbench_conn *c)
{
    struct buf frame = { 0 };

    c->phase = LEAVING;
    send_frame(c, message_write_leave(&frame, CONTROL_ID, c->push.clock), &frame);
}
