/* What a table holds, what it may hold, and what becomes of it when there is no more. */
#include "table_fixture.h"

static void takes_from_every_budget_just_what_it_holds(void **state)
{
    enum { N = 60000 };
    struct memory_budget shard = { .max = UINT64_C(1) << 30 };
    struct table *a = make_rows(68, 0, &shard), *b = make_rows(700, UINT64_C(1) << 29, &shard);
    struct table_facts facts;

    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        insert(a, i);
        if (i % 4 == 0)
            insert(b, i);
        if (i % 3 == 0)
            table_remove(a, find(a, i));
        assert_int_equal(shard.used, table_bytes(a) + table_bytes(b));
        table_facts(a, &facts);
        assert_int_equal(facts.index_bytes + facts.slab_bytes, table_bytes(a));
        assert_true(facts.slab_bytes >= table_n_numbers(a) * facts.row_bytes);
    }
    check_whole(a);
    check_whole(b);
    table_free(a);
    assert_int_equal(shard.used, table_bytes(b));
    table_free(b);
    assert_int_equal(shard.used, 0);
}

/* Fills until it is refused; says how many rows there are then. */
static uint64_t fill(struct table *t, uint64_t n_max, int *ret_status)
{
    struct row *row;
    uint64_t n = 0;

    *ret_status = 0;
    while (n < n_max && !(*ret_status = table_insert(t, n, &row)))
        n++;
    return n;
}

static void is_left_as_it_was_by_a_full_budget(void **state)
{
    static const uint64_t budgets[] = { 0x100, 0x1000, 30000, 123456, 1 << 20, 5 << 20 };

    (void)state;
    for (size_t i = 0; i < 2 * COUNT_OF(budgets); i++) {
        uint64_t n, max = budgets[i / 2];
        struct memory_budget shard = { .max = i % 2 ? max : 0 };
        struct table *t = NULL;
        int status = table_new(&t, 20, i % 2 ? 0 : max, &shard);

        if (status) {
            assert_int_equal(status, PS_EBUDGET);
            assert_null(t);
            assert_int_equal(shard.used, 0);
            continue;
        }
        n = fill(t, 1000000, &status);
        assert_int_equal(status, PS_EBUDGET);
        assert_int_equal(table_n_rows(t), n);
        assert_true(shard.used <= max);
        assert_int_equal(shard.used, table_bytes(t));
        for (uint64_t key = 0; key < n + 1000; key++)
            assert_true((find(t, key) != NULL) == (key < n));
        check_whole(t);
        table_free(t);
        assert_int_equal(shard.used, 0);
    }
}

/* Rows come and go for ever at a full budget: whoever removes a row near the new one has a place. */
static void a_row_near_by_is_evicted_when_the_budget_is_full(void **state)
{
    enum { NEAR = 8 };
    struct dice dice = dice_of_this_run("table at its budget");
    struct table *t = make_rows(4, 2500000, NULL);
    struct row *rows[NEAR], *row;
    uint64_t n_refused = 0;
    int status;

    (void)state;
    for (uint64_t key = 0; key < 300000; key++) {
        status = table_insert(t, key, &row);
        if (!status)
            continue;
        assert_int_equal(status, PS_EBUDGET);
        assert_int_equal(table_near(t, key, rows, NEAR), NEAR);
        table_remove(t, rows[roll(&dice, NEAR)]);
        insert(t, key);
        n_refused++;
    }
    assert_true(n_refused > 100000);
    assert_true(table_bytes(t) <= 2500000);
    check_whole(t);
    table_free(t);
}

/* 512 lines have 6144 places, of which 24 are kept free: the last ones are far to find. */
static void the_index_is_filled_before_a_key_is_refused(void **state)
{
    struct memory_budget shard = { 0 };
    struct table *t = make_rows(0, 0, &shard);
    struct table_facts facts;
    struct row *row;
    uint64_t n;
    int status;

    (void)state;
    for (n = 0; n < 6000; n++)
        insert(t, n);
    shard.max = shard.used;
    for (; !(status = table_insert(t, n, &row)); n++)
        assert_ptr_equal(find(t, n), row);
    assert_int_equal(status, PS_EBUDGET);
    table_facts(t, &facts);
    assert_int_equal(facts.n_slots, 6144);
    assert_int_equal(n, 6120);
    assert_null(find(t, n));
    check_whole(t);
    shard.max = 0;
    insert(t, n);
    table_facts(t, &facts);
    assert_int_equal(facts.n_slots, 2 * 6144);
    check_whole(t);
    table_free(t);
}

/* All 64 lines have been passed by some key: nothing but their number ends a search. */
static void a_search_ends_where_every_line_was_passed(void **state)
{
    struct table *t = make_rows(0, 0, NULL);
    uint64_t last_line = 63 * 3; /* of the way with steps of 3, which is tag 1's, from line 0 */

    (void)state;
    for (uint64_t i = 0; i < 765; i++)
        insert(t, unmix(i << 52 | 1));
    for (uint64_t i = 0; i < 4; i++)
        table_remove(t, find(t, unmix(i << 52 | 1)));
    /* Three fill the last line, the fourth passes it. */
    for (uint64_t i = 0; i < 4; i++)
        insert(t, unmix(i << 52 | last_line << 8 | 1));
    assert_null(find(t, unmix(1)));
    assert_null(find(t, unmix(7)));
    for (uint64_t i = 0; i < 4; i++)
        assert_non_null(find(t, unmix(i << 52 | last_line << 8 | 1)));
    check_whole(t);
    table_free(t);
}

static void rows_that_could_never_be_held_are_refused(void **state)
{
    struct memory_budget shard = { .max = 1 << 20 };
    struct table *t = make_rows(UINT32_MAX - 100, 0, &shard);
    struct row *row;

    (void)state;
    assert_int_equal(table_insert(t, 1, &row), PS_EBUDGET);
    assert_null(find(t, 1));
    check_whole(t);
    table_free(t);
    assert_int_equal(shard.used, 0);
}

/* What is named lies ahead, once, and costs nothing until it is used. */
static void memory_ahead_is_named_once_and_within_the_budget(void **state)
{
    struct memory_budget shard = { 0 };
    struct table *t = make_rows(1000, 0, &shard);
    uint64_t n = 0, before, named = 0;
    size_t n_bytes;
    void *pages;

    (void)state;
    assert_false(table_ahead(t, 10000, &pages, &n_bytes));
    while (table_bytes(t) < 20 << 20)
        insert(t, n++);
    before = table_bytes(t);
    while (table_ahead(t, 20000, &pages, &n_bytes)) {
        assert_true(n_bytes > 0);
        memset(pages, 0, n_bytes); /* nobody else's */
        named += n_bytes;
    }
    assert_in_range(named, 14 << 20, 24 << 20);
    assert_true(table_bytes(t) - before < 4096); /* a list may have grown */
    assert_false(table_ahead(t, 20000, &pages, &n_bytes));
    check_whole(t);
    for (uint64_t i = 0; i < 10000; i++)
        insert(t, n++);
    assert_true(table_ahead(t, 20000, &pages, &n_bytes));
    shard.max = shard.used + (1 << 20);
    assert_false(table_ahead(t, 1 << 20, &pages, &n_bytes));
    check_whole(t);
    for (uint64_t i = 0; i < n; i++)
        assert_non_null(find(t, i));
    table_free(t);
    assert_int_equal(shard.used, 0);
}

#ifdef PS_FAULTS
/* Fails the first allocation, then the second, and so on, until one run needs no more than that.
 * After each, what went in must be there and nothing else, and the table must still grow. */
static void is_left_as_it_was_by_every_failed_allocation(void **state)
{
    enum { N = 22000 }; /* two splits: segments lost in one would show */
    struct table *t = make_rows(4, 0, NULL);
    uint64_t n, n_bytes;
    int status;

    (void)state;
    n = fill(t, N, &status);
    assert_int_equal(n, N);
    n_bytes = table_bytes(t);
    table_free(t);
    status = -1;
    for (long k = 0; status != 0; k++) {
        struct memory_budget shard = { 0 };

        memory_fail_after(k);
        status = table_new(&t, 4, 0, &shard);
        if (status) {
            assert_int_equal(status, -ENOMEM);
            assert_int_equal(shard.used, 0);
            continue;
        }
        n = fill(t, N, &status);
        memory_fail_after(-1);
        assert_true(status == (n == N ? 0 : -ENOMEM));
        assert_int_equal(shard.used, table_bytes(t));
        for (uint64_t i = 0; i < n + 100; i++)
            assert_true((find(t, i) != NULL) == (i < n));
        check_whole(t);
        for (uint64_t i = n; i < N; i++)
            insert(t, i);
        check_whole(t);
        assert_int_equal(table_bytes(t), n_bytes); /* nothing was lost on the way */
        table_free(t);
        assert_int_equal(shard.used, 0);
    }
    memory_fail_after(-1);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_from_every_budget_just_what_it_holds),
        cmocka_unit_test(is_left_as_it_was_by_a_full_budget),
        cmocka_unit_test(a_row_near_by_is_evicted_when_the_budget_is_full),
        cmocka_unit_test(the_index_is_filled_before_a_key_is_refused),
        cmocka_unit_test(a_search_ends_where_every_line_was_passed),
        cmocka_unit_test(rows_that_could_never_be_held_are_refused),
        cmocka_unit_test(memory_ahead_is_named_once_and_within_the_budget),
#ifdef PS_FAULTS
        cmocka_unit_test(is_left_as_it_was_by_every_failed_allocation),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
