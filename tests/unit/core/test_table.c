#include "table_fixture.h"

#define N_KEYS 30000u

static void an_empty_table_finds_nothing_and_holds_next_to_nothing(void **state)
{
    struct row *rows[3] = { (struct row *)state, (struct row *)state, (struct row *)state };
    const uint64_t keys[3] = { 0, 7, UINT64_MAX };
    struct table *t = make_rows(16, 0, NULL);

    table_find_batch(t, keys, 0, rows);
    assert_ptr_equal(rows[0], state);
    table_find_batch(t, keys, 3, rows);
    for (int i = 0; i < 3; i++)
        assert_null(rows[i]);
    assert_int_equal(table_n_rows(t), 0);
    assert_int_equal(table_n_numbers(t), 0);
    assert_true(table_bytes(t) < 1024);
    check_whole(t);
    table_free(t);
    table_free(NULL);
}

/* Payloads of all kinds: none, odd, a usual one, wider than a slab's first size. */
static const uint32_t payloads[] = { 0, 1, 5, 68, 700, 20000 };

static void rows_stay_where_they_are_and_do_not_overlap(void **state)
{
    static struct row *rows[N_KEYS];

    (void)state;
    for (size_t p = 0; p < COUNT_OF(payloads); p++) {
        uint32_t n_bytes = payloads[p], n_keys = n_bytes > 1000 ? 500 : N_KEYS;
        struct table *t = make_rows(n_bytes, 0, NULL);

        for (uint32_t i = 0; i < n_keys; i++) {
            rows[i] = insert(t, i);
            memset(rows[i]->floats, (int)(i % 251), n_bytes);
        }
        for (uint32_t i = 0; i < n_keys; i++) {
            const uint8_t *payload = (const uint8_t *)rows[i]->floats;

            assert_ptr_equal(find(t, i), rows[i]);
            assert_ptr_equal(table_row(t, i), rows[i]); /* in order of first use */
            assert_int_equal(table_number(t, rows[i]), i);
            for (uint32_t at = 0; at < n_bytes; at++)
                assert_int_equal(payload[at], i % 251);
        }
        check_whole(t);
        table_free(t);
    }
}

/* Families of keys that a table may meet, the i-th of each. */
static uint64_t key_in_order(uint64_t i)
{
    return i - 1; /* the greatest key first */
}

static uint64_t key_at_random(uint64_t i)
{
    return hash_mix(~i);
}

static uint64_t key_of_equal_low_bits(uint64_t i)
{
    return i << 40 | 12345;
}

/* As a shard of many sees them: all of one slot. */
static uint64_t key_of_one_slot(uint64_t i)
{
    return unmix((hash_mix(i) >> 12) | UINT64_C(0xabc) << 52);
}

/* Of one prefix, sixteen lines and eight tags. */
static uint64_t key_of_few_lines(uint64_t i)
{
    return unmix((i & 7) | (i >> 3 & 15) << 8 | i >> 7 << 52);
}

typedef uint64_t key_family(uint64_t i);

static key_family *const families[] = { key_in_order, key_at_random, key_of_equal_low_bits,
                                        key_of_one_slot, key_of_few_lines };

#define REFERENCE_N_MAX 20000u
#define BATCH 300u

/* The reference is an array of pointers: where key i stands. */
struct reference {
    struct row *rows[REFERENCE_N_MAX];
    uint64_t n_rows, n_removed;
};

static void put_or_remove(struct table *t, struct reference *reference, key_family *key_of,
                          uint64_t i, struct dice *dice)
{
    struct row *row = reference->rows[i];

    if (!row) {
        row = insert(t, key_of(i));
        row->stamp = row_stamp(i, (uint32_t)i & 0xff, 0);
        reference->rows[i] = row;
        reference->n_rows++;
    } else if (roll(dice, 3) == 0) {
        table_remove(t, row);
        reference->rows[i] = NULL;
        reference->n_rows--;
        reference->n_removed++;
    }
}

static void compare_with_reference(struct table *t, struct reference *reference,
                                   key_family *key_of, uint32_t n, struct dice *dice)
{
    uint64_t keys[BATCH] = { 0 }, places[BATCH];
    struct row *rows[BATCH];
    uint32_t n_batch = (uint32_t)roll(dice, BATCH + 1);

    for (uint32_t i = 0; i < n_batch; i++) {
        places[i] = roll(dice, n);
        keys[i] = key_of(places[i]);
    }
    table_find_batch(t, keys, n_batch, rows);
    for (uint32_t i = 0; i < n_batch; i++) {
        assert_ptr_equal(rows[i], reference->rows[places[i]]);
        assert_true(!rows[i] || row_version(rows[i]) == places[i]);
    }
    for (uint32_t i = 0; i < n_batch; i++)
        put_or_remove(t, reference, key_of, places[i], dice);
    assert_int_equal(table_n_rows(t), reference->n_rows);
}

static void does_what_a_trivial_model_does(void **state)
{
    static const uint32_t sizes[] = { 1, 30, 700, 3000, REFERENCE_N_MAX };
    struct dice dice = dice_of_this_run("table");
    static struct reference reference;

    (void)state;
    for (size_t f = 0; f < COUNT_OF(families); f++) {
        for (size_t s = 0; s < COUNT_OF(sizes); s++) {
            uint32_t n_rounds = sizes[s] > 3000 ? 400 : 60;
            struct table *t = make_rows(payloads[roll(&dice, 4)], 0, NULL);
            struct table_facts facts;

            memset(&reference, 0, sizeof reference);
            for (uint32_t round = 0; round < n_rounds; round++)
                compare_with_reference(t, &reference, families[f], sizes[s], &dice);
            check_whole(t);
            table_facts(t, &facts);
            assert_int_equal(facts.n_removed, reference.n_removed);
            table_free(t);
        }
    }
}

static void numbers_of_removed_rows_are_used_before_new_ones(void **state)
{
    enum { N = 5000 };
    struct table *t = make_rows(4, 0, NULL);
    uint64_t n_bytes;

    (void)state;
    for (uint64_t i = 0; i < N; i++)
        insert(t, i);
    n_bytes = table_bytes(t);
    for (uint64_t i = 0; i < N; i += 2)
        table_remove(t, find(t, i));
    for (uint64_t i = 0; i < N; i++)
        assert_true((table_row(t, i) == NULL) == (i % 2 == 0) &&
                    (find(t, i) == NULL) == (i % 2 == 0));
    for (uint64_t i = 0; i < N; i += 2)
        insert(t, N + i);
    assert_int_equal(table_n_numbers(t), N);
    assert_int_equal(table_bytes(t), n_bytes);
    check_whole(t);
    insert(t, N + 1);
    assert_int_equal(table_n_numbers(t), N + 1);
    for (uint64_t i = 0; i < table_n_numbers(t); i++)
        table_remove(t, table_row(t, i));
    assert_int_equal(table_n_rows(t), 0);
    check_whole(t);
    table_free(t);
}

static void touches_are_counted_up_to_their_greatest(void **state)
{
    struct table *t = make_rows(4, 0, NULL);
    struct row *row = insert(t, 1);

    (void)state;
    row->stamp = row_stamp(0, 0, ROW_VISITED);
    for (uint32_t i = 1; i <= 300; i++) {
        row_touch(row, ROW_VERSION_MAX - i);
        assert_true(row_version(row) == ROW_VERSION_MAX - i);
        assert_int_equal(row_touches(row), i < ROW_TOUCHES_MAX ? i : ROW_TOUCHES_MAX);
        assert_int_equal(row_flags(row), ROW_VISITED);
    }
    table_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_table_finds_nothing_and_holds_next_to_nothing),
        cmocka_unit_test(rows_stay_where_they_are_and_do_not_overlap),
        cmocka_unit_test(does_what_a_trivial_model_does),
        cmocka_unit_test(numbers_of_removed_rows_are_used_before_new_ones),
        cmocka_unit_test(touches_are_counted_up_to_their_greatest),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
