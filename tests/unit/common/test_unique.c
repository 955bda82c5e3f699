#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/memory.h"
#include "common/unique.h"
#include "tests/support/seed.h"

#define N_MAX 3000u

typedef int find_function(struct unique *, const uint64_t *, size_t, uint64_t *, int64_t *,
                          size_t *);

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* The twin: sorted by the library, neighbours compared, places found one by one. */
static void assert_right(const uint64_t *keys, size_t n, const uint64_t *unique,
                         const int64_t *inverse, size_t n_unique)
{
    uint64_t sorted[N_MAX + 1];
    size_t n_expected = 0;

    memcpy(sorted, keys, n * sizeof *keys);
    qsort(sorted, n, sizeof *sorted, compare);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || sorted[i] != sorted[i - 1]) {
            assert_true(n_expected < n_unique);
            assert_true(unique[n_expected++] == sorted[i]);
        }
    assert_int_equal(n_unique, n_expected);
    for (size_t i = 0; i < n; i++) {
        assert_true(inverse[i] >= 0 && (size_t)inverse[i] < n_unique);
        assert_true(unique[inverse[i]] == keys[i]);
    }
}

static void check(struct unique *u, find_function *find, const uint64_t *keys, size_t n)
{
    uint64_t unique[N_MAX + 1], alone[N_MAX + 1];
    int64_t inverse[N_MAX + 1];
    size_t n_unique = 1, n_alone = 1;

    unique[n] = 4711;
    inverse[n] = -4711;
    assert_int_equal(find(u, keys, n, unique, inverse, &n_unique), 0);
    assert_right(keys, n, unique, inverse, n_unique);
    assert_true(unique[n] == 4711 && inverse[n] == -4711);

    memcpy(alone, keys, n * sizeof *keys);
    assert_int_equal(find(u, alone, n, alone, NULL, &n_alone), 0);
    assert_int_equal(n_alone, n_unique);
    assert_memory_equal(alone, unique, n_unique * sizeof *unique);
}

static uint64_t key_of_kind(uint64_t kind, uint64_t seed, uint64_t i, uint64_t n_values)
{
    const uint64_t value = hash_mix2(seed, i) % n_values;

    switch (kind) {
    case 0:
        return hash_mix(value);
    case 1:
        return value;
    case 2:
        return value << (seed % 64);
    case 3:
        return UINT64_MAX - value;
    case 4:
        return hash_mix(value) >> 8 | value % 26 << 56;
    default:
        /* Times the multiplier of the hash these are small numbers: all of them have one slot. */
        return value * UINT64_C(0xf1de83e19937733d);
    }
}

static void any_keys_become_ascending_and_are_found_again(void **state)
{
    const uint64_t seed = seed_by_the_clock();
    struct unique u = { 0 };
    uint64_t keys[N_MAX];

    (void)state;
    for (uint64_t run = 0; run < 600; run++) {
        const uint64_t own = hash_mix2(seed, run),
                       n = own % 3 == 0 ? own / 3 % 20 : own / 3 % N_MAX;

        for (uint64_t i = 0; i < n; i++)
            keys[i] = key_of_kind(run % 6, own, i, 1 + own / 7 % (2 * N_MAX));
        check(&u, unique_find, keys, n);
        check(&u, unique_sort, keys, n);
    }
    unique_deinit(&u);
}

static void the_borders_are_keys_like_others(void **state)
{
    const uint64_t keys[] = {
        UINT64_MAX, 0, 1, UINT64_MAX, UINT64_MAX - 1, 0, UINT64_C(1) << 63
    };
    struct unique u = { 0 };

    (void)state;
    for (size_t n = 0; n <= COUNT_OF(keys); n++) {
        check(&u, unique_find, keys, n);
        check(&u, unique_sort, keys, n);
    }
    unique_deinit(&u);
    unique_deinit(NULL);
}

#ifdef PS_FAULTS
static void no_memory_is_a_status_and_the_next_call_works(void **state)
{
    struct unique u = { 0 };
    uint64_t keys[200], unique[200];
    int64_t inverse[200];
    size_t n_unique = 17;

    (void)state;
    for (uint64_t i = 0; i < COUNT_OF(keys); i++)
        keys[i] = hash_mix(i / 2);
    for (size_t n = 10; n <= COUNT_OF(keys); n += 190) {
        memory_fail_after(0);
        assert_int_equal(unique_find(&u, keys, n, unique, inverse, &n_unique), -ENOMEM);
        memory_fail_after(-1);
        assert_int_equal(n_unique, n == 10 ? 17 : 5);
        check(&u, unique_find, keys, n);
        assert_int_equal(unique_find(&u, keys, n, unique, inverse, &n_unique), 0);
    }
    assert_int_equal(
        unique_find(&u, keys, (size_t)UNIQUE_KEYS_MAX + 1, unique, inverse, &n_unique),
        -ENOMEM);
    unique_deinit(&u);
}

static void memory_is_used_again(void **state)
{
    struct unique u = { 0 };
    uint64_t keys[100] = { 5, 4, 3 };
    void *before;

    (void)state;
    check(&u, unique_find, keys, 100);
    before = u.scratch;
    memory_fail_after(0);
    check(&u, unique_find, keys, 100);
    check(&u, unique_find, keys, 3);
    memory_fail_after(-1);
    assert_ptr_equal(u.scratch, before);
    unique_deinit(&u);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_keys_become_ascending_and_are_found_again),
        cmocka_unit_test(the_borders_are_keys_like_others),
#ifdef PS_FAULTS
        cmocka_unit_test(no_memory_is_a_status_and_the_next_call_works),
        cmocka_unit_test(memory_is_used_again),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
