/* psctl top: rates between two reports, order, keys; and psctl latency, from the same reports. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "deploy/psctl/field.h"
#include "deploy/psctl/latency.h"
#include "deploy/psctl/top.h"

#define SHARD(n, rows, p99, bytes)                                                           \
    "{\"shard\":" n                                                                          \
    ",\"reported\":true,\"report_age_ms\":0,\"cpu_seconds\":1,\"bytes\":" bytes              \
    ",\"counters\":{\"rows_pulled\":" rows                                                   \
    ",\"pulls\":7},\"net\":{\"bytes_in\":0},\"requests\":{\"pull\":"                         \
    "{\"p99_ns\":" p99 "}},\"log\":{\"records\":12,\"durable\":2,\"push_wait_us\":0,\"disk_" \
    "bytes_per_s\":1048576}}"

#define REPORT(now, rows, clock)                                                               \
    "{\"nodes\":[{\"node\":0,\"started_unix_ms\":1,\"now_unix_ms\":" now                       \
    ",\"shards\":[" SHARD("0", "0", "2000000", "10") "," SHARD(                                \
        "1", rows, "1000000",                                                                  \
        "20") "],\"totals\":{\"rows\":5,\"bytes\":30,\"requests\":{\"pull\":{\"minute_ns\":[[" \
              "999,20],[4095,10],[999999,1]]},"                                                \
              "\"push\":{\"minute_ns\":[]}}},\"tables\":[{\"name\":\"j/"                       \
              "emb\",\"kind\":\"sparse\",\"rows_pulled\":" rows "}],"                          \
              "\"jobs\":[{\"name\":\"j\",\"mode\":\"ssp\",\"bound\":4,\"n_workers\":2,\"min_"  \
              "clock\":3,\"parked_ms\":" clock "00,\"staleness\":{},"                          \
              "\"samples_per_s\":1500.4,\"loss\":0.25,\"auc\":null,\"workers\":[{\"rank\":0,"  \
              "\"samples_per_s\":750,\"loss\":0.125,"                                          \
              "\"state\":\"live\",\"clock\":" clock ",\"name\":\"w0\"},"                       \
              "{\"rank\":1,\"state\":\"live\",\"clock\":3,\"name\":\"w1\"}]}],\"waits\":[]},"  \
              "{\"node\":1,\"error\":\"connection refused\"},"                                 \
              "{\"node\":2,\"now_unix_ms\":" now                                               \
              ",\"totals\":{\"requests\":{\"pull\":{\"minute_ns\":[[2047,5],[4095,4]]}}}}]}"

static const char before_json[] = REPORT("10000", "100", "5"),
                  after_json[] = REPORT("12000", "4100", "9");

/* The caller's to free. */
static char *print_of(const char *later_json, const struct top_view *view)
{
    cJSON *before = cJSON_Parse(before_json), *after = cJSON_Parse(later_json);
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);

    assert_non_null(before);
    assert_non_null(after);
    assert_int_equal(top_print(before, after, view, out), 1);
    fclose(out);
    cJSON_Delete(before);
    cJSON_Delete(after);
    return text;
}

static char *print(const struct top_view *view)
{
    return print_of(after_json, view);
}

/* A node is silent, and the job stands still: what its workers said last is no rate of now. */
static void a_job_that_stands_still_has_no_rate(void **state)
{
    const struct top_view view = { .sort = TOP_BY_NUMBER };
    char *text = print_of(REPORT("12000", "4100", "5"), &view);
    cJSON *before = cJSON_Parse(before_json),
          *after = cJSON_Parse(REPORT("12000", "4100", "5")), *json = top_json(before, after);

    (void)state;
    assert_null(strstr(text, "1500"));
    assert_non_null(strstr(text, "0.2500")); /* its loss is no rate */
    free(text);
    text = print_of(after_json, &view);
    assert_non_null(strstr(text, "1500"));
    free(text);
    assert_true(cJSON_IsNull(
        field_child(cJSON_GetArrayItem(field_child(json, "jobs"), 0), "samples_per_s")));
    cJSON_Delete(before);
    cJSON_Delete(after);
    cJSON_Delete(json);
}

static void rates_are_those_between_the_reports(void **state)
{
    struct top_view view = { .sort = TOP_BY_NUMBER };
    char *text = print(&view);

    (void)state;
    assert_non_null(strstr(
        text, "3 nodes, 2 shards, 1 job; 2.0 k rows/s, 0 B/s; 5 rows in 30 B; 0 waits\n"));
    assert_non_null(strstr(text, "node 1 does not answer: connection refused\n"));
    assert_non_null(strstr(text, "\n    1     0   2.0 k        0         0    1.0 ms"));
    assert_non_null(
        strstr(text, "\nj    ssp 4  2 of 2      9       2.0       1500  0.2500    -       6 "));
    assert_non_null(strstr(text, "  20 %"));
    free(text);
}

static void shards_are_in_the_order_that_was_asked_for(void **state)
{
    static const struct {
        enum top_sort sort;
        bool is_one_first;
    } cases[] = { { TOP_BY_NUMBER, false },
                  { TOP_BY_ROWS, true },
                  { TOP_BY_LATENCY, false },
                  { TOP_BY_MEMORY, true },
                  { TOP_BY_LAG, false } };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct top_view view = { .sort = cases[i].sort };
        char *text = print(&view);

        assert_true((strstr(text, "\n    1  ") < strstr(text, "\n    0  ")) ==
                    cases[i].is_one_first);
        free(text);
    }
}

static void a_job_is_opened_with_its_workers_and_tables(void **state)
{
    struct top_view view = { .is_open = true };
    char *text = print(&view);

    (void)state;
    assert_non_null(strstr(
        text, "\njob j: ssp, min clock 3, loss 0.2500, AUC - (psctl job has its curve)\n"));
    assert_non_null(strstr(
        text, "   0  live       9       2.0       0        750  0.1250   0 s ago  w0\n"));
    assert_non_null(strstr(
        text, "   1  live       3       0.0       6          -       -   0 s ago  w1\n"));
    assert_non_null(strstr(text, "\nj/emb  sparse     0     0 B  2000.0\n"));
    assert_null(strstr(text, "SHARD"));
    free(text);
}

static void keys_sort_select_open_and_end(void **state)
{
    struct top_view view = { 0 };

    (void)state;
    assert_true(top_press(&view, 2, "r") && view.sort == TOP_BY_ROWS);
    assert_true(top_press(&view, 2, "l") && view.sort == TOP_BY_LATENCY);
    assert_true(top_press(&view, 2, "m") && view.sort == TOP_BY_MEMORY);
    assert_true(top_press(&view, 2, "g") && view.sort == TOP_BY_LAG);
    assert_true(top_press(&view, 2, "n") && view.sort == TOP_BY_NUMBER);
    assert_true(top_press(&view, 2, "\033[A") && view.selected == 0);
    assert_true(top_press(&view, 2, "\033[B") && view.selected == 1);
    assert_true(top_press(&view, 2, "j") && view.selected == 1);
    assert_true(top_press(&view, 2, "\r") && view.is_open);
    assert_true(top_press(&view, 2, "q") && !view.is_open);
    assert_true(top_press(&view, 2, "x"));
    assert_true(top_press(&view, 0, "\n") && !view.is_open);
    assert_false(top_press(&view, 2, "q"));
    assert_false(top_press(&view, 2, "\003"));
}

static void histograms_of_all_nodes_are_one(void **state)
{
    cJSON *before = cJSON_Parse(before_json), *after = cJSON_Parse(after_json),
          *report = latency_report(before, after);
    const cJSON *pull = field_child(field_child(report, "requests"), "pull");
    char *buckets = cJSON_PrintUnformatted(field_child(pull, "minute_ns"));

    (void)state;
    assert_string_equal(buckets, "[[999,20],[2047,5],[4095,14],[999999,1]]");
    assert_true(field_number(pull, "n_minute") == 40);
    assert_true(field_number(pull, "p50_ns") == 999);
    assert_true(field_number(pull, "p90_ns") == 4095);
    assert_true(field_number(pull, "max_ns") == 999999);
    cJSON_free(buckets);
    cJSON_Delete(before);
    cJSON_Delete(after);
    cJSON_Delete(report);
}

static void latency_is_shown_with_what_was_waited_for(void **state)
{
    struct terminal terminal = { 0 };
    cJSON *before = cJSON_Parse(before_json), *after = cJSON_Parse(after_json);
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);

    (void)state;
    latency_print(before, after, &terminal, out);
    fclose(out);
    assert_non_null(strstr(text, "\npull              40  1 us  4 us  1000 us  1000 us\n"));
    assert_null(strstr(text, "\npush"));
    assert_non_null(strstr(text,
                           "\npull, 40 in the last minute\n"
                           "  <=      1 us  ##############################   50.0 %  20\n"));
    assert_non_null(strstr(
        text, "pulls of job j waited 0.4 s in the last 2.0 s for slower workers; worker 1 "
              "(w1) is the last, at clock 3\n"));
    free(text);
    cJSON_Delete(before);
    cJSON_Delete(after);
}

/* Answers of something else crash nothing. */
static void answers_without_sense_are_survived(void **state)
{
    static const char *const texts[] = {
        "{}",
        "{\"nodes\":[7,\"x\",null,[]]}",
        "{\"nodes\":[{\"shards\":[1],\"jobs\":[[]],\"waits\":{},\"tables\":[{}]}]}",
        "{\"nodes\":[{\"totals\":{\"requests\":[{\"minute_ns\":[[1,2]]}]}},{\"totals\":{"
        "\"requests\":{\"pull\":"
        "{\"minute_ns\":[1,[],[\"a\",2],[-1,3],[1e999,1e999],[5,-1],[1e300,3]]}}}}]}",
        "{\"nodes\":[{\"jobs\":[{\"name\":\"j\",\"staleness\":[1]}]},{\"jobs\":[{\"name\":"
        "\"j\",\"staleness\":[2],"
        "\"workers\":[{}]}]}]}",
    };
    struct top_view views[] = { { .has_keys = true, .selected = 9 }, { .is_open = true } };
    FILE *out = fopen("/dev/null", "w");

    (void)state;
    assert_non_null(out);
    for (size_t i = 0; i < COUNT_OF(texts) * COUNT_OF(texts); i++) {
        cJSON *a = cJSON_Parse(texts[i / COUNT_OF(texts)]),
              *b = cJSON_Parse(texts[i % COUNT_OF(texts)]);

        for (size_t k = 0; k < COUNT_OF(views); k++)
            top_print(a, b, &views[k], out);
        latency_print(a, b, &views[0].terminal, out);
        cJSON_Delete(latency_report(a, b));
        cJSON_Delete(a);
        cJSON_Delete(b);
    }
    fclose(out);
}

static void a_program_reads_the_same_as_json(void **state)
{
    cJSON *before = cJSON_Parse(before_json), *after = cJSON_Parse(after_json),
          *root = top_json(before, after), *unknown = top_json(after, NULL);
    const cJSON *shard = cJSON_GetArrayItem(field_child(root, "shards"), 1),
                *job = cJSON_GetArrayItem(field_child(root, "jobs"), 0);

    (void)state;
    assert_int_equal(cJSON_GetArraySize(field_child(root, "nodes")), 3);
    assert_string_equal(field_text(cJSON_GetArrayItem(field_child(root, "nodes"), 1), "error"),
                        "connection refused");
    assert_true(field_number(shard, "shard") == 1 && field_number(shard, "rows_per_s") == 2000);
    assert_true(field_number(shard, "pull_p99_ns") == 1000000 &&
                field_number(shard, "log_lag_records") == 10);
    assert_string_equal(field_text(job, "name"), "j");
    assert_true(field_number(job, "max_clock") == 9 && field_number(job, "clocks_per_s") == 2);
    assert_true(field_number(job, "samples_per_s") == 1500.4 &&
                field_number(job, "loss") == .25);
    assert_true(cJSON_IsNull(field_child(job, "auc"))); /* not said yet */
    assert_non_null(field_child(job, "staleness_p99"));
    assert_non_null(field_child(job, "waited_share"));
    assert_non_null(field_child(job, "bytes"));
    assert_int_equal(cJSON_GetArraySize(field_child(unknown, "jobs")), 0);
    cJSON_Delete(before);
    cJSON_Delete(after);
    cJSON_Delete(root);
    cJSON_Delete(unknown);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_those_between_the_reports),
        cmocka_unit_test(a_job_that_stands_still_has_no_rate),
        cmocka_unit_test(shards_are_in_the_order_that_was_asked_for),
        cmocka_unit_test(a_job_is_opened_with_its_workers_and_tables),
        cmocka_unit_test(keys_sort_select_open_and_end),
        cmocka_unit_test(histograms_of_all_nodes_are_one),
        cmocka_unit_test(latency_is_shown_with_what_was_waited_for),
        cmocka_unit_test(answers_without_sense_are_survived),
        cmocka_unit_test(a_program_reads_the_same_as_json),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
