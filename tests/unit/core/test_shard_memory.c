/* A shard that has reached its budget, that is filled from a checkpoint, and
 * that gets no memory. */
#include "server/core/shard.h"

#include <errno.h>

#include "fixture.h"
#include "server/core/shard_internal.h"

#define DIM 4u

static void new_rows_beyond_the_budget_are_left_out_and_old_ones_still_learn(void **state)
{
    enum { N = 3000 };
    static uint64_t keys[N];
    static float g[N * DIM], weights[N * DIM];
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 100000), *again = make_shard(0, 1, 100000);
    uint32_t table;
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1),
                  *w2 = join(again, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    struct shard_push_result result;
    uint64_t n_rows;

    (void)state;
    enter_shard();
    spec.init = TABLE_SPEC_INIT_ZERO;
    spec.params.learning_rate = 1;
    table = make_table(s, &spec);
    make_table(again, &spec);
    for (uint32_t i = 0; i < N; i++)
        keys[i] = i;
    for (uint32_t i = 0; i < N * DIM; i++)
        g[i] = 1;
    for (uint32_t round = 1; round <= 2; round++) {
        struct push *push = next_push(w, 0), *same = next_push(w2, 0);

        add_gradient(push, table, DIM, keys, N, g);
        add_gradient(same, table, DIM, keys, N, g);
        result = must_push(s, w, push);
        must_push(again, w2, same);
        n_rows = table_n_rows(shard_table(s, table)->rows);
        assert_true(n_rows > 1000 && n_rows < N);
        assert_int_equal(n_rows, table_n_rows(shard_table(again, table)->rows));
        assert_true(shard_bytes(s) <= 100000);
        assert_int_equal(result.rows_refused, N - n_rows);
        assert_int_equal(shard_table(s, table)->rows_refused, round * (N - n_rows));
        read_weights(s, table, keys, N, weights);
        for (uint32_t i = 0; i < N; i++) /* the least keys got the places */
            assert_true(weights[i * DIM] == (i < n_rows ? -(float)round : 0));
    }
    shard_free(s);
    shard_free(again);
}

static void a_row_from_a_checkpoint_reads_as_it_was(void **state)
{
    const float floats[2 * DIM] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_ADAGRAD),
                      top = dense_spec("top", DIM, 8, TABLE_SPEC_SGD);
    struct shard *s = make_shard(1, 2, 100000);
    uint32_t table = make_table(s, &spec), dense = make_table(s, &top);
    uint64_t n = 0;
    int status = 0;

    (void)state;
    enter_shard();
    for (uint64_t key = 0; key < 100; key++)
        assert_int_equal(restore_row(s, table, key, row_stamp(9, 3, 0), floats), 0);
    for (uint64_t key = 0; key < 100; key++) {
        const struct row *row = find_row(s, table, key);

        assert_int_equal(row != NULL, placement_shard(key, 0, 2) == 1);
        if (!row)
            continue;
        assert_floats_equal(row->floats, floats, 2 * DIM);
        assert_int_equal(row_version(row), 9);
        assert_int_equal(row_touches(row), 3);
        n++;
    }
    assert_int_equal(table_n_rows(shard_table(s, table)->rows), n);
    restore_counts(s, table, 77, 9);
    restore_counts(s, table, 70, 5); /* another shard's file, which knew less */
    assert_int_equal(shard_table(s, table)->n_pushes, 77);
    assert_int_equal(shard_version(s), 9);
    assert_int_equal(restore_row(s, 2, 0, 0, floats), PS_ENOTABLE);
    assert_int_equal(restore_row(s, dense, 2, 0, floats), PS_ECORRUPT);
    for (uint64_t key = 0; !status; key++)
        status = restore_row(s, table, key, row_stamp(9, 3, 0), floats);
    assert_int_equal(status, PS_EBUDGET);
    assert_true(shard_bytes(s) <= 100000);
    shard_free(s);
}

enum { N_MANY = 2200000 }; /* 8 bytes of scratch for each are more than is kept */

static uint64_t *many_keys(void)
{
    uint64_t *keys = calloc(N_MANY, sizeof *keys);

    assert_non_null(keys);
    for (uint64_t i = 0; i < N_MANY; i++)
        keys[i] = i;
    return keys;
}

static size_t scratch_bytes(const struct shard *s)
{
    return s->small.keys.cap_bytes;
}

static void a_push_whose_lengths_do_not_fit_reserves_nothing(void **state)
{
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    uint32_t table = make_table(s, &spec);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    struct push *push = next_push(w, 0);
    uint64_t *keys = many_keys();
    float *values = calloc(N_MANY, DIM * sizeof *values);

    (void)state;
    add_gradient(push, table, DIM, keys, N_MANY, values);
    push->sections[0].value_bytes = N_MANY; /* one byte a key: small, once packed */
    assert_int_equal(try_push(s, w, push).status, PS_EWIDTH);
    assert_int_equal(scratch_bytes(s), 0);
    free(values);
    free(keys);
    shard_free(s);
}

static void a_large_message_leaves_no_large_scratch_behind(void **state)
{
    struct table_spec spec = sparse_spec("emb", 1, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    uint32_t table = make_table(s, &spec);
    struct worker *w = join(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    struct push *push = next_push(w, 0), *small;
    uint64_t *keys = many_keys();
    float *values = calloc(N_MANY, sizeof *values);

    (void)state;
    add_gradient(push, table, 1, keys, N_MANY, values);
    must_push(s, w, push);
    assert_true(scratch_bytes(s) <= SHARD_SCRATCH_KEEP_BYTES);
    read_weights(s, table, keys, N_MANY, values);
    assert_true(scratch_bytes(s) <= SHARD_SCRATCH_KEEP_BYTES);
    small = next_push(w, 1);
    add_gradient(small, table, 1, keys, 1, values);
    must_push(s, w, small);
    assert_true(scratch_bytes(s) > 0); /* and what is small is kept */
    free(values);
    free(keys);
    shard_free(s);
}

#ifdef PS_FAULTS
enum { N_PUSHED = 10000 }; /* rows, in each of two tables */

struct two_tables {
    struct shard *s;
    struct worker *w;
    uint32_t a, b;
    uint64_t keys[N_PUSHED];
    float gradients[N_PUSHED * DIM], initial[N_PUSHED * DIM], got[N_PUSHED * DIM];
};

static void begin_two_tables(struct two_tables *t)
{
    struct table_spec spec = sparse_spec("a", DIM, TABLE_SPEC_SGD),
                      other = sparse_spec("b", DIM, TABLE_SPEC_SGD);

    spec.params.learning_rate = other.params.learning_rate = 1;
    t->s = make_shard(0, 1, 0);
    t->a = make_table(t->s, &spec);
    t->b = make_table(t->s, &other);
    t->w = join(t->s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);
    for (uint32_t i = 0; i < N_PUSHED; i++)
        t->keys[i] = 7 * i;
    for (uint32_t i = 0; i < N_PUSHED * DIM; i++)
        t->gradients[i] = (float)i;
    read_weights(t->s, t->a, t->keys, N_PUSHED, t->initial);
}

static void assert_as_it_was(struct two_tables *t)
{
    assert_int_equal(t->w->last_seq, 0);
    assert_int_equal(t->w->clock, 0);
    assert_int_equal(shard_version(t->s), 0);
    assert_int_equal(table_n_rows(shard_table(t->s, t->a)->rows), 0);
    assert_int_equal(table_n_rows(shard_table(t->s, t->b)->rows), 0);
    assert_int_equal(shard_table(t->s, t->a)->n_pushes, 0);
    read_weights(t->s, t->a, t->keys, N_PUSHED, t->got);
    assert_floats_equal(t->got, t->initial, (size_t)N_PUSHED * DIM);
}

/* Every key has its whole step, or no row at all and is counted. */
static void assert_applied(struct two_tables *t, uint64_t n_refused)
{
    const struct table *a = shard_table(t->s, t->a)->rows, *b = shard_table(t->s, t->b)->rows;

    assert_int_equal(t->w->last_seq, 1);
    assert_int_equal(t->w->clock, 1);
    assert_int_equal(table_n_rows(a) + table_n_rows(b) + n_refused, 2 * N_PUSHED);
    read_weights(t->s, t->a, t->keys, N_PUSHED, t->got);
    for (uint32_t i = 0; i < N_PUSHED * DIM; i++) {
        const struct row *row = i % DIM ? NULL : find_row(t->s, t->a, t->keys[i / DIM]);
        float step = t->initial[i] - t->gradients[i];

        if (i % DIM == 0)
            assert_int_equal(row ? row_version(row) : 1, 1);
        assert_true(t->got[i] == step || t->got[i] == t->initial[i]);
    }
}

/* Fails the first allocation of a push of many new rows, then the second, ... */
static void without_memory_a_push_is_not_committed_or_lacks_rows_that_are_counted(void **state)
{
    static struct two_tables t;
    struct shard_push_result result;
    bool was_unjudged = false, lacked_rows = false, done = false;

    (void)state;
    enter_shard();
    for (long k = 0; !done; k++) {
        struct push *push;
        int status;

        begin_two_tables(&t);
        push = next_push(t.w, 0);
        add_gradient(push, t.a, DIM, t.keys, N_PUSHED, t.gradients);
        add_gradient(push, t.b, DIM, t.keys, N_PUSHED, t.gradients);
        memory_fail_after(k);
        status = shard_push(t.s, t.w, push, 0, &result);
        memory_fail_after(-1);
        assert_int_equal(result.status, status);
        if (status) {
            assert_int_equal(status, -ENOMEM);
            assert_as_it_was(&t);
            assert_int_equal(shard_push(t.s, t.w, push, 0, &result), 0);
            was_unjudged = true;
        } else {
            lacked_rows = lacked_rows || result.rows_refused > 0;
            done = result.rows_refused == 0;
        }
        assert_applied(&t, result.rows_refused);
        free_push(push);
        shard_free(t.s);
    }
    assert_true(was_unjudged && lacked_rows);
}

static void a_table_or_a_pull_without_memory_is_refused(void **state)
{
    static const uint64_t key = 4;
    struct table_spec spec = sparse_spec("emb", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    struct pull *pull = make_pull(0, 0, &key, 1);
    uint64_t min_clock, version;
    uint8_t dst[64];
    uint32_t id;
    struct err err;
    int status = -1;

    (void)state;
    enter_shard();
    for (long k = 0; status != 0; k++) {
        memory_fail_after(k);
        status = shard_table_open(s, &spec, false, &id, &err);
        memory_fail_after(-1);
        assert_true(status == 0 || (status == -ENOMEM && shard_n_tables(s) == 0));
    }
    status = -1;
    for (long k = 0; status != 0; k++) {
        memory_fail_after(k);
        status = shard_pull(s, NULL, pull, dst, &min_clock, &version, &err);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
    }
    assert_int_equal(shard_counters(s)->pulls, 1);
    free_pull(pull);
    shard_free(s);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_rows_beyond_the_budget_are_left_out_and_old_ones_still_learn),
        cmocka_unit_test(a_row_from_a_checkpoint_reads_as_it_was),
        cmocka_unit_test(a_push_whose_lengths_do_not_fit_reserves_nothing),
        cmocka_unit_test(a_large_message_leaves_no_large_scratch_behind),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_a_push_is_not_committed_or_lacks_rows_that_are_counted),
        cmocka_unit_test(a_table_or_a_pull_without_memory_is_refused),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
