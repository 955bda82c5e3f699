#include "tests/bench/psbench_conn.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/memory.h"
#include "proto/channel.h"
#include "proto/codec_catalog.h"
#include "tests/bench/psbench_cpu.h"
#include "tests/bench/psbench_fill.h"
#include "tests/bench/psbench_handshake.h"
#include "tests/bench/psbench_pace.h"
#include "tests/bench/psbench_slots.h"

#define CONTROL_ID UINT64_MAX /* hello, join, table, leave */
#define BEAT_ID (UINT64_MAX - 1)

enum phase {
    DIALING,
    HANDSHAKE,
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
    struct connector *connector; /* owned */
    struct psbench_fill *fill;   /* owned; NULL once the rows are there */
    struct psbench_slots slots;
    struct psbench_pace pace;
    uint32_t next_set;
    double pulls_due; /* mix: a pull is next when this reaches 1 */
    uint64_t seq, silent_ms;
    struct push push; /* one section; the table's number is known after NAMING */
    struct pull pull;
    struct bytes body;
    struct pull_reply answer;
};

static void fail(struct psbench_conn *c, const char *what, const char *why)
{
    char text[512];

    snprintf(text, sizeof text, "shard %u at %s: %s: %s", c->config.shard,
             c->config.address.text, what, why);
    c->phase = GONE;
    connector_drop(c->connector);
    c->connector = NULL;
    c->config.failed(c->config.owner, text);
}

static void send_frame(struct psbench_conn *c, int status, struct bytes *frame)
{
    if (!status)
        status = channel_send(connector_channel(c->connector), frame);
    bytes_deinit(frame);
    if (status)
        fail(c, "sending", connector_why(status));
}

static void on_connected(void *owner)
{
    struct psbench_conn *c = owner;
    struct bytes frame = { 0 };
    struct hello hello;

    psbench_handshake_hello(c->config.settings, &hello);
    hello.shard = c->config.shard_on_node;
    hello.map_id = c->config.map_id;
    c->phase = HANDSHAKE;
    send_frame(c, message_write_hello(&frame, CONTROL_ID, &hello), &frame);
}

static void ask_table(struct psbench_conn *c)
{
    struct table_request request;
    struct bytes frame = { 0 };

    psbench_handshake_table(c->config.settings, &request);
    c->phase = NAMING;
    send_frame(c, message_write_table(&frame, CONTROL_ID, &request), &frame);
}

static int take_hello(struct psbench_conn *c, const struct frame_header *h, const uint8_t *head)
{
    struct hello_reply *r = memory_alloc(sizeof *r);
    struct bytes frame = { 0 };
    struct join join;
    int status = message_read_hello_reply(h, head, r);

    if (!status && r->status) {
        fail(c, "greeting", r->text);
    } else if (!status) {
        if (r->frame_max_bytes)
            connector_channel(c->connector)->frame_max_bytes = r->frame_max_bytes;
        if (c->config.settings->reader) {
            ask_table(c);
        } else {
            c->phase = JOINING;
            psbench_handshake_join(c->config.rank, c->config.n_ranks, c->config.incarnation,
                                   &join);
            send_frame(c, message_write_join(&frame, CONTROL_ID, &join), &frame);
        }
    }
    free(r);
    return status;
}

static int take_join(struct psbench_conn *c, const struct frame_header *h, const uint8_t *head)
{
    struct join_reply r;
    int status = message_read_join_reply(h, head, &r);

    if (status || r.status) {
        if (!status)
            fail(c, "joining", r.text);
        return status;
    }
    c->push.clock = c->pull.clock = r.clock;
    ask_table(c);
    return 0;
}

static void become_idle(struct psbench_conn *c)
{
    c->phase = IDLE;
    c->config.idle(c->config.owner);
}

/* One push at a time; the answer brings the next. */
static void fill(struct psbench_conn *c)
{
    struct section *s = &c->push.sections[0];
    struct section kept = *s;
    struct bytes frame = { 0 };

    if (!c->fill || !psbench_fill_next(c->fill, s)) {
        psbench_fill_free(c->fill);
        c->fill = NULL;
        become_idle(c);
        return;
    }
    c->push.seq = ++c->seq;
    c->config.counts->n_filled += s->n_keys;
    send_frame(c, message_write_push(&frame, 0, &c->push, NULL), &frame);
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

/* grow sends every set once, in order; the other loads go round, from different places. */
static bool is_over(const struct psbench_conn *c)
{
    return c->config.settings->load == PSBENCH_GROW && c->next_set >= c->config.pool->n_sets;
}

static void next_keys(struct psbench_conn *c, struct section *s)
{
    const struct psbench_pool *p = c->config.pool;
    bool grows = c->config.settings->load == PSBENCH_GROW;

    s->keys = psbench_pool_set(p, c->next_set % p->n_sets, &s->key_bytes);
    s->n_keys = p->n_keys;
    c->next_set += grows ? c->config.n_ranks : 1;
}

static enum psbench_kind next_kind(struct psbench_conn *c)
{
    const struct psbench_settings *s = c->config.settings;

    if (s->load != PSBENCH_MIX)
        return s->load == PSBENCH_PULL ? PSBENCH_IS_PULL : PSBENCH_IS_PUSH;
    c->pulls_due += (double)s->pull_share;
    if (c->pulls_due < 1)
        return PSBENCH_IS_PUSH;
    c->pulls_due--;
    return PSBENCH_IS_PULL;
}

/* What the server uses is that of one request only if there is no other. */
static bool is_alone(const struct psbench_conn *c)
{
    return c->config.settings->load == PSBENCH_GROW && c->config.n_conns == 1 &&
           c->slots.depth == 1 && c->config.counts->server_pid;
}

static void count_work(struct psbench_conn *c, const struct psbench_slot *slot)
{
    double seconds = psbench_cpu_of_process(c->config.counts->server_pid) - slot->server_cpu;

    if (slot->server_cpu >= 0 && seconds >= 0)
        histogram_record(&c->config.counts->work_ns, (uint64_t)(seconds * 1e9));
}

static void send_request(struct psbench_conn *c, uint64_t due_ns)
{
    uint32_t number = psbench_slots_take(&c->slots);
    struct psbench_slot *slot = &c->slots.items[number];
    struct message_zstd *zstd = c->config.settings->compress ? &c->config.channels->zstd : NULL;
    struct bytes frame = { 0 };
    int status;

    slot->due_ns = due_ns;
    slot->kind = next_kind(c);
    if (slot->kind == PSBENCH_IS_PUSH) {
        next_keys(c, &c->push.sections[0]);
        c->push.seq = ++c->seq;
        status = message_write_push(&frame, number, &c->push, zstd);
        c->pull.clock = ++c->push.clock;
    } else {
        next_keys(c, &c->pull.sections[0]);
        status = message_write_pull(&frame, number, &c->pull, zstd);
    }
    slot->n_bytes = bytes_len(&frame);
    if (is_alone(c))
        slot->server_cpu = psbench_cpu_of_process(c->config.counts->server_pid);
    send_frame(c, status, &frame);
}

/* Open loop: is what happens at due_ns to be measured? */
static bool is_in_window(const struct psbench_conn *c, uint64_t ns)
{
    const struct psbench_window *w = c->config.window;

    return w->start_ns && ns >= w->start_ns && (!w->end_ns || ns < w->end_ns);
}

/* How long after it could have been sent a request leaves: ours, not the server's. */
static void count_late(struct psbench_conn *c, uint64_t due_ns, uint64_t now_ns)
{
    uint64_t could_ns = due_ns > c->slots.freed_ns ? due_ns : c->slots.freed_ns;

    if (is_in_window(c, due_ns))
        histogram_record(&c->config.counts->late_ns, now_ns - could_ns);
}

/* Sends what is due and has a slot. */
static void send_due(struct psbench_conn *c)
{
    uint64_t now_ns = uv_hrtime(), due_ns;

    while (c->phase == LOADING && c->slots.n_free && !is_over(c)) {
        due_ns = psbench_pace_due(&c->pace, now_ns);
        if (due_ns > now_ns)
            return;
        if (c->pace.open_loop) {
            count_late(c, due_ns, now_ns);
            psbench_pace_next(&c->pace);
        }
        send_request(c, due_ns);
        now_ns = uv_hrtime();
    }
}

static void count_error(struct psbench_conn *c, int status, const char *text)
{
    struct psbench_counts *counts = c->config.counts;

    if (!counts->n_errors++)
        snprintf(counts->first_error, sizeof counts->first_error, "%s",
                 text[0] ? text : status_text(status));
}

static int take_answer(struct psbench_conn *c, const struct frame_header *h, int status,
                       const char *text)
{
    uint64_t n_bytes = FRAME_HEADER_BYTES + (uint64_t)h->head_bytes + h->body_bytes;
    struct psbench_counts *counts = c->config.counts;
    uint64_t now_ns = uv_hrtime();
    const struct psbench_slot *slot;

    if (!psbench_slots_give(&c->slots, h->request_id, now_ns))
        return PS_EPROTO;
    slot = &c->slots.items[h->request_id];
    if (is_in_window(c, now_ns)) {
        if (status)
            count_error(c, status, text);
        if (is_alone(c))
            count_work(c, slot);
        psbench_slots_count(slot, now_ns, n_bytes,
                            status ? 0 : c->config.settings->keys_per_request, counts);
    }
    if (is_in_window(c, c->pace.open_loop ? slot->due_ns : now_ns))
        histogram_record(&counts->latency_ns, now_ns - slot->due_ns);
    psbench_pace_answered(&c->pace, now_ns);
    send_due(c);
    if (is_over(c) && c->phase == LOADING)
        c->phase = DRAINING;
    if (c->phase == DRAINING && c->slots.n_free == c->slots.depth)
        become_idle(c);
    return 0;
}

static int take_push(struct psbench_conn *c, const struct frame_header *h, const uint8_t *head)
{
    struct push_reply r;
    int status = message_read_push_reply(h, head, &r);

    if (status)
        return status;
    c->config.counts->n_rows_refused += r.rows_refused;
    if (c->phase != FILLING)
        return take_answer(c, h, r.status, r.text);
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
    int status = message_body(&c->config.channels->zstd, h, body, FRAME_MAX_BYTES_DEFAULT,
                              &c->body, &body, &n_bytes);

    if (!status)
        status = message_read_pull_reply(h, head, body, n_bytes, &c->answer);
    if (status)
        return status;
    if (!c->answer.status && c->answer.n_sections != 1)
        return PS_ECOUNT;
    return take_answer(c, h, c->answer.status, c->answer.text);
}

static int take(struct psbench_conn *c, const struct frame_header *h, const uint8_t *head,
                const uint8_t *body)
{
    if (h->type == FRAME_HELLO_REPLY && c->phase == HANDSHAKE)
        return take_hello(c, h, head);
    if (h->type == FRAME_JOIN_REPLY && c->phase == JOINING)
        return take_join(c, h, head);
    if (h->type == FRAME_TABLE_REPLY && c->phase == NAMING)
        return take_table(c, h, head);
    if (h->type == FRAME_PUSH_REPLY)
        return take_push(c, h, head);
    if (h->type == FRAME_PULL_REPLY)
        return take_pull(c, h, head, body);
    if (h->type == FRAME_BEAT_REPLY) /* it lives, and may do nothing else */
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
    int status = take(c, header, head, body);

    if (header->type != FRAME_BEAT_REPLY)
        c->silent_ms = 0;
    if (status)
        fail(c, frame_type_name(header->type), status_text(status));
    return 0;
}

static void on_closed(void *owner, int why)
{
    struct psbench_conn *c = owner;

    c->connector = NULL;
    if (c->phase != GONE)
        fail(c, "the connection", connector_why(why));
}

static const struct connector_events connector_events = { on_connected, on_frame, on_closed };

/* What all requests have in common. */
static void make_sections(struct psbench_conn *c)
{
    const struct psbench_settings *s = c->config.settings;
    struct section *push = &c->push.sections[0], *pull = &c->pull.sections[0];

    c->push.n_samples = 1;
    c->push.tick = true;
    c->push.n_sections = c->pull.n_sections = 1;
    push->codec = (enum codec_id)s->codec;
    push->k = psbench_handshake_k(s);
    push->values = c->config.pool->values;
    push->value_bytes = c->config.pool->value_bytes;
    pull->codec = codec_by_id((uint32_t)s->codec)->feedback ? CODEC_FP32 : push->codec;
}

struct psbench_conn *psbench_conn_new(const struct psbench_conn_config *config)
{
    struct psbench_conn *c = memory_alloc(sizeof *c);
    const struct psbench_settings *s = config->settings;
    int status;

    c->config = *config;
    psbench_slots_init(&c->slots, s->depth);
    if (!s->no_fill && !s->reader && s->load != PSBENCH_GROW)
        c->fill =
            psbench_fill_new(s, config->shard, config->n_shards, config->rank, config->n_ranks);
    make_sections(c);
    status =
        connector_new(config->channels, &config->address, &connector_events, c, &c->connector);
    if (status)
        fail(c, "the connection", connector_why(status));
    return c;
}

void psbench_conn_free(struct psbench_conn *c)
{
    if (!c)
        return;
    connector_drop(c->connector);
    psbench_slots_deinit(&c->slots);
    psbench_fill_free(c->fill);
    bytes_deinit(&c->body);
    free(c);
}

void psbench_conn_load(struct psbench_conn *c)
{
    const struct psbench_conn_config *cfg = &c->config;
    uint32_t n_sets = cfg->pool->n_sets;

    c->phase = LOADING;
    c->next_set = cfg->settings->load == PSBENCH_GROW
                      ? cfg->rank
                      : (uint32_t)((uint64_t)n_sets * cfg->rank / cfg->n_ranks);
    psbench_pace_start(&c->pace, cfg->settings, cfg->number, cfg->n_conns, uv_hrtime());
    send_due(c);
    if (c->phase == LOADING && is_over(c))
        psbench_conn_drain(c);
}

void psbench_conn_turn(struct psbench_conn *c)
{
    send_due(c);
}

void psbench_conn_wait(struct psbench_conn *c, uint64_t ms)
{
    static const char *const what[] = { "connecting", "greeting", "joining", "table",
                                        "filling the table" };
    char why[96];

    if (c->phase < IDLE || (c->phase == LOADING && c->slots.n_free < c->slots.depth))
        c->silent_ms += ms;
    if (c->silent_ms < c->config.settings->timeout_ms || c->phase == GONE)
        return;
    snprintf(why, sizeof why, "no answer for %.3g s; psctl why tells what it waits for",
             (double)c->silent_ms / 1e3);
    fail(c, c->phase < IDLE ? what[c->phase] : "requests", why);
}

static void count_unsent(void *owner, uint64_t due_ns)
{
    struct psbench_conn *c = owner;

    if (!is_in_window(c, due_ns))
        return;
    c->config.counts->n_unsent++;
    histogram_record(&c->config.counts->latency_ns, c->config.window->end_ns - due_ns);
}

void psbench_conn_drain(struct psbench_conn *c)
{
    if (c->phase != LOADING)
        return;
    psbench_pace_unsent(&c->pace, c->config.window->end_ns, count_unsent, c);
    c->phase = DRAINING;
    if (c->slots.n_free == c->slots.depth)
        become_idle(c);
}

void psbench_conn_beat(struct psbench_conn *c)
{
    struct bytes frame = { 0 };

    if (c->phase >= FILLING && c->phase <= DRAINING && !c->config.settings->reader)
        send_frame(
            c, message_write_beat(&frame, BEAT_ID, &(struct beat){ .clock = c->push.clock }),
            &frame);
}

void psbench_conn_leave(struct psbench_conn *c)
{
    struct bytes frame = { 0 };

    c->phase = LEAVING;
    if (c->config.settings->reader) {
        c->phase = GONE;
        c->config.gone(c->config.owner);
        return;
    }
    send_frame(c, message_write_leave(&frame, CONTROL_ID, c->push.clock), &frame);
}
