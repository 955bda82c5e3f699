/* The trainer on a device with memory of its own, two steps under way, pushes what it pushes on the CPU:
 * every batch once, in order, the same bits; also past a death, a stop, a validation, a failure. */
#include "tests/unit/worker/fake_store.h"

#include <stdlib.h>
#include <unistd.h>

#include "common/mem.h"
#include "tests/support/far_device.h"
#include "worker/data/synth.h"
#include "worker/trainer.h"

#define N_ROWS 640u
#define BATCH 16u
#define N_BATCHES (N_ROWS / BATCH)

static char path[64];

static const struct far_device_plan late = { .late = true, .replays = true, .seed = 5 };

/* What a run ends in. */
struct outcome {
    int status;
    struct err err;
    uint64_t n_applied, keys_of[FAKE_STEPS_MAX], values_of[FAKE_STEPS_MAX];
    uint64_t n_fences, n_samples;
    double loss_sum;
};

static void must(int status, const struct err *err)
{
    if (status)
        fail_msg("%s", err->text);
}

static void load_settings(struct settings *s, const char *const *more)
{
    const char *flags[40] = { "--data",      path,    "--format", "criteo",   "--batch",
                              "16",          "--dim", "4",        "--bottom", "8",
                              "--top",       "8",     "--wide",   "--mode",   "async",
                              "--log-level", "error", "--epochs", "2" };
    enum settings_action action;
    struct err err = { 0 };
    int n = 19;

    while (*more)
        flags[n++] = *more++;
    memset(s, 0, sizeof *s);
    must(settings_load(&settings_worker, n, (char **)(uintptr_t)flags, 0, s, &action, &err),
         &err);
}

static void run(const struct compute_ops *ops, const struct store_ops *store,
                const struct fake_plan *plan, const char *const *more, struct outcome *ret)
{
    struct fake *fake = mem_alloc(sizeof *fake);
    struct trainer *t = mem_alloc(sizeof *t);
    struct settings s;
    struct setup u;

    *ret = (struct outcome){ 0 };
    fake_init(fake, store, plan);
    load_settings(&s, more);
    must(setup_data(&u, &s, true, true, &ret->err), &ret->err);
    must(setup_model_on(&u, ops, &ret->err), &ret->err);
    *t = (struct trainer){ .s = &s, .u = &u, .store = &fake->store };
    must(tables_create(&s, u.model, 13, &fake->store, &t->tables, &ret->err), &ret->err);
    must(progress_open(&s, &t->progress, &ret->err), &ret->err);
    ret->status = trainer_run(t, &ret->err);
    ret->n_applied = fake->n_applied;
    ret->n_fences = fake->n_fences;
    ret->n_samples = t->state.samples;
    ret->loss_sum = t->state.loss_sum;
    memcpy(ret->keys_of, fake->keys_of, sizeof ret->keys_of);
    memcpy(ret->values_of, fake->values_of, sizeof ret->values_of);
    must(progress_close(t->progress, &ret->err), &ret->err);
    tables_free(t->tables);
    setup_deinit(&u);
    settings_free(&settings_worker, &s);
    fake_deinit(fake);
    free(fake);
    free(t);
}

static struct fake_plan plan_of(uint32_t n_permits)
{
    return (struct fake_plan){ .seed = n_permits,
                               .n_permits = n_permits,
                               .still = true,
                               .delay_max_us = 50,
                               .fence_pull = FAKE_NEVER,
                               .fence_push = FAKE_NEVER,
                               .fence_flush = FAKE_NEVER,
                               .refuse_push = FAKE_NEVER,
                               .hold_pull = FAKE_NEVER };
}

static const struct compute_ops *far(void)
{
    return far_device_ops(&compute_cpu, &late);
}

static void assert_same_pushes(const struct outcome *a, const struct outcome *b)
{
    assert_int_equal(a->n_applied, b->n_applied);
    for (uint64_t i = 0; i < a->n_applied; i++)
        if (a->keys_of[i] != b->keys_of[i] || a->values_of[i] != b->values_of[i])
            fail_msg("push %llu differs from the CPU's", (unsigned long long)i);
}

#define AHEAD "--ahead", "3"

static void two_steps_under_way_push_the_cpus_bits_in_order(void **state)
{
    static const char *const flags[] = { AHEAD, NULL };
    const struct fake_plan plan = plan_of(4);
    struct outcome *cpu = mem_alloc(sizeof *cpu), *gpu = mem_alloc(sizeof *gpu);

    (void)state;
    run(&compute_cpu, &fake_overlaps, &plan, flags, cpu);
    run(far(), &fake_overlaps, &plan, flags, gpu);
    must(cpu->status, &cpu->err);
    must(gpu->status, &gpu->err);
    assert_int_equal(cpu->n_applied, 2 * N_BATCHES);
    assert_same_pushes(gpu, cpu);
    assert_int_equal(gpu->n_samples, 2 * N_ROWS);
    assert_true(gpu->loss_sum == cpu->loss_sum);
    assert_int_equal(far_device_counts().most_under_way, 2);
    free(cpu), free(gpu);
}

/* Nothing may run ahead: one at a time there too. */
static void in_lock_step_one_step_is_under_way(void **state)
{
    static const char *const flags[] = { NULL };
    const struct fake_plan plan = plan_of(1);
    struct outcome *cpu = mem_alloc(sizeof *cpu), *gpu = mem_alloc(sizeof *gpu);

    (void)state;
    run(&compute_cpu, &fake_serial, &plan, flags, cpu);
    run(far(), &fake_serial, &plan, flags, gpu);
    must(gpu->status, &gpu->err);
    assert_same_pushes(gpu, cpu);
    assert_int_equal(far_device_counts().most_under_way, 1);
    free(cpu), free(gpu);
}

static void dense_weights_that_are_not_pulled_are_not_copied(void **state)
{
    static const char *const flags[] = { AHEAD, "--dense-refresh", "4", NULL };
    const struct fake_plan plan = plan_of(4);
    struct outcome *cpu = mem_alloc(sizeof *cpu), *gpu = mem_alloc(sizeof *gpu);
    uint64_t n_all, n_few;

    (void)state;
    run(far(), &fake_overlaps, &plan, (const char *const[]){ AHEAD, NULL }, gpu);
    n_all = far_device_counts().n_uploads;
    run(&compute_cpu, &fake_overlaps, &plan, flags, cpu);
    run(far(), &fake_overlaps, &plan, flags, gpu);
    n_few = far_device_counts().n_uploads;
    assert_same_pushes(gpu, cpu);
    assert_true(n_few < n_all - N_BATCHES / 2);
    free(cpu), free(gpu);
}

static void a_worker_declared_dead_drops_what_is_under_way(void **state)
{
    static const char *const flags[] = { AHEAD, NULL };
    struct outcome *cpu = mem_alloc(sizeof *cpu), *gpu = mem_alloc(sizeof *gpu);
    struct fake_plan plan = plan_of(4);

    (void)state;
    run(&compute_cpu, &fake_overlaps, &plan, flags, cpu);
    for (uint64_t n = 0; n < 24; n++) {
        plan = plan_of(4);
        plan.seed = n;
        if (n % 2)
            plan.fence_pull = hash_mix2(n, 1) % (2 * N_BATCHES);
        else
            plan.fence_push = hash_mix2(n, 1) % (2 * N_BATCHES);
        run(far(), &fake_overlaps, &plan, flags, gpu);
        must(gpu->status, &gpu->err);
        assert_int_equal(gpu->n_fences, 1);
        assert_same_pushes(gpu, cpu);
    }
    free(cpu), free(gpu);
}

static void validations_find_nothing_under_way(void **state)
{
    static const char *const flags[] = { AHEAD, "--valid", path, "--eval-every", "7", NULL };
    const struct fake_plan plan = plan_of(4);
    struct outcome *cpu = mem_alloc(sizeof *cpu), *gpu = mem_alloc(sizeof *gpu);

    (void)state;
    run(&compute_cpu, &fake_overlaps, &plan, flags, cpu);
    run(far(), &fake_overlaps, &plan, flags, gpu);
    must(gpu->status, &gpu->err);
    assert_same_pushes(gpu, cpu);
    free(cpu), free(gpu);
}

static void a_refused_push_ends_the_run_with_its_sentence(void **state)
{
    static const char *const flags[] = { AHEAD, NULL };
    struct outcome *gpu = mem_alloc(sizeof *gpu);
    struct fake_plan plan = plan_of(4);

    (void)state;
    plan.refuse_push = 11;
    run(far(), &fake_overlaps, &plan, flags, gpu);
    assert_int_equal(gpu->status, PS_ENAN);
    assert_int_equal(gpu->n_applied, 11);
    free(gpu);
}

static void a_device_that_fails_ends_the_run_at_its_step(void **state)
{
    static const char *const flags[] = { AHEAD, NULL };
    static const struct far_device_plan bad = { .late = true, .replays = true, .bad_wait = 10 };
    struct outcome *gpu = mem_alloc(sizeof *gpu);
    const struct fake_plan plan = plan_of(4);

    (void)state;
    run(far_device_ops(&compute_cpu, &bad), &fake_overlaps, &plan, flags, gpu);
    assert_int_equal(gpu->status, PS_EDEVICE);
    assert_string_equal(gpu->err.text, "the model on far: the accelerator reported an error: "
                                       "far: this wait was to fail");
    assert_int_equal(gpu->n_applied, 9); /* what was computed is delivered */
    free(gpu);
}

static int write_log(void **state)
{
    struct synth_options options = { .rows = N_ROWS,
                                     .seed = 5,
                                     .n_numeric = 13,
                                     .n_categorical = 26,
                                     .cardinality = 50,
                                     .zipf = 1,
                                     .positive_rate = 0.25 };
    struct err err = { 0 };

    (void)state;
    snprintf(path, sizeof path, "/tmp/psd-trainer-%d.tsv", (int)getpid());
    must(synth_write(&options, path, &err), &err);
    return 0;
}

static int remove_log(void **state)
{
    (void)state;
    return remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_steps_under_way_push_the_cpus_bits_in_order),
        cmocka_unit_test(in_lock_step_one_step_is_under_way),
        cmocka_unit_test(dense_weights_that_are_not_pulled_are_not_copied),
        cmocka_unit_test(a_worker_declared_dead_drops_what_is_under_way),
        cmocka_unit_test(validations_find_nothing_under_way),
        cmocka_unit_test(a_refused_push_ends_the_run_with_its_sentence),
        cmocka_unit_test(a_device_that_fails_ends_the_run_at_its_step),
    };

    return cmocka_run_group_tests(tests, write_log, remove_log);
}
