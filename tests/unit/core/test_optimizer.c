/* Optimizers alone, row by row, against PyTorch's numbers and the papers'. */
#include "golden.h"

#include <math.h>

static void run_golden(const struct golden_case *c)
{
    const struct table_spec spec = golden_spec(c);
    const struct optimizer *optim = optimizer_find(spec.optim);
    const uint32_t row_floats = GOLDEN_COLS + optim->state_floats(GOLDEN_COLS);
    float *rows = memory_alloc(GOLDEN_ROWS * row_floats * sizeof *rows);
    struct golden_grads grads = golden_grads_load(c->name);
    struct npy p0 = npy_load(c->name, "p0");
    const float *g;

    for (uint32_t r = 0; r < GOLDEN_ROWS; r++) {
        memcpy(rows + r * row_floats, p0.f + r * GOLDEN_COLS, GOLDEN_COLS * sizeof *rows);
        optim->init(rows + r * row_floats, rows + r * row_floats + GOLDEN_COLS, GOLDEN_COLS,
                    &spec.params);
    }
    for (uint32_t t = 0; t < GOLDEN_STEPS; t++) {
        const struct optimizer_step step = optimizer_step_at(optim, &spec, t, t + 1);
        uint32_t n = golden_step(&grads, t, &g);

        for (uint32_t i = 0; i < n; i++) {
            float *row = rows + grads.keys[i] * row_floats;

            optim->step(row, row + GOLDEN_COLS, g + i * GOLDEN_COLS, GOLDEN_COLS, &step);
        }
        golden_check(c, t, rows, row_floats);
    }
    npy_free(&p0);
    golden_grads_free(&grads);
    free(rows);
}

static void every_optimizer_agrees_with_its_golden_numbers(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(golden_cases); i++)
        run_golden(&golden_cases[i]);
}

static void ftrl_starts_at_the_z_that_gives_the_weights(void **state)
{
    const struct golden_case *c = &golden_cases[COUNT_OF(golden_cases) - 1];
    const struct table_spec spec = golden_spec(c);
    struct npy p0 = npy_load(c->name, "p0"), z0 = npy_load(c->name, "z0");
    const struct optimizer *ftrl = optimizer_find(TABLE_SPEC_FTRL);
    float fields[2 * GOLDEN_FLOATS];

    (void)state;
    ftrl->init(p0.f, fields, GOLDEN_FLOATS, &spec.params);
    for (uint32_t i = 0; i < GOLDEN_FLOATS; i++) {
        assert_true(fabsf(fields[i] - z0.f[i]) <= 1e-5f * fabsf(z0.f[i]) + 1e-6f);
        assert_true(fields[GOLDEN_FLOATS + i] == 0);
    }
    npy_free(&p0);
    npy_free(&z0);
}

/* Whatever the start and the accumulator: a gradient of zero moves nothing. */
static void a_gradient_of_zero_leaves_ftrl_where_it_starts(void **state)
{
    struct optimizer_params p = { .learning_rate = 0.3f,
                                  .ftrl_beta = 1,
                                  .ftrl_l1 = 0.1f,
                                  .ftrl_l2 = 0.2f,
                                  .initial_accumulator = 0.7f };
    const struct optimizer_step step = { .params = &p, .lr = 0.001f, .t = 1 };
    const struct optimizer *ftrl = optimizer_find(TABLE_SPEC_FTRL);
    const float start[3] = { 0.5f, -0.25f, 0 }, zero[3] = { 0 };
    float w[3], fields[6];

    (void)state;
    memcpy(w, start, sizeof w);
    ftrl->init(w, fields, 3, &p);
    ftrl->step(w, fields, zero, 3, &step);
    for (int i = 0; i < 3; i++)
        assert_true(fabsf(w[i] - start[i]) <= 1e-6f);
}

static void weight_decay_is_a_gradient_for_every_optimizer(void **state)
{
    (void)state;
    for (unsigned id = 0; id < TABLE_SPEC_OPTIM_END; id++) {
        const struct optimizer *optim = optimizer_find((enum table_spec_optim)id);
        struct table_spec plain = sparse_spec("t", 2, (enum table_spec_optim)id),
                          decayed = plain;
        float w1[2] = { 0.5f, -2 }, w2[2] = { 0.5f, -2 }, s1[4] = { 0 }, s2[4] = { 0 };
        const float g[2] = { 0.125f, 0.25f },
                    g_more[2] = { 0.125f + 0.25f * 0.5f, 0.25f - 0.25f * 2 };
        struct optimizer_step step1, step2;

        decayed.params.weight_decay = 0.25f;
        step1 = optimizer_step_at(optim, &plain, 0, 1);
        step2 = optimizer_step_at(optim, &decayed, 0, 1);
        optim->init(w1, s1, 2, &plain.params);
        optim->init(w2, s2, 2, &decayed.params);
        optim->step(w1, s1, g_more, 2, &step1);
        optim->step(w2, s2, g, 2, &step2);
        assert_floats_equal(w2, w1, 2);
        assert_floats_equal(s2, s1, optim->state_floats(2));
    }
}

static void find_knows_the_optimizers_of_a_specification_and_no_other(void **state)
{
    (void)state;
    for (unsigned id = 0; id < TABLE_SPEC_OPTIM_END; id++)
        assert_int_equal(optimizer_find((enum table_spec_optim)id)->id, id);
    assert_null(optimizer_find(TABLE_SPEC_OPTIM_END));
    assert_null(optimizer_find((enum table_spec_optim)4000000000u));
}

static void near(float got, double want)
{
    if (fabs((double)got - want) > 1e-6 * fabs(want))
        fail_msg("rate is %.9g, expected %.9g", (double)got, want);
}

static void the_rate_follows_its_schedule(void **state)
{
    struct lr_schedule s = { .warmup_clocks = 4 };

    (void)state;
    near(optimizer_rate(2, &s, 0), 0.5);
    near(optimizer_rate(2, &s, 3), 2);
    near(optimizer_rate(2, &s, UINT64_MAX), 2);

    s = (struct lr_schedule){ .decay = TABLE_SPEC_DECAY_LINEAR,
                              .decay_start = 10,
                              .decay_clocks = 100,
                              .decay_floor = 0.25f };
    near(optimizer_rate(2, &s, 0), 2);
    near(optimizer_rate(2, &s, 10), 2);
    near(optimizer_rate(2, &s, 60), 1);
    near(optimizer_rate(2, &s, 1000), 0.5);

    s.decay = TABLE_SPEC_DECAY_EXP;
    s.decay_rate = 0.5f;
    s.decay_floor = 0;
    near(optimizer_rate(2, &s, 110), 1);
    near(optimizer_rate(2, &s, 310), 0.25);

    s.decay = TABLE_SPEC_DECAY_PLATEAU;
    near(optimizer_rate(2, &s, 310), 2);

    s.decay = TABLE_SPEC_DECAY_INV_SQRT;
    near(optimizer_rate(2, &s, 310), 1);
    s.warmup_clocks = 621;
    near(optimizer_rate(2, &s, 310), 311.0 / 621);
}

/* PyTorch 1.13: lr of SGD(lr=2) under CosineAnnealingLR(T_max=10, eta_min=0.5) and StepLR(step_size=3, gamma=0.5). */
static void cosine_and_step_are_pytorchs(void **state)
{
    static const double cosine[] = { 2,           1.963292387, 1.856762746, 1.690838939,
                                     1.481762746, 1.25,        1.018237254, 0.809161061,
                                     0.643237254, 0.536707613, 0.5 },
                        steps[] = { 2, 2, 2, 1, 1, 1, 0.5, 0.5, 0.5, 0.25 };
    struct lr_schedule s = { .decay = TABLE_SPEC_DECAY_COSINE,
                             .decay_start = 5,
                             .decay_clocks = 10,
                             .decay_floor = 0.25f };

    (void)state;
    for (uint64_t i = 0; i < COUNT_OF(cosine); i++)
        near(optimizer_rate(2, &s, 5 + i), cosine[i]);
    near(optimizer_rate(2, &s, 1000), 0.5); /* where PyTorch's rises again */
    s = (struct lr_schedule){
        .decay = TABLE_SPEC_DECAY_STEP, .decay_start = 5, .decay_clocks = 3, .decay_rate = 0.5f
    };
    for (uint64_t i = 0; i < COUNT_OF(steps); i++)
        near(optimizer_rate(2, &s, 5 + i), steps[i]);
    s.warmup_clocks = 20;
    near(optimizer_rate(2, &s, 9), 0.5 * 2 * 0.5); /* (9 + 1) / 20, and one step */
    s.decay_floor = 0.75f;
    near(optimizer_rate(2, &s, 1000), 1.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_optimizer_agrees_with_its_golden_numbers),
        cmocka_unit_test(ftrl_starts_at_the_z_that_gives_the_weights),
        cmocka_unit_test(a_gradient_of_zero_leaves_ftrl_where_it_starts),
        cmocka_unit_test(weight_decay_is_a_gradient_for_every_optimizer),
        cmocka_unit_test(find_knows_the_optimizers_of_a_specification_and_no_other),
        cmocka_unit_test(the_rate_follows_its_schedule),
        cmocka_unit_test(cosine_and_step_are_pytorchs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
