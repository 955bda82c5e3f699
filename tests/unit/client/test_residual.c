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

/* So floats that lie elsewhere stay where they are; and no number is beyond the most rows at a time. */
static void a_row_keeps_its_number_until_it_is_removed(void **state)
{
    uint32_t numbers[N_KEYS], n_most = 0, n_held;
    bool is_taken[N_KEYS];
    uint64_t seed = 20261122;
    struct residual r;

    (void)state;
    printf("seed %llu\n", (unsigned long long)seed);
    memset(numbers, 0xff, sizeof numbers);
    residual_init_index(&r, DIM);
    for (uint32_t step = 0; step < 5000; step++) {
        uint64_t dice = hash_mix2(seed, step);
        uint32_t key = (uint32_t)(dice % N_KEYS);

        if (dice >> 62 == 0) {
            residual_remove(&r, key);
            numbers[key] = RESIDUAL_NONE;
        } else {
            uint32_t number;

            assert_int_equal(residual_reserve(&r, 1), 0);
            number = residual_touch(&r, key);
            assert_true(numbers[key] == RESIDUAL_NONE || numbers[key] == number);
            numbers[key] = number;
            assert_int_equal(r.keys[r.newest - 1], key);
        }
        n_most = r.n_rows > n_most ? r.n_rows : n_most;
        memset(is_taken, 0, sizeof is_taken);
        n_held = 0;
        for (uint32_t i = 0; i < N_KEYS; i++) {
            assert_int_equal(residual_at(&r, i), numbers[i]);
            if (numbers[i] == RESIDUAL_NONE)
                continue;
            assert_true(numbers[i] < n_most && !is_taken[numbers[i]]);
            is_taken[numbers[i]] = true;
            n_held++;
        }
        assert_int_equal(n_held, r.n_rows);
    }
    assert_null(r.floats);
    for (uint32_t i = 0; i < N_KEYS; i++)
        residual_remove(&r, i);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(residual_touch(&r, 50 + i), i);
    residual_deinit(&r);
}

/* With room for the floats that the index has none of; it is a residual of its own from then on. */
static void a_copy_of_an_index_has_its_rows_under_their_numbers(void **state)
{
    struct residual r, copy;

    (void)state;
    residual_init_index(&r, DIM);
    assert_int_equal(residual_copy(&copy, &r), 0);
    assert_int_equal(copy.n_rows, 0);
    residual_deinit(&copy);
    assert_int_equal(residual_reserve(&r, 300), 0);
    for (uint64_t key = 0; key < 300; key++)
        (void)residual_touch(&r, key * 3);
    for (uint64_t key = 0; key < 300; key += 2)
        residual_remove(&r, key * 3);
    (void)residual_touch(&r, 3);
    assert_int_equal(residual_copy(&copy, &r), 0);
    for (uint64_t key = 0; key < 900; key++)
        assert_int_equal(residual_at(&copy, key), residual_at(&r, key));
    assert_int_equal(copy.oldest, r.oldest);
    assert_int_equal(copy.keys[copy.newest - 1], 3);
    assert_true(residual_find(&copy, 3)[DIM - 1] == 0.0f);
    assert_int_equal(residual_reserve(&copy, 400), 0);
    for (uint64_t key = 10000; key < 10400; key++)
        residual_row(&copy, key)[0] = 1.0f;
    assert_true(residual_find(&copy, 3)[0] == 0.0f);
    assert_int_equal(residual_at(&r, 10000), RESIDUAL_NONE);
    residual_deinit(&copy);
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

static void a_failed_copy_is_empty(void **state)
{
    struct residual r, copy;
    int status = -1;
    long k;

    (void)state;
    residual_init_index(&r, DIM);
    assert_int_equal(residual_reserve(&r, 3), 0);
    (void)residual_touch(&r, 7);
    for (k = 0; status; k++) {
        mem_fail_after(k);
        status = residual_copy(&copy, &r);
        mem_fail_after(-1);
        assert_int_equal(copy.n_rows, !status);
        assert_int_equal(residual_at(&copy, 7) == 0, !status);
        residual_deinit(&copy);
    }
    assert_int_equal(k, 6);
    residual_deinit(&r);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_row_is_zeros_and_a_known_one_is_kept),
        cmocka_unit_test(random_use_equals_a_plain_array),
        cmocka_unit_test(a_row_keeps_its_number_until_it_is_removed),
        cmocka_unit_test(a_copy_of_an_index_has_its_rows_under_their_numbers),
#ifdef PS_FAULTS
        cmocka_unit_test(a_failed_reserve_leaves_all_rows),
        cmocka_unit_test(a_failed_copy_is_empty),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
