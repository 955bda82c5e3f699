/* Gradients that leave a device with memory of its own encoded, with their residuals kept there. */
#include <errno.h>

#include "tests/support/far_device.h"
#include "tests/unit/model/encoded.h"

static const struct far_device_plan plans[] = {
    { .late = false, .replays = false },
    { .late = true, .replays = false, .seed = 1 },
    { .late = true, .replays = true, .seed = 2 },
};

static void any_step_leaves_as_the_cpu_encodes_its_floats(void **state)
{
    const uint64_t seed = seed_of_run(20261122);
    uint32_t n_checked = 0;

    (void)state;
    for (uint64_t i = 0; i < 30; i++) {
        struct fixture_rng rng = { hash_mix2(seed, i), 0 };
        const struct dlrm_config config = encoded_config(&rng);
        struct encoded_run t;

        if (dlrm_config_check(&config, NULL))
            continue;
        encoded_open(&t, &device_cpu, far_device_ops(&device_cpu, &plans[i % COUNT_OF(plans)]),
                     &config, rng.seed);
        encoded_run(&t, ENCODED_STEPS);
        encoded_close(&t);
        n_checked++;
    }
    assert_true(n_checked > 15);
}

static const struct far_device_plan replaying = { .late = true, .replays = true };
static const struct dlrm_config plain = { .batch_max = 16,
                                          .n_numeric = 3,
                                          .n_fields = 4,
                                          .dim = 8,
                                          .n_bottom = 1,
                                          .bottom = { 5 },
                                          .n_top = 2,
                                          .top = { 300, 5 },
                                          .wide = true,
                                          .seed = 11,
                                          .n_threads = 1 };

static void open_plain(struct encoded_run *t, const struct far_device_plan *plan)
{
    encoded_open(t, &device_cpu, far_device_ops(&device_cpu, plan), &plain, 5);
}

/* The blocks that a tensor's table has after an optimizer of the other kind: of the whole layer, or of rows. */
static uint32_t other_block(const struct dlrm_tensor *t)
{
    const bool is_whole = t->block == t->n_floats;

    if (t->n_floats <= TABLE_SPEC_DENSE_BLOCK)
        return t->block;
    return is_whole ? TABLE_SPEC_DENSE_BLOCK : (uint32_t)t->n_floats;
}

static void tensors_are_encoded_in_their_tables_blocks(void **state)
{
    (void)state;
    for (uint32_t whole = 0; whole < 2; whole++) {
        struct dlrm_config config = plain;
        uint32_t blocks[DLRM_GRADIENTS_MAX] = { 0 }, n_other = 0;
        struct encoded_run t;
        struct dlrm *m;

        config.whole_layers = whole;
        m = encoded_model(&device_cpu, &config);
        for (uint32_t i = 0; i < dlrm_n_tensors(m); i++) {
            blocks[i] = other_block(dlrm_tensor(m, i));
            n_other += blocks[i] != dlrm_tensor(m, i)->block;
        }
        assert_true(n_other > 1);
        dlrm_free(m);
        encoded_open_in_blocks(&t, &device_cpu, far_device_ops(&device_cpu, &replaying),
                               &config, 5, blocks);
        encoded_run(&t, ENCODED_STEPS);
        encoded_close(&t);
    }
}

/* Makes it again and again. Returns how many records that took. */
static uint64_t repeat(struct encoded_run *t, const struct dlrm_step *step, uint32_t n)
{
    const uint64_t n_before = far_device_counts().n_records;
    double loss;

    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(dlrm_step(t->m, step, &loss), 0);
    return far_device_counts().n_records - n_before;
}

static void a_graph_knows_its_codecs_and_residuals(void **state)
{
    struct encoded_run t;
    struct dlrm_step step;
    struct dlrm_encoded *rows;
    const uint32_t *residual_at;

    (void)state;
    open_plain(&t, &replaying);
    step = encoded_prepare(&t, 0, 0);
    rows = &t.steps[0].gradients[DLRM_ROWS];
    rows->codec = CODEC_BF16;
    assert_int_equal(repeat(&t, &step, 5), 1);
    rows->codec = CODEC_INT8;
    assert_int_equal(repeat(&t, &step, 5), 1);
    residual_at = rows->residual_at;
    rows->residual_at = residual_at ? NULL : t.steps[0].residual_at[DLRM_ROWS];
    assert_int_equal(repeat(&t, &step, 5), 1);
    rows->residual_at = residual_at;
    rows->codec = CODEC_BF16;
    assert_int_equal(repeat(&t, &step, 5), 0);
    step.encoded = NULL;
    step.row_grads = t.steps[0].f.row_grads;
    step.wide_grads = t.steps[0].f.wide_grads;
    assert_int_equal(repeat(&t, &step, 5), 1);
    encoded_free_step(&t, &t.steps[0]);
    encoded_close(&t);
}

/* All tensors by this codec, their bytes one behind the other. How many copies out the step takes. */
static uint64_t n_copies(struct encoded_run *t, const struct dlrm_step *step,
                         enum codec_id codec, uint8_t *bytes)
{
    struct encoded_step *s = &t->steps[0];
    const uint64_t n_before = far_device_counts().n_downloads;

    for (uint32_t i = DLRM_DENSE; i < dlrm_n_gradients(t->m); i++) {
        s->gradients[i] =
            (struct dlrm_encoded){ .codec = codec, .n = s->gradients[i].n, .bytes = bytes };
        bytes += encoded_bytes(t, s, i);
    }
    (void)repeat(t, step, 1);
    return far_device_counts().n_downloads - n_before;
}

/* Beside loss, rows and wide ones. Floats that are taken from where they are have the gaps of the dense array between them,
 * behind tensors that fill no cache line. */
static void the_tensors_bytes_are_one_copy(void **state)
{
    struct encoded_run t;
    struct dlrm_step step;
    uint32_t n_gaps = 0;
    uint8_t *bytes;

    (void)state;
    open_plain(&t, &replaying);
    step = encoded_prepare(&t, 0, 0);
    bytes = dlrm_host_alloc(t.m, dlrm_dense_floats(t.m) * sizeof(float));
    assert_int_equal(n_copies(&t, &step, CODEC_BF16, bytes), 4);
    for (uint32_t i = 0; i + 1 < dlrm_n_tensors(t.m); i++)
        n_gaps += dlrm_tensor(t.m, i)->n_floats < TABLE_SPEC_DENSE_BLOCK &&
                  dlrm_tensor(t.m, i)->n_floats % 16;
    assert_true(n_gaps > 0 && n_gaps + 1 < dlrm_n_tensors(t.m));
    assert_int_equal(n_copies(&t, &step, CODEC_FP32, bytes), 4 + n_gaps);
    dlrm_host_free(t.m, bytes, dlrm_dense_floats(t.m) * sizeof(float));
    encoded_free_step(&t, &t.steps[0]);
    encoded_close(&t);
}

/* On a device that cannot encode. */
static void floats_that_leave_in_order_need_no_op(void **state)
{
    struct device_ops ops = *far_device_ops(&device_cpu, &replaying);
    struct encoded_run t;
    struct dlrm_step step;
    struct encoded_step *s = &t.steps[0];
    struct fixture *f = &s->f;

    (void)state;
    ops.encode = NULL;
    encoded_open(&t, &device_cpu, &ops, &plain, 5);
    encoded_draw(&t, s);
    step = fixture_step_of(f, 0);
    assert_int_equal(dlrm_step(t.plain, &step, &f->loss), 0);
    step.encoded = s->gradients;
    for (uint32_t i = 0; i < dlrm_n_gradients(t.m); i++)
        s->gradients[i] = (struct dlrm_encoded){ 0 };
    s->gradients[DLRM_ROWS].n = f->batch.n_unique;
    s->gradients[DLRM_ROWS].bytes =
        dlrm_host_alloc(t.m, f->batch.n_unique * plain.dim * sizeof(float));
    assert_int_equal(repeat(&t, &step, 3), 1);
    assert_memory_equal(s->gradients[DLRM_ROWS].bytes, f->row_grads,
                        f->batch.n_unique * plain.dim * sizeof(float));
    dlrm_host_free(t.m, s->gradients[DLRM_ROWS].bytes,
                   f->batch.n_unique * plain.dim * sizeof(float));
    encoded_free_step(&t, s);
    encoded_close(&t);
}

static void floats_and_predictions_come_between(void **state)
{
    struct encoded_run t;
    struct dlrm_step step;
    struct fixture *f = &t.steps[0].f;
    const size_t n = sizeof(float) * plain.dim;

    (void)state;
    open_plain(&t, &replaying);
    for (uint64_t i = 0; i < 6; i++) {
        float *want;

        encoded_begin(&t, 0, i);
        encoded_end(&t, 0);
        encoded_draw(&t, &t.steps[0]);
        step = fixture_step_of(f, i);
        assert_int_equal(dlrm_step(t.plain, &step, &f->loss), 0);
        want = memory_alloc(f->batch.n_unique * n + 1);
        memcpy(want, f->row_grads, f->batch.n_unique * n);
        assert_int_equal(dlrm_step(t.m, &step, &f->loss), 0);
        assert_memory_equal(f->row_grads, want, f->batch.n_unique * n);
        assert_int_equal(dlrm_predict(t.plain, &step), 0);
        step.encoded = t.steps[0].gradients; /* which a prediction does not look at */
        assert_int_equal(dlrm_predict(t.m, &step), 0);
        assert_memory_equal(dlrm_probs(t.m), dlrm_probs(t.plain), f->batch.n * sizeof(float));
        free(want);
        encoded_free_step(&t, &t.steps[0]);
    }
    encoded_close(&t);
}

static void the_cpu_encodes_no_gradients(void **state)
{
    struct dlrm *m = encoded_model(&device_cpu, &plain);

    (void)state;
    assert_false(dlrm_encodes(m));
    dlrm_free(m);
}

static void a_failing_device_is_reported_by_its_residuals(void **state)
{
    static const struct far_device_plan plan = { .late = true, .bad_wait = 3 };
    struct dlrm *m = encoded_model(far_device_ops(&device_cpu, &plan), &plain);
    const float rows[] = { 1, 2, 3 };
    float got[3] = { 0 };

    (void)state;
    assert_int_equal(dlrm_residual_reserve(m, DLRM_ROWS, 0), 0);
    assert_int_equal(dlrm_residual_reserve(m, DLRM_WIDE, 7), 0);
    assert_int_equal(dlrm_residual_put(m, DLRM_WIDE, (uint32_t[]){ 5, 6, 0 }, 3, rows), 0);
    assert_int_equal(dlrm_residual_get(m, DLRM_WIDE, (uint32_t[]){ 0, 1, 6 }, 3, got), 0);
    assert_true(got[0] == 3 && got[1] == 0 && got[2] == 2);
    assert_int_equal(dlrm_residual_get(m, DLRM_WIDE, (uint32_t[]){ 0 }, 1, got), PS_EDEVICE);
    assert_int_equal(dlrm_residual_put(m, DLRM_WIDE, (uint32_t[]){ 0 }, 1, rows), 0);
    dlrm_free(m);
}

#ifdef PS_FAULTS
/* The k-th allocation of the first step that is encoded on the device fails; the same step finds memory then, and no residual differs. */
static void a_step_without_memory_is_refused_and_can_be_repeated(void **state)
{
    long n_refused = 0;

    (void)state;
    for (long k = 0; k < 12; k++) {
        struct encoded_run t;
        struct dlrm_step step;
        int status;

        open_plain(&t, &replaying);
        step = encoded_prepare(&t, 0, 3);
        memory_fail_after(k);
        status = dlrm_step_begin(t.m, 0, &step);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
        n_refused += status != 0;
        if (status)
            assert_int_equal(dlrm_step_begin(t.m, 0, &step), 0);
        encoded_end(&t, 0);
        encoded_run(&t, 3);
        encoded_close(&t);
    }
    assert_true(n_refused > 1 && n_refused < 12);
}

static void residuals_find_no_space_or_some(void **state)
{
    struct dlrm *m = encoded_model(far_device_ops(&device_cpu, &replaying), &plain);

    (void)state;
    memory_fail_after(0);
    assert_int_equal(dlrm_residual_reserve(m, DLRM_DENSE, 3), -ENOMEM);
    memory_fail_after(-1);
    assert_int_equal(dlrm_residual_reserve(m, DLRM_DENSE, 3), 0);
    dlrm_free(m);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_step_leaves_as_the_cpu_encodes_its_floats),
        cmocka_unit_test(tensors_are_encoded_in_their_tables_blocks),
        cmocka_unit_test(a_graph_knows_its_codecs_and_residuals),
        cmocka_unit_test(the_tensors_bytes_are_one_copy),
        cmocka_unit_test(floats_that_leave_in_order_need_no_op),
        cmocka_unit_test(floats_and_predictions_come_between),
        cmocka_unit_test(the_cpu_encodes_no_gradients),
        cmocka_unit_test(a_failing_device_is_reported_by_its_residuals),
#ifdef PS_FAULTS
        cmocka_unit_test(a_step_without_memory_is_refused_and_can_be_repeated),
        cmocka_unit_test(residuals_find_no_space_or_some),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
