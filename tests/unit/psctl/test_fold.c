/* Lines are broken between words, and go on below what they say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "deploy/psctl/fold.h"

static void expect(const char *text, uint32_t width, const char *wanted)
{
    const struct terminal terminal = { .width = width };
    char *got = NULL;
    size_t n;
    FILE *out = open_memstream(&got, &n);

    fold_print(text, &terminal, out);
    fclose(out);
    assert_string_equal(got, wanted);
    free(got);
}

static void a_line_that_fits_stays(void **state)
{
    (void)state;
    expect("", 30, "");
    expect("one\n\ntwo\n", 30, "one\n\ntwo\n");
    expect("123456789 123456789 123456789\n", 29, "123456789 123456789 123456789\n");
    expect("a line without an end of the terminal\n", 0,
           "a line without an end of the terminal\n");
}

static void a_wider_one_goes_on_in_the_next(void **state)
{
    (void)state;
    expect("problem: node 1 does not answer, and has not for long\n", 30,
           "problem: node 1 does not\n    answer, and has not for\n    long\n");
    expect("disk         checkpoints 0 B, logs 160 B\n", 30,
           "disk         checkpoints 0 B,\n             logs 160 B\n");
    expect("psd at 127.0.0.1:17870, node 0 of 2\n", 30,
           "psd at 127.0.0.1:17870, node 0\n    of 2\n");
}

static void a_word_that_is_too_wide_stays_whole(void **state)
{
    (void)state;
    expect("a 123456789012345678901234567890 b c\n", 26,
           "a\n    123456789012345678901234567890\n    b c\n");
    expect("123456789012345678901234567890\n", 26, "123456789012345678901234567890\n");
    expect("123456789012345678901234567890 \n", 26, "123456789012345678901234567890\n");
}

static void colours_and_characters_count_as_what_is_seen(void **state)
{
    (void)state;
    expect("\x1b[31mproblem\x1b[0m: 12345678901234567\n", 26,
           "\x1b[31mproblem\x1b[0m: 12345678901234567\n");
    expect("\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4 12345678901234567 123\n", 26,
           "\xc3\xa4\xc3\xa4\xc3\xa4\xc3\xa4 12345678901234567 123\n");
    expect("\x1b[31mno end of it 1234567890 1234567890\n", 26,
           "\x1b[31mno end of it 1234567890\n    1234567890\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_that_fits_stays),
        cmocka_unit_test(a_wider_one_goes_on_in_the_next),
        cmocka_unit_test(a_word_that_is_too_wide_stays_whole),
        cmocka_unit_test(colours_and_characters_count_as_what_is_seen),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
