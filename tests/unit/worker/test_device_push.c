/* Gradients that leave a device encoded, and their residuals there: the pushes of a run, and what it leaves in --state-dir, are
 * the CPU's, byte for byte. */
#include "tests/unit/worker/training.h"

#include "common/file.h"
#include "tests/support/share.h"
#include "worker/device_push.h"

#define FLAGS_MAX 16

static char state_dir[2][64];

static void run_with(const struct device_ops *ops, const struct fake_plan *plan,
                     const char *const *flags, const char *dir, struct training *ret)
{
    const char *all[FLAGS_MAX + 1];
    uint32_t n = 0;

    while (*flags)
        all[n++] = *flags++;
    if (dir) {
        all[n++] = "--state-dir";
        all[n++] = dir;
    }
    all[n] = NULL;
    assert_true(n <= FLAGS_MAX);
    training_run(ops, &fake_overlaps, plan, all, ret);
}

/* On the host, or on the device; with a state directory of its own. */
static void run_on(bool far, const struct fake_plan *plan, const char *const *flags,
                   const char *dir, struct training *ret)
{
    run_with(far ? training_far() : &device_cpu, plan, flags, dir, ret);
    assert_int_equal(ret->end_status, 0);
}

static void check_same(const char *const *flags, uint64_t *ret_n_flushed)
{
    struct training *cpu = memory_alloc(sizeof *cpu), *gpu = memory_alloc(sizeof *gpu);
    const struct fake_plan plan = training_plan(4);

    run_on(false, &plan, flags, NULL, cpu);
    run_on(true, &plan, flags, NULL, gpu);
    must(cpu->status, &cpu->err);
    must(gpu->status, &gpu->err);
    assert_int_equal(cpu->n_applied, 2 * CLICK_LOG_BATCHES);
    training_assert_same(gpu, cpu);
    assert_in_range(far_device_counts().most_under_way, 1,
                    3); /* that there are 3: test_trainer.c */
    assert_int_equal(far_device_counts().n_pageable, 0);
    *ret_n_flushed = gpu->stats.residual_flushed;
    free(cpu), free(gpu);
}

#define AHEAD "--ahead", "3"

static void codecs_without_feedback_push_the_cpus_bytes(void **state)
{
    static const char *const codecs[] = { "fp32", "bf16", "fp16", "int8" };
    uint64_t n_flushed;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(codecs); i++) {
        const char *flags[] = { AHEAD,         "--push-codec",
                                codecs[i],     "--dense-push-codec",
                                codecs[3 - i], NULL };

        check_same(flags, &n_flushed);
        assert_int_equal(n_flushed, 0);
    }
}

/* Bounds of a batch's rows, of some batches', of all. Batch normalisation has tables that are never lossy. */
static void codecs_with_feedback_push_the_cpus_bytes_under_any_bound(void **state)
{
    static const char *const bounds[] = { "1", "20000", "40000", "1M" };
    uint64_t n_flushed;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(bounds); i++) {
        const char *topk[] = {
            AHEAD,    "--push-codec", "topk",           "--topk",  "0.3", "--dense-push-codec",
            "onebit", "--batch-norm", "--residual-max", bounds[i], NULL
        };
        const char *onebit[] = { AHEAD,     "--push-codec",
                                 "onebit",  "--dense-push-codec",
                                 "topk",    "--dense-push-warmup",
                                 "9",       "--residual-max",
                                 bounds[i], NULL };

        check_same(topk, &n_flushed);
        assert_int_equal(n_flushed > 0, i < 3);
        check_same(onebit, &n_flushed);
        assert_int_equal(n_flushed > 0, i < 3);
    }
}

/* Residuals without a bound fit no device. */
static void without_a_bound_the_host_encodes(void **state)
{
    static const char *const flags[] = { AHEAD, "--push-codec", "onebit", "--residual-max", "0",
                                         NULL };
    uint64_t n_flushed;

    (void)state;
    check_same(flags, &n_flushed);
    assert_int_equal(n_flushed, 0);
}

/* ---- from run to run ---- */

static void file_of(const char *dir, char ret[256])
{
    snprintf(ret, 256, "%s/criteo.0.residuals", dir);
}

static uint8_t *read_file(const char *dir, size_t *ret_n_bytes)
{
    uint8_t *bytes = memory_alloc(1u << 22);
    char path[256];
    FILE *f;

    file_of(dir, path);
    f = fopen(path, "rb");
    if (!f)
        fail_msg("%s cannot be read", path);
    *ret_n_bytes = fread(bytes, 1, 1u << 22, f);
    fclose(f);
    return bytes;
}

static void assert_same_state(size_t n_least)
{
    size_t n[2];
    uint8_t *a = read_file(state_dir[0], &n[0]), *b = read_file(state_dir[1], &n[1]);

    assert_int_equal(n[0], n[1]);
    assert_true(n[0] > n_least);
    assert_memory_equal(a, b, n[0]);
    free(a), free(b);
}

static void reset_state(void)
{
    char path[256];

    for (int i = 0; i < 2; i++) {
        file_of(state_dir[i], path);
        remove(path);
    }
}

static const char *const feedback[] = {
    AHEAD,  "--job",          "criteo", "--push-codec",  "onebit", "--dense-push-codec",
    "topk", "--residual-max", "40000",  "--state-every", "7",      NULL
};

/* Runs that follow one on the other, each of which may be on the host or on the device. */
static void residuals_go_from_run_to_run_and_from_host_to_device(void **state)
{
    struct training *cpu = memory_alloc(sizeof *cpu), *gpu = memory_alloc(sizeof *gpu);
    const struct fake_plan plan = training_plan(4);

    (void)state;
    reset_state();
    for (int i = 0; i < 6; i++) {
        run_on(false, &plan, feedback, state_dir[0], cpu);
        run_on(i != 2 && i != 3, &plan, feedback, state_dir[1], gpu);
        must(gpu->status, &gpu->err);
        training_assert_same(gpu, cpu);
        assert_same_state(2000);
        assert_int_equal(gpu->stats.residual_rows, cpu->stats.residual_rows);
        assert_true(gpu->stats.residual_rows > 100);
        assert_true(gpu->stats.residual_bytes > gpu->stats.residual_rows * 4 * sizeof(float));
    }
    free(cpu), free(gpu);
}

/* A run that is killed has left the residuals after the last step whose number --state-every divides. */
static void residuals_are_written_as_of_the_step_that_was_pushed(void **state)
{
    struct training *cpu = memory_alloc(sizeof *cpu), *gpu = memory_alloc(sizeof *gpu);
    struct fake_plan plan = training_plan(4);

    (void)state;
    for (plan.refuse_push = 6 + 5 * (uint64_t)share_first_of(7); plan.refuse_push < 40;
         plan.refuse_push += 5 * (uint64_t)share_step_of(7)) {
        reset_state();
        cpu->is_killed = gpu->is_killed = true;
        run_on(false, &plan, feedback, state_dir[0], cpu);
        run_on(true, &plan, feedback, state_dir[1], gpu);
        assert_int_equal(gpu->status, PS_ENAN);
        assert_int_equal(gpu->n_applied, plan.refuse_push);
        assert_same_state(plan.refuse_push < 7 ? 100 : 2000);
    }
    free(cpu), free(gpu);
}

/* A run that is killed before its first write leaves what it has found, told to be of a run that has not ended. */
static void what_was_found_stays_until_the_first_write(void **state)
{
    struct training *cpu = memory_alloc(sizeof *cpu), *gpu = memory_alloc(sizeof *gpu);
    struct fake_plan plan = training_plan(4);

    (void)state;
    reset_state();
    run_on(false, &plan, feedback, state_dir[0], cpu);
    run_on(true, &plan, feedback, state_dir[1], gpu);
    plan.refuse_push = 3; /* step 83: 84 is one of 7's */
    cpu->is_killed = gpu->is_killed = true;
    run_on(false, &plan, feedback, state_dir[0], cpu);
    run_on(true, &plan, feedback, state_dir[1], gpu);
    training_assert_same(gpu, cpu);
    assert_same_state(2000);
    free(cpu), free(gpu);
}

/* Steps that have begun carry residuals: at a stop they are finished, and so nothing is lost. */
static void a_stop_loses_no_residual(void **state)
{
    struct training *cpu = memory_alloc(sizeof *cpu), *gpu = memory_alloc(sizeof *gpu);

    (void)state;
    for (uint64_t n = 3 + 9 * (uint64_t)share_first_of(6); n < 50;
         n += 9 * (uint64_t)share_step_of(6)) {
        struct fake_plan plan = training_plan(4);

        reset_state();
        plan.stop_after = n;
        run_on(true, &plan, feedback, state_dir[1], gpu);
        must(gpu->status, &gpu->err);
        assert_in_range(gpu->n_applied, n, 2 * CLICK_LOG_BATCHES - 1);
        plan.stop_after = 0;
        plan.refuse_push = gpu->n_applied;
        run_on(false, &plan, feedback, state_dir[0], cpu);
        training_assert_same(gpu, cpu);
        assert_same_state(2000);
    }
    free(cpu), free(gpu);
}

/* What the device has is lost with it, and the file is the one before, of a run that has not ended. */
static void a_device_that_fails_at_the_end_keeps_the_residuals(void **state)
{
    static const struct far_device_plan bad = { .bad_wait = 2 * CLICK_LOG_BATCHES + 1 };
    static const char *const once[] = { AHEAD,    "--job",         "criteo", "--push-codec",
                                        "onebit", "--state-every", "0",      NULL };
    struct training *cpu = memory_alloc(sizeof *cpu), *gpu = memory_alloc(sizeof *gpu);
    const struct fake_plan plan = training_plan(4);

    (void)state;
    reset_state();
    cpu->is_killed = true;
    run_on(false, &plan, once, state_dir[0], cpu);
    run_with(far_device_ops(&device_cpu, &bad), &plan, once, state_dir[1], gpu);
    must(gpu->status, &gpu->err);
    training_assert_same(gpu, cpu);
    assert_int_equal(gpu->end_status, PS_EDEVICE);
    assert_non_null(strstr(gpu->late.text, "the residuals of "));
    assert_non_null(strstr(gpu->late.text, "; they are lost, but for those in --state-dir"));
    assert_non_null(strstr(gpu->late.text, "far: this wait was to fail"));
    assert_same_state(90);
    free(cpu), free(gpu);
}

#ifdef PS_FAULTS
/* ---- without memory ---- */

#define N_SPARSE 40u
#define WIDTH 8u

/* A model of two tensors, and the encoder of its tables, with residuals. */
struct lab {
    struct dlrm *model;
    struct push_encoder *encoder;
    struct device_push_table tables[DLRM_GRADIENTS_MAX];
    uint64_t keys[N_SPARSE];
    struct ps_push_section sections[DLRM_GRADIENTS_MAX];
    uint32_t n;
};

static void add_residuals(struct error_feedback *r, uint64_t first, uint32_t n)
{
    assert_int_equal(error_feedback_reserve(r, n), 0);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < r->dim; j++)
            error_feedback_row(r, first + 3 * i)[j] = (float)(i * 10 + j);
}

static void add_table(struct lab *l, uint32_t gradient, uint32_t n_floats)
{
    const bool is_dense = gradient >= DLRM_DENSE;
    struct table_spec spec = { .kind = is_dense ? TABLE_SPEC_DENSE : TABLE_SPEC_SPARSE,
                               .dim = is_dense ? n_floats : WIDTH,
                               .n_floats = n_floats };

    assert_true(n_floats < TABLE_SPEC_DENSE_BLOCK);
    snprintf(spec.name, sizeof spec.name, "t%u", gradient);
    assert_int_equal(push_encoder_add_table(l->encoder, l->n, &spec), 0);
    l->tables[l->n] = (struct device_push_table){ gradient, l->n, is_dense, true };
    l->sections[l->n] = (struct ps_push_section){ .table = l->n,
                                                  .op = SECTION_GRADIENT,
                                                  .codec = CODEC_ONEBIT,
                                                  .n_keys = is_dense ? 1 : N_SPARSE,
                                                  .keys = l->keys };
    /* A dense one to a row that it does not have. */
    add_residuals(push_encoder_residual(l->encoder, l->n++), is_dense ? 9 : 0,
                  is_dense ? 1 : 30);
}

static void open_lab(struct lab *l)
{
    const struct dlrm_config config = {
        .batch_max = 4, .n_fields = 1, .dim = WIDTH, .concat = true
    };
    struct err err;

    *l = (struct lab){ .encoder = push_encoder_new(1) };
    must(dlrm_new_on(training_far(), &config, &l->model, &err), &err);
    push_encoder_bound_residuals(l->encoder, 4000);
    for (uint32_t i = 0; i < N_SPARSE; i++)
        l->keys[i] = i;
    add_table(l, DLRM_ROWS, 0);
    for (uint32_t i = 0; i < dlrm_n_tensors(l->model); i++)
        add_table(l, DLRM_DENSE + i, dlrm_tensor(l->model, i)->n_floats);
}

static void close_lab(struct lab *l)
{
    dlrm_free(l->model);
    push_encoder_free(l->encoder);
}

/* All that a run asks for. */
static int use_device_push(struct lab *l, struct device_push_step *step,
                           struct device_push_copy *copy, struct device_push **t,
                           struct err *err)
{
    int status = device_push_new(l->model, l->encoder, l->tables, l->n, t, err);

    if (!status)
        status = device_push_load(*t, err);
    if (!status)
        status = device_push_begin(*t, step, l->sections, err);
    return status ? status : device_push_copy(*t, copy, err);
}

/* What fails is -ENOMEM and a sentence; what the encoder had to say is there, or on the device. */
static void the_kth_failed_allocation_is_a_sentence(void **state)
{
    int status = -1;
    long k, n_refused = 0;

    (void)state;
    for (k = 0; status; k++) {
        struct device_push_step step = { 0 };
        struct device_push_copy copy = { 0 };
        struct device_push *t = NULL;
        struct err err = { 0 };
        struct lab l;

        open_lab(&l);
        memory_fail_after(k);
        status = use_device_push(&l, &step, &copy, &t, &err);
        memory_fail_after(-1);
        if (status) {
            assert_int_equal(status, -ENOMEM);
            assert_true(err.text[0]);
            assert_int_equal(copy.n, 0);
        }
        assert_int_equal(push_encoder_residual(l.encoder, 0)->n_rows,
                         t && device_push_is_loaded(t) ? 0 : 30);
        if (!t) { /* of the device's memory nothing is taken: it can be reserved again */
            assert_int_equal(device_push_new(l.model, l.encoder, l.tables, l.n, &t, &err), 0);
            n_refused++;
        }
        if (copy.n) {
            assert_int_equal(copy.n, l.n);
            device_push_swap(t, &copy);
            assert_int_equal(push_encoder_residual(l.encoder, 0)->n_rows, 56);
            assert_true(error_feedback_find(push_encoder_residual(l.encoder, 0), 87)[1] ==
                        291.0f);
            assert_int_equal(push_encoder_residual(l.encoder, 1)->n_rows, 2);
        }
        device_push_copy_deinit(&copy);
        device_push_step_deinit(&step, l.model);
        device_push_free(t);
        close_lab(&l);
    }
    assert_true(k > 20 && n_refused > 2);
}
#endif

static int make_files(void **state)
{
    for (int i = 0; i < 2; i++)
        snprintf(state_dir[i], sizeof state_dir[i], "/tmp/psd-device-push-%d-%d", (int)getpid(),
                 i);
    return click_log_write(state);
}

static int remove_files(void **state)
{
    reset_state();
    for (int i = 0; i < 2; i++)
        rmdir(state_dir[i]);
    return click_log_remove(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codecs_without_feedback_push_the_cpus_bytes),
        cmocka_unit_test(codecs_with_feedback_push_the_cpus_bytes_under_any_bound),
        cmocka_unit_test(without_a_bound_the_host_encodes),
        cmocka_unit_test(residuals_go_from_run_to_run_and_from_host_to_device),
        cmocka_unit_test(residuals_are_written_as_of_the_step_that_was_pushed),
        cmocka_unit_test(what_was_found_stays_until_the_first_write),
        cmocka_unit_test(a_stop_loses_no_residual),
        cmocka_unit_test(a_device_that_fails_at_the_end_keeps_the_residuals),
#ifdef PS_FAULTS
        cmocka_unit_test(the_kth_failed_allocation_is_a_sentence),
#endif
    };

    return cmocka_run_group_tests(tests, make_files, remove_files);
}
