#include <errno.h>
#include <math.h>

#include "common/memory.h"
#include "common/status.h"
#include "proto/message_head.h"
#include "tests/unit/proto/messages.h"

static void assert_sections_equal(const struct section *got, const struct section *want,
                                  uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        assert_true(got[i].table_id == want[i].table_id && got[i].op == want[i].op);
        assert_true(got[i].codec == want[i].codec && got[i].k == want[i].k);
        assert_true(got[i].n_keys == want[i].n_keys && got[i].key_bytes == want[i].key_bytes);
        assert_true(got[i].value_bytes == want[i].value_bytes);
        assert_true(got[i].present == want[i].present && got[i].steps == want[i].steps);
        assert_true(got[i].scan_bytes == want[i].scan_bytes && got[i].cursor == want[i].cursor);
        assert_true(got[i].delta.asked == want[i].delta.asked &&
                    got[i].delta.mode == want[i].delta.mode &&
                    got[i].delta.tolerance == want[i].delta.tolerance &&
                    got[i].delta.base == want[i].delta.base &&
                    got[i].delta.rows_max == want[i].delta.rows_max &&
                    got[i].keys_at == want[i].keys_at);
        if (want[i].key_bytes)
            assert_memory_equal(got[i].keys, want[i].keys, want[i].key_bytes);
        if (want[i].value_bytes)
            assert_memory_equal(got[i].values, want[i].values, want[i].value_bytes);
    }
}

/* Every other section names its keys; returns how many bytes these had. */
static size_t name_keys(struct section *sections, uint32_t n)
{
    size_t n_bytes = 0;

    for (uint32_t i = 0; i < n; i += 2) {
        if (!sections[i].n_keys)
            continue;
        n_bytes += sections[i].key_bytes;
        sections[i].keys_at = i + 1;
        sections[i].keys = NULL;
        sections[i].key_bytes = 0;
    }
    return n_bytes;
}

static void pull_and_push_come_back_with_every_number_of_sections(void **state)
{
    static struct push push, got_push;
    static struct pull pull, got_pull;
    uint8_t *bytes = messages_bytes(1u << 20, 4);
    size_t n_bytes;

    (void)state;
    for (uint32_t n = 0; n <= SECTIONS_MAX; n += n < 8 ? 1 : 62) {
        struct bytes b = { 0 };
        struct messages_frame f;

        push = (struct push){ .seq = UINT64_MAX,
                              .clock = UINT64_MAX - 1,
                              .n_samples = UINT32_MAX,
                              .tick = true,
                              .keys_of = n % 3 ? UINT64_MAX : 0,
                              .n_sections = n };
        messages_sections(push.sections, n, bytes, &n_bytes, true);
        if (push.keys_of)
            n_bytes -= name_keys(push.sections, n);
        assert_int_equal(message_write_push(&b, 6, &push, n % 2 ? &messages_zstd : NULL), 0);
        f = messages_open(&b);
        assert_int_equal(f.header.flags, n % 2 && n_bytes >= 512 ? FRAME_ZSTD : 0);
        assert_int_equal(f.body_bytes, n_bytes);
        assert_int_equal(message_read_push(&f.header, f.head, f.body, f.body_bytes, &got_push),
                         0);
        assert_true(got_push.seq == UINT64_MAX && got_push.clock == UINT64_MAX - 1);
        assert_true(got_push.n_samples == UINT32_MAX && got_push.tick &&
                    got_push.n_sections == n && got_push.keys_of == push.keys_of);
        assert_sections_equal(got_push.sections, push.sections, n);
        messages_close(&f, &b);

        pull = (struct pull){ .clock = UINT64_MAX,
                              .unfinished = UINT64_MAX - n,
                              .deadline_ms = UINT32_MAX,
                              .keep = n % 2,
                              .n_sections = n };
        messages_sections(pull.sections, n, bytes, &n_bytes, false);
        assert_int_equal(message_write_pull(&b, 7, &pull, n % 2 ? &messages_zstd : NULL), 0);
        f = messages_open(&b);
        assert_int_equal(message_read_pull(&f.header, f.head, f.body, f.body_bytes, &got_pull),
                         0);
        assert_true(got_pull.clock == UINT64_MAX && got_pull.deadline_ms == UINT32_MAX);
        assert_true(got_pull.unfinished == UINT64_MAX - n && got_pull.keep == n % 2);
        assert_int_equal(got_pull.n_sections, n);
        assert_sections_equal(got_pull.sections, pull.sections, n);
        messages_close(&f, &b);
    }
    free(bytes);
}

static void a_pull_with_more_steps_under_way_than_there_are_is_refused(void **state)
{
    static struct pull pull = { .clock = 3, .unfinished = 4 }, got;
    struct bytes b = { 0 };
    struct messages_frame f;

    (void)state;
    assert_int_equal(message_write_pull(&b, 7, &pull, NULL), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_pull(&f.header, f.head, f.body, f.body_bytes, &got),
                     PS_ECOUNT);
    messages_close(&f, &b);
}

static void push_reply_comes_back(void **state)
{
    struct push_reply m = { PS_ENAN, "NaN in key 7", UINT64_MAX, 3, 4, 5, true, true }, got;
    struct bytes b = { 0 };
    struct messages_frame f;

    (void)state;
    assert_int_equal(message_write_push_reply(&b, 6, &m), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_push_reply(&f.header, f.head, &got), 0);
    assert_true(got.status == PS_ENAN && got.seq == UINT64_MAX && got.min_clock == 3);
    assert_true(got.version == 4 && got.rows_refused == 5 && got.repeated && got.late);
    assert_string_equal(got.text, m.text);
    messages_close(&f, &b);
}

static void pull_reply_is_filled_in_place(void **state)
{
    static struct pull_reply m, got;
    static const size_t sizes[] = { 0, 1, 700, 0, 90000, 3 };

    (void)state;
    for (unsigned compress = 0; compress < 2; compress++) {
        struct bytes b = { 0 };
        struct frame_crc crc = { 0 };
        struct messages_frame f;
        uint8_t *values, *at;

        m = (struct pull_reply){ .min_clock = UINT64_MAX,
                                 .version = UINT64_MAX - 1,
                                 .kept = compress,
                                 .n_sections = COUNT_OF(sizes) };
        for (size_t i = 0; i < COUNT_OF(sizes); i++)
            m.sections[i].value_bytes = sizes[i];
        assert_int_equal(message_begin_pull_reply(&b, 99, &m, &values), 0);
        at = values;
        for (size_t i = 0; i < COUNT_OF(sizes); i++)
            for (size_t k = 0; k < sizes[i]; k++) {
                *at++ = (uint8_t)(i + k / 7);
                if (k % 1000 == 999 && !compress)
                    message_sum_pull_reply(&b, at, &crc);
            }
        if (compress)
            message_pack_pull_reply(&b, &messages_zstd);
        else
            message_end_pull_reply(&b, &crc);
        f = messages_open(&b);
        assert_int_equal(f.header.type, FRAME_PULL_REPLY);
        assert_int_equal(f.header.flags, compress ? FRAME_ZSTD : 0);
        assert_true(f.header.request_id == 99);
        assert_int_equal(message_read_pull_reply(&f.header, f.head, f.body, f.body_bytes, &got),
                         0);
        assert_true(got.min_clock == UINT64_MAX && got.version == UINT64_MAX - 1 &&
                    got.kept == compress);
        assert_int_equal(got.n_sections, COUNT_OF(sizes));
        for (size_t i = 0; i < COUNT_OF(sizes); i++) {
            assert_int_equal(got.sections[i].value_bytes, sizes[i]);
            for (size_t k = 0; k < sizes[i]; k++)
                assert_int_equal(got.sections[i].values[k], (uint8_t)(i + k / 7));
        }
        messages_close(&f, &b);
    }
}

static void a_refused_pull_has_no_sections(void **state)
{
    static struct pull_reply m, got;
    struct bytes b = { 0 };
    struct messages_frame f;
    uint8_t *values;

    (void)state;
    m = (struct pull_reply){ .status = PS_EDEADLINE, .text = "parked for 30 s" };
    assert_int_equal(message_begin_pull_reply(&b, 1, &m, &values), 0);
    message_pack_pull_reply(&b, &messages_zstd);
    f = messages_open(&b);
    assert_int_equal(message_read_pull_reply(&f.header, f.head, f.body, f.body_bytes, &got), 0);
    assert_true(got.status == PS_EDEADLINE && got.n_sections == 0);
    assert_string_equal(got.text, m.text);
    messages_close(&f, &b);
}

/* One section of 3 keys in 4 bytes and 3 rows of 8 bytes, with one thing wrong. */
static int push_status(uint32_t n_keys, uint32_t key_bytes, uint32_t value_bytes,
                       enum codec_id codec, uint32_t k, size_t body_bytes)
{
    static struct push push, got;
    uint8_t *bytes = messages_bytes(64, 100), *body = malloc(body_bytes + 1);
    struct bytes b = { 0 };
    struct messages_frame f;
    int status;

    push = (struct push){ .n_sections = 1 };
    push.sections[0] = (struct section){ .codec = codec,
                                         .k = k,
                                         .n_keys = n_keys,
                                         .keys = bytes,
                                         .key_bytes = key_bytes,
                                         .values = bytes,
                                         .value_bytes = value_bytes };
    assert_int_equal(message_write_push(&b, 6, &push, NULL), 0);
    f = messages_open(&b);
    status = message_read_push(&f.header, f.head, body, body_bytes, &got);
    messages_close(&f, &b);
    free(body);
    free(bytes);
    return status;
}

/* One section of so many keys, in so many bytes, that names those of a pull. */
static int named_status(uint64_t keys_of, uint32_t n_keys, uint32_t key_bytes)
{
    static struct push push, got;
    uint8_t *bytes = messages_bytes(64, 100);
    struct bytes b = { 0 };
    struct messages_frame f;
    int status;

    push = (struct push){ .keys_of = keys_of, .n_sections = 1 };
    push.sections[0] = (struct section){ .n_keys = n_keys,
                                         .keys_at = 1,
                                         .keys = bytes,
                                         .key_bytes = key_bytes,
                                         .values = bytes,
                                         .value_bytes = 8 * n_keys };
    assert_int_equal(message_write_push(&b, 6, &push, NULL), 0);
    f = messages_open(&b);
    status = message_read_push(&f.header, f.head, f.body, f.body_bytes, &got);
    messages_close(&f, &b);
    free(bytes);
    return status;
}

static void a_section_has_its_keys_or_names_those_of_a_pull(void **state)
{
    static struct pull pull, got;
    struct messages_frame f;
    struct bytes b = { 0 };

    (void)state;
    assert_int_equal(named_status(7, 3, 0), 0);
    assert_int_equal(named_status(0, 3, 0), PS_ECOUNT);
    assert_int_equal(named_status(7, 3, 3), PS_ECOUNT);
    assert_int_equal(named_status(7, 0, 0), PS_ECOUNT);
    pull = (struct pull){ .n_sections = 1 };
    pull.sections[0] = (struct section){ .n_keys = 1, .keys_at = 1 };
    assert_int_equal(message_write_pull(&b, 6, &pull, NULL), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_pull(&f.header, f.head, f.body, f.body_bytes, &got),
                     PS_EPROTO);
    messages_close(&f, &b);
}

static void counts_that_lie_are_refused(void **state)
{
    (void)state;
    assert_int_equal(push_status(3, 4, 24, CODEC_FP32, 0, 28), 0);
    assert_int_equal(push_status(3, 4, 24, CODEC_FP32, 0, 27), PS_ECOUNT);
    assert_int_equal(push_status(3, 4, 24, CODEC_FP32, 0, 29), PS_ECOUNT);
    assert_int_equal(push_status(3, 4, 24, CODEC_FP32, 0, 0), PS_ECOUNT);
    /* A key in no byte. */
    assert_int_equal(push_status(5, 4, 25, CODEC_FP32, 0, 29), PS_ECOUNT);
    assert_int_equal(push_status(3, 31, 24, CODEC_FP32, 0, 55), PS_ECOUNT);
    /* Rows of 8 1/3 bytes. */
    assert_int_equal(push_status(3, 4, 25, CODEC_FP32, 0, 29), PS_ECOUNT);
    assert_int_equal(push_status(3, 4, 0, CODEC_FP32, 0, 4), PS_ECOUNT);
    assert_int_equal(push_status(0, 0, 24, CODEC_FP32, 0, 24), PS_ECOUNT);
    assert_int_equal(push_status(0, 0, 0, CODEC_FP32, 0, 0), 0);
    assert_int_equal(push_status(UINT32_MAX, 4, 24, CODEC_FP32, 0, 28), PS_ECOUNT);
    assert_int_equal(push_status(3, 4, 24, CODEC_ID_END, 0, 28), PS_ECODEC);
    assert_int_equal(push_status(3, 4, 24, (enum codec_id)UINT32_MAX, 0, 28), PS_ECODEC);
    assert_int_equal(push_status(3, 4, 36, CODEC_TOPK, 2, 40), 0);
    assert_int_equal(push_status(3, 4, 36, CODEC_TOPK, 3, 40), PS_ECOUNT);
    assert_int_equal(push_status(3, 4, 36, CODEC_TOPK, 0, 40), PS_ECODEC);
    assert_int_equal(push_status(3, 4, 36, CODEC_TOPK, TABLE_SPEC_DIM_MAX + 1, 40), PS_ECODEC);
}

static void a_pull_with_values_is_refused(void **state)
{
    static struct pull pull, got;
    uint8_t bytes[8] = { 1 };
    struct bytes b = { 0 };
    struct messages_frame f;

    (void)state;
    pull = (struct pull){ .n_sections = 1 };
    pull.sections[0] = (struct section){
        .n_keys = 1, .keys = bytes, .key_bytes = 1, .values = bytes, .value_bytes = 4
    };
    assert_int_equal(message_write_pull(&b, 6, &pull, NULL), 0);
    f = messages_open(&b);
    assert_int_equal(message_read_pull(&f.header, f.head, f.body, f.body_bytes, &got),
                     PS_ECOUNT);
    messages_close(&f, &b);
}

/* One section with what the other kind of message has. */
static int odd_status(const struct section *section, bool is_push)
{
    static struct push push, got_push;
    static struct pull pull, got_pull;
    struct bytes b = { 0 };
    struct messages_frame f;
    int status;

    push = (struct push){ .n_sections = 1 };
    pull = (struct pull){ .n_sections = 1 };
    push.sections[0] = pull.sections[0] = *section;
    status = is_push ? message_write_push(&b, 6, &push, NULL)
                     : message_write_pull(&b, 6, &pull, NULL);
    assert_int_equal(status, 0);
    f = messages_open(&b);
    status = is_push ? message_read_push(&f.header, f.head, f.body, f.body_bytes, &got_push)
                     : message_read_pull(&f.header, f.head, f.body, f.body_bytes, &got_pull);
    messages_close(&f, &b);
    return status;
}

static void differences_are_asked_for_alone_and_within_a_number(void **state)
{
    const struct section_delta fine = { .asked = true,
                                        .mode = SECTION_DELTA_FULL,
                                        .tolerance = SECTION_ASSIGN_MAX };
    struct section s = { .delta = fine };

    (void)state;
    assert_int_equal(odd_status(&s, false), 0);
    assert_int_equal(odd_status(&s, true), PS_EPROTO);
    s.present = true;
    assert_int_equal(odd_status(&s, false), PS_EPROTO);
    s = (struct section){ .state = true, .delta = fine };
    assert_int_equal(odd_status(&s, false), PS_EPROTO);
    s = (struct section){ .scan_bytes = 1, .delta = fine };
    assert_int_equal(odd_status(&s, false), PS_EPROTO);
    for (uint32_t mode = 0; mode < 6; mode++) {
        s = (struct section){ .delta = fine };
        s.delta.mode = (enum section_delta_mode)mode;
        assert_int_equal(odd_status(&s, false), mode >= 1 && mode <= 4 ? 0 : PS_EPROTO);
    }
    for (uint32_t i = 0; i < 4; i++) {
        static const float odd[] = { -1, NAN, INFINITY, 2 * SECTION_ASSIGN_MAX };

        s = (struct section){ .delta = fine };
        s.delta.tolerance = odd[i];
        assert_int_equal(odd_status(&s, false), PS_EPROTO);
    }
}

static void fields_that_do_not_belong_there_are_refused(void **state)
{
    const uint8_t bytes[8] = { 1 };
    struct section s = { .n_keys = 1, .keys = bytes, .key_bytes = 1 };

    (void)state;
    s.scan_bytes = 1;
    assert_int_equal(odd_status(&s, false), PS_ECOUNT);
    s.n_keys = 0, s.key_bytes = 0;
    assert_int_equal(odd_status(&s, false), 0);
    assert_int_equal(odd_status(&s, true), PS_EPROTO);
    assert_int_equal(odd_status(&(struct section){ .present = true }, true), PS_EPROTO);
    assert_int_equal(
        odd_status(&(struct section){ .op = SECTION_ASSIGN_STATE, .codec = CODEC_BF16 }, true),
        PS_ECODEC);
    assert_int_equal(
        odd_status(&(struct section){ .op = SECTION_GRADIENT_AT, .codec = CODEC_TOPK, .k = 1 },
                   true),
        PS_ECODEC);
    assert_int_equal(odd_status(&(struct section){ .op = SECTION_ASSIGN_STATE,
                                                   .steps = SECTION_STEPS_MAX + 1 },
                                true),
                     PS_EPROTO);
    assert_int_equal(
        odd_status(&(struct section){ .op = SECTION_ASSIGN_STATE, .steps = SECTION_STEPS_MAX },
                   true),
        0);
}

/* n_sections empty sections: two bytes each. */
static void more_sections_than_the_limit_are_refused(void **state)
{
    static struct push push;
    static struct pull_reply reply;
    struct frame_header h = { .type = FRAME_PUSH };
    uint8_t *head = calloc(1, 65535);

    (void)state;
    for (size_t i = 0; i + 1 < 65534; i += 2)
        head[i] = 0x2a; /* Push.sections, 0 bytes */
    h.head_bytes = 2 * SECTIONS_MAX;
    assert_int_equal(message_read_push(&h, head, NULL, 0, &push), 0);
    assert_int_equal(push.n_sections, SECTIONS_MAX);
    h.head_bytes += 2;
    assert_int_equal(message_read_push(&h, head, NULL, 0, &push), PS_ECOUNT);
    h.head_bytes = 2 * MESSAGE_HEAD_FIELDS_MAX;
    assert_int_equal(message_read_push(&h, head, NULL, 0, &push), PS_ECOUNT);
    h.head_bytes = 65534; /* more fields than are unpacked */
    assert_int_equal(message_read_push(&h, head, NULL, 0, &push), PS_EPROTO);
    h = (struct frame_header){ .type = FRAME_PULL_REPLY, .head_bytes = 3 + 300 };
    memset(head, 0, 400);
    head[0] = 0x2a; /* PullReply.value_bytes, packed: 300 times 0 */
    head[1] = 0xac;
    head[2] = 0x02;
    assert_int_equal(message_read_pull_reply(&h, head, NULL, 0, &reply), PS_ECOUNT);
    free(head);
}

#ifdef PS_FAULTS
static void every_failing_allocation_of_a_write_leaves_the_buffer_as_it_was(void **state)
{
    static struct push push;
    uint8_t *bytes = messages_bytes(100000, 3);
    struct bytes b = { 0 };
    long k;
    int status = -ENOMEM;

    (void)state;
    push = (struct push){ .n_sections = 1 };
    push.sections[0] = (struct section){
        .n_keys = 1000, .keys = bytes, .key_bytes = 1000, .values = bytes, .value_bytes = 90000
    };
    for (k = 0; status; k++) {
        message_zstd_deinit(&messages_zstd);
        memory_fail_after(k);
        status = message_write_push(&b, 1, &push, &messages_zstd);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
        assert_true(status == 0 || bytes_len(&b) == 0);
    }
    assert_true(k >= 2);
    bytes_deinit(&b);
    /* Without the memory to compress, the push goes as it is. */
    message_zstd_deinit(&messages_zstd);
    memory_fail_after(1);
    assert_int_equal(message_write_push(&b, 1, &push, &messages_zstd), 0);
    memory_fail_after(-1);
    assert_int_equal(bytes_front(&b)[5], 0);
    bytes_deinit(&b);
    free(bytes);
}

static void every_failing_allocation_of_a_read_is_reported_as_such(void **state)
{
    static struct push push;
    struct frame_header h = { .type = FRAME_PUSH, .head_bytes = 4000 };
    uint8_t *head = calloc(1, 4000);
    int status = -ENOMEM;
    long k;

    (void)state;
    for (size_t i = 0; i < 4000; i += 2)
        head[i] = 0x2a; /* 2000 sections: more than the stack has room for */
    for (k = 0; status == -ENOMEM; k++) {
        memory_fail_after(k);
        status = message_read_push(&h, head, NULL, 0, &push);
        memory_fail_after(-1);
    }
    assert_int_equal(status, PS_ECOUNT);
    assert_true(k > 10);
    free(head);
}

static void every_failing_allocation_of_a_pull_reply_leaves_nothing(void **state)
{
    static struct pull_reply m;
    struct bytes b = { 0 };
    uint8_t *values;

    (void)state;
    m = (struct pull_reply){ .n_sections = 1 };
    m.sections[0].value_bytes = 100000;
    memory_fail_after(0);
    assert_int_equal(message_begin_pull_reply(&b, 3, &m, &values), -ENOMEM);
    memory_fail_after(-1);
    assert_null(b.bytes);
    assert_int_equal(message_begin_pull_reply(&b, 3, &m, &values), 0);
    memset(values, 0, 100000);
    message_zstd_deinit(&messages_zstd);
    memory_fail_after(0);
    message_pack_pull_reply(&b, &messages_zstd);
    memory_fail_after(-1);
    assert_true(bytes_len(&b) > 100000);
    bytes_deinit(&b);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pull_and_push_come_back_with_every_number_of_sections),
        cmocka_unit_test(a_pull_with_more_steps_under_way_than_there_are_is_refused),
        cmocka_unit_test(push_reply_comes_back),
        cmocka_unit_test(pull_reply_is_filled_in_place),
        cmocka_unit_test(a_refused_pull_has_no_sections),
        cmocka_unit_test(counts_that_lie_are_refused),
        cmocka_unit_test(a_section_has_its_keys_or_names_those_of_a_pull),
        cmocka_unit_test(a_pull_with_values_is_refused),
        cmocka_unit_test(differences_are_asked_for_alone_and_within_a_number),
        cmocka_unit_test(fields_that_do_not_belong_there_are_refused),
        cmocka_unit_test(more_sections_than_the_limit_are_refused),
#ifdef PS_FAULTS
        cmocka_unit_test(every_failing_allocation_of_a_write_leaves_the_buffer_as_it_was),
        cmocka_unit_test(every_failing_allocation_of_a_read_is_reported_as_such),
        cmocka_unit_test(every_failing_allocation_of_a_pull_reply_leaves_nothing),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
