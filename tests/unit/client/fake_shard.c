#include "tests/unit/client/fake_shard.h"

static bool fake_is_mute(struct fake_conn *c, const struct frame_header *h)
{
    const struct fake_plan *plan = &c->fake->plan;

    c->n_frames++;
    return plan->mute || (plan->mute_from && c->n_frames > plan->mute_from) ||
           (plan->mute_pushes && h->type == FRAME_PUSH);
}

struct fake_row *fake_row(struct fake_shard *s, uint64_t key)
{
    uint32_t i;

    for (i = 0; i < s->n_rows; i++)
        if (s->rows[i].key == key)
            return &s->rows[i];
    assert(s->n_rows < FAKE_ROWS_MAX);
    s->rows[s->n_rows] = (struct fake_row){ .key = key };
    return &s->rows[s->n_rows++];
}

static void fake_groups(const struct fake *f, struct groups *ret)
{
    ret->number = f->number;
    ret->n = f->group.term ? (f->plan.n_nodes ? f->plan.n_nodes : 1) : 0;
    if (ret->n)
        ret->items[f->plan.node] = f->group;
}

static int fake_answer_watch(struct fake_conn *c, uint64_t id, struct bytes *out)
{
    struct watch_reply *r = memory_alloc(sizeof *r);
    int status;

    fake_groups(c->fake, &r->groups);
    status = message_write_watch_reply(out, id, r);
    free(r);
    return status;
}

static int fake_watch(struct fake_conn *c, const struct frame_header *h, const uint8_t *head,
                      struct bytes *out)
{
    struct watch watch;
    int status = message_read_watch(h, head, &watch);

    assert(c->is_watcher && !c->watch_id);
    c->fake->n_watches++;
    if (status)
        return status;
    if (c->fake->number > watch.above)
        return fake_answer_watch(c, h->request_id, out);
    c->watch_id = h->request_id;
    return 0;
}

static int fake_hello(struct fake_conn *c, const struct frame_header *h, const uint8_t *head,
                      struct bytes *out)
{
    struct hello_reply *r = memory_alloc(sizeof *r);
    struct hello hello;
    int status = message_read_hello(h, head, &hello);

    c->shard = hello.shard;
    if (!c->fake->plan.hello_passes || c->fake->n_hellos % 2 == 0)
        r->status = c->fake->plan.hello_status;
    c->fake->n_hellos++;
    r->version = 1;
    r->n_nodes = c->fake->plan.n_nodes ? c->fake->plan.n_nodes : 1;
    r->node = c->fake->plan.node;
    r->shards_per_node = c->fake->plan.n_shards;
    r->map_id = c->fake->plan.map_id ? c->fake->plan.map_id : 42;
    r->frame_max_bytes =
        c->fake->plan.frame_max_bytes ? c->fake->plan.frame_max_bytes : FRAME_MAX_BYTES_DEFAULT;
    for (uint32_t i = 0; i < r->n_nodes; i++)
        snprintf(r->nodes[i], sizeof r->nodes[i], "127.0.0.1:%d",
                 c->fake->plan.node_ports[i] ? c->fake->plan.node_ports[i] : c->fake->port);
    fake_groups(c->fake, &r->groups);
    c->is_watcher = strcmp(hello.role, "watcher") == 0;
    if (c->fake->role == FAKE_STANDBY && !c->is_watcher && strcmp(hello.role, "operator") != 0)
        r->status = PS_EMOVED;
    if (r->status)
        snprintf(r->text, sizeof r->text, "the fake refuses this hello");
    if (!status)
        status = message_write_hello_reply(out, h->request_id, r);
    free(r);
    return status;
}

static uint64_t min_clock(const struct fake_conn *c)
{
    const uint64_t clock = c->fake->shards[c->shard].clock;

    return clock > c->fake->plan.job_clock ? clock : c->fake->plan.job_clock;
}

static int fake_join(struct fake_conn *c, const struct frame_header *h, const uint8_t *head,
                     struct bytes *out)
{
    struct fake_shard *s = &c->fake->shards[c->shard];
    struct join_reply r = { .lease_ms = 1000 };
    struct join join;
    int status = message_read_join(h, head, &join);

    if (status)
        return status;
    if (c->fake->plan.fences_all || join.incarnation <= s->fenced ||
        join.incarnation < s->incarnation || join.incarnation < c->fake->plan.fenced_below) {
        r.status = PS_EFENCED;
        r.fenced_below = c->fake->plan.fenced_below;
        return message_write_join_reply(out, h->request_id, &r);
    }
    if (join.incarnation > s->incarnation) {
        s->incarnation = join.incarnation;
        s->last_seq = s->refused_seq = 0;
    }
    s->n_joins++;
    if (join.clock > s->clock)
        s->clock = join.clock;
    if (c->shard == 0 && c->fake->plan.join_clock > s->clock)
        s->clock = c->fake->plan.join_clock;
    c->incarnation = join.incarnation;
    r.last_applied = s->last_seq;
    r.n_backups = join.n_backups;
    r.clock = s->clock;
    r.refused_seq = s->refused_seq;
    r.refused_status = s->refused_status;
    return message_write_join_reply(out, h->request_id, &r);
}

static int fake_table(struct fake_conn *c, const struct frame_header *h, const uint8_t *head,
                      struct bytes *out)
{
    struct fake_shard *s = &c->fake->shards[c->shard];
    struct table_reply r = { 0 };
    struct table_request request;
    uint32_t i;
    int status = message_read_table(h, head, &request);

    if (status)
        return status;
    for (i = 0; i < s->n_tables && strcmp(s->tables[i].name, request.spec.name); i++)
        ;
    if (i == s->n_tables && request.must_exist) {
        r.status = PS_ENOTABLE;
        snprintf(r.text, sizeof r.text, "no table %s", request.spec.name);
    } else if (i == s->n_tables) {
        s->tables[s->n_tables++] = request.spec;
    } else if (!request.must_exist && s->tables[i].dim != request.spec.dim) {
        r.status = PS_ESPEC;
        snprintf(r.text, sizeof r.text, "table %s: dim is %u here, %u was asked for",
                 request.spec.name, s->tables[i].dim, request.spec.dim);
    }
    r.table_id = i + 7 * c->shard; /* shards number tables as they like */
    r.spec = s->tables[i < s->n_tables ? i : 0];
    r.features = c->fake->plan.features;
    return message_write_table_reply(out, h->request_id, &r);
}

/* Floats of a row's state in the section's table. */
static uint32_t fake_n_state(const struct fake_conn *c, const struct section *section)
{
    const struct fake_shard *s = &c->fake->shards[c->shard];

    assert(section->table_id - 7 * c->shard < s->n_tables);
    return table_spec_state_floats(&s->tables[section->table_id - 7 * c->shard]);
}

static void fake_apply(struct fake_conn *c, const struct section *section)
{
    struct fake_shard *s = &c->fake->shards[c->shard];
    const uint32_t n_state = section->op == SECTION_ASSIGN_STATE ? fake_n_state(c, section) : 0;
    const uint8_t *at = section->values;
    uint64_t keys[FAKE_ROWS_MAX];
    float row[FAKE_DIM];
    uint32_t i, k;

    s->n_rows_pushed += section->n_keys;
    if (section->steps > s->steps)
        s->steps = section->steps;
    if (c->fake->plan.counts_rows)
        return;
    assert(section->n_keys <= FAKE_ROWS_MAX && section->codec == CODEC_FP32);
    assert(section->value_bytes == section->n_keys * (FAKE_DIM + n_state) * sizeof(float));
    assert(key_codec_decode(section->keys, section->key_bytes, section->n_keys, keys) == 0);
    for (i = 0; i < section->n_keys; i++, at += (FAKE_DIM + n_state) * sizeof(float)) {
        struct fake_row *to = fake_row(s, keys[i]);

        assert(codec_fp32.decode(at, FAKE_DIM, 0, row) == 0);
        for (k = 0; k < FAKE_DIM; k++)
            to->values[k] = row[k] + (section->op == SECTION_GRADIENT ? to->values[k] : 0);
        memcpy(to->state, at + FAKE_DIM * sizeof(float), n_state * sizeof(float));
    }
}

static void fake_keep(struct fake_conn *c, uint64_t request_id, const struct pull *pull,
                      const uint8_t *body, size_t body_bytes)
{
    struct fake_kept *to;

    if (!c->kept)
        c->kept = memory_alloc(SECTION_PULLS_KEPT * sizeof *c->kept);
    to = &c->kept[c->n_kept++ % SECTION_PULLS_KEPT];
    free(to->body);
    *to = (struct fake_kept){ request_id, *pull, memory_alloc(body_bytes + 1) };
    memcpy(to->body, body, body_bytes);
    for (uint32_t i = 0; i < pull->n_sections; i++)
        to->pull.sections[i].keys = to->body + (pull->sections[i].keys - body);
}

static void fake_drop_kept(struct fake_conn *c)
{
    for (uint32_t i = 0; c->kept && i < SECTION_PULLS_KEPT; i++)
        free(c->kept[i].body);
    free(c->kept);
}

/* PS_EKEYS: it has not the keys that the push names. A client names those of the last pulls, in the right place. */
static int fake_find_keys(struct fake_conn *c, struct push *push)
{
    const struct fake_kept *kept = NULL;

    if (!push->keys_of)
        return 0;
    for (uint32_t i = 0; c->kept && i < SECTION_PULLS_KEPT; i++)
        if (c->kept[i].request_id == push->keys_of)
            kept = &c->kept[i];
    assert(kept);
    if (c->fake->plan.lacks_keys)
        return PS_EKEYS;
    for (uint32_t i = 0; i < push->n_sections; i++) {
        struct section *s = &push->sections[i];
        const struct section *of;

        if (!s->keys_at)
            continue;
        assert(s->keys_at <= kept->pull.n_sections);
        of = &kept->pull.sections[s->keys_at - 1];
        assert(of->table_id == s->table_id && of->n_keys == s->n_keys);
        s->keys = of->keys;
        s->key_bytes = of->key_bytes;
        c->fake->shards[c->shard].n_named++;
    }
    return 0;
}

static int fake_push(struct fake_conn *c, const struct frame_header *h, const uint8_t *head,
                     const uint8_t *body, size_t body_bytes, int refusal, struct bytes *out)
{
    struct fake_shard *s = &c->fake->shards[c->shard];
    struct push *push = memory_alloc(sizeof *push);
    struct push_reply r = { .status = refusal };
    uint32_t i;
    int status = message_read_push(h, head, body, body_bytes, push);

    if (status) {
        free(push);
        return status;
    }
    if (!refusal)
        refusal = r.status = fake_find_keys(c, push);
    r.seq = push->seq;
    r.min_clock = min_clock(c);
    if (c->incarnation <= s->fenced) {
        r.status = PS_EFENCED;
    } else if (push->seq > s->last_seq + 1) {
        r.status = PS_ESEQ;
    } else if (refusal == PS_ESEQ || refusal == PS_ENOJOIN || refusal == PS_ESTOPPING ||
               refusal == -ENOMEM || refusal == -EBUSY || refusal == PS_EKEYS) {
        ; /* not acknowledged: the number is still to come */
    } else if (push->seq <= s->last_seq) {
        r.repeated = true;
        s->n_repeated++;
    } else {
        s->last_seq = push->seq;
        if (refusal) {
            s->refused_seq = push->seq;
            s->refused_status = refusal;
        }
        if (c->fake->plan.fences_pushed)
            s->fenced = c->incarnation;
        s->n_applied++;
        for (i = 0; i < push->n_sections && !refusal; i++)
            fake_apply(c, &push->sections[i]);
        if (push->tick && push->clock + 1 > s->clock)
            s->clock = push->clock + 1;
    }
    if (r.status)
        snprintf(r.text, sizeof r.text, "the fake refuses this push");
    free(push);
    return message_write_push_reply(out, h->request_id, &r);
}

/* The cursor counts rows, which only grow in number. */
static uint32_t fake_slice(const struct fake_conn *c, const struct section *section)
{
    const uint64_t n_left = c->fake->shards[c->shard].n_rows - section->cursor;

    return n_left < c->fake->plan.scans ? (uint32_t)n_left : c->fake->plan.scans;
}

static size_t fake_value_bytes(const struct fake_conn *c, const struct section *section)
{
    const size_t row_bytes =
        (FAKE_DIM + (section->state ? fake_n_state(c, section) : 0)) * sizeof(float);

    if (section->scan_bytes && c->fake->plan.scans)
        return SECTION_SCAN_HEAD_BYTES +
               fake_slice(c, section) * (sizeof(uint64_t) + row_bytes);
    if (section->state)
        return section_state_bytes(0);
    return section->n_keys * FAKE_DIM * sizeof(float) +
           (section->present ? section_present_bytes(section->n_keys) : 0);
}

static void fake_scan(const struct fake_conn *c, const struct section *section, uint8_t *dst)
{
    const struct fake_shard *s = &c->fake->shards[c->shard];
    const uint32_t n = fake_slice(c, section),
                   n_state = section->state ? fake_n_state(c, section) : 0;
    const uint64_t version = s->n_applied + 1, next = section->cursor + n;
    const uint32_t flags = next == s->n_rows ? SECTION_SCAN_END : 0;
    const struct fake_row *rows = s->rows + section->cursor;

    memcpy(dst, &version, 8);
    memcpy(dst + 8, &next, 8);
    memcpy(dst + 16, &n, 4);
    memcpy(dst + 20, &flags, 4);
    dst += SECTION_SCAN_HEAD_BYTES;
    for (uint32_t i = 0; i < n; i++, dst += sizeof(uint64_t))
        memcpy(dst, &rows[i].key, sizeof(uint64_t));
    for (uint32_t i = 0; i < n; i++, dst += (FAKE_DIM + n_state) * sizeof(float)) {
        memcpy(dst, rows[i].values, sizeof rows[i].values);
        memcpy(dst + sizeof rows[i].values, rows[i].state, n_state * sizeof(float));
    }
}

static int fake_read(const struct fake_conn *c, const struct section *section, uint8_t *dst)
{
    struct fake_shard *s = &c->fake->shards[c->shard];
    uint8_t *present = dst + section->n_keys * FAKE_DIM * sizeof(float);
    uint64_t keys[FAKE_ROWS_MAX];
    int status = key_codec_decode(section->keys, section->key_bytes, section->n_keys, keys);

    if (section->present && section->n_keys)
        memset(present, 0, section_present_bytes(section->n_keys));
    for (uint32_t k = 0; k < section->n_keys && !status; k++) {
        const uint32_t n_before = s->n_rows;

        codec_fp32.encode(fake_row(s, keys[k])->values, FAKE_DIM, 0,
                          dst + k * FAKE_DIM * sizeof(float));
        if (section->present && s->n_rows == n_before)
            present[k / 8] |= (uint8_t)(1u << k % 8);
        if (section->present) /* asking makes no row */
            s->n_rows = n_before;
    }
    return status;
}

static int fake_fill(const struct fake_conn *c, const struct section *section, uint8_t *dst)
{
    const struct fake_shard *s = &c->fake->shards[c->shard];

    if (section->scan_bytes && c->fake->plan.scans)
        fake_scan(c, section, dst);
    else if (section->state)
        memcpy(memset(dst, 0, section_state_bytes(0)), &s->steps, sizeof s->steps);
    else
        return fake_read(c, section, dst);
    return 0;
}

static int fake_pull(struct fake_conn *c, const struct frame_header *h, const uint8_t *head,
                     const uint8_t *body, size_t body_bytes, int refusal, struct bytes *out)
{
    struct fake_shard *s = &c->fake->shards[c->shard];
    struct pull *pull = memory_alloc(sizeof *pull);
    struct pull_reply r = { .status = refusal, .min_clock = min_clock(c) };
    uint8_t *values = NULL;
    uint32_t i;
    int status = message_read_pull(h, head, body, body_bytes, pull);

    s->unfinished = pull->unfinished;
    s->n_early += pull->clock > s->last_seq;
    s->n_keeps += pull->keep;
    r.kept = !status && !refusal && pull->keep && c->fake->plan.keeps_keys;
    if (r.kept)
        fake_keep(c, h->request_id, pull, body, body_bytes);
    if (c->fake->plan.holds_pulls) {
        atomic_fetch_add(&c->fake->n_pulls_held, 1);
        free(pull);
        return status;
    }
    r.n_sections = refusal || status ? 0 : pull->n_sections;
    if (refusal)
        snprintf(r.text, sizeof r.text, "the fake refuses this pull");
    for (i = 0; i < r.n_sections; i++)
        r.sections[i].value_bytes = fake_value_bytes(c, &pull->sections[i]);
    if (!status)
        status = message_begin_pull_reply(out, h->request_id, &r, &values);
    for (i = 0; i < r.n_sections && !status; values += r.sections[i++].value_bytes)
        status = fake_fill(c, &pull->sections[i], values);
    free(pull);
    if (!status)
        message_pack_pull_reply(out, &c->fake->channels.zstd);
    return status;
}

static int fake_beat(const struct fake_conn *c, const struct frame_header *h,
                     const uint8_t *head, struct status_reply *r)
{
    struct beat beat = { 0 };
    int status = message_read_beat(h, head, &beat);

    r->groups_number = c->fake->number;
    if (c->fake->plan.suspects)
        r->suspects = (struct suspects){ 1, { { .rank = 9, .incarnation = 1 } } };
    c->fake->n_suspects += beat.suspects.n;
    c->fake->n_beats++;
    return status;
}

static int fake_status(const struct fake_conn *c, const struct frame_header *h,
                       const uint8_t *head, struct bytes *out)
{
    struct status_reply r = { 0 };
    const char *json = c->fake->plan.admin ? c->fake->plan.admin : "{\"fake\":true}";

    if (c->shard < FAKE_SHARDS_MAX)
        r.min_clock = c->fake->shards[c->shard].clock;
    if (h->type == FRAME_BEAT && fake_beat(c, h, head, &r))
        return PS_EPROTO;
    if (h->type == FRAME_ADMIN)
        return message_write_admin_reply(out, h->request_id, &r, json, strlen(json));
    return message_write_status_reply(
        out, h->type == FRAME_BEAT ? FRAME_BEAT_REPLY : FRAME_LEAVE_REPLY, h->request_id, &r);
}

/* Does what the frame says; the answer in *out, nothing to hold it back. */
static int fake_serve(struct fake_conn *c, const struct frame_header *h, const uint8_t *head,
                      const uint8_t *body, int refusal, struct bytes *out)
{
    struct bytes plain = { 0 };
    size_t body_bytes;
    int status = message_body(&c->fake->channels.zstd, h, body, FRAME_MAX_BYTES_DEFAULT, &plain,
                              &body, &body_bytes);

    if (refusal == PS_EFENCED)
        c->fake->shards[c->shard].fenced = c->incarnation;
    if (status)
        ;
    else if (h->type == FRAME_HELLO)
        status = fake_hello(c, h, head, out);
    else if (h->type == FRAME_WATCH)
        status = fake_watch(c, h, head, out);
    else if (h->type == FRAME_JOIN)
        status = fake_join(c, h, head, out);
    else if (h->type == FRAME_TABLE)
        status = fake_table(c, h, head, out);
    else if (h->type == FRAME_PUSH)
        status = fake_push(c, h, head, body, body_bytes, refusal, out);
    else if (h->type == FRAME_PULL)
        status = fake_pull(c, h, head, body, body_bytes, refusal, out);
    else
        status = fake_status(c, h, head, out);
    if (h->type == FRAME_LEAVE)
        c->fake->shards[c->shard].n_left++;
    if (h->type == FRAME_BEAT)
        c->fake->shards[c->shard].n_beats++;
    bytes_deinit(&plain);
    return status;
}

/* 24 to 123 random bytes, or a good frame of the right type around them. */
static void fake_nonsense(struct fake *f, const struct frame_header *h, bool is_framed,
                          struct bytes *out)
{
    struct frame_header header = { .type = h->type + 1, .request_id = h->request_id };
    uint64_t dice = hash_mix2(f->plan.seed, (uint64_t)f->n_frames);
    uint32_t n = (uint32_t)(dice % 100), i;
    uint8_t *dst;

    bytes_consume(out, bytes_len(out));
    dst = bytes_reserve(out, FRAME_HEADER_BYTES + n);
    assert(dst);
    for (i = 0; i < FRAME_HEADER_BYTES + n; i++)
        dst[i] = (uint8_t)hash_mix2(dice, i);
    header.head_bytes = (uint16_t)(n / 2);
    header.body_bytes = n - n / 2;
    if (is_framed)
        frame_encode(dst, &header);
    bytes_commit(out, FRAME_HEADER_BYTES + n);
}

static void fake_say(const char *bytes, struct bytes *out)
{
    const size_t n_bytes = strlen(bytes);
    uint8_t *space;

    bytes_consume(out, bytes_len(out));
    space = bytes_reserve(out, n_bytes);
    assert(space);
    memcpy(space, bytes, n_bytes);
    bytes_commit(out, n_bytes);
}

static void fake_copy(struct bytes *dst, const struct bytes *src)
{
    uint8_t *space = bytes_reserve(dst, bytes_len(src));

    assert(space);
    memcpy(space, bytes_front(src), bytes_len(src));
    bytes_commit(dst, bytes_len(src));
}

static enum fake_fault fake_next_fault(struct fake *f, const struct frame_header *h)
{
    if (f->plan.fault_type && (int)h->type != f->plan.fault_type)
        return FAKE_NONE;
    return f->n_frames++ == f->plan.fault_at ? f->plan.fault : FAKE_NONE;
}

static int fake_refusal(const struct fake *f, const struct frame_header *h,
                        enum fake_fault fault)
{
    if (fault == FAKE_REFUSE || fault == FAKE_REFUSE_DROP)
        return f->plan.refusal;
    return h->type == FRAME_PUSH ? f->plan.push_status : 0;
}

/* --- answers that wait --- */

static void fake_hold(struct fake_conn *c, struct bytes *frame)
{
    struct fake_answer *a = memory_alloc(sizeof *a);

    *a = (struct fake_answer){ .conn = c, .frame = *frame, .next = c->fake->held };
    *frame = (struct bytes){ 0 };
    c->fake->held = a;
}

/* The one at *at. */
static struct fake_answer *fake_unhold(struct fake_answer **at)
{
    struct fake_answer *a = *at;

    *at = a->next;
    return a;
}

static void fake_on_pulse(uv_timer_t *timer)
{
    struct fake *f = CONTAINER_OF(timer, struct fake, pulse);

    while (f->held) {
        struct fake_answer **at = &f->held, *a;

        while ((*at)->next && hash_mix2(f->plan.seed, f->n_dice++) % 3)
            at = &(*at)->next;
        a = fake_unhold(at);
        channel_send(&a->conn->channel, &a->frame);
        free(a);
    }
}

/* Those of a connection that has ended. */
static void fake_drop_held(struct fake_conn *c)
{
    struct fake_answer **at = &c->fake->held, *a;

    while (*at) {
        if ((*at)->conn != c) {
            at = &(*at)->next;
            continue;
        }
        a = fake_unhold(at);
        bytes_deinit(&a->frame);
        free(a);
    }
}

static int fake_on_frame(void *owner, const struct frame_header *h, const uint8_t *head,
                         const uint8_t *body)
{
    struct fake_conn *c = owner;
    enum fake_fault fault = fake_next_fault(c->fake, h);
    bool is_mute = fake_is_mute(c, h);
    struct bytes out = { 0 }, again = { 0 };
    int status;

    if (c->fake->role == FAKE_STUCK) {
        bytes_deinit(&out);
        return 0;
    }
    if (fault == FAKE_DROP_BEFORE ||
        (h->type == FRAME_PUSH && c->fake->plan.push_status == FAKE_HANGS_UP))
        return UV_ECONNRESET;
    status = fake_serve(c, h, head, body, fake_refusal(c->fake, h, fault), &out);
    if (!status && (fault == FAKE_DROP_AFTER || fault == FAKE_REFUSE_DROP))
        status = UV_ECONNRESET;
    if (fault == FAKE_GARBAGE || fault == FAKE_BAD_HEAD)
        fake_nonsense(c->fake, h, fault == FAKE_BAD_HEAD, &out);
    if (c->fake->plan.bytes)
        fake_say(c->fake->plan.bytes, &out);
    if (status || !bytes_len(&out) || is_mute) {
        bytes_deinit(&out);
        return status;
    }
    if (fault == FAKE_REPEAT)
        fake_copy(&again, &out);
    if (c->fake->plan.shuffles_pulls && h->type == FRAME_PULL && fault == FAKE_NONE) {
        fake_hold(c, &out);
        return 0;
    }
    channel_send(&c->channel, &out);
    if (fault == FAKE_REPEAT)
        channel_send(&c->channel, &again);
    return 0;
}

static void fake_on_closed(void *owner, int why)
{
    struct fake_conn *c = owner, **at = &c->fake->first;

    (void)why;
    fake_drop_held(c);
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    fake_drop_kept(c);
    free(c);
}

static void fake_on_connection(uv_stream_t *listener, int status)
{
    static const struct channel_events events = { .frame = fake_on_frame,
                                                  .closed = fake_on_closed };
    struct fake *f = CONTAINER_OF(listener, struct fake, listener);
    struct fake_conn *c = memory_alloc(sizeof *c);

    assert(status == 0);
    c->fake = f;
    uv_tcp_init(&f->loop, &c->tcp);
    assert(uv_accept(listener, (uv_stream_t *)&c->tcp) == 0);
    assert(channel_start(&c->channel, (uv_stream_t *)&c->tcp, &f->channels,
                         FRAME_MAX_BYTES_DEFAULT, &events, c) == 0);
    c->next = f->first;
    f->first = c;
    if (f->role == FAKE_DEAD)
        channel_close(&c->channel);
}

static void fake_inform_watcher(struct fake_conn *c)
{
    struct bytes out = { 0 };

    assert(!fake_answer_watch(c, c->watch_id, &out));
    c->watch_id = 0;
    channel_send(&c->channel, &out);
}

static void fake_on_become(uv_async_t *async)
{
    struct fake *f = CONTAINER_OF(async, struct fake, become);

    const bool was_stuck = f->role == FAKE_STUCK;

    f->role = f->next.role;
    f->group = f->next.group;
    f->number++;
    if (f->heir_of)
        memcpy(f->shards, f->heir_of->shards, sizeof f->shards);
    for (struct fake_conn *c = f->first; c; c = c->next) {
        if (was_stuck || f->role == FAKE_DEAD || (f->role == FAKE_STANDBY && !c->is_watcher))
            channel_close(&c->channel);
        else if (c->watch_id && f->role != FAKE_STUCK)
            fake_inform_watcher(c);
    }
    uv_sem_post(&f->has_become);
}

void fake_become(struct fake *f, enum fake_role role, uint64_t term, const struct fake *primary,
                 const struct fake *standby, const struct fake *heir_of)
{
    struct fake_next next = { .role = role, .group = { .term = term, .in_sync = true } };

    snprintf(next.group.primary, sizeof next.group.primary, "127.0.0.1:%d", primary->port);
    if (standby)
        snprintf(next.group.standby, sizeof next.group.standby, "127.0.0.1:%d", standby->port);
    f->next = next;
    f->heir_of = heir_of;
    uv_async_send(&f->become);
    uv_sem_wait(&f->has_become);
}

static void fake_on_stop(uv_async_t *async)
{
    struct fake *f = CONTAINER_OF(async, struct fake, stop);
    struct fake_conn *c;

    uv_close((uv_handle_t *)&f->stop, NULL);
    uv_close((uv_handle_t *)&f->become, NULL);
    uv_close((uv_handle_t *)&f->listener, NULL);
    uv_close((uv_handle_t *)&f->pulse, NULL);
    for (c = f->first; c; c = c->next)
        channel_close(&c->channel);
    channel_loop_close(&f->channels);
}

static void fake_run(void *arg)
{
    struct fake *f = arg;
    sigset_t all;

#ifdef PS_FAULTS
    memory_exempt_this_thread();
#endif
    sigfillset(&all); /* SIGPIPE */
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    uv_sem_post(&f->started);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert(uv_loop_close(&f->loop) == 0);
    channel_loop_deinit(&f->channels);
}

struct fake *fake_start(const struct fake_plan *plan)
{
    struct fake *f = memory_alloc(sizeof *f);
    struct sockaddr_in address;
    int n = sizeof address;

    f->plan = *plan;
    assert(uv_loop_init(&f->loop) == 0);
    channel_loop_init(&f->channels, &f->loop);
    assert(uv_async_init(&f->loop, &f->stop, fake_on_stop) == 0);
    assert(uv_async_init(&f->loop, &f->become, fake_on_become) == 0);
    assert(uv_sem_init(&f->has_become, 0) == 0);
    assert(uv_timer_init(&f->loop, &f->pulse) == 0);
    if (plan->shuffles_pulls)
        assert(uv_timer_start(&f->pulse, fake_on_pulse, 1, 1) == 0);
    assert(uv_tcp_init(&f->loop, &f->listener) == 0);
    assert(uv_ip4_addr("127.0.0.1", plan->port, &address) == 0);
    assert(uv_tcp_bind(&f->listener, (const struct sockaddr *)&address, 0) == 0);
    assert(uv_listen((uv_stream_t *)&f->listener, 64, fake_on_connection) == 0);
    assert(uv_tcp_getsockname(&f->listener, (struct sockaddr *)&address, &n) == 0);
    f->port = ntohs(address.sin_port);
    assert(uv_sem_init(&f->started, 0) == 0);
    assert(uv_thread_create(&f->thread, fake_run, f) == 0);
    uv_sem_wait(&f->started);
    return f;
}

void fake_address(const struct fake *f, char dst[static 32])
{
    snprintf(dst, 32, "127.0.0.1:%d", f->port);
}

void fake_stop(struct fake *f)
{
    uv_async_send(&f->stop);
    uv_thread_join(&f->thread);
    f->stopped = true;
}

void fake_free(struct fake *f)
{
    uv_sem_destroy(&f->started);
    uv_sem_destroy(&f->has_become);
    free(f);
}
