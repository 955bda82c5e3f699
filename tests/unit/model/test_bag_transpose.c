/* The arrays of who uses each row, against plain loops over the bags. */
#include "tests/unit/model/fixture.h"
#include "worker/compute/bag_transpose.h"

struct bench {
    struct batch batch;
    struct bag_transpose_arrays transpose;
};

static uint32_t *new_array(size_t n)
{
    return memory_alloc(
        n * sizeof(uint32_t)); /* as many as it may write: the sanitizer sees the rest */
}

static void build(struct bench *b)
{
    const struct batch *batch = &b->batch;
    const struct bag_transpose_input source = {
        batch->n * batch->n_fields, batch->n_unique, batch->starts, batch->row_of, batch->order,
        batch->order_starts
    };

    b->transpose = (struct bag_transpose_arrays){
        new_array(2), new_array(batch->n_unique + 1),
        new_array(bag_transpose_n_spans_max(batch->n_unique, batch->n_keys) + 1),
        new_array(batch->n_keys)
    };
    bag_transpose_build(&source, &b->transpose);
}

static void tear_down(struct bench *b)
{
    free(b->transpose.counts), free(b->transpose.first), free(b->transpose.spans),
        free(b->transpose.bags);
    fixture_batch_deinit(&b->batch);
}

/* Uses of row r, by a scan of all bags, are those of its spans one behind the other. */
static uint32_t check_row(const struct bench *b, uint32_t r)
{
    const struct bag_transpose_arrays *u = &b->transpose;
    const struct batch *batch = &b->batch;
    uint32_t at = u->spans[u->first[r]], n = 0;

    for (uint32_t bag = 0; bag < batch->n * batch->n_fields; bag++)
        for (uint32_t p = batch->starts[bag]; p < batch->starts[bag + 1]; p++)
            if (batch->row_of[p] == r) {
                assert_int_equal(u->bags[at + n], bag);
                n++;
            }
    assert_int_equal(u->spans[u->first[r + 1]], at + n);
    assert_int_equal(u->first[r + 1] - u->first[r],
                     (n + BAG_TRANSPOSE_SPAN - 1) / BAG_TRANSPOSE_SPAN);
    return n;
}

static void check(const struct bench *b)
{
    const struct bag_transpose_arrays *u = &b->transpose;
    uint32_t n = 0;

    assert_int_equal(u->counts[0], b->batch.n_unique);
    assert_int_equal(u->counts[1], u->first[b->batch.n_unique]);
    assert_int_equal(u->first[0], 0);
    assert_int_equal(u->spans[u->counts[1]], b->batch.n_keys);
    for (uint32_t r = 0; r < b->batch.n_unique; r++)
        n += check_row(b, r);
    assert_int_equal(n, b->batch.n_keys);
    for (uint32_t s = 0; s < u->counts[1]; s++)
        assert_true(u->spans[s] < u->spans[s + 1] &&
                    u->spans[s + 1] - u->spans[s] <= BAG_TRANSPOSE_SPAN);
}

static void each_row_has_its_bags_in_ascending_order(void **state)
{
    const uint64_t seed = seed_of_run(20261121);

    (void)state;
    for (uint64_t i = 0; i < 100; i++) {
        struct fixture_rng rng = { hash_mix2(seed, i), 0 };
        const uint32_t n = fixture_below(&rng, 60), n_fields = fixture_below(&rng, 5);
        struct bench b;

        fixture_batch_init(&b.batch, n + 1, 0, n_fields, 3 * (n + 1) * n_fields);
        fixture_batch_fill(&b.batch, n, &rng);
        build(&b);
        check(&b);
        tear_down(&b);
    }
}

/* n samples, n_fields fields of one key each, out of so many; or one field empty here and there. */
static void check_ones(uint32_t n, uint32_t n_fields, uint32_t n_keys, bool gaps)
{
    struct fixture_rng rng = { n + n_keys, 0 };
    struct bench b;
    uint32_t at = 0;

    fixture_batch_init(&b.batch, n, 0, n_fields, n * n_fields);
    b.batch.n = n;
    for (uint32_t bag = 0; bag < n * n_fields; bag++) {
        if (!gaps || bag % 7)
            b.batch.keys[at++] = fixture_below(&rng, n_keys);
        b.batch.starts[bag + 1] = at;
    }
    b.batch.n_keys = at;
    fixture_dedup(&b.batch);
    build(&b);
    check(&b);
    tear_down(&b);
}

static void columns_of_one_value_and_rows_of_many_uses_are_no_exception(void **state)
{
    (void)state;
    for (int gaps = 0; gaps < 2; gaps++) {
        check_ones(64, 1, 1, gaps);
        check_ones(65, 1, 1, gaps);
        check_ones(128, 3, 2, gaps);
        check_ones(200, 4, 3, gaps);
        check_ones(300, 2, 100000, gaps);
    }
}

/* Of n keys in as few spans as can be, and in as many. */
static void there_is_space_for_the_spans_of_any_batch(void **state)
{
    (void)state;
    assert_int_equal(bag_transpose_n_spans_max(0, 0), 0);
    assert_int_equal(bag_transpose_n_spans_max(1, 1), 1);
    assert_int_equal(bag_transpose_n_spans_max(1, BAG_TRANSPOSE_SPAN + 1), 2);
    assert_int_equal(bag_transpose_n_spans_max(1000, 1000), 1000);
    assert_int_equal(bag_transpose_n_spans_max(UINT32_MAX - 2, UINT32_MAX - 2), UINT32_MAX - 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_row_has_its_bags_in_ascending_order),
        cmocka_unit_test(columns_of_one_value_and_rows_of_many_uses_are_no_exception),
        cmocka_unit_test(there_is_space_for_the_spans_of_any_batch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
