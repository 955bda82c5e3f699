#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/status.h"
#include "proto/frame.h"

#define MAX_BYTES 1024u

static const struct frame_header beat = {
    .type = FRAME_BEAT, .head_bytes = 2, .body_bytes = 3, .request_id = 0x1122334455667788
};
static const uint8_t beat_head[] = { 0x08, 0x2a }, beat_body[] = { 'a', 'b', 'c' };

static void encode_beat(uint8_t dst[static FRAME_HEADER_BYTES + 5])
{
    memcpy(dst + FRAME_HEADER_BYTES, beat_head, 2);
    memcpy(dst + FRAME_HEADER_BYTES + 2, beat_body, 3);
    frame_encode(dst, &beat);
}

static void a_header_comes_back_as_it_was(void **state)
{
    struct frame_header h;
    uint8_t bytes[FRAME_HEADER_BYTES + 5];

    (void)state;
    encode_beat(bytes);
    assert_int_equal(frame_decode(bytes, MAX_BYTES, &h), 0);
    assert_int_equal(h.type, FRAME_BEAT);
    assert_int_equal(h.flags, 0);
    assert_int_equal(h.head_bytes, 2);
    assert_int_equal(h.body_bytes, 3);
    assert_true(h.request_id == beat.request_id);
    assert_int_equal(frame_verify(bytes, &h), 0);
}

static void the_bytes_stand_where_the_header_says(void **state)
{
    static const uint8_t want[] = { 'P', 'S', 'D',  '1',  11,   0,    2,    0,    3,    0,
                                    0,   0,   0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11 };
    uint8_t bytes[FRAME_HEADER_BYTES + 5];

    (void)state;
    encode_beat(bytes);
    assert_memory_equal(bytes, want, sizeof want);
}

/* The example of proto/README.md: a beat at clock 300, request 7. */
static void the_frame_of_the_readme_is_what_we_write(void **state)
{
    static const uint8_t want[] = { 0x50, 0x53, 0x44, 0x31, 0x0b, 0x00, 0x03, 0x00, 0x00,
                                    0x00, 0x00, 0x00, 0x07, 0x00, 0x00, 0x00, 0x00, 0x00,
                                    0x00, 0x00, 0xa3, 0x13, 0xb3, 0x31, 0x08, 0xac, 0x02 };
    static const uint8_t head[] = { 0x08, 0xac, 0x02 };
    const struct frame_header h = { .type = FRAME_BEAT, .head_bytes = 3, .request_id = 7 };
    uint8_t got[FRAME_HEADER_BYTES + sizeof head];

    (void)state;
    memcpy(got + FRAME_HEADER_BYTES, head, sizeof head);
    frame_encode(got, &h);
    assert_memory_equal(got, want, sizeof want);
}

static void every_wrong_magic_is_refused(void **state)
{
    struct frame_header h = { .request_id = 5 };
    uint8_t bytes[FRAME_HEADER_BYTES + 5];

    (void)state;
    for (size_t i = 0; i < 4; i++)
        for (unsigned bit = 0; bit < 8; bit++) {
            encode_beat(bytes);
            bytes[i] ^= (uint8_t)(1u << bit);
            assert_int_equal(frame_decode(bytes, MAX_BYTES, &h), PS_EPROTO);
            assert_false(frame_magic_fits(bytes, i + 1));
            assert_true(frame_magic_fits(bytes, i));
        }
    assert_true(h.request_id == 5);
}

static void every_unknown_type_is_refused(void **state)
{
    struct frame_header h;
    uint8_t bytes[FRAME_HEADER_BYTES + 5];

    (void)state;
    encode_beat(bytes);
    for (unsigned type = 0; type < 256; type++) {
        bytes[4] = (uint8_t)type;
        assert_int_equal(frame_decode(bytes, MAX_BYTES, &h),
                         type >= 1 && type < FRAME_TYPE_END ? 0 : PS_EPROTO);
    }
}

static void every_unknown_flag_is_refused(void **state)
{
    struct frame_header h;
    uint8_t bytes[FRAME_HEADER_BYTES + 5];

    (void)state;
    encode_beat(bytes);
    for (unsigned flags = 0; flags < 256; flags++) {
        bytes[5] = (uint8_t)flags;
        assert_int_equal(frame_decode(bytes, MAX_BYTES, &h), flags <= 3 ? 0 : PS_EPROTO);
    }
}

static void lengths_past_the_limit_are_refused(void **state)
{
    struct frame_header h;
    uint8_t bytes[FRAME_HEADER_BYTES + 5];

    (void)state;
    encode_beat(bytes);
    assert_int_equal(frame_decode(bytes, 5, &h), 0);
    assert_int_equal(frame_decode(bytes, 4, &h), PS_ETOOBIG);
    memset(bytes + 8, 0xff, 4);
    assert_int_equal(frame_decode(bytes, UINT32_MAX, &h), PS_ETOOBIG);
    memset(bytes + 6, 0, 2);
    assert_int_equal(frame_decode(bytes, UINT32_MAX, &h), 0);
    assert_true(h.body_bytes == UINT32_MAX);
}

static void a_flipped_bit_anywhere_fails_the_crc(void **state)
{
    struct frame_header h;
    uint8_t bytes[FRAME_HEADER_BYTES + 5];

    (void)state;
    encode_beat(bytes);
    assert_int_equal(frame_decode(bytes, MAX_BYTES, &h), 0);
    for (size_t i = 0; i < sizeof bytes; i++) {
        if (i >= 20 && i < 24)
            continue; /* the crc itself, which stands in h */
        bytes[i] ^= 0x10;
        assert_int_equal(frame_verify(bytes, &h), PS_ECORRUPT);
        bytes[i] ^= 0x10;
    }
    h.crc ^= 1;
    assert_int_equal(frame_verify(bytes, &h), PS_ECORRUPT);
}

static void the_crc_may_be_taken_in_any_pieces(void **state)
{
    uint8_t bytes[FRAME_HEADER_BYTES + 5];
    struct frame_header h;

    (void)state;
    encode_beat(bytes);
    assert_int_equal(frame_decode(bytes, MAX_BYTES, &h), 0);
    for (size_t i = FRAME_HEADER_BYTES; i <= sizeof bytes; i++) {
        for (size_t k = i; k <= sizeof bytes; k++) {
            struct frame_crc crc = { 0 };

            frame_crc_extend(&crc, bytes, i);
            frame_crc_extend(&crc, bytes, k);
            frame_crc_extend(&crc, bytes, sizeof bytes);
            assert_int_equal(crc.crc, h.crc);
        }
    }
}

static void types_have_names(void **state)
{
    (void)state;
    assert_string_equal(frame_type_name(FRAME_PULL_REPLY), "pull_reply");
    assert_string_equal(frame_type_name(0), "unknown");
    assert_string_equal(frame_type_name(FRAME_TYPE_END), "unknown");
}

#define BEHIND_BYTES (FRAME_HEADER_BYTES + 5 + FRAME_SUM_BYTES)

/* The beat with its sum behind the body. */
static void encode_behind(uint8_t dst[static BEHIND_BYTES])
{
    struct frame_header h = beat;
    struct frame_crc crc = { 0 };

    h.flags = FRAME_SUM_BEHIND;
    memcpy(dst + FRAME_HEADER_BYTES, beat_head, 2);
    memcpy(dst + FRAME_HEADER_BYTES + 2, beat_body, 3);
    frame_encode(dst, &h);
    frame_crc_extend(&crc, dst, FRAME_HEADER_BYTES + 2);
    frame_crc_follow(&crc, beat_body, 3);
    frame_put_sum(dst + FRAME_HEADER_BYTES + 5, &crc);
}

/* The second example of proto/README.md. */
static void a_sum_behind_the_body_stands_where_the_readme_says(void **state)
{
    static const uint8_t want[BEHIND_BYTES] = { 0x50, 0x53, 0x44, 0x31, 0x0b, 0x02, 0x02,
                                                0x00, 0x03, 0x00, 0x00, 0x00, 0x88, 0x77,
                                                0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x80,
                                                0xb5, 0x13, 0x8a, 0x08, 0x2a, 0x61, 0x62,
                                                0x63, 0x34, 0x6d, 0xc7, 0x58 };
    uint8_t bytes[BEHIND_BYTES];

    (void)state;
    encode_behind(bytes);
    assert_memory_equal(bytes, want, sizeof want);
}

static void a_flipped_bit_anywhere_fails_one_of_the_two_sums(void **state)
{
    struct frame_header h;
    uint8_t bytes[BEHIND_BYTES];

    (void)state;
    encode_behind(bytes);
    assert_int_equal(frame_decode(bytes, MAX_BYTES, &h), 0);
    assert_int_equal(frame_bytes(&h), sizeof bytes);
    assert_int_equal(frame_verify(bytes, &h), 0);
    for (size_t i = 0; i < sizeof bytes; i++)
        for (unsigned bit = 0; bit < 8; bit++) {
            bytes[i] ^= (uint8_t)(1u << bit);
            h.crc = 0;
            for (size_t at = 20; at < 24; at++)
                h.crc |= (uint32_t)bytes[at] << 8 * (at - 20);
            assert_int_equal(frame_verify(bytes, &h), PS_ECORRUPT);
            bytes[i] ^= (uint8_t)(1u << bit);
        }
}

/* In any two pieces; and what is wrong before the body is known before the body. */
static void a_sum_that_has_come_is_checked_at_once(void **state)
{
    const size_t head_end = FRAME_HEADER_BYTES + 2;
    struct frame_header h;
    uint8_t bytes[BEHIND_BYTES];

    (void)state;
    encode_behind(bytes);
    assert_int_equal(frame_decode(bytes, MAX_BYTES, &h), 0);
    for (size_t at = FRAME_HEADER_BYTES; at <= sizeof bytes; at++) {
        struct frame_crc good = { 0 }, bad = { 0 };

        assert_int_equal(frame_crc_check(&good, &h, bytes, at), 0);
        assert_int_equal(frame_crc_check(&good, &h, bytes, sizeof bytes), 0);
        bytes[head_end - 1] ^= 1;
        assert_int_equal(frame_crc_check(&bad, &h, bytes, at), at < head_end ? 0 : PS_ECORRUPT);
        bytes[head_end - 1] ^= 1;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_comes_back_as_it_was),
        cmocka_unit_test(the_bytes_stand_where_the_header_says),
        cmocka_unit_test(the_frame_of_the_readme_is_what_we_write),
        cmocka_unit_test(every_wrong_magic_is_refused),
        cmocka_unit_test(every_unknown_type_is_refused),
        cmocka_unit_test(every_unknown_flag_is_refused),
        cmocka_unit_test(lengths_past_the_limit_are_refused),
        cmocka_unit_test(a_flipped_bit_anywhere_fails_the_crc),
        cmocka_unit_test(the_crc_may_be_taken_in_any_pieces),
        cmocka_unit_test(a_sum_behind_the_body_stands_where_the_readme_says),
        cmocka_unit_test(a_flipped_bit_anywhere_fails_one_of_the_two_sums),
        cmocka_unit_test(a_sum_that_has_come_is_checked_at_once),
        cmocka_unit_test(types_have_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
