#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/status.h"
#include "proto/key_codec.h"

#define N_MAX 2000u

static void assert_round_trip(const uint64_t *keys, uint32_t n_keys, size_t want_bytes)
{
    uint64_t *got = calloc(n_keys + 1, sizeof *got);
    uint8_t *bytes = malloc((size_t)n_keys * KEY_CODEC_BYTES_MAX + 1);
    size_t n_bytes = key_codec_encode(keys, n_keys, bytes);

    if (want_bytes)
        assert_int_equal(n_bytes, want_bytes);
    assert_int_equal(key_codec_decode(bytes, n_bytes, n_keys, got), 0);
    assert_memory_equal(got, keys, n_keys * sizeof *keys);
    free(bytes);
    free(got);
}

static void the_extremes_of_a_key_come_back(void **state)
{
    const uint64_t zero = 0, most = UINT64_MAX, ends[] = { 0, UINT64_MAX };
    const uint64_t edges[] = { 0, 127, 255, 16639, UINT64_C(1) << 63, UINT64_MAX };

    (void)state;
    assert_round_trip(&zero, 1, 1);
    assert_round_trip(&most, 1, 10);
    assert_round_trip(ends, 2, 11);
    assert_round_trip(edges, 6, 0);
    assert_round_trip(edges, 0, 0);
}

/* What the trivial reference writes: one number after the other, by division. */
static size_t reference_encode(const uint64_t *keys, uint32_t n_keys, uint8_t *dst)
{
    size_t n = 0;

    for (uint32_t i = 0; i < n_keys; i++) {
        uint64_t step = i ? keys[i] - keys[i - 1] : keys[i];

        do {
            dst[n++] = (uint8_t)(step % 128 + (step / 128 ? 128 : 0));
            step /= 128;
        } while (step);
    }
    return n;
}

/* The numbers around each power of two: where a byte more is needed. */
static void numbers_of_each_length_equal_the_references_bytes(void **state)
{
    uint8_t ours[2 * KEY_CODEC_BYTES_MAX], theirs[2 * KEY_CODEC_BYTES_MAX];

    (void)state;
    for (unsigned bit = 1; bit < 64; bit++)
        for (uint64_t step = (UINT64_C(1) << bit) - 1; step <= (UINT64_C(1) << bit) + 1;
             step++) {
            const uint64_t keys[] = { 5, 5 + step };
            size_t n_bytes = key_codec_encode(keys, 2, ours);

            assert_int_equal(n_bytes, reference_encode(keys, 2, theirs));
            assert_memory_equal(ours, theirs, n_bytes);
            assert_round_trip(keys, 2, n_bytes);
        }
}

static void random_keys_come_back_and_equal_the_references_bytes(void **state)
{
    static uint64_t keys[N_MAX];
    static uint8_t ours[N_MAX * KEY_CODEC_BYTES_MAX], theirs[N_MAX * KEY_CODEC_BYTES_MAX];
    uint64_t seed = 20240501;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint64_t round = 0; round < 200; round++) {
        uint32_t n_keys = (uint32_t)(hash_mix2(seed, round) % N_MAX);
        unsigned shift = (unsigned)(hash_mix2(seed + 1, round) % 53);
        uint64_t key = 0;
        size_t n_bytes;

        for (uint32_t i = 0; i < n_keys; i++)
            keys[i] = key +=
                1 + (hash_mix2(round, i) >> (11 + shift) >> (hash_mix2(i, round) % 20));
        assert_round_trip(keys, n_keys, 0);
        n_bytes = key_codec_encode(keys, n_keys, ours);
        assert_int_equal(n_bytes, reference_encode(keys, n_keys, theirs));
        assert_memory_equal(ours, theirs, n_bytes);
    }
}

static void malformed_keys_are_refused(void **state)
{
    static const struct {
        const char *what;
        uint8_t bytes[24];
        size_t n_bytes;
        uint32_t n_keys;
        int status;
    } cases[] = {
        { "nothing", { 0 }, 0, 1, PS_ECOUNT },
        { "bytes without keys", { 1 }, 1, 0, PS_ECOUNT },
        { "one key too few", { 1, 1 }, 2, 3, PS_ECOUNT },
        { "one key too many", { 1, 1, 1 }, 3, 2, PS_ECOUNT },
        { "cut", { 0x80 }, 1, 1, PS_ECOUNT },
        { "the last one cut", { 1, 0x80 }, 2, 2, PS_ECOUNT },
        { "longer than it need be", { 0x81, 0x00 }, 2, 1, PS_ECOUNT },
        { "zero in two bytes", { 0x80, 0x00 }, 2, 1, PS_ECOUNT },
        { "65 bits",
          { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02 },
          10,
          1,
          PS_ECOUNT },
        { "eleven bytes",
          { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x81, 0x00 },
          11,
          2,
          PS_ECOUNT },
        { "a key twice", { 5, 0 }, 2, 2, PS_EORDER },
        { "zero twice", { 0, 0 }, 2, 2, PS_EORDER },
        { "past 2^64",
          { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0x01 },
          11,
          2,
          PS_EORDER },
        { "far past 2^64",
          { 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01 },
          11,
          2,
          PS_EORDER },
        { "more bytes than keys can have",
          { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 },
          11,
          1,
          PS_ECOUNT },
    };
    uint64_t keys[4];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        /* A copy of its exact size, so that a sanitizer sees a byte too far. */
        uint8_t *bytes = malloc(cases[i].n_bytes + 1);

        memcpy(bytes + 1, cases[i].bytes, cases[i].n_bytes);
        print_message("%s\n", cases[i].what);
        assert_int_equal(key_codec_decode(bytes + 1, cases[i].n_bytes, cases[i].n_keys, keys),
                         cases[i].status);
        free(bytes);
    }
}

static void a_count_that_lies_is_refused_before_the_keys_are_touched(void **state)
{
    const uint8_t byte = 1;

    (void)state;
    assert_int_equal(key_codec_decode(&byte, 1, UINT32_MAX, NULL), PS_ECOUNT);
}

static void any_bytes_are_read_or_refused(void **state)
{
    uint64_t keys[40];

    (void)state;
    for (uint64_t round = 0; round < 20000; round++) {
        size_t n_bytes = hash_mix2(7, round) % 40;
        uint8_t *bytes = malloc(n_bytes + 1), again[40 * KEY_CODEC_BYTES_MAX];
        uint32_t n_keys = (uint32_t)(hash_mix2(8, round) % 41);
        int status;

        for (size_t i = 0; i < n_bytes; i++)
            bytes[i + 1] = (uint8_t)(hash_mix2(round, i) >> (i % 3 ? 57 : 56));
        status = key_codec_decode(bytes + 1, n_bytes, n_keys, keys);
        assert_true(status == 0 || status == PS_ECOUNT || status == PS_EORDER);
        if (status == 0) { /* then it is the only encoding of these keys */
            assert_int_equal(key_codec_encode(keys, n_keys, again), n_bytes);
            assert_memory_equal(again, bytes + 1, n_bytes);
        }
        free(bytes);
    }
}

/* One number after the other, by multiplication: the definition in plain words. */
static int reference_decode(const uint8_t *src, size_t n_bytes, uint32_t n_keys,
                            uint64_t *ret_keys)
{
    uint64_t key = 0;
    size_t at = 0;

    for (uint32_t i = 0; i < n_keys; i++) {
        uint64_t step = 0, unit = 1;
        unsigned n = 0;

        do {
            if (at == n_bytes || n == KEY_CODEC_BYTES_MAX || (n == 9 && src[at] > 1))
                return PS_ECOUNT;
            step += src[at] % 128 * unit;
            unit *= 128;
            n++;
        } while (src[at++] >= 128);
        if (n > 1 && src[at - 1] == 0)
            return PS_ECOUNT;
        if (key + step < key || (step == 0 && i))
            return PS_EORDER;
        ret_keys[i] = key += step;
    }
    return at == n_bytes ? 0 : PS_ECOUNT;
}

static int decode_in_pieces(uint64_t seed, const uint8_t *src, size_t n_bytes, uint32_t n_keys,
                            uint64_t *ret_keys)
{
    struct key_codec_reader r;
    int status = key_codec_reader_init(&r, src, n_bytes, n_keys);

    for (uint32_t i = 0, n; i < n_keys && !status; i += n) {
        n = 1 + (uint32_t)(hash_mix2(seed, i) % 30);
        n = n < n_keys - i ? n : n_keys - i;
        status = key_codec_reader_next(&r, n, ret_keys + i);
    }
    return status;
}

/* Of all lengths, mixed or alike, whole or with a byte that is another. */
static void reading_in_pieces_is_reading_byte_by_byte(void **state)
{
    enum { N = 200 };
    static uint64_t keys[N], want[N], got[N];
    static uint8_t bytes[N * KEY_CODEC_BYTES_MAX];

    (void)state;
    for (uint64_t round = 0; round < 20000; round++) {
        uint32_t n_keys = 1 + (uint32_t)(hash_mix2(1, round) % N);
        unsigned bits = 1 + (unsigned)(hash_mix2(2, round) % 56), mixed = (unsigned)(round % 3);
        uint8_t *exact;
        size_t n_bytes;
        int status;

        for (uint32_t i = 0; i < n_keys; i++)
            keys[i] = (i ? keys[i - 1] : 0) + 1 +
                      (hash_mix2(round, i) >>
                       (64 - (mixed ? 1 + (bits + i * i * mixed) % bits : bits)));
        n_bytes = key_codec_encode(keys, n_keys, bytes);
        if (round % 2)
            bytes[hash_mix2(3, round) % n_bytes] = (uint8_t)hash_mix2(4, round);
        exact = malloc(n_bytes); /* nothing is read beyond it */
        memcpy(exact, bytes, n_bytes);
        status = reference_decode(exact, n_bytes, n_keys, want);
        assert_int_equal(key_codec_decode(exact, n_bytes, n_keys, got), status);
        assert_true(status || memcmp(got, want, n_keys * sizeof *got) == 0);
        assert_int_equal(decode_in_pieces(round, exact, n_bytes, n_keys, got), status);
        assert_true(status || memcmp(got, want, n_keys * sizeof *got) == 0);
        free(exact);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_extremes_of_a_key_come_back),
        cmocka_unit_test(numbers_of_each_length_equal_the_references_bytes),
        cmocka_unit_test(random_keys_come_back_and_equal_the_references_bytes),
        cmocka_unit_test(malformed_keys_are_refused),
        cmocka_unit_test(a_count_that_lies_is_refused_before_the_keys_are_touched),
        cmocka_unit_test(any_bytes_are_read_or_refused),
        cmocka_unit_test(reading_in_pieces_is_reading_byte_by_byte),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
