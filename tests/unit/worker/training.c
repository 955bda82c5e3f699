#include "tests/unit/worker/training.h"

void training_run(const struct device_ops *ops, const struct param_store_ops *store,
                  const struct fake_plan *plan, const char *const *more, struct training *ret)
{
    const bool is_killed = ret->is_killed;
    struct fake *fake = memory_alloc(sizeof *fake);
    struct trainer *t = memory_alloc(sizeof *t);
    struct stop_signal *stop = NULL;
    struct settings s;
    struct setup u;

    *ret = (struct training){ .is_killed = is_killed };
    fake_init(fake, store, plan);
    click_log_settings(&s, more);
    must(setup_data(&u, &s, true, true, &ret->err), &ret->err);
    schema_keep_missing(u.schema, settings_n_hats(&s) > 0);
    must(setup_model_on(&u, ops, &ret->err), &ret->err);
    *t = (struct trainer){ .s = &s, .u = &u, .store = &fake->store };
    must(model_tables_create(&s, u.model, 13, &fake->store, &t->tables, &ret->err), &ret->err);
    must(progress_open(&s, &t->progress, &ret->err), &ret->err);
    if (plan->stop_after) {
        t->stop = fake->stop = stop = stop_signal_start();
        stop_signal_grace(stop);
    }
    ret->status = trainer_run(t, &ret->err);
    stop_signal_close(stop);
    model_tables_stats(t->tables, &ret->stats);
    if (!is_killed)
        ret->end_status = model_tables_end(t->tables, &ret->late);
    ret->n_applied = fake->n_applied;
    ret->n_fences = fake->n_fences;
    ret->n_samples = t->state.samples;
    ret->loss_sum = t->state.epoch_loss_sum;
    memcpy(ret->bytes_of, fake->bytes_of, sizeof ret->bytes_of);
    must(progress_close(t->progress, &ret->err), &ret->err);
    model_tables_free(t->tables);
    setup_deinit(&u);
    settings_free(&settings_worker, &s);
    fake_deinit(fake);
    free(fake);
    free(t);
}

struct fake_plan training_plan(uint32_t n_permits)
{
    struct fake_plan plan = fake_plan_of(n_permits, n_permits);

    plan.still = plan.encodes = true;
    plan.delay_max_us = 50;
    return plan;
}

void training_assert_same(const struct training *a, const struct training *b)
{
    assert_int_equal(a->n_applied, b->n_applied);
    for (uint64_t i = 0; i < a->n_applied; i++)
        if (a->bytes_of[i] != b->bytes_of[i])
            fail_msg("push %llu differs from the CPU's", (unsigned long long)i);
}
