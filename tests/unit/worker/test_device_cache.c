/* Training runs with --reuse-clocks whose rows stay on the device: every push has the bits that it has on the CPU, and without;
 * also past validations, past a death, and where only some rows find room. */
#include <stdlib.h>

#include "common/hash.h"
#include "common/memory.h"
#include "tests/support/far_device.h"
#include "tests/support/share.h"
#include "tests/unit/worker/click_log.h"
#include "worker/param_store_stale_cache.h"
#include "worker/trainer.h"

#define N_STEPS (2 * CLICK_LOG_BATCHES)
#define LAG 2u /* steps that the slowest worker is behind, who is nobody here */

static const struct far_device_plan late = { .late = true, .replays = true, .seed = 5 };

/* The tables in this process, as if another worker were some steps behind; notes the pushes, whose gradients are floats (--device-encode off). */
static struct {
    const struct param_store_ops *local;
    struct param_store_ops ops;
    uint64_t n_pushes, hash, fence_push;
} the;

/* What a run ends in. */
struct outcome {
    uint64_t n_pushes, hash;
    double loss_sum;
    struct dlrm_row_counts rows;
    struct ps_stats stats;
};

static void note(const void *bytes, size_t n_bytes)
{
    const uint8_t *at = bytes;

    for (size_t i = 0; i < n_bytes; i++)
        the.hash = the.hash * UINT64_C(0x100000001b3) + at[i];
}

static void the_stats(const struct param_store *s, struct ps_stats *ret)
{
    the.local->stats(s, ret);
    ret->min_clock = ret->pushes > LAG ? ret->pushes - LAG : 0;
}

static int the_push(struct param_store *s, uint64_t clock, uint32_t n_samples, bool tick,
                    const struct ps_push_section *sections, uint32_t n, struct err *err)
{
    if (the.n_pushes == the.fence_push) {
        the.fence_push = UINT64_MAX;
        return err_set(err, PS_EFENCED, "dead");
    }
    the.n_pushes++;
    for (uint32_t i = 0; i < n; i++)
        note(sections[i].keys, sections[i].n_keys * sizeof *sections[i].keys);
    for (uint32_t i = 0; i < 2; i++) /* embedding rows of four floats, and wide weights */
        note(sections[i].values, sections[i].n_keys * (i ? 1 : 4) * sizeof(float));
    return the.local->push(s, clock, n_samples, tick, sections, n, err);
}

static struct param_store *open_store(const struct settings *s, uint64_t fence_push)
{
    struct param_store *local;
    struct err err;

    must(param_store_local_open(&(struct param_store_local_options){ .job = s->job }, &local,
                                &err),
         &err);
    the.local = local->ops;
    the.ops = *local->ops;
    the.ops.stats = the_stats;
    the.ops.push = the_push;
    the.n_pushes = the.hash = 0;
    the.fence_push = fence_push;
    local->ops = &the.ops;
    return param_store_stale_cache_new(
        local, &(struct param_store_stale_cache_options){
                   .max_bytes = 1 << 22, .mode = TABLE_SPEC_MODE_ASYNC, .reuse_clocks = 5 });
}

static void load_settings(struct settings *s, const char *const *more)
{
    click_log_settings(s, more);
    s->workers = 1;  /* all batches are this one's */
    s->local = true; /* as the store is: there are no waits to watch */
}

static struct outcome run(const struct device_ops *ops, uint64_t fence_push,
                          const char *const *more)
{
    struct trainer *t = memory_alloc(sizeof *t);
    struct param_store *store;
    struct outcome end;
    struct settings s;
    struct setup u;
    struct err err = { 0 };

    load_settings(&s, more);
    must(setup_data(&u, &s, true, true, &err), &err);
    must(setup_model_on(&u, ops, &err), &err);
    store = open_store(&s, fence_push);
    *t = (struct trainer){ .s = &s, .u = &u, .store = store };
    must(model_tables_create(&s, u.model, 13, store, &t->tables, &err), &err);
    must(progress_open(&s, &t->progress, &err), &err);
    must(trainer_run(t, &err), &err);
    end = (struct outcome){ the.n_pushes, the.hash, t->state.epoch_loss_sum,
                            t->state.device_rows, t->state.store };
    must(progress_close(t->progress, &err), &err);
    model_tables_free(t->tables);
    setup_deinit(&u);
    store->ops->close(store);
    settings_free(&settings_worker, &s);
    free(t);
    return end;
}

static const struct device_ops *far(void)
{
    return far_device_ops(&device_cpu, &late);
}

static void assert_same(const struct outcome *a, const struct outcome *b)
{
    assert_int_equal(a->n_pushes, N_STEPS);
    assert_int_equal(b->n_pushes, N_STEPS);
    assert_true(a->hash == b->hash && a->loss_sum == b->loss_sum);
}

#define REUSES "--workers", "2", "--reuse-clocks", "5", "--device-encode", "off"
#define VALIDATES REUSES, "--valid", click_log_path, "--eval-every", "7"

static const char *const without[] = { REUSES, "--device-cache", "0", NULL };
static const char *const whole[] = { REUSES, NULL };
static const char *const some[] = { REUSES, "--device-cache", "2K", NULL };
static const char *const validated[] = { VALIDATES, NULL };
static const char *const validated_without[] = { VALIDATES, "--device-cache", "0", NULL };

/* All that the store has kept, within the room that there is. */
static void runs_end_in_the_same_bits_with_and_without_rows_that_stay(void **state)
{
    const struct outcome cpu = run(&device_cpu, UINT64_MAX, whole);
    const struct outcome copies = run(far(), UINT64_MAX, without);
    const struct outcome keeps = run(far(), UINT64_MAX, whole);
    const struct outcome keeps_some = run(far(), UINT64_MAX, some);

    (void)state;
    assert_same(&copies, &cpu);
    assert_same(&keeps, &cpu);
    assert_same(&keeps_some, &cpu);
    assert_int_equal(cpu.rows.n_copied + cpu.rows.n_kept + copies.rows.n_kept, 0);
    assert_int_equal(keeps.rows.n_copied + keeps.rows.n_kept, copies.rows.n_copied);
    print_message("of %llu rows %llu had stayed; where some find room %llu\n",
                  (unsigned long long)copies.rows.n_copied,
                  (unsigned long long)keeps.rows.n_kept,
                  (unsigned long long)keeps_some.rows.n_kept);
    assert_true(3 * keeps.rows.n_kept > keeps.rows.n_copied);
    assert_true(keeps_some.rows.n_kept > 0 && keeps_some.rows.n_kept < keeps.rows.n_kept);
    /* The store's count is of first-order weights too: of every row it is the same. */
    assert_int_equal(2 * keeps.rows.n_kept, keeps.stats.rows_cached);
}

static void validations_between_steps_change_nothing_on_the_device(void **state)
{
    const struct outcome cpu = run(&device_cpu, UINT64_MAX, validated);
    const struct outcome copies = run(far(), UINT64_MAX, validated_without);
    const struct outcome keeps = run(far(), UINT64_MAX, validated);

    (void)state;
    assert_same(&copies, &cpu);
    assert_same(&keeps, &cpu);
    assert_true(3 * keeps.rows.n_kept > keeps.rows.n_copied);
}

/* Its batch is pulled anew: rows that came with the first pull have stayed. */
static void a_worker_declared_dead_goes_on_with_the_same_bits(void **state)
{
    (void)state;
    for (uint64_t fence = 13 * (uint64_t)share_first_of(7); fence < N_STEPS;
         fence += 13 * (uint64_t)share_step_of(7)) {
        const struct outcome cpu = run(&device_cpu, fence, whole);
        const struct outcome keeps = run(far(), fence, whole);

        assert_same(&keeps, &cpu);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_end_in_the_same_bits_with_and_without_rows_that_stay),
        cmocka_unit_test(validations_between_steps_change_nothing_on_the_device),
        cmocka_unit_test(a_worker_declared_dead_goes_on_with_the_same_bits),
    };

    return cmocka_run_group_tests(tests, click_log_write, click_log_remove);
}
