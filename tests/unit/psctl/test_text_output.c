/* Answers of psd as text: dense tables of a job as one line, no line wider than the terminal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "deploy/psctl/text_output.h"

#define DENSE(name, optimizer, rows)                                                 \
    "{\"name\":\"" name "\",\"kind\":\"dense\",\"dim\":4,\"optimizer\":\"" optimizer \
    "\",\"learning_rate\":0.5,\"mode\":\"job\",\"storage\":\"fp32\",\"rows\":" rows  \
    ",\"bytes\":100,\"pushes\":" rows                                                \
    ",\"rows_pulled\":0,\"rows_pushed\":0,\"rows_removed\":0,"                       \
    "\"rows_unadmitted\":0,\"rows_refused\":0}"

static const char tables[] =
    "{\"tables\":[" DENSE("j/a", "sgd", "1") "," DENSE("k/a", "sgd", "8") "," DENSE(
        "j/b", "adam", "2") "," DENSE("dense of none", "sgd", "3") "]}";

/* The caller's to free. */
static char *print(const char *command, const char *json, uint32_t width, bool is_wide)
{
    cJSON *root = cJSON_Parse(json);
    struct text_output_view view = { .terminal = { .width = width }, .is_wide = is_wide };
    char *text = NULL;
    size_t n;

    assert_non_null(root);
    view.out = open_memstream(&text, &n);
    assert_true(text_output_answer(command, root, &view));
    fclose(view.out);
    cJSON_Delete(root);
    return text;
}

static void dense_tables_of_a_job_are_one_line(void **state)
{
    char *text = print("tables", tables, 0, false);

    (void)state;
    assert_non_null(strstr(
        text, "\nj (2 dense)    dense    -  mixed       0.5  job   fp32       3   200 B"));
    assert_non_null(strstr(text, "\nk/a "));
    assert_non_null(strstr(text, "\ndense of none  dense"));
    assert_null(strstr(text, "j/a"));
    assert_null(strstr(text, "j/b"));
    free(text);
}

static void wide_has_each_table(void **state)
{
    char *text = print("tables", tables, 0, true);

    (void)state;
    assert_non_null(strstr(text, "\nj/a "));
    assert_non_null(strstr(text, "\nj/b "));
    assert_null(strstr(text, "2 dense"));
    free(text);
}

static void no_line_is_wider_than_the_terminal(void **state)
{
    (void)state;
    for (uint32_t width = 60; width < 150; width++) {
        char *text = print("tables", tables, width, false), *at = text;

        for (char *end; (end = strchr(at, '\n')) != NULL; at = end + 1)
            assert_true((size_t)(end - at) <= width);
        free(text);
    }
}

static void tables_without_their_fields_are_survived(void **state)
{
    char *text = print("tables",
                       "{\"tables\":[{\"name\":\"j/a\",\"kind\":\"dense\"},"
                       "{\"name\":\"j/b\",\"kind\":\"dense\",\"rows\":2},7,{}]}",
                       0, false);

    (void)state;
    assert_non_null(strstr(text, "j (2 dense)"));
    free(text);
}

static void another_programs_answer_is_refused(void **state)
{
    struct text_output_view view = { .out = stdout };
    cJSON *root = cJSON_Parse("{\"hello\":1}");

    (void)state;
    assert_false(text_output_answer("tables", root, &view));
    assert_false(text_output_answer("nonsense", root, &view));
    assert_false(text_output_answer("tables", NULL, &view));
    cJSON_Delete(root);
}

/* A noun behind each number, as the number wants it. */
static void one_of_a_kind_is_not_many(void **state)
{
    static const char status[] =
        "{\"node\":0,\"totals\":{\"rows\":1,\"n_waits\":1,\"staleness_violations\":1,\"net\":{"
        "\"refused_requests\":1,\"refused_greetings\":2,\"malformed_frames\":1,\"slow_peers\":"
        "1},"
        "\"counters\":{\"nan_pushes\":1,\"rows_refused\":1}}}";
    static const char nodes[] = "{\"nodes\":[{\"node\":0,\"ready\":true,\"totals\":{\"rows\":1}"
                                "},{\"node\":1,\"error\":\"away\"}]}";
    static const char workers[] =
        "{\"jobs\":[{\"name\":\"j\",\"mode\":\"ssp\",\"bound\":1,\"min_clock\":1,\"deaths\":1,"
        "\"fenced\":1,"
        "\"staleness_violations\":1,\"staleness\":{},\"workers\":[]}]}";
    static const struct {
        const char *command, *json, *text;
    } cases[] = {
        { "status", status,
          "\nrefused      1 request, 2 greetings, 1 malformed frame, 1 slow peer, 1 push with "
          "NaN, 1 new row\n" },
        { "status", status, "1 wait (psctl why), 1 staleness violation\n" },
        { "status", nodes, "cluster of 2 nodes: 1 answers, 1 is ready; 1 row in " },
        { "workers", workers, ", min clock 1, 1 death, 1 fenced, 1 staleness violation\n" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char *text = print(cases[i].command, cases[i].json, 0, false);

        if (!strstr(text, cases[i].text))
            fail_msg("no \"%s\" in:\n%s", cases[i].text, text);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_of_a_kind_is_not_many),
        cmocka_unit_test(dense_tables_of_a_job_are_one_line),
        cmocka_unit_test(wide_has_each_table),
        cmocka_unit_test(no_line_is_wider_than_the_terminal),
        cmocka_unit_test(tables_without_their_fields_are_survived),
        cmocka_unit_test(another_programs_answer_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
