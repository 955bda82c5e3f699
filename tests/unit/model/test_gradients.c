/* Every gradient of every kind of model, against differences of the loss of a reference in
 * double. */
#include "tests/unit/model/reference.h"

/* Steps of 1e-6 in double leave about 1e-9; what remains is the model's own float arithmetic,
 * relative to the largest gradient of its array. */
static const double step_size = 1e-6, tolerance = 2e-5;

static double slope(struct reference *t, double *parameter)
{
    const double at = *parameter;
    double up, down;

    *parameter = at + step_size;
    up = reference_loss(t);
    *parameter = at - step_size;
    down = reference_loss(t);
    *parameter = at;
    return (up - down) / (2 * step_size);
}

static void check_array(struct reference *t, const char *name, double *parameters,
                        const float *grads, size_t n)
{
    double *want = memory_alloc(n * sizeof *want + 1), largest = 0;

    for (size_t i = 0; i < n; i++) {
        want[i] = slope(t, parameters + i);
        largest = fmax(largest, fabs(want[i]));
    }
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)grads[i] - want[i]) <= tolerance * fmax(largest, 0.05)))
            fail_msg("%s[%zu]: gradient %.9g, the loss says %.9g (largest of the array %.3g)",
                     name, i, (double)grads[i], want[i], largest);
    free(want);
}

static void check_logits(struct fixture *f, struct reference *t)
{
    const float *logits = fixture_read(f, "logit");

    for (uint32_t s = 0; s < f->batch.n; s++)
        if (!(fabs((double)logits[s] - t->logits[s]) < 1e-5 * (1 + fabs(t->logits[s]))))
            fail_msg("logit %u is %.9g, the reference's %.9g", s, (double)logits[s],
                     t->logits[s]);
}

static void check_model(const struct dlrm_config *config, uint32_t n, uint64_t seed)
{
    struct fixture_rng rng = { seed, 0 };
    struct fixture f;
    struct reference t;

    fixture_init(&f, config, n, &rng);
    fixture_step(&f, seed);
    reference_init(&t, &f, true, seed);
    if (!(fabs(f.loss + reference_l2(&t) - reference_loss(&t)) < 1e-5))
        fail_msg("loss %.9g, the reference's %.9g", f.loss + reference_l2(&t),
                 reference_loss(&t));
    check_logits(&f, &t);
    for (uint32_t i = 0; i < dlrm_n_tensors(f.m); i++) {
        struct dlrm_tensor *tensor = dlrm_tensor(f.m, i);

        if (!tensor->statistic)
            check_array(&t, tensor->name, t.tensors[i], tensor->grads, tensor->n_floats);
    }
    check_array(&t, "rows", t.rows, f.row_grads, (size_t)f.batch.n_unique * config->dim);
    if (config->wide)
        check_array(&t, "wide", t.wide, f.wide_grads, f.batch.n_unique);
    reference_deinit(&t);

    fixture_predict(&f);
    reference_init(&t, &f, false, 0);
    reference_loss(&t);
    check_logits(&f, &t);
    reference_deinit(&t);
    fixture_deinit(&f);
}

static const struct dlrm_config plain = { .batch_max = 9,
                                          .n_numeric = 3,
                                          .n_fields = 3,
                                          .dim = 4,
                                          .n_bottom = 1,
                                          .bottom = { 5 },
                                          .n_top = 2,
                                          .top = { 6, 5 },
                                          .seed = 11 };

static void the_plain_model_follows_its_loss(void **state)
{
    (void)state;
    check_model(&plain, 9, 1);
}

static void so_does_the_diagonal_of_self_interaction(void **state)
{
    struct dlrm_config config = plain;

    (void)state;
    config.self_interaction = true;
    check_model(&config, 8, 2);
}

static void so_does_concatenation(void **state)
{
    struct dlrm_config config = plain;

    (void)state;
    config.concat = true;
    check_model(&config, 8, 3);
}

static void so_does_batch_normalisation(void **state)
{
    struct dlrm_config config = plain;

    (void)state;
    config.batch_norm = true;
    check_model(&config, 9, 4);
}

static void so_does_dropout_with_a_fixed_mask(void **state)
{
    struct dlrm_config config = plain;

    (void)state;
    config.dropout = 0.4f;
    check_model(&config, 9, 5);
    config.batch_norm = true;
    check_model(&config, 9, 6);
}

static void so_does_the_first_order_term(void **state)
{
    struct dlrm_config config = plain;

    (void)state;
    config.wide = true;
    check_model(&config, 9, 7);
}

static void so_does_l2_on_weights_and_rows(void **state)
{
    struct dlrm_config config = plain;

    (void)state;
    config.l2_dense = 0.3f;
    config.l2_rows = 0.2f;
    check_model(&config, 9, 8);
}

static void so_does_a_model_without_numeric_columns(void **state)
{
    struct dlrm_config config = plain;

    (void)state;
    config.n_numeric = 0;
    check_model(&config, 9, 9);
    config.concat = true;
    check_model(&config, 9, 10);
}

static void so_does_a_model_without_fields(void **state)
{
    struct dlrm_config config = plain;

    (void)state;
    config.n_fields = 0;
    check_model(&config, 9, 11);
    config.concat = config.self_interaction = config.wide = true;
    check_model(&config, 9, 12);
}

static void so_does_a_model_without_hidden_layers(void **state)
{
    struct dlrm_config config = plain;

    (void)state;
    config.n_bottom = config.n_top = 0;
    check_model(&config, 9, 13);
}

static void so_does_a_batch_of_one(void **state)
{
    (void)state;
    check_model(&plain, 1, 14);
}

/* Batch normalisation is left to its own tests: with few samples it divides by next to
 * nothing. */
static void and_any_mixture_of_switches(void **state)
{
    const uint64_t seed = seed_of_run(20240607);
    uint32_t n_checked = 0;

    (void)state;
    for (uint64_t i = 0; i < 60; i++) {
        struct fixture_rng rng = { hash_mix2(seed, i), 0 };
        struct dlrm_config config =
            fixture_config(&rng, (struct fixture_most){ .samples = 9, .dim = 20, .width = 6 });

        config.batch_norm = false;
        if (dlrm_config_check(&config, NULL))
            continue;
        check_model(&config, config.batch_max, hash_mix2(seed, i));
        n_checked++;
    }
    assert_true(n_checked > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plain_model_follows_its_loss),
        cmocka_unit_test(so_does_the_diagonal_of_self_interaction),
        cmocka_unit_test(so_does_concatenation),
        cmocka_unit_test(so_does_batch_normalisation),
        cmocka_unit_test(so_does_dropout_with_a_fixed_mask),
        cmocka_unit_test(so_does_the_first_order_term),
        cmocka_unit_test(so_does_l2_on_weights_and_rows),
        cmocka_unit_test(so_does_a_model_without_numeric_columns),
        cmocka_unit_test(so_does_a_model_without_fields),
        cmocka_unit_test(so_does_a_model_without_hidden_layers),
        cmocka_unit_test(so_does_a_batch_of_one),
        cmocka_unit_test(and_any_mixture_of_switches),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
