/* Whole models on the emulated GPU: the CPU's numbers within a tolerance, in each step, from records too; and a training run
 * that learns the same. */
#include <math.h>

#include "tests/emu/rt.h"
#include "tests/unit/model/fixture.h"
#include "worker/cuda/device_cuda.h"
#include "worker/model/dlrm_internal.h"

static const float *dense_grads(struct fixture *f)
{
    return dlrm_tensor(f->m, 0)->grads;
}

static void check_step(struct fixture *gpu, struct fixture *cpu, uint64_t number,
                       double tolerance)
{
    const size_t n_rows = cpu->batch.n_unique;

    fixture_step(gpu, number);
    fixture_step(cpu, number);
    if (!(fabs(gpu->loss - cpu->loss) <= tolerance * fabs(cpu->loss)))
        fail_msg("the loss is %.9g, on the CPU %.9g", gpu->loss, cpu->loss);
    fixture_near("row gradients", gpu->row_grads, cpu->row_grads,
                 dlrm_config_row_floats(&cpu->config, &cpu->batch), tolerance);
    if (cpu->wide)
        fixture_near("wide gradients", gpu->wide_grads, cpu->wide_grads, n_rows, tolerance);
    fixture_near("dense gradients", dense_grads(gpu), dense_grads(cpu),
                 dlrm_dense_floats(cpu->m), tolerance);
}

/* Both devices' models, of the same numbers. */
static void init(struct fixture *gpu, struct fixture *cpu, const struct dlrm_config *config,
                 uint64_t seed)
{
    struct fixture_rng a = { seed, 0 }, b = { seed, 0 };

    emu_rt_seed(seed);
    fixture_init_on(gpu, &device_cuda, config, config->batch_max, &a);
    fixture_init(cpu, config, config->batch_max, &b);
}

static void deinit(struct fixture *gpu, struct fixture *cpu)
{
    fixture_deinit(gpu);
    fixture_deinit(cpu);
    assert_int_equal(emu_rt_alive(), 0);
}

static struct dlrm_config random_config(struct fixture_rng *rng)
{
    struct dlrm_config c = { .batch_max = 4 + fixture_below(rng, 40),
                             .n_numeric = fixture_below(rng, 6),
                             .n_fields = fixture_below(rng, 5),
                             .dim = 1 + fixture_below(rng, 20),
                             .n_bottom = fixture_below(rng, 3),
                             .n_top = fixture_below(rng, 3),
                             .seed = rng->seed,
                             .n_threads = 1 };

    for (uint32_t i = 0; i < DLRM_LAYERS_MAX; i++) {
        c.bottom[i] = 1 + fixture_below(rng, 30);
        c.top[i] = 1 + fixture_below(rng, 30);
    }
    c.n_cross = 1 + fixture_below(rng, 3);
    c.cross_rank = fixture_below(rng, 4);
    c.concat = fixture_below(rng, 3) == 0;
    c.self_interaction = fixture_below(rng, 2) == 0;
    c.wide = fixture_below(rng, 2) == 0;
    c.batch_norm = fixture_below(rng, 4) == 0;
    c.dropout = fixture_below(rng, 3) ? 0 : 0.3f;
    c.l2_dense = fixture_below(rng, 2) ? 0.1f : 0;
    c.l2_rows = fixture_below(rng, 2) ? 0.1f : 0;
    c.n_hats = fixture_below(rng, 2) ? fixture_below(rng, 10) : 0;
    c.first_hat = (float)fixture_below(rng, 3) - 1.5f;
    if (fixture_below(rng, 2))
        fixture_turn_into(&c, (enum model_kind)fixture_below(rng, MODEL_KINDS));
    if (fixture_below(rng, 2) && !c.wide && dlrm_config_parts(c.kind) & MODEL_TOP) {
        c.n_tasks = 2;
        c.task_weights[0] = 1, c.task_weights[1] = 0.5f;
    }
    if (fixture_below(rng, 2) && dlrm_config_parts(c.kind) & MODEL_EMBEDDINGS)
        c.means[0] = 1 + fixture_below(rng, 15);
    if (fixture_below(rng, 2) && dlrm_config_parts(c.kind) & MODEL_EMBEDDINGS)
        c.n_groups = 1 + fixture_below(rng, 4);
    for (uint32_t g = 0; g < c.n_groups; g++)
        c.group_dims[g] = fixture_below(rng, 4) ? 1 + fixture_below(rng, 40) : c.dim;
    return c;
}

/* Four steps in one buffer set: called, recorded, and twice from the record. A norm of few samples makes much of a rounding. */
static void any_model_is_the_cpus_within_fp32(void **state)
{
    const uint64_t seed = seed_of_run(4711);
    uint32_t n_checked = 0;

    (void)state;
    for (uint64_t i = 0; i < 24; i++) {
        struct fixture_rng rng = { hash_mix2(seed, i), 0 };
        const struct dlrm_config config = random_config(&rng);
        struct fixture gpu, cpu;

        if (dlrm_config_check(&config, NULL))
            continue;
        init(&gpu, &cpu, &config, hash_mix2(seed, i));
        for (uint64_t step = 0; step < 4; step++)
            check_step(&gpu, &cpu, step, config.batch_norm ? 1e-3 : 1e-5);
        fixture_predict(&gpu);
        fixture_predict(&cpu);
        fixture_near("probabilities", dlrm_probs(gpu.m), dlrm_probs(cpu.m),
                     cpu.batch.n * cpu.batch.n_labels, 1e-5);
        deinit(&gpu, &cpu);
        n_checked++;
    }
    assert_true(n_checked > 12);
}

enum { N_STEPS = 9 };

/* Of steps: what goes in, and what they end in. */
struct run {
    struct fixture f;
    float *values[N_STEPS], *grads[N_STEPS], *row_grads[N_STEPS]; /* the device's host memory */
    double losses[N_STEPS];
    size_t n_dense, n_rows;
    uint32_t
        refresh; /* weights change every so many steps; those of the others are NaN, as nobody may look at them */
};

static float *pinned(const struct run *r, size_t n)
{
    float *x = dlrm_host_alloc(r->f.m, n * sizeof *x);

    assert_non_null(x);
    return x;
}

static void run_init(struct run *r, const struct dlrm_config *config, uint64_t seed,
                     uint32_t refresh)
{
    struct fixture_rng rng = { seed, 0 };

    *r = (struct run){ .refresh = refresh };
    fixture_init_on(&r->f, &device_cuda, config, config->batch_max, &rng);
    r->n_dense = dlrm_dense_floats(r->f.m);
    r->n_rows = (size_t)r->f.batch.n_unique * config->dim;
    for (uint32_t i = 0; i < N_STEPS; i++) {
        r->values[i] = pinned(r, r->n_dense);
        r->grads[i] = pinned(r, r->n_dense);
        r->row_grads[i] = pinned(r, r->n_rows);
        fixture_fill(&rng, r->values[i], r->n_dense, 0.3f);
        if (i % refresh)
            memset(r->values[i], 0xff, r->n_dense * sizeof(float));
    }
}

static void run_deinit(struct run *r)
{
    for (uint32_t i = 0; i < N_STEPS; i++) {
        dlrm_host_free(r->f.m, r->values[i], r->n_dense * sizeof(float));
        dlrm_host_free(r->f.m, r->grads[i], r->n_dense * sizeof(float));
        dlrm_host_free(r->f.m, r->row_grads[i], r->n_rows * sizeof(float));
    }
    fixture_deinit(&r->f);
}

/* n_buffer_sets steps at a time. */
static void run_steps(struct run *r, uint32_t n_sets)
{
    for (uint32_t i = 0; i < N_STEPS + n_sets; i++) {
        struct dlrm_step step = fixture_step_of(&r->f, i);

        if (i >= n_sets)
            assert_int_equal(dlrm_step_end(r->f.m, i % n_sets, &r->losses[i - n_sets]), 0);
        if (i >= N_STEPS)
            continue;
        step.row_grads = r->row_grads[i];
        step.keeps_dense = i % r->refresh != 0;
        dlrm_use(r->f.m, r->values[i], r->grads[i]);
        assert_int_equal(dlrm_step_begin(r->f.m, i % n_sets, &step), 0);
    }
}

/* Weights and what is dropped differ from step to step, so that a step which sees another one's shows it. */
static void steps_under_way_end_in_the_bits_of_steps_one_by_one(void **state)
{
    struct dlrm_config config = { .batch_max = 20,
                                  .n_numeric = 3,
                                  .n_fields = 3,
                                  .n_bottom = 1,
                                  .n_top = 2,
                                  .top = { 16, 8 },
                                  .dropout = 0.3f,
                                  .seed = 3,
                                  .n_threads = 1 };
    const uint64_t seed = seed_of_run(4711);

    (void)state;
    for (uint64_t k = 0; k < 10; k++) {
        const uint32_t refresh = 1 + (uint32_t)k % 5;
        struct run one, all;

        config.products = k % 2 ? DEVICE_BF16 : DEVICE_FP32;
        config.dim = k % 2 ? 16 : 8; /* in bf16 activations are, too */
        config.bottom[0] = k % 2 ? 16 : 12;
        emu_rt_seed(hash_mix2(seed, k));
        run_init(&one, &config, hash_mix2(seed, k), refresh);
        run_steps(&one, 1);
        assert_true(isfinite(one.losses[N_STEPS - 1]));
        run_init(&all, &config, hash_mix2(seed, k), refresh);
        run_steps(&all, DLRM_BUFFER_SETS);
        assert_memory_equal(all.losses, one.losses, sizeof one.losses);
        for (uint32_t i = 0; i < N_STEPS; i++) {
            assert_memory_equal(all.grads[i], one.grads[i], one.n_dense * sizeof(float));
            assert_memory_equal(all.row_grads[i], one.row_grads[i], one.n_rows * sizeof(float));
        }
        run_deinit(&one);
        run_deinit(&all);
        assert_int_equal(emu_rt_alive(), 0);
    }
}

static void descend(float *x, const float *grads, size_t n, float rate)
{
    for (size_t i = 0; i < n; i++)
        x[i] -= rate * grads[i];
}

/* Plain SGD on one batch; the last loss. */
static double train(struct fixture *f, uint32_t n_steps)
{
    for (uint32_t i = 0; i < n_steps; i++) {
        fixture_step(f, i);
        for (uint32_t t = 0; t < dlrm_n_tensors(f->m); t++) {
            struct dlrm_tensor *tensor = dlrm_tensor(f->m, t);

            descend(tensor->values, tensor->grads, tensor->n_floats, 0.1f);
        }
        descend(f->rows, f->row_grads, (size_t)f->batch.n_unique * f->config.dim, 0.5f);
    }
    return f->loss;
}

static void a_training_run_learns_what_the_cpus_does_in_each_kind_of_products(void **state)
{
    static const struct {
        enum device_products products;
        double
            tolerance; /* of what the loss has fallen by: its rounding errors grow over the steps */
    } kinds[] = { { DEVICE_FP32, 1e-4 }, { DEVICE_TF32, 2e-2 }, { DEVICE_BF16, 5e-2 } };
    struct dlrm_config config = { .batch_max = 48,
                                  .n_numeric = 13,
                                  .n_fields = 4,
                                  .dim = 16,
                                  .n_bottom = 1,
                                  .bottom = { 24 },
                                  .n_top = 2,
                                  .top = { 32, 16 },
                                  .n_threads = 1 };
    const uint64_t seed = seed_of_run(4711);

    (void)state;
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        struct fixture gpu, cpu;
        double loss, want, start;

        config.products = DEVICE_FP32;
        init(&gpu, &cpu, &config, seed);
        fixture_deinit(&gpu);
        config.products = kinds[i].products;
        fixture_init_on(&gpu, &device_cuda, &config, config.batch_max,
                        &(struct fixture_rng){ seed, 0 });
        start = train(&cpu, 1);
        want = train(&cpu, 30);
        (void)train(&gpu, 1);
        loss = train(&gpu, 30);
        print_message("loss %.6f -> %.6f, on the CPU %.6f\n", start, loss, want);
        assert_true(want < 0.8 * start);
        assert_true(fabs(loss - want) <= kinds[i].tolerance * (start - want));
        deinit(&gpu, &cpu);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_under_way_end_in_the_bits_of_steps_one_by_one),
        cmocka_unit_test(any_model_is_the_cpus_within_fp32),
        cmocka_unit_test(a_training_run_learns_what_the_cpus_does_in_each_kind_of_products),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
