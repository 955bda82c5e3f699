#include "tests/unit/data/fixture.h"

#include <math.h>

#include "worker/data/decimal.h"

static void numbers_are_read_to_the_nearest_double(void **state)
{
    static const struct {
        const char *text;
        double value;
    } cases[] = {
        { "0", 0.0 },
        { "-0", -0.0 },
        { "7", 7.0 },
        { "-2", -2.0 },
        { "+3", 3.0 },
        { "007", 7.0 },
        { "1234567", 1234567.0 },
        { "999999999999999", 999999999999999.0 },
        { "9999999999999999", 9999999999999999.0 },
        { "18446744073709551616", 18446744073709551616.0 },
        { "-123456789012345678901234567890", -123456789012345678901234567890.0 },
        { "0.1", 0.1 },
        { ".5", 0.5 },
        { "5.", 5.0 },
        { "-1.25e3", -1250.0 },
        { "1E-3", 0.001 },
        { "1.0000094181510943e+18", 1.0000094181510943e+18 },
        { "2.5e+2", 250.0 },
        { "1e-400", 0.0 },
        { "4.9e-324", 4.9e-324 },
        { "1.7976931348623157e308", 1.7976931348623157e308 },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        double x = NAN;

        if (!decimal_parse(cases[i].text, strlen(cases[i].text), &x) ||
            memcmp(&x, &cases[i].value, sizeof x) != 0)
            fail_msg("'%s' read as %.17g, not %.17g", cases[i].text, x, cases[i].value);
    }
}

static void what_is_not_a_decimal_number_is_refused(void **state)
{
    static const char *const texts[] = {
        "",      "-",     "+",        ".",   "-.",  "e5",   ".e5",   "1e",  "1e+",
        "1e5.0", "--1",   "+-1",      "1-",  " 1",  "1 ",   "1 2",   "1,5", "1_000",
        "0x10",  "inf",   "-inf",     "nan", "NaN", "NULL", "1e999", "abc", "12abc",
        "1.2.3", "1e5e5", "infinity", "\t1", "1\r", "1f",
    };
    double x = 42;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        if (decimal_parse(texts[i], strlen(texts[i]), &x))
            fail_msg("'%s' was read as %g", texts[i], x);
    assert_false(decimal_parse("1\0002", 3, &x));
    assert_true(x == 42);
}

static void a_number_ends_where_its_length_says(void **state)
{
    double x;

    (void)state;
    assert_true(decimal_parse("12345", 2, &x));
    assert_true(x == 12);
    assert_true(decimal_parse("1.55", 3, &x));
    assert_true(x == 1.5);
}

static void digits_without_end_are_refused_not_read_past(void **state)
{
    char text[5000];
    double x = 0;

    (void)state;
    memset(text, '1', sizeof text);
    assert_false(decimal_parse(text, sizeof text, &x));
    assert_true(decimal_parse(text, 63, &x));
    assert_true(x > 1e62 && x < 2e62);
}

static void agrees_with_strtod_on_random_numbers(void **state)
{
    uint64_t seed = fixture_seed(__func__), counter = 0;

    (void)state;
    for (int i = 0; i < 20000; i++) {
        uint64_t h = hash_mix2(seed, counter++);
        double value = (double)(int64_t)h / pow(10, (double)(h % 25)), x = NAN;
        char text[400];

        if (i % 3 == 0)
            snprintf(text, sizeof text, "%.3f", value);
        else if (i % 3 == 1)
            snprintf(text, sizeof text, "%.17g", value);
        else
            snprintf(text, sizeof text, "%.0f", value);
        if (!decimal_parse(text, strlen(text), &x) || x != strtod(text, NULL))
            fail_msg("'%s' read as %.17g", text, x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_read_to_the_nearest_double),
        cmocka_unit_test(what_is_not_a_decimal_number_is_refused),
        cmocka_unit_test(a_number_ends_where_its_length_says),
        cmocka_unit_test(digits_without_end_are_refused_not_read_past),
        cmocka_unit_test(agrees_with_strtod_on_random_numbers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
