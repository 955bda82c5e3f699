/* The parts of a report: a history of bounded size, calibration, rows that are drawn and swapped, and a page that any
 * values and names leave well-formed. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "common/hash.h"
#include "common/memory.h"
#include "tests/support/npy.h"
#include "tests/support/seed.h"
#include "worker/report/importance.h"
#include "worker/report/report_page.h"
#include "worker/report/row_sample.h"

static void assert_near(double got, double want, double by)
{
    if (!(fabs(got - want) <= by))
        fail_msg("%.17g, %.17g expected", got, want);
}

/* ---- history ---- */

static void a_history_keeps_the_mean_of_all_steps_in_bounded_memory(void **state)
{
    struct training_history *h = memory_alloc(sizeof *h);
    const uint32_t n = 100000;
    double sum = 0;

    (void)state;
    for (uint32_t i = 0; i < n; i++) {
        training_history_loss(h, i % 7);
        training_history_step(h, i + 1, (i + 1) * 0.5);
        assert_true(h->n <= TRAINING_HISTORY_POINTS);
    }
    training_history_end(h, n, n * 0.5);
    assert_true(h->n > TRAINING_HISTORY_POINTS / 2 && h->stride * h->n >= n);
    for (uint32_t i = 0; i < h->n; i++) {
        assert_true(h->samples[i] > (i ? h->samples[i - 1] : 0));
        sum += h->loss[i] / h->n;
    }
    assert_near(sum, 3, 0.05);
    assert_near(h->samples[h->n - 1], n, 0);
    training_history_end(h, n, n); /* nothing is left */
    assert_near(h->seconds[h->n - 1], n * 0.5, 0);
    free(h);
}

static void of_many_validations_the_last_stays(void **state)
{
    struct training_history *h = memory_alloc(sizeof *h);

    (void)state;
    for (uint32_t i = 0; i < 5 * TRAINING_HISTORY_POINTS; i++) {
        training_history_validation(h, i, i, &(struct metrics_result){ .auc = i });
        assert_true(h->n_validations <= TRAINING_HISTORY_POINTS);
        assert_near(h->auc[h->n_validations - 1], i, 0);
    }
    free(h);
}

/* What earlier processes have trained on is no work of the first seconds. */
static void after_a_restart_the_speed_is_of_this_process(void **state)
{
    struct training_history *h = memory_alloc(sizeof *h);
    double rates[TRAINING_HISTORY_POINTS];

    (void)state;
    h->samples_start = 1e9;
    for (uint32_t i = 1; i <= 3; i++) {
        training_history_loss(h, 1);
        training_history_step(h, 1e9 + 100 * i, i);
    }
    training_history_rates(h, rates);
    for (uint32_t i = 0; i < 3; i++)
        assert_near(rates[i], 100, 1e-6);
    free(h);
}

/* ---- calibration ---- */

static void add(struct metrics *m, float prob, float label)
{
    assert_int_equal(metrics_add(m, &prob, &label, 1), 0);
}

/* A twin: the bins by definition, from a sorted list. */
static void tenths_hold_what_is_predicted_and_observed(void **state)
{
    struct metrics m = { 0 };
    struct calibration c;

    (void)state;
    for (uint32_t i = 0; i < 1000; i++) /* in an order of its own: 7 and 1000 have no divisor */
        add(&m, (float)(i * 7 % 1000) / 1000, i * 7 % 1000 % 10 < 3 ? 1 : 0);
    assert_int_equal(calibration_of(&m, &c), 0);
    assert_int_equal(c.n, CALIBRATION_BINS);
    for (uint32_t i = 0; i < c.n; i++) {
        assert_int_equal(c.bins[i].n, 100);
        assert_int_equal(c.bins[i].n_positive, 30);
        assert_near(c.bins[i].predicted, 0.1 * i + 0.0495, 1e-6);
        assert_near(c.bins[i].low, 0.1 * i, 1e-6);
        assert_near(c.bins[i].high, 0.1 * i + 0.099, 1e-6);
        /* Wilson's interval of 30 in 100. */
        assert_near(c.bins[i].observed_low, 0.21895, 1e-4);
        assert_near(c.bins[i].observed_high, 0.39585, 1e-4);
    }
    metrics_deinit(&m);
}

static void equal_predictions_are_in_one_bin(void **state)
{
    struct metrics m = { 0 };
    struct calibration c;
    uint64_t n = 0;

    (void)state;
    for (uint32_t i = 0; i < 100; i++)
        add(&m, i < 55 ? 0.25f : i < 58 ? 0.5f : 0.75f, (float)(i % 2));
    assert_int_equal(calibration_of(&m, &c), 0);
    for (uint32_t i = 0; i < c.n; i++) {
        n += c.bins[i].n;
        assert_true(!i || c.bins[i].low > c.bins[i - 1].high);
    }
    assert_int_equal(n, 100);
    assert_int_equal(c.bins[0].n, 55);
    metrics_deinit(&m);
}

static void few_or_odd_predictions_have_few_bins(void **state)
{
    struct metrics m = { 0 };
    struct calibration c;

    (void)state;
    assert_int_equal(calibration_of(&m, &c), 0);
    assert_int_equal(c.n, 0);
    add(&m, 0.5f, 1);
    add(&m, -0.0f, 0);
    assert_int_equal(calibration_of(&m, &c), 0);
    assert_int_equal(c.n, 2);
    assert_int_equal(c.bins[0].n + c.bins[1].n, 2);
    add(&m, NAN, 1);
    assert_int_equal(calibration_of(&m, &c), 0);
    assert_int_equal(c.n, 0);
    metrics_deinit(&m);
}

/* ---- rows ---- */

#define N_FIELDS 3u
#define N_NUMERIC 2u

/* Row `number` of a pass: its label, numerics and keys say which one it is; field 1 has 0 to 2 keys. */
static void add_row(struct batch *b, uint64_t number)
{
    uint32_t *starts = b->starts + (size_t)b->n * N_FIELDS;

    b->label[b->n] = (float)(number % 2);
    b->numeric[b->n * N_NUMERIC] = (float)number;
    b->numeric[b->n * N_NUMERIC + 1] = -(float)number;
    for (uint32_t f = 0; f < N_FIELDS; f++) {
        const uint32_t n = f == 1 ? (uint32_t)(number % 3) : 1;

        assert_int_equal(batch_reserve_keys(b, n), 0);
        for (uint32_t k = 0; k < n; k++)
            b->keys[b->n_keys++] = number * 16 + f * 4 + k;
        starts[f + 1] = b->n_keys;
    }
    b->n++;
}

static void check_row(const struct batch *b, uint32_t i, uint64_t number, uint64_t swapped,
                      const struct row_sample_swap *swap)
{
    const uint32_t *starts = b->starts + (size_t)i * N_FIELDS;

    assert_near((double)b->label[i], (double)(number % 2), 0);
    for (uint32_t c = 0; c < N_NUMERIC; c++) {
        const uint64_t of = swap && swap->is_numeric && swap->column == c ? swapped : number;

        assert_near((double)b->numeric[i * N_NUMERIC + c], c ? -(double)of : (double)of, 0);
    }
    for (uint32_t f = 0; f < N_FIELDS; f++) {
        const uint64_t of = swap && !swap->is_numeric && swap->column == f ? swapped : number;
        const uint32_t n = f == 1 ? (uint32_t)(of % 3) : 1;

        assert_int_equal(starts[f + 1] - starts[f], n);
        for (uint32_t k = 0; k < n; k++)
            assert_int_equal(b->keys[starts[f] + k], of * 16 + f * 4 + k);
    }
}

static void fill_sample(struct row_sample *s, struct batch *b, uint32_t n_max, uint32_t n_rows,
                        uint64_t seed)
{
    assert_int_equal(row_sample_init(s, n_max, seed), 0);
    assert_int_equal(batch_init(b, 32, N_NUMERIC, N_FIELDS), 0);
    for (uint32_t i = 0; i < n_rows;) {
        batch_clear(b);
        while (b->n < b->n_max && i < n_rows)
            add_row(b, i++);
        assert_int_equal(row_sample_add(s, b), 0);
    }
}

static uint64_t number_of(const struct row_sample *s, struct batch *b, uint32_t i)
{
    assert_int_equal(row_sample_fill(s, i, 1, NULL, b), 0);
    return (uint64_t)b->numeric[0];
}

static void drawn_rows_come_back_with_one_column_of_others(void **state)
{
    const uint64_t seed = seed_of_run(7);
    struct row_sample s;
    struct batch b;
    uint64_t numbers[50];
    uint32_t from[50];

    (void)state;
    fill_sample(&s, &b, 50, 1000, seed);
    assert_int_equal(s.n, 50);
    for (uint32_t i = 0; i < 50; i++) {
        numbers[i] = number_of(&s, &b, i);
        from[i] = (uint32_t)(hash_mix2(seed, i) % 50);
    }
    for (uint32_t c = 0; c < N_NUMERIC + N_FIELDS; c++) {
        const struct row_sample_swap swap = { .is_numeric = c < N_NUMERIC,
                                              .column = c < N_NUMERIC ? c : c - N_NUMERIC,
                                              .from = from };

        assert_int_equal(row_sample_fill(&s, 20, 30, &swap, &b), 0);
        assert_int_equal(b.n, 30);
        for (uint32_t i = 0; i < 30; i++)
            check_row(&b, i, numbers[20 + i], numbers[from[20 + i]], &swap);
    }
    batch_deinit(&b);
    row_sample_deinit(&s);
}

/* 20 draws of 100 from 1,000: each tenth of the rows has about a tenth of what is drawn. */
static void each_row_has_the_same_chance(void **state)
{
    const uint64_t seed = seed_of_run(11);
    uint32_t counts[10] = { 0 };

    (void)state;
    for (uint32_t draw = 0; draw < 20; draw++) {
        struct row_sample s;
        struct batch b;

        fill_sample(&s, &b, 100, 1000, hash_mix2(seed, draw));
        for (uint32_t i = 0; i < s.n; i++)
            counts[number_of(&s, &b, i) / 100]++;
        batch_deinit(&b);
        row_sample_deinit(&s);
    }
    for (uint32_t i = 0; i < 10; i++)
        assert_in_range(counts[i], 130, 270); /* 200, five deviations */
}

static void fewer_rows_than_wanted_are_all_there(void **state)
{
    struct row_sample s;
    struct batch b;

    (void)state;
    fill_sample(&s, &b, 100, 40, 1);
    assert_int_equal(s.n, 40);
    for (uint32_t i = 0; i < 40; i++)
        assert_int_equal(number_of(&s, &b, i), i);
    batch_deinit(&b);
    row_sample_deinit(&s);
}

/* ---- the page ---- */

static const char nasty[] = "</td><script>alert(1)</script>\"'&\x1b\xff";

static char *print(const struct report_page *page)
{
    char *text;
    size_t n;
    FILE *out = open_memstream(&text, &n);

    assert_non_null(out);
    report_page_put(page, out);
    fclose(out);
    return text;
}

/* Every element that begins ends, in its order; no attribute is left open. */
static void assert_well_formed(const char *text)
{
    char names[64][16];
    uint32_t n = 0;

    for (const char *at = strchr(text, '<'); at; at = strchr(at + 1, '<')) {
        const char *end = strchr(at, '>');
        const bool closes = at[1] == '/';
        char name[16] = "";

        assert_non_null(end);
        sscanf(at + 1 + closes, "%15[a-z0-9A-Z!]", name);
        if (name[0] == '!' || strcmp(name, "meta") == 0 || end[-1] == '/')
            continue;
        if (closes) {
            assert_true(n > 0);
            assert_string_equal(names[--n], name);
        } else {
            assert_true(n < COUNT_OF(names));
            memcpy(names[n++], name, sizeof name);
        }
    }
    assert_int_equal(n, 0);
}

static void assert_fine(const char *text)
{
    assert_well_formed(text);
    assert_null(strstr(text, "<script"));
    assert_null(strstr(text, "nan"));
    assert_null(strstr(text, "inf<"));
    assert_null(strstr(text, "http:"));
    assert_null(strchr(text, '\x1b'));
    assert_non_null(strstr(text, "Content-Security-Policy"));
    assert_non_null(strstr(text, "prefers-color-scheme: dark"));
}

static struct settings *nasty_settings(void)
{
    struct settings *s = memory_alloc(sizeof *s);
    enum settings_action action;
    struct err err;
    char *argv[] = { (char *)(uintptr_t) "psworker" };

    assert_int_equal(settings_load(&settings_worker, 1, argv, 1, s, &action, &err), 0);
    snprintf(s->job, sizeof s->job, "%s", nasty);
    snprintf(s->label, sizeof s->label, "%s", nasty);
    return s;
}

static void a_page_of_nothing_is_well_formed(void **state)
{
    struct settings *s = nasty_settings();
    struct training_history *h = memory_alloc(sizeof *h);
    const struct report_page page = {
        .settings = s, .history = h, .failure = nasty, .why_not_measured = nasty
    };
    char *text = print(&page);

    (void)state;
    assert_fine(text);
    assert_non_null(strstr(text, "The run failed"));
    free(text);
    free(h);
    settings_free(&settings_worker, s);
    free(s);
}

static void fill_page(struct report_page *page, struct training_history *h,
                      struct calibration calibrations[2], struct importance_column columns[25])
{
    struct metrics m = { 0 };

    for (uint32_t i = 0; i < 300; i++) {
        training_history_loss(h, 1.0 / (1 + i));
        training_history_step(h, 128.0 * (i + 1), i / 100); /* steps that took no time, too */
        add(&m, (float)i / 300, i > 150);
    }
    training_history_validation(h, 0, 1e5, page->result);
    assert_int_equal(calibration_of(&m, &calibrations[0]), 0);
    metrics_deinit(&m);
    for (uint32_t i = 0; i < 25; i++) {
        columns[i] =
            (struct importance_column){ .is_numeric = i % 2, .auc_drop = 0.1 - 0.01 * i };
        snprintf(columns[i].name, sizeof columns[i].name, "%u%s", i, nasty);
    }
}

static void a_page_has_all_its_parts_and_escapes_names(void **state)
{
    static const char labels[2][SCHEMA_NAME_MAX] = { "click</figure>", "buy" };
    struct settings *s = nasty_settings();
    struct training_history *h = memory_alloc(sizeof *h);
    struct progress_state *run = memory_alloc(sizeof *run);
    struct calibration calibrations[2] = { 0 };
    struct importance_column columns[25];
    const struct metrics_result result = { .n = 300, .auc = (double)NAN, .logloss = 0.5 };
    const struct importance importance = {
        .n_rows = 300, .auc = 0.8, .n = 25, .columns = columns
    };
    struct report_page page = { .settings = s,
                                .history = h,
                                .run = run,
                                .result = &result,
                                .n_labels = 2,
                                .calibrations = calibrations,
                                .labels = labels,
                                .importance = &importance,
                                .device = nasty,
                                .stopped = nasty,
                                .cost = { .train_s = 1,
                                          .total_s = 5,
                                          .peak_bytes = 1 << 20,
                                          .n_codecs = 1,
                                          .codecs = { { "int8", 12345, 67890 } } } };
    char *text;

    (void)state;
    fill_page(&page, h, calibrations, columns);
    run->samples = 38400;
    run->bad.n = 2;
    snprintf(run->bad.first, sizeof run->bad.first, "%s", nasty);
    text = print(&page);
    assert_fine(text);
    for (const char *const *id = (const char *const[]){ "curves", "calibration", "importance",
                                                        "cost", "settings", NULL };
         *id; id++) {
        char want[32];

        snprintf(want, sizeof want, "<section id=\"%s\">", *id);
        assert_non_null(strstr(text, want));
    }
    assert_non_null(strstr(text, "5 more columns"));
    assert_non_null(strstr(text, "int8</td><td>12.3 kB</td><td>67.9 kB"));
    assert_non_null(strstr(text, "click&#60;/figure&#62;"));
    free(text);
    free(run);
    free(h);
    settings_free(&settings_worker, s);
    free(s);
}

/* The greatest drop may be below 0: then a longer bar would say that a column is worth more. */
static void columns_that_make_it_worse_have_no_bars(void **state)
{
    struct settings *s = nasty_settings();
    struct training_history *h = memory_alloc(sizeof *h);
    struct importance_column columns[2] = { { .name = "a", .auc_drop = -0.1 },
                                            { .name = "b", .auc_drop = -0.2 } };
    const struct importance importance = { .n_rows = 3, .n = 2, .columns = columns };
    const struct report_page page = {
        .settings = s, .history = h, .importance = &importance, .why_not_calibrated = "so it is"
    };
    char *text = print(&page);
    const char *at = text;
    uint32_t n = 0;

    (void)state;
    assert_fine(text);
    assert_non_null(strstr(text, "Not measured: so it is"));
    for (; (at = strstr(at, "class=\"a\" style=\"width:")) != NULL; at++, n++)
        assert_memory_equal(at + 23, "0.0%", 4);
    assert_int_equal(n, 2);
    free(text);
    free(h);
    settings_free(&settings_worker, s);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_history_keeps_the_mean_of_all_steps_in_bounded_memory),
        cmocka_unit_test(of_many_validations_the_last_stays),
        cmocka_unit_test(after_a_restart_the_speed_is_of_this_process),
        cmocka_unit_test(columns_that_make_it_worse_have_no_bars),
        cmocka_unit_test(tenths_hold_what_is_predicted_and_observed),
        cmocka_unit_test(equal_predictions_are_in_one_bin),
        cmocka_unit_test(few_or_odd_predictions_have_few_bins),
        cmocka_unit_test(drawn_rows_come_back_with_one_column_of_others),
        cmocka_unit_test(each_row_has_the_same_chance),
        cmocka_unit_test(fewer_rows_than_wanted_are_all_there),
        cmocka_unit_test(a_page_of_nothing_is_well_formed),
        cmocka_unit_test(a_page_has_all_its_parts_and_escapes_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
