#include "worker/client/error_feedback.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/memory.h"

#define DIM 3u
#define N_KEYS 97u

static void a_new_row_is_zeros_and_a_known_one_is_kept(void **state)
{
    struct error_feedback r;
    const float zeros[DIM] = { 0 };

    (void)state;
    error_feedback_init(&r, DIM);
    assert_int_equal(error_feedback_reserve(&r, 2), 0);
    assert_memory_equal(error_feedback_row(&r, 7), zeros, sizeof zeros);
    error_feedback_row(&r, 7)[1] = 4.0f;
    error_feedback_row(&r, 0)[0] = 5.0f;
    assert_true(error_feedback_row(&r, 7)[1] == 4.0f);
    assert_int_equal(r.n_rows, 2);
    error_feedback_remove(&r, 7);
    error_feedback_remove(&r, 7);
    assert_int_equal(r.n_rows, 1);
    assert_true(error_feedback_row(&r, 0)[0] == 5.0f);
    error_feedback_deinit(&r);
}

/* The reference: an array with one place for each key. */
static void random_use_equals_a_plain_array(void **state)
{
    float reference[N_KEYS][DIM] = { 0 };
    uint64_t seed = 20261120, dice, key;
    uint32_t step, i;
    struct error_feedback r;

    (void)state;
    printf("seed %llu\n", (unsigned long long)seed);
    error_feedback_init(&r, DIM);
    for (step = 0; step < 20000; step++) {
        dice = hash_mix2(seed, step);
        i = (uint32_t)(dice % N_KEYS);
        key = i * UINT64_C(0x100000000);
        if (dice >> 61 == 0) {
            error_feedback_remove(&r, key);
            memset(reference[i], 0, sizeof reference[i]);
        } else {
            assert_int_equal(error_feedback_reserve(&r, 1), 0);
            assert_memory_equal(error_feedback_row(&r, key), reference[i], sizeof reference[i]);
            error_feedback_row(&r, key)[dice % DIM] += 1.0f;
            reference[i][dice % DIM] += 1.0f;
        }
    }
    error_feedback_deinit(&r);
}

/* So floats that lie elsewhere stay where they are; and no number is beyond the most rows at a time. */
static void a_row_keeps_its_number_until_it_is_removed(void **state)
{
    uint32_t numbers[N_KEYS], n_most = 0, n_held;
    bool is_taken[N_KEYS];
    uint64_t seed = 20261122;
    struct error_feedback r;

    (void)state;
    printf("seed %llu\n", (unsigned long long)seed);
    memset(numbers, 0xff, sizeof numbers);
    error_feedback_init_index(&r, DIM);
    for (uint32_t step = 0; step < 5000; step++) {
        uint64_t dice = hash_mix2(seed, step);
        uint32_t key = (uint32_t)(dice % N_KEYS);

        if (dice >> 62 == 0) {
            error_feedback_remove(&r, key);
            numbers[key] = ERROR_FEEDBACK_NONE;
        } else {
            uint32_t number;

            assert_int_equal(error_feedback_reserve(&r, 1), 0);
            number = error_feedback_touch(&r, key);
            assert_true(numbers[key] == ERROR_FEEDBACK_NONE || numbers[key] == number);
            numbers[key] = number;
            assert_int_equal(r.keys[r.newest - 1], key);
        }
        n_most = r.n_rows > n_most ? r.n_rows : n_most;
        memset(is_taken, 0, sizeof is_taken);
        n_held = 0;
        for (uint32_t i = 0; i < N_KEYS; i++) {
            assert_int_equal(error_feedback_at(&r, i), numbers[i]);
            if (numbers[i] == ERROR_FEEDBACK_NONE)
                continue;
            assert_true(numbers[i] < n_most && !is_taken[numbers[i]]);
            is_taken[numbers[i]] = true;
            n_held++;
        }
        assert_int_equal(n_held, r.n_rows);
    }
    assert_null(r.floats);
    for (uint32_t i = 0; i < N_KEYS; i++)
        error_feedback_remove(&r, i);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(error_feedback_touch(&r, 50 + i), i);
    error_feedback_deinit(&r);
}

/* With room for the floats that the index has none of; it is a residual of its own from then on. */
static void a_copy_of_an_index_has_its_rows_under_their_numbers(void **state)
{
    struct error_feedback r, copy;

    (void)state;
    error_feedback_init_index(&r, DIM);
    assert_int_equal(error_feedback_copy(&copy, &r), 0);
    assert_int_equal(copy.n_rows, 0);
    error_feedback_deinit(&copy);
    assert_int_equal(error_feedback_reserve(&r, 300), 0);
    for (uint64_t key = 0; key < 300; key++)
        (void)error_feedback_touch(&r, key * 3);
    for (uint64_t key = 0; key < 300; key += 2)
        error_feedback_remove(&r, key * 3);
    (void)error_feedback_touch(&r, 3);
    assert_int_equal(error_feedback_copy(&copy, &r), 0);
    for (uint64_t key = 0; key < 900; key++)
        assert_int_equal(error_feedback_at(&copy, key), error_feedback_at(&r, key));
    assert_int_equal(copy.oldest, r.oldest);
    assert_int_equal(copy.keys[copy.newest - 1], 3);
    assert_true(error_feedback_find(&copy, 3)[DIM - 1] == 0.0f);
    assert_int_equal(error_feedback_reserve(&copy, 400), 0);
    for (uint64_t key = 10000; key < 10400; key++)
        error_feedback_row(&copy, key)[0] = 1.0f;
    assert_true(error_feedback_find(&copy, 3)[0] == 0.0f);
    assert_int_equal(error_feedback_at(&r, 10000), ERROR_FEEDBACK_NONE);
    error_feedback_deinit(&copy);
    error_feedback_deinit(&r);
}

#ifdef PS_FAULTS
static void a_failed_reserve_leaves_all_rows(void **state)
{
    struct error_feedback r;
    uint64_t key;
    long k;

    (void)state;
    error_feedback_init(&r, DIM);
    assert_int_equal(error_feedback_reserve(&r, 64), 0);
    for (key = 0; key < 64; key++)
        error_feedback_row(&r, key)[0] = (float)key;
    for (k = 0;; k++) {
        memory_fail_after(k);
        if (error_feedback_reserve(&r, 100000) == 0)
            break;
        memory_fail_after(-1);
        assert_int_equal(r.n_rows, 64);
        for (key = 0; key < 64; key++)
            assert_true(error_feedback_row(&r, key)[0] == (float)key);
    }
    memory_fail_after(-1);
    assert_true(k >= 3);
    error_feedback_deinit(&r);
}

static void a_failed_copy_is_empty(void **state)
{
    struct error_feedback r, copy;
    int status = -1;
    long k;

    (void)state;
    error_feedback_init_index(&r, DIM);
    assert_int_equal(error_feedback_reserve(&r, 3), 0);
    (void)error_feedback_touch(&r, 7);
    for (k = 0; status; k++) {
        memory_fail_after(k);
        status = error_feedback_copy(&copy, &r);
        memory_fail_after(-1);
        assert_int_equal(copy.n_rows, !status);
        assert_int_equal(error_feedback_at(&copy, 7) == 0, !status);
        error_feedback_deinit(&copy);
    }
    assert_int_equal(k, 6);
    error_feedback_deinit(&r);
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
