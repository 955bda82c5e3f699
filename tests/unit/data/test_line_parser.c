/* What a line becomes. What is refused: test_row_refusals.c. */
#include "tests/unit/data/bench.h"
#include "worker/data/parsed_row.h"

#include <math.h>

static void a_line_becomes_a_sample(void **state)
{
    struct bench b;

    (void)state;
    bench_new(&b, &bench_small, NULL);
    bench_parse_well(&b, "1,3,-7,x,yy");
    bench_parse_well(&b, "0,,2.5,,zzz");
    assert_int_equal(b.batch.n, 2);
    assert_true(b.batch.label[0] == 1 && b.batch.label[1] == 0);
    assert_true(b.batch.numeric[0] == (float)log1p(3) && b.batch.numeric[1] == 0);
    assert_true(b.batch.numeric[2] == 0 && b.batch.numeric[3] == (float)log1p(2.5));
    assert_true(b.batch.keys[0] == bench_key("x", 0) && b.batch.keys[1] == bench_key("yy", 1));
    assert_true(b.batch.keys[2] == bench_key("", 0) && b.batch.keys[3] == bench_key("zzz", 1));
    for (uint32_t i = 0; i <= 4; i++)
        assert_int_equal(b.batch.starts[i], i);
    bench_free(&b);
}

static void the_same_token_in_two_columns_has_two_keys(void **state)
{
    struct bench b;

    (void)state;
    bench_new(&b, &bench_small, NULL);
    bench_parse_well(&b, "1,0,0,same,same");
    assert_true(b.batch.keys[0] != b.batch.keys[1]);
    bench_free(&b);
}

static void log1p_of_whole_numbers_is_that_of_the_library(void **state)
{
    struct bench b;

    (void)state;
    bench_new(&b, &bench_small, NULL);
    for (int x = 0; x < 6000; x++) {
        char line[64];

        batch_clear(&b.batch);
        snprintf(line, sizeof line, "1,%d,%d.5,x,y", x, x);
        bench_parse_well(&b, line);
        assert_true(b.batch.numeric[0] == (float)log1p(x));
        assert_true(b.batch.numeric[1] == (float)log1p(x + 0.5));
    }
    bench_free(&b);
}

static void label_tokens_say_what_is_positive(void **state)
{
    struct schema_text text = bench_small;
    struct bench b;

    (void)state;
    text.label_positive = ">50K,>50K., yes";
    bench_new(&b, &text, NULL);
    bench_parse_well(&b, ">50K,1,1,x,y");
    bench_parse_well(&b, ">50K.,1,1,x,y");
    bench_parse_well(&b, "yes,1,1,x,y");
    bench_parse_well(&b, "<=50K,1,1,x,y");
    bench_parse_well(&b, ">50K..,1,1,x,y");
    bench_parse_well(&b, "1,1,1,x,y");
    for (uint32_t i = 0; i < 6; i++)
        assert_true(b.batch.label[i] == (i < 3 ? 1.0f : 0.0f));
    assert_int_equal(bench_parse(&b, ",1,1,x,y"), PS_EDATA);
    bench_free(&b);
}

static void a_missing_token_is_as_good_as_none(void **state)
{
    struct schema_text text = bench_small;
    struct bench b;

    (void)state;
    text.missing = "?";
    text.delimiter = ", ";
    bench_new(&b, &text, NULL);
    bench_parse_well(&b, "1, ?, 2, ?, ??");
    assert_true(b.batch.numeric[0] == 0 && b.batch.numeric[1] == (float)log1p(2));
    assert_true(b.batch.keys[0] == bench_key("", 0) && b.batch.keys[1] == bench_key("??", 1));
    assert_int_equal(bench_parse(&b, "?, 1, 2, x, y"), PS_EDATA);
    bench_free(&b);
}

static void a_missing_categorical_may_leave_its_bag_empty(void **state)
{
    struct schema_text text = bench_small;
    struct bench b;

    (void)state;
    text.missing_as = SCHEMA_MISSING_SKIP;
    bench_new(&b, &text, NULL);
    bench_parse_well(&b, "1,0,0,,y");
    bench_parse_well(&b, "1,0,0,x,");
    bench_parse_well(&b, "1,0,0,,");
    assert_int_equal(b.batch.n_keys, 2);
    assert_memory_equal(b.batch.starts, ((uint32_t[]){ 0, 0, 1, 2, 2, 2, 2 }),
                        7 * sizeof(uint32_t));
    bench_free(&b);
}

static void an_inner_separator_makes_a_bag(void **state)
{
    struct schema_text text = bench_small;
    struct bench b;

    (void)state;
    text.inner_separator = "|";
    bench_new(&b, &text, NULL);
    bench_parse_well(&b, "1,0,0,a|b|a,c");
    bench_parse_well(&b, "1,0,0,|,d||e|");
    assert_memory_equal(b.batch.starts, ((uint32_t[]){ 0, 3, 4, 5, 7 }), 5 * sizeof(uint32_t));
    assert_true(b.batch.keys[0] == bench_key("a", 0) && b.batch.keys[2] == b.batch.keys[0]);
    assert_true(b.batch.keys[1] == bench_key("b", 0) && b.batch.keys[3] == bench_key("c", 1));
    assert_true(b.batch.keys[4] == bench_key("", 0)); /* nothing but separators is missing */
    assert_true(b.batch.keys[5] == bench_key("d", 1) && b.batch.keys[6] == bench_key("e", 1));
    bench_free(&b);
}

static void a_bag_may_be_larger_than_the_batch_was_made_for(void **state)
{
    struct schema_text text = bench_small;
    char *line = memory_alloc(400100);
    struct bench b;

    (void)state;
    text.inner_separator = " ";
    bench_new(&b, &text, NULL);
    strcpy(line, "1,0,0,");
    for (int i = 0; i < 100000; i++)
        memcpy(line + 6 + i * 4, "ab  ", 4);
    strcpy(line + 400006, ",x");
    bench_parse_well(&b, line);
    assert_int_equal(b.batch.n_keys, 100001);
    assert_int_equal(batch_dedup(&b.batch), 0);
    assert_int_equal(b.batch.n_unique, 2);
    free(line);
    bench_free(&b);
}

static uint64_t key_of_bucket(int64_t bucket, uint32_t field)
{
    return XXH3_64bits_withSeed(&bucket, sizeof bucket, field);
}

static void buckets_follow_their_formula(void **state)
{
    static const struct {
        const char *text;
        int64_t bucket;
    } cases[] = { { "-1", -1 },   { "-1000", -1 }, { "0", 0 },         { "0.9", 0 },
                  { "1", 1 },     { "2", 2 },      { "2.9", 2 },       { "3", 3 },
                  { "4", 3 },     { "5", 4 },      { "10", 7 },        { "100", 23 },
                  { "1000", 49 }, { "1e6", 192 },  { "1e300", 477172 } };
    struct schema_text text = bench_small;
    struct bench b;

    (void)state;
    text.bucketise = "b";
    bench_new(&b, &text, NULL);
    assert_int_equal(schema_n_numeric(b.schema), 1);
    assert_int_equal(schema_n_fields(b.schema), 3);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char line[64];

        batch_clear(&b.batch);
        snprintf(line, sizeof line, "1,0,%s,x,y", cases[i].text);
        bench_parse_well(&b, line);
        if (b.batch.keys[2] != key_of_bucket(cases[i].bucket, 2))
            fail_msg("bucket of %s is not %lld", cases[i].text, (long long)cases[i].bucket);
    }
    bench_parse_well(&b, "1,0,,x,y");
    assert_true(b.batch.keys[5] == bench_key("", 2));
    assert_int_equal(bench_parse(&b, "1,0,many,x,y"), PS_EDATA);
    fixture_assert_says(&b.why, "column 2 (b): 'many' is not a number");
    bench_free(&b);
}

static void standardised_columns_have_their_mean_at_zero(void **state)
{
    struct schema_text text = bench_small;
    struct bench b;

    (void)state;
    text.numeric_as = SCHEMA_STANDARDISE;
    bench_new(&b, &text, NULL);
    assert_true(schema_needs_moments(b.schema));
    schema_set_moments(b.schema, (float[]){ 10, -2 }, (float[]){ 4, 0 });
    bench_parse_well(&b, "1,12,-1,x,y");
    bench_parse_well(&b, "1,,,x,y");
    assert_true(b.batch.numeric[0] == 0.5f && b.batch.numeric[1] == 1.0f);
    assert_true(b.batch.numeric[2] == 0 && b.batch.numeric[3] == 0);
    bench_free(&b);
}

static void quoted_fields_may_hold_the_delimiter(void **state)
{
    static const char *const malformed[] = {
        "1,2,3,\"x,y", "1,2,3,\"x\"z,y", "1,2,3,x,\"", "\"1,2,3,x,y", "1,2,3,\"a\"\"b,y",
    };
    struct schema_text text = bench_small;
    struct bench b;

    (void)state;
    text.quote = "\"";
    bench_new(&b, &text, NULL);
    bench_parse_well(&b, "1,\"2\",3,\"p,q\",\"say \"\"hi\"\"\"");
    bench_parse_well(&b, "\"0\",2,3,\"\",5\" screen");
    assert_true(b.batch.label[1] == 0 && b.batch.numeric[0] == (float)log1p(2));
    assert_true(b.batch.keys[0] == bench_key("p,q", 0) &&
                b.batch.keys[1] == bench_key("say \"hi\"", 1));
    assert_true(b.batch.keys[2] == bench_key("", 0) &&
                b.batch.keys[3] == bench_key("5\" screen", 1));
    for (size_t i = 0; i < COUNT_OF(malformed); i++) {
        assert_int_equal(bench_parse(&b, malformed[i]), PS_EDATA);
        fixture_assert_says(&b.why, "quote");
    }
    bench_free(&b);
}

static void unlabelled_lines_lack_the_label_column_alone(void **state)
{
    struct schema_text text = bench_small;
    char labelled[] = "3,4,1,x,y", line[] = "3,4,x,y";
    struct bench b;

    (void)state;
    text.columns = "a,b,y,c,d";
    bench_new(&b, &text, NULL);
    assert_int_equal(line_parser_simd_parse(schema_plan(b.schema), labelled, strlen(labelled),
                                            &b.batch, &b.why),
                     0);
    assert_int_equal(line_parser_simd_parse(schema_plan_unlabelled(b.schema), line,
                                            strlen(line), &b.batch, &b.why),
                     0);
    assert_memory_equal(b.batch.numeric, b.batch.numeric + 2, 2 * sizeof(float));
    assert_memory_equal(b.batch.keys, b.batch.keys + 2, 2 * sizeof(uint64_t));
    assert_true(b.batch.label[0] == 1 && b.batch.label[1] == 0);
    bench_free(&b);
}

/* Through a record as well, which a cache holds. */
static void several_labels_come_in_the_order_of_their_columns(void **state)
{
    struct schema_text text = bench_small;
    char line[] = "3,0,4,1,x,y,1", bare[] = "3,4,x,y", bad[] = "3,0,4,1,x,y,2";
    struct bytes record = { 0 };
    struct batch b, copy;
    struct err why = { 0 };
    struct schema *s;

    (void)state;
    text.columns = "a,buy,b,y,c,d,click";
    text.label = "y,buy,click";
    s = fixture_schema(&text, NULL);
    assert_int_equal(schema_n_labels(s), 3);
    assert_int_equal(batch_init_labels(&b, NULL, 2, 3, 2, 2), 0);
    assert_int_equal(batch_init_labels(&copy, NULL, 1, 3, 2, 2), 0);
    assert_int_equal(line_parser_simd_parse(schema_plan(s), line, strlen(line), &b, &why), 0);
    assert_int_equal(parsed_row_put_row(&record, &b, 0), 0);
    assert_true(parsed_row_is_sound(bytes_front(&record), bytes_len(&record), 2 + 2, 2));
    assert_false(parsed_row_is_sound(bytes_front(&record), bytes_len(&record), 2, 2));
    assert_int_equal(parsed_row_add((const void *)bytes_front(&record), &copy), 0);
    assert_memory_equal(copy.label, ((float[]){ 0, 1, 1 }), 3 * sizeof(float));
    assert_memory_equal(copy.numeric, b.numeric, 2 * sizeof(float));
    assert_memory_equal(copy.keys, b.keys, 2 * sizeof(uint64_t));
    assert_int_equal(
        line_parser_simd_parse(schema_plan_unlabelled(s), bare, strlen(bare), &b, &why), 0);
    assert_memory_equal(b.label, ((float[]){ 0, 1, 1, 0, 0, 0 }), 6 * sizeof(float));
    assert_memory_equal(b.keys, b.keys + 2, 2 * sizeof(uint64_t));
    batch_clear(&b);
    assert_int_equal(line_parser_simd_parse(schema_plan(s), bad, strlen(bad), &b, &why),
                     PS_EDATA);
    fixture_assert_says(&why, "click");
    bytes_deinit(&record);
    batch_deinit(&b);
    batch_deinit(&copy);
    schema_free(s);
}

/* Finds the spans one byte at a time. */
static uint32_t split_reference(const char *delimiter, const char *line, size_t len,
                                size_t *begins, size_t *ends)
{
    size_t step = strlen(delimiter), at = 0;
    uint32_t n = 0;

    begins[0] = 0;
    while (at < len) {
        if (at + step <= len && memcmp(line + at, delimiter, step) == 0) {
            ends[n++] = at;
            at += step;
            begins[n] = at;
        } else {
            at++;
        }
    }
    ends[n++] = len;
    return n;
}

static void splitting_agrees_with_a_scan_of_the_bytes(void **state)
{
    static const char *const delimiters[] = { ",", "\t", ", ", "aba" };
    uint64_t seed = fixture_seed(__func__), counter = 0;

    (void)state;
    for (uint32_t round = 0; round < 20000; round++) {
        const char *delimiter = delimiters[round % COUNT_OF(delimiters)];
        size_t begins[202], ends[202], len = fixture_draw(seed, &counter, 200);
        char *line = malloc(len + 1);
        struct line_parser_span spans[202];
        uint32_t n, n_max;

        assert_non_null(line);
        for (size_t i = 0; i < len; i++)
            line[i] = "ab,\t "[fixture_draw(seed, &counter, 5)];
        n = split_reference(delimiter, line, len, begins, ends);
        assert_int_equal(line_parser_split(delimiter, 0, line, len, spans, 202), n);
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(spans[i].at - line, begins[i]);
            assert_int_equal(spans[i].len, ends[i] - begins[i]);
        }
        n_max = 1 + fixture_draw(seed, &counter, 10);
        assert_int_equal(line_parser_split(delimiter, 0, line, len, spans, n_max),
                         n < n_max ? n : n_max);
        free(line);
    }
}

/* ---- decimal numbers ---- */

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

        if (!line_parser_decimal(cases[i].text, strlen(cases[i].text), &x) ||
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
        if (line_parser_decimal(texts[i], strlen(texts[i]), &x))
            fail_msg("'%s' was read as %g", texts[i], x);
    assert_false(line_parser_decimal("1\0002", 3, &x));
    assert_true(x == 42);
}

static void a_number_ends_where_its_length_says(void **state)
{
    double x;

    (void)state;
    assert_true(line_parser_decimal("12345", 2, &x));
    assert_true(x == 12);
    assert_true(line_parser_decimal("1.55", 3, &x));
    assert_true(x == 1.5);
}

static void digits_without_end_are_refused_not_read_past(void **state)
{
    char text[5000];
    double x = 0;

    (void)state;
    memset(text, '1', sizeof text);
    assert_false(line_parser_decimal(text, sizeof text, &x));
    assert_true(line_parser_decimal(text, 63, &x));
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
        if (!line_parser_decimal(text, strlen(text), &x) || x != strtod(text, NULL))
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
        cmocka_unit_test(a_line_becomes_a_sample),
        cmocka_unit_test(the_same_token_in_two_columns_has_two_keys),
        cmocka_unit_test(log1p_of_whole_numbers_is_that_of_the_library),
        cmocka_unit_test(label_tokens_say_what_is_positive),
        cmocka_unit_test(a_missing_token_is_as_good_as_none),
        cmocka_unit_test(a_missing_categorical_may_leave_its_bag_empty),
        cmocka_unit_test(an_inner_separator_makes_a_bag),
        cmocka_unit_test(a_bag_may_be_larger_than_the_batch_was_made_for),
        cmocka_unit_test(buckets_follow_their_formula),
        cmocka_unit_test(standardised_columns_have_their_mean_at_zero),
        cmocka_unit_test(quoted_fields_may_hold_the_delimiter),
        cmocka_unit_test(unlabelled_lines_lack_the_label_column_alone),
        cmocka_unit_test(several_labels_come_in_the_order_of_their_columns),
        cmocka_unit_test(splitting_agrees_with_a_scan_of_the_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
