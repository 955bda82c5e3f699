/* Tables at a terminal: folding, cutting, alignment. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "deploy/psctl/text_grid.h"

static const char *const heads[] = { "<NAME", "ROWS", "2MEMORY", "<1KIND" };

/* What a grid of two rows prints; the caller's to free. */
static char *print(uint32_t width, bool has_colours, uint32_t *ret_hidden)
{
    const struct terminal terminal = { .width = width, .has_colours = has_colours };
    struct text_grid g;
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);

    text_grid_init(&g, heads, COUNT_OF(heads));
    text_grid_add(&g, "a table of a long name");
    text_grid_add(&g, "7");
    text_grid_add(&g, "1.0 MiB");
    text_grid_add(&g, "sparse");
    text_grid_add(&g, "b\033[2J");
    text_grid_add(&g, "12345");
    text_grid_paint(&g, TERMINAL_RED);
    text_grid_add(&g, "2 B");
    text_grid_add(&g, "dense");
    *ret_hidden = text_grid_finish(&g, &terminal, out);
    fclose(out);
    return text;
}

static void expect(uint32_t width, uint32_t n_hidden, const char *expected)
{
    uint32_t hidden;
    char *text = print(width, false, &hidden);

    assert_string_equal(text, expected);
    assert_int_equal(hidden, n_hidden);
    free(text);
}

static void all_columns_are_shown_where_they_fit(void **state)
{
    const char *const all = "NAME                     ROWS   MEMORY  KIND\n"
                            "a table of a long name      7  1.0 MiB  sparse\n"
                            "b?[2J                   12345      2 B  dense\n";

    (void)state;

    expect(0, 0, all);
    expect(46, 0, all);
}

static void columns_of_the_greatest_digit_go_first(void **state)
{
    (void)state;
    expect(45, 1,
           "NAME                     ROWS  KIND\n"
           "a table of a long name      7  sparse\n"
           "b?[2J                   12345  dense\n");
    expect(36, 2,
           "NAME                     ROWS\n"
           "a table of a long name      7\n"
           "b?[2J                   12345\n");
}

static void what_has_to_stay_is_shortened(void **state)
{
    (void)state;
    expect(20, 2,
           "NAME            ROWS\n"
           "a table of ..      7\n"
           "b?[2J          12345\n");
}

static void no_line_is_wider_than_the_terminal(void **state)
{
    (void)state;
    for (uint32_t width = 20; width < 60; width++) {
        uint32_t hidden;
        char *text = print(width, false, &hidden), *at = text;

        for (char *end; (end = strchr(at, '\n')) != NULL; at = end + 1)
            assert_true((size_t)(end - at) <= width);
        free(text);
    }
}

static void a_cell_has_its_colour_and_its_place_is_the_same(void **state)
{
    uint32_t hidden;
    char *text = print(0, true, &hidden);

    (void)state;

    assert_non_null(strstr(text, "\033[1mNAME"));
    assert_non_null(strstr(text, "\033[31m12345\033[0m"));
    free(text);
}

static void letters_of_several_bytes_count_once(void **state)
{
    static const char *const two[] = { "<A", "B" };
    const struct terminal terminal = { .width = 0 };
    struct text_grid g;
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);

    (void)state;

    text_grid_init(&g, two, COUNT_OF(two));
    text_grid_add(&g, "\xc3\xa4\xc3\xb6");
    text_grid_add(&g, "1");
    text_grid_add(&g, "abc");
    text_grid_add(&g, "2");
    text_grid_finish(&g, &terminal, out);
    fclose(out);
    assert_string_equal(text, "A    B\n\xc3\xa4\xc3\xb6   1\nabc  2\n");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_columns_are_shown_where_they_fit),
        cmocka_unit_test(columns_of_the_greatest_digit_go_first),
        cmocka_unit_test(what_has_to_stay_is_shortened),
        cmocka_unit_test(no_line_is_wider_than_the_terminal),
        cmocka_unit_test(a_cell_has_its_colour_and_its_place_is_the_same),
        cmocka_unit_test(letters_of_several_bytes_count_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
