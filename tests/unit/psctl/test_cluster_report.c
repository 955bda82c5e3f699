/* The answers of several nodes as one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "deploy/psctl/cluster_report.h"
#include "deploy/psctl/field.h"

static cJSON *merge(const char *json)
{
    cJSON *answers = cJSON_Parse(json), *all;

    assert_non_null(answers);
    all = cluster_report_merge(answers);
    cJSON_Delete(answers);
    return all;
}

static void rows_are_added_and_pushes_are_the_most(void **state)
{
    cJSON *all = merge(
        "{\"nodes\":["
        "{\"tables\":[{\"name\":\"a\",\"rows\":1,\"pushes\":7,\"overhead_bytes_per_row\":10},"
        "{\"name\":\"b\",\"rows\":2}]},"
        "{\"error\":\"gone\"},"
        "{\"tables\":[{\"name\":\"b\",\"rows\":3},{\"name\":\"c\",\"rows\":4},"
        "{\"name\":\"a\",\"rows\":3,\"pushes\":5,\"overhead_bytes_per_row\":30}]}]}");
    const cJSON *tables = field_child(all, "tables"), *a = field_find(tables, "name", "a");

    (void)state;
    assert_int_equal(cJSON_GetArraySize(tables), 3);
    assert_true(field_number(a, "rows") == 4);
    assert_true(field_number(a, "pushes") == 7);
    assert_true(field_number(a, "overhead_bytes_per_row") == 25);
    assert_true(field_number(field_find(tables, "name", "b"), "rows") == 5);
    assert_true(field_number(field_find(tables, "name", "c"), "rows") == 4);
    cJSON_Delete(all);
}

static void a_job_is_as_far_as_its_last_shard(void **state)
{
    cJSON *all =
        merge("{\"nodes\":[{\"jobs\":[{\"name\":\"j\",\"min_clock\":5,\"deaths\":1,"
              "\"staleness\":{\"0\":2,\"16-31\":1},"
              "\"workers\":[{\"rank\":0,\"state\":\"live\",\"clock\":5,\"name\":\"\"}]}]},"
              "{\"jobs\":[{\"name\":\"j\",\"min_clock\":3,\"deaths\":1,\"staleness\":{\"0\":1,"
              "\"4\":1},"
              "\"workers\":[{\"rank\":0,\"state\":\"suspected\",\"clock\":3,\"name\":\"w\"},"
              "{\"rank\":1,\"state\":\"left\",\"clock\":9,\"name\":\"x\"}]}]}]}");
    const cJSON *job = cJSON_GetArrayItem(field_child(all, "jobs"), 0),
                *workers = field_child(job, "workers"),
                *worker = cJSON_GetArrayItem(workers, 0);
    char *staleness = cJSON_PrintUnformatted(field_child(job, "staleness"));

    (void)state;
    assert_true(field_number(job, "min_clock") == 3);
    assert_true(field_number(job, "deaths") == 1);
    assert_string_equal(staleness, "{\"0\":3,\"4\":1,\"16-31\":1}");
    assert_int_equal(cJSON_GetArraySize(workers), 2);
    assert_string_equal(field_text(worker, "state"), "suspected");
    assert_string_equal(field_text(worker, "name"), "w");
    assert_true(field_number(worker, "clock") == 3);
    cJSON_free(staleness);
    cJSON_Delete(all);
}

/* Workers report to each node. */
static void the_newest_report_of_learning_counts(void **state)
{
    cJSON *all = merge("{\"nodes\":[{\"jobs\":[{\"name\":\"j\",\"samples\":null,\"loss\":null,"
                       "\"busy\":null,\"reported_unix_ms\":0,\"workers\":[]}]},"
                       "{\"jobs\":[{\"name\":\"j\",\"samples\":7,\"loss\":0.5,\"auc\":null,"
                       "\"busy\":{\"read\":0.5},\"reported_unix_ms\":9,\"workers\":[]}]},"
                       "{\"jobs\":[{\"name\":\"j\",\"samples\":6,\"loss\":2,\"auc\":1,"
                       "\"busy\":{},\"reported_unix_ms\":8,\"workers\":[]}]},"
                       "{\"jobs\":[{\"name\":\"j\",\"workers\":[]}]}]}"); /* an older psd */
    const cJSON *job = cJSON_GetArrayItem(field_child(all, "jobs"), 0);

    (void)state;
    assert_true(field_number(job, "samples") == 7 && field_number(job, "loss") == 0.5);
    assert_true(field_number(field_child(job, "busy"), "read") == 0.5);
    assert_false(cJSON_IsNumber(field_child(job, "auc")));
    cJSON_Delete(all);
}

static void waits_are_on_the_clock_of_the_first_node(void **state)
{
    cJSON *all = merge(
        "{\"nodes\":[{\"error\":\"gone\"},"
        "{\"now_unix_ms\":1000,\"waits\":[{\"since_unix_ms\":900,\"until_unix_ms\":0}]},"
        "{\"now_unix_ms\":5000,\"waits\":[{\"since_unix_ms\":4500,\"until_unix_ms\":6000}]}]}");
    const cJSON *waits = field_child(all, "waits"), *second = cJSON_GetArrayItem(waits, 1);

    (void)state;
    assert_true(field_number(all, "now_unix_ms") == 1000);
    assert_true(field_number(cJSON_GetArrayItem(waits, 0), "until_unix_ms") == 0);
    assert_true(field_number(second, "since_unix_ms") == 500);
    assert_true(field_number(second, "until_unix_ms") == 2000);
    cJSON_Delete(all);
}

static void nobody_answers(void **state)
{
    cJSON *all = merge("{\"nodes\":[{\"error\":\"gone\"},{\"tables\":\"nonsense\"}]}");

    (void)state;
    assert_null(field_child(all, "jobs"));
    assert_int_equal(cJSON_GetArraySize(field_child(all, "tables")), 0);
    cJSON_Delete(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_added_and_pushes_are_the_most),
        cmocka_unit_test(a_job_is_as_far_as_its_last_shard),
        cmocka_unit_test(the_newest_report_of_learning_counts),
        cmocka_unit_test(waits_are_on_the_clock_of_the_first_node),
        cmocka_unit_test(nobody_answers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
