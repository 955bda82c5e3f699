/*
 * One frame: its type says which message_read_X() reads it. Whatever is accepted is written, read and
 * written again: the second writing is the first, byte for byte. (Not the frame that came: protobuf
 * has many ways to say the same.)
 */
#include <stdlib.h>
#include <string.h>

#include "common/status.h"
#include "proto/message_replication.h"
#include "proto/message_zstd.h"
#include "tests/fuzz/harness.h"

#define BODY_MAX (1u << 18)

static struct message_zstd zstd;

/* A frame as a channel hands it over. */
struct frame {
    struct frame_header header;
    const uint8_t *head, *body; /* borrowed; the body is uncompressed */
    size_t body_bytes;
};

union message {
    struct hello hello;
    struct hello_reply hello_reply;
    struct table_request table;
    struct table_reply table_reply;
    struct join join;
    struct join_reply join_reply;
    struct push push;
    struct push_reply push_reply;
    struct pull pull;
    struct pull_reply pull_reply;
    struct status_reply status_reply;
    struct admin admin;
    struct beat beat;
    uint64_t clock;
    struct follow follow;
    struct follow_reply follow_reply;
    struct file_request file;
    struct file_reply file_reply;
    struct fetch fetch;
    struct fetch_reply fetch_reply;
    struct watch watch;
    struct watch_reply watch_reply;
};

/* Of the frames between nodes, and of those who watch them. */
static int read_replication(const struct frame *f, union message *ret)
{
    const struct frame_header *h = &f->header;

    switch ((int)h->type) {
    case FRAME_FOLLOW:
        return message_read_follow(h, f->head, f->body, f->body_bytes, &ret->follow);
    case FRAME_FOLLOW_REPLY:
        return message_read_follow_reply(h, f->head, f->body, f->body_bytes,
                                         &ret->follow_reply);
    case FRAME_FILE:
        return message_read_file(h, f->head, &ret->file);
    case FRAME_FILE_REPLY:
        return message_read_file_reply(h, f->head, f->body, f->body_bytes, &ret->file_reply);
    case FRAME_FETCH:
        return message_read_fetch(h, f->head, &ret->fetch);
    case FRAME_FETCH_REPLY:
        return message_read_fetch_reply(h, f->head, f->body, f->body_bytes, &ret->fetch_reply);
    case FRAME_WATCH:
        return message_read_watch(h, f->head, &ret->watch);
    case FRAME_WATCH_REPLY:
        return message_read_watch_reply(h, f->head, &ret->watch_reply);
    default:
        return PS_EPROTO;
    }
}

static int read_message(const struct frame *f, union message *ret)
{
    const struct frame_header *h = &f->header;

    switch ((int)h->type) {
    case FRAME_HELLO:
        return message_read_hello(h, f->head, &ret->hello);
    case FRAME_HELLO_REPLY:
        return message_read_hello_reply(h, f->head, &ret->hello_reply);
    case FRAME_JOIN:
        return message_read_join(h, f->head, &ret->join);
    case FRAME_JOIN_REPLY:
        return message_read_join_reply(h, f->head, &ret->join_reply);
    case FRAME_TABLE:
        return message_read_table(h, f->head, &ret->table);
    case FRAME_TABLE_REPLY:
        return message_read_table_reply(h, f->head, &ret->table_reply);
    case FRAME_PULL:
        return message_read_pull(h, f->head, f->body, f->body_bytes, &ret->pull);
    case FRAME_PULL_REPLY:
        return message_read_pull_reply(h, f->head, f->body, f->body_bytes, &ret->pull_reply);
    case FRAME_PUSH:
        return message_read_push(h, f->head, f->body, f->body_bytes, &ret->push);
    case FRAME_PUSH_REPLY:
        return message_read_push_reply(h, f->head, &ret->push_reply);
    case FRAME_BEAT:
        return message_read_beat(h, f->head, &ret->beat);
    case FRAME_LEAVE:
        return message_read_leave(h, f->head, &ret->clock);
    case FRAME_ADMIN:
        return message_read_admin(h, f->head, &ret->admin);
    case FRAME_BEAT_REPLY:
    case FRAME_LEAVE_REPLY:
    case FRAME_ADMIN_REPLY:
        return message_read_status_reply(h, f->head, &ret->status_reply);
    default:
        return read_replication(f, ret);
    }
}

static int write_pull_reply(struct bytes *out, uint64_t id, const struct pull_reply *m)
{
    struct frame_crc crc = { 0 };
    uint8_t *values;
    int status = message_begin_pull_reply(out, id, m, &values);

    if (status)
        return status;
    for (uint32_t i = 0; i < m->n_sections; i++) {
        if (m->sections[i].value_bytes)
            memcpy(values, m->sections[i].values, m->sections[i].value_bytes);
        values += m->sections[i].value_bytes;
    }
    message_end_pull_reply(out, &crc);
    return 0;
}

static int write_replication(const struct frame *f, const union message *m, struct bytes *out)
{
    uint64_t id = f->header.request_id;

    switch ((int)f->header.type) {
    case FRAME_FOLLOW:
        return message_write_follow(out, id, &m->follow);
    case FRAME_FOLLOW_REPLY:
        return message_write_follow_reply(out, id, &m->follow_reply);
    case FRAME_FILE:
        return message_write_file(out, id, &m->file);
    case FRAME_FILE_REPLY:
        return message_write_file_reply(out, id, &m->file_reply);
    case FRAME_FETCH:
        return message_write_fetch(out, id, &m->fetch);
    case FRAME_FETCH_REPLY:
        return message_write_fetch_reply(out, id, &m->fetch_reply);
    case FRAME_WATCH:
        return message_write_watch(out, id, &m->watch);
    case FRAME_WATCH_REPLY:
        return message_write_watch_reply(out, id, &m->watch_reply);
    default:
        return PS_EPROTO;
    }
}

static int write_message(const struct frame *f, const union message *m, struct bytes *out)
{
    uint64_t id = f->header.request_id;

    switch ((int)f->header.type) {
    case FRAME_HELLO:
        return message_write_hello(out, id, &m->hello);
    case FRAME_HELLO_REPLY:
        return message_write_hello_reply(out, id, &m->hello_reply);
    case FRAME_JOIN:
        return message_write_join(out, id, &m->join);
    case FRAME_JOIN_REPLY:
        return message_write_join_reply(out, id, &m->join_reply);
    case FRAME_TABLE:
        return message_write_table(out, id, &m->table);
    case FRAME_TABLE_REPLY:
        return message_write_table_reply(out, id, &m->table_reply);
    case FRAME_PULL:
        return message_write_pull(out, id, &m->pull, NULL);
    case FRAME_PULL_REPLY:
        return write_pull_reply(out, id, &m->pull_reply);
    case FRAME_PUSH:
        return message_write_push(out, id, &m->push, id & 1 ? &zstd : NULL);
    case FRAME_PUSH_REPLY:
        return message_write_push_reply(out, id, &m->push_reply);
    case FRAME_BEAT:
        return message_write_beat(out, id, &m->beat);
    case FRAME_LEAVE:
        return message_write_leave(out, id, m->clock);
    case FRAME_ADMIN:
        return message_write_admin(out, id, &m->admin);
    case FRAME_BEAT_REPLY:
    case FRAME_LEAVE_REPLY:
        return message_write_status_reply(out, f->header.type, id, &m->status_reply);
    case FRAME_ADMIN_REPLY:
        return message_write_admin_reply(out, id, &m->status_reply, (const char *)f->body,
                                         f->body_bytes);
    default:
        return write_replication(f, m, out);
    }
}

/* Takes a whole frame apart. */
static int open_frame(const uint8_t *bytes, size_t n_bytes, struct bytes *scratch,
                      struct frame *ret)
{
    struct frame_header *h = &ret->header;
    int status = n_bytes < FRAME_HEADER_BYTES ? PS_EPROTO : frame_decode(bytes, BODY_MAX, h);

    if (!status && n_bytes != frame_bytes(h))
        status = PS_ECOUNT;
    if (!status)
        status = frame_verify(bytes, h);
    if (status)
        return status;
    ret->head = bytes + FRAME_HEADER_BYTES;
    return message_body(&zstd, h, ret->head + h->head_bytes, BODY_MAX, scratch, &ret->body,
                        &ret->body_bytes);
}

static bool is_status(int status)
{
    return status == PS_EPROTO || status == PS_ECOUNT || status == PS_ECODEC ||
           status == PS_ETOOBIG || status == PS_ECORRUPT;
}

static void digest_sections(const struct section *s, uint32_t n, uint64_t *digest)
{
    for (uint32_t i = 0; i < n; i++) {
        harness_digest(digest, s[i].keys, s[i].key_bytes);
        harness_digest(digest, s[i].values, s[i].values ? s[i].value_bytes : 0);
    }
}

/* Every byte that the message points to. */
static uint64_t digest_message(const struct frame *f, const union message *m)
{
    uint64_t digest = 0;

    if (f->header.type == FRAME_PUSH)
        digest_sections(m->push.sections, m->push.n_sections, &digest);
    if (f->header.type == FRAME_PULL)
        digest_sections(m->pull.sections, m->pull.n_sections, &digest);
    if (f->header.type == FRAME_FOLLOW)
        harness_digest(&digest, m->follow.terms,
                       message_terms_bytes(m->follow.n_terms, m->follow.n_shards));
    if (f->header.type == FRAME_FOLLOW_REPLY)
        harness_digest(&digest, m->follow_reply.terms,
                       message_terms_bytes(m->follow_reply.n_terms, m->follow_reply.n_shards));
    if (f->header.type == FRAME_FILE_REPLY)
        harness_digest(&digest, m->file_reply.bytes, m->file_reply.n_bytes);
    if (f->header.type == FRAME_FETCH_REPLY)
        harness_digest(&digest, m->fetch_reply.records, m->fetch_reply.record_bytes);
    for (uint32_t i = 0; f->header.type == FRAME_PULL_REPLY && i < m->pull_reply.n_sections;
         i++)
        harness_digest(&digest, m->pull_reply.sections[i].values,
                       m->pull_reply.sections[i].value_bytes);
    return digest;
}

static void check_again(const struct frame *f, union message *m, union message *again)
{
    struct bytes first = { 0 }, second = { 0 }, scratch = { 0 };
    uint64_t digest = digest_message(f, m);
    struct frame g;
    int status = write_message(f, m, &first);

    assert(status == 0);
    status = open_frame(bytes_front(&first), bytes_len(&first), &scratch, &g);
    assert(status == 0);
    assert(g.header.type == f->header.type && g.header.request_id == f->header.request_id);
    status = read_message(&g, again);
    assert(status == 0);
    assert(digest_message(&g, again) == digest);
    status = write_message(&g, again, &second);
    assert(status == 0);
    assert(bytes_len(&first) == bytes_len(&second));
    assert(memcmp(bytes_front(&first), bytes_front(&second), bytes_len(&first)) == 0);
    bytes_deinit(&first);
    bytes_deinit(&second);
    bytes_deinit(&scratch);
}

void harness_one(const uint8_t *bytes, size_t n_bytes)
{
    struct harness_bytes in = { bytes, bytes + n_bytes };
    union message *m = malloc(2 * sizeof *m);
    uint8_t *copy = harness_take(&in, SIZE_MAX, &n_bytes);
    struct bytes scratch = { 0 };
    struct frame f;
    int status = open_frame(copy, n_bytes, &scratch, &f);

    assert(m);
    memset(m, 0xa5, 2 * sizeof *m);
    if (!status)
        status = read_message(&f, m);
    if (!status)
        check_again(&f, m, m + 1);
    else
        assert(is_status(status));
    bytes_deinit(&scratch);
    free(copy);
    free(m);
}

/* --- seeds: every message, with all of its fields in use --- */

static void fill_sections(struct section *s, uint32_t n, bool values)
{
    static const uint8_t bytes[600] = { 1, 1, 1, 1, 5, 5, 5 };

    for (uint32_t i = 0; i < n; i++) {
        s[i] = (struct section){ .table_id = i,
                                 .op = values ? (enum section_op)(i % SECTION_OP_END) : 0,
                                 .codec = (enum codec_id)(i % CODEC_ID_END),
                                 .k = i % CODEC_ID_END == CODEC_TOPK ? 3 : 0,
                                 .n_keys = 4,
                                 .keys = bytes,
                                 .key_bytes = 4 + i };
        if (s[i].op == SECTION_RATE)
            s[i] = (struct section){ .table_id = i,
                                     .op = SECTION_RATE,
                                     .steps = section_rate_steps(0.5f) };
        if (s[i].op == SECTION_ASSIGN_STATE)
            s[i] = (struct section){ .table_id = i,
                                     .op = SECTION_ASSIGN_STATE,
                                     .n_keys = 4,
                                     .keys = bytes,
                                     .key_bytes = 4 + i,
                                     .steps = 300 + i };
        if (s[i].op == SECTION_GRADIENT_AT) {
            s[i].codec = CODEC_FP32;
            s[i].k = 0;
            s[i].steps = section_delay_steps((struct section_delay){ .lambda = 0.5f });
        }
        s[i].present = !values && i % 2;
        if (!values && i % 4 == 0)
            s[i].delta = (struct section_delta){ true, SECTION_DELTA_FULL, 0.01f, 7 + i, 1000 };
        if (!values && i % 3 == 2)
            s[i] = (struct section){
                .table_id = i, .scan_bytes = 5000, .cursor = UINT64_MAX - i, .state = i % 2
            };
        if (values && s[i].n_keys) {
            s[i].values = bytes + 10;
            s[i].value_bytes = s[i].codec == CODEC_TOPK ? 4 * 18 : 4 * 16 * (1 + i % 2);
        }
    }
}

static struct table_spec seed_spec(void)
{
    return (struct table_spec){ .name = "emb.0",
                                .kind = TABLE_SPEC_SPARSE,
                                .dim = 16,
                                .seed = 7,
                                .init = TABLE_SPEC_INIT_NORMAL,
                                .init_scale = 0.5f,
                                .optim = TABLE_SPEC_ADAM,
                                .params = table_spec_optim_defaults(TABLE_SPEC_ADAM),
                                .schedule = { 10, TABLE_SPEC_DECAY_EXP, 5, 100, 0.5f, 0.125f },
                                .clip_norm = 2,
                                .mode = TABLE_SPEC_MODE_SSP,
                                .bound = 4,
                                .storage = TABLE_SPEC_BF16,
                                .limits = { 3, 4, 1000, 2000, 3000, 86400,
                                            TABLE_SPEC_VICTIMS_OLDEST, 1 << 20 } };
}

static void fill_replication(enum frame_type type, union message *m)
{
    static const uint8_t bytes[100] = { 1, 2, 3 };

    if (type == FRAME_FOLLOW)
        m->follow = (struct follow){ 5, 7,     1,     4096, "lease=10000", "avx2", "a.b:700",
                                     2, { 9 }, { 8 }, 2,    bytes };
    if (type == FRAME_FOLLOW_REPLY)
        m->follow_reply =
            (struct follow_reply){ 0,        "", 5,     7,      FOLLOW_GO_ON,       2,
                                   { 8, 9 }, 1,  bytes, "avx2", FOLLOW_BEGUN_WHOLE, 1500 };
    if (type == FRAME_FILE)
        m->file = (struct file_request){ "00000000000000000007/MANIFEST", 300, 400 };
    if (type == FRAME_FILE_REPLY)
        m->file_reply = (struct file_reply){ 0, "", 500, bytes, 40 };
    if (type == FRAME_FETCH)
        m->fetch = (struct fetch){ 5, 400, 300, 200, 77, 1000, 65536, "a row" };
    if (type == FRAME_FETCH_REPLY)
        m->fetch_reply = (struct fetch_reply){ .term = 5,
                                               .first = 400,
                                               .appended = 500,
                                               .durable = 450,
                                               .sent_ms = 78,
                                               .in_sync = true,
                                               .hands_over = true,
                                               .n_records = 3,
                                               .records = bytes,
                                               .record_bytes = 40,
                                               .audit_bytes = 2,
                                               .audit = { 1, 2 } };
    if (type == FRAME_WATCH)
        m->watch = (struct watch){ 5, 10000 };
    if (type == FRAME_WATCH_REPLY)
        m->watch_reply =
            (struct watch_reply){ .groups = { 3, 2, { { 5, true, "a:1", "b:2" } } } };
}

static void fill_pull(struct pull *pull)
{
    *pull = (struct pull){
        .clock = 9, .unfinished = 2, .deadline_ms = 3, .n_sections = 6, .keep = true
    };
    fill_sections(pull->sections, 6, false);
    pull->sections[0].state = true;
}

/* Its first section has the keys of a pull's second one. */
static void fill_push(struct push *push)
{
    *push = (struct push){
        .seq = 5, .clock = 4, .n_samples = 32, .tick = true, .n_sections = 7, .keys_of = 8
    };
    fill_sections(push->sections, 7, true);
    push->sections[0].keys = NULL;
    push->sections[0].key_bytes = 0;
    push->sections[0].keys_at = 2;
}

static void fill_message(enum frame_type type, union message *m)
{
    *m = (union message){ 0 };
    if (type == FRAME_HELLO)
        m->hello = (struct hello){ 1, 1, "worker", "secret", 3, 99, "host:1", 2 };
    if (type == FRAME_HELLO_REPLY)
        m->hello_reply = (struct hello_reply){ .text = "no",
                                               .n_nodes = 2,
                                               .shards_per_node = 4,
                                               .nodes = { "a:1", "b:2" },
                                               .version = 1 };
    if (type == FRAME_JOIN)
        m->join = (struct join){ "job",    1,    4, 77,  TABLE_SPEC_MODE_SSP, 4, 17, 3,
                                 "host:1", true, 2, NULL };
    if (type == FRAME_JOIN_REPLY)
        m->join_reply = (struct join_reply){ PS_EFENCED, "fenced", 1,       2, 3, 4, true,
                                             5,          6,        PS_ENAN, 7, 8, 9, 2 };
    if (type == FRAME_TABLE)
        m->table = (struct table_request){ seed_spec(), true };
    if (type == FRAME_TABLE_REPLY)
        m->table_reply = (struct table_reply){ 0, "", 3, seed_spec(), 1 };
    if (type == FRAME_PULL)
        fill_pull(&m->pull);
    if (type == FRAME_PUSH)
        fill_push(&m->push);
    if (type == FRAME_PULL_REPLY)
        m->pull_reply = (struct pull_reply){ .min_clock = 3,
                                             .version = 4,
                                             .n_sections = 2,
                                             .sections = { { (const uint8_t *)"1234", 4 },
                                                           { (const uint8_t *)"567", 3 } } };
    if (type == FRAME_PUSH_REPLY)
        m->push_reply = (struct push_reply){ PS_ENAN, "NaN", 1, 2, 3, 4, true, true };
    if (type == FRAME_ADMIN)
        m->admin = (struct admin){ "checkpoint", "now" };
    if (type == FRAME_BEAT_REPLY || type == FRAME_LEAVE_REPLY || type == FRAME_ADMIN_REPLY)
        m->status_reply =
            (struct status_reply){ .status = PS_EFENCED, .text = "fenced", .min_clock = 12 };
    if (type == FRAME_BEAT_REPLY)
        m->status_reply.suspects =
            (struct suspects){ 2, { { 1, 1700, 40, false }, { 3, 0, 0, false } } };
    if (type == FRAME_BEAT)
        m->beat = (struct beat){ .clock = 12345,
                                 .suspects = { 1, { { 1, 1700, 0, true } } },
                                 .has_learning = true,
                                 .learning = { .samples = 1 << 20, .steps = 40, .loss = 0.25f },
                                 .job = "ads" };
    if (type == FRAME_LEAVE)
        m->clock = 12345;
    fill_replication(type, m);
}

bool harness_seed(uint32_t i, struct bytes *out)
{
    static const uint8_t json[1000] = "{}";
    struct frame f = { .header = { .type = (enum frame_type)(FRAME_HELLO + i / 2),
                                   .request_id = i },
                       .body = json,
                       .body_bytes = i % 2 ? 0 : sizeof json };
    union message *m = malloc(sizeof *m);
    bool is_one = f.header.type < FRAME_TYPE_END;

    assert(m);
    if (is_one) {
        int status;

        fill_message(f.header.type, m);
        status = write_message(&f, m, out);
        assert(status == 0);
    }
    free(m);
    return is_one;
}
