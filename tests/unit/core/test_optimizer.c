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

/* The papers' unit of LAMB, LARS and CAME is a layer: here the whole table, as one row. */
static void run_layer(const struct golden_case *c)
{
    struct table_spec spec = golden_spec(c);
    const struct optimizer *optim = optimizer_find(spec.optim);
    struct npy w = npy_load(c->name, "p0"), g = npy_load(c->name, "g");
    float state[2 * GOLDEN_FLOATS];

    spec.dim = GOLDEN_FLOATS;
    optim->init(w.f, state, GOLDEN_FLOATS, &spec.params);
    for (uint32_t t = 0; t < GOLDEN_STEPS; t++) {
        const struct optimizer_step step = optimizer_step_at(optim, &spec, t, t + 1);
        const int64_t at = (int64_t)t * GOLDEN_FLOATS;

        optim->step(w.f, state, (const optimizer_gradient *)g.f + at, GOLDEN_FLOATS, &step);
        npy_check(c->name, "p", w.f, at, GOLDEN_FLOATS);
        npy_check(c->name, c->states[0], state, at, GOLDEN_FLOATS);
        if (c->states[1])
            npy_check(c->name, c->states[1], state + GOLDEN_FLOATS, at, GOLDEN_FLOATS);
    }
    npy_free(&w);
    npy_free(&g);
}

static void whole_tables_in_one_row_are_the_papers(void **state)
{
    (void)state;
    run_layer(&(struct golden_case){ "paper_came", TABLE_SPEC_CAME, { "state_m" } });
    run_layer(&(struct golden_case){ "paper_lamb", TABLE_SPEC_LAMB, { "state_m", "state_v" } });
    run_layer(&(struct golden_case){ "paper_lars", TABLE_SPEC_LARS, { "state_b" } });
}

static const struct golden_case *golden_find(const char *name)
{
    size_t i = 0;

    while (strcmp(golden_cases[i].name, name) != 0)
        i++;
    return &golden_cases[i];
}

static void ftrl_starts_at_the_z_that_gives_the_weights(void **state)
{
    const struct golden_case *c = golden_find("opt_ftrl_init_sparse");
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

/* Of the others it is a part of the formula. */
static const enum table_spec_optim decays_gradients[] = {
    TABLE_SPEC_SGD,  TABLE_SPEC_MOMENTUM, TABLE_SPEC_ADAGRAD, TABLE_SPEC_ROWWISE_ADAGRAD,
    TABLE_SPEC_ADAM, TABLE_SPEC_FTRL,     TABLE_SPEC_SM3,     TABLE_SPEC_SM3_MATRIX
};

static void weight_decay_is_a_gradient_where_no_formula_has_it_elsewhere(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(decays_gradients); i++) {
        const enum table_spec_optim id = decays_gradients[i];
        const struct optimizer *optim = optimizer_find(id);
        struct table_spec plain = sparse_spec("t", 2, id), decayed = plain;
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

/* One step of a row with a gradient of 0 at the table's step t; the weight before was 1. */
static float decayed_at(enum table_spec_optim id, float state[3], uint64_t t)
{
    struct table_spec spec = sparse_spec("t", 1, id);
    const struct optimizer *optim = optimizer_find(id);
    const float zero = 0;
    struct optimizer_step step;
    float w = 1;

    spec.params.learning_rate = 0.5f;
    spec.params.weight_decay = 0x1p-10f;
    step = optimizer_step_at(optim, &spec, 0, t);
    optim->step(&w, state, &zero, 1, &step);
    return w;
}

static void near_one_minus(float got, double want)
{
    if (fabs(1 - (double)got - want) > 1e-7)
        fail_msg("decayed by %.9g, expected %.9g", 1 - (double)got, want);
}

static void decoupled_decay_makes_up_for_the_steps_that_a_row_missed(void **state)
{
    const enum table_spec_optim ids[] = { TABLE_SPEC_ADAMW, TABLE_SPEC_LION };
    const double each = 0x1p-11;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(ids); i++) {
        float floats[3] = { 0 };
        double sum = 0;

        near_one_minus(decayed_at(ids[i], floats, 1000), each); /* its first: it begins here */
        near_one_minus(decayed_at(ids[i], floats, 1001), each);
        near_one_minus(decayed_at(ids[i], floats, 1101), 1 - pow(1 - each, 100));
        /* A count that is less than the row's, as after an import: nothing to make up for. */
        near_one_minus(decayed_at(ids[i], floats, 5), 0);
        /* Beyond 2^24 a float holds every 64th count; the sum is still that of the counts. */
        decayed_at(ids[i], floats, UINT64_C(1) << 30);
        for (uint64_t t = 1; t <= 1024; t++)
            sum += log((double)decayed_at(ids[i], floats, (UINT64_C(1) << 30) + t));
        if (fabs(sum / log(1 - each) - 1024) > 1e-3)
            fail_msg("decayed by %.9g steps, expected 1024", sum / log(1 - each));
    }
}

/* Whatever its gradient; of at most 2^20, and where the row is 0 that of Adam's or SGD's step. */
static void a_step_of_lamb_and_lars_is_as_long_as_the_row(void **state)
{
    const enum table_spec_optim ids[] = { TABLE_SPEC_LAMB, TABLE_SPEC_LARS };
    const float scales[] = { 0, 1e-6f, 1, 1e6f, 1e15f },
                gradients[] = { 1e-3f, 1, 1e6f, 1e15f };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(ids) * COUNT_OF(scales) * COUNT_OF(gradients); i++) {
        const enum table_spec_optim id = ids[i % 2];
        const float scale = scales[i / 2 % 5], g[2] = { gradients[i / 10], 0 };
        struct table_spec spec = sparse_spec("t", 2, id);
        const struct optimizer *optim = optimizer_find(id);
        float w[2] = { 3 * scale, 4 * scale }, floats[4] = { 0 };
        const double before = (double)w[0], norm = fmin(5 * (double)scale, 0x1p20);
        const double want = scale > 0               ? 0.25 * norm
                            : id == TABLE_SPEC_LAMB ? 0.25
                                                    : 0.25 * (double)g[0];
        struct optimizer_step step;

        spec.params = table_spec_optim_defaults(id);
        spec.params.learning_rate = 0.25f;
        step = optimizer_step_at(optim, &spec, 0, 1);
        optim->step(w, floats, g, 2, &step);
        if (fabs(before - (double)w[0] - want) > 2e-3 * want + 1e-7 * before)
            fail_msg("%s: from %g by %g, expected %g", table_spec_optim_name(id), before,
                     before - (double)w[0], want);
        assert_true(w[1] == 4 * scale);
    }
}

static void what_no_training_leads_to_is_no_state(void **state)
{
    static const struct {
        enum table_spec_optim optim;
        uint32_t at; /* of a state of two weights, else 0 */
        float bad;
        enum optimizer_fault fault;
    } cases[] = {
        { TABLE_SPEC_ROWWISE_ADAGRAD, 0, -1, OPTIMIZER_NEGATIVE },
        { TABLE_SPEC_LAMB, 2, -1, OPTIMIZER_NEGATIVE },
        { TABLE_SPEC_LAMB, 0, 3e15f, OPTIMIZER_LARGE },
        { TABLE_SPEC_LARS, 1, 3e38f, OPTIMIZER_LARGE },
        { TABLE_SPEC_CAME, 1, -9, OPTIMIZER_LARGE },
        { TABLE_SPEC_CAME, 2, -1e-9f, OPTIMIZER_NEGATIVE },
        { TABLE_SPEC_CAME, 3, 3e30f, OPTIMIZER_LARGE },
        { TABLE_SPEC_CAME, 7, 1e4f, OPTIMIZER_LARGE },
        { TABLE_SPEC_CAME, 7, 1, OPTIMIZER_FINE },
        { TABLE_SPEC_LARS, 1, NAN, OPTIMIZER_NOT_FINITE },
        { TABLE_SPEC_SM3, 0, -1, OPTIMIZER_NEGATIVE },
        { TABLE_SPEC_SM3_MATRIX, 2, -1, OPTIMIZER_NEGATIVE },
        { TABLE_SPEC_ADAMW, 3, -1, OPTIMIZER_NEGATIVE },
        { TABLE_SPEC_ADAMW, 1, -3e15f, OPTIMIZER_LARGE },
        { TABLE_SPEC_ADAMW, 4, -1, OPTIMIZER_NO_STEP },
        { TABLE_SPEC_ADAMW, 4, 0.5f, OPTIMIZER_NO_STEP },
        { TABLE_SPEC_LION, 2, 1e15f, OPTIMIZER_NO_STEP },
        { TABLE_SPEC_LION, 2, 0x1p48f, OPTIMIZER_FINE },
        { TABLE_SPEC_LION, 0, 3e15f, OPTIMIZER_LARGE },
    };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct optimizer *optim = optimizer_find(cases[i].optim);
        const struct table_spec spec = sparse_spec("t", 2, cases[i].optim);
        float floats[8] = { 0 };

        assert_int_equal(optimizer_check_state(optim, floats, &spec, 1e15f), OPTIMIZER_FINE);
        floats[cases[i].at] = cases[i].bad;
        assert_int_equal(optimizer_check_state(optim, floats, &spec, 1e15f), cases[i].fault);
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
        cmocka_unit_test(whole_tables_in_one_row_are_the_papers),
        cmocka_unit_test(ftrl_starts_at_the_z_that_gives_the_weights),
        cmocka_unit_test(a_gradient_of_zero_leaves_ftrl_where_it_starts),
        cmocka_unit_test(weight_decay_is_a_gradient_where_no_formula_has_it_elsewhere),
        cmocka_unit_test(decoupled_decay_makes_up_for_the_steps_that_a_row_missed),
        cmocka_unit_test(a_step_of_lamb_and_lars_is_as_long_as_the_row),
        cmocka_unit_test(what_no_training_leads_to_is_no_state),
        cmocka_unit_test(find_knows_the_optimizers_of_a_specification_and_no_other),
        cmocka_unit_test(the_rate_follows_its_schedule),
        cmocka_unit_test(cosine_and_step_are_pytorchs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
