/* A model on both emulated devices, or twice on a real one: one device's numbers but for roundings, and the same bits in each
 * order of their work, in steps under way too. */
#include <math.h>

#include "tests/emu/rt.h"
#include "tests/unit/model/fixture.h"
#include "worker/cuda/device_cuda.h"

enum {
    STEPS = 6
}; /* called, recorded, run from the record; each second batch is the smaller one */

static const struct dlrm_config both = { .batch_max = 19,
                                         .n_numeric = 3,
                                         .n_fields = 3,
                                         .dim = 8,
                                         .n_bottom = 1,
                                         .bottom = { 12 },
                                         .n_top = 2,
                                         .top = { 16, 8 },
                                         .wide = true,
                                         .l2_rows = 0.1f,
                                         .l2_dense = 0.1f,
                                         .seed = 3,
                                         .n_threads = 2,
                                         .n_devices = 2 };

/* Steps on two batches in turn: what each ends in. */
struct run {
    struct fixture f
        [2]; /* the second one's batch is of one sample, and of its model only the rows are used */
    float *grads[STEPS], *row_grads[STEPS], *wide_grads[STEPS];
    float *values[STEPS];
    double losses[STEPS];
    float probs[19];
    size_t n_dense;
};

static size_t n_row_floats(const struct run *r)
{
    return (size_t)r->f[0].batch.n_unique * r->f[0].config.dim;
}

static void run_init(struct run *r, struct dlrm_config config)
{
    struct dlrm_config small = config;
    struct fixture_rng rng = { 7, 0 };

    *r = (struct run){ 0 };
    small.n_devices = 0;
    config.devices[0] = emu_rt_is_real() ? 0 : 1;
    fixture_init_on(&r->f[0], &device_cuda, &config, config.batch_max, &rng);
    fixture_init_on(&r->f[1], &device_cpu, &small, 1, &rng);
    r->n_dense = dlrm_dense_floats(r->f[0].m);
    for (uint32_t i = 0; i < STEPS; i++) {
        r->values[i] = memory_alloc(r->n_dense * sizeof(float));
        r->grads[i] = memory_alloc(r->n_dense * sizeof(float));
        r->row_grads[i] = memory_alloc(n_row_floats(r) * sizeof(float));
        r->wide_grads[i] = memory_alloc(r->f[0].batch.n_unique * sizeof(float));
        fixture_fill(&rng, r->values[i / 2 * 2], r->n_dense, 0.3f);
        memcpy(r->values[i], r->values[i / 2 * 2], r->n_dense * sizeof(float));
    }
}

static void run_deinit(struct run *r)
{
    for (uint32_t i = 0; i < STEPS; i++) {
        free(r->values[i]);
        free(r->grads[i]);
        free(r->row_grads[i]);
        free(r->wide_grads[i]);
    }
    fixture_deinit(&r->f[0]);
    fixture_deinit(&r->f[1]);
    assert_int_equal(emu_rt_alive(), 0);
}

/* n_sets at a time. The dense array is a new one in every second step. */
static void run_steps(struct run *r, uint32_t n_sets)
{
    const struct dlrm_step whole = fixture_step_of(&r->f[0], 0);

    for (uint32_t i = 0; i < STEPS + n_sets; i++) {
        struct dlrm_step step = fixture_step_of(&r->f[i % 2], i);

        if (i >= n_sets)
            fixture_must(r->f[0].m,
                         dlrm_step_end(r->f[0].m, i % n_sets, &r->losses[i - n_sets]));
        if (i >= STEPS)
            continue;
        step.row_grads = r->row_grads[i];
        step.wide_grads = r->wide_grads[i];
        step.keeps_dense = i % 2;
        dlrm_use(r->f[0].m, r->values[i], r->grads[i]);
        fixture_must(r->f[0].m, dlrm_step_begin(r->f[0].m, i % n_sets, &step));
    }
    fixture_must(r->f[0].m, dlrm_predict(r->f[0].m, &whole));
    memcpy(r->probs, dlrm_probs(r->f[0].m), sizeof r->probs);
}

static void same(const struct run *a, const struct run *b)
{
    assert_memory_equal(a->losses, b->losses, sizeof a->losses);
    assert_memory_equal(a->probs, b->probs, sizeof a->probs);
    for (uint32_t i = 0; i < STEPS; i++) {
        const uint32_t n_rows = a->f[i % 2].batch.n_unique;

        assert_memory_equal(a->grads[i], b->grads[i], a->n_dense * sizeof(float));
        assert_memory_equal(a->row_grads[i], b->row_grads[i], n_rows * 8 * sizeof(float));
        assert_memory_equal(a->wide_grads[i], b->wide_grads[i], n_rows * sizeof(float));
    }
}

static void two_devices_make_one_devices_numbers_but_for_roundings(void **state)
{
    struct dlrm_config alone = both;
    struct run two, one;

    (void)state;
    emu_rt_seed(1);
    alone.n_devices = 0;
    run_init(&two, both);
    run_init(&one, alone);
    run_steps(&two, 1);
    run_steps(&one, 1);
    fixture_near("probabilities", two.probs, one.probs, COUNT_OF(one.probs), 1e-5);
    for (uint32_t i = 0; i < STEPS; i++) {
        const uint32_t n_rows = one.f[i % 2].batch.n_unique;

        assert_true(fabs(two.losses[i] - one.losses[i]) <= 1e-6 * fabs(one.losses[i]));
        fixture_near("dense gradients", two.grads[i], one.grads[i], one.n_dense, 1e-5);
        fixture_near("row gradients", two.row_grads[i], one.row_grads[i], (size_t)n_rows * 8,
                     1e-5);
        fixture_near("wide gradients", two.wide_grads[i], one.wide_grads[i], n_rows, 1e-5);
    }
    fixture_deinit(&one.f[0]); /* before the count of what is alive */
    one.f[0] = (struct fixture){ 0 };
    run_deinit(&two);
    run_deinit(&one);
}

/* Dropout and batch norm, too. */
static void the_bits_are_the_same_in_each_run_and_with_steps_under_way(void **state)
{
    const uint64_t seed = seed_of_run(4711);
    struct dlrm_config config = both;
    struct run want;

    (void)state;
    config.dropout = 0.3f;
    config.batch_norm = true;
    emu_rt_seed(seed);
    run_init(&want, config);
    run_steps(&want, 1);
    assert_true(isfinite(want.losses[STEPS - 1]));
    for (uint64_t k = 1; k < 5; k++) {
        struct run got;

        config.n_threads = 1 + (uint32_t)k;
        run_init(&got, config);
        run_steps(&got, k < 3 ? DLRM_BUFFER_SETS : 1);
        same(&got, &want);
        fixture_deinit(&got.f[0]);
        got.f[0] = (struct fixture){ 0 };
        for (uint32_t i = 0; i < STEPS; i++) {
            free(got.values[i]), free(got.grads[i]);
            free(got.row_grads[i]), free(got.wide_grads[i]);
        }
        fixture_deinit(&got.f[1]);
    }
    run_deinit(&want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_devices_make_one_devices_numbers_but_for_roundings),
        cmocka_unit_test(the_bits_are_the_same_in_each_run_and_with_steps_under_way),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
