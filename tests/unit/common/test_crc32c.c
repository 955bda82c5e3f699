#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/crc32c.h"

/* The definition, bit by bit: polynomial 0x1edc6f41, reflected. */
static uint32_t crc_by_bits(const uint8_t *bytes, size_t n_bytes)
{
    uint32_t crc = ~UINT32_C(0);
    size_t i;
    int bit;

    for (i = 0; i < n_bytes; i++) {
        crc ^= bytes[i];
        for (bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0x82f63b78) : 0);
    }
    return ~crc;
}

static void the_check_value_is_the_standards(void **state)
{
    (void)state;
    assert_int_equal(crc32c_extend(0, "123456789", 9), 0xe3069283u);
}

/* RFC 3720, B.4. */
static void the_examples_of_the_rfc_hold(void **state)
{
    uint8_t bytes[32];
    size_t i;

    (void)state;
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(crc32c_extend(0, bytes, sizeof bytes), 0x8a9136aau);
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(crc32c_extend(0, bytes, sizeof bytes), 0x62a8ab43u);
    for (i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)i;
    assert_int_equal(crc32c_extend(0, bytes, sizeof bytes), 0x46dd794eu);
}

static void every_length_and_alignment_agrees_with_the_definition(void **state)
{
    static uint8_t bytes[700];
    size_t i, start;

    (void)state;
    srand(3);
    for (i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)rand();
    for (i = 0; i <= 600; i++) {
        start = (size_t)rand() % 64;
        assert_int_equal(crc32c_extend(0, bytes + start, i), crc_by_bits(bytes + start, i));
    }
}

static void a_message_in_parts_has_the_crc_of_the_whole(void **state)
{
    static const char text[] = "a header, a head and a body";
    uint32_t whole = crc32c_extend(0, text, sizeof text);
    size_t split;

    (void)state;
    for (split = 0; split <= sizeof text; split++)
        assert_int_equal(
            crc32c_extend(crc32c_extend(0, text, split), text + split, sizeof text - split),
            whole);
    assert_int_equal(crc32c_extend(whole, NULL, 0), whole);
}

static void two_crcs_make_the_crc_of_both_messages(void **state)
{
    static const size_t sizes[] = { 0, 1, 3, 8, 255, 4096, 65537, 1000003 };
    static uint8_t bytes[1000003 + 17];

    (void)state;
    srand(4);
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)rand();
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        uint32_t first = crc32c_extend(0, bytes, 17);
        uint32_t second = crc32c_extend(0, bytes + 17, sizes[i]);

        assert_int_equal(crc32c_combine(first, second, sizes[i]),
                         crc32c_extend(first, bytes + 17, sizes[i]));
        assert_int_equal(crc32c_combine(0, second, sizes[i]), second);
    }
}

/* The crc of a run of zeros longer than any buffer: in pieces, which double. */
static void lengths_beyond_32_bits_are_right(void **state)
{
    static uint8_t zeros[1 << 16];
    uint32_t piece = crc32c_extend(0, zeros, sizeof zeros), by_doubling = piece, by_ones = 0;
    uint64_t n_bytes = sizeof zeros;

    (void)state;
    for (; n_bytes < UINT64_C(1) << 37; n_bytes *= 2)
        by_doubling = crc32c_combine(by_doubling, by_doubling, (size_t)n_bytes);
    for (uint64_t done = 0; done < n_bytes; done += sizeof zeros)
        by_ones = crc32c_combine(by_ones, piece, sizeof zeros);
    assert_int_equal(by_doubling, by_ones);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_check_value_is_the_standards),
        cmocka_unit_test(the_examples_of_the_rfc_hold),
        cmocka_unit_test(every_length_and_alignment_agrees_with_the_definition),
        cmocka_unit_test(a_message_in_parts_has_the_crc_of_the_whole),
        cmocka_unit_test(two_crcs_make_the_crc_of_both_messages),
        cmocka_unit_test(lengths_beyond_32_bits_are_right),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
