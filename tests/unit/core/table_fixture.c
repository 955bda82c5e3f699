#include "tests/unit/core/table_fixture.h"

struct row *find(const struct table *t, uint64_t key)
{
    struct row *row;

    table_find_batch(t, &key, 1, &row);
    return row;
}

struct table *make_rows(uint32_t payload_bytes, uint64_t max_bytes,
                        struct memory_budget *parent)
{
    struct table *t = NULL;

    assert_int_equal(table_new(&t, payload_bytes, max_bytes, parent), 0);
    return t;
}

struct row *insert(struct table *t, uint64_t key)
{
    struct row *row = NULL;

    assert_int_equal(table_insert(t, key, &row), 0);
    assert_int_equal(row->key, key);
    assert_int_equal(row->stamp, 0);
    return row;
}

uint64_t unmix(uint64_t x)
{
    x ^= x >> 31 ^ x >> 62;
    x *= UINT64_C(0x319642b2d24d8ec3);
    x ^= x >> 27 ^ x >> 54;
    x *= UINT64_C(0x96de1b173f119089);
    x ^= x >> 30 ^ x >> 60;
    return x - UINT64_C(0x9e3779b97f4a7c15);
}

void check_whole(const struct table *t)
{
    struct table_facts facts;
    uint64_t n_rows = 0;

    for (uint64_t i = 0; i < table_n_numbers(t); i++) {
        struct row *row = table_row(t, i);

        n_rows += row != NULL;
        assert_true(!row || find(t, row->key) == row);
    }
    table_facts(t, &facts);
    assert_int_equal(facts.n_rows, n_rows);
    assert_int_equal(table_n_rows(t), n_rows);
    assert_int_equal(facts.index_bytes + facts.slab_bytes, table_bytes(t));
    assert_true(facts.n_rows <= facts.n_slots);
    assert_true(facts.slab_bytes >= n_rows * facts.row_bytes);
    assert_true(facts.index_bytes >= facts.n_slots / 12 * 64);
}
