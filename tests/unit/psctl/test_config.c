/* psctl config: one line where nodes agree, one of each where they do not, and what must agree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "deploy/psctl/config.h"

#define SETTING(name, value, more) \
    "{\"name\":\"" name "\",\"value\":\"" value "\",\"equal\":true," more "}"
#define DEFAULT "\"source\":\"default\""
#define LINE(n) "\"source\":\"file\",\"path\":\"/etc/psd/psd.conf\",\"line\":" n
#define NODE(n, settings) "{\"node\":" n ",\"settings\":[" settings "]}"

/* The caller's to free. */
static char *print(const char *json, const char *word, bool is_wide, int *ret_code)
{
    cJSON *answers = cJSON_Parse(json);
    struct text_output_view view = { .is_wide = is_wide };
    char *text = NULL;
    size_t n;

    assert_non_null(answers);
    view.out = open_memstream(&text, &n);
    *ret_code = config_print(answers, &word, word ? 1 : 0, &view);
    fclose(view.out);
    cJSON_Delete(answers);
    return text;
}

static void expect(const char *json, const char *word, bool is_wide, int code,
                   const char *wanted)
{
    int got;
    char *text = print(json, word, is_wide, &got);

    assert_string_equal(text, wanted);
    assert_int_equal(got, code);
    free(text);
}

static void one_node_shows_what_is_not_the_default(void **state)
{
    static const char json[] = "{\"nodes\":[" NODE(
        "0", SETTING("lease", "10s", DEFAULT) "," SETTING(
                 "log-max", "4G",
                 LINE("7") ",\"reloadable\":true,\"reloaded\":true") "," SETTING("shards", "2",
                                                                                 DEFAULT
                                                                                 ",\"waits_for_"
                                                                                 "restart\":"
                                                                                 "true")) "]}";

    (void)state;
    expect(json, NULL, false, EXIT_ANSWERED,
           "SETTING  VALUE  FROM                  ON RELOAD\n"
           "log-max  4G     psd.conf:7, reloaded  takes effect\n"
           "shards   2      default               waits for a restart\n");
    expect(json, "lease", true, EXIT_ANSWERED,
           "SETTING  VALUE  FROM     ON RELOAD\n"
           "lease    10s    default  -\n");
}

static void nodes_that_agree_have_one_line_and_a_difference_is_a_problem(void **state)
{
    static const char json[] = "{\"nodes\":[" NODE(
        "0",
        SETTING("lease", "10s", DEFAULT) "," SETTING(
            "cut-every", "1000",
            DEFAULT)) "," NODE("1",
                               SETTING("lease", "10s", DEFAULT) "," SETTING(
                                   "cut-every", "500",
                                   LINE(
                                       "3"))) ","
                                              "{\"node\":2,\"error\":\"connection refused\"}]}";

    (void)state;
    expect(json, NULL, false, EXIT_FAILED,
           "SETTING    VALUE  NODE  FROM        ON RELOAD\n"
           "cut-every  1000   0     default     -\n"
           "cut-every  500    1     psd.conf:3  -\n"
           "problem: nodes differ in cut-every, which must be equal: node 0 has 1000, node 1 "
           "has 500\n");
    expect(json, "lease", false, EXIT_ANSWERED,
           "SETTING  VALUE  NODE  FROM     ON RELOAD\n"
           "lease    10s    all   default  -\n");
}

/* A newer one has a setting that an older one does not know. */
static void what_one_node_alone_has_is_shown(void **state)
{
    static const char json[] = "{\"nodes\":[" NODE("0", SETTING("a", "1", LINE("1"))) "," NODE(
        "1",
        SETTING("a", "1", LINE("1")) ","
                                     "{\"name\":\"b\",\"value\":\"2\"," LINE("9") "}") "]}";

    (void)state;
    expect(json, NULL, false, EXIT_ANSWERED,
           "SETTING  VALUE  NODE  FROM        ON RELOAD\n"
           "a        1      all   psd.conf:1  -\n"
           "b        2      1     psd.conf:9  -\n");
    expect(json, "c", false, EXIT_FAILED, "");
}

static void answers_without_sense_are_survived(void **state)
{
    static const char *const texts[] = {
        "{}",
        "[]",
        "{\"nodes\":7}",
        "{\"nodes\":[7,\"x\",null,[]]}",
        "{\"nodes\":[{\"settings\":7}]}",
        "{\"nodes\":[{\"settings\":[1,null,{},[],{\"name\":3,\"value\":{},\"line\":\"x\"}]}]}",
        ("{\"nodes\":[{\"settings\":{\"a\":{\"name\":\"a\"}}},{\"node\":-1e308,\"settings\":[{"
         "\"line\":1e308}]}]}"),
    };
    static const char evil[] =
        "{\"nodes\":[" NODE("0", SETTING("a\\u001b[2J", "\\u001b]0;x\\u0007", LINE("1"))) "]}";
    int code;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        free(print(texts[i], NULL, true, &code));
        free(print(texts[i], NULL, false, &code));
        free(print(texts[i], "a", false, &code));
    }
    char *text = print(evil, NULL, false, &code);

    assert_null(strchr(text, '\x1b'));
    assert_null(strchr(text, '\a'));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_node_shows_what_is_not_the_default),
        cmocka_unit_test(nodes_that_agree_have_one_line_and_a_difference_is_a_problem),
        cmocka_unit_test(what_one_node_alone_has_is_shown),
        cmocka_unit_test(answers_without_sense_are_survived),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
