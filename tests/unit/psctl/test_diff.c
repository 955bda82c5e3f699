#include <errno.h>
#include <math.h>

#include "deploy/psctl/diff.h"
#include "server/core/restore.h"
#include "tests/unit/core/fixture.h"

#define N_KEYS 3000u
#define DIM 3u

/* The trivial reference of a table: row i is key i + 1, or is not there. */
struct reference {
    bool is_there[N_KEYS];
    float weights[N_KEYS][DIM];
    uint64_t version[N_KEYS];
};

static void throw_rows(struct reference *t, struct dice *d)
{
    for (uint32_t i = 0; i < N_KEYS; i++) {
        t->is_there[i] = roll(d, 10) > 0;
        t->version[i] = roll(d, 100);
        for (uint32_t k = 0; k < DIM; k++)
            t->weights[i][k] = roll_float(d);
    }
}

static void change_rows(struct reference *t, struct dice *d)
{
    for (uint32_t i = 0; i < N_KEYS; i++) {
        uint64_t what = roll(d, 20);

        if (what == 0)
            t->is_there[i] = !t->is_there[i];
        if (what == 1)
            t->weights[i][roll(d, DIM)] += 1 + roll_float(d) / 2;
        if (what == 2)
            t->version[i]++;
    }
}

/* In an order that is the dice's: layout must not matter. */
static struct shard *make(const struct reference *t, struct dice *d)
{
    struct table_spec spec = sparse_spec("t", DIM, TABLE_SPEC_SGD);
    struct shard *s = make_shard(0, 1, 0);
    uint32_t id = make_table(s, &spec), first = (uint32_t)roll(d, N_KEYS);

    enter_shard();
    for (uint32_t n = 0; n < N_KEYS; n++) {
        uint32_t i = (first + n) % N_KEYS;

        if (t->is_there[i])
            assert_int_equal(
                restore_row(s, id, i + 1, row_stamp(t->version[i], 0, 0), t->weights[i]), 0);
    }
    return s;
}

static double drift_of(const struct reference *a, const struct reference *b, uint32_t i)
{
    double sum = 0;

    for (uint32_t k = 0; k < DIM; k++)
        sum += pow((double)b->weights[i][k] - (double)a->weights[i][k], 2);
    return sqrt(sum);
}

static void assert_keys(const struct diff_keys *got, const uint64_t *want, uint64_t n)
{
    assert_int_equal(got->n, n < DIFF_N_KEYS ? n : DIFF_N_KEYS);
    for (uint32_t i = 0; i < got->n; i++)
        assert_int_equal(got->items[i], want[i]);
}

/* Keys of one kind, in ascending order, as the references have them. */
enum kind { ONLY_A, ONLY_B, CHANGED, RESTAMPED, N_KINDS };

static void compare_with_models(const struct diff_table *t, const struct reference *a,
                                const struct reference *b)
{
    static uint64_t keys[N_KINDS][N_KEYS];
    uint64_t n[N_KINDS] = { 0 };
    double sum = 0, max = 0;

    for (uint32_t i = 0; i < N_KEYS; i++) {
        enum kind kind = N_KINDS;

        if (a->is_there[i] != b->is_there[i])
            kind = a->is_there[i] ? ONLY_A : ONLY_B;
        else if (a->is_there[i] && memcmp(a->weights[i], b->weights[i], sizeof a->weights[i]))
            kind = CHANGED;
        else if (a->is_there[i] && a->version[i] != b->version[i])
            kind = RESTAMPED;
        if (kind == N_KINDS)
            continue;
        keys[kind][n[kind]++] = i + 1;
        sum += kind == CHANGED ? drift_of(a, b, i) : 0;
        max = kind == CHANGED ? fmax(max, drift_of(a, b, i)) : max;
    }
    assert_int_equal(t->n_only_a, n[ONLY_A]);
    assert_int_equal(t->n_only_b, n[ONLY_B]);
    assert_int_equal(t->n_changed, n[CHANGED]);
    assert_int_equal(t->n_restamped, n[RESTAMPED]);
    assert_keys(&t->only_a, keys[ONLY_A], n[ONLY_A]);
    assert_keys(&t->only_b, keys[ONLY_B], n[ONLY_B]);
    assert_keys(&t->changed, keys[CHANGED], n[CHANGED]);
    assert_keys(&t->restamped, keys[RESTAMPED], n[RESTAMPED]);
    assert_true(n[CHANGED] > 0 && t->drift_max == max);
    assert_true(fabs(t->drift_mean - sum / (double)n[CHANGED]) < 1e-9);
    assert_true(t->drift_p99 <= t->drift_max && t->drift_p99 >= t->drift_mean);
    for (uint32_t i = 0; i < t->n_top; i++) {
        assert_true(t->top[i].l2 == drift_of(a, b, (uint32_t)t->top[i].key - 1));
        assert_true(i == 0 || t->top[i - 1].l2 >= t->top[i].l2);
    }
}

static void two_states_differ_as_their_models_do(void **state)
{
    static struct reference a, b;
    struct dice d = dice_of_this_run("compare");

    (void)state;
    for (int round = 0; round < 20; round++) {
        struct shard *left, *right;
        struct diff c;

        throw_rows(&a, &d);
        b = a;
        change_rows(&b, &d);
        left = make(&a, &d);
        right = make(&b, &d);
        enter_shard();
        assert_int_equal(diff_shards(left, right, 5, &c, NULL), 0);
        assert_int_equal(c.n_tables, 1);
        assert_false(diff_is_same(&c));
        assert_int_equal(c.tables[0].n_top, 5);
        assert_true(c.tables[0].top[0].l2 == c.tables[0].drift_max);
        compare_with_models(&c.tables[0], &a, &b);
        diff_free(&c);
        shard_free(left);
        shard_free(right);
    }
}

static void one_state_in_two_orders_is_the_same_and_has_one_digest(void **state)
{
    static struct reference a;
    struct dice d = dice_of_this_run("digest");
    struct shard *left, *right;
    struct diff c;
    uint64_t digest;

    (void)state;
    throw_rows(&a, &d);
    a.is_there[7] = true;
    left = make(&a, &d);
    right = make(&a, &d);
    enter_shard();
    assert_int_equal(diff_shards(left, right, 0, &c, NULL), 0);
    assert_true(diff_is_same(&c));
    diff_free(&c);
    digest = diff_digest(shard_table(left, 0));
    assert_int_equal(digest, diff_digest(shard_table(right, 0)));
    shard_free(right);
    a.version[7]++;
    right = make(&a, &d);
    assert_int_not_equal(digest, diff_digest(shard_table(right, 0)));
    shard_free(left);
    shard_free(right);
}

static void a_step_without_a_row_is_a_difference(void **state)
{
    static struct reference a;
    struct dice d = dice_of_this_run("steps");
    struct shard *left = make(&a, &d), *right = make(&a, &d);
    struct diff c;

    (void)state;
    enter_shard();
    restore_counts(right, 0, 9, 9);
    assert_int_equal(diff_shards(left, right, 0, &c, NULL), 0);
    assert_false(diff_is_same(&c));
    assert_int_equal(c.tables[0].n_pushes_b, 9);
    diff_free(&c);
    shard_free(left);
    shard_free(right);
}

static void tables_that_only_one_has_or_of_another_shape_are_reported(void **state)
{
    struct table_spec only_a = sparse_spec("a", 2, TABLE_SPEC_SGD),
                      only_b = sparse_spec("b", 2, TABLE_SPEC_SGD);
    struct table_spec wide = sparse_spec("t", 4, TABLE_SPEC_SGD),
                      narrow = sparse_spec("t", 3, TABLE_SPEC_SGD);
    struct shard *left = make_shard(0, 1, 0), *right = make_shard(0, 1, 0);
    struct diff c;

    (void)state;
    make_table(left, &only_a);
    make_table(left, &wide);
    make_table(right, &narrow);
    make_table(right, &only_b);
    enter_shard();
    assert_int_equal(restore_row(right, 1, 5, 0, NULL), 0);
    assert_int_equal(diff_shards(left, right, 0, &c, NULL), 0);
    assert_int_equal(c.n_tables, 3);
    assert_true(c.tables[0].is_in_a && !c.tables[0].is_in_b);
    assert_non_null(strstr(c.tables[1].obstacle, "dim 4 in A, sparse of dim 3 in B"));
    assert_true(!c.tables[2].is_in_a && c.tables[2].n_only_b == 1);
    assert_false(diff_is_same(&c));
    diff_free(&c);
    shard_free(left);
    shard_free(right);
}

static void weights_of_another_storage_are_compared_as_floats(void **state)
{
    struct table_spec wide = sparse_spec("t", 2, TABLE_SPEC_SGD), half = wide;
    struct shard *left = make_shard(0, 1, 0), *right = make_shard(0, 1, 0);
    const float same[2] = { 1.5f, -2 }, other[2] = { 1.5f, 1.0009765625f };
    const uint16_t same_half[2] = { 0x3fc0, 0xc000 }, other_half[2] = { 0x3fc0, 0x3f80 };
    struct diff c;

    (void)state;
    half.storage = TABLE_SPEC_BF16;
    make_table(left, &wide);
    make_table(right, &half);
    enter_shard();
    assert_int_equal(restore_row(left, 0, 1, 0, same), 0);
    assert_int_equal(restore_row(right, 0, 1, 0, same_half), 0);
    assert_int_equal(restore_row(left, 0, 2, 0, other), 0);
    assert_int_equal(restore_row(right, 0, 2, 0, other_half), 0);
    assert_int_equal(diff_shards(left, right, 1, &c, NULL), 0);
    assert_int_equal(c.tables[0].n_changed, 1);
    assert_int_equal(c.tables[0].changed.items[0], 2);
    assert_true(c.tables[0].top[0].l2 == 0.0009765625);
    diff_free(&c);
    shard_free(left);
    shard_free(right);
}

#ifdef PS_FAULTS
static void without_memory_nothing_is_compared(void **state)
{
    static struct reference a, b;
    struct dice d = dice_of_this_run("memory");
    struct shard *left, *right;
    struct err err = { 0 };
    struct diff c;

    (void)state;
    throw_rows(&a, &d);
    b = a;
    change_rows(&b, &d);
    left = make(&a, &d);
    right = make(&b, &d);
    enter_shard();
    memory_fail_after(0);
    assert_int_equal(diff_shards(left, right, 5, &c, &err), -ENOMEM);
    memory_fail_after(-1);
    assert_true(err.text[0] && !c.tables);
    shard_free(left);
    shard_free(right);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_states_differ_as_their_models_do),
        cmocka_unit_test(one_state_in_two_orders_is_the_same_and_has_one_digest),
        cmocka_unit_test(a_step_without_a_row_is_a_difference),
        cmocka_unit_test(tables_that_only_one_has_or_of_another_shape_are_reported),
        cmocka_unit_test(weights_of_another_storage_are_compared_as_floats),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_nothing_is_compared),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
