/* Text in markup, and charts of any values. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/markup.h"
#include "common/svg.h"

static void check(const char *text, const char *want)
{
    char *got;
    size_t n;
    FILE *out = open_memstream(&got, &n);

    assert_non_null(out);
    markup_put(out, text);
    fclose(out);
    assert_string_equal(got, want);
    free(got);
}

static void markup_is_escaped_and_the_rest_stays(void **state)
{
    (void)state;
    check("", "");
    check("a<b> & \"c\" 'd'", "a&#60;b&#62; &#38; &#34;c&#34; &#39;d&#39;");
    check("Z\xc3\xbcrich \xe6\x9d\xb1 \xf0\x9f\x9a\x80",
          "Z\xc3\xbcrich \xe6\x9d\xb1 \xf0\x9f\x9a\x80");
}

static void what_is_no_printable_character_is_replaced(void **state)
{
    (void)state;
    check("a\x1b[31m\n\x7f", "a&#65533;[31m&#65533;&#65533;");
    check("\xff\xfe\x80", "&#65533;&#65533;&#65533;"); /* no UTF-8 */
    check("\xc0\xbc", "&#65533;&#65533;");             /* < in two bytes */
    check("\xe0\x80\xbc", "&#65533;&#65533;&#65533;"); /* and in three */
    check("\xed\xa0\x80", "&#65533;&#65533;&#65533;"); /* half of a surrogate pair */
    check("\xf4\x90\x80\x80", "&#65533;&#65533;&#65533;&#65533;"); /* above U+10FFFF */
    check("\xe2\x80\xae"
          "gpj",
          "&#65533;gpj");      /* from right to left */
    check("\xc3", "&#65533;"); /* ends within a character */
    check("\xf0\x9f\x9a", "&#65533;&#65533;&#65533;");
}

static void a_range_is_rounded_outwards(void **state)
{
    struct svg_range r = svg_range_empty;

    (void)state;
    assert_true(svg_range_is_empty(&r));
    svg_range_add(&r, (double)NAN);
    svg_range_add(&r, (double)INFINITY);
    assert_true(svg_range_is_empty(&r));
    svg_range_add(&r, 0.13);
    svg_range_add(&r, 0.87);
    assert_true(fabs(svg_range_round(&r, 5) - 0.2) < 1e-12);
    assert_true(fabs(r.min - 0) < 1e-12);
    assert_true(fabs(r.max - 1) < 1e-12);
}

static void equal_values_have_a_range(void **state)
{
    static const double values[] = { 0, 5, -3, 1e-30, 1e30 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(values); i++) {
        struct svg_range r = svg_range_empty;

        svg_range_add(&r, values[i]);
        assert_true(svg_range_round(&r, 5) > 0);
        assert_true(r.min <= values[i] && values[i] <= r.max && r.min < r.max);
    }
}

static void numbers_have_units(void **state)
{
    char text[SVG_NUMBER_MAX];

    (void)state;
    svg_number(text, 12000);
    assert_string_equal(text, "12 k");
    svg_number(text, -3.4e6);
    assert_string_equal(text, "-3.4 M");
    svg_number(text, 0.25);
    assert_string_equal(text, "0.25");
    svg_number(text, 1e-300);
    assert_string_equal(text, "0");
    svg_number(text, 1e300);
    assert_string_equal(text, "1e+300");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(markup_is_escaped_and_the_rest_stays),
        cmocka_unit_test(what_is_no_printable_character_is_replaced),
        cmocka_unit_test(a_range_is_rounded_outwards),
        cmocka_unit_test(equal_values_have_a_range),
        cmocka_unit_test(numbers_have_units),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
