/* Where keys go by their hash, and what becomes of keys whose hashes somebody has chosen. */
#include "table_fixture.h"

#include <math.h>

#include "server/core/hash_index.h"

static void every_line_of_tags_is_matched_as_the_plain_loop_does(void **state)
{
    struct dice dice = dice_of_this_run("table lines");
    struct hash_index_line line;

    (void)state;
    memset(&line, 0xff, sizeof line); /* what lies behind the tags must not match */
    for (uint32_t round = 0; round < 20000; round++) {
        uint8_t n_tags = (uint8_t)(1 + roll(&dice, 255)), tag = (uint8_t)roll(&dice, n_tags);

        for (uint32_t i = 0; i < HASH_INDEX_LINE_PLACES; i++)
            line.tags[i] = (uint8_t)roll(&dice, n_tags);
        assert_int_equal(hash_index_match(&line, tag), hash_index_match_plain(&line, tag));
    }
}

static void no_key_has_the_tag_of_an_empty_place(void **state)
{
    (void)state;
    for (uint64_t low = 0; low < 1024; low++)
        assert_int_equal(hash_index_tag(low), (low & 0xff) ? (low & 0xff) : 1);
}

/* x = 2 (1 - 2^-u): close to it, never falling, from 0 to the top. */
static void the_skew_keeps_the_order_of_hashes(void **state)
{
    struct dice dice = dice_of_this_run("table skew");

    (void)state;
    assert_int_equal(hash_index_prefix(0, 32), 0);
    assert_int_equal(hash_index_prefix(UINT64_MAX, 32), UINT32_MAX);
    assert_int_equal(hash_index_prefix(UINT64_MAX, 0), 0);
    for (uint32_t round = 0; round < 100000; round++) {
        uint64_t u = roll(&dice, UINT32_MAX), x = hash_index_prefix(u << 20, 32);
        double exact = 2 * (1 - exp2(-(double)u * 0x1p-32));

        assert_true(fabs((double)x * 0x1p-32 - exact) < 0.001);
        assert_true(hash_index_prefix((u + 1) << 20, 32) >= x);
        assert_int_equal(hash_index_prefix(u << 20, 7), x >> 25);
    }
}

/* Line, tag and directory are the same for all 4096 of them: they stand in each other's way from the
 * first line to the last. */
static void keys_with_the_same_hash_are_kept_apart(void **state)
{
    enum { N = 1500 };
    struct table *t = make_rows(0, 0, NULL);

    (void)state;
    for (uint64_t i = 0; i < N; i += 2)
        insert(t, unmix(i << 52 | 0x123456789abcd));
    for (uint64_t i = 0; i < N; i++)
        assert_true((find(t, unmix(i << 52 | 0x123456789abcd)) != NULL) == (i % 2 == 0));
    for (uint64_t i = 0; i < N; i += 4)
        table_remove(t, find(t, unmix(i << 52 | 0x123456789abcd)));
    for (uint64_t i = 0; i < N; i++)
        assert_true((find(t, unmix(i << 52 | 0x123456789abcd)) != NULL) == (i % 4 == 2));
    check_whole(t);
    table_free(t);
}

/* All n_bits upper bits of u are the same; the rest is random. */
static uint64_t key_of_prefix(uint64_t i, uint32_t n_bits)
{
    uint64_t same = UINT64_C(0xc0ffee123) << 16, free_bits = 52 - n_bits;

    return unmix((hash_mix(i) & ((UINT64_C(1) << free_bits) - 1)) |
                 (same & ((UINT64_C(1) << 52) - 1)) >> free_bits << free_bits |
                 (i & 0xfff) << 52);
}

/* No tombstone: with the last key the last trace of all is gone. */
static void removal_leaves_nothing_behind(void **state)
{
    enum { N = 700 }; /* of 768 places in 64 lines: many stand away from home */
    struct dice dice = dice_of_this_run("table removal");
    struct memory_budget budget = { 0 };
    struct slab rows;
    struct hash_index x;
    uint64_t number, n_passed = 0;
    uint32_t order[N];

    (void)state;
    hash_index_init(&x, &budget);
    slab_init(&rows, sizeof(struct row), 16384, &budget);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t j = (uint32_t)roll(&dice, i + 1);
        struct row *row;

        order[i] = order[j];
        order[j] = i;
        assert_int_equal(hash_index_reserve(&x, &rows, i), 0);
        assert_int_equal(slab_next(&rows, &number), 0);
        row = slab_at(&rows, number);
        row->key = i;
        hash_index_put(&x, i, (uint32_t)number);
    }
    for (uint32_t i = 0; i < 64; i++)
        n_passed += x.segments[0].lines[i].n_passed;
    assert_true(n_passed > 0);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(hash_index_remove(&x, &rows, slab_at(&rows, order[i])), order[i]);
    assert_int_equal(x.segments[0].n_keys, 0);
    for (uint32_t i = 0; i < 64; i++) {
        assert_int_equal(x.segments[0].lines[i].n_passed, 0);
        assert_int_equal(hash_index_match(&x.segments[0].lines[i], 0), 0xfff);
    }
    hash_index_deinit(&x);
    slab_deinit(&rows);
    assert_int_equal(budget.used, 0);
}

/* More keys than a segment holds cannot be told apart by the directory, or only by one as large as
 * the machine. Then a segment grows: the memory stays in proportion to the keys. */
static void keys_that_share_a_prefix_cost_no_more_than_others(void **state)
{
    static const uint32_t prefixes[] = { 5, 9, 14, 20, 31, 32 };
    enum { N = 40000 };

    (void)state;
    for (size_t p = 0; p < COUNT_OF(prefixes); p++) {
        struct table *t = make_rows(0, 0, NULL);
        struct table_facts facts;

        for (uint64_t i = 0; i < N; i++)
            insert(t, key_of_prefix(i, prefixes[p]));
        for (uint64_t i = 0; i < 2 * N; i++)
            assert_true((find(t, key_of_prefix(i, prefixes[p])) != NULL) == (i < N));
        check_whole(t);
        table_facts(t, &facts);
        assert_true(facts.index_bytes < (UINT64_C(3) << 20));
        for (uint64_t i = 0; i < N; i++)
            table_remove(t, find(t, key_of_prefix(i, prefixes[p])));
        assert_int_equal(table_n_rows(t), 0);
        for (uint64_t i = 0; i < N; i++) /* the rest of the hash space is not worse for it */
            insert(t, i);
        check_whole(t);
        table_free(t);
    }
}

/* What the skew is for: with every so many new keys as many segments split, and the share of places
 * in use stays about the same. */
static void segments_split_one_after_another(void **state)
{
    enum { STEP = 50000, N_STEPS = 12 };
    struct table *t = make_rows(0, 0, NULL);
    struct table_facts facts;
    uint64_t n_splits = 0;

    (void)state;
    for (uint64_t step = 0; step < N_STEPS; step++) {
        for (uint64_t i = 0; i < STEP; i++)
            insert(t, step * STEP + i);
        table_facts(t, &facts);
        if (step > 2) {
            assert_in_range(facts.n_splits - n_splits, 2, 10); /* 5.9 on average */
            assert_in_range(1000 * facts.n_rows / facts.n_slots, 640, 740);
        }
        n_splits = facts.n_splits;
    }
    check_whole(t);
    table_free(t);
}

static void rows_near_a_key_stand_where_it_would(void **state)
{
    enum { N = 60000, NEAR = 16 };
    struct table *t = make_rows(4, 0, NULL);
    struct row *rows[NEAR + 1] = { 0 };

    (void)state;
    assert_int_equal(table_near(t, 5, rows, NEAR), 0);
    insert(t, 1);
    assert_int_equal(table_near(t, 5, rows, NEAR), 1);
    assert_ptr_equal(rows[0], find(t, 1));
    for (uint64_t i = 2; i < N; i++)
        insert(t, i);
    for (uint64_t key = 0; key < 3 * N; key += 7) {
        uint32_t n = table_near(t, key, rows, NEAR);

        assert_int_equal(n, NEAR);
        assert_null(rows[NEAR]);
        for (uint32_t i = 0; i < n; i++) {
            assert_ptr_equal(find(t, rows[i]->key), rows[i]);
            for (uint32_t j = 0; j < i; j++)
                assert_ptr_not_equal(rows[i], rows[j]);
        }
    }
    table_free(t);
}

/* A few rows come and go, or none; keys are few, so groups meet those that did. */
static void churn(struct table *t, struct dice *dice, uint64_t n_keys)
{
    for (uint64_t n = roll(dice, 3) ? 0 : roll(dice, 20); n; n--) {
        uint64_t key = roll(dice, n_keys);
        struct row *row = find(t, key);

        if (row)
            table_remove(t, row);
        else
            insert(t, key);
    }
}

static void a_lookup_in_steps_says_what_holds_at_its_last_step(void **state)
{
    struct dice dice = dice_of_this_run("table groups");

    (void)state;
    for (uint32_t round = 0; round < 20; round++) {
        uint64_t n_keys = 1 + roll(&dice, 5000), keys[HASH_INDEX_GROUP_MAX];
        struct row *rows[HASH_INDEX_GROUP_MAX];
        struct table *t = make_rows(8, 0, NULL);
        struct hash_index_group g;

        for (uint32_t i = 0; i < 500; i++) {
            uint32_t n = (uint32_t)roll(&dice, HASH_INDEX_GROUP_MAX + 1);

            for (uint32_t k = 0; k < n; k++)
                keys[k] = roll(&dice, n_keys);
            table_group_begin(t, &g, keys, n, rows);
            churn(t, &dice, n_keys);
            table_group_prefetch(t, &g);
            churn(t, &dice, n_keys);
            table_group_end(t, &g);
            for (uint32_t k = 0; k < n; k++)
                assert_ptr_equal(rows[k], find(t, keys[k]));
        }
        check_whole(t);
        table_free(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_line_of_tags_is_matched_as_the_plain_loop_does),
        cmocka_unit_test(no_key_has_the_tag_of_an_empty_place),
        cmocka_unit_test(the_skew_keeps_the_order_of_hashes),
        cmocka_unit_test(keys_with_the_same_hash_are_kept_apart),
        cmocka_unit_test(removal_leaves_nothing_behind),
        cmocka_unit_test(keys_that_share_a_prefix_cost_no_more_than_others),
        cmocka_unit_test(segments_split_one_after_another),
        cmocka_unit_test(rows_near_a_key_stand_where_it_would),
        cmocka_unit_test(a_lookup_in_steps_says_what_holds_at_its_last_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
