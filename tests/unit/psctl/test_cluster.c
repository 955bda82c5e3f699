/* psctl cluster: members' answers as one line for each group. */
#include "deploy/psctl/cluster.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "deploy/psctl/field.h"

#define ANSWER(group, address, role, state, term, peer, in_sync, waits)                   \
    "{\"group\":" group ",\"address\":\"" address "\",\"status\":{\"address\":\"" address \
    "\",\"ready\":true,\"version\":\"1.0\",\"health\":\"ok\",\"replication\":{\"role\":"  \
    "\"" role "\",\"state\":\"" state "\",\"term\":" term ",\"peer\":\"" peer             \
    "\",\"in_sync\":" in_sync                                                             \
    ",\"standby_lag_records\":5,\"standby_lag_ms\":6}},\"why\":{\"waits\":[" waits "]}}"
#define SILENT(group, address) \
    "{\"group\":" group ",\"address\":\"" address "\",\"error\":\"psd at " address ": away\"}"

static const struct groups known = {
    .n = 2, .items = { { 3, true, "a:1", "b:1" }, { 9, true, "c:1", "d:1" } }
};

/* The text, the caller's to free. */
static char *show_of(const struct groups *groups, const char *members, cJSON **ret_summary)
{
    cJSON *answers = cJSON_Parse(members);
    const struct terminal terminal = { 0 };
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);

    assert_non_null(answers);
    *ret_summary = cluster_summary(groups, answers);
    cluster_print(*ret_summary, &terminal, out);
    fclose(out);
    cJSON_Delete(answers);
    return text;
}

static char *show(const char *members, cJSON **ret_summary)
{
    return show_of(&known, members, ret_summary);
}

static void assert_has(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("no \"%s\" in:\n%s", words, text);
}

static void each_group_has_a_line_and_its_waits(void **state)
{
    cJSON *summary;
    char *text =
        show("[" ANSWER("0", "a:1", "primary", "in sync", "3", "b:1", "true",
                        "") "," ANSWER("0", "b:1", "standby", "in sync", "3", "a:1", "true",
                                       "") "," SILENT("1", "c:1") "," SILENT("1", "d:1") "]",
             &summary);
    const cJSON *groups = field_child(summary, "groups");

    (void)state;
    assert_int_equal(cJSON_GetArraySize(groups), 2);
    assert_string_equal(field_text(cJSON_GetArrayItem(groups, 0), "primary"), "a:1");
    assert_null(strstr(text, "too"));
    assert_true(field_is_true(cJSON_GetArrayItem(groups, 0), "in_sync"));
    assert_true(field_number(cJSON_GetArrayItem(groups, 0), "lag_records") == 5);
    /* Whose members are silent: as it was known. */
    assert_has(text, "c:1 (does not serve)  d:1         9  yes           -     -  -\n");
    assert_has(text, "group 1: c:1 does not answer: psd at c:1: away\n");
    assert_has(text, "group 1: d:1 does not answer");
    cJSON_Delete(summary);
    free(text);
}

/* What is known is what its standby has heard, also where nobody else knows of that standby. */
static void a_frozen_primary_has_the_standby_that_answers(void **state)
{
    cJSON *summary;
    char *text = show("[" SILENT("0", "a:1") "," ANSWER("0", "x:1", "standby", "not following",
                                                        "3", "a:1", "false", "") "]",
                      &summary);
    const cJSON *group = cJSON_GetArrayItem(field_child(summary, "groups"), 0);

    (void)state;
    assert_string_equal(field_text(group, "standby"), "x:1");
    assert_string_equal(field_text(group, "standby_state"), "not following");
    assert_has(text, "a:1 (does not serve)  x:1         3  yes           5  6 ms  1.0\n");
    assert_has(
        text,
        "group 0: x:1 is its standby: not following; when it last heard of the primary it was "
        "5 records and 6 ms behind\n");
    cJSON_Delete(summary);
    free(text);
}

/* As etcd has a claim whose standby was lost, or never came. */
static void a_claim_without_a_standby_says_that_nobody_takes_over(void **state)
{
    static const struct groups lonely = { .n = 1, .items = { { 4, true, "a:1", "" } } };
    static const char words[] =
        "group 0: no standby is known that may take over: start the primary again";
    static const struct {
        const char *members, *line;
        bool is_said;
    } cases[] = {
        { "[" SILENT("0", "a:1") "]",
          "a:1 (does not serve)  -           4  -             -    -  -\n", true },
        { "[" ANSWER("0", "a:1", "primary", "alone", "4", "", "false", "") "]",
          "a:1      -           4  -             -    -  1.0\n", false },
        { "[" ANSWER("0", "a:1", "primary", "no standby", "4", "b:1", "false", "") "]",
          "a:1      b:1         4  no            -    -  1.0\n", false },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        cJSON *summary;
        char *text = show_of(&lonely, cases[i].members, &summary);

        assert_has(text, cases[i].line);
        assert_int_equal(strstr(text, words) != NULL, cases[i].is_said);
        cJSON_Delete(summary);
        free(text);
    }
}

/* A promotion there would lose what the primary is about to serve. */
static void a_primary_that_restores_its_data_is_waited_for(void **state)
{
    static const struct groups lonely = { .n = 1, .items = { { 0, false, "a:1", "" } } };
    static const struct {
        const char *restoring, *line;
    } cases[] = {
        { "\"bytes\":879,\"total_bytes\":1000",
          "group 0: the primary restores its data (87 %): wait\n"
          "group 0: a:1 waits for restore: restoring: 87 %\n" },
        { "\"bytes\":0,\"total_bytes\":0", "group 0: the primary restores its data: wait\n" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        cJSON *summary;
        char members[400], *text;

        snprintf(members, sizeof members,
                 "[{\"group\":0,\"address\":\"a:1\",\"status\":{\"address\":\"a:1\","
                 "\"ready\":false,\"restoring\":{%s}},\"why\":{\"waits\":[{\"what\":"
                 "\"restore\",\"who\":\"this node\",\"why\":\"restoring: 87 %%\"}]}}]",
                 cases[i].restoring);
        text = show_of(&lonely, members, &summary);
        assert_has(text, cases[i].line);
        assert_null(strstr(text, "promote"));
        cJSON_Delete(summary);
        free(text);
    }
}

/* Its handshake has its own address alone. */
static void a_standby_that_was_asked_names_its_silent_primary(void **state)
{
    static const struct groups own = { .n = 1, .items = { { 0, false, "x:1", "" } } };
    cJSON *summary;
    char *text = show_of(
        &own,
        "[" ANSWER("0", "x:1", "standby", "not following", "3", "a:1", "false",
                   "{\"what\":\"standby\",\"who\":\"a:1\",\"why\":\"a:1 is "
                   "asked to be followed\"},{\"what\":\"coordination\",\"who\":"
                   "\"etcd://e/p\",\"why\":\"it does not answer\"}") "," SILENT("0", "a:1") "]",
        &summary);

    (void)state;
    assert_has(text, "a:1 (does not serve)  x:1         3");
    assert_has(text, "group 0: x:1 waits for primary a:1: a:1 is asked to be followed\n");
    assert_has(text, "group 0: x:1 waits for coordination etcd://e/p: it does not answer\n");
    cJSON_Delete(summary);
    free(text);
}

/* One that was cut off says still that it is the primary. */
static void the_greatest_term_serves(void **state)
{
    cJSON *summary;
    char *text = show("[" ANSWER("0", "a:1", "primary", "no standby", "3", "b:1", "false",
                                 "{\"what\":\"standby\",\"who\":\"b:1\",\"why\":\"it is "
                                 "lost\"}") "," ANSWER("0", "b:1", "primary", "no standby", "4",
                                                       "a:1", "false", "") "]",
                      &summary);
    const cJSON *group = cJSON_GetArrayItem(field_child(summary, "groups"), 0);

    (void)state;
    assert_string_equal(field_text(group, "primary"), "b:1");
    assert_string_equal(field_text(group, "standby"), "a:1");
    assert_true(field_number(group, "term") == 4);
    assert_has(text, "group 0: a:1 waits for standby b:1: it is lost\n");
    assert_has(text,
               "group 0: a:1 serves as a primary, too, with other data than b:1, which has "
               "the newest term: stop one of the two\n");
    cJSON_Delete(summary);
    free(text);
}

static void without_answers_there_is_what_was_known(void **state)
{
    cJSON *summary;
    char *text = show("[]", &summary);

    (void)state;
    assert_has(text, "a:1 (does not serve)  b:1         3  yes");
    cJSON_Delete(summary);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_group_has_a_line_and_its_waits),
        cmocka_unit_test(a_claim_without_a_standby_says_that_nobody_takes_over),
        cmocka_unit_test(a_primary_that_restores_its_data_is_waited_for),
        cmocka_unit_test(a_standby_that_was_asked_names_its_silent_primary),
        cmocka_unit_test(the_greatest_term_serves),
        cmocka_unit_test(without_answers_there_is_what_was_known),
        cmocka_unit_test(a_frozen_primary_has_the_standby_that_answers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
