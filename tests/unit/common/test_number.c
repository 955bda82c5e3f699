#include <errno.h>
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/number.h"
#include "tests/support/seed.h"

typedef int (*read_fn)(const char *text, uint64_t *ret);

struct example {
    read_fn read;
    const char *text;
    uint64_t expected;
};

static void numbers_mean_what_people_mean(void **state)
{
    static const struct example examples[] = {
        { number_read_u64, "0", 0 },
        { number_read_u64, "007", 7 },
        { number_read_u64, "18446744073709551615", UINT64_MAX },
        { number_read_bytes, "0", 0 },
        { number_read_bytes, "1000", 1000 },
        { number_read_bytes, "512K", 512u << 10 },
        { number_read_bytes, "64M", 64u << 20 },
        { number_read_bytes, "2G", UINT64_C(2) << 30 },
        { number_read_bytes, "1t", UINT64_C(1) << 40 },
        { number_read_ms, "0", 0 },
        { number_read_ms, "250ms", 250 },
        { number_read_ms, "30s", 30000 },
        { number_read_ms, "5m", 300000 },
        { number_read_ms, "1h", 3600000 },
    };
    uint64_t n;
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(examples); i++) {
        n = ~examples[i].expected;
        assert_int_equal(examples[i].read(examples[i].text, &n), 0);
        assert_true(n == examples[i].expected);
    }
}

static void what_is_no_number_is_refused_and_sets_nothing(void **state)
{
    static const struct example examples[] = {
        { number_read_u64, "", 0 },
        { number_read_u64, "-1", 0 },
        { number_read_u64, "+1", 0 },
        { number_read_u64, " 1", 0 },
        { number_read_u64, "1 ", 0 },
        { number_read_u64, "1.5", 0 },
        { number_read_u64, "0x10", 0 },
        { number_read_u64, "1e3", 0 },
        { number_read_u64, "18446744073709551616", 0 },
        { number_read_u64, "99999999999999999999999", 0 },
        { number_read_bytes, "", 0 },
        { number_read_bytes, "M", 0 },
        { number_read_bytes, "1.5G", 0 },
        { number_read_bytes, "64MB", 0 },
        { number_read_bytes, "64 M", 0 },
        { number_read_bytes, "-1K", 0 },
        { number_read_bytes, "16777216T", 0 },
        { number_read_ms, "30", 0 },
        { number_read_ms, "s", 0 },
        { number_read_ms, "00", 0 },
        { number_read_ms, "1d", 0 },
        { number_read_ms, "5 m", 0 },
        { number_read_ms, "18446744073709551615h", 0 },
    };
    uint64_t n;
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(examples); i++) {
        n = 4711;
        if (examples[i].read(examples[i].text, &n) != -EINVAL)
            fail_msg("\"%s\" is taken", examples[i].text);
        assert_int_equal(n, 4711);
    }
}

static void floats_are_decimal_and_finite(void **state)
{
    static const char *const good[] = { "0",    "-0",  "1",  "0.01", "-2.5",  "+3",
                                        "1e-3", "1E6", ".5", "5.",   "3.4e38" };
    static const char *const bad[] = { "",      " 1",   "1 ",    "nan", "inf",   "-inf",
                                       "0x1p3", "1e39", "1e-60", "1,5", "1.2.3", "e",
                                       ".",     "--1",  "1e",    "one" };
    float x = 4711;
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(bad); i++)
        if (number_read_float(bad[i], &x) != -EINVAL)
            fail_msg("\"%s\" is taken", bad[i]);
    assert_true(x == 4711.0f);
    for (i = 0; i < COUNT_OF(good); i++) {
        assert_int_equal(number_read_float(good[i], &x), 0);
        assert_true(x == strtof(good[i], NULL));
    }
}

static void what_is_written_reads_back_the_same(void **state)
{
    const uint64_t seed = seed_by_the_clock();
    uint64_t i, n, back;
    char text[NUMBER_TEXT_MAX];
    union {
        uint32_t bits;
        float x;
    } f;
    float x;

    (void)state;
    for (i = 0; i < 20000; i++) {
        n = hash_mix2(seed, i) >> (i % 64) << (i % 41);
        number_write_bytes(n, text);
        assert_int_equal(number_read_bytes(text, &back), 0);
        assert_true(back == n);
        n = i % 2 ? n : n / 3600000 * 3600000;
        number_write_ms(n, text);
        assert_int_equal(number_read_ms(text, &back), 0);
        assert_true(back == n);
        f.bits = (uint32_t)hash_mix2(seed + 1, i);
        if (isfinite(f.x) && fabsf(f.x) >= FLT_MIN) {
            number_write_float(f.x, text);
            assert_int_equal(number_read_float(text, &x), 0);
            assert_true(x == f.x);
        }
    }
}

static void what_is_written_is_what_a_person_would_write(void **state)
{
    char text[NUMBER_TEXT_MAX];

    (void)state;
    number_write_bytes(UINT64_C(64) << 20, text);
    assert_string_equal(text, "64M");
    number_write_bytes(1500, text);
    assert_string_equal(text, "1500");
    number_write_bytes(0, text);
    assert_string_equal(text, "0");
    number_write_ms(90000, text);
    assert_string_equal(text, "90s");
    number_write_ms(0, text);
    assert_string_equal(text, "0ms");
    number_write_float(0.1f, text);
    assert_string_equal(text, "0.1");
    number_write_float(100.0f, text);
    assert_string_equal(text, "100");
    number_write_float(0.0f, text);
    assert_string_equal(text, "0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_mean_what_people_mean),
        cmocka_unit_test(what_is_no_number_is_refused_and_sets_nothing),
        cmocka_unit_test(floats_are_decimal_and_finite),
        cmocka_unit_test(what_is_written_reads_back_the_same),
        cmocka_unit_test(what_is_written_is_what_a_person_would_write),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
