#include "worker/client/residual.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/mem.h"

#define DIM 3u
#define N_KEYS 97u

static void a_new_row_is_zeros_and_a_known_one_is_kept(void **state)
{
    struct residual r;
    const float zeros[DIM] = { 0 };

    (void)state;
    residual_init(&r, DIM);
    assert_int_equal(residual_reserve(&r, 2), 0);
    assert_memory_equal(residual_row(&r, 7), zeros, sizeof zeros);
    residual_row(&r, 7)[1] = 4.0f;
    residual_row(&r, 0)[0] = 5.0f;
    assert_true(residual_row(&r, 7)[1] == 4.0f);
    assert_int_equal(r.n_rows, 2);
    residual_remove(&r, 7);
    residual_remove(&r, 7);
    assert_int_equal(r.n_rows, 1);
    assert_true(residual_row(&r, 0)[0] == 5.0f);
    residual_deinit(&r);
}

/* The twin: an array with one place for each key. */
static void random_use_equals_a_plain_array(void **state)
{
    float twin[N_KEYS][DIM] = { 0 };
    uint64_t seed = 20261120, dice, key;
    uint32_t step, i;
    struct residual r;

    (void)state;
    printf("seed %llu\n", (unsigned long long)seed);
    residual_init(&r, DIM);
    for (step = 0; step < 20000; step++) {
        dice = hash_mix2(seed, step);
        i = (uint32_t)(dice % N_KEYS);
        key = i * UINT64_C(0x100000000);
        if (dice >> 61 == 0) {
            residual_remove(&r, key);
            memset(twin[i], 0, sizeof twin[i]);
        } else {
            assert_int_equal(residual_reserve(&r, 1), 0);
            assert_memory_equal(residual_row(&r, key), twin[i], sizeof twin[i]);
            residual_row(&r, key)[dice % DIM] += 1.0f;
            twin[i][dice % DIM] += 1.0f;
        }
    }
    residual_deinit(&r);
}

#ifdef PS_FAULTS
static void a_failed_reserve_leaves_all_rows(void **state)
{
    struct residual r;
    uint64_t key;
    long k;

    (void)state;
    residual_init(&r, DIM);
    assert_int_equal(residual_reserve(&r, 64), 0);
    for (key = 0; key < 64; key++)
        residual_row(&r, key)[0] = (float)key;
    for (k = 0;; k++) {
        mem_fail_after(k);
        if (residual_reserve(&r, 100000) == 0)
            break;
        mem_fail_after(-1);
        assert_int_equal(r.n_rows, 64);
        for (key = 0; key < 64; key++)
            assert_true(residual_row(&r, key)[0] == (float)key);
    }
    mem_fail_after(-1);
    assert_true(k >= 3);
    residual_deinit(&r);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_row_is_zeros_and_a_known_one_is_kept),
        cmocka_unit_test(random_use_equals_a_plain_array),
#ifdef PS_FAULTS
        cmocka_unit_test(a_failed_reserve_leaves_all_rows),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
