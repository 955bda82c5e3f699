/* The search of settings: the space and its draws, successive halving against a twin, what mattered, the command. */
#include <math.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/hash.h"
#include "common/memory.h"
#include "tests/support/npy.h"
#include "tests/support/seed.h"
#include "worker/model/dlrm_config.h"
#include "worker/tune/tune_report.h"

static struct settings *new_settings(const char *search)
{
    struct settings *s = memory_alloc(sizeof *s);
    char program[] = "psworker", *argv[] = { program };
    enum settings_action action;
    struct err err;

    assert_int_equal(settings_load(&settings_worker, 1, argv, 1, s, &action, &err), 0);
    assert_int_equal(settings_set(&settings_worker, s, "search", search, &err), 0);
    return s;
}

static void free_settings(struct settings *s)
{
    settings_free(&settings_worker, s);
    free(s);
}

/* ---- the space ---- */

static void a_space_is_read_as_it_is_typed(void **state)
{
    struct settings *s =
        new_settings("lr=1e-4..1e-1,dim=8|16|32,top=512,256|64,dropout=0..0.5,wide=yes");
    struct search_space space;
    struct err err;

    (void)state;
    assert_int_equal(search_space_of(s, &space, &err), 0);
    assert_int_equal(space.n, 5);
    assert_int_equal(space.settings[0].kind, SEARCH_SPACE_LOG);
    assert_int_equal(space.settings[1].n_choices, 3);
    assert_string_equal(space.settings[2].choices[0], "512,256");
    assert_string_equal(space.settings[2].choices[1], "64");
    assert_int_equal(space.settings[3].kind, SEARCH_SPACE_EVEN);
    assert_string_equal(space.settings[4].choices[0], "yes");
    free_settings(s);
}

static void what_makes_no_sense_is_refused_with_a_sentence(void **state)
{
    static const struct {
        const char *search, *why;
    } bad[] = {
        { "lr", "is not NAME=VALUES" },
        { "lrr=1|2", "none of the settings" },
        { "job=a|b", "none of the settings" },
        { "data=a|b", "none of the settings" },
        { "lr=1..0.1", "is no range" },
        { "lr=1..", "is no range" },
        { "wide=0..1", "has no range" },
        { "dim=8|x", "--search: " },
        { "dim=8|", "--search: " },
        { "dim=0..8", "--search: " },
        { "lr=1|2,lr=3|4", "is there twice" },
        { "optimizer=sgd|magic", "--search: " },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct settings *s = new_settings(bad[i].search);
        struct search_space space;
        struct err err = { 0 };

        assert_int_equal(search_space_of(s, &space, &err), PS_ESETTING);
        if (!strstr(err.text, bad[i].why))
            fail_msg("%s: %s", bad[i].search, err.text);
        free_settings(s);
    }
}

static void without_a_search_the_space_is_of_the_model(void **state)
{
    struct settings *s = new_settings("");
    struct search_space space;
    struct err err;

    (void)state;
    assert_int_equal(search_space_of(s, &space, &err), 0);
    assert_int_equal(space.n, 4);
    assert_true(fabs(log10(space.settings[0].high / space.settings[0].low) - 2) < 1e-9);
    s->model = MODEL_LR;
    assert_int_equal(search_space_of(s, &space, &err), 0);
    assert_int_equal(space.n, 1);
    assert_string_equal(space.settings[0].row->name, "lr");
    free_settings(s);
}

/* A setting more and another order change no value of the others; the logarithms of a rate are even. */
static void values_are_a_function_of_seed_trial_and_name(void **state)
{
    const uint64_t seed = seed_of_run(5);
    struct settings *a = new_settings("lr=1e-4..1e-1,dim=8|16|32"),
                    *b = new_settings("dropout=0..0.5,dim=8|16|32,lr=1e-4..1e-1");
    struct search_space one, two;
    uint32_t thirds[3] = { 0 }, choices[3] = { 0 };
    struct err err;

    (void)state;
    assert_int_equal(search_space_of(a, &one, &err), 0);
    assert_int_equal(search_space_of(b, &two, &err), 0);
    for (uint32_t i = 0; i < 3000; i++) {
        char x[SEARCH_SPACE_TEXT_MAX], y[SEARCH_SPACE_TEXT_MAX];
        double place;

        search_space_draw(&one.settings[0], seed, i, x);
        search_space_draw(&two.settings[2], seed, i, y);
        assert_string_equal(x, y);
        place = search_space_place(&one.settings[0], x);
        assert_true(place >= -4 && place <= -1);
        thirds[place < -3 ? 0 : place < -2 ? 1 : 2]++;
        search_space_draw(&one.settings[1], seed, i, x);
        choices[(uint32_t)search_space_place(&one.settings[1], x)]++;
    }
    for (uint32_t i = 0; i < 3; i++) {
        assert_in_range(thirds[i], 850, 1150); /* 1,000, five deviations */
        assert_in_range(choices[i], 850, 1150);
    }
    assert_true(isnan(search_space_place(&one.settings[1], "9")));
    assert_true(isnan(search_space_place(&one.settings[0], "0")));
    free_settings(a);
    free_settings(b);
}

/* ---- halving ---- */

static void rungs_have_fewer_trials_and_more_rows(void **state)
{
    struct halving h;

    (void)state;
    halving_plan(20, 3, &h);
    assert_int_equal(h.n_rungs, 3);
    assert_int_equal(h.n_trials[0], 20);
    assert_int_equal(h.n_trials[1], 6);
    assert_int_equal(h.n_trials[2], 2);
    assert_true(fabs(h.share[0] - 1.0 / 9) < 1e-12 && fabs(h.share[2] - 1) < 1e-12);
    for (uint32_t n = 1; n < 300; n++)
        for (uint32_t eta = 1; eta <= 16; eta++) {
            halving_plan(n, eta, &h);
            assert_true(h.n_rungs >= 1 && h.n_rungs <= HALVING_RUNGS_MAX);
            assert_int_equal(h.n_trials[0], n);
            assert_true(fabs(h.share[h.n_rungs - 1] - 1) < 1e-12);
            for (uint32_t i = 1; i < h.n_rungs; i++)
                assert_true(h.n_trials[i] >= 2 && h.n_trials[i] * eta <= h.n_trials[i - 1]);
        }
}

/* A twin: the least one, again and again. */
static uint32_t promote_plainly(const double *losses, uint32_t n, uint32_t keep, uint32_t *ret)
{
    bool taken[64] = { 0 };
    uint32_t n_kept = 0;

    for (; n_kept < keep; n_kept++) {
        uint32_t best = n;

        for (uint32_t i = 0; i < n; i++)
            if (!taken[i] && isfinite(losses[i]) && (best == n || losses[i] < losses[best]))
                best = i;
        if (best == n)
            break;
        taken[best] = true;
        ret[n_kept] = best;
    }
    return n_kept;
}

static void the_best_go_on_in_their_order(void **state)
{
    const uint64_t seed = seed_of_run(9);

    (void)state;
    for (uint32_t run = 0; run < 2000; run++) {
        const uint32_t n = 1 + (uint32_t)(hash_mix2(seed, run) % 64),
                       keep = 1 + (uint32_t)(hash_mix2(seed, run + 5000) % n);
        uint32_t got[64], want[64], n_got, n_want;
        double losses[64];

        for (uint32_t i = 0; i < n; i++) { /* with equal ones, and some that failed */
            const uint64_t h = hash_mix2(hash_mix2(seed, run), i);

            losses[i] = h % 5 == 0 ? (double)NAN : (double)(h % 11);
        }
        n_got = halving_promote(losses, n, keep, got);
        n_want = promote_plainly(losses, n, keep, want);
        assert_int_equal(n_got, n_want);
        assert_memory_equal(got, want, n_got * sizeof *got);
    }
}

/* A rung's trials must have a share of the steps of those that go to the end, whatever ends those. */
static void a_share_of_the_steps_is_one_of_what_a_whole_trial_makes(void **state)
{
    (void)state;
    assert_int_equal(halving_steps(1, 1000, 1, 10, 0), 0);
    assert_int_equal(halving_steps(1, 1000, 1, 10, 40), 40);
    assert_int_equal(halving_steps(1.0 / 4, 1000, 1, 10, 0), 26);
    assert_int_equal(halving_steps(1.0 / 4, 1000, 1, 10, 40), 11);
    assert_int_equal(halving_steps(1.0 / 4, 1000, 1, 10, 4000), 26);
    assert_int_equal(halving_steps(1.0 / 4, 3, 8, 10, 0), 3); /* 8 epochs of a batch each */
    for (uint64_t max = 1; max < 50; max++)
        for (uint32_t eta = 2; eta < 9; eta++) {
            const uint64_t n = halving_steps(1.0 / eta, 200, 2, 10, max);

            assert_true(n >= 1 && n <= max && n <= 40);
        }
}

/* ---- a trial's end ---- */

/* A search by log-loss needs no AUC; a run that a signal has ended has neither, and its exit code is 0. */
static void assert_trial(const char *result, bool by_logloss, const char *why)
{
    char dir[] = "/tmp/test_tune-XXXXXX", path[64], got[TRIAL_WHY_MAX];
    struct trial_process p = { 0 };
    struct trial_result ret;
    FILE *out;

    assert_non_null(mkdtemp(dir));
    snprintf(p.base, sizeof p.base, "%s/trial1", dir);
    snprintf(path, sizeof path, "%s/trial1.json", dir);
    out = fopen(path, "w");
    assert_non_null(out);
    fprintf(out, "%s\n", result);
    fclose(out);
    p.fd = dup(0);
    p.pid = fork();
    if (!p.pid)
        _exit(0);
    trial_process_end(&p, by_logloss, &ret, got);
    if (why[0] ? !strstr(got, why) : got[0])
        fail_msg("\"%s\", \"%s\" expected", got, why);
    assert_int_equal(rmdir(dir), 0); /* its files are gone */
}

static void a_trial_without_what_it_is_compared_by_has_failed(void **state)
{
    static const char whole[] =
        "{\"event\":\"result\",\"auc\":0.7,\"logloss\":0.5,\"seconds\":1}";
    static const char one_class[] =
        "{\"event\":\"result\",\"auc\":null,\"logloss\":0.5,\"seconds\":1}";
    static const char stopped[] = "{\"event\":\"result\",\"seconds\":1}";

    (void)state;
    assert_trial(whole, false, "");
    assert_trial(one_class, false, "of one class");
    assert_trial(one_class, true, "");
    assert_trial(stopped, false, "before its last validation");
    assert_trial(stopped, true, "before its last validation");
}

/* ---- what a search says ---- */

/* The loss is dim's number; lr has no effect. */
static struct tune *new_tune(const struct settings *s, uint32_t n, char *const *words)
{
    struct tune *t = memory_alloc(sizeof *t);
    struct err err;

    t->given = s;
    t->words = words;
    t->n = n;
    t->trials = memory_alloc(n * sizeof *t->trials);
    assert_int_equal(search_space_of(s, &t->space, &err), 0);
    halving_plan(n, 1, &t->plan);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < t->space.n; j++)
            search_space_draw(&t->space.settings[j], 1, i, t->trials[i].values[j]);
        t->trials[i].results[0] = (struct trial_result){
            .auc =
                0.7 - 0.01 * search_space_place(&t->space.settings[1], t->trials[i].values[1])
        };
        t->trials[i].n_rungs = 1;
    }
    return t;
}

static void the_setting_that_matters_has_the_greatest_spread(void **state)
{
    struct settings *s = new_settings("lr=1e-4..1e-1,dim=8|16|32");

    (void)state;
    for (uint32_t n = 1; n < 120; n++) { /* bins of any size */
        struct tune *t = new_tune(s, n, NULL);
        struct tune_report_setting settings[SEARCH_SPACE_MAX];

        tune_report_settings(t, settings);
        if (n > 40) {
            assert_int_equal(settings[0].setting, 1);
            assert_true(fabs(settings[0].spread - 0.02) < 1e-9);
        }
        assert_true(search_space_place(&t->space.settings[1],
                                       t->trials[tune_report_best(t)].values[1]) == 0 ||
                    n < 20);
        free(t->trials);
        free(t);
    }
    free_settings(s);
}

static void the_best_command_has_the_words_but_those_of_the_search(void **state)
{
    char *words[] = { (char[]){ "--data" },     (char[]){ "it's a log" },
                      (char[]){ "--trials=9" }, (char[]){ "--search" },
                      (char[]){ "lr=1|2" },     (char[]){ "--lr" },
                      (char[]){ "0.5" },        (char[]){ "--local" },
                      (char[]){ "--json" },     (char[]){ "-" },
                      (char[]){ "--dim=4" },    NULL };
    struct settings *s = new_settings("lr=1e-4..1e-1,dim=8|16|32");
    struct tune *t = new_tune(s, 3, words);
    char *text, want[256];

    (void)state;
    text = tune_report_command(t, 0); /* the settings as given */
    assert_string_equal(text,
                        "psworker train --data 'it'\\''s a log' --lr 0.5 --local --dim=4");
    free(text);
    text = tune_report_command(t, 1);
    snprintf(want, sizeof want,
             "psworker train --data 'it'\\''s a log' --local --lr %s --dim %s",
             t->trials[1].values[0], t->trials[1].values[1]);
    assert_string_equal(text, want);
    free(text);
    free(t->trials);
    free(t);
    free_settings(s);
}

/* The x of each dot must be in its cell, also that of settings that were given outside of the range. */
static void a_picture_has_all_trials_in_their_cells(void **state)
{
    struct settings *s = new_settings("lr=1e-4..1e-1,dim=8|16|32,dropout=0.1..0.3");
    struct tune *t = new_tune(s, 9, NULL);
    char path[] = "/tmp/test_tune-XXXXXX", *text = memory_alloc(1 << 17), *at;
    const int fd = mkstemp(path);
    uint32_t n = 0;
    struct err err;

    (void)state;
    snprintf(t->trials[0].values[0], SEARCH_SPACE_TEXT_MAX, "10");
    snprintf(t->trials[0].values[2], SEARCH_SPACE_TEXT_MAX, "0.9");
    snprintf(s->svg, sizeof s->svg, "%s", path);
    assert_int_equal(tune_report_write_svg(t, &err), 0);
    assert_true(read(fd, text, (1 << 17) - 1) == 0); /* it has another file's place */
    close(fd);
    {
        FILE *in = fopen(path, "r");

        assert_non_null(in);
        assert_true(fread(text, 1, (1 << 17) - 1, in) > 1000);
        fclose(in);
    }
    for (at = text; (at = strstr(at, "cx=\"")) != NULL; at++, n++) {
        const double x = strtod(at + 4, NULL);

        assert_true((x >= 62 && x <= 362) || (x >= 442 && x <= 742));
    }
    assert_int_equal(n, 27);
    unlink(path);
    free(text);
    free(t->trials);
    free(t);
    free_settings(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_space_is_read_as_it_is_typed),
        cmocka_unit_test(what_makes_no_sense_is_refused_with_a_sentence),
        cmocka_unit_test(without_a_search_the_space_is_of_the_model),
        cmocka_unit_test(values_are_a_function_of_seed_trial_and_name),
        cmocka_unit_test(rungs_have_fewer_trials_and_more_rows),
        cmocka_unit_test(the_best_go_on_in_their_order),
        cmocka_unit_test(a_share_of_the_steps_is_one_of_what_a_whole_trial_makes),
        cmocka_unit_test(a_trial_without_what_it_is_compared_by_has_failed),
        cmocka_unit_test(a_picture_has_all_trials_in_their_cells),
        cmocka_unit_test(the_setting_that_matters_has_the_greatest_spread),
        cmocka_unit_test(the_best_command_has_the_words_but_those_of_the_search),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
