/* The messages that carry rows: pull, push and their replies. Their bodies are raw; the heads
 * say how they are sliced. */
#include <assert.h>
#include <string.h>

#include "proto/key_codec.h"
#include "proto/message.h"
#include "proto/message_head.h"
#include "proto/ps.pb-c.h"

/* A body that a reader slices, and where to. */
struct body_view {
    const uint8_t *body;
    size_t body_bytes;
    void *ret;
};

/* The sections of one head, as protobuf-c wants them. */
struct section_heads {
    Ps__Section *items[SECTIONS_MAX];
    Ps__Section heads[SECTIONS_MAX];
    uint32_t n;
    size_t body_bytes; /* their keys and values */
};

static void put_delta(const struct section_delta *delta, Ps__Section *head)
{
    head->delta = delta->asked;
    if (!delta->asked)
        return;
    head->delta_tolerance = delta->tolerance;
    head->delta_base = delta->base;
    head->delta_rows = delta->rows_max;
    head->delta_mode = delta->mode;
}

static void put_sections(const struct section *sections, uint32_t n_sections,
                         struct section_heads *ret)
{
    assert(n_sections <= SECTIONS_MAX);
    ret->n = n_sections;
    ret->body_bytes = 0;
    for (uint32_t i = 0; i < n_sections; i++) {
        const struct section *s = &sections[i];
        Ps__Section *head = &ret->heads[i];

        ps__section__init(head);
        head->table_id = s->table_id;
        head->op = s->op;
        head->codec = s->codec;
        head->k = s->k;
        head->n_keys = s->n_keys;
        head->key_bytes = (uint32_t)s->key_bytes;
        head->value_bytes = (uint32_t)s->value_bytes;
        head->state = s->state;
        head->steps = section_op_has_steps(s->op) ? s->steps : 0;
        head->present = s->present;
        head->scan_bytes = s->scan_bytes;
        head->cursor = s->scan_bytes ? s->cursor : 0;
        put_delta(&s->delta, head);
        head->keys_at = s->keys_at;
        ret->items[i] = head;
        ret->body_bytes += s->key_bytes + s->value_bytes;
    }
}

static uint8_t *append(uint8_t *dst, const uint8_t *bytes, size_t n_bytes)
{
    if (n_bytes)
        memcpy(dst, bytes, n_bytes);
    return dst + n_bytes;
}

static int write_sections(struct bytes *out, struct frame_header *header,
                          const ProtobufCMessage *head, const struct section_heads *heads,
                          const struct section *sections, struct message_zstd *zstd)
{
    uint8_t *body, *at;
    int status = message_head_open(out, head, heads->body_bytes, header, &body);

    if (status)
        return status;
    at = body;
    for (uint32_t i = 0; i < heads->n; i++) {
        at = append(at, sections[i].keys, sections[i].key_bytes);
        at = append(at, sections[i].values, sections[i].value_bytes);
    }
    message_head_seal(out, header, body, zstd);
    return 0;
}

int message_write_pull(struct bytes *out, uint64_t request_id, const struct pull *m,
                       struct message_zstd *zstd)
{
    struct frame_header header = { .type = FRAME_PULL, .request_id = request_id };
    Ps__Pull head = PS__PULL__INIT;
    struct section_heads sections;

    put_sections(m->sections, m->n_sections, &sections);
    head.clock = m->clock;
    head.deadline_ms = m->deadline_ms;
    head.unfinished = m->unfinished;
    head.keep = m->keep;
    head.n_sections = m->n_sections;
    head.sections = sections.items;
    return write_sections(out, &header, &head.base, &sections, m->sections, zstd);
}

int message_write_push(struct bytes *out, uint64_t request_id, const struct push *m,
                       struct message_zstd *zstd)
{
    struct frame_header header = { .type = FRAME_PUSH, .request_id = request_id };
    Ps__Push head = PS__PUSH__INIT;
    struct section_heads sections;

    put_sections(m->sections, m->n_sections, &sections);
    head.seq = m->seq;
    head.clock = m->clock;
    head.n_samples = m->n_samples;
    head.tick = m->tick;
    head.keys_of = m->keys_of;
    head.n_sections = m->n_sections;
    head.sections = sections.items;
    return write_sections(out, &header, &head.base, &sections, m->sections, zstd);
}

/* Can so many keys stand in so many bytes, and so many rows in theirs? */
static int check_section(const Ps__Section *head)
{
    if (head->codec >= CODEC_ID_END)
        return PS_ECODEC;
    if (head->codec == CODEC_TOPK && (head->k < 1 || head->k > TABLE_SPEC_DIM_MAX))
        return PS_ECODEC;
    if (head->op >= SECTION_OP_END)
        return PS_EPROTO;
    if (head->keys_at)
        return head->key_bytes || !head->n_keys ? PS_ECOUNT : 0;
    if (head->key_bytes < head->n_keys ||
        head->key_bytes > (uint64_t)head->n_keys * KEY_CODEC_BYTES_MAX)
        return PS_ECOUNT;
    return 0;
}

static int check_values(const Ps__Section *head)
{
    if (head->state || head->present || head->scan_bytes || head->delta ||
        head->steps > SECTION_STEPS_MAX)
        return PS_EPROTO;
    if (head->op == SECTION_ASSIGN_STATE && head->codec != CODEC_FP32)
        return PS_ECODEC;
    if (head->op == SECTION_RATE && head->n_keys)
        return PS_ECOUNT;
    if (head->op == SECTION_GRADIENT_AT && head->codec == CODEC_TOPK)
        return PS_ECODEC;
    if (head->n_keys == 0)
        return head->value_bytes ? PS_ECOUNT : 0;
    if (head->value_bytes == 0 || head->value_bytes % head->n_keys)
        return PS_ECOUNT;
    if (head->codec == CODEC_TOPK && head->value_bytes / head->n_keys != 6 * head->k)
        return PS_ECOUNT;
    return 0;
}

static struct section_delta delta_of(const Ps__Section *head)
{
    if (!head->delta)
        return (struct section_delta){ 0 };
    return (struct section_delta){ .asked = true,
                                   .mode = (enum section_delta_mode)head->delta_mode,
                                   .tolerance = head->delta_tolerance,
                                   .base = head->delta_base,
                                   .rows_max = head->delta_rows };
}

/* NULL where the body is not there yet. */
static const uint8_t *at_body(const struct body_view *view, size_t at)
{
    return view->body ? view->body + at : NULL;
}

/* Slices the body into sections. `values`: what check_values() or no_values() allows. */
static int take_sections(Ps__Section *const *heads, size_t n_heads,
                         int (*values)(const Ps__Section *head), const struct body_view *view,
                         struct section *ret, uint32_t *ret_n)
{
    size_t at = 0;

    if (n_heads > SECTIONS_MAX)
        return PS_ECOUNT;
    for (size_t i = 0; i < n_heads; i++) {
        const Ps__Section *head = heads[i];
        uint64_t n_bytes = (uint64_t)head->key_bytes + head->value_bytes;
        int status = check_section(head);

        if (!status)
            status = values(head);
        if (status)
            return status;
        if (n_bytes > view->body_bytes - at)
            return PS_ECOUNT;
        ret[i] = (struct section){
            .table_id = head->table_id,
            .op = (enum section_op)head->op,
            .codec = (enum codec_id)head->codec,
            .k = head->codec == CODEC_TOPK ? head->k : 0,
            .state = head->state != 0,
            .present = head->present != 0,
            .scan_bytes = head->scan_bytes,
            .cursor = head->scan_bytes ? head->cursor : 0,
            .delta = delta_of(head),
            .steps = section_op_has_steps((enum section_op)head->op) ? head->steps : 0,
            .n_keys = head->n_keys,
            .keys = at_body(view, at),
            .key_bytes = head->key_bytes,
            .values = head->value_bytes ? at_body(view, at + head->key_bytes) : NULL,
            .value_bytes = head->value_bytes,
            .keys_at = head->keys_at,
        };
        at += n_bytes;
    }
    *ret_n = (uint32_t)n_heads;
    return at == view->body_bytes ? 0 : PS_ECOUNT;
}

static bool is_delta(const Ps__Section *head)
{
    return !head->state && !head->present && !head->scan_bytes && head->delta_tolerance >= 0 &&
           head->delta_tolerance <= SECTION_ASSIGN_MAX &&
           head->delta_mode >= SECTION_DELTA_ONEBIT && head->delta_mode <= SECTION_DELTA_SPARSE;
}

static int no_values(const Ps__Section *head)
{
    if ((head->delta && !is_delta(head)) || head->keys_at)
        return PS_EPROTO;
    return head->value_bytes || (head->scan_bytes && head->n_keys) ? PS_ECOUNT : 0;
}

static int take_pull(const void *message, void *body_view)
{
    const Ps__Pull *head = message;
    struct body_view *view = body_view;
    struct pull *m = view->ret;

    if (head->unfinished > head->clock)
        return PS_ECOUNT;
    m->clock = head->clock;
    m->unfinished = head->unfinished;
    m->deadline_ms = head->deadline_ms;
    m->keep = head->keep != 0;
    return take_sections(head->sections, head->n_sections, no_values, view, m->sections,
                         &m->n_sections);
}

int message_read_pull(const struct frame_header *h, const uint8_t *head, const uint8_t *body,
                      size_t body_bytes, struct pull *ret)
{
    struct body_view view = { body, body_bytes, ret };

    return message_head_read(&ps__pull__descriptor, h, head, take_pull, &view);
}

static int take_push(const void *message, void *body_view)
{
    const Ps__Push *head = message;
    struct body_view *view = body_view;
    struct push *m = view->ret;
    int status;

    m->seq = head->seq;
    m->clock = head->clock;
    m->n_samples = head->n_samples;
    m->tick = head->tick != 0;
    m->keys_of = head->keys_of;
    status = take_sections(head->sections, head->n_sections, check_values, view, m->sections,
                           &m->n_sections);
    for (uint32_t i = 0; !status && !m->keys_of && i < m->n_sections; i++)
        if (m->sections[i].keys_at)
            status = PS_ECOUNT; /* of no pull */
    return status;
}

int message_read_push(const struct frame_header *h, const uint8_t *head, const uint8_t *body,
                      size_t body_bytes, struct push *ret)
{
    struct body_view view = { body, body_bytes, ret };

    return message_head_read(&ps__push__descriptor, h, head, take_push, &view);
}

int message_write_push_reply(struct bytes *out, uint64_t request_id, const struct push_reply *m)
{
    Ps__PushReply head = PS__PUSH_REPLY__INIT;

    head.status = m->status;
    head.text = (char *)m->text;
    head.seq = m->seq;
    head.min_clock = m->min_clock;
    head.version = m->version;
    head.rows_refused = m->rows_refused;
    head.repeated_push = m->repeated;
    head.late = m->late;
    return message_head_write(out, FRAME_PUSH_REPLY, request_id, &head.base);
}

static int take_push_reply(const void *message, void *ret)
{
    const Ps__PushReply *head = message;
    struct push_reply m = {
        .seq = head->seq,
        .min_clock = head->min_clock,
        .version = head->version,
        .rows_refused = head->rows_refused,
        .repeated = head->repeated_push != 0,
        .late = head->late != 0,
    };

    if (message_head_status(&m.status, head->status))
        return PS_EPROTO;
    message_head_text(m.text, sizeof m.text, head->text);
    *(struct push_reply *)ret = m;
    return 0;
}

int message_read_push_reply(const struct frame_header *h, const uint8_t *head,
                            struct push_reply *ret)
{
    return message_head_read(&ps__push_reply__descriptor, h, head, take_push_reply, ret);
}

/* *ret_head borrows m and the array, which takes SECTIONS_MAX. PS_ETOOBIG. */
static int pull_reply_head(const struct pull_reply *m, uint32_t *value_bytes,
                           Ps__PullReply *ret_head, size_t *ret_body_bytes)
{
    ps__pull_reply__init(ret_head);
    *ret_body_bytes = 0;
    for (uint32_t i = 0; i < m->n_sections; i++) {
        if (m->sections[i].value_bytes > UINT32_MAX)
            return PS_ETOOBIG;
        value_bytes[i] = (uint32_t)m->sections[i].value_bytes;
        *ret_body_bytes += value_bytes[i];
    }
    ret_head->status = m->status;
    ret_head->text = (char *)m->text;
    ret_head->min_clock = m->min_clock;
    ret_head->version = m->version;
    ret_head->kept = m->kept;
    ret_head->n_value_bytes = m->n_sections;
    ret_head->value_bytes = value_bytes;
    return 0;
}

static int begin_pull_reply(struct bytes *out, uint64_t request_id, const struct pull_reply *m,
                            uint8_t **ret_values)
{
    struct frame_header header = { .type = FRAME_PULL_REPLY, .request_id = request_id };
    uint32_t value_bytes[SECTIONS_MAX];
    Ps__PullReply head;
    size_t body_bytes;
    int status = pull_reply_head(m, value_bytes, &head, &body_bytes);

    if (status)
        return status;
    status = message_head_open(out, &head.base, body_bytes, &header, ret_values);
    if (!status)
        frame_open(*ret_values - header.head_bytes - FRAME_HEADER_BYTES, &header);
    return status;
}

int message_begin_pull_reply(struct bytes *out, uint64_t request_id, const struct pull_reply *m,
                             uint8_t **ret_values)
{
    int status;

    assert(bytes_len(out) == 0 && m->n_sections <= SECTIONS_MAX);
    status = begin_pull_reply(out, request_id, m, ret_values);
    if (status)
        bytes_deinit(out);
    return status;
}

int message_open_pull_reply(struct bytes *out, uint64_t request_id, const struct pull_reply *m,
                            struct frame_crc *ret_crc)
{
    struct frame_header header = { .type = FRAME_PULL_REPLY,
                                   .flags = FRAME_SUM_BEHIND,
                                   .request_id = request_id };
    uint32_t value_bytes[SECTIONS_MAX];
    size_t body_bytes, n_bytes;
    Ps__PullReply head;
    uint8_t *frame;
    int status = pull_reply_head(m, value_bytes, &head, &body_bytes);

    assert(bytes_len(out) == 0 && m->n_sections <= SECTIONS_MAX);
    if (!status)
        status = message_head_open(out, &head.base, 0, &header, &frame);
    if (status)
        return status;
    if (body_bytes > UINT32_MAX)
        return PS_ETOOBIG;
    header.body_bytes = (uint32_t)body_bytes;
    n_bytes = FRAME_HEADER_BYTES + (size_t)header.head_bytes;
    frame -= n_bytes;
    *ret_crc = (struct frame_crc){ 0 };
    frame_open(frame, &header);
    frame_crc_extend(ret_crc, frame, n_bytes);
    frame_close(frame, ret_crc->crc);
    bytes_commit(out, n_bytes);
    return 0;
}

void message_sum_pull_reply(const struct bytes *out, const uint8_t *end, struct frame_crc *crc)
{
    const uint8_t *frame = out->bytes + out->end;

    frame_crc_extend(crc, frame, (size_t)(end - frame));
}

/* The header as begin has written it. */
static struct frame_header header_of(const uint8_t *frame)
{
    struct frame_header header;
    int status = frame_decode(frame, UINT32_MAX, &header);

    assert(!status);
    return header;
}

void message_end_pull_reply(struct bytes *out, struct frame_crc *crc)
{
    uint8_t *frame = out->bytes + out->end;
    struct frame_header header = header_of(frame);
    size_t n_bytes = FRAME_HEADER_BYTES + (size_t)header.head_bytes + header.body_bytes;

    frame_crc_extend(crc, frame, n_bytes);
    frame_close(frame, crc->crc);
    bytes_commit(out, n_bytes);
}

void message_trim_pull_reply(struct bytes *out, const struct pull_reply *m)
{
    uint8_t *frame = out->bytes + out->end, *start;
    struct frame_header header = header_of(frame);
    uint32_t value_bytes[SECTIONS_MAX];
    size_t head_bytes, body_bytes;
    Ps__PullReply head;
    int status = pull_reply_head(m, value_bytes, &head, &body_bytes);

    assert(!status);
    head_bytes = protobuf_c_message_get_packed_size(&head.base);
    assert(head_bytes <= header.head_bytes && body_bytes <= header.body_bytes);
    start = frame + header.head_bytes - head_bytes; /* the values stay where they are */
    header.head_bytes = (uint16_t)head_bytes;
    header.body_bytes = (uint32_t)body_bytes;
    protobuf_c_message_pack(&head.base, start + FRAME_HEADER_BYTES);
    frame_open(start, &header);
    out->end += (size_t)(start - frame);
    out->start = out->end;
}

void message_pack_pull_reply(struct bytes *out, struct message_zstd *zstd)
{
    uint8_t *frame = out->bytes + out->end;
    struct frame_header header = header_of(frame);

    message_head_seal(out, &header, frame + FRAME_HEADER_BYTES + header.head_bytes, zstd);
}

static int take_pull_reply(const void *message, void *body_view)
{
    const Ps__PullReply *head = message;
    struct body_view *view = body_view;
    struct pull_reply *m = view->ret;
    size_t at = 0;

    if (message_head_status(&m->status, head->status))
        return PS_EPROTO;
    if (head->n_value_bytes > SECTIONS_MAX)
        return PS_ECOUNT;
    message_head_text(m->text, sizeof m->text, head->text);
    m->min_clock = head->min_clock;
    m->version = head->version;
    m->kept = head->kept != 0;
    m->n_sections = (uint32_t)head->n_value_bytes;
    for (uint32_t i = 0; i < m->n_sections; i++) {
        if (head->value_bytes[i] > view->body_bytes - at)
            return PS_ECOUNT;
        m->sections[i].values = view->body + at;
        m->sections[i].value_bytes = head->value_bytes[i];
        at += head->value_bytes[i];
    }
    return at == view->body_bytes ? 0 : PS_ECOUNT;
}

int message_read_pull_reply(const struct frame_header *h, const uint8_t *head,
                            const uint8_t *body, size_t body_bytes, struct pull_reply *ret)
{
    struct body_view view = { body, body_bytes, ret };

    return message_head_read(&ps__pull_reply__descriptor, h, head, take_pull_reply, &view);
}
