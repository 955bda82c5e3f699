/*
 * Meta learning beside what PyTorch says of it (tests/golden/meta.py): groups of fields, devices with memory of their
 * own, tasks of one sample, memory that runs out.
 */
#include <errno.h>
#include <math.h>

#include "tests/support/far_device.h"
#include "tests/unit/model/fixture.h"
#include "worker/model/meta_learning.h"

enum { N = 12, N_FIELDS = 3, N_NUMERIC = 4, N_KEYS_MAX = N * (2 + 3) };

static const uint8_t of_field[N_FIELDS] = { 0, 1, 1 };
static const struct batch_groups groups = { 2, of_field };

/* Field 0 names the task. */
struct world {
    struct dlrm_config config;
    struct dlrm *m;
    struct batch batch;
    float rows[N_KEYS_MAX * 8], wide[N_KEYS_MAX], row_grads[N_KEYS_MAX * 8],
        wide_grads[N_KEYS_MAX];
    float *dense, *dense_grads;
    struct dlrm_step step;
};

static struct dlrm_config config_of(bool has_groups)
{
    return (struct dlrm_config){ .kind = MODEL_DLRM,
                                 .batch_max = N,
                                 .n_numeric = N_NUMERIC,
                                 .n_fields = N_FIELDS,
                                 .dim = 6,
                                 .n_groups = has_groups ? 2 : 0,
                                 .group_dims = { 3, 6 },
                                 .n_bottom = 1,
                                 .bottom = { 7 },
                                 .n_top = 1,
                                 .top = { 5 },
                                 .wide = !has_groups,
                                 .l2_dense = 1e-3f };
}

/* n_tasks 0: samples have none. */
static void fill_batch(struct world *w, struct fixture_rng *rng, uint32_t n_tasks)
{
    struct batch *b = &w->batch;

    batch_clear(b);
    b->n = N;
    fixture_fill(rng, b->numeric, N * N_NUMERIC, 1);
    for (uint32_t s = 0; s < N; s++) {
        b->label[s] = (float)fixture_below(rng, 2);
        for (uint32_t f = 0; f < N_FIELDS; f++) {
            const uint32_t n = f ? fixture_below(rng, 3) : n_tasks > 0;

            assert_int_equal(batch_reserve_keys(b, n), 0);
            for (uint32_t k = 0; k < n; k++)
                b->keys[b->n_keys++] =
                    (uint64_t)f << 32 | (f ? fixture_below(rng, 4) : s % n_tasks);
            b->starts[s * N_FIELDS + f + 1] = b->n_keys;
        }
    }
    assert_int_equal(batch_dedup(b), 0);
}

static void world_init(struct world *w, const struct device_ops *ops, bool has_groups,
                       uint32_t n_tasks)
{
    struct fixture_rng rng = { 5, 0 };
    struct err err = { 0 };

    memset(w, 0, sizeof *w);
    w->config = config_of(has_groups);
    if (dlrm_new_on(ops, &w->config, &w->m, &err))
        fail_msg("%s", err.text);
    assert_int_equal(batch_init(&w->batch, N, N_NUMERIC, N_FIELDS), 0);
    w->batch.groups = has_groups ? &groups : NULL;
    fill_batch(w, &rng, n_tasks);
    fixture_fill(&rng, w->rows, COUNT_OF(w->rows), 0.5f);
    fixture_fill(&rng, w->wide, COUNT_OF(w->wide), 0.5f);
    w->dense = dlrm_host_alloc(w->m, dlrm_dense_floats(w->m) * sizeof(float));
    w->dense_grads = dlrm_host_alloc(w->m, dlrm_dense_floats(w->m) * sizeof(float));
    dlrm_use(w->m, w->dense, w->dense_grads);
    for (uint32_t i = 0; i < dlrm_n_tensors(w->m); i++)
        fixture_fill(&rng, dlrm_tensor(w->m, i)->values, dlrm_tensor(w->m, i)->n_floats, 0.5f);
    w->step = (struct dlrm_step){ .batch = &w->batch,
                                  .rows = w->rows,
                                  .wide = w->config.wide ? w->wide : NULL,
                                  .row_grads = w->row_grads,
                                  .wide_grads = w->config.wide ? w->wide_grads : NULL };
}

static void world_deinit(struct world *w)
{
    const size_t n_bytes = dlrm_dense_floats(w->m) * sizeof(float);

    dlrm_use(w->m, NULL, NULL);
    dlrm_host_free(w->m, w->dense, n_bytes);
    dlrm_host_free(w->m, w->dense_grads, n_bytes);
    batch_deinit(&w->batch);
    dlrm_free(w->m);
}

static struct meta_learning *open_meta(struct world *w)
{
    const struct meta_learning_options options = { 0, 0.2f, 2 };
    struct meta_learning *meta;

    assert_int_equal(meta_learning_new(w->m, &w->config, &options, &meta), 0);
    return meta;
}

static double meta_step(struct world *w)
{
    struct meta_learning *meta = open_meta(w);
    double loss;

    assert_int_equal(meta_learning_step(meta, &w->step, w->dense_grads, &loss), 0);
    assert_ptr_equal(dlrm_dense(w->m), w->dense);
    meta_learning_free(meta);
    return loss;
}

static void assert_same(const struct world *a, const struct world *b)
{
    for (uint32_t i = 0; i < dlrm_n_tensors(a->m); i++) {
        const struct dlrm_tensor *t = dlrm_tensor(a->m, i);

        assert_memory_equal(a->dense_grads + t->at, b->dense_grads + t->at,
                            t->n_floats * sizeof(float));
    }
    assert_memory_equal(a->row_grads, b->row_grads, sizeof a->row_grads);
    assert_memory_equal(a->wide_grads, b->wide_grads, sizeof a->wide_grads);
}

static void a_device_with_its_own_memory_has_the_cpus_bits(void **state)
{
    static const struct far_device_plan plan = { .late = true, .seed = 1 };

    (void)state;
    for (int has_groups = 0; has_groups < 2; has_groups++) {
        struct world cpu, far;
        double loss;

        world_init(&cpu, &device_cpu, has_groups, 3);
        loss = meta_step(&cpu);
        world_init(&far, far_device_ops(&device_cpu, &plan), has_groups, 3);
        assert_true(meta_step(&far) == loss);
        assert_same(&cpu, &far);
        world_deinit(&far);
        world_deinit(&cpu);
    }
}

static float farthest(const float *a, const float *b, size_t n)
{
    float most = 0;

    for (size_t i = 0; i < n; i++)
        most = fabsf(a[i] - b[i]) > most ? fabsf(a[i] - b[i]) : most;
    return most;
}

/* Each its own task: the mean over tasks is the mean over samples, but for roundings. */
static void tasks_of_one_sample_have_the_plain_gradient(void **state)
{
    struct world plain, meta;
    double loss;

    (void)state;
    world_init(&plain, &device_cpu, true, N);
    world_init(&meta, &device_cpu, true, N);
    assert_int_equal(dlrm_step(plain.m, &plain.step, &loss), 0);
    assert_true(fabs(meta_step(&meta) - loss) < 1e-6);
    assert_true(farthest(plain.row_grads, meta.row_grads, COUNT_OF(plain.row_grads)) < 1e-6f);
    for (uint32_t i = 0; i < dlrm_n_tensors(plain.m); i++) {
        const struct dlrm_tensor *t = dlrm_tensor(plain.m, i);

        assert_true(farthest(plain.dense_grads + t->at, meta.dense_grads + t->at, t->n_floats) <
                    1e-6f);
    }
    world_deinit(&plain);
    world_deinit(&meta);
}

static void samples_without_a_task_are_one(void **state)
{
    struct world w;
    struct meta_learning *meta;
    struct meta_learning_scores scores;
    double loss;

    (void)state;
    world_init(&w, &device_cpu, false, 0);
    meta = open_meta(&w);
    assert_int_equal(meta_learning_step(meta, &w.step, w.dense_grads, &loss), 0);
    assert_int_equal(meta_learning_counts(meta).n_tasks, 1);
    assert_int_equal(meta_learning_counts(meta).n_single, 0);
    assert_int_equal(meta_learning_predict(meta, &w.step, w.dense_grads, &scores), 0);
    assert_int_equal(scores.n, N - N / 2);
    assert_memory_equal(scores.labels, w.batch.label + N / 2, (N - N / 2) * sizeof(float));
    meta_learning_free(meta);
    world_deinit(&w);
}

#ifdef PS_FAULTS
/* A later step with memory is as if none had failed. */
static void any_allocation_may_fail(void **state)
{
    const struct meta_learning_options options = { 0, 0.2f, 2 };
    struct world w, unharmed;
    int status = -ENOMEM;

    (void)state;
    world_init(&unharmed, &device_cpu, true, 3);
    (void)meta_step(&unharmed);
    world_init(&w, &device_cpu, true, 3);
    for (long k = 0; status; k++) {
        struct meta_learning *meta = NULL;
        double loss;

        memory_fail_after(k);
        status = meta_learning_new(w.m, &w.config, &options, &meta);
        if (!status)
            status = meta_learning_step(meta, &w.step, w.dense_grads, &loss);
        memory_fail_after(-1);
        assert_true(!status || status == -ENOMEM);
        assert_true(k < 1000);
        meta_learning_free(meta);
    }
    assert_same(&w, &unharmed);
    world_deinit(&w);
    world_deinit(&unharmed);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_with_its_own_memory_has_the_cpus_bits),
        cmocka_unit_test(tasks_of_one_sample_have_the_plain_gradient),
        cmocka_unit_test(samples_without_a_task_are_one),
#ifdef PS_FAULTS
        cmocka_unit_test(any_allocation_may_fail),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
