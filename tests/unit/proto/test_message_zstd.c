#include <errno.h>

#include "common/memory.h"
#include "common/status.h"
#include "tests/unit/proto/messages.h"

static void a_body_is_compressed_only_where_it_pays(void **state)
{
    static struct push push;
    static const struct {
        unsigned n_values;
        size_t n_bytes;
        uint8_t flags;
    } cases[] = {
        { 4, 400, 0 }, { 4, 40000, FRAME_ZSTD }, { 256, 40000, 0 }, { 250, 40000, 0 }
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        uint8_t *bytes = messages_bytes(cases[i].n_bytes, cases[i].n_values);
        struct bytes b = { 0 };
        struct messages_frame f;

        push = (struct push){ .n_sections = 1 };
        push.sections[0] = (struct section){ .n_keys = 100,
                                             .keys = bytes,
                                             .key_bytes = 100,
                                             .values = bytes,
                                             .value_bytes = cases[i].n_bytes - 100 };
        assert_int_equal(message_write_push(&b, 6, &push, &messages_zstd), 0);
        f = messages_open(&b);
        assert_int_equal(f.header.flags, cases[i].flags);
        assert_int_equal(f.body_bytes, cases[i].n_bytes);
        assert_memory_equal(f.body, bytes, 100);
        assert_memory_equal(f.body + 100, bytes, cases[i].n_bytes - 100);
        messages_close(&f, &b);
        free(bytes);
    }
}

static int body_status(const uint8_t *bytes, size_t n_bytes, uint32_t max_bytes)
{
    struct frame_header h = { .flags = FRAME_ZSTD, .body_bytes = (uint32_t)n_bytes };
    uint8_t *copy = malloc(n_bytes + 1); /* its exact size, for the sanitizer */
    struct bytes scratch = { 0 };
    const uint8_t *body;
    size_t body_bytes;
    int status;

    memcpy(copy + 1, bytes, n_bytes);
    status =
        message_body(&messages_zstd, &h, copy + 1, max_bytes, &scratch, &body, &body_bytes);
    assert_true(status != 0 || body_bytes <= max_bytes);
    bytes_deinit(&scratch);
    free(copy);
    return status;
}

static void bombs_and_broken_zstd_are_refused(void **state)
{
    static struct push push;
    uint8_t *zeros = calloc(1, 1u << 20), twice[2048];
    uint8_t skippable[16] = { 0x50, 0x2a, 0x4d, 0x18, 8 };
    struct frame_header h = { .body_bytes = 100 };
    struct bytes b = { 0 }, scratch = { 0 };
    const uint8_t *body, *z;
    size_t body_bytes;
    uint32_t n;

    (void)state;
    push = (struct push){ .n_sections = 1 };
    push.sections[0] = (struct section){ .n_keys = 1,
                                         .keys = zeros,
                                         .key_bytes = 1,
                                         .values = zeros,
                                         .value_bytes = (1u << 20) - 1 };
    assert_int_equal(message_write_push(&b, 6, &push, &messages_zstd), 0);
    assert_int_equal(frame_decode(bytes_front(&b), FRAME_MAX, &h), 0);
    z = bytes_front(&b) + FRAME_HEADER_BYTES + h.head_bytes;
    n = h.body_bytes;
    assert_true(n < 1000);
    assert_int_equal(body_status(z, n, 1u << 20), 0);
    assert_int_equal(body_status(z, n, (1u << 20) - 1), PS_ETOOBIG);
    for (uint32_t length = 0; length < n; length++)
        assert_int_equal(body_status(z, length, 1u << 20), PS_ECORRUPT);
    memcpy(twice, z, n);
    memcpy(twice + n, z, n);
    assert_int_equal(body_status(twice, 2 * n, 1u << 22), PS_ECORRUPT);
    assert_int_equal(body_status(skippable, 16, 1u << 20), PS_ECORRUPT);
    for (uint32_t i = 0; i < n; i++)
        for (unsigned bit = 0; bit < 8; bit++) {
            memcpy(twice, z, n);
            twice[i] ^= (uint8_t)(1u << bit);
            (void)body_status(twice, n, 1u << 20);
        }
    /* And a plain body beyond the limit. */
    h = (struct frame_header){ .body_bytes = 100 };
    assert_int_equal(message_body(&messages_zstd, &h, zeros, 99, &scratch, &body, &body_bytes),
                     PS_ETOOBIG);
    assert_int_equal(message_body(&messages_zstd, &h, zeros, 100, &scratch, &body, &body_bytes),
                     0);
    bytes_deinit(&b);
    free(zeros);
}

#ifdef PS_FAULTS
static void a_body_that_finds_no_memory_is_refused(void **state)
{
    static struct push push;
    uint8_t *bytes = messages_bytes(100000, 3);
    struct bytes b = { 0 }, scratch = { 0 };
    struct frame_header h;
    const uint8_t *body;
    size_t n;

    (void)state;
    push = (struct push){ .n_sections = 1 };
    push.sections[0] = (struct section){
        .n_keys = 1000, .keys = bytes, .key_bytes = 1000, .values = bytes, .value_bytes = 90000
    };
    assert_int_equal(message_write_push(&b, 1, &push, &messages_zstd), 0);
    assert_int_equal(frame_decode(bytes_front(&b), FRAME_MAX, &h), 0);
    memory_fail_after(0);
    assert_int_equal(message_body(&messages_zstd, &h,
                                  bytes_front(&b) + FRAME_HEADER_BYTES + h.head_bytes,
                                  FRAME_MAX, &scratch, &body, &n),
                     -ENOMEM);
    memory_fail_after(-1);
    bytes_deinit(&scratch);
    bytes_deinit(&b);
    free(bytes);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_body_is_compressed_only_where_it_pays),
        cmocka_unit_test(bombs_and_broken_zstd_are_refused),
#ifdef PS_FAULTS
        cmocka_unit_test(a_body_that_finds_no_memory_is_refused),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
