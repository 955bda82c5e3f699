#include <errno.h>

#include "server/core/row_provenance.h"
#include "tests/unit/core/fixture.h"

#define DIM 2u

static const float step[DIM] = { 1, 2 };

static void push_one(struct shard *s, struct worker *w, uint64_t key, uint64_t clock)
{
    struct push *push = next_push(w, clock);

    add_gradient(push, 0, DIM, &key, 1, step);
    must_push(s, w, push);
}

static struct row_provenance query(struct shard *s, uint64_t key)
{
    struct row_provenance ret;

    enter_shard();
    assert_int_equal(row_provenance_find(s, "t", key, &ret), 0);
    return ret;
}

static void a_row_names_the_push_of_its_version(void **state)
{
    struct table_spec spec = sparse_spec("t", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct worker *zero, *one;
    struct row_provenance got;

    (void)state;
    make_table(s, &spec);
    zero = join_at(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 2, 17, 0);
    one = join_at(s, TABLE_SPEC_MODE_ASYNC, 0, 1, 2, 18, 0);
    push_one(s, zero, 5, 0);
    push_one(s, one, 6, 0);
    push_one(s, one, 5, 1);
    got = query(s, 5);
    assert_int_equal(row_version(got.row), 3);
    assert_string_equal(got.job, "job");
    assert_int_equal(got.push->version, 3);
    assert_int_equal(got.push->rank, 1);
    assert_int_equal(got.push->incarnation, 18);
    assert_int_equal(got.push->seq, 2);
    assert_int_equal(got.push->clock, 1);
    assert_false(got.push->is_combined);
    got = query(s, 6);
    assert_int_equal(got.push->version, 2);
    assert_int_equal(got.push->seq, 1);
    shard_free(s);
}

static void a_combined_clock_is_of_all_its_workers(void **state)
{
    struct table_spec spec = sparse_spec("t", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct worker *zero, *one;
    struct row_provenance got;

    (void)state;
    make_table(s, &spec);
    zero = join(s, TABLE_SPEC_MODE_BSP, 0, 0, 2);
    one = join(s, TABLE_SPEC_MODE_BSP, 0, 1, 2);
    push_one(s, zero, 5, 0);
    assert_null(query(s, 5).row); /* it waits for the other */
    push_one(s, one, 6, 0);
    got = query(s, 5);
    assert_true(got.push->is_combined);
    assert_int_equal(got.push->clock, 0);
    assert_string_equal(got.job, "job");
    shard_free(s);
}

static void what_is_long_ago_is_not_remembered(void **state)
{
    struct table_spec spec = sparse_spec("t", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w;

    (void)state;
    make_table(s, &spec);
    w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    push_one(s, w, 5, 0);
    for (uint64_t i = 1; i < ROW_PROVENANCE_PUSHES; i++)
        push_one(s, w, 6, i);
    assert_int_equal(query(s, 5).push->seq, 1);
    push_one(s, w, 6, ROW_PROVENANCE_PUSHES);
    assert_non_null(query(s, 5).row);
    assert_null(query(s, 5).push);
    assert_int_equal(query(s, 6).push->seq, ROW_PROVENANCE_PUSHES + 1);
    shard_free(s);
}

static void other_shards_keys_and_blocks_that_are_not_there_are_reported(void **state)
{
    struct table_spec spec = sparse_spec("t", DIM, TABLE_SPEC_SGD),
                      dense = dense_spec("d", 4, 8, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 2, 0);
    struct row_provenance got;
    uint64_t key = 1;

    (void)state;
    make_table(s, &spec);
    make_table(s, &dense);
    while (placement_shard(key, 0, 2) == 0)
        key++;
    got = query(s, key);
    assert_int_equal(got.owner, 1);
    assert_null(got.table);
    enter_shard();
    assert_int_equal(row_provenance_find(s, "d", 2, &got), -ERANGE);
    assert_int_equal(row_provenance_find(s, "nope", 2, &got), PS_ENOTABLE);
    shard_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_names_the_push_of_its_version),
        cmocka_unit_test(a_combined_clock_is_of_all_its_workers),
        cmocka_unit_test(what_is_long_ago_is_not_remembered),
        cmocka_unit_test(other_shards_keys_and_blocks_that_are_not_there_are_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
