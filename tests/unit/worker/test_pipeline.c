/* Step buffers, permits and failures of the pipeline, on a store that counts. */
#include "tests/unit/worker/fake_store.h"

#include <stdlib.h>

#include "common/memory.h"
#include "tests/unit/worker/click_log.h"
#include "worker/codec_policy.h"
#include "worker/pipeline.h"
#include "worker/setup.h"

#define N_BATCHES CLICK_LOG_BATCHES
#define N_SEEDS 12u

/* One or several pulls at a time. */
static const struct param_store_ops *overlapping(uint64_t seed)
{
    return hash_mix(seed) % 2 ? &fake_overlaps : &fake_pulls;
}

/* What a plain reader gets from the log. */
static uint64_t keys_of[N_BATCHES];

struct rig {
    struct fake fake;
    struct settings settings;
    struct setup setup;
    struct model_tables *tables;
    struct pipeline *pipeline;
    struct data_loader *loader;
    uint64_t clock, n_restarts, n_done;
};

static void load_settings(struct settings *s, const char *push_codec)
{
    click_log_settings(s, (const char *const[]){ "--ahead", "9", "--push-codec", push_codec,
                                                 "--device", "cpu", NULL });
}

static void open_feed(struct rig *r, uint64_t n_allowed)
{
    struct err err = { 0 };

    must(setup_loader(&r->setup, true, 0, 0, &r->loader, &err), &err);
    must(pipeline_begin(r->pipeline, r->loader, r->clock, n_allowed, &err), &err);
}

static void set_up_with(struct rig *r, const struct param_store_ops *ops,
                        const struct fake_plan *plan, uint64_t n_allowed,
                        const char *push_codec)
{
    struct err err = { 0 };

    memset(r, 0, sizeof *r);
    fake_init(&r->fake, ops, plan);
    load_settings(&r->settings, push_codec);
    must(setup_data(&r->setup, &r->settings, true, true, &err), &err);
    must(setup_model(&r->setup, &err), &err);
    must(
        model_tables_create(&r->settings, r->setup.model, 13, &r->fake.store, &r->tables, &err),
        &err);
    must(pipeline_new(r->tables, &r->fake.store, NULL, plan->n_permits, &r->pipeline, &err),
         &err);
    open_feed(r, n_allowed);
}

static void set_up(struct rig *r, const struct param_store_ops *ops,
                   const struct fake_plan *plan, uint64_t n_allowed)
{
    set_up_with(r, ops, plan, n_allowed, "fp32");
}

static void tear_down(struct rig *r)
{
    data_loader_close(r->loader);
    pipeline_free(r->pipeline);
    model_tables_free(r->tables);
    setup_deinit(&r->setup);
    settings_free(&settings_worker, &r->settings);
    fake_deinit(&r->fake);
}

static void restart(struct rig *r)
{
    const uint64_t clock = pipeline_restart(r->pipeline);

    r->n_restarts++;
    assert_int_equal(clock, fake_now(&r->fake));
}

/* One batch: 1, none left: 0, a failure: its status. */
static int step(struct rig *r, struct err *err)
{
    struct step_buffers *buffers;
    int status = pipeline_next(r->pipeline, &buffers, err);

    if (status || !buffers)
        return status;
    if (!(buffers->clock - r->fake.n_missed - (uint64_t)buffers->rows[0] <
          r->fake.plan.n_permits))
        fail_msg("seed %llu: step %llu has rows of step %g",
                 (unsigned long long)r->fake.plan.seed, (unsigned long long)buffers->clock,
                 (double)buffers->rows[0]);
    assert_true(buffers->dense[0] == buffers->rows[0] && buffers->wide[0] == buffers->rows[0]);
    model_tables_use(r->tables, buffers);
    assert_ptr_equal(dlrm_tensor(r->setup.model, 0)->values, buffers->dense);
    status = pipeline_done(r->pipeline, err);
    return status ? status : 1;
}

/* All that there is, whatever happens on the way to PS_EFENCED. */
static int run_all(struct rig *r, struct err *err)
{
    int status;

    while ((status = step(r, err)) == 1 || status == PS_EFENCED)
        if (status == PS_EFENCED)
            restart(r);
    return status;
}

static void assert_all_pushed_once(struct rig *r, uint64_t n)
{
    struct pipeline_totals totals;

    assert_int_equal(r->fake.n_applied, n);
    for (uint64_t i = 0; i < n; i++)
        assert_true(r->fake.keys_of[i] == keys_of[i]);
    pipeline_totals(r->pipeline, &totals);
    assert_int_equal(totals.steps, n);
    assert_int_equal(totals.samples, n * CLICK_LOG_BATCH);
    assert_int_equal(pipeline_clock(r->pipeline), fake_now(&r->fake));
}

/* All that there is, however often this worker is declared dead. */
static void finish(struct rig *r)
{
    struct err err = { 0 };

    must(run_all(r, &err), &err);
    must(pipeline_end(r->pipeline, &err), &err);
    assert_all_pushed_once(r, N_BATCHES);
}

static void assert_died_once(const struct rig *r)
{
    assert_int_equal(r->fake.n_fences, 1);
    assert_int_equal(r->n_restarts, 1);
}

static void every_batch_is_pushed_once_in_order_and_permits_are_never_exceeded(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
        struct fake_plan plan = fake_plan_of(seed, 1 + (uint32_t)seed % 4);
        struct rig r;

        set_up(&r, overlapping(seed), &plan, UINT64_MAX);
        finish(&r);
        tear_down(&r);
    }
}

static void while_one_batch_computes_all_other_permits_are_fetched(void **state)
{
    struct err err = { 0 };
    struct step_buffers *buffers;
    struct rig r;

    (void)state;
    for (uint32_t n_permits = 2; n_permits <= 4; n_permits++) {
        struct fake_plan plan = fake_plan_of(n_permits, n_permits);

        set_up(&r, overlapping(n_permits), &plan, UINT64_MAX);
        must(pipeline_next(r.pipeline, &buffers, &err), &err);
        assert_true(fake_wait_pull(&r.fake, n_permits - 1));
        must(pipeline_done(r.pipeline, &err), &err);
        finish(&r);
        assert_int_equal(r.fake.max_ahead, n_permits - 1);
        tear_down(&r);
    }
}

/* Takes all that is ready, up to 3 at a time, and is done with the oldest: 1, 0 or a status as step(). */
static int step_of_many(struct rig *r, uint64_t *n_taken, struct err *err)
{
    struct step_buffers *buffers = NULL;
    int status = 0;

    if (*n_taken == 0)
        status = pipeline_next(r->pipeline, &buffers, err);
    else
        buffers = pipeline_ready(r->pipeline);
    for (; buffers; buffers = *n_taken < 3 ? pipeline_ready(r->pipeline) : NULL) {
        assert_int_equal(buffers->clock, r->n_done + *n_taken);
        (*n_taken)++;
        if (buffers->clock == 0)
            assert_true(fake_wait_pull(&r->fake, 3)); /* 1 and 2 are there */
    }
    if (status || !*n_taken)
        return status;
    assert_true(r->n_done || *n_taken == 3);
    (*n_taken)--;
    r->n_done++;
    status = pipeline_done(r->pipeline, err);
    return status ? status : 1;
}

/* The pulls of three batches wait for each other here: a store that could not do them at once would hang. */
static void pulls_of_several_batches_are_under_way_at_once(void **state)
{
    struct fake_plan plan = fake_plan_of(11, 4);
    struct rig r;

    (void)state;
    plan.hold_until_pulling = 3;
    set_up(&r, &fake_pulls, &plan, UINT64_MAX);
    finish(&r);
    assert_int_equal(r.fake.most_pulling, 3);
    tear_down(&r);
}

static void several_batches_may_be_taken_before_the_first_is_done(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
        struct fake_plan plan = fake_plan_of(seed, 4);
        struct err err = { 0 };
        uint64_t n_taken = 0;
        struct rig r;
        int status;

        plan.fence_push = seed % 2 ? 1 + hash_mix2(seed, 3) % (N_BATCHES - 1) : FAKE_NEVER;
        set_up(&r, &fake_overlaps, &plan, UINT64_MAX);
        while ((status = step_of_many(&r, &n_taken, &err)) == 1 || status == PS_EFENCED)
            if (status == PS_EFENCED) {
                restart(&r);
                r.n_done = r.fake.n_applied;
                n_taken = 0;
            }
        must(status, &err);
        must(pipeline_end(r.pipeline, &err), &err);
        assert_int_equal(r.n_restarts, seed % 2);
        assert_all_pushed_once(&r, N_BATCHES);
        tear_down(&r);
    }
}

static void a_worker_declared_dead_does_what_was_under_way_anew(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 4 * N_SEEDS; seed++) {
        struct fake_plan plan = fake_plan_of(seed, 1 + (uint32_t)seed % 4);
        uint64_t n = hash_mix2(seed, 7) % N_BATCHES;
        struct rig r;

        if (seed % 2)
            plan.fence_pull = n;
        else
            plan.fence_push = n;
        set_up(&r, seed % 3 ? overlapping(seed) : &fake_serial, &plan, UINT64_MAX);
        finish(&r);
        assert_died_once(&r);
        tear_down(&r);
    }
}

/* Else its pulls would be of clocks that are long past, and its pushes steps that the others have finished without it. */
static void a_worker_declared_dead_goes_on_at_the_clock_of_the_others(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 2 * N_SEEDS; seed++) {
        struct fake_plan plan = fake_plan_of(seed, 1 + (uint32_t)seed % 4);
        struct rig r;

        plan.n_missed = 1 + hash_mix2(seed, 8) % 9;
        plan.fence_push = hash_mix2(seed, 7) % N_BATCHES;
        set_up(&r, seed % 3 ? overlapping(seed) : &fake_serial, &plan, UINT64_MAX);
        finish(&r);
        assert_died_once(&r);
        assert_int_equal(pipeline_clock(r.pipeline), N_BATCHES + plan.n_missed);
        tear_down(&r);
    }
}

/* Pushes that are timed are flushed: one flush before, one behind each. */
static void
a_push_that_was_handed_over_is_not_repeated_if_its_wait_reports_a_death(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 2 * CODEC_POLICY_FIRST; n++) {
        struct fake_plan plan = fake_plan_of(n, 1 + (uint32_t)n % 3);
        struct rig r;

        plan.fence_flush = n;
        set_up_with(&r, overlapping(n), &plan, UINT64_MAX, "auto");
        finish(&r);
        assert_died_once(&r);
        tear_down(&r);
    }
}

static void a_stop_delivers_what_was_computed_and_nothing_else(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
        struct fake_plan plan = fake_plan_of(seed, 3);
        uint64_t n = hash_mix2(seed, 9) % (N_BATCHES - 4), i;
        struct err err = { 0 };
        struct rig r;

        plan.hold_pull = seed % 2 ? n + 1 : FAKE_NEVER; /* the fetch thread is in there */
        set_up(&r, overlapping(seed), &plan, UINT64_MAX);
        for (i = 0; i < n; i++)
            assert_int_equal(step(&r, &err), 1);
        must(pipeline_end(r.pipeline, &err), &err);
        assert_all_pushed_once(&r, n);
        tear_down(&r);
    }
}

static void a_refused_push_ends_the_run_with_its_sentence(void **state)
{
    (void)state;
    for (uint32_t n_permits = 1; n_permits <= 3; n_permits++) {
        struct fake_plan plan = fake_plan_of(n_permits, n_permits);
        struct err err = { 0 }, late = { 0 };
        struct rig r;

        plan.refuse_push = 5;
        set_up(&r, overlapping(n_permits), &plan, UINT64_MAX);
        assert_int_equal(run_all(&r, &err), PS_ENAN);
        assert_string_equal(err.text, "the fake refuses this push");
        assert_true(pipeline_end(r.pipeline, &late) == (n_permits > 1 ? PS_ENAN : 0));
        assert_int_equal(r.fake.n_applied, 5);
        assert_int_equal(r.fake.n_pushes, 6); /* nothing after it */
        tear_down(&r);
    }
}

static void no_more_is_fetched_than_was_allowed(void **state)
{
    (void)state;
    for (uint32_t n_permits = 1; n_permits <= 3; n_permits++) {
        struct fake_plan plan = fake_plan_of(n_permits, n_permits);
        struct err err = { 0 };
        struct rig r;

        set_up(&r, n_permits > 1 ? overlapping(n_permits) : &fake_serial, &plan, 0);
        assert_int_equal(step(&r, &err), 0);
        for (uint64_t n = 7; n < N_BATCHES; n += 7) {
            pipeline_allow(r.pipeline, 7);
            must(run_all(&r, &err), &err);
            assert_int_equal(r.fake.n_pulls, n);
            assert_all_pushed_once(&r, n); /* all of them: a validation sees them */
        }
        must(pipeline_end(r.pipeline, &err), &err);
        tear_down(&r);
    }
}

static void a_store_whose_calls_must_not_overlap_hears_of_the_next_batch(void **state)
{
    struct fake_plan plan = fake_plan_of(1, 1);
    struct err err = { 0 };
    struct step_buffers *buffers;
    uint64_t i = 0, n_aheads = 0;
    struct rig r;

    (void)state;
    set_up(&r, &fake_serial, &plan, UINT64_MAX);
    while (pipeline_next(r.pipeline, &buffers, &err) == 0 && buffers) {
        assert_true(pthread_equal(r.fake.pull_thread, pthread_self()));
        assert_true(buffers->rows[0] == (float)i); /* exact: the pushes of all before */
        i++;
        if (r.fake.n_aheads > n_aheads) /* else it was not read in time */
            assert_true(r.fake.n_ahead_keys == keys_of[i]);
        n_aheads = r.fake.n_aheads;
        must(pipeline_done(r.pipeline, &err), &err);
    }
    must(pipeline_end(r.pipeline, &err), &err);
    assert_true(r.fake.n_aheads > 0 && r.fake.n_aheads < N_BATCHES);
    assert_all_pushed_once(&r, N_BATCHES);
    tear_down(&r);
}

static void a_second_epoch_goes_on_at_the_clock_of_the_first(void **state)
{
    struct fake_plan plan = fake_plan_of(3, 3);
    struct pipeline_totals totals;
    struct err err = { 0 };
    struct rig r;

    (void)state;
    set_up(&r, overlapping(0), &plan, UINT64_MAX);
    finish(&r);
    data_loader_close(r.loader);
    r.clock = pipeline_clock(r.pipeline);
    open_feed(&r, UINT64_MAX);
    must(run_all(&r, &err), &err);
    must(pipeline_end(r.pipeline, &err), &err);
    pipeline_totals(r.pipeline, &totals);
    assert_int_equal(totals.steps, 2 * N_BATCHES);
    assert_int_equal(pipeline_clock(r.pipeline), 2 * N_BATCHES);
    tear_down(&r);
}

#ifdef PS_FAULTS
static void the_kth_failed_allocation_is_a_sentence_and_nothing_is_lost(void **state)
{
    int status = -1;

    (void)state;
    for (long k = 0; status; k++) {
        struct fake_plan plan = fake_plan_of(0, 1);
        struct pipeline *second = NULL;
        struct err err = { 0 };
        struct rig r;

        set_up(&r, &fake_serial, &plan, UINT64_MAX);
        memory_fail_after(k);
        status = pipeline_new(r.tables, &r.fake.store, NULL, 1, &second, &err);
        if (!status)
            status = run_all(&r, &err);
        memory_fail_after(-1);
        assert_true(status == 0 || (status == -ENOMEM && strstr(err.text, "no memory")));
        pipeline_free(second);
        finish(&r); /* memory is back: on from where it was */
        tear_down(&r);
        assert_true(k < 100);
    }
}
#endif

static int write_and_read_log(void **state)
{
    struct settings s;
    struct err err = { 0 };
    struct batch *batch;
    struct setup u;
    struct data_loader *f;

    click_log_write(state);
    load_settings(&s, "fp32");
    must(setup_data(&u, &s, true, true, &err), &err);
    must(setup_loader(&u, true, 0, 0, &f, &err), &err);
    for (uint32_t i = 0; data_loader_next(f, &batch, &err) == 0 && batch; i++)
        keys_of[i] = fake_hash(batch->unique, batch->n_unique);
    data_loader_close(f);
    setup_deinit(&u);
    settings_free(&settings_worker, &s);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_batch_is_pushed_once_in_order_and_permits_are_never_exceeded),
        cmocka_unit_test(while_one_batch_computes_all_other_permits_are_fetched),
        cmocka_unit_test(pulls_of_several_batches_are_under_way_at_once),
        cmocka_unit_test(several_batches_may_be_taken_before_the_first_is_done),
        cmocka_unit_test(a_worker_declared_dead_does_what_was_under_way_anew),
        cmocka_unit_test(a_worker_declared_dead_goes_on_at_the_clock_of_the_others),
        cmocka_unit_test(
            a_push_that_was_handed_over_is_not_repeated_if_its_wait_reports_a_death),
        cmocka_unit_test(a_stop_delivers_what_was_computed_and_nothing_else),
        cmocka_unit_test(a_refused_push_ends_the_run_with_its_sentence),
        cmocka_unit_test(no_more_is_fetched_than_was_allowed),
        cmocka_unit_test(a_store_whose_calls_must_not_overlap_hears_of_the_next_batch),
        cmocka_unit_test(a_second_epoch_goes_on_at_the_clock_of_the_first),
#ifdef PS_FAULTS
        cmocka_unit_test(the_kth_failed_allocation_is_a_sentence_and_nothing_is_lost),
#endif
    };

    return cmocka_run_group_tests(tests, write_and_read_log, click_log_remove);
}
