/* The trainer on a device with memory of its own, three steps under way, pushes what it pushes on the CPU:
 * every batch once, in order, the same bits; also past a death, a stop, a validation, a failure. */
#include "tests/support/share.h"
#include "tests/unit/worker/training.h"

#define AHEAD "--ahead", "3"

/* What is pushed on the CPU, and by a device with memory of its own: the same. Owned. */
static struct training *run_both(const struct param_store_ops *store,
                                 const struct fake_plan *plan, const char *const *flags)
{
    struct training *cpu = memory_alloc(sizeof *cpu), *gpu = memory_alloc(sizeof *gpu);

    training_run(&device_cpu, store, plan, flags, cpu);
    training_run(training_far(), store, plan, flags, gpu);
    must(cpu->status, &cpu->err);
    must(gpu->status, &gpu->err);
    training_assert_same(gpu, cpu);
    assert_true(gpu->loss_sum == cpu->loss_sum);
    free(cpu);
    return gpu;
}

static void run_three_ahead(void)
{
    static const char *const flags[] = { AHEAD, NULL };
    const struct fake_plan plan = training_plan(4);
    struct training *gpu = run_both(&fake_overlaps, &plan, flags);

    assert_int_equal(gpu->n_applied, 2 * CLICK_LOG_BATCHES);
    assert_int_equal(gpu->n_samples, 2 * CLICK_LOG_ROWS);
    free(gpu);
}

/* One number in ten is missing. */
static void hats_of_missing_numbers_are_the_cpus(void **state)
{
    static const char *const flags[] = { AHEAD, "--numeric-hats", "3", NULL };
    const struct fake_plan plan = training_plan(4);
    struct training *gpu = run_both(&fake_overlaps, &plan, flags);

    (void)state;
    assert_int_equal(gpu->n_samples, 2 * CLICK_LOG_ROWS);
    free(gpu);
}

/* As many steps are under way as batches are there in time, which the scheduler has a say in: never more than
 * three, and three in one of a hundred runs. */
static void three_steps_under_way_push_the_cpus_bits_in_order(void **state)
{
    (void)state;
    run_three_ahead();
    for (int i = 0; i < 100 && far_device_counts().most_under_way < 3; i++)
        run_three_ahead();
    assert_int_equal(far_device_counts().most_under_way, 3);
}

/* A further buffer set would cost memory and a record, and never be under way beside them. */
static void buffer_sets_are_as_many_as_permits(void **state)
{
    static const char *const flags[] = { "--ahead", "1", NULL };
    const struct fake_plan plan = training_plan(2);

    (void)state;
    free(run_both(&fake_overlaps, &plan, flags));
    assert_int_equal(far_device_counts().n_records, 2);
}

/* Nothing may run ahead: one at a time there too. */
static void in_lock_step_one_step_is_under_way(void **state)
{
    static const char *const flags[] = { NULL };
    const struct fake_plan plan = training_plan(1);

    (void)state;
    free(run_both(&fake_serial, &plan, flags));
    assert_int_equal(far_device_counts().most_under_way, 1);
    assert_int_equal(far_device_counts().n_records, 1); /* in one buffer set */
}

static void all_copies_are_of_memory_that_the_device_gave(void **state)
{
    static const char *const flags[] = { AHEAD,          "--valid", click_log_path,
                                         "--eval-every", "7",       NULL };
    const struct fake_plan plan = training_plan(4);
    struct training *gpu = memory_alloc(sizeof *gpu);

    (void)state;
    training_run(training_far(), &fake_overlaps, &plan, flags, gpu);
    must(gpu->status, &gpu->err);
    assert_int_equal(far_device_counts().n_pageable, 0);
    free(gpu);
}

static void an_epoch_finds_the_memory_of_the_one_before(void **state)
{
    static const char *const one[] = { AHEAD, "--epochs", "1", "--shuffle", "0", NULL },
                             *const four[] = { AHEAD, "--epochs", "4", "--shuffle", "0", NULL };
    const struct fake_plan plan = training_plan(4);
    struct training *gpu = memory_alloc(sizeof *gpu);
    uint64_t n_allocs;

    (void)state;
    training_run(training_far(), &fake_overlaps, &plan, one, gpu);
    must(gpu->status, &gpu->err);
    n_allocs = far_device_counts().n_host_allocs;
    training_run(training_far(), &fake_overlaps, &plan, four, gpu);
    must(gpu->status, &gpu->err);
    assert_int_equal(gpu->n_applied, 4 * CLICK_LOG_BATCHES);
    assert_int_equal(far_device_counts().n_host_allocs, n_allocs);
    free(gpu);
}

static void dense_weights_that_are_not_pulled_are_not_copied(void **state)
{
    static const char *const flags[] = { AHEAD, "--dense-refresh", "8", NULL };
    const struct fake_plan plan = training_plan(4);
    struct training *gpu = memory_alloc(sizeof *gpu);
    uint64_t n_all, n_few;

    (void)state;
    training_run(training_far(), &fake_overlaps, &plan, (const char *const[]){ AHEAD, NULL },
                 gpu);
    n_all = far_device_counts().n_uploads;
    free(run_both(&fake_overlaps, &plan, flags));
    n_few = far_device_counts().n_uploads;
    assert_true(n_few < n_all - CLICK_LOG_BATCHES / 2);
    free(gpu);
}

static void a_worker_declared_dead_drops_what_is_under_way(void **state)
{
    static const char *const flags[] = { AHEAD, NULL };
    struct training *cpu = memory_alloc(sizeof *cpu), *gpu = memory_alloc(sizeof *gpu);
    struct fake_plan plan = training_plan(4);

    (void)state;
    training_run(&device_cpu, &fake_overlaps, &plan, flags, cpu);
    /* Pulls and pushes in turn: in odd steps. */
    for (uint64_t n = (uint64_t)share_first_of(24); n < 24;
         n += (uint64_t)share_step_of(24) | 1) {
        plan = training_plan(4);
        plan.seed = n;
        if (n % 2)
            plan.fence_pull = hash_mix2(n, 1) % (2 * CLICK_LOG_BATCHES);
        else
            plan.fence_push = hash_mix2(n, 1) % (2 * CLICK_LOG_BATCHES);
        training_run(training_far(), &fake_overlaps, &plan, flags, gpu);
        must(gpu->status, &gpu->err);
        assert_int_equal(gpu->n_fences, 1);
        training_assert_same(gpu, cpu);
    }
    free(cpu), free(gpu);
}

static void validations_find_nothing_under_way(void **state)
{
    static const char *const flags[] = { AHEAD,          "--valid", click_log_path,
                                         "--eval-every", "7",       NULL };
    const struct fake_plan plan = training_plan(4);

    (void)state;
    free(run_both(&fake_overlaps, &plan, flags));
}

static void a_refused_push_ends_the_run_with_its_sentence(void **state)
{
    static const char *const flags[] = { AHEAD, NULL };
    struct training *gpu = memory_alloc(sizeof *gpu);
    struct fake_plan plan = training_plan(4);

    (void)state;
    plan.refuse_push = 11;
    training_run(training_far(), &fake_overlaps, &plan, flags, gpu);
    assert_int_equal(gpu->status, PS_ENAN);
    assert_int_equal(gpu->n_applied, 11);
    free(gpu);
}

static void a_device_that_fails_ends_the_run_at_its_step(void **state)
{
    static const char *const flags[] = { AHEAD, NULL };
    static const struct far_device_plan bad = { .late = true, .replays = true, .bad_wait = 10 };
    struct training *gpu = memory_alloc(sizeof *gpu);
    const struct fake_plan plan = training_plan(4);

    (void)state;
    training_run(far_device_ops(&device_cpu, &bad), &fake_overlaps, &plan, flags, gpu);
    assert_int_equal(gpu->status, PS_EDEVICE);
    assert_string_equal(gpu->err.text, "the model on far: the accelerator reported an error: "
                                       "far: this wait was to fail");
    assert_int_equal(gpu->n_applied, 9); /* what was computed is delivered */
    free(gpu);
}

/* A device that has no more memory once the model's four layers are made. */
static struct {
    const struct device_ops *far;
    struct device_ops ops;
    uint32_t n_layers;
} small;

static int small_reserve(struct compute *c, uint32_t n_max, uint32_t in, uint32_t out)
{
    small.n_layers++;
    return small.far->reserve(c, n_max, in, out);
}

static void *small_memory(struct compute *c, size_t n_bytes)
{
    return small.n_layers < 4 ? small.far->memory_alloc(c, n_bytes) : NULL;
}

static void a_device_without_memory_for_a_step_ends_the_run_with_advice(void **state)
{
    static const char *const flags[] = { AHEAD, NULL };
    struct training *gpu = memory_alloc(sizeof *gpu);
    const struct fake_plan plan = training_plan(4);

    (void)state;
    small.far = training_far();
    small.ops = *small.far;
    small.ops.reserve = small_reserve;
    small.ops.memory_alloc = small_memory;
    training_run(&small.ops, &fake_overlaps, &plan, flags, gpu);
    assert_int_equal(small.n_layers, 4);
    assert_int_equal(gpu->status, -ENOMEM);
    assert_non_null(strstr(gpu->err.text, "the model on far: "));
    assert_non_null(strstr(gpu->err.text, "; a smaller --batch, --device-cache or "));
    assert_int_equal(gpu->n_applied, 0);
    free(gpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(three_steps_under_way_push_the_cpus_bits_in_order),
        cmocka_unit_test(hats_of_missing_numbers_are_the_cpus),
        cmocka_unit_test(buffer_sets_are_as_many_as_permits),
        cmocka_unit_test(in_lock_step_one_step_is_under_way),
        cmocka_unit_test(all_copies_are_of_memory_that_the_device_gave),
        cmocka_unit_test(an_epoch_finds_the_memory_of_the_one_before),
        cmocka_unit_test(dense_weights_that_are_not_pulled_are_not_copied),
        cmocka_unit_test(a_worker_declared_dead_drops_what_is_under_way),
        cmocka_unit_test(validations_find_nothing_under_way),
        cmocka_unit_test(a_refused_push_ends_the_run_with_its_sentence),
        cmocka_unit_test(a_device_that_fails_ends_the_run_at_its_step),
        cmocka_unit_test(a_device_without_memory_for_a_step_ends_the_run_with_advice),
    };

    return cmocka_run_group_tests(tests, click_log_write, click_log_remove);
}
