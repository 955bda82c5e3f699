/* --decay plateau's factor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "worker/plateau.h"
#include "worker/resume_point.h"

/* PyTorch 1.13: lr of SGD(lr=1) behind each step() of ReduceLROnPlateau(mode="max", factor=0.3, patience=1, threshold=0,
 * threshold_mode="abs", min_lr=0.01, eps=0). */
static const struct {
    double score, rate;
} golden[] = {
    { 0.70, 1 },    { 0.72, 1 },     { 0.71, 1 },     { 0.72, 0.3 },   { 0.719, 0.3 },
    { 0.73, 0.3 },  { 0.729, 0.3 },  { 0.728, 0.09 }, { 0.727, 0.09 }, { 0.7301, 0.09 },
    { 0.70, 0.09 }, { 0.70, 0.027 }, { 0.70, 0.027 }, { 0.70, 0.01 },  { 0.70, 0.01 },
    { 0.70, 0.01 }, { 0.70, 0.01 },  { 0.70, 0.01 },
};

static const struct plateau_rule rule = { .by = 0.3f, .floor = 0.01f, .patience = 1 };

static void the_factor_falls_as_pytorchs_rate_does(void **state)
{
    double best = -1;
    uint32_t n_flat = 0;
    float factor = 1;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(golden); i++) {
        factor = plateau_next(&rule, factor, golden[i].score > best, &n_flat);
        best = golden[i].score > best ? golden[i].score : best;
        if (factor < (float)golden[i].rate * 0.999999f ||
            factor > (float)golden[i].rate * 1.000001f)
            fail_msg("validation %zu: the factor is %.9g, PyTorch's %g", i, (double)factor,
                     golden[i].rate);
    }
}

static void the_factor_of_a_rate_is_the_very_same_float(void **state)
{
    static const float bases[] = { 0.03f, 0.01f, 0.001f, 1e-7f, 3 };
    uint32_t n_flat = 0;

    (void)state;
    for (size_t b = 0; b < COUNT_OF(bases); b++) {
        float factor = 1;

        for (uint32_t i = 0; i < 20; i++) {
            assert_true(plateau_factor_of(&rule, bases[b], bases[b] * factor) == factor);
            factor = plateau_next(&rule, factor, false, &n_flat);
        }
    }
    assert_true(plateau_factor_of(&rule, 1, 0.5f) == 0.5f); /* an operator has set it */
    assert_true(plateau_factor_of(&rule, 1, 2) == 2);
    assert_true(plateau_factor_of(&rule, 1, 1e-6f) == 1e-6f);
}

static void a_resume_point_has_the_state_and_an_older_one_has_none(void **state)
{
    const struct resume_point sent = { .epoch = 1,
                                       .batch = 2,
                                       .steps = 3,
                                       .codec_steps = 4,
                                       .best_score = 0.5,
                                       .n_worse = 6,
                                       .n_flat = 7,
                                       .validated = 8,
                                       .stop_set = true };
    struct resume_point got = { 0 };
    uint8_t bytes[RESUME_POINT_BYTES];

    (void)state;
    resume_point_write(&sent, bytes);
    assert_int_equal(resume_point_read(bytes, sizeof bytes, &got), 0);
    assert_true(got.n_flat == 7 && got.validated == 8 && got.n_worse == 6 && got.stop_set);
    assert_int_equal(resume_point_read(bytes, 64, &got), PS_ESPEC);
    bytes[0] = 1;
    assert_int_equal(resume_point_read(bytes, 64, &got), 0);
    assert_true(got.validated == 3); /* all before it counts */
    assert_int_equal(resume_point_read(bytes, sizeof bytes, &got), PS_ESPEC);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_factor_falls_as_pytorchs_rate_does),
        cmocka_unit_test(the_factor_of_a_rate_is_the_very_same_float),
        cmocka_unit_test(a_resume_point_has_the_state_and_an_older_one_has_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
