/* A device with memory of its own ends in the CPU's bits, whatever the model, however late it does what
 * it is asked for, and with three steps under way. */
#include <errno.h>
#include <math.h>

#include "tests/support/far_device.h"
#include "tests/unit/model/fixture.h"

enum { N_STEPS = 7 };

/* A run's batches, and what goes into each step. */
struct script {
    struct dlrm_config config;
    struct batch batches[N_STEPS];
    float *rows[N_STEPS], *wide[N_STEPS], *values[N_STEPS];
    bool keeps_dense[N_STEPS];
};

/* What a run ends in: everything that steps and predictions fill. */
struct outcome {
    double losses[N_STEPS];
    float *row_grads[N_STEPS], *wide_grads[N_STEPS], *grads[N_STEPS], *probs[N_STEPS];
    size_t n_dense;
};

static float *floats(size_t n)
{
    return memory_alloc(n * sizeof(float) + 1);
}

static float *random_floats(struct fixture_rng *rng, size_t n)
{
    float *x = floats(n);

    fixture_fill(rng, x, n, 0.7f);
    return x;
}

static void script_init(struct script *s, const struct dlrm_config *config, uint64_t seed)
{
    struct fixture_rng rng = { seed, 0 };
    struct dlrm *m;
    size_t n_dense;

    *s = (struct script){ .config = *config };
    assert_int_equal(dlrm_new(config, &m, NULL), 0);
    n_dense = dlrm_dense_floats(m);
    dlrm_free(m);
    for (uint32_t i = 0; i < N_STEPS; i++) {
        struct batch *b = &s->batches[i];

        fixture_batch_init(b, config->batch_max, config->n_numeric, config->n_fields,
                           3 * config->batch_max * config->n_fields);
        fixture_batch_fill(
            b, i % 3 ? config->batch_max : fixture_below(&rng, config->batch_max), &rng);
        s->rows[i] = random_floats(&rng, (size_t)b->n_unique * config->dim);
        s->wide[i] = config->wide ? random_floats(&rng, b->n_unique) : NULL;
        s->keeps_dense[i] = i && fixture_below(&rng, 2);
        s->values[i] = random_floats(&rng, n_dense);
        if (s->keeps_dense[i])
            memcpy(s->values[i], s->values[i - 1], n_dense * sizeof(float));
    }
}

static void script_deinit(struct script *s)
{
    for (uint32_t i = 0; i < N_STEPS; i++) {
        fixture_batch_deinit(&s->batches[i]);
        free(s->rows[i]), free(s->wide[i]), free(s->values[i]);
    }
}

static struct dlrm_step step_of(const struct script *s, const struct outcome *o, uint32_t i)
{
    return (struct dlrm_step){ .batch = &s->batches[i],
                               .rows = s->rows[i],
                               .wide = s->wide[i],
                               .row_grads = o->row_grads[i],
                               .wide_grads = o->wide_grads[i],
                               .number = i,
                               .keeps_dense = s->keeps_dense[i] };
}

static void outcome_init(struct outcome *o, const struct script *s, size_t n_dense)
{
    *o = (struct outcome){ .n_dense = n_dense };
    for (uint32_t i = 0; i < N_STEPS; i++) {
        const struct batch *b = &s->batches[i];

        o->row_grads[i] = floats((size_t)b->n_unique * s->config.dim);
        o->wide_grads[i] = s->config.wide ? floats(b->n_unique) : NULL;
        o->grads[i] = floats(n_dense);
        o->probs[i] = floats(b->n);
    }
}

static void outcome_deinit(struct outcome *o)
{
    for (uint32_t i = 0; i < N_STEPS; i++) {
        free(o->row_grads[i]), free(o->wide_grads[i]), free(o->grads[i]);
        free(o->probs[i]);
    }
}

static void begin(struct dlrm *m, const struct script *s, struct outcome *o, uint32_t i)
{
    const struct dlrm_step step = step_of(s, o, i);

    dlrm_use(m, s->values[i], o->grads[i]);
    assert_int_equal(dlrm_step_begin(m, i % dlrm_n_buffer_sets(m), &step), 0);
}

static void end(struct dlrm *m, struct outcome *o, uint32_t i)
{
    assert_int_equal(dlrm_step_end(m, i % dlrm_n_buffer_sets(m), &o->losses[i]), 0);
}

/* As many steps at a time as the device takes; then all predictions. */
static void play(const struct script *s, const struct device_ops *ops, struct outcome *o)
{
    struct err err = { 0 };
    struct dlrm *m;
    uint32_t n_ended = 0;

    if (dlrm_new_on(ops, &s->config, &m, &err))
        fail_msg("%s", err.text);
    outcome_init(o, s, dlrm_dense_floats(m));
    for (uint32_t i = 0; i < N_STEPS; i++) {
        if (i - n_ended == dlrm_n_buffer_sets(m))
            end(m, o, n_ended++);
        begin(m, s, o, i);
    }
    while (n_ended < N_STEPS)
        end(m, o, n_ended++);
    for (uint32_t i = 0; i < N_STEPS; i++) {
        struct dlrm_step step = step_of(s, o, i);

        step.keeps_dense = i > 0; /* those of the last step */
        assert_int_equal(dlrm_predict(m, &step), 0);
        memcpy(o->probs[i], dlrm_probs(m), s->batches[i].n * sizeof(float));
    }
    dlrm_free(m);
}

static void check_same(const char *what, uint32_t step, const float *a, const float *b,
                       size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, sizeof *a))
            fail_msg("step %u: %s[%zu] is %.9g, on the CPU %.9g", step, what, i, (double)a[i],
                     (double)b[i]);
}

static void check_outcome(const struct script *s, const struct outcome *far,
                          const struct outcome *cpu)
{
    for (uint32_t i = 0; i < N_STEPS; i++) {
        const struct batch *b = &s->batches[i];

        if (memcmp(&far->losses[i], &cpu->losses[i], sizeof far->losses[i]))
            fail_msg("step %u: the loss is %.17g, on the CPU %.17g", i, far->losses[i],
                     cpu->losses[i]);
        check_same("row gradient", i, far->row_grads[i], cpu->row_grads[i],
                   (size_t)b->n_unique * s->config.dim);
        if (s->config.wide)
            check_same("wide gradient", i, far->wide_grads[i], cpu->wide_grads[i], b->n_unique);
        check_same("dense gradient", i, far->grads[i], cpu->grads[i], cpu->n_dense);
        check_same("probability", i, far->probs[i], cpu->probs[i], b->n);
    }
}

static const struct far_device_plan plans[] = {
    { .late = false, .replays = false },
    { .late = true, .replays = false, .seed = 1 },
    { .late = true, .replays = true, .seed = 2 },
    { .late = true, .replays = true, .seed = 3 },
};

static void check_model(const struct dlrm_config *config, uint64_t seed)
{
    struct outcome cpu, far;
    struct script s;

    script_init(&s, config, seed);
    play(&s, &device_cpu, &cpu);
    for (size_t i = 0; i < COUNT_OF(plans); i++) {
        play(&s, far_device_ops(&device_cpu, &plans[i]), &far);
        check_outcome(&s, &far, &cpu);
        assert_int_equal(far_device_counts().most_under_way, DLRM_BUFFER_SETS);
        outcome_deinit(&far);
    }
    outcome_deinit(&cpu);
    script_deinit(&s);
}

static void any_model_ends_in_the_cpus_bits(void **state)
{
    const uint64_t seed = seed_of_run(20261121);
    uint32_t n_checked = 0;

    (void)state;
    for (uint64_t i = 0; i < 50; i++) {
        struct fixture_rng rng = { hash_mix2(seed, i), 0 };
        struct dlrm_config config = fixture_config(
            &rng, (struct fixture_most){ .samples = 70, .dim = 20, .width = 40 });

        config.n_threads += fixture_below(&rng, 2);
        if (dlrm_config_check(&config, NULL))
            continue;
        check_model(&config, hash_mix2(seed, i));
        n_checked++;
    }
    assert_true(n_checked > 30);
}

/* The same batch in all buffer sets, again and again. */
static struct far_device_counts repeat(struct fixture *f, const struct far_device_plan *plan,
                                       uint32_t n_steps, bool keeps_dense)
{
    struct dlrm_step step;
    struct fixture_rng rng = { 31, 0 };
    struct far_device_counts counts;

    fixture_init_on(f, far_device_ops(&device_cpu, plan), &f->config, 16, &rng);
    for (uint32_t i = 0; i < n_steps; i++) {
        step = fixture_step_of(f, i);
        step.keeps_dense = keeps_dense && i;
        assert_int_equal(dlrm_step_begin(f->m, i % DLRM_BUFFER_SETS, &step), 0);
        assert_int_equal(dlrm_step_end(f->m, i % DLRM_BUFFER_SETS, &f->loss), 0);
    }
    counts = far_device_counts();
    fixture_deinit(f);
    return counts;
}

static void a_buffer_set_is_recorded_once_and_then_replayed(void **state)
{
    static const struct far_device_plan plan = { .late = true, .replays = true };
    struct fixture f = { .config = fixture_plain };
    struct far_device_counts counts = repeat(&f, &plan, 10, false);

    (void)state;
    assert_int_equal(counts.n_records, DLRM_BUFFER_SETS);
    assert_int_equal(counts.n_replays, 10 - DLRM_BUFFER_SETS);
    assert_int_equal(counts.n_waits, 10);
}

/* What is dropped differs from step to step, and stands in the device's memory. */
static void dropout_is_replayed_with_the_steps_own_keys(void **state)
{
    static const struct far_device_plan plan = { .late = true, .replays = true };
    struct fixture_rng rng = { 36, 0 }, same = rng;
    struct dlrm_config config = fixture_plain;
    struct far_device_counts counts;
    struct fixture cpu, far;
    double before = 0;

    (void)state;
    config.dropout = 0.4f;
    fixture_init(&cpu, &config, 16, &rng);
    fixture_init_on(&far, far_device_ops(&device_cpu, &plan), &config, 16, &same);
    for (uint64_t i = 0; i < 6; i++) {
        fixture_step(&cpu, i);
        fixture_step(&far, i);
        assert_memory_equal(&far.loss, &cpu.loss, sizeof cpu.loss);
        assert_true(cpu.loss != before);
        before = cpu.loss;
        check_same("row gradient", (uint32_t)i, far.row_grads, cpu.row_grads,
                   (size_t)cpu.batch.n_unique * config.dim);
    }
    counts = far_device_counts();
    assert_int_equal(counts.n_records, 1);
    assert_int_equal(counts.n_replays, 5);
    fixture_deinit(&cpu);
    fixture_deinit(&far);
}

static void weights_that_did_not_change_are_copied_to_the_device_once(void **state)
{
    static const struct far_device_plan plan = { .late = true, .replays = true };
    struct fixture f = { .config = fixture_plain };
    struct far_device_counts all = repeat(&f, &plan, 10, false),
                             few = repeat(&f, &plan, 10, true);

    (void)state;
    assert_int_equal(all.n_uploads - few.n_uploads, 10 - 1);
}

/* The failure may have been that of the one copy which all go on from. */
static void steps_with_the_weights_of_a_buffer_set_that_fails_fail_with_it(void **state)
{
    static const struct far_device_plan plan = { .late = true, .replays = true, .bad_wait = 1 };
    struct fixture_rng rng = { 37, 0 };
    uint64_t n_uploads[2];
    struct dlrm_step step;
    struct fixture f;

    (void)state;
    fixture_init_on(&f, far_device_ops(&device_cpu, &plan), &fixture_plain, 16, &rng);
    for (uint32_t i = 0; i < DLRM_BUFFER_SETS; i++) {
        step = fixture_step_of(&f, i);
        step.keeps_dense = i > 0;
        assert_int_equal(dlrm_step_begin(f.m, i, &step), 0);
        n_uploads[0] = i ? n_uploads[0] : far_device_counts().n_uploads;
    }
    for (uint32_t i = 0; i < DLRM_BUFFER_SETS; i++)
        assert_int_equal(dlrm_step_end(f.m, i, &f.loss), PS_EDEVICE);
    n_uploads[1] = far_device_counts().n_uploads;
    assert_int_equal(dlrm_step(f.m, &step, &f.loss), 0);
    assert_int_equal(far_device_counts().n_uploads - n_uploads[1], n_uploads[0]);
    fixture_deinit(&f);
}

static void rows_have_reserved_memory_and_more_of_them_get_other_addresses(void **state)
{
    static const struct far_device_plan plan = { .late = true, .replays = true };
    struct fixture_rng rng = { 32, 0 };
    struct dlrm_config config = fixture_plain;
    struct far_device_counts counts;
    struct fixture f;
    uint64_t n_allocs;

    (void)state;
    config.batch_max = 600;
    fixture_init_on(&f, far_device_ops(&device_cpu, &plan), &config, 600, &rng);
    f.batch.n = 0, f.batch.n_keys = f.batch.n_unique = 0, f.batch.order_starts[0] = 0;
    fixture_step(&f, 0);
    n_allocs = far_device_counts().n_allocs;
    fixture_batch_fill(&f.batch, 600, &rng);
    free(f.rows), free(f.row_grads);
    f.rows = random_floats(&rng, (size_t)f.batch.n_unique * 2 * config.dim);
    f.row_grads = floats((size_t)f.batch.n_unique * 2 * config.dim);
    fixture_step(&f, 1);
    assert_true(far_device_counts().n_allocs > n_allocs);
    n_allocs = far_device_counts().n_allocs;
    for (uint64_t i = 0; i < 5; i++) {
        fixture_batch_fill(&f.batch, 600, &rng);
        fixture_step(&f, i);
    }
    counts = far_device_counts();
    assert_int_equal(counts.n_allocs, n_allocs);
    assert_int_equal(counts.n_records, 2); /* n = 0, and n = 600 */
    fixture_deinit(&f);
}

static void a_device_that_fails_is_reported_with_the_step(void **state)
{
    static const struct far_device_plan plan = { .late = true, .bad_wait = 2 };
    struct fixture_rng rng = { 33, 0 };
    struct dlrm_step step;
    struct fixture f;

    (void)state;
    fixture_init_on(&f, far_device_ops(&device_cpu, &plan), &fixture_plain, 16, &rng);
    step = fixture_step_of(&f, 0);
    assert_int_equal(dlrm_step(f.m, &step, &f.loss), 0);
    assert_true(isfinite(f.loss));
    assert_int_equal(dlrm_step(f.m, &step, &f.loss), PS_EDEVICE);
    assert_true(isnan(f.loss));
    assert_int_equal(dlrm_step(f.m, &step, &f.loss), 0);
    fixture_deinit(&f);
}

static void a_device_that_cannot_be_opened_says_why(void **state)
{
    static const struct far_device_plan plan = { .refuses = true };
    struct dlrm *m = NULL;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(dlrm_new_on(far_device_ops(&device_cpu, &plan), &fixture_plain, &m, &err),
                     PS_EDEVICE);
    assert_null(m);
    assert_string_equal(err.text, "far: it does not want to");
}

static void its_intermediates_are_the_cpus(void **state)
{
    static const struct far_device_plan plan = { .late = true, .replays = true };
    static const char *const names[] = { "bot_0_pre", "bag_3",       "T",   "R",
                                         "top_1_out", "d_top_0_pre", "d_T", "d_bot_1_out",
                                         "logit",     "prob" };
    struct fixture_rng rng = { 34, 0 }, same = rng;
    struct fixture cpu, far;

    (void)state;
    fixture_init(&cpu, &fixture_plain, 16, &rng);
    fixture_init_on(&far, far_device_ops(&device_cpu, &plan), &fixture_plain, 16, &same);
    fixture_step(&cpu, 0);
    fixture_step(&far, 0);
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        uint32_t n, n_far;
        const float *want = debug_read(cpu.m, names[i], &n);
        const float *got = debug_read(far.m, names[i], &n_far);

        assert_true(want && got && n == n_far);
        check_same(names[i], 0, got, want, n);
    }
    fixture_deinit(&cpu);
    fixture_deinit(&far);
}

#ifdef PS_FAULTS
static void every_failing_allocation_is_reported_and_can_be_made_good(void **state)
{
    static const struct far_device_plan plan = { .late = true };
    struct dlrm_config config = fixture_plain;
    int status = -ENOMEM;
    long k = 0;

    (void)state;
    config.wide = config.batch_norm = true;
    config.dropout = 0.1f;
    for (; status == -ENOMEM && k < 1000; k++) {
        struct dlrm *m = NULL;
        struct err err = { 0 };

        memory_fail_after(k);
        status = dlrm_new_on(far_device_ops(&device_cpu, &plan), &config, &m, &err);
        memory_fail_after(-1);
        assert_true(!status == (m != NULL));
        assert_true(!status || strstr(err.text, "no memory for batches of 16 samples"));
        dlrm_free(m);
    }
    assert_int_equal(status, 0);
    assert_true(k > 40);
}

static void a_batch_without_memory_is_refused_and_the_next_one_is_not(void **state)
{
    static const struct far_device_plan plan = { .late = true, .replays = true };
    struct dlrm_config config = fixture_plain;

    (void)state;
    config.batch_max = 200;
    for (long k = 0; k < 8; k++) {
        struct fixture_rng rng = { 35, 0 }, same = rng;
        struct fixture cpu, far;
        struct dlrm_step step;

        fixture_init(&cpu, &config, 200, &rng);
        fixture_init_on(&far, far_device_ops(&device_cpu, &plan), &config, 200, &same);
        step = fixture_step_of(&far, 3);
        memory_fail_after(k);
        if (dlrm_step(far.m, &step, &far.loss) == 0)
            assert_true(k > 3);
        memory_fail_after(-1);
        assert_int_equal(dlrm_step(far.m, &step, &far.loss), 0);
        fixture_step(&cpu, 3);
        check_same("row gradient", 3, far.row_grads, cpu.row_grads,
                   (size_t)cpu.batch.n_unique * config.dim);
        fixture_deinit(&cpu);
        fixture_deinit(&far);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_model_ends_in_the_cpus_bits),
        cmocka_unit_test(a_buffer_set_is_recorded_once_and_then_replayed),
        cmocka_unit_test(dropout_is_replayed_with_the_steps_own_keys),
        cmocka_unit_test(weights_that_did_not_change_are_copied_to_the_device_once),
        cmocka_unit_test(steps_with_the_weights_of_a_buffer_set_that_fails_fail_with_it),
        cmocka_unit_test(rows_have_reserved_memory_and_more_of_them_get_other_addresses),
        cmocka_unit_test(a_device_that_fails_is_reported_with_the_step),
        cmocka_unit_test(a_device_that_cannot_be_opened_says_why),
        cmocka_unit_test(its_intermediates_are_the_cpus),
#ifdef PS_FAULTS
        cmocka_unit_test(every_failing_allocation_is_reported_and_can_be_made_good),
        cmocka_unit_test(a_batch_without_memory_is_refused_and_the_next_one_is_not),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
