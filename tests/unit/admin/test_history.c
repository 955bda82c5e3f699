/* The history of a node's counters: rates, rings that wrap, clocks that jump, and its size. */
#include <math.h>

#include <cjson/cJSON.h>

#include "server/admin/history.h"
#include "tests/support/seed.h"
#include "tests/unit/admin/fixture.h"

#define UNIX_MS 1700000000000u

/* A node of two shards, at a time. */
struct node {
    struct shard_report reports[2];
    const struct shard_report *shards[2];
    struct node_report report;
};

static void init(struct node *n)
{
    *n = (struct node){ 0 };
    for (uint32_t i = 0; i < 2; i++) {
        n->shards[i] = &n->reports[i];
        n->reports[i].shard = 6 + i;
    }
    n->report = (struct node_report){ .n_shards = 2, .shards = n->shards };
}

static bool sample(struct history *h, struct node *n, uint64_t mono_ms)
{
    n->report.clock_mono_ms = mono_ms;
    n->report.clock_unix_ms = UNIX_MS + mono_ms;
    return history_sample(h, &n->report);
}

static void report(struct node *n, uint32_t shard, uint64_t mono_ms, uint64_t rows_pulled)
{
    n->reports[shard].made_mono_ms = mono_ms;
    n->reports[shard].counters.rows_pulled = rows_pulled;
}

static cJSON *rendered(struct history *h, struct node *n, enum history_step step)
{
    char *text = history_render(h, step, &n->report);
    cJSON *json = text ? cJSON_Parse(text) : NULL;

    assert_non_null(json);
    free(text);
    return json;
}

/* Of a series, `back` slots before the newest; NaN: null, or not there. */
static double value(const cJSON *json, const char *name, int back)
{
    const cJSON *series =
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItem(json, "series"), name);
    const cJSON *item = cJSON_GetArrayItem(series, cJSON_GetArraySize(series) - 1 - back);

    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static double number(const cJSON *json, const char *name)
{
    return cJSON_GetObjectItem(json, name)->valuedouble;
}

static double newest(struct history *h, struct node *n, const char *name)
{
    cJSON *json = rendered(h, n, HISTORY_SECOND);
    double found = value(json, name, 0);

    cJSON_Delete(json);
    return found;
}

static void a_rate_is_measured_between_the_reports_and_not_between_the_samples(void **state)
{
    struct history *h = history_new(2);
    struct node n;

    (void)state;
    init(&n);
    report(&n, 0, 9500, 1000);
    report(&n, 1, 9600, 0);
    assert_true(sample(h, &n, 10000));
    assert_true(isnan(newest(h, &n, "rows_pulled"))); /* and not 0 */
    report(&n, 0, 10300, 1800);                       /* 800 in 0.8 s */
    report(&n, 1, 11000, 70);                         /* 70 in 1.4 s */
    assert_true(sample(h, &n, 11400));
    assert_float_equal(newest(h, &n, "rows_pulled"), 1050, 1);
    assert_float_equal(newest(h, &n, "shard.6.rows_per_s"), 1000, 1);
    assert_float_equal(newest(h, &n, "shard.7.rows_per_s"), 50, 1);
    history_free(h);
}

static void a_shard_without_a_new_report_adds_nothing_until_it_comes(void **state)
{
    struct history *h = history_new(2);
    struct node n;

    (void)state;
    init(&n);
    report(&n, 0, 1000, 0);
    assert_true(sample(h, &n, 1000));
    assert_true(sample(h, &n, 2000));
    assert_float_equal(newest(h, &n, "rows_pulled"), 0, 0);
    report(&n, 0, 5000, 4000); /* of four seconds */
    assert_true(sample(h, &n, 5000));
    assert_float_equal(newest(h, &n, "rows_pulled"), 1000, 1);
    history_free(h);
}

static void counters_that_begin_anew_are_unknown_for_one_sample(void **state)
{
    struct history *h = history_new(2);
    struct node n;

    (void)state;
    init(&n);
    n.report.n_shards = 1;
    report(&n, 0, 1000, 500000);
    assert_true(sample(h, &n, 1000));
    report(&n, 0, 2000, 10); /* rebuilt as a standby's */
    assert_true(sample(h, &n, 2000));
    assert_true(isnan(newest(h, &n, "rows_pulled")));
    report(&n, 0, 3000, 110);
    assert_true(sample(h, &n, 3000));
    assert_float_equal(newest(h, &n, "rows_pulled"), 100, 1);
    n.shards[0] = NULL; /* it has not reported */
    assert_true(sample(h, &n, 4000));
    assert_true(isnan(newest(h, &n, "rows_pulled")));
    history_free(h);
}

static void latencies_and_staleness_are_those_of_the_reports(void **state)
{
    struct history *h = history_new(2);
    struct fixture f;
    cJSON *json;
    char *text;

    (void)state;
    fixture_init(&f);
    assert_true(history_sample(h, &f.node));
    histogram_record(&f.shards[0]->jobs[0].staleness, 7);
    f.node.clock_mono_ms += 1000;
    assert_true(history_sample(h, &f.node));
    text = history_render(h, HISTORY_SECOND, &f.node);
    json = cJSON_Parse(text);
    assert_float_equal(value(json, "p50_ns.pull", 0), 500000, 40000);
    assert_float_equal(value(json, "p99_ns.pull", 0), 990000, 70000);
    assert_null(strstr(text, "p50_ns.push"));            /* there was none */
    assert_true(isnan(value(json, "staleness_p99", 1))); /* of all the time before */
    assert_float_equal(value(json, "staleness_p99", 0), 7, 0);
    assert_float_equal(value(json, "waits", 0), 3, 0);
    assert_float_equal(value(json, "live_workers", 0), 1, 0);
    cJSON_Delete(json);
    free(text);
    history_free(h);
    fixture_deinit(&f);
}

static void a_clock_that_stands_still_or_goes_back_changes_nothing(void **state)
{
    struct history *h = history_new(2);
    struct node n;
    cJSON *json;

    (void)state;
    init(&n);
    n.report.rss_bytes = 1;
    assert_true(sample(h, &n, 50000));
    n.report.rss_bytes = 2;
    assert_false(sample(h, &n, 50999));
    assert_false(sample(h, &n, 7));
    json = rendered(h, &n, HISTORY_SECOND);
    assert_float_equal(number(json, "n"), 1, 0);
    assert_float_equal(value(json, "rss_bytes", 0), 1, 0);
    cJSON_Delete(json);
    history_free(h);
}

static void a_jump_of_the_wall_clock_moves_all_points(void **state)
{
    struct history *h = history_new(2);
    struct node n;
    cJSON *json;

    (void)state;
    init(&n);
    assert_true(sample(h, &n, 100500));
    n.report.clock_unix_ms = 5000000;
    json = rendered(h, &n, HISTORY_SECOND);
    assert_float_equal(number(json, "slot"), 100, 0);
    assert_float_equal(number(json, "slot_unix_ms"), 5000000 - 500, 0);
    cJSON_Delete(json);
    history_free(h);
}

/* --- against all samples, in a list --- */

#define N_SAMPLES 6000

struct sample_list {
    uint64_t second[N_SAMPLES];
    uint32_t rss[N_SAMPLES], waits[N_SAMPLES];
    size_t n;
};

static const cJSON *find_series(const cJSON *json, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItem(json, "series"), name);
}

static void check_seconds(const struct sample_list *t, const cJSON *json)
{
    uint64_t last = t->second[t->n - 1], first = t->second[0];
    const cJSON *rss = find_series(json, "rss_bytes"), *item = rss->child;
    size_t i = 0;

    first = last - first < HISTORY_SECONDS ? first : last - HISTORY_SECONDS + 1;
    assert_int_equal(cJSON_GetArraySize(rss), (int)(last - first + 1));
    for (uint64_t at = first; at <= last; at++, item = item->next) {
        while (t->second[i] < at)
            i++;
        assert_int_equal(cJSON_IsNumber(item), t->second[i] == at);
        if (t->second[i] == at)
            assert_float_equal(item->valuedouble, t->rss[i], 0);
    }
}

static void check_minutes(const struct sample_list *t, const cJSON *json)
{
    uint64_t last = t->second[t->n - 1] / 60, first = t->second[0] / 60;
    int n = last - first < HISTORY_MINUTES ? (int)(last - first) : (int)HISTORY_MINUTES;

    assert_float_equal(number(json, "n"), n, 0);
    for (int back = 0; back < n; back++) {
        double sum = 0, most = -1, n_here = 0, mean = value(json, "rss_bytes", back);

        for (size_t i = 0; i < t->n; i++) {
            if (t->second[i] / 60 != last - 1 - (uint64_t)back)
                continue;
            sum += t->rss[i];
            most = t->waits[i] > most ? t->waits[i] : most;
            n_here++;
        }
        if (n_here == 0)
            assert_true(isnan(mean));
        else
            assert_true(fabs(mean - sum / n_here) <= .5);
        if (n_here > 0)
            assert_float_equal(value(json, "waits", back), most, 0);
    }
}

static uint64_t next_random(uint64_t *at)
{
    *at = *at * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *at >> 33;
}

/* Mostly a second after the last one; now and then later, by up to more than a ring. */
static uint64_t step_of(uint64_t random)
{
    if (random % 64)
        return 1;
    return random % 1024 ? 1 + random % 200 : 1 + random % 3000;
}

static void a_random_run_is_what_a_list_of_all_samples_says(void **state)
{
    static struct sample_list t;
    uint64_t random = seed_by_the_clock(), second = 1 + next_random(&random) % 100000;
    struct history *h = history_new(2);
    struct node n;
    cJSON *json;

    (void)state;
    init(&n);
    t.n = 0;
    while (t.n < N_SAMPLES) {
        t.second[t.n] = second;
        t.rss[t.n] = (uint32_t)(next_random(&random) % 9000);
        t.waits[t.n] = (uint32_t)(next_random(&random) % 9000);
        n.report.rss_bytes = t.rss[t.n];
        n.report.n_waits = t.waits[t.n];
        assert_true(sample(h, &n, second * 1000 + next_random(&random) % 1000));
        t.n++;
        second += step_of(next_random(&random));
        if (t.n % 1500 && t.n > 3)
            continue;
        json = rendered(h, &n, HISTORY_SECOND);
        check_seconds(&t, json);
        cJSON_Delete(json);
        json = rendered(h, &n, HISTORY_MINUTE);
        check_minutes(&t, json);
        cJSON_Delete(json);
    }
    history_free(h);
}

/* --- numbers and size --- */

static void a_number_has_four_digits(void **state)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = { { 0, "\"rss_bytes\":[0]" },
                  { 9999, "\"rss_bytes\":[9999]" },
                  { 10000, "\"rss_bytes\":[1000e1]" },
                  { 99995, "\"rss_bytes\":[1000e2]" },
                  { 1234567890123, "\"rss_bytes\":[1235e9]" } };
    struct node n;

    (void)state;
    init(&n);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct history *h = history_new(0);
        char *text;

        n.report.rss_bytes = cases[i].bytes;
        n.report.n_shards = 0;
        assert_true(sample(h, &n, 1000));
        text = history_render(h, HISTORY_SECOND, &n.report);
        if (!strstr(text, cases[i].text))
            fail_msg("no %s in %s", cases[i].text, text);
        free(text);
        history_free(h);
    }
}

static void it_holds_at_most_8_mib_for_any_number_of_shards(void **state)
{
    (void)state;
    for (uint32_t n = 0; n <= 1024; n = n < 8 ? n + 1 : n + n / 3) {
        struct history *h = history_new(n);

        assert_in_range(history_bytes(h), 1, HISTORY_BYTES_MAX);
        assert_true(history_n_shards(h) == n || (n > 100 && history_n_shards(h) == 0));
        history_free(h);
    }
}

static void more_shards_than_it_was_made_for_are_left_out(void **state)
{
    struct history *h = history_new(1);
    struct node n;

    (void)state;
    init(&n);
    n.reports[0].bytes = 5;
    n.reports[1].bytes = 70;
    assert_true(sample(h, &n, 1000));
    assert_float_equal(newest(h, &n, "shard.6.bytes"), 5, 0);
    assert_true(isnan(newest(h, &n, "shard.7.bytes")));
    history_free(h);
}

#ifdef PS_FAULTS
static void without_memory_there_is_none(void **state)
{
    (void)state;
    memory_fail_after(0);
    assert_null(history_new(2));
    memory_fail_after(-1);
    history_free(NULL);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rate_is_measured_between_the_reports_and_not_between_the_samples),
        cmocka_unit_test(a_shard_without_a_new_report_adds_nothing_until_it_comes),
        cmocka_unit_test(counters_that_begin_anew_are_unknown_for_one_sample),
        cmocka_unit_test(latencies_and_staleness_are_those_of_the_reports),
        cmocka_unit_test(a_clock_that_stands_still_or_goes_back_changes_nothing),
        cmocka_unit_test(a_jump_of_the_wall_clock_moves_all_points),
        cmocka_unit_test(a_random_run_is_what_a_list_of_all_samples_says),
        cmocka_unit_test(a_number_has_four_digits),
        cmocka_unit_test(it_holds_at_most_8_mib_for_any_number_of_shards),
        cmocka_unit_test(more_shards_than_it_was_made_for_are_left_out),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_there_is_none),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
