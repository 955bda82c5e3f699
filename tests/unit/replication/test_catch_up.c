/* The pace of pushes while a standby catches up: against pushers and standbys of all speeds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "server/replication/catch_up.h"
#include "tests/support/seed.h"

#define STEP_MS 5u

/* Both bring or take so many records a second; in fractions, so that slow ones move, too. */
struct race {
    struct catch_up pace;
    uint64_t now_ms;
    double appended, received;
    uint64_t n_waited; /* steps in which pushes waited */
};

static struct race begin(double behind)
{
    struct race r = { .now_ms = 1000, .appended = behind + 1 };

    catch_up_begin(&r.pace, (uint64_t)r.appended, 0, r.now_ms);
    return r;
}

static void step(struct race *r, double pushed_per_s, double taken_per_s)
{
    if (catch_up_wait_ms(&r->pace, (uint64_t)r->appended, r->now_ms))
        r->n_waited++;
    else
        r->appended += pushed_per_s * STEP_MS / 1000;
    r->received += taken_per_s * STEP_MS / 1000;
    if (r->received > r->appended)
        r->received = r->appended;
    r->now_ms += STEP_MS;
    catch_up_note(&r->pace, (uint64_t)r->appended, (uint64_t)r->received, r->now_ms);
}

static void a_standby_that_is_fast_enough_slows_nothing(void **state)
{
    struct race r = begin(1e5);

    (void)state;
    while (r.received < r.appended - 100 && r.now_ms < 100000)
        step(&r, 10000, 20000);
    assert_int_equal(r.n_waited, 0);
    assert_true(r.now_ms < 12000);
}

static void one_that_stands_still_slows_nothing(void **state)
{
    struct race r = begin(1e5);

    (void)state;
    while (r.now_ms < 60000)
        step(&r, 10000, 0);
    assert_int_equal(r.n_waited, 0);
    while (r.now_ms < 70000)
        step(&r, 10000, 5000);
    assert_true(r.n_waited > 0);
    r.n_waited = 0;
    while (r.now_ms < 80000)
        step(&r, 10000, 0);
    assert_true(r.n_waited < 2 * CATCH_UP_PATIENCE_MS / STEP_MS);
}

/* Whatever the two speeds are, there is an end; and pushes keep their part. */
static void all_that_are_not_far_too_slow_catch_up(void **state)
{
    const uint64_t seed = seed_of_run(1);

    (void)state;
    for (uint64_t n = 0; n < 300; n++) {
        const uint64_t random = hash_mix(seed + n);
        const double pushed = 500 + (double)(random % 100000);
        const double taken = pushed * (0.15 + (double)(random >> 20 & 1023) / 600);
        const double behind = pushed * (double)(random >> 40 & 31);
        struct race r = begin(behind);
        uint64_t n_steps = 0;

        while (r.appended - r.received > taken / 8 && n_steps < 1500000 / STEP_MS) {
            step(&r, pushed, taken);
            n_steps++;
        }
        if (r.appended - r.received > taken / 8)
            fail_msg("seed %llu, run %llu: %.0f pushed, %.0f taken a second, %.0f left",
                     (unsigned long long)seed, (unsigned long long)n, pushed, taken,
                     r.appended - r.received);
        assert_true(r.n_waited == 0 || taken < 2 * pushed || behind > 15 * taken);
        assert_true(r.appended - behind >=
                    0.9 * (double)n_steps * STEP_MS / 1000 * pushed / 16 - 2);
    }
}

/* Once it has all, and is not in sync for another reason, pushes are their own masters again. */
static void what_has_caught_up_is_waited_for_no_more(void **state)
{
    struct race r = begin(1e5);

    (void)state;
    while (r.now_ms < 20000)
        step(&r, 10000, 8000);
    assert_true(r.pace.records_per_s > 0);
    while (r.appended - r.received > 100 && r.now_ms < 500000)
        step(&r, 10000, 8000);
    for (uint64_t end_ms = r.now_ms + 10000; r.now_ms < end_ms;)
        step(&r, 1000, 8000);
    assert_int_equal(r.pace.records_per_s, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_standby_that_is_fast_enough_slows_nothing),
        cmocka_unit_test(one_that_stands_still_slows_nothing),
        cmocka_unit_test(all_that_are_not_far_too_slow_catch_up),
        cmocka_unit_test(what_has_caught_up_is_waited_for_no_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
