#include "server/core/table.h"

#include <errno.h>

#include "fixture.h"

#define N_KEYS 30000u

static uint64_t key_of(uint64_t i)
{
    return hash_mix(i);
}

static struct row *find(const struct table *t, uint64_t key)
{
    struct row *row;

    table_find_batch(t, &key, 1, &row);
    return row;
}

/* Adds keys 0..n-1, each row holding its own number; stops at the first failure and
 * says how many went in. */
static int fill(struct table *t, uint32_t n, uint32_t *ret_n)
{
    struct row *row;
    bool is_new;
    int status;

    for (*ret_n = 0; *ret_n < n; ++*ret_n) {
        status = table_upsert(t, key_of(*ret_n), &row, &is_new);
        if (status)
            return status;
        assert_true(is_new);
        assert_int_equal(row->version, 0);
        assert_int_equal(row->last_clock, 0);
        row->floats[0] = (float)*ret_n;
    }
    return 0;
}

static struct table *make(uint32_t row_floats)
{
    struct table *t = NULL;

    assert_int_equal(table_new(&t, row_floats), 0);
    return t;
}

static void an_empty_table_finds_nothing_and_holds_next_to_nothing(void **state)
{
    struct table *t = make(4);

    (void)state;
    assert_null(find(t, 7));
    assert_int_equal(table_n_rows(t), 0);
    assert_true(table_bytes(t) < 1024);
    assert_int_equal(table_bytes_after(t, 0), table_bytes(t));
    table_free(t);
    table_free(NULL);
}

static void rows_stay_where_they_are_and_are_numbered_in_order_of_first_use(void **state)
{
    static struct row *rows[N_KEYS];
    struct table *t = make(5);
    struct row *row;
    bool is_new;
    uint32_t n;

    (void)state;
    for (uint32_t i = 0; i < N_KEYS; i++)
        assert_int_equal(table_upsert(t, key_of(i), &rows[i], &is_new), 0);
    for (uint32_t i = 0; i < N_KEYS; i++) {
        assert_int_equal(table_upsert(t, key_of(i), &row, &is_new), 0);
        assert_ptr_equal(row, rows[i]);
        assert_false(is_new);
        assert_ptr_equal(table_row(t, i), rows[i]);
        assert_int_equal(row->key, key_of(i));
        for (n = 0; n < 5; n++)
            row->floats[n] = (float)i; /* rows do not overlap: read back below */
    }
    for (uint32_t i = 0; i < N_KEYS; i++)
        for (n = 0; n < 5; n++)
            assert_true(rows[i]->floats[n] == (float)i);
    table_free(t);
}

/* The twin is an array: key k < N has been put in, or not. Keys 2^64 - 1 and 0 take part. */
static void finds_what_a_trivial_twin_finds(void **state)
{
    enum { N = 5000, N_ROUNDS = 300, BATCH = 100 };
    struct dice dice = dice_of_this_run("table");
    static bool twin[N];
    uint64_t keys[BATCH], places[BATCH], n_rows = 0;
    struct row *rows[BATCH], *row;
    struct table *t = make(3);
    bool is_new;

    (void)state;
    for (uint32_t round = 0; round < N_ROUNDS; round++) {
        for (uint32_t i = 0; i < BATCH; i++) {
            places[i] = roll(&dice, N);
            keys[i] = places[i] - 1; /* 0 gives the greatest key */
        }
        table_find_batch(t, keys, BATCH, rows);
        for (uint32_t i = 0; i < BATCH; i++) {
            assert_int_equal(rows[i] != NULL, twin[places[i]]);
            assert_true(!rows[i] || rows[i]->key == keys[i]);
        }
        for (uint32_t i = 0; i < BATCH / 4; i++) {
            assert_int_equal(table_upsert(t, keys[i], &row, &is_new), 0);
            assert_int_equal(is_new, !twin[places[i]]);
            n_rows += is_new;
            twin[places[i]] = true;
        }
        assert_int_equal(table_n_rows(t), n_rows);
    }
    table_free(t);
}

/* hash_mix() is a bijection whose low half is the table's hash, so these all
 * share one search path. */
static uint64_t unmix(uint64_t x)
{
    x ^= x >> 31 ^ x >> 62;
    x *= UINT64_C(0x319642b2d24d8ec3);
    x ^= x >> 27 ^ x >> 54;
    x *= UINT64_C(0x96de1b173f119089);
    x ^= x >> 30 ^ x >> 60;
    return x - UINT64_C(0x9e3779b97f4a7c15);
}

static void keys_with_the_same_hash_are_told_apart(void **state)
{
    enum { N = 200 };
    uint64_t keys[N];
    struct row *rows[N], *row;
    struct table *t = make(1);
    bool is_new;

    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        keys[i] = unmix(i << 32 | 12345);
        assert_int_equal(hash_mix(keys[i]), i << 32 | 12345);
    }
    for (uint32_t i = 0; i < N; i += 2)
        assert_int_equal(table_upsert(t, keys[i], &row, &is_new), 0);
    table_find_batch(t, keys, N, rows);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(rows[i] != NULL, i % 2 == 0);
        assert_true(!rows[i] || rows[i]->key == keys[i]);
    }
    table_free(t);
}

static void what_was_reserved_can_be_filled_without_a_failure(void **state)
{
    struct table *t = make(4);
    uint64_t n_bytes;
    uint32_t n;

    (void)state;
    assert_int_equal(table_reserve(t, N_KEYS), 0);
    n_bytes = table_bytes(t);
#ifdef PS_FAULTS
    mem_fail_after(0);
#endif
    assert_int_equal(fill(t, N_KEYS, &n), 0);
#ifdef PS_FAULTS
    mem_fail_after(-1);
#endif
    assert_int_equal(table_bytes(t), n_bytes);
    table_free(t);
}

static void says_beforehand_how_large_it_will_be(void **state)
{
    static const uint32_t widths[] = { 1, 16, 999, 4096, 3 * SPEC_DIM_MAX };
    struct dice dice = dice_of_this_run("table bytes");

    (void)state;
    for (size_t w = 0; w < COUNT_OF(widths); w++) {
        struct table *t = make(widths[w]);
        uint32_t done;

        for (uint64_t n = 0; n < 300;) {
            uint64_t more = roll(&dice, 30), promised = table_bytes_after(t, more);
            struct row *row;
            bool is_new;

            for (done = 0; done < more; done++)
                assert_int_equal(table_upsert(t, n++, &row, &is_new), 0);
            assert_int_equal(table_bytes(t), promised);
            assert_true(promised >= n * widths[w] * sizeof(float));
        }
        assert_true(table_bytes_after(t, UINT64_MAX) >= table_bytes_after(t, 1000000));
        assert_int_equal(table_reserve(t, UINT64_MAX), -ENOMEM);
        table_free(t);
    }
}

#ifdef PS_FAULTS
/* Fails the first allocation, then the second, and so on, until one run needs no more than
 * that. After each, what went in must be there and nothing else. */
static void is_left_as_it_was_by_every_failed_allocation(void **state)
{
    struct table *t;
    uint32_t n = 0;
    int status = -1;

    (void)state;
    for (long k = 0; status != 0; k++) {
        mem_fail_after(k);
        status = table_new(&t, 4);
        if (status)
            continue;
        status = fill(t, N_KEYS, &n);
        assert_true(status == 0 || status == -ENOMEM);
        mem_fail_after(-1);
        assert_int_equal(table_n_rows(t), n);
        for (uint32_t i = 0; i < n; i++)
            assert_true(find(t, key_of(i))->floats[0] == (float)i);
        assert_true(n == N_KEYS || find(t, key_of(n)) == NULL);
        table_free(t);
    }
    mem_fail_after(-1);
    assert_int_equal(n, N_KEYS);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_table_finds_nothing_and_holds_next_to_nothing),
        cmocka_unit_test(rows_stay_where_they_are_and_are_numbered_in_order_of_first_use),
        cmocka_unit_test(finds_what_a_trivial_twin_finds),
        cmocka_unit_test(keys_with_the_same_hash_are_told_apart),
        cmocka_unit_test(what_was_reserved_can_be_filled_without_a_failure),
        cmocka_unit_test(says_beforehand_how_large_it_will_be),
#ifdef PS_FAULTS
        cmocka_unit_test(is_left_as_it_was_by_every_failed_allocation),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
