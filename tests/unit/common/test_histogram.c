#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/histogram.h"
#include "tests/support/seed.h"

#define N_VALUES 4000

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* Of any magnitude: as many in [2^e, 2^(e+1)) for each e. */
static uint64_t any_value(uint64_t seed, uint64_t i)
{
    return hash_mix2(seed, 2 * i) >> (hash_mix2(seed, 2 * i + 1) % 64);
}

/* The value of rank ceil(q n), of sorted values. */
static uint64_t reference_quantile(const uint64_t *sorted, size_t n, double q)
{
    double exact = q * (double)n;
    size_t rank = (size_t)exact;

    if ((double)rank < exact)
        rank++;
    return sorted[rank > 0 ? (rank > n ? n : rank) - 1 : 0];
}

static void assert_near_above(uint64_t have, uint64_t exact)
{
    assert_true(have >= exact);
    assert_true(have - exact <= exact / 16);
}

static void quantiles_are_those_of_the_sorted_values_to_within_a_sixteenth(void **state)
{
    static const double qs[] = { 0, 0.001, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1 };
    static struct histogram h;
    static uint64_t values[N_VALUES];
    uint64_t seed = seed_by_the_clock();
    size_t n, i, round;

    (void)state;
    for (round = 0; round < 30; round++, seed++) {
        memset(&h, 0, sizeof h);
        n = 1 + hash_mix(seed) % N_VALUES;
        for (i = 0; i < n; i++)
            histogram_record(&h, values[i] = any_value(seed, i));
        qsort(values, n, sizeof values[0], compare);
        for (i = 0; i < COUNT_OF(qs); i++)
            assert_near_above(histogram_quantile(&h, qs[i]),
                              reference_quantile(values, n, qs[i]));
        assert_true(histogram_quantile(&h, 1) == values[n - 1]);
        assert_true(h.max == values[n - 1]);
        assert_int_equal(h.n, n);
    }
}

static void counts_up_to_a_limit_are_those_of_the_values_to_within_a_bucket(void **state)
{
    static struct histogram h;
    const uint64_t seed = seed_by_the_clock();
    uint64_t limit, exact, above;
    size_t i, k;

    (void)state;
    memset(&h, 0, sizeof h);
    for (i = 0; i < N_VALUES; i++)
        histogram_record(&h, any_value(seed, i));
    for (k = 0; k < 300; k++) {
        limit = any_value(seed + 1, k);
        exact = above = 0;
        for (i = 0; i < N_VALUES; i++) {
            exact += any_value(seed, i) <= limit;
            above += any_value(seed, i) > limit && any_value(seed, i) - limit <= limit / 16;
        }
        assert_in_range(histogram_count_le(&h, limit), exact, exact + above);
    }
    assert_int_equal(histogram_count_le(&h, UINT64_MAX), N_VALUES);
}

static void small_values_are_exact(void **state)
{
    static struct histogram h;
    uint64_t value;

    (void)state;
    memset(&h, 0, sizeof h);
    for (value = 0; value < 32; value++)
        for (uint64_t i = 0; i <= value; i++)
            histogram_record(&h, value);
    for (value = 0; value < 32; value++)
        assert_int_equal(histogram_count_le(&h, value), (value + 1) * (value + 2) / 2);
    assert_int_equal(histogram_quantile(&h, 0), 0);
    assert_int_equal(histogram_quantile(&h, 1), 31);
}

static void the_ends_of_the_range_have_their_buckets(void **state)
{
    static const uint64_t values[] = {
        0, 1, 15, 16, 17, 31, 32, 33, UINT64_MAX / 2, UINT64_MAX - 1, UINT64_MAX
    };
    static struct histogram h;
    size_t i;

    (void)state;
    for (i = 0; i < COUNT_OF(values); i++) {
        memset(&h, 0, sizeof h);
        histogram_record(&h, values[i]);
        assert_true(histogram_quantile(&h, 0.5) == values[i]); /* never above max */
    }
}

static void an_empty_histogram_says_0(void **state)
{
    static struct histogram h;

    (void)state;
    memset(&h, 0, sizeof h);
    assert_int_equal(h.n, 0);
    assert_int_equal(h.max, 0);
    assert_int_equal(histogram_quantile(&h, 0.5), 0);
    assert_int_equal(histogram_count_le(&h, UINT64_MAX), 0);
}

static void merged_is_as_if_recorded_together(void **state)
{
    static struct histogram parts[2], whole;
    size_t i;

    (void)state;
    memset(parts, 0, sizeof parts);
    memset(&whole, 0, sizeof whole);
    for (i = 0; i < 1000; i++) {
        histogram_record(&parts[i % 2], any_value(5, i));
        histogram_record(&whole, any_value(5, i));
    }
    histogram_merge(&parts[0], &parts[1]);
    assert_memory_equal(&parts[0], &whole, sizeof whole);
}

struct shared {
    struct histogram h;
    _Atomic int is_done;
};

static void *write_values(void *arg)
{
    struct shared *s = arg;
    uint64_t i;

    for (i = 0; i < 50000; i++)
        histogram_record(&s->h, 1000 + i % 24);
    s->is_done = 1;
    return NULL;
}

static void another_thread_may_read_while_one_writes(void **state)
{
    static struct shared s;
    pthread_t writer;
    uint64_t q;

    (void)state;
    assert_int_equal(pthread_create(&writer, NULL, write_values, &s), 0);
    while (!s.is_done) {
        q = histogram_quantile(&s.h, 0.5);
        assert_true(q == 0 || (q >= 992 && q <= 1023));
    }
    assert_int_equal(pthread_join(writer, NULL), 0);
    assert_int_equal(s.h.n, 50000);
}

static void what_came_since_a_copy_is_the_difference(void **state)
{
    static struct histogram h, copy, since;

    (void)state;
    for (uint64_t i = 0; i < 1000; i++)
        histogram_record(&h, 1000000);
    histogram_merge(&copy, &h);
    for (uint64_t i = 1; i <= 100; i++)
        histogram_record(&h, i);
    histogram_difference(&since, &h, &copy);
    assert_int_equal(since.n, 100);
    assert_int_equal(since.sum, 5050);
    assert_in_range(histogram_quantile(&since, 0.5), 48, 52);
    assert_in_range(histogram_quantile(&since, 0.99), 96, 104);
    assert_in_range(since.max, 100, 104);
    memset(&since, 0, sizeof since);
    histogram_difference(&since, &h, &h);
    assert_int_equal(since.n + since.max + histogram_quantile(&since, 0.5), 0);
}

static void the_buckets_have_all_values_and_each_its_own(void **state)
{
    static struct histogram h;
    uint64_t last, before = 0, n = 0;

    (void)state;
    for (uint64_t i = 0; i < 5000; i++)
        histogram_record(&h, i * i);
    for (unsigned b = 0; b < HISTOGRAM_N_BUCKETS; b++) {
        uint64_t in_it = histogram_bucket(&h, b, &last);

        assert_true(b == 0 || last > before);
        n += in_it;
        assert_int_equal(n, histogram_count_le(&h, last));
        before = last;
    }
    assert_int_equal(n, 5000);
    assert_true(last == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles_are_those_of_the_sorted_values_to_within_a_sixteenth),
        cmocka_unit_test(counts_up_to_a_limit_are_those_of_the_values_to_within_a_bucket),
        cmocka_unit_test(small_values_are_exact),
        cmocka_unit_test(the_ends_of_the_range_have_their_buckets),
        cmocka_unit_test(an_empty_histogram_says_0),
        cmocka_unit_test(merged_is_as_if_recorded_together),
        cmocka_unit_test(another_thread_may_read_while_one_writes),
        cmocka_unit_test(what_came_since_a_copy_is_the_difference),
        cmocka_unit_test(the_buckets_have_all_values_and_each_its_own),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
