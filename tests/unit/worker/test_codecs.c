/* Which codecs are chosen for which link, with measurements that the test makes up. */
#include "worker/codecs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "proto/codec_catalog.h"

#define MBIT 125e3 /* bytes a second */

/* Criteo's DLRM at batch 128: 2000 rows of 16, 465 blocks of 1024. */
static struct choice_input criteo(double bytes_per_s, double compute_s)
{
    struct choice_input in = { .rtt_s = 200e-6,
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

    for (int i = 0; i < CHOICE_SLOT_END; i++)
        in.flows[i] =
            (struct choice_flow){ .is_free = true, .dim = 16, .k = 1, .n_rows = 2000 };
    in.flows[CHOICE_WIDE_PUSH].n_rows = in.flows[CHOICE_WIDE_PULL].n_rows = 0;
    for (int i = CHOICE_DENSE_PUSH; i <= CHOICE_DENSE_PULL; i++) {
        in.flows[i].dim = 1024;
        in.flows[i].n_rows = 465;
        in.flows[i].k = 10;
    }
    return in;
}

static void a_fast_link_keeps_fp32_and_a_slow_one_goes_down_to_one_bit(void **state)
{
    struct choice_input in = criteo(100e3 * MBIT, 4e-3);
    struct choice c;

    (void)state;
    choice_make(&in, &c);
    for (int i = 0; i < CHOICE_SLOT_END; i++)
        assert_int_equal(c.codecs[i], CODEC_FP32);
    assert_int_equal(c.refresh, 1);
    in = criteo(100 * MBIT, 4e-3);
    choice_make(&in, &c);
    assert_int_equal(c.codecs[CHOICE_ROWS_PUSH], CODEC_ONEBIT);
    assert_int_equal(c.codecs[CHOICE_DENSE_PUSH], CODEC_TOPK);
    assert_int_equal(c.codecs[CHOICE_ROWS_PULL], CODEC_INT8);
    assert_int_equal(c.codecs[CHOICE_DENSE_PULL], CODEC_INT8);
}

/* Lossiness by itself is worth nothing: where compute hides the wire, or is much longer. */
static void what_would_not_make_the_step_shorter_is_not_lost(void **state)
{
    struct choice_input in = criteo(1000 * MBIT, 40e-3);
    struct choice c;

    (void)state;
    in.overlaps = true; /* 31 ms of wire under 40 ms of compute */
    choice_make(&in, &c);
    for (int i = 0; i < CHOICE_SLOT_END; i++)
        assert_int_equal(c.codecs[i], CODEC_FP32);
    in.compute_s = 20e-3;
    choice_make(&in, &c);
    assert_int_not_equal(c.codecs[CHOICE_DENSE_PUSH], CODEC_FP32);
    assert_int_not_equal(c.codecs[CHOICE_DENSE_PUSH], CODEC_TOPK);
    in = criteo(100 * MBIT, 4e-3);
    in.flows[CHOICE_ROWS_PUSH].n_rows = in.flows[CHOICE_ROWS_PULL].n_rows = 3;
    choice_make(&in, &c);
    assert_int_equal(c.codecs[CHOICE_ROWS_PUSH], CODEC_FP32);
    assert_int_equal(c.codecs[CHOICE_ROWS_PULL], CODEC_FP32);
    assert_int_equal(c.codecs[CHOICE_DENSE_PUSH], CODEC_TOPK);
}

static void what_the_settings_say_stays(void **state)
{
    struct choice_input in = criteo(10 * MBIT, 4e-3);
    struct choice c;

    (void)state;
    in.flows[CHOICE_DENSE_PUSH].is_free = false;
    in.flows[CHOICE_DENSE_PUSH].codec = CODEC_BF16;
    in.flows[CHOICE_ROWS_PULL].is_free = false;
    choice_make(&in, &c);
    assert_int_equal(c.codecs[CHOICE_DENSE_PUSH], CODEC_BF16);
    assert_int_equal(c.codecs[CHOICE_ROWS_PULL], CODEC_FP32);
    assert_int_not_equal(c.codecs[CHOICE_ROWS_PUSH], CODEC_FP32);
    assert_int_equal(c.codecs[CHOICE_DENSE_PULL], CODEC_INT8);
}

static void dense_tables_are_pulled_less_often_only_where_it_pays(void **state)
{
    struct choice_input in = criteo(10 * MBIT, 4e-3);
    struct choice c;

    (void)state;
    in.refresh_max = 5;
    choice_make(&in, &c);
    assert_in_range(c.refresh, 4, 5);
    in = criteo(100e3 * MBIT, 40e-3);
    in.refresh_max = 5;
    choice_make(&in, &c);
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
        struct choice_input in = criteo(link, 1e-4 * (double)(hash_mix2(seed, i + 1) % 1000));
        struct choice plain = { .refresh = 1 }, c, again;

        in.overlaps = hash_mix2(seed, i) >> 63;
        in.refresh_max = 1 + (uint32_t)(hash_mix2(seed, i + 2) % 6);
        in.flows[CHOICE_ROWS_PUSH].n_rows = (double)(hash_mix2(seed, i + 3) % 30000);
        choice_make(&in, &c);
        assert_true(choice_step_s(&in, &c) <=
                    choice_step_s(&in, &plain) * (1 + 2 * CHOICE_SLACK));
        assert_in_range(c.refresh, 1, in.refresh_max);
        again = c;
        assert_false(choice_adapt(&in, &again));
        assert_memory_equal(&again, &c, sizeof c);
    }
}

/* ---- over a run ---- */

struct run {
    struct codecs c;
    double clock_s;
    uint64_t bytes_in;
    uint32_t n_notices;
    char notice[CHOICE_TEXT_MAX];
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

static void start(struct run *run, struct codecs_options o)
{
    struct choice_input in = criteo(0, 0);

    *run = (struct run){ 0 };
    memcpy(o.flows, in.flows, sizeof o.flows);
    o.flows[CHOICE_WIDE_PUSH].dim = o.flows[CHOICE_WIDE_PULL].dim = 0;
    o.refresh_max = 1;
    o.now_s = fake_now;
    o.notice = note;
    o.arg = run;
    codecs_init(&run->c, &o);
}

/* A step over a link of this rate, with the codecs of the moment. */
static void step_planned(struct run *run, const struct codecs_plan *plan, double bytes_per_s)
{
    size_t rows = codec_by_id(plan->codecs[CHOICE_ROWS_PUSH])->row_bytes(16, 1),
           dense = codec_by_id(plan->codecs[CHOICE_DENSE_PUSH])->row_bytes(1024, 10);
    struct codecs_step s = { .n_left = plan->n_left, .n_rows = 2000, .compute_s = 4e-3 };

    run->bytes_in +=
        2000 * codec_by_id(codecs_at(&run->c, CHOICE_ROWS_PULL))->row_bytes(16, 1) +
        465 * codec_by_id(codecs_at(&run->c, CHOICE_DENSE_PULL))->row_bytes(1024, 1);
    s.bytes_in = run->bytes_in;
    s.push_bytes = 2000 * (rows + 7) + 465 * dense;
    s.push_s = 300e-6 + (double)s.push_bytes / bytes_per_s;
    codecs_stepped(&run->c, &s);
}

static void step(struct run *run, double bytes_per_s)
{
    struct codecs_plan plan;

    codecs_plan(&run->c, &plan);
    step_planned(run, &plan, bytes_per_s);
}

static void a_run_measures_chooses_says_so_and_adapts_to_a_clear_change_only(void **state)
{
    struct run run;

    (void)state;
    start(&run, (struct codecs_options){ .has_link = true });
    for (uint32_t i = 0; i < CODECS_FIRST; i++) {
        assert_int_equal(run.c.n_left, CODECS_FIRST - i);
        step(&run, 96 * MBIT);
    }
    assert_int_equal(run.c.n_left, 0);
    assert_int_equal(run.n_notices, 1);
    assert_non_null(strstr(run.notice, "link 96 Mbit/s, 0.30 ms away; "));
    assert_non_null(strstr(run.notice, " against 4.0 ms of compute a step: rows onebit out, "
                                       "int8 in; dense topk out, int8 in"));
    for (uint32_t i = 0; i < 3 * CODECS_EVERY; i++)
        step(&run, 80 * MBIT);
    assert_int_equal(run.n_notices, 1);
    for (uint32_t i = 0; i < 2 * CODECS_EVERY; i++)
        step(&run, 1e6 * MBIT);
    assert_int_equal(run.n_notices, 2);
    for (int i = 0; i < CHOICE_SLOT_END; i++)
        assert_int_equal(codecs_at(&run.c, (enum choice_slot)i), CODEC_FP32);
    for (uint32_t i = 0; i < 2 * CODECS_EVERY; i++)
        step(&run, 96 * MBIT);
    assert_int_equal(run.n_notices, 3);
    assert_int_equal(codecs_at(&run.c, CHOICE_DENSE_PUSH), CODEC_TOPK);
}

/* Steps that are planned before those ahead of them are pushed: what was measured is what was planned, the choice is that
 * of a run without any under way, and what is dropped is planned anew. */
static void steps_under_way_do_not_mix_up_what_is_measured(void **state)
{
    struct codecs_plan plans[4 * CODECS_EVERY];
    uint32_t n_planned = 0, n_made = 0, n_measured = 0;
    struct run run;

    (void)state;
    start(&run, (struct codecs_options){ .has_link = true });
    for (; n_made < COUNT_OF(plans) - 1; n_made++) {
        if (n_made == 3 || n_made == CODECS_EVERY + CODECS_FIRST + 2) {
            codecs_forget(&run.c);
            n_planned = n_made;
        }
        for (; n_planned <= n_made + hash_mix(n_made) % 4 && n_planned < COUNT_OF(plans);
             n_planned++) {
            codecs_plan(&run.c, &plans[n_planned]);
            assert_int_equal(plans[n_planned].number, n_planned + 1);
            if (plans[n_planned].n_left)
                assert_int_equal(plans[n_planned].codecs[CHOICE_ROWS_PUSH],
                                 plans[n_planned].n_left % 2 ? CODEC_INT8 : CODEC_FP32);
        }
        n_measured += plans[n_made].n_left > 0;
        step_planned(&run, &plans[n_made], n_made < CODECS_EVERY ? 96 * MBIT : 80 * MBIT);
        if (run.n_notices == 1)
            assert_int_equal(codecs_at(&run.c, CHOICE_DENSE_PUSH),
                             run.c.n_unplanned == 0  ? CODEC_TOPK
                             : run.c.n_unplanned % 2 ? CODEC_INT8
                                                     : CODEC_FP32);
    }
    assert_int_equal(run.n_notices, 1);
    assert_int_equal(n_measured, CODECS_FIRST + 3 * CODECS_AGAIN);
}

static void a_device_that_encodes_costs_the_host_no_codec(void **state)
{
    struct run run;

    (void)state;
    start(&run, (struct codecs_options){ .has_link = true });
    assert_true(run.c.input.encode_s[CODEC_TOPK] > 0);
    codecs_encode_elsewhere(&run.c);
    for (uint32_t i = 0; i < CODEC_ID_END; i++)
        assert_true(run.c.input.encode_s[i] == 0);
}

static void a_link_is_told_in_the_unit_that_suits_it(void **state)
{
    static const struct {
        double mbit;
        const char *said;
    } links[] = { { 0, "no link; " },
                  { 2.5, "link 2.5 Mbit/s, 0.30 ms away; " },
                  { 940, "link 940 Mbit/s, 0.30 ms away; " },
                  { 25e3, "link 25 Gbit/s, 0.30 ms away; " },
                  { 8e6, "link faster than can be measured, 0.30 ms away; " } };
    char text[CHOICE_TEXT_MAX];

    (void)state;
    for (size_t i = 0; i < COUNT_OF(links); i++) {
        struct choice_input in = criteo(links[i].mbit * MBIT, 4e-3);
        struct choice c;

        in.rtt_s = 0.3e-3;
        choice_make(&in, &c);
        choice_tell(&in, &c, text);
        assert_memory_equal(text, links[i].said, strlen(links[i].said));
    }
}

static void tables_in_this_process_have_no_link_and_fp32(void **state)
{
    struct run run;

    (void)state;
    start(&run, (struct codecs_options){ .has_link = false });
    assert_int_equal(run.c.n_left, 0);
    assert_int_equal(run.n_notices, 1);
    assert_non_null(strstr(run.notice, "no link"));
    assert_int_equal(codecs_at(&run.c, CHOICE_ROWS_PUSH), CODEC_FP32);
}

static void dense_gradients_warm_up_once_over_all_runs(void **state)
{
    struct codecs_plan plan;
    struct run run;
    struct codecs_options o = {
        .has_link = true, .warmup_steps = 5, .warmup_codec = CODEC_BF16, .steps_before = 3
    };

    (void)state;
    start(&run, o);
    for (int i = 0; i < CHOICE_SLOT_END; i++)
        run.c.options.flows[i].is_free = false;
    run.c.n_left = run.c.n_unplanned = 0;
    run.c.now.codecs[CHOICE_DENSE_PUSH] = run.c.now.codecs[CHOICE_ROWS_PUSH] = CODEC_TOPK;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(codecs_at(&run.c, CHOICE_DENSE_PUSH), CODEC_BF16);
        assert_int_equal(codecs_at(&run.c, CHOICE_ROWS_PUSH), CODEC_TOPK);
        step(&run, MBIT);
    }
    assert_int_equal(codecs_at(&run.c, CHOICE_DENSE_PUSH), CODEC_TOPK);
    codecs_plan(&run.c, &plan);
    assert_int_equal(plan.number, 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fast_link_keeps_fp32_and_a_slow_one_goes_down_to_one_bit),
        cmocka_unit_test(what_would_not_make_the_step_shorter_is_not_lost),
        cmocka_unit_test(what_the_settings_say_stays),
        cmocka_unit_test(dense_tables_are_pulled_less_often_only_where_it_pays),
        cmocka_unit_test(a_choice_is_never_slower_than_fp32_and_is_stable),
        cmocka_unit_test(a_run_measures_chooses_says_so_and_adapts_to_a_clear_change_only),
        cmocka_unit_test(steps_under_way_do_not_mix_up_what_is_measured),
        cmocka_unit_test(a_device_that_encodes_costs_the_host_no_codec),
        cmocka_unit_test(a_link_is_told_in_the_unit_that_suits_it),
        cmocka_unit_test(tables_in_this_process_have_no_link_and_fp32),
        cmocka_unit_test(dense_gradients_warm_up_once_over_all_runs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
