#include <stdio.h>

#include "common/status.h"
#include "proto/message_head.h"
#include "proto/message_replication.h"
#include "tests/unit/proto/messages.h"

/* Of the frames between nodes, and of those who watch them. */
static int read_replication(const struct frame_header *h, const uint8_t *head,
                            const uint8_t *body, size_t n)
{
    static union {
        struct follow follow;
        struct follow_reply follow_reply;
        struct file_request file;
        struct file_reply file_reply;
        struct fetch fetch;
        struct fetch_reply fetch_reply;
        struct watch watch;
        struct watch_reply watch_reply;
    } m;
    int status;

    switch (h->type) {
    case FRAME_FOLLOW:
        status = message_read_follow(h, head, body, n, &m.follow);
        if (!status)
            assert_true(message_terms_bytes(m.follow.n_terms, m.follow.n_shards) <= n);
        return status;
    case FRAME_FOLLOW_REPLY:
        status = message_read_follow_reply(h, head, body, n, &m.follow_reply);
        if (!status)
            assert_true(message_terms_bytes(m.follow_reply.n_terms, m.follow_reply.n_shards) <=
                        n);
        return status;
    case FRAME_FILE:
        return message_read_file(h, head, &m.file);
    case FRAME_FILE_REPLY:
        return message_read_file_reply(h, head, body, n, &m.file_reply);
    case FRAME_FETCH:
        return message_read_fetch(h, head, &m.fetch);
    case FRAME_FETCH_REPLY:
        return message_read_fetch_reply(h, head, body, n, &m.fetch_reply);
    case FRAME_WATCH:
        return message_read_watch(h, head, &m.watch);
    default:
        return message_read_watch_reply(h, head, &m.watch_reply);
    }
}

/* Any reader on any bytes: 0 or a refusal, and what it accepts lies within the body. */
static int read_any(const struct frame_header *h, const uint8_t *head, const uint8_t *body,
                    size_t n)
{
    static struct push push;
    static struct pull pull;
    static struct pull_reply pull_reply;
    static struct hello_reply hello_reply;
    union {
        struct hello hello;
        struct table_request table;
        struct table_reply table_reply;
        struct join join;
        struct join_reply join_reply;
        struct push_reply push_reply;
        struct status_reply status;
        struct admin admin;
        struct beat beat;
        uint64_t clock;
    } m;
    int status;

    switch (h->type) {
    case FRAME_HELLO:
        return message_read_hello(h, head, &m.hello);
    case FRAME_HELLO_REPLY:
        return message_read_hello_reply(h, head, &hello_reply);
    case FRAME_JOIN:
        return message_read_join(h, head, &m.join);
    case FRAME_JOIN_REPLY:
        return message_read_join_reply(h, head, &m.join_reply);
    case FRAME_TABLE:
        return message_read_table(h, head, &m.table);
    case FRAME_TABLE_REPLY:
        return message_read_table_reply(h, head, &m.table_reply);
    case FRAME_PULL:
        return message_read_pull(h, head, body, n, &pull);
    case FRAME_PULL_REPLY:
        return message_read_pull_reply(h, head, body, n, &pull_reply);
    case FRAME_PUSH:
        status = message_read_push(h, head, body, n, &push);
        for (uint32_t i = 0; status == 0 && i < push.n_sections; i++) {
            const struct section *s = &push.sections[i];

            assert_true(s->keys >= body && s->keys + s->key_bytes + s->value_bytes <= body + n);
        }
        return status;
    case FRAME_PUSH_REPLY:
        return message_read_push_reply(h, head, &m.push_reply);
    case FRAME_BEAT:
        return message_read_beat(h, head, &m.beat);
    case FRAME_LEAVE:
        return message_read_leave(h, head, &m.clock);
    case FRAME_ADMIN:
        return message_read_admin(h, head, &m.admin);
    case FRAME_BEAT_REPLY:
    case FRAME_LEAVE_REPLY:
    case FRAME_ADMIN_REPLY:
        return message_read_status_reply(h, head, &m.status);
    default:
        return read_replication(h, head, body, n);
    }
}

static int write_rows(struct bytes *b, unsigned type)
{
    static struct push push;
    static struct pull pull;
    static struct pull_reply pull_reply;
    uint8_t *bytes = messages_bytes(4096, 100), *values;
    struct frame_crc crc = { 0 };
    size_t n;
    int status;

    push = (struct push){
        .seq = 1, .clock = 2, .n_samples = 3, .tick = true, .keys_of = 4, .n_sections = 9
    };
    pull = (struct pull){ .clock = 1, .deadline_ms = 2, .n_sections = 9 };
    pull_reply = (struct pull_reply){ .min_clock = 3, .n_sections = 2 };
    pull_reply.sections[0].value_bytes = pull_reply.sections[1].value_bytes = 20;
    messages_sections(push.sections, 9, bytes, &n, true);
    messages_sections(pull.sections, 9, bytes, &n, false);
    if (type == FRAME_PULL) {
        status = message_write_pull(b, 1, &pull, NULL);
    } else if (type == FRAME_PUSH) {
        status = message_write_push(b, 1, &push, NULL);
    } else {
        assert_int_equal(message_begin_pull_reply(b, 1, &pull_reply, &values), 0);
        memset(values, 7, 40);
        message_end_pull_reply(b, &crc);
        status = 0;
    }
    free(bytes);
    return status;
}

static int write_request(struct bytes *b, unsigned type)
{
    struct hello hello = { 1, 2, "worker", "secret", 3, UINT64_MAX, "w", 3 };
    struct table_request table = { messages_spec(), true };
    struct join join = { "job", 1, 2, 3, TABLE_SPEC_MODE_BSP, 0, 5, 6, "w", true, 0, NULL };
    struct admin admin = { "a", "b" };

    switch (type) {
    case FRAME_HELLO:
        return message_write_hello(b, 1, &hello);
    case FRAME_JOIN:
        return message_write_join(b, 1, &join);
    case FRAME_TABLE:
        return message_write_table(b, 1, &table);
    case FRAME_BEAT:
        return message_write_beat(
            b, 1,
            &(struct beat){ .clock = 300,
                            .suspects = { 2, { { 1, 2, 3, true }, { 4, 5, 6, false } } },
                            .has_learning = true,
                            .learning = { .samples = 1 << 20, .steps = 40, .loss = 0.25f },
                            .job = "ads" });
    case FRAME_LEAVE:
        return message_write_leave(b, 1, 300);
    case FRAME_ADMIN:
        return message_write_admin(b, 1, &admin);
    default:
        return write_rows(b, type);
    }
}

static int write_replication(struct bytes *b, unsigned type)
{
    static const uint8_t bytes[100] = { 1, 2, 3 };
    struct follow follow = { 5, 7,     1,     4096, "lease=10000", "avx2", "a.b:700",
                             2, { 9 }, { 8 }, 2,    bytes };
    struct follow_reply follow_reply = { 0,        "", 5,     7,      FOLLOW_GO_ON,      2,
                                         { 8, 9 }, 1,  bytes, "avx2", FOLLOW_BEGUN_SEEN, 1000 };
    struct file_request file = { "00000000000000000007/MANIFEST", 300, 400 };
    struct file_reply file_reply = { 0, "", 500, bytes, 40 };
    struct fetch fetch = { 5, 400, 300, 200, 77, 1000, 65536, "a row" };
    struct fetch_reply fetch_reply = { 0,    "",    5, 400,   500, 450, 78,
                                       true, false, 3, bytes, 40,  2,   { 1, 2 } };
    struct watch_reply watch_reply = { .groups = { 3, 2, { { 5, true, "a:1", "b:2" } } } };

    switch (type) {
    case FRAME_FOLLOW:
        return message_write_follow(b, 1, &follow);
    case FRAME_FOLLOW_REPLY:
        return message_write_follow_reply(b, 1, &follow_reply);
    case FRAME_FILE:
        return message_write_file(b, 1, &file);
    case FRAME_FILE_REPLY:
        return message_write_file_reply(b, 1, &file_reply);
    case FRAME_FETCH:
        return message_write_fetch(b, 1, &fetch);
    case FRAME_FETCH_REPLY:
        return message_write_fetch_reply(b, 1, &fetch_reply);
    case FRAME_WATCH:
        return message_write_watch(b, 1, &(struct watch){ 5, 10000 });
    default:
        return message_write_watch_reply(b, 1, &watch_reply);
    }
}

/* One frame of type `type`, with all fields in use. */
static int write_any(struct bytes *b, unsigned type)
{
    struct hello_reply *hello_reply = messages_hello_reply();
    struct table_reply table_reply = { 0, "t", 3, messages_spec(), 1 };
    struct join_reply join_reply = { -1, "no", 1, 2, 3, 4, false, 5, 6, -7, 8, 9, 10, 11 };
    struct push_reply push_reply = { -1, "no", 1, 2, 3, 4, true, true };
    struct status_reply status_reply = {
        PS_EFENCED, "no", 9, { 1, { { 3, 2, 1, false } } }, { 1, { { 4, 3, 2, false } } }, 7
    };
    int status;

    hello_reply->n_nodes = 3;
    hello_reply->node = 2;
    if (type == FRAME_HELLO_REPLY)
        status = message_write_hello_reply(b, 1, hello_reply);
    else if (type == FRAME_JOIN_REPLY)
        status = message_write_join_reply(b, 1, &join_reply);
    else if (type == FRAME_TABLE_REPLY)
        status = message_write_table_reply(b, 1, &table_reply);
    else if (type == FRAME_PUSH_REPLY)
        status = message_write_push_reply(b, 1, &push_reply);
    else if (type == FRAME_ADMIN_REPLY)
        status = message_write_admin_reply(b, 1, &status_reply, "{}", 2);
    else if (type == FRAME_BEAT_REPLY || type == FRAME_LEAVE_REPLY)
        status = message_write_status_reply(b, (enum frame_type)type, 1, &status_reply);
    else if (type < FRAME_FOLLOW)
        status = write_request(b, type);
    else
        status = write_replication(b, type);
    free(hello_reply);
    return status;
}

static void assert_status_known(int status)
{
    assert_true(status == 0 || status == PS_EPROTO || status == PS_ECOUNT ||
                status == PS_ECODEC);
}

static void no_corrupted_head_does_harm(void **state)
{
    (void)state;
    for (unsigned type = FRAME_HELLO; type < FRAME_TYPE_END; type++) {
        struct bytes b = { 0 };
        struct messages_frame f;
        uint8_t *head;

        assert_int_equal(write_any(&b, type), 0);
        f = messages_open(&b);
        head = malloc(f.header.head_bytes);
        assert_int_equal(read_any(&f.header, f.head, f.body, f.body_bytes), 0);
        for (size_t i = 0; i < f.header.head_bytes; i++)
            for (unsigned byte = 0; byte < 256; byte++) {
                memcpy(head, f.head, f.header.head_bytes);
                head[i] = (uint8_t)byte;
                assert_status_known(read_any(&f.header, head, f.body, f.body_bytes));
            }
        for (uint16_t length = f.header.head_bytes; length-- > 0;) {
            uint8_t *rest = malloc(length + 1u);
            struct frame_header h = f.header;

            memcpy(rest + 1, f.head, length);
            h.head_bytes = length;
            assert_status_known(read_any(&h, rest + 1, f.body, f.body_bytes));
            free(rest);
        }
        free(head);
        messages_close(&f, &b);
    }
}

static void no_random_head_does_harm(void **state)
{
    uint64_t seed = 99;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint64_t round = 0; round < 30000; round++) {
        struct frame_header h = { .type = (enum frame_type)(1 + round % (FRAME_TYPE_END - 1)) };
        size_t n = hash_mix2(seed, round) % 200;
        uint8_t *bytes = malloc(n + 1);

        /* Mostly tags that exist and short lengths, or nothing would be reached. */
        for (size_t i = 0; i < n; i++)
            bytes[i + 1] = (uint8_t)(hash_mix2(round, i) & (i % 2 ? 0x7f : 0x3a));
        h.head_bytes = (uint16_t)n;
        assert_status_known(read_any(&h, bytes + 1, bytes + 1, n));
        free(bytes);
    }
}

/* A push whose head is `head` again and again, n times. */
static int read_repeated(const uint8_t *head, size_t n_bytes, size_t n)
{
    struct frame_header h = { .type = FRAME_PUSH, .head_bytes = (uint16_t)(n * n_bytes) };
    uint8_t *bytes = malloc(n * n_bytes);
    int status;

    for (size_t i = 0; i < n; i++)
        memcpy(bytes + i * n_bytes, head, n_bytes);
    status = read_any(&h, bytes, bytes, 0);
    free(bytes);
    return status;
}

/* Sections, fields that nobody knows, and fields of a section: what it takes to unpack them is the same. */
static void a_head_of_too_many_fields_is_refused_before_it_is_unpacked(void **state)
{
    const uint8_t section[] = { 5 << 3 | 2, 0 }, unknown[] = { 15 << 3, 1 },
                  full[] = { 5 << 3 | 2, 4, 1 << 3, 1, 1 << 3, 1 };

    (void)state;
    assert_int_equal(read_repeated(section, 2, MESSAGE_HEAD_FIELDS_MAX), PS_ECOUNT);
    assert_int_equal(read_repeated(section, 2, MESSAGE_HEAD_FIELDS_MAX + 1), PS_EPROTO);
    assert_int_equal(read_repeated(section, 2, 32000), PS_EPROTO);
    assert_int_equal(read_repeated(unknown, 2, MESSAGE_HEAD_FIELDS_MAX), 0);
    assert_int_equal(read_repeated(unknown, 2, 32000), PS_EPROTO);
    assert_int_equal(read_repeated(full, 6, MESSAGE_HEAD_FIELDS_MAX / 3), PS_ECOUNT);
    assert_int_equal(read_repeated(full, 6, MESSAGE_HEAD_FIELDS_MAX / 3 + 1), PS_EPROTO);
}

/* The `from` in the frame's head is `to`, of as many bytes; then it is read. */
static int read_replaced(struct bytes *b, const char *from, const char *to)
{
    struct messages_frame f = messages_open(b);
    uint8_t *head = malloc(f.header.head_bytes), *at;
    int status;

    memcpy(head, f.head, f.header.head_bytes);
    at = memmem(head, f.header.head_bytes, from, strlen(from));
    assert_non_null(at);
    memcpy(at, to, strlen(from));
    status = read_any(&f.header, head, f.body, f.body_bytes);
    free(head);
    messages_close(&f, b);
    return status;
}

static int read_job(const char name[static 4])
{
    struct join join = { "job1", 1, 2, 3, TABLE_SPEC_MODE_BSP, 0, 5, 6, "w", true, 0, NULL };
    struct bytes b = { 0 };

    assert_int_equal(message_write_join(&b, 1, &join), 0);
    return read_replaced(&b, "job1", name);
}

static int read_table(const char name[static 4])
{
    struct table_request table = { messages_spec(), true };
    struct bytes b = { 0 };

    snprintf(table.spec.name, sizeof table.spec.name, "job1");
    assert_int_equal(message_write_table(&b, 1, &table), 0);
    return read_replaced(&b, "job1", name);
}

static void a_name_is_utf_8_without_control_characters_and_whole(void **state)
{
    static const char *const good[] = { "job2",
                                        "a b/",
                                        "\xc3\xa4\xc3\xb6",
                                        "\xe2\x82\xac.",
                                        "\xf0\x9f\x98\x80",
                                        "\xf4\x8f\xbf\xbf",
                                        "\xed\x9f\xbf.",
                                        "\xc2\xa0.." };
    static const char bad[][5] = { "nu\0x",
                                   "\0...",
                                   "job\0",
                                   "a\nb.",
                                   "a\x7f..",
                                   "\x1b[m.",
                                   "\xc2\x9b..",
                                   "\xff...",
                                   "\x80...",
                                   "\xc0\x80..",
                                   "\xc1\xbf..",
                                   "abc\xc3",
                                   "\xc3(..",
                                   "\xe0\x80\x80.",
                                   "\xed\xa0\x80.",
                                   "\xf0\x80\x80\x80",
                                   "\xf4\x90\x80\x80",
                                   "\xf5\x80\x80\x80",
                                   "\xe2\x82.." };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        if (read_job(good[i]))
            fail_msg("name %zu is refused", i);
        assert_int_equal(read_table(good[i]), 0);
    }
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        if (read_job(bad[i]) != PS_EPROTO)
            fail_msg("name %zu is taken", i);
        assert_int_equal(read_table(bad[i]), PS_EPROTO);
    }
}

static void a_secret_may_have_any_bytes_but_is_read_whole(void **state)
{
    struct hello hello = { 1, 2, "worker", "secret", 3, UINT64_MAX, "w", 3 };
    struct bytes b = { 0 };

    (void)state;
    assert_int_equal(message_write_hello(&b, 1, &hello), 0);
    assert_int_equal(read_replaced(&b, "secret", "\xff\t\x80ret"), 0);
    assert_int_equal(message_write_hello(&b, 1, &hello), 0);
    assert_int_equal(read_replaced(&b, "secret", "secre\0"), PS_EPROTO);
}

static void a_text_is_made_fit_to_be_printed(void **state)
{
    static const struct {
        const char *sent, *got;
    } cases[] = { { "no way", "no way" },    { "n\n way", "n? way" },
                  { "n\xff way", "n? way" }, { "\xc3\xa4 way", "\xc3\xa4 way" },
                  { "no wa\xc3", "no wa?" }, { "\xc2\x9b way", "?? way" } };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct status_reply sent = { -1, "", 9, { 0 }, { 0 }, 0 }, got;
        struct messages_frame f;
        struct bytes b = { 0 };

        snprintf(sent.text, sizeof sent.text, "%s", cases[i].sent);
        assert_int_equal(message_write_status_reply(&b, FRAME_BEAT_REPLY, 1, &sent), 0);
        f = messages_open(&b);
        assert_int_equal(message_read_status_reply(&f.header, f.head, &got), 0);
        assert_string_equal(got.text, cases[i].got);
        messages_close(&f, &b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_corrupted_head_does_harm),
        cmocka_unit_test(no_random_head_does_harm),
        cmocka_unit_test(a_head_of_too_many_fields_is_refused_before_it_is_unpacked),
        cmocka_unit_test(a_name_is_utf_8_without_control_characters_and_whole),
        cmocka_unit_test(a_secret_may_have_any_bytes_but_is_read_whole),
        cmocka_unit_test(a_text_is_made_fit_to_be_printed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
