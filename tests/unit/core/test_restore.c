/* Rows of a checkpoint come back in batches: as one by one; into an index that was made ready, or was not. */
#include <errno.h>

#include "common/memory.h"
#include "fixture.h"
#include "proto/placement.h"
#include "server/core/shard_internal.h"

enum { DIM = 3, N = 1000 };

static void a_batch_finds_or_makes_each_row_once(void **state)
{
    struct dice dice = dice_of_this_run("a batch");
    struct table *t;
    struct row *rows[200], *found[200];
    uint64_t keys[200], n_there = 0;
    static uint8_t is_there[500];

    (void)state;
    memset(is_there, 0, sizeof is_there);
    assert_int_equal(table_new(&t, 8, 0, NULL), 0);
    for (int round = 0; round < 50; round++) {
        uint32_t n = (uint32_t)roll(&dice, COUNT_OF(keys) + 1);

        for (uint32_t i = 0; i < n; i++)
            keys[i] = roll(&dice, COUNT_OF(is_there)); /* some are there twice */
        assert_int_equal(table_upsert_batch(t, keys, n, rows), 0);
        for (uint32_t i = 0; i < n; i++) {
            n_there += !is_there[keys[i]];
            is_there[keys[i]] = 1;
            assert_int_equal(rows[i]->key, keys[i]);
        }
        table_find_batch(t, keys, n, found);
        assert_memory_equal(rows, found, n * sizeof rows[0]);
        assert_int_equal(table_n_rows(t), n_there);
    }
    table_free(t);
}

static void an_index_that_was_made_ready_does_not_split_on_the_way(void **state)
{
    static const uint64_t sizes[] = { 0, 1, 700, 5000, 11000, 100000, 1000000 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        struct table_facts ready, full, grown;
        struct table *t, *reference;
        struct row *row;

        assert_int_equal(table_new(&t, 4, 0, NULL), 0);
        assert_int_equal(table_new(&reference, 4, 0, NULL), 0);
        table_expect(t, sizes[i]);
        table_facts(t, &ready);
        for (uint64_t key = 0; key < sizes[i]; key++) {
            assert_int_equal(table_insert(t, key, &row), 0);
            assert_int_equal(table_insert(reference, key, &row), 0);
        }
        table_facts(t, &full);
        table_facts(reference, &grown);
        assert_int_equal(full.n_splits, ready.n_splits);
        assert_int_equal(full.n_slots, ready.n_slots);
        /* It takes what it would have grown to, but for the keys that decide about a split. */
        assert_in_range(full.n_slots, grown.n_slots / 2, grown.n_slots * 2 + 768);
        for (uint64_t key = 0; key < sizes[i]; key++) {
            table_find_batch(t, &key, 1, &row);
            assert_true(row && row->key == key);
        }
        table_free(t);
        table_free(reference);
    }
}

static void a_table_with_rows_or_without_memory_expects_nothing_and_works(void **state)
{
    struct memory_budget small = { .max = 200 << 10 };
    struct table_facts before, after;
    struct table *t;
    struct row *row;

    (void)state;
    assert_int_equal(table_new(&t, 4, 0, NULL), 0);
    assert_int_equal(table_insert(t, 1, &row), 0);
    table_facts(t, &before);
    table_expect(t, 1000000);
    table_facts(t, &after);
    assert_int_equal(before.n_slots, after.n_slots);
    table_free(t);
    assert_int_equal(table_new(&t, 4, 0, &small), 0);
    table_expect(t, 1000000);
    assert_true(small.used <= small.max);
    assert_int_equal(table_insert(t, 1, &row), 0);
    table_find_batch(t, &(uint64_t){ 1 }, 1, &row);
    assert_non_null(row);
    table_free(t);
    assert_int_equal(small.used, 0);
}

/* Rows as a scan writes them. */
static size_t make_rows(uint8_t *dst, uint32_t n, uint64_t first_key, uint64_t version)
{
    float payload[2 * DIM];
    uint8_t *at = dst;

    for (uint64_t i = 0; i < n; i++) {
        uint64_t key = first_key + i, stamp = row_stamp(version, 3, 0xff);

        for (uint32_t k = 0; k < 2 * DIM; k++)
            payload[k] = (float)(key * version + k);
        memcpy(at, &key, 8);
        memcpy(at + 8, &stamp, 8);
        memcpy(at + 16, payload, sizeof payload);
        at += 16 + sizeof payload;
    }
    return (size_t)(at - dst) / (n ? n : 1);
}

static void rows_come_back_as_one_by_one_and_those_of_others_are_left_out(void **state)
{
    static uint8_t bytes[N * (16 + 8 * DIM)];
    struct table_spec spec = sparse_spec("t", DIM, TABLE_SPEC_ADAGRAD);
    size_t row_bytes = make_rows(bytes, N, 0, 5);

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        struct shard *s = make_shard(i, 3, 0), *reference = make_shard(i, 3, 0);
        uint32_t id, n_ours, n_gone, n_want = 0;
        uint64_t keys[N / 2];

        enter_shard();
        id = make_table(s, &spec);
        (void)make_table(reference, &spec);
        restore_expect(s, id, N);
        assert_int_equal(restore_rows(s, id, bytes, N, &n_ours), 0);
        for (uint32_t r = 0; r < N; r++) {
            uint64_t key, stamp;

            memcpy(&key, bytes + r * row_bytes, 8);
            memcpy(&stamp, bytes + r * row_bytes + 8, 8);
            assert_int_equal(restore_row(reference, id, key, stamp, bytes + r * row_bytes + 16),
                             0);
            n_want += placement_shard(key, table_spec_salt(&spec), 3) == i;
        }
        assert_int_equal(n_ours, n_want);
        assert_int_equal(table_n_rows(shard_table(s, id)->rows), n_want);
        for (uint64_t k = 0; k < n_want; k++) {
            const struct row *row = table_row(shard_table(reference, id)->rows, k);

            assert_memory_equal(find_row(s, id, row->key), row, row_bytes);
            assert_int_equal(row_flags(row), 0);
        }
        for (uint64_t k = 0; k < COUNT_OF(keys); k++)
            keys[k] = 2 * k;
        assert_int_equal(restore_gone(s, id, (const uint8_t *)keys, COUNT_OF(keys), &n_gone),
                         0);
        assert_int_equal(table_n_rows(shard_table(s, id)->rows), n_ours - n_gone);
        assert_int_equal(restore_gone(s, id, (const uint8_t *)keys, COUNT_OF(keys), &n_gone),
                         0);
        assert_int_equal(table_n_rows(shard_table(s, id)->rows), n_ours - n_gone);
        shard_free(s);
        shard_free(reference);
    }
}

/* In one batch, and in another. */
static void of_a_row_that_is_there_twice_the_last_one_counts(void **state)
{
    static uint8_t bytes[302 * (16 + 8 * DIM)];
    struct table_spec spec = sparse_spec("t", DIM, TABLE_SPEC_ADAGRAD);
    struct shard *s = make_shard(0, 1, 0);
    uint32_t id = make_table(s, &spec), n_ours;
    size_t row_bytes = make_rows(bytes, 301, 0, 5);

    (void)state;
    (void)make_rows(bytes + row_bytes, 1, 0, 6);
    (void)make_rows(bytes + 301 * row_bytes, 1, 7, 8);
    enter_shard();
    assert_int_equal(restore_rows(s, id, bytes, 302, &n_ours), PS_OK);
    assert_int_equal(n_ours, 302);
    assert_int_equal(row_version(find_row(s, id, 0)), 6);
    assert_int_equal(row_version(find_row(s, id, 7)), 8);
    assert_int_equal(row_version(find_row(s, id, 8)), 5);
    shard_free(s);
}

static void rows_of_no_table_and_blocks_that_are_not_there_are_refused(void **state)
{
    static uint8_t bytes[20 * (16 + 8 * DIM)];
    struct table_spec spec = dense_spec("d", DIM, 10 * DIM, TABLE_SPEC_ADAGRAD);
    struct shard *s = make_shard(0, 1, 0);
    uint32_t id = make_table(s, &spec), n_ours;

    (void)state;
    enter_shard();
    (void)make_rows(bytes, 11, 0, 1);
    assert_int_equal(restore_rows(s, id + 1, bytes, 1, &n_ours), PS_ENOTABLE);
    assert_int_equal(restore_gone(s, id + 1, bytes, 1, &n_ours), PS_ENOTABLE);
    assert_int_equal(restore_rows(s, id, bytes, 10, &n_ours), 0);
    assert_int_equal(n_ours, 10);
    assert_int_equal(restore_rows(s, id, bytes, 11, &n_ours), PS_ECORRUPT);
    assert_int_equal(restore_gone(s, id, (const uint8_t *)&(uint64_t){ 10 }, 1, &n_ours),
                     PS_ECORRUPT);
    assert_int_equal(restore_rows(s, id, bytes, 0, &n_ours), 0);
    assert_int_equal(n_ours, 0);
    shard_free(s);
}

#ifdef PS_FAULTS
static void without_memory_at_any_point_it_says_so(void **state)
{
    static uint8_t bytes[N * (16 + 8 * DIM)];
    struct table_spec spec = sparse_spec("t", DIM, TABLE_SPEC_ADAGRAD);
    int status = -ENOMEM;

    (void)state;
    (void)make_rows(bytes, N, 0, 5);
    for (long k = 0; status; k++) {
        struct shard *s = make_shard(0, 1, 0);
        uint32_t id = make_table(s, &spec), n_ours;

        assert_true(k < 100);
        enter_shard();
        memory_fail_after(k);
        restore_expect(s, id, N);
        status = restore_rows(s, id, bytes, N, &n_ours);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
        shard_free(s);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_batch_finds_or_makes_each_row_once),
        cmocka_unit_test(an_index_that_was_made_ready_does_not_split_on_the_way),
        cmocka_unit_test(a_table_with_rows_or_without_memory_expects_nothing_and_works),
        cmocka_unit_test(rows_come_back_as_one_by_one_and_those_of_others_are_left_out),
        cmocka_unit_test(of_a_row_that_is_there_twice_the_last_one_counts),
        cmocka_unit_test(rows_of_no_table_and_blocks_that_are_not_there_are_refused),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_at_any_point_it_says_so),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
