#include <errno.h>

#include <zstd.h>

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

/* In slices of so many bytes; between them another body is decompressed as a whole. */
static int unpack_in_slices(const uint8_t *src, size_t n_bytes, size_t want, size_t slice_bytes,
                            uint8_t *dst)
{
    struct message_zstd_slices s;
    bool done = false;
    int status = message_zstd_begin(&messages_zstd, src, n_bytes, dst, want, &s);

    while (!status && !done) {
        size_t read = s.n_read, had = s.n_done;

        status = message_zstd_more(&messages_zstd, &s, slice_bytes, &done);
        assert_true(s.n_done - had <= slice_bytes + (128u << 10));
        assert_true(s.n_read - read <= slice_bytes / 8 + (128u << 10) + 8);
        assert_true(status || done || s.n_read > read);
        (void)body_status(src, n_bytes, 1u << 22);
    }
    return status;
}

static void a_body_in_slices_is_what_it_is_as_a_whole(void **state)
{
    enum { N = 1 << 20 };
    static const unsigned values[] = { 1, 3, 200, 256 };
    uint8_t *packed = malloc(ZSTD_compressBound(N)), *ret = malloc(N);

    (void)state;
    for (size_t i = 0; i < COUNT_OF(values); i++) {
        uint8_t *bytes = messages_bytes(N, values[i]), *copy;
        size_t n = ZSTD_compress(packed, ZSTD_compressBound(N), bytes, N, i % 2 ? 19 : 1), want;

        copy = malloc(n); /* its exact size, for the sanitizer */
        memcpy(copy, packed, n);
        assert_int_equal(message_zstd_size(copy, n, N, &want), 0);
        assert_int_equal(want, N);
        memset(ret, 0, N);
        assert_int_equal(unpack_in_slices(copy, n, N, 1u << 18, ret), 0);
        assert_memory_equal(ret, bytes, N);
        for (size_t missing = 1; missing < n; missing += 1 + n / 4)
            assert_int_equal(unpack_in_slices(copy, n - missing, N, 1u << 18, ret),
                             PS_ECORRUPT);
        free(copy);
        free(bytes);
    }
    free(packed);
    free(ret);
}

/* Of three bytes each, which hold nothing: they count as work all the same. Behind them one block of a byte. */
static void empty_blocks_and_bytes_behind_the_end_are_no_way_around_a_slice(void **state)
{
    enum { N = 100000, HEAD = 10 };
    static const uint8_t header[HEAD] = {
        0x28, 0xb5, 0x2f, 0xfd, 0x80, 0, 1
    };                                                      /* it holds 1 byte */
    static const uint8_t last[4] = { 1 << 3 | 1, 0, 0, 9 }; /* that one */
    uint8_t *src = calloc(1, HEAD + 3 * N + sizeof last + 1), ret[1];

    (void)state;
    memcpy(src, header, HEAD);
    memcpy(src + HEAD + 3 * N, last, sizeof last);
    assert_int_equal(unpack_in_slices(src, 10 + 3 * N + 4, 1, 1u << 10, ret), 0);
    assert_int_equal(ret[0], 9);
    assert_int_equal(unpack_in_slices(src, 10 + 3 * N + 5, 1, 1u << 10, ret), PS_ECORRUPT);
    free(src);
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
        cmocka_unit_test(a_body_in_slices_is_what_it_is_as_a_whole),
        cmocka_unit_test(empty_blocks_and_bytes_behind_the_end_are_no_way_around_a_slice),
#ifdef PS_FAULTS
        cmocka_unit_test(a_body_that_finds_no_memory_is_refused),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
