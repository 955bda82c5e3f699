/* Which codecs are chosen for which link, with measurements that the test makes up. */
#include "worker/codec_policy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "proto/codec_catalog.h"

#define MBIT 125e3 /* bytes a second */

/* Criteo's DLRM at batch 128: 2000 rows of 16, 465 blocks of 1024. */
static struct codec_policy_input criteo(double bytes_per_s, double compute_s)
{
    struct codec_policy_input in = { .rtt_s = 200e-6,
                                     .bytes_per_s = bytes_per_s,
                                     .compute_s = compute_s,
                                     .key_bytes = 28000,
                                     .refresh_max = 1,
                                     .encode_s = { [CODEC_FP32] = 0.1e-9,
                                                   [CODEC_BF16] = 0.2e-9,
                                                   [CODEC_FP16] = 0.2e-9,
                                                   [CODEC_INT8] = 0.3e-9,
                                                   [CODEC_ONEBIT] = 0.6e-9,
                                                   [CODEC_TOPK] = 2e-9 } };

    for (int i = 0; i < CODEC_POLICY_DIRECTIONS; i++)
        in.rows[i] =
            (struct codec_policy_rows){ .is_free = true, .dim = 16, .k = 1, .n_rows = 2000 };
    in.rows[CODEC_POLICY_WIDE_PUSH].n_rows = in.rows[CODEC_POLICY_WIDE_PULL].n_rows = 0;
    for (int i = CODEC_POLICY_DENSE_PUSH; i <= CODEC_POLICY_DENSE_PULL; i++) {
        in.rows[i].dim = 1024;
        in.rows[i].n_rows = 465;
        in.rows[i].k = 10;
    }
    return in;
}

static void a_fast_link_keeps_fp32_and_a_slow_one_goes_down_to_one_bit(void **state)
{
    struct codec_policy_input in = criteo(100e3 * MBIT, 4e-3);
    struct codec_policy_choice c;

    (void)state;
    codec_policy_choose(&in, &c);
    for (int i = 0; i < CODEC_POLICY_DIRECTIONS; i++)
        assert_int_equal(c.codecs[i], CODEC_FP32);
    assert_int_equal(c.refresh, 1);
    in = criteo(100 * MBIT, 4e-3);
    codec_policy_choose(&in, &c);
    assert_int_equal(c.codecs[CODEC_POLICY_ROWS_PUSH], CODEC_ONEBIT);
    assert_int_equal(c.codecs[CODEC_POLICY_DENSE_PUSH], CODEC_TOPK);
    assert_int_equal(c.codecs[CODEC_POLICY_ROWS_PULL], CODEC_INT8);
    assert_int_equal(c.codecs[CODEC_POLICY_DENSE_PULL], CODEC_INT8);
}

static void layers_are_sent_by_the_codec_before_topk(void **state)
{
    struct codec_policy_input in = criteo(100 * MBIT, 4e-3);
    struct codec_policy_choice c;

    (void)state;
    in.rows[CODEC_POLICY_DENSE_PUSH].is_layers = true;
    codec_policy_choose(&in, &c);
    assert_int_equal(c.codecs[CODEC_POLICY_DENSE_PUSH], CODEC_INT8);
}

/* Lossiness by itself is worth nothing: where compute hides the wire, or is much longer. */
static void what_would_not_make_the_step_shorter_is_not_lost(void **state)
{
    struct codec_policy_input in = criteo(1000 * MBIT, 40e-3);
    struct codec_policy_choice c;

    (void)state;
    in.overlaps = true; /* 31 ms of wire under 40 ms of compute */
    codec_policy_choose(&in, &c);
    for (int i = 0; i < CODEC_POLICY_DIRECTIONS; i++)
        assert_int_equal(c.codecs[i], CODEC_FP32);
    in.compute_s = 20e-3;
    codec_policy_choose(&in, &c);
    assert_int_not_equal(c.codecs[CODEC_POLICY_DENSE_PUSH], CODEC_FP32);
    assert_int_not_equal(c.codecs[CODEC_POLICY_DENSE_PUSH], CODEC_TOPK);
    in = criteo(100 * MBIT, 4e-3);
    in.rows[CODEC_POLICY_ROWS_PUSH].n_rows = in.rows[CODEC_POLICY_ROWS_PULL].n_rows = 3;
    codec_policy_choose(&in, &c);
    assert_int_equal(c.codecs[CODEC_POLICY_ROWS_PUSH], CODEC_FP32);
    assert_int_equal(c.codecs[CODEC_POLICY_ROWS_PULL], CODEC_FP32);
    assert_int_equal(c.codecs[CODEC_POLICY_DENSE_PUSH], CODEC_TOPK);
}

static void what_the_settings_say_stays(void **state)
{
    struct codec_policy_input in = criteo(10 * MBIT, 4e-3);
    struct codec_policy_choice c;

    (void)state;
    in.rows[CODEC_POLICY_DENSE_PUSH].is_free = false;
    in.rows[CODEC_POLICY_DENSE_PUSH].codec = CODEC_BF16;
    in.rows[CODEC_POLICY_ROWS_PULL].is_free = false;
    codec_policy_choose(&in, &c);
    assert_int_equal(c.codecs[CODEC_POLICY_DENSE_PUSH], CODEC_BF16);
    assert_int_equal(c.codecs[CODEC_POLICY_ROWS_PULL], CODEC_FP32);
    assert_int_not_equal(c.codecs[CODEC_POLICY_ROWS_PUSH], CODEC_FP32);
    assert_int_equal(c.codecs[CODEC_POLICY_DENSE_PULL], CODEC_INT8);
}

static void dense_tables_are_pulled_less_often_only_where_it_pays(void **state)
{
    struct codec_policy_input in = criteo(10 * MBIT, 4e-3);
    struct codec_policy_choice c;

    (void)state;
    in.refresh_max = 5;
    codec_policy_choose(&in, &c);
    assert_in_range(c.refresh, 4, 5);
    in = criteo(100e3 * MBIT, 40e-3);
    in.refresh_max = 5;
    codec_policy_choose(&in, &c);
    assert_int_equal(c.refresh, 1);
}

/* Random links and sizes: never slower than fp32 throughout, nor than the best level by more
 * than the slack; and what was just chosen stays. */
static void a_choice_is_never_slower_than_fp32_and_is_stable(void **state)
{
    uint64_t seed = 20261121;

    (void)state;
    printf("seed %llu\n", (unsigned long long)seed);
    for (uint32_t i = 0; i < 5000; i++) {
        double link = MBIT * (double)(1u << hash_mix2(seed, i) % 18);
        struct codec_policy_input in =
            criteo(link, 1e-4 * (double)(hash_mix2(seed, i + 1) % 1000));
        struct codec_policy_choice plain = { .refresh = 1 }, c, again;

        in.overlaps = hash_mix2(seed, i) >> 63;
        in.refresh_max = 1 + (uint32_t)(hash_mix2(seed, i + 2) % 6);
        in.rows[CODEC_POLICY_ROWS_PUSH].n_rows = (double)(hash_mix2(seed, i + 3) % 30000);
        codec_policy_choose(&in, &c);
        assert_true(codec_policy_step_s(&in, &c) <=
                    codec_policy_step_s(&in, &plain) * (1 + 2 * CODEC_POLICY_SLACK));
        assert_in_range(c.refresh, 1, in.refresh_max);
        again = c;
        assert_false(codec_policy_adapt(&in, &again));
        assert_memory_equal(&again, &c, sizeof c);
    }
}

/* ---- over a run ---- */

struct run {
    struct codec_policy c;
    double clock_s;
    uint64_t bytes_in;
    uint32_t n_notices;
    char notice[CODEC_POLICY_TEXT_MAX];
};

static double fake_now(void *arg)
{
    struct run *run = arg;

    return run->clock_s += 3e-6; /* of TIMED_ROWS rows: 0.2 ns a float */
}

static void note(void *arg, const char *sentence)
{
    struct run *run = arg;

    run->n_notices++;
    snprintf(run->notice, sizeof run->notice, "%s", sentence);
}

static void start(struct run *run, struct codec_policy_options o)
{
    struct codec_policy_input in = criteo(0, 0);

    *run = (struct run){ 0 };
    memcpy(o.rows, in.rows, sizeof o.rows);
    o.rows[CODEC_POLICY_WIDE_PUSH].dim = o.rows[CODEC_POLICY_WIDE_PULL].dim = 0;
    o.refresh_max = 1;
    o.now_s = fake_now;
    o.notice = note;
    o.arg = run;
    codec_policy_init(&run->c, &o);
}

/* A step over a link of this rate, with the codecs of the moment. */
static void step_planned(struct run *run, const struct codec_policy_plan *plan,
                         double bytes_per_s)
{
    size_t rows = codec_by_id(plan->codecs[CODEC_POLICY_ROWS_PUSH])->row_bytes(16, 1),
           dense = codec_by_id(plan->codecs[CODEC_POLICY_DENSE_PUSH])->row_bytes(1024, 10);
    struct codec_policy_step s = { .n_left = plan->n_left, .n_rows = 2000, .compute_s = 4e-3 };

    run->bytes_in +=
        2000 * codec_by_id(codec_policy_at(&run->c, CODEC_POLICY_ROWS_PULL))->row_bytes(16, 1) +
        465 *
            codec_by_id(codec_policy_at(&run->c, CODEC_POLICY_DENSE_PULL))->row_bytes(1024, 1);
    s.bytes_in = run->bytes_in;
    s.push_bytes = 2000 * (rows + 7) + 465 * dense;
    s.push_s = 300e-6 + (double)s.push_bytes / bytes_per_s;
    codec_policy_stepped(&run->c, &s);
}

static void step(struct run *run, double bytes_per_s)
{
    struct codec_policy_plan plan;

    codec_policy_plan(&run->c, &plan);
    step_planned(run, &plan, bytes_per_s);
}

static void a_run_measures_chooses_says_so_and_adapts_to_a_clear_change_only(void **state)
{
    struct run run;

    (void)state;
    start(&run, (struct codec_policy_options){ .has_link = true });
    for (uint32_t i = 0; i < CODEC_POLICY_FIRST; i++) {
        assert_int_equal(run.c.n_left, CODEC_POLICY_FIRST - i);
        step(&run, 96 * MBIT);
    }
    assert_int_equal(run.c.n_left, 0);
    assert_int_equal(run.n_notices, 1);
    assert_non_null(strstr(run.notice, "link 96 Mbit/s, 0.30 ms away; "));
    assert_non_null(strstr(run.notice, " against 4.0 ms of compute a step: rows onebit out, "
                                       "int8 in; dense topk out, int8 in"));
    for (uint32_t i = 0; i < 3 * CODEC_POLICY_EVERY; i++)
        step(&run, 80 * MBIT);
    assert_int_equal(run.n_notices, 1);
    for (uint32_t i = 0; i < 2 * CODEC_POLICY_EVERY; i++)
        step(&run, 1e6 * MBIT);
    assert_int_equal(run.n_notices, 2);
    for (int i = 0; i < CODEC_POLICY_DIRECTIONS; i++)
        assert_int_equal(codec_policy_at(&run.c, (enum codec_policy_direction)i), CODEC_FP32);
    for (uint32_t i = 0; i < 2 * CODEC_POLICY_EVERY; i++)
        step(&run, 96 * MBIT);
    assert_int_equal(run.n_notices, 3);
    assert_int_equal(codec_policy_at(&run.c, CODEC_POLICY_DENSE_PUSH), CODEC_TOPK);
}

/* Steps that are planned before those ahead of them are pushed: what was measured is what was planned, the choice is that
 * of a run without any under way, and what is dropped is planned anew. */
static void steps_under_way_do_not_mix_up_what_is_measured(void **state)
{
    struct codec_policy_plan plans[4 * CODEC_POLICY_EVERY];
    uint32_t n_planned = 0, n_made = 0, n_measured = 0;
    struct run run;

    (void)state;
    start(&run, (struct codec_policy_options){ .has_link = true });
    for (; n_made < COUNT_OF(plans) - 1; n_made++) {
        if (n_made == 3 || n_made == CODEC_POLICY_EVERY + CODEC_POLICY_FIRST + 2) {
            codec_policy_reset(&run.c);
            n_planned = n_made;
        }
        for (; n_planned <= n_made + hash_mix(n_made) % 4 && n_planned < COUNT_OF(plans);
             n_planned++) {
            codec_policy_plan(&run.c, &plans[n_planned]);
            assert_int_equal(plans[n_planned].number, n_planned + 1);
            if (plans[n_planned].n_left)
                assert_int_equal(plans[n_planned].codecs[CODEC_POLICY_ROWS_PUSH],
                                 plans[n_planned].n_left % 2 ? CODEC_INT8 : CODEC_FP32);
        }
        n_measured += plans[n_made].n_left > 0;
        step_planned(&run, &plans[n_made], n_made < CODEC_POLICY_EVERY ? 96 * MBIT : 80 * MBIT);
        if (run.n_notices == 1)
            assert_int_equal(codec_policy_at(&run.c, CODEC_POLICY_DENSE_PUSH),
                             run.c.n_unplanned == 0  ? CODEC_TOPK
                             : run.c.n_unplanned % 2 ? CODEC_INT8
                                                     : CODEC_FP32);
    }
    assert_int_equal(run.n_notices, 1);
    assert_int_equal(n_measured, CODEC_POLICY_FIRST + 3 * CODEC_POLICY_REPEAT);
}

static void a_device_that_encodes_costs_the_host_no_codec(void **state)
{
    struct run run;

    (void)state;
    start(&run, (struct codec_policy_options){ .has_link = true });
    assert_true(run.c.input.encode_s[CODEC_TOPK] > 0);
    codec_policy_set_device_encodes(&run.c);
    for (uint32_t i = 0; i < CODEC_ID_END; i++)
        assert_true(run.c.input.encode_s[i] == 0);
}

static void a_link_is_reported_in_the_unit_that_suits_it(void **state)
{
    static const struct {
        double mbit;
        const char *said;
    } links[] = { { 0, "no link; " },
                  { 2.5, "link 2.5 Mbit/s, 0.30 ms away; " },
                  { 940, "link 940 Mbit/s, 0.30 ms away; " },
                  { 25e3, "link 25 Gbit/s, 0.30 ms away; " },
                  { 8e6, "link faster than can be measured, 0.30 ms away; " } };
    char text[CODEC_POLICY_TEXT_MAX];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(links); i++) {
        struct codec_policy_input in = criteo(links[i].mbit * MBIT, 4e-3);
        struct codec_policy_choice c;

        in.rtt_s = 0.3e-3;
        codec_policy_choose(&in, &c);
        codec_policy_describe(&in, &c, text);
        assert_memory_equal(text, links[i].said, strlen(links[i].said));
    }
}

static void tables_in_this_process_have_no_link_and_fp32(void **state)
{
    struct run run;

    (void)state;
    start(&run, (struct codec_policy_options){ .has_link = false });
    assert_int_equal(run.c.n_left, 0);
    assert_int_equal(run.n_notices, 1);
    assert_non_null(strstr(run.notice, "no link"));
    assert_int_equal(codec_policy_at(&run.c, CODEC_POLICY_ROWS_PUSH), CODEC_FP32);
}

static void dense_gradients_warm_up_once_over_all_runs(void **state)
{
    struct codec_policy_plan plan;
    struct run run;
    struct codec_policy_options o = {
        .has_link = true, .warmup_steps = 5, .warmup_codec = CODEC_BF16, .steps_before = 3
    };

    (void)state;
    start(&run, o);
    for (int i = 0; i < CODEC_POLICY_DIRECTIONS; i++)
        run.c.options.rows[i].is_free = false;
    run.c.n_left = run.c.n_unplanned = 0;
    run.c.now.codecs[CODEC_POLICY_DENSE_PUSH] = run.c.now.codecs[CODEC_POLICY_ROWS_PUSH] =
        CODEC_TOPK;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(codec_policy_at(&run.c, CODEC_POLICY_DENSE_PUSH), CODEC_BF16);
        assert_int_equal(codec_policy_at(&run.c, CODEC_POLICY_ROWS_PUSH), CODEC_TOPK);
        step(&run, MBIT);
    }
    assert_int_equal(codec_policy_at(&run.c, CODEC_POLICY_DENSE_PUSH), CODEC_TOPK);
    codec_policy_plan(&run.c, &plan);
    assert_int_equal(plan.number, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fast_link_keeps_fp32_and_a_slow_one_goes_down_to_one_bit),
        cmocka_unit_test(layers_are_sent_by_the_codec_before_topk),
        cmocka_unit_test(what_would_not_make_the_step_shorter_is_not_lost),
        cmocka_unit_test(what_the_settings_say_stays),
        cmocka_unit_test(dense_tables_are_pulled_less_often_only_where_it_pays),
        cmocka_unit_test(a_choice_is_never_slower_than_fp32_and_is_stable),
        cmocka_unit_test(a_run_measures_chooses_says_so_and_adapts_to_a_clear_change_only),
        cmocka_unit_test(steps_under_way_do_not_mix_up_what_is_measured),
        cmocka_unit_test(a_device_that_encodes_costs_the_host_no_codec),
        cmocka_unit_test(a_link_is_reported_in_the_unit_that_suits_it),
        cmocka_unit_test(tables_in_this_process_have_no_link_and_fp32),
        cmocka_unit_test(dense_gradients_warm_up_once_over_all_runs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
