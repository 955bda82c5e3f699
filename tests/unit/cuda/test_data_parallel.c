/* A model on both emulated devices: one device's numbers but for roundings, the same bits in each order of their work, in steps
 * under way too; and a sentence that names the device which fails. */
#include <errno.h>
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
                                         .n_devices = 2,
                                         .devices = { 1, 0 } };

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

static void run_init(struct run *r, const struct dlrm_config *config)
{
    struct dlrm_config small = *config;
    struct fixture_rng rng = { 7, 0 };

    *r = (struct run){ 0 };
    small.n_devices = 0;
    fixture_init_on(&r->f[0], &device_cuda, config, config->batch_max, &rng);
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

static void near(const char *what, const float *got, const float *want, size_t n)
{
    double norm = 1e-12, off = 0;

    for (size_t i = 0; i < n; i++) {
        norm += (double)want[i] * (double)want[i];
        off += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
    }
    if (!(sqrt(off / norm) < 1e-5))
        fail_msg("%s: %zu numbers are %.3g off", what, n, sqrt(off / norm));
}

static void two_devices_make_one_devices_numbers_but_for_roundings(void **state)
{
    struct dlrm_config alone = both;
    struct run two, one;

    (void)state;
    emu_rt_seed(1);
    alone.n_devices = 0;
    run_init(&two, &both);
    assert_int_equal(emu_rt_used_devices(), 3);
    assert_non_null(strstr(dlrm_device(two.f[0].m),
                           "; each batch is divided among 2 devices: cuda:1, cuda:0"));
    run_init(&one, &alone);
    run_steps(&two, 1);
    run_steps(&one, 1);
    near("probabilities", two.probs, one.probs, COUNT_OF(one.probs));
    for (uint32_t i = 0; i < STEPS; i++) {
        const uint32_t n_rows = one.f[i % 2].batch.n_unique;

        assert_true(fabs(two.losses[i] - one.losses[i]) <= 1e-6 * fabs(one.losses[i]));
        near("dense gradients", two.grads[i], one.grads[i], one.n_dense);
        near("row gradients", two.row_grads[i], one.row_grads[i], (size_t)n_rows * 8);
        near("wide gradients", two.wide_grads[i], one.wide_grads[i], n_rows);
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
    run_init(&want, &config);
    run_steps(&want, 1);
    assert_true(isfinite(want.losses[STEPS - 1]));
    for (uint64_t k = 1; k < 5; k++) {
        struct run got;

        config.n_threads = 1 + (uint32_t)k;
        run_init(&got, &config);
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

static void a_device_that_is_not_there_is_named(void **state)
{
    struct dlrm_config config = both;
    struct dlrm *m;
    struct err err;

    (void)state;
    emu_rt_seed(1);
    config.devices[1] = 7;
    assert_int_equal(dlrm_new_on(&device_cuda, &config, &m, &err), PS_EDEVICE);
    assert_string_equal(err.text,
                        "cuda:7 is not there: the driver has 2 devices, cuda:0 to cuda:1");
    assert_int_equal(emu_rt_alive(), 0);
    assert_int_equal(device_cuda.count(), 2);
}

/* Each call of a step in turn; the step after it is whole. */
static void each_call_that_fails_is_reported_with_its_device(void **state)
{
    struct dlrm_config config = both;
    uint32_t n_first = 0, n_second = 0;
    bool failed = true;
    long k = 0;

    (void)state;
    config.n_threads = 1;
    config.n_bottom = 0, config.n_top = 1;
    config.wide = false;
    for (; failed; k++) {
        struct fixture_rng rng = { 7, 0 };
        struct fixture f;
        struct dlrm_step step;
        struct err err;
        double loss, want;
        int status;

        emu_rt_seed(3);
        fixture_init_on(&f, &device_cuda, &config, config.batch_max, &rng);
        step = fixture_step_of(&f, 0);
        fixture_must(f.m, dlrm_step(f.m, &step, &want)); /* makes plans of products */
        emu_rt_fail(k, EMU_RT_ONCE);
        status = dlrm_step(f.m, &step, &loss);
        failed = emu_rt_has_failed();
        emu_rt_fail(-1, EMU_RT_ONCE);
        if (status == PS_EDEVICE) {
            assert_true(failed && isnan(loss));
            (void)dlrm_failed(f.m, status, &err);
            assert_non_null(strstr(err.text, ": cuda"));
            n_first += strncmp(err.text, "the model on cuda:1: ", 21) == 0;
            n_second += strncmp(err.text, "the model on cuda:0: ", 21) == 0;
        } else {
            assert_true(status ? failed && status == -ENOMEM : loss == want);
        }
        step.keeps_dense = true;
        fixture_must(f.m, dlrm_step(f.m, &step, &f.loss));
        assert_true(f.loss == want);
        fixture_deinit(&f);
        assert_int_equal(emu_rt_alive(), 0);
    }
    print_message("%ld calls, %u of the first device, %u of the second\n", k - 1, n_first,
                  n_second);
    assert_true(n_first > 30 && n_second > 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_devices_make_one_devices_numbers_but_for_roundings),
        cmocka_unit_test(the_bits_are_the_same_in_each_run_and_with_steps_under_way),
        cmocka_unit_test(a_device_that_is_not_there_is_named),
        cmocka_unit_test(each_call_that_fails_is_reported_with_its_device),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
