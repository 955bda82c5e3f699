/* A curve as CSV, as a picture and as text: of any number of points, with and without what is not known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base.h"
#include "deploy/psctl/curve.h"

static void put_svg(const cJSON *points, FILE *out)
{
    curve_put_svg(points, "a<b>&\x1b\"", out);
}

/* *ret: the caller's to free. */
static void print(const char *json, void (*put)(const cJSON *points, FILE *out), char **ret)
{
    cJSON *points = cJSON_Parse(json);
    size_t n;
    FILE *out = open_memstream(ret, &n);

    assert_non_null(points);
    assert_non_null(out);
    put(points, out);
    fclose(out);
    cJSON_Delete(points);
}

static uint32_t count(const char *text, const char *what)
{
    uint32_t n = 0;

    for (const char *at = strstr(text, what); at; at = strstr(at + 1, what))
        n++;
    return n;
}

static const char three[] =
    "[{\"ms\":1700000000000,\"clock\":1,\"samples\":100,\"samples_per_s\":50.5,\"loss\":0.7,"
    "\"auc\":null,\"logloss\":null},"
    "{\"ms\":1700000002000,\"clock\":2,\"samples\":200,\"samples_per_s\":0,\"loss\":null,"
    "\"auc\":0.75,\"logloss\":0.5},"
    "{\"ms\":1700000004000,\"clock\":9,\"samples\":9007199254740992,\"samples_per_s\":1e15,"
    "\"loss\":0.6,\"auc\":null,\"logloss\":null}]";

static void what_is_not_known_is_an_empty_field(void **state)
{
    char *text;

    (void)state;
    print(three, curve_put_csv, &text);
    assert_string_equal(text, "unix_ms,clock,samples,samples_per_s,loss,auc,logloss\n"
                              "1700000000000,1,100,50.5,0.7,,\n"
                              "1700000002000,2,200,0,,0.75,0.5\n"
                              "1700000004000,9,9007199254740992,1e+15,0.6,,\n");
    free(text);
}

static void a_picture_has_a_line_for_each_series_that_has_values(void **state)
{
    char *text;

    (void)state;
    print(three, put_svg, &text);
    assert_int_equal(count(text, "<polyline"), 4);
    assert_int_equal(count(text, "<circle"), 2);
    assert_non_null(strstr(text, "a&#60;b&#62;&#38;&#65533;&#34;"));
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf"));
    assert_string_equal(text + strlen(text) - 7, "</svg>\n");
    free(text);
}

/* One point, equal ones, none of anything, nonsense of another program, the greatest numbers. */
static void curves_that_are_odd_are_drawn_too(void **state)
{
    static const char *const odd[] = {
        "[]",
        "[{}]",
        "[{\"samples\":5,\"loss\":1}]",
        "[{\"samples\":0,\"loss\":0},{\"samples\":0,\"loss\":0}]",
        "[{\"samples\":1,\"loss\":1e30},{\"samples\":2,\"loss\":0}]",
        "[{\"samples\":1,\"loss\":1e-30},{\"samples\":2,\"loss\":2e-30}]",
        "[{\"samples\":9007199254740991,\"loss\":1},{\"samples\":9007199254740992,\"loss\":1}]",
        "[{\"samples\":\"x\",\"loss\":[]},7,null]",
        "[{\"samples\":-5,\"loss\":-1e300},{\"samples\":1e300,\"loss\":1e300}]",
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(odd); i++) {
        char *svg, *text, *csv;

        print(odd[i], put_svg, &svg);
        print(odd[i], curve_put_text, &text);
        print(odd[i], curve_put_csv, &csv);
        assert_true(strlen(svg) < 100000 && strlen(text) < 2000);
        assert_null(strstr(svg, "nan"));
        assert_non_null(strstr(svg, "</svg>"));
        free(svg);
        free(text);
        free(csv);
    }
}

static void a_chart_of_text_falls_with_the_loss(void **state)
{
    const char *first, *last;
    char *text;

    (void)state;
    print("[{\"samples\":0,\"loss\":1},{\"samples\":50,\"loss\":0.75},"
          "{\"samples\":100,\"loss\":0.5}]",
          curve_put_text, &text);
    first = strchr(text, '*');
    last = strrchr(text, '*');
    assert_int_equal(count(text, "*"), 3);
    assert_true(first - strstr(text, "       1 |") == 10);
    assert_true(last > strstr(text, "     0.5 |"));
    assert_non_null(strstr(text, "0 to 100 samples"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_known_is_an_empty_field),
        cmocka_unit_test(a_picture_has_a_line_for_each_series_that_has_values),
        cmocka_unit_test(curves_that_are_odd_are_drawn_too),
        cmocka_unit_test(a_chart_of_text_falls_with_the_loss),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
