/* What a push that is timed says about the link, on a store that counts. */
#include "tests/unit/worker/fake_store.h"

#include "worker/sync_policy.h"

#define N_ROWS 2000u
#define DIM 16u

static void load_settings(struct settings *s)
{
    static const char *const flags[] = {
        "--data", "none", "--dim", "16", "--push-codec", "auto"
    };
    enum settings_action action;
    struct err err = { 0 };

    memset(s, 0, sizeof *s);
    assert_int_equal(settings_load(&settings_worker, (int)COUNT_OF(flags),
                                   (char **)(uintptr_t)flags, 0, s, &action, &err),
                     0);
}

/* The codec of the rows' pushes that a link of so many ns a byte ends in. */
static enum codec_id chosen(uint64_t link_ns_per_byte, uint64_t n_between)
{
    const struct fake_plan plan = { .n_permits = 1,
                                    .fence_pull = FAKE_NEVER,
                                    .fence_push = FAKE_NEVER,
                                    .fence_flush = FAKE_NEVER,
                                    .refuse_push = FAKE_NEVER,
                                    .hold_pull = FAKE_NEVER,
                                    .link_ns_per_byte = link_ns_per_byte,
                                    .n_between = n_between };
    static uint64_t keys[N_ROWS];
    static float values[N_ROWS * DIM];
    struct batch batch = { .n = 128, .n_unique = N_ROWS };
    struct step_buffers step = { .batch = &batch, .compute_ns = 4000000 };
    struct table_spec spec = { .dim = DIM };
    struct ps_push_section *section = step.sections;
    struct err err = { 0 };
    enum codec_id codec;
    struct settings s;
    struct sync_policy *w;
    struct fake f;

    for (uint32_t i = 0; i < N_ROWS; i++)
        keys[i] = i;
    *section = (struct ps_push_section){ .n_keys = N_ROWS, .keys = keys, .values = values };
    step.n_sections = 1;
    load_settings(&s);
    fake_init(&f, &fake_overlaps, &plan);
    assert_int_equal(f.store.ops->table(&f.store, &spec, &section->table, &err), 0);
    assert_int_equal(sync_policy_new(&s, &f.store, 0, false, true, &w, &err), 0);
    for (; step.clock < CODEC_POLICY_FIRST; step.clock++) {
        sync_policy_plan(w, &step.plan);
        section->codec = step.plan.codecs[CODEC_POLICY_ROWS_PUSH];
        assert_int_equal(section->codec, step.clock % 2 ? CODEC_INT8 : CODEC_FP32);
        assert_int_equal(sync_policy_push(w, &step, &err), 0);
    }
    codec = sync_policy_codec(w, CODEC_POLICY_ROWS_PUSH);
    sync_policy_free(w);
    settings_free(&settings_worker, &s);
    fake_deinit(&f);
    return codec;
}

static void requests_that_leave_meanwhile_are_not_taken_for_bytes_of_the_push(void **state)
{
    (void)state;
    assert_int_equal(chosen(500, 0), CODEC_ONEBIT); /* 16 Mbit/s */
    assert_int_equal(chosen(500, 1000000), CODEC_ONEBIT);
    assert_int_equal(chosen(0, 1000000), CODEC_FP32);
}

static void dense_tables_that_are_used_again_are_as_stale_as_their_pull(void **state)
{
    static struct settings settings = { .dense_refresh = "4",
                                        .dense_mode = TABLE_SPEC_MODE_ASYNC };
    const struct fake_plan plan = { .n_permits = 1 };
    struct ps_stats stats;
    struct err err;
    struct sync_policy *w;
    struct fake f;

    (void)state;
    fake_init(&f, &fake_overlaps, &plan);
    assert_int_equal(sync_policy_new(&settings, &f.store, 0, false, true, &w, &err), 0);
    for (uint64_t clock = 0; clock < 4; clock++) {
        bool wants = sync_policy_wants_dense(w, clock);

        assert_int_equal(wants, clock == 0);
        sync_policy_pulled(w, clock, wants);
        sync_policy_stats(w, &stats);
        assert_int_equal(stats.staleness_max, clock);
    }
    assert_true(sync_policy_wants_dense(w, 4));
    sync_policy_free(w);
    fake_deinit(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_tables_that_are_used_again_are_as_stale_as_their_pull),
        cmocka_unit_test(requests_that_leave_meanwhile_are_not_taken_for_bytes_of_the_push),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
