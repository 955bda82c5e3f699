#include "worker/metrics.h"

#include <errno.h>
#include <math.h>

#include "common/hash.h"
#include "common/memory.h"
#include "tests/support/npy.h"
#include "tests/support/seed.h"

#define N_SETS 10

static void add(struct metrics *m, const float *probs, const float *labels, uint32_t n)
{
    assert_int_equal(metrics_add(m, probs, labels, n), 0);
}

static struct metrics_result result_of(const float *probs, const float *labels, uint32_t n)
{
    struct metrics m = { 0 };
    struct metrics_result r;

    add(&m, probs, labels, n);
    assert_int_equal(metrics_result(&m, &r), 0);
    metrics_deinit(&m);
    return r;
}

/* A golden set's probabilities and labels; some sets share the labels `y`. */
static struct metrics_result result_of_set(const char *set)
{
    char name[64];
    struct npy y, p;
    struct metrics_result r;
    float *labels;

    snprintf(name, sizeof name, strcmp(set, "cont") == 0 ? "p" : "p_%s", set);
    p = npy_load("metrics", name);
    snprintf(name, sizeof name, "y_%s", set);
    y = npy_load("metrics", p.n == 100000 ? "y" : name);
    assert_int_equal(y.n, p.n);
    labels = memory_alloc((size_t)y.n * sizeof *labels);
    for (int64_t i = 0; i < y.n; i++)
        labels[i] = (float)y.i[i];
    r = result_of(p.f, labels, (uint32_t)p.n);
    free(labels);
    npy_free(&y);
    npy_free(&p);
    return r;
}

static void check(const char *what, const char *set, double got)
{
    char name[64];
    double want;

    snprintf(name, sizeof name, "%s_%s", what, set);
    want = npy_param("metrics", name);
    if (!(fabs(got - want) <= 1e-11 * fmax(1, fabs(want))))
        fail_msg("%s: %.17g, %.17g expected", name, got, want);
}

static void the_golden_sets_agree_with_sklearn(void **state)
{
    static const char *const sets[N_SETS] = { "cont",  "ties16",  "ties2",   "hard01", "fp16",
                                              "const", "perfect", "inverse", "rare",   "tiny" };
    float table[N_SETS][5] = { 0 };

    (void)state;
    for (int i = 0; i < N_SETS; i++) {
        struct metrics_result r = result_of_set(sets[i]);

        check("auc", sets[i], r.auc);
        check("logloss", sets[i], r.logloss);
        check("ne", sets[i], r.ne);
        table[i][0] = (float)r.auc;
        table[i][1] = (float)r.logloss;
        table[i][2] = (float)r.ne;
        table[i][3] = (float)((double)r.n_positive / (double)r.n);
        table[i][4] = (float)r.calibration;
    }
    npy_check("metrics", "expect", table, 0, -1);
}

/* Compares every positive with every negative. */
static double auc_reference(const float *probs, const float *labels, uint32_t n)
{
    double wins = 0, pairs = 0;

    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < n; j++)
            if (labels[i] > 0.5f && labels[j] < 0.5f) {
                pairs++;
                wins += probs[i] > probs[j] ? 1 : probs[i] == probs[j] ? 0.5 : 0;
            }
    return wins / pairs;
}

static void auc_agrees_with_comparing_all_pairs(void **state)
{
    const uint64_t seed = seed_by_the_clock();
    float probs[300], labels[300];

    (void)state;
    for (uint64_t round = 0; round < 200; round++) {
        uint64_t base = hash_mix2(seed, round);
        uint32_t n = 2 + (uint32_t)(base % 298), levels = 1 + (uint32_t)(base >> 32) % 50;

        for (uint32_t i = 0; i < n; i++) {
            uint64_t h = hash_mix2(base, i);

            probs[i] = round % 2 ? hash_unit(h) : (float)(h % levels) / (float)levels;
            probs[i] = round % 3 ? probs[i] : -probs[i] * 1e10f;
            labels[i] = i < 2 ? (float)i : (float)(h >> 50 & 1);
        }
        if (result_of(probs, labels, n).auc != auc_reference(probs, labels, n))
            fail_msg("round %d: %.17g, %.17g expected", (int)round,
                     result_of(probs, labels, n).auc, auc_reference(probs, labels, n));
    }
}

static void the_order_and_size_of_what_is_added_do_not_matter(void **state)
{
    struct metrics a = { 0 }, b = { 0 };
    float probs[1000], labels[1000];
    struct metrics_result r, s;

    (void)state;
    for (uint32_t i = 0; i < 1000; i++) {
        probs[i] = (float)(hash_mix(i) % 64) / 64;
        labels[i] = (float)(hash_mix(i) >> 63);
    }
    add(&a, probs, labels, 1000);
    add(&b, probs + 700, labels + 700, 300);
    add(&b, NULL, NULL, 0);
    for (uint32_t i = 0; i < 700; i++)
        add(&b, probs + i, labels + i, 1);
    assert_int_equal(metrics_result(&a, &r), 0);
    assert_int_equal(metrics_result(&b, &s), 0);
    assert_true(r.auc == s.auc && r.n == s.n && r.n_positive == s.n_positive);
    assert_true(fabs(r.logloss - s.logloss) < 1e-13);
    metrics_deinit(&b);
    add(&b, probs, labels, 1000);
    assert_int_equal(metrics_result(&b, &s), 0);
    assert_true(r.logloss == s.logloss && r.auc == s.auc);
    metrics_deinit(&a);
    metrics_deinit(&b);
}

static void one_class_has_no_auc_and_no_entropy(void **state)
{
    const float probs[] = { 0.2f, 0.4f }, ones[] = { 1, 1 }, zeros[] = { 0, 0 };
    struct metrics_result r = result_of(probs, ones, 2);

    (void)state;
    assert_true(isnan(r.auc) && isnan(r.ne));
    assert_true(fabs(r.logloss + (log(0.2) + log(0.4)) / 2) < 1e-7);
    assert_true(fabs(r.calibration - 0.3) < 1e-7);
    r = result_of(probs, zeros, 2);
    assert_true(isnan(r.auc) && isnan(r.ne) && isnan(r.calibration));
    assert_int_equal(r.n_positive, 0);
    r = result_of(probs, zeros, 0);
    assert_true(isnan(r.auc) && isnan(r.logloss));
    assert_int_equal(r.n, 0);
}

static void zero_and_minus_zero_tie(void **state)
{
    const float probs[] = { -0.0f, 0.0f, 0.0f, -0.0f }, labels[] = { 0, 1, 0, 1 };

    (void)state;
    assert_true(result_of(probs, labels, 4).auc == 0.5);
}

static void a_probability_that_is_no_number_shows(void **state)
{
    const float probs[] = { 0.1f, NAN, 0.9f }, labels[] = { 0, 0, 1 };
    struct metrics_result r = result_of(probs, labels, 3);

    (void)state;
    assert_true(isnan(r.auc) && isnan(r.logloss) && isnan(r.ne) && isnan(r.calibration));
}

#ifdef PS_FAULTS
static void every_failed_allocation_leaves_what_was_there(void **state)
{
    const float probs[] = { 0.1f, 0.9f, 0.3f }, labels[] = { 0, 1, 1 };
    struct metrics_result r = { .n = 42 };
    struct metrics m = { 0 };
    int status = -1;

    (void)state;
    add(&m, probs, labels, 3);
    for (long k = 0; status != 0; k++) {
        memory_fail_after(k);
        status = metrics_result(&m, &r);
        memory_fail_after(-1);
        assert_true(status == 0 || (status == -ENOMEM && r.n == 42));
    }
    for (long k = 0; k < 2; k++) {
        memory_fail_after(k);
        assert_int_equal(metrics_add(&m, probs, labels, 3), -ENOMEM);
        memory_fail_after(-1);
        assert_int_equal(m.n, 3);
    }
    add(&m, probs, labels, 3);
    assert_int_equal(metrics_result(&m, &r), 0);
    assert_true(r.n == 6 && r.auc == 1);
    metrics_deinit(&m);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_golden_sets_agree_with_sklearn),
        cmocka_unit_test(auc_agrees_with_comparing_all_pairs),
        cmocka_unit_test(the_order_and_size_of_what_is_added_do_not_matter),
        cmocka_unit_test(one_class_has_no_auc_and_no_entropy),
        cmocka_unit_test(zero_and_minus_zero_tie),
        cmocka_unit_test(a_probability_that_is_no_number_shows),
#ifdef PS_FAULTS
        cmocka_unit_test(every_failed_allocation_leaves_what_was_there),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
