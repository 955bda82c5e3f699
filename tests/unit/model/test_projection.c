/* Rows of other widths than the model's: as if they had been projected before, and the chain rule behind it. */
#include <errno.h>
#include <math.h>

#include "tests/support/far_device.h"
#include "tests/unit/model/fixture.h"
#include "worker/model/projection.h"

enum { N_FIELDS = 5, N_GROUPS = 4, DIM = 8, BATCH = 6 };

static const uint8_t of_field[N_FIELDS] = { 2, 0, 1, 2, 3 };
static const struct batch_groups groups = { N_GROUPS, of_field };
static const uint32_t dims[N_GROUPS] = { 3, DIM, 17, 1 };

/* Keys of fields of a group alone; so many of them that a group's rows are more than a batch has samples. */
static void fill_batch(struct batch *b, uint32_t n, uint64_t seed)
{
    struct fixture_rng rng = { .seed = seed };

    assert_int_equal(batch_init(b, BATCH, 3, N_FIELDS), 0);
    b->groups = &groups;
    b->n = n;
    for (uint32_t i = 0; i < n * 3; i++)
        b->numeric[i] = fixture_float(&rng, 1);
    for (uint32_t i = 0; i < n; i++)
        b->label[i] = (float)(i % 2);
    for (uint32_t bag = 0; bag < n * N_FIELDS; bag++) {
        const uint32_t n_keys = bag % N_FIELDS == 4 ? 0 : fixture_below(&rng, 6);

        assert_int_equal(batch_reserve_keys(b, n_keys), 0);
        for (uint32_t i = 0; i < n_keys; i++)
            b->keys[b->n_keys++] = hash_mix2(of_field[bag % N_FIELDS], fixture_below(&rng, 25));
        b->starts[bag + 1] = b->n_keys;
    }
    assert_int_equal(batch_dedup(b), 0);
}

/* A model with groups, and one that has rows of its own width. */
struct two {
    struct dlrm *m, *plain;
    struct batch batch;
    float *rows, *row_grads, *projected, *projected_grads;
};

static struct dlrm *new_model(const struct dlrm_config *config)
{
    struct dlrm *m;
    struct err err = { 0 };

    if (dlrm_new(config, &m, &err))
        fail_msg("%s", err.text);
    return m;
}

static void fill_tensors(struct two *t)
{
    struct fixture_rng rng = { .seed = 5 };

    for (uint32_t i = 0; i < dlrm_n_tensors(t->m); i++) {
        struct dlrm_tensor *tensor = dlrm_tensor(t->m, i);

        fixture_fill(&rng, tensor->values, tensor->n_floats, 0.5f);
        if (i < dlrm_n_tensors(t->plain))
            memcpy(dlrm_tensor(t->plain, i)->values, tensor->values,
                   tensor->n_floats * sizeof(float));
    }
}

/* The tensor of the group; NULL: its rows are as wide as the model. */
static struct dlrm_tensor *tensor_of(struct dlrm *m, uint32_t group)
{
    char name[32];

    snprintf(name, sizeof name, "proj.%u.W", group);
    for (uint32_t i = 0; i < dlrm_n_tensors(m); i++)
        if (strcmp(dlrm_tensor(m, i)->name, name) == 0)
            return dlrm_tensor(m, i);
    return NULL;
}

/* Calls each(arg, group, row of the batch, where it begins in the array of rows). */
static void each_row(const struct two *t,
                     void (*each)(const struct two *t, uint32_t group, uint32_t u, size_t at))
{
    size_t at = 0;

    for (uint32_t g = 0; g < N_GROUPS; g++)
        for (uint32_t u = batch_group_start(&t->batch, g);
             u < batch_group_start(&t->batch, g + 1); u++, at += dims[g])
            each(t, g, u, at);
}

static void project_row(const struct two *t, uint32_t group, uint32_t u, size_t at)
{
    const struct dlrm_tensor *w = tensor_of(t->m, group);

    for (uint32_t d = 0; d < DIM; d++) {
        double sum = w ? 0 : (double)t->rows[at + d];

        for (uint32_t k = 0; w && k < dims[group]; k++)
            sum += (double)w->values[d * dims[group] + k] * (double)t->rows[at + k];
        t->projected[u * DIM + d] = (float)sum;
    }
}

static void check_row_grad(const struct two *t, uint32_t group, uint32_t u, size_t at)
{
    const struct dlrm_tensor *w = tensor_of(t->m, group);

    for (uint32_t k = 0; k < dims[group]; k++) {
        double sum = w ? 0 : (double)t->projected_grads[u * DIM + k];

        for (uint32_t d = 0; w && d < DIM; d++)
            sum += (double)w->values[d * dims[group] + k] *
                   (double)t->projected_grads[u * DIM + d];
        assert_float_equal(t->row_grads[at + k], sum, 1e-5);
    }
}

static void two_init(struct two *t, const struct dlrm_config *config, uint32_t n)
{
    struct dlrm_config plain = *config;

    *t = (struct two){ .m = new_model(config) };
    plain.n_groups = 0;
    t->plain = new_model(&plain);
    fill_tensors(t);
    fill_batch(&t->batch, n, 11);
    t->rows = memory_alloc(20000 * sizeof(float));
    t->row_grads = memory_alloc(20000 * sizeof(float));
    t->projected = memory_alloc(20000 * sizeof(float));
    t->projected_grads = memory_alloc(20000 * sizeof(float));
    fixture_fill(&(struct fixture_rng){ .seed = 6 }, t->rows, 20000, 0.5f);
}

static void two_deinit(struct two *t)
{
    dlrm_free(t->m);
    dlrm_free(t->plain);
    batch_deinit(&t->batch);
    free(t->rows);
    free(t->row_grads);
    free(t->projected);
    free(t->projected_grads);
}

static struct dlrm_config config_of(enum model_kind kind)
{
    struct dlrm_config config = { .kind = kind,
                                  .batch_max = BATCH,
                                  .n_numeric = 3,
                                  .n_fields = N_FIELDS,
                                  .dim = DIM,
                                  .n_groups = N_GROUPS,
                                  .n_bottom = 1,
                                  .bottom = { 7 },
                                  .n_top = 1,
                                  .top = { 9 } };

    memcpy(config.group_dims, dims, sizeof dims);
    return config;
}

static void check_tensor_grads(struct two *t)
{
    for (uint32_t g = 0; g < N_GROUPS; g++) {
        const struct dlrm_tensor *w = tensor_of(t->m, g);
        const uint32_t first = batch_group_start(&t->batch, g),
                       end = batch_group_start(&t->batch, g + 1);
        size_t at = 0;

        for (uint32_t before = 0; before < g; before++)
            at += (batch_group_start(&t->batch, before + 1) -
                   batch_group_start(&t->batch, before)) *
                  (size_t)dims[before];
        for (uint32_t i = 0; w && i < w->n_floats; i++) {
            double sum = 0;

            for (uint32_t u = first; u < end; u++)
                sum += (double)t->projected_grads[u * DIM + i / dims[g]] *
                       (double)t->rows[at + (u - first) * dims[g] + i % dims[g]];
            assert_float_equal(w->grads[i], sum, 1e-5);
        }
    }
}

static void a_step_is_that_of_projected_rows(void **state)
{
    static const enum model_kind kinds[] = { MODEL_DLRM, MODEL_DCNV2 };

    (void)state;
    for (uint32_t i = 0; i < 2 * COUNT_OF(kinds); i++) {
        struct dlrm_config config = config_of(kinds[i / 2]);
        struct dlrm_step step, plain;
        double loss, want;
        struct two t;

        config.n_cross = kinds[i / 2] == MODEL_DCNV2 ? 2 : 0;
        two_init(&t, &config, i % 2 ? BATCH : 1);
        assert_true(!(i % 2) ||
                    batch_group_start(&t.batch, 3) - batch_group_start(&t.batch, 2) >
                        2 * BATCH);
        each_row(&t, project_row);
        step =
            (struct dlrm_step){ .batch = &t.batch, .rows = t.rows, .row_grads = t.row_grads };
        plain = (struct dlrm_step){ .batch = &t.batch,
                                    .rows = t.projected,
                                    .row_grads = t.projected_grads };
        assert_int_equal(dlrm_step(t.m, &step, &loss), 0);
        assert_int_equal(dlrm_step(t.plain, &plain, &want), 0);
        assert_float_equal(loss, want, 1e-6);
        each_row(&t, check_row_grad);
        check_tensor_grads(&t);
        assert_int_equal(dlrm_predict(t.m, &step), 0);
        assert_int_equal(dlrm_predict(t.plain, &plain), 0);
        for (uint32_t s = 0; s < t.batch.n; s++)
            assert_float_equal(dlrm_probs(t.m)[s], dlrm_probs(t.plain)[s], 1e-6);
        two_deinit(&t);
    }
}

static void penalties_are_of_the_rows_as_they_came(void **state)
{
    struct dlrm_config config = config_of(MODEL_DLRM);
    struct dlrm_step step;
    float *without;
    double loss;
    size_t n;
    struct two t;

    (void)state;
    two_init(&t, &config, BATCH);
    step = (struct dlrm_step){ .batch = &t.batch, .rows = t.rows, .row_grads = t.row_grads };
    assert_int_equal(dlrm_step(t.m, &step, &loss), 0);
    without = memory_alloc(20000 * sizeof *without);
    memcpy(without, t.row_grads, 20000 * sizeof *without);
    dlrm_free(t.m);
    config.l2_rows = 0.25f;
    config.l2_dense = 0;
    t.m = new_model(&config);
    fill_tensors(&t);
    assert_int_equal(dlrm_step(t.m, &step, &loss), 0);
    n = 0;
    for (uint32_t g = 0; g < N_GROUPS; g++)
        n += (batch_group_start(&t.batch, g + 1) - batch_group_start(&t.batch, g)) *
             (size_t)dims[g];
    for (size_t i = 0; i < n; i++)
        assert_float_equal(t.row_grads[i], without[i] + 0.25f * t.rows[i], 1e-6);
    free(without);
    two_deinit(&t);
}

static void groups_as_wide_as_the_model_are_not_projected(void **state)
{
    struct dlrm_config config = config_of(MODEL_DLRM);
    struct dlrm *m;

    (void)state;
    for (uint32_t g = 0; g < N_GROUPS; g++)
        config.group_dims[g] = DIM;
    m = new_model(&config);
    for (uint32_t g = 0; g < N_GROUPS; g++)
        assert_null(tensor_of(m, g));
    dlrm_free(m);
}

static void too_many_widths_are_refused(void **state)
{
    struct dlrm_config config = config_of(MODEL_DLRM);
    struct err err;
    struct dlrm *m;

    (void)state;
    config.n_groups = DLRM_PROJECTIONS_MAX + 1;
    for (uint32_t g = 0; g < config.n_groups; g++)
        config.group_dims[g] = 4;
    assert_int_equal(dlrm_new(&config, &m, &err), PS_ESETTING);
    assert_non_null(
        strstr(err.text,
               "17 tables have rows of another dim than the model's 8, expected at most 16"));
    config.group_dims[3] = 0;
    assert_int_equal(dlrm_new(&config, &m, &err), PS_ESETTING);
    assert_non_null(strstr(err.text, "dim of a field is 0"));
}

/* Without an op for all groups: of batches of several sizes none runs the ops of another one. */
static void a_device_with_memory_of_its_own_gives_the_same_bits(void **state)
{
    static const uint32_t sizes[] = { BATCH, 1, BATCH, 3, 3, 3, BATCH };
    const struct far_device_plan plan = { .late = true };
    const struct dlrm_config config = config_of(MODEL_DLRM);
    struct two t;

    (void)state;
    two_init(&t, &config, BATCH);
    dlrm_free(t.plain);
    assert_int_equal(
        dlrm_new_on(far_device_ops(&device_cpu, &plan), &config, &t.plain, &(struct err){ 0 }),
        0);
    fill_tensors(&t);
    for (uint32_t i = 0; i < COUNT_OF(sizes); i++) {
        struct dlrm_step step = { .batch = &t.batch, .rows = t.rows };
        double loss, want;

        batch_deinit(&t.batch);
        fill_batch(&t.batch, sizes[i], i);
        step.row_grads = t.row_grads;
        assert_int_equal(dlrm_step(t.m, &step, &want), 0);
        step.row_grads = t.projected_grads;
        assert_int_equal(dlrm_step(t.plain, &step, &loss), 0);
        assert_memory_equal(&loss, &want, sizeof loss);
        assert_memory_equal(t.projected_grads, t.row_grads,
                            dlrm_config_row_floats(&config, &t.batch) * sizeof(float));
        for (uint32_t k = 0; k < dlrm_n_tensors(t.m); k++)
            assert_memory_equal(dlrm_tensor(t.plain, k)->grads, dlrm_tensor(t.m, k)->grads,
                                dlrm_tensor(t.m, k)->n_floats * sizeof(float));
    }
    two_deinit(&t);
}

#ifdef PS_FAULTS
static void every_failed_allocation_is_reported(void **state)
{
    const struct dlrm_config config = config_of(MODEL_DLRM);
    struct two t;
    int status = -1;

    (void)state;
    two_init(&t, &config, BATCH);
    for (long k = 0; status != 0; k++) {
        const struct dlrm_step step = { .batch = &t.batch,
                                        .rows = t.rows,
                                        .row_grads = t.row_grads };
        struct dlrm *m = NULL;
        struct err err;
        double loss;

        memory_fail_after(k);
        status = dlrm_new(&config, &m, &err);
        if (!status)
            status = dlrm_step(m, &step, &loss);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM || status == -EAGAIN);
        dlrm_free(m);
    }
    two_deinit(&t);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_that_of_projected_rows),
        cmocka_unit_test(penalties_are_of_the_rows_as_they_came),
        cmocka_unit_test(groups_as_wide_as_the_model_are_not_projected),
        cmocka_unit_test(too_many_widths_are_refused),
        cmocka_unit_test(a_device_with_memory_of_its_own_gives_the_same_bits),
#ifdef PS_FAULTS
        cmocka_unit_test(every_failed_allocation_is_reported),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
