/* Counting touches in little memory, against a reference that counts them all. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/memory.h"
#include "server/core/count_min.h"

#define N_KEYS 400000u

struct reference {
    uint32_t now[N_KEYS], last[N_KEYS];
};

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t reference_count(const struct reference *t, uint32_t i)
{
    return least(t->now[i], COUNT_MIN_COUNT_MAX) + least(t->last[i], COUNT_MIN_COUNT_MAX);
}

static void reference_turn(struct reference *t)
{
    memcpy(t->last, t->now, sizeof t->last);
    memset(t->now, 0, sizeof t->now);
}

/* Zipf with exponent 1: the n-th key comes 1/n as often as the first. */
static uint32_t zipf(uint64_t seed, uint64_t i)
{
    double u = (double)(hash_mix2(seed, i) >> 11) * 0x1p-53;

    return (uint32_t)exp(u * log((double)N_KEYS)) - 1;
}

static uint32_t uniform(uint64_t seed, uint64_t i)
{
    return (uint32_t)(hash_mix2(seed, i) % N_KEYS);
}

static uint64_t key_of(uint32_t i)
{
    return hash_mix(i ^ UINT64_C(0x6b6579));
}

static void it_never_undercounts(void **state)
{
    const uint64_t seed = 7, n_turn = 150000;
    struct reference *t = calloc(1, sizeof *t);
    struct count_min *s;

    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    assert_int_equal(count_min_new(&s, NULL), 0);
    for (uint64_t i = 0; i < 6 * n_turn; i++) {
        uint32_t key = zipf(seed, i);

        if (i % n_turn == n_turn - 1) {
            count_min_end_window(s);
            reference_turn(t);
        }
        t->now[key]++;
        assert_true(count_min_add(s, key_of(key)) >= reference_count(t, key));
        if (i % 25000 == 0)
            for (uint32_t k = 0; k < N_KEYS; k += 7)
                assert_true(count_min_count(s, key_of(k)) >= reference_count(t, k));
    }
    count_min_free(s);
    free(t);
}

/* Share of all keys, also of those that never came, that are overcounted by `by` or more. */
static double share_over(const struct count_min *s, const struct reference *t, uint32_t by)
{
    uint32_t n_over = 0;

    for (uint32_t k = 0; k < N_KEYS; k++)
        n_over += count_min_count(s, key_of(k)) >= reference_count(t, k) + by;
    return (double)n_over / N_KEYS;
}

static void measure(uint32_t (*draw)(uint64_t seed, uint64_t i), uint64_t n_most)
{
    const uint64_t seed = 11, n_cells = 1 << 19;
    struct reference *t = calloc(1, sizeof *t);
    struct count_min *s;

    print_message("seed %llu\n", (unsigned long long)seed);
    assert_int_equal(count_min_new(&s, NULL), 0);
    assert_int_equal(count_min_bytes(s), 2 * 4 * n_cells / 2);
    for (uint64_t n = 1; n <= n_most * n_cells; n++) {
        uint32_t key = draw(seed, n);
        double bound;

        t->now[key]++;
        (void)count_min_add(s, key_of(key));
        if (n % n_cells != 0 && n != n_cells / 2)
            continue;
        bound = ceil(2.718281828 * (double)n / (double)n_cells);
        print_message("%.1f touches a cell: %.3f %% by %.0f or more, %.3f %% by 1 or more\n",
                      (double)n / (double)n_cells, 100 * share_over(s, t, (uint32_t)bound),
                      bound, 100 * share_over(s, t, 1));
        assert_true(share_over(s, t, (uint32_t)bound) <= 0.018);
    }
    count_min_free(s);
    free(t);
}

static void few_keys_are_overcounted_by_more_than_the_bound(void **state)
{
    (void)state;
    measure(zipf, 5);
    measure(uniform, 3);
}

static void counts_older_than_two_windows_are_dropped(void **state)
{
    struct count_min *s;

    (void)state;
    assert_int_equal(count_min_new(&s, NULL), 0);
    for (uint32_t i = 1; i <= 20; i++)
        assert_int_equal(count_min_add(s, 5), least(i, COUNT_MIN_COUNT_MAX));
    count_min_end_window(s);
    assert_int_equal(count_min_count(s, 5), COUNT_MIN_COUNT_MAX);
    assert_int_equal(count_min_add(s, 5), COUNT_MIN_COUNT_MAX + 1);
    count_min_end_window(s);
    assert_int_equal(count_min_count(s, 5), 1);
    count_min_end_window(s);
    assert_int_equal(count_min_count(s, 5), 0);
    count_min_free(s);
}

static void it_grows_and_shrinks_with_the_stream_and_with_its_budget(void **state)
{
    struct memory_budget budget = { .max = 0 };
    struct count_min *s;
    uint64_t before;

    (void)state;
    assert_int_equal(count_min_new(&s, &budget), 0);
    for (uint64_t turn = 0; turn < 3; turn++) {
        for (uint64_t i = 0; i < 3000000; i++)
            (void)count_min_add(s, hash_mix2(turn, i));
        count_min_end_window(s);
        assert_true(budget.used == count_min_bytes(s));
    }
    assert_true(count_min_bytes(s) == 2 * (UINT64_C(4) << 22)); /* 2^23 cells a row: 16 MiB */
    do {
        before = count_min_bytes(s);
        count_min_end_window(s);
        assert_true(budget.used == count_min_bytes(s));
    } while (count_min_bytes(s) < before);
    for (int i = 0; i < 30; i++)
        count_min_end_window(s);
    assert_int_equal(count_min_bytes(s), 2 * 8192);
    count_min_free(s);
    assert_int_equal(budget.used, 0);
}

static void a_small_budget_gets_a_small_sketch_and_a_full_one_none(void **state)
{
    struct memory_budget whole = { .max = 8 << 20 },
                         part = { .parent = &whole, .max = 1 << 20 };
    struct count_min *s;

    (void)state;
    assert_int_equal(count_min_new(&s, &part), 0);
    assert_int_equal(count_min_bytes(s), (1 << 20) / 16);
    for (uint64_t turn = 0; turn < 3; turn++) {
        for (uint64_t i = 0; i < 1000000; i++)
            (void)count_min_add(s, hash_mix2(turn, i));
        count_min_end_window(s);
        assert_int_equal(count_min_bytes(s), (1 << 20) / 16);
    }
    count_min_free(s);
    whole.used = whole.max - 10000; /* others have it */
    assert_int_equal(count_min_new(&s, &part), PS_EBUDGET);
    assert_true(whole.used == whole.max - 10000 && part.used == 0);
}

#ifdef PS_FAULTS
static void without_memory_there_is_none_or_the_old_size_goes_on(void **state)
{
    struct memory_budget budget = { .max = 0 };
    struct count_min *s;

    (void)state;
    for (long k = 0; k < 2; k++) {
        memory_fail_after(k);
        assert_int_equal(count_min_new(&s, &budget), -ENOMEM);
        memory_fail_after(-1);
        assert_int_equal(budget.used, 0);
    }
    assert_int_equal(count_min_new(&s, &budget), 0);
    for (uint64_t i = 0; i < 1000000; i++)
        (void)count_min_add(s, i);
    memory_fail_after(0);
    count_min_end_window(s);
    for (uint64_t i = 0; i < 1000000; i += 97)
        assert_true(count_min_count(s, i) >= 1);
    count_min_end_window(s);
    memory_fail_after(-1);
    assert_int_equal(count_min_count(s, 3), 0);
    assert_int_equal(count_min_add(s, 3), 1);
    assert_true(budget.used == count_min_bytes(s) && budget.used == 2 << 20);
    count_min_free(s);
    assert_int_equal(budget.used, 0);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_never_undercounts),
        cmocka_unit_test(few_keys_are_overcounted_by_more_than_the_bound),
        cmocka_unit_test(counts_older_than_two_windows_are_dropped),
        cmocka_unit_test(it_grows_and_shrinks_with_the_stream_and_with_its_budget),
        cmocka_unit_test(a_small_budget_gets_a_small_sketch_and_a_full_one_none),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_there_is_none_or_the_old_size_goes_on),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
