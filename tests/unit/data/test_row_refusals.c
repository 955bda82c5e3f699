/* Lines that are no samples: refused with a sentence, and the batch as it was. */
#include "tests/unit/data/bench.h"

#include <errno.h>

static void malformed_lines_are_refused_with_the_column(void **state)
{
    static const struct {
        const char *line, *says;
    } cases[] = {
        { "", "1 column, 5 expected" },
        { "1,2,3,x", "4 columns, 5 expected" },
        { "1,2,3,x,y,z", "more than the 5 columns" },
        { "1,2,3,x,y,", "more than the 5 columns" },
        { ",,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,", "more than the 5 columns" },
        { "2,2,3,x,y", "column 0 (y): '2' is no label: 0 or 1 expected" },
        { "-1,2,3,x,y", "'-1' is no label" },
        { "0.5,2,3,x,y", "'0.5' is no label" },
        { "yes,2,3,x,y", "'yes' is no label" },
        { ",2,3,x,y", "'' is no label: it is missing" },
        { " 1,2,3,x,y", "' 1' is no label" },
        { "1,two,3,x,y", "column 1 (a): 'two' is not a number" },
        { "1,2,3x,x,y", "column 2 (b): '3x' is not a number" },
        { "1,nan,3,x,y", "'nan' is not a number" },
        { "1,inf,3,x,y", "'inf' is not a number" },
        { "1,1e999,3,x,y", "'1e999' is not a number" },
        { "1,0x1f,3,x,y", "'0x1f' is not a number" },
        { "1, 2,3,x,y", "' 2' is not a number" },
        { "1,\x1b[2J,3,x,y", "'?[2J' is not a number" },
        { "1,\xff\xfe,3,x,y", "'?\?' is not a number" },
        { "1,aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa,3,x,y",
          "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...' is not a number" },
        { "1;2;3;x;y", "1 column, 5 expected" },
        { "1\t2\t3\tx\ty", "1 column, 5 expected" },
    };
    struct bench b;

    (void)state;
    bench_new(&b, &bench_small, NULL);
    bench_parse_well(&b, "1,2,3,x,y");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        assert_int_equal(bench_parse(&b, cases[i].line), PS_EDATA);
        fixture_assert_says(&b.why, cases[i].says);
        assert_int_equal(b.batch.n, 1);
        assert_int_equal(b.batch.n_keys, 2);
    }
    assert_int_equal(bench_parse_bytes(&b, "1,2,3,x\0x,y", 11), PS_EDATA);
    fixture_assert_says(&b.why, "NUL byte");
    bench_parse_well(&b, "0,2,3,x,y");
    assert_int_equal(b.batch.n, 2);
    assert_true(b.batch.keys[2] == bench_key("x", 0));
    bench_free(&b);
}

static void a_number_that_no_float_holds_is_refused(void **state)
{
    struct schema_text text = bench_small;
    struct bench b;

    (void)state;
    text.numeric_as = SCHEMA_RAW;
    bench_new(&b, &text, NULL);
    assert_int_equal(bench_parse(&b, "1,1e39,3,x,y"), PS_EDATA);
    fixture_assert_says(&b.why, "column 1 (a): '1e39' is too large a number");
    bench_parse_well(&b, "1,-3e38,1e-30,x,y");
    assert_true(b.batch.numeric[0] == -3e38f && b.batch.numeric[1] == 1e-30f);
    bench_free(&b);
}

static void garbage_is_parsed_or_refused_and_nothing_else(void **state)
{
    static const char alphabet[] = "01,,,,?\"|.e-x \xff\r";
    uint64_t seed = fixture_seed(__func__), counter = 0;
    struct schema_text text = bench_small;
    struct bench b;
    uint32_t n_well = 0;

    (void)state;
    text.quote = "\"";
    text.missing = "?";
    text.inner_separator = "|";
    text.bucketise = "b";
    bench_new(&b, &text, NULL);
    for (uint32_t round = 0; round < 100000; round++) {
        char line[40];
        size_t len = fixture_draw(seed, &counter, sizeof line);
        uint32_t n_before;
        int status;

        if (b.batch.n == b.batch.n_max)
            batch_clear(&b.batch);
        n_before = b.batch.n;
        for (size_t i = 0; i < len; i++)
            line[i] = alphabet[fixture_draw(seed, &counter, sizeof alphabet)];
        status = bench_parse_bytes(&b, line, len);
        assert_true(status == 0 || status == PS_EDATA);
        assert_int_equal(b.batch.n, n_before + (status == 0));
        n_well += status == 0;
    }
    assert_true(n_well > 0);
    bench_free(&b);
}

static void a_header_must_name_the_columns_in_order(void **state)
{
    static const struct {
        const char *line, *says;
    } cases[] = {
        { "y,a,b,c", "4 columns, 5 expected" },
        { "y,a,b,d,c", "column 3 is called 'd', 'c' expected" },
        { "y,a,b,c,d,e", "more than the 5" },
    };
    struct bench b;
    char good[] = "y,a,b,c,d";

    (void)state;
    bench_new(&b, &bench_small, NULL);
    assert_int_equal(
        line_parser_check_header(schema_plan(b.schema), good, strlen(good), &b.why), 0);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char line[64];

        strcpy(line, cases[i].line);
        assert_int_equal(
            line_parser_check_header(schema_plan(b.schema), line, strlen(line), &b.why),
            PS_EDATA);
        fixture_assert_says(&b.why, cases[i].says);
    }
    bench_free(&b);
}

#ifdef PS_FAULTS
static void a_bag_without_memory_leaves_the_batch_as_it_was(void **state)
{
    struct schema_text text = bench_small;
    struct bench b;
    char line[4000] = "1,0,0,";
    int status = -1;

    (void)state;
    text.inner_separator = "|";
    for (size_t at = strlen(line); at < sizeof line - 10; at += 2)
        memcpy(line + at, "a|", 2);
    strcat(line, ",x");
    for (long k = 0; status != 0; k++) {
        bench_new(&b, &text, NULL);
        bench_parse_well(&b, "1,2,3,x,y");
        memory_fail_after(k);
        status = bench_parse(&b, line);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
        assert_int_equal(b.batch.n, status ? 1 : 2);
        assert_true(status == 0 || b.batch.n_keys == 2);
        bench_free(&b);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(malformed_lines_are_refused_with_the_column),
        cmocka_unit_test(a_number_that_no_float_holds_is_refused),
        cmocka_unit_test(garbage_is_parsed_or_refused_and_nothing_else),
        cmocka_unit_test(a_header_must_name_the_columns_in_order),
#ifdef PS_FAULTS
        cmocka_unit_test(a_bag_without_memory_leaves_the_batch_as_it_was),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
