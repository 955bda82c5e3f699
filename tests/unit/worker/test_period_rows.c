/* Rows of a period against a plain reference, and with each allocation failing. */
#include "worker/cache/period_rows.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/memory.h"
#include "tests/support/seed.h"

#define DIM 3u
#define N_KEYS 600u

/* Row i has key i * i. */
struct plain {
    bool has_weights[N_KEYS], has_sum[N_KEYS];
    float weights[N_KEYS][DIM], sums[N_KEYS][DIM];
};

struct dice {
    uint64_t seed, n;
};

static uint64_t roll(struct dice *d, uint64_t n)
{
    return hash_mix2(d->seed, d->n++) % n;
}

/* Ascending numbers; returns how many. */
static uint32_t choose(struct dice *d, uint32_t *numbers, uint64_t *keys)
{
    const uint64_t one_in = 1 + roll(d, 40);
    uint32_t n = 0;

    for (uint32_t i = 0; i < N_KEYS; i++) {
        if (roll(d, one_in))
            continue;
        numbers[n] = i;
        keys[n++] = (uint64_t)i * i;
    }
    return n;
}

static void read_and_keep(struct period_rows *r, struct plain *t, struct dice *d)
{
    uint32_t numbers[N_KEYS], missing[N_KEYS], n_missing, at = 0;
    uint64_t keys[N_KEYS];
    float dst[N_KEYS][DIM];
    const uint32_t n = choose(d, numbers, keys);

    n_missing = period_rows_read(r, n, keys, dst[0], missing);
    for (uint32_t i = 0; i < n; i++) {
        if (t->has_weights[numbers[i]]) {
            assert_memory_equal(dst[i], t->weights[numbers[i]], sizeof dst[i]);
            continue;
        }
        assert_true(at < n_missing && missing[at] == i);
        at++;
        for (uint32_t k = 0; k < DIM; k++)
            t->weights[numbers[i]][k] = (float)roll(d, 1000);
        period_rows_keep(r, keys[i], t->weights[numbers[i]]);
        t->has_weights[numbers[i]] = true;
    }
    assert_int_equal(at, n_missing);
}

static void add(struct period_rows *r, struct plain *t, struct dice *d)
{
    uint32_t numbers[N_KEYS];
    uint64_t keys[N_KEYS];
    float g[N_KEYS][DIM];
    const uint32_t n = choose(d, numbers, keys);

    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < DIM; k++) {
            g[i][k] = (float)roll(d, 100);
            t->sums[numbers[i]][k] += g[i][k];
            t->has_sum[numbers[i]] = true;
        }
    assert_int_equal(period_rows_add(r, n, keys, g[0]), 0);
}

static void end(struct period_rows *r, struct plain *t)
{
    const uint64_t *keys;
    const float *sums;
    uint32_t n = period_rows_sums(r, &keys, &sums), at = 0;

    for (uint32_t i = 0; i < N_KEYS; i++) {
        if (!t->has_sum[i])
            continue;
        assert_true(at < n && keys[at] == (uint64_t)i * i);
        assert_memory_equal(sums + (size_t)at++ * DIM, t->sums[i], sizeof t->sums[i]);
    }
    assert_int_equal(at, n);
    period_rows_clear(r);
    *t = (struct plain){ 0 };
}

static void a_random_run_is_that_of_a_plain_reference(void **state)
{
    struct dice d = { seed_by_the_clock(), 0 };
    static struct plain t;
    struct period_rows r;

    (void)state;
    period_rows_init(&r, DIM);
    for (uint32_t i = 0; i < 1500; i++)
        switch (roll(&d, 8)) {
        case 0:
            end(&r, &t);
            break;
        case 1:
        case 2:
        case 3:
            add(&r, &t, &d);
            break;
        default:
            read_and_keep(&r, &t, &d);
        }
    end(&r, &t);
    period_rows_deinit(&r);
}

/* Nothing is half added, and what is not kept is missing. */
static void without_memory_all_stays_as_it_was(void **state)
{
#ifdef PS_FAULTS
    uint64_t keys[1000];
    static float g[1000][DIM];
    uint32_t missing[1000];
    const uint64_t *sums_of;
    const float *sums;
    struct period_rows r;
    int status = -ENOMEM;

    for (uint32_t i = 0; i < 1000; i++)
        keys[i] = i;
    for (long k = 0; status; k++) {
        period_rows_init(&r, DIM);
        assert_int_equal(period_rows_add(&r, 2, keys, g[0]), 0);
        memory_fail_after(k);
        status = period_rows_add(&r, 1000, keys, g[0]);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
        assert_int_equal(period_rows_sums(&r, &sums_of, &sums), status ? 2 : 1000);
        period_rows_deinit(&r);
    }
    period_rows_init(&r, DIM);
    memory_fail_after(0);
    period_rows_keep(&r, 5, g[0]);
    memory_fail_after(-1);
    assert_int_equal(period_rows_read(&r, 6, keys, g[0], missing), 6);
    period_rows_deinit(&r);
#endif
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_random_run_is_that_of_a_plain_reference),
        cmocka_unit_test(without_memory_all_stays_as_it_was),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
