#include "fixture.h"

#include <math.h>

#include "server/core/row_init.h"

#define DIM 7u
#define N_KEYS 20000u

static struct table_spec spec_of(enum table_spec_init init, float scale)
{
    struct table_spec spec = sparse_spec("t", DIM, TABLE_SPEC_SGD);

    spec.init = init;
    spec.init_scale = scale;
    return spec;
}

/* The header's formula, written out once more. */
static void a_uniform_row_is_the_hash_of_seed_key_and_place(void **state)
{
    const struct table_spec spec = spec_of(TABLE_SPEC_INIT_UNIFORM, 0.25f);
    float row[DIM];

    (void)state;
    row_init_row(&spec, 99, row);
    for (uint32_t i = 0; i < DIM; i++) {
        uint64_t h = hash_mix2(hash_mix(hash_mix(spec.seed) ^ 99), i);

        assert_true(row[i] == (2 * hash_unit(h) - 1) * 0.25f);
    }
}

/* Mean within 5 standard errors, so that a sound generator practically never fails. */
static void check_moments(enum table_spec_init init, double want_deviation, double want_max)
{
    const struct table_spec spec = spec_of(init, 0.5f);
    double sum = 0, squares = 0, n = (double)N_KEYS * DIM, most = 0;
    float row[DIM];

    for (uint64_t key = 0; key < N_KEYS; key++) {
        row_init_row(&spec, key, row);
        for (uint32_t i = 0; i < DIM; i++) {
            sum += (double)row[i];
            squares += (double)row[i] * (double)row[i];
            most = fmax(most, fabs((double)row[i]));
        }
    }
    assert_true(fabs(sum / n) < 5 * want_deviation / sqrt(n));
    assert_true(fabs(sqrt(squares / n) / want_deviation - 1) < 0.02);
    assert_true(most <= want_max);
}

static void rows_have_the_mean_and_deviation_that_were_asked_for(void **state)
{
    (void)state;
    check_moments(TABLE_SPEC_INIT_UNIFORM, 0.5 / sqrt(3), 0.5);
    check_moments(TABLE_SPEC_INIT_NORMAL, 0.5, 0.5 * 6);
}

static void zero_is_zero(void **state)
{
    const struct table_spec spec = spec_of(TABLE_SPEC_INIT_ZERO, 3);
    float row[DIM] = { 1, 2, 3 };

    (void)state;
    row_init_row(&spec, 5, row);
    for (uint32_t i = 0; i < DIM; i++)
        assert_true(row[i] == 0);
}

static void other_seeds_and_other_keys_start_elsewhere(void **state)
{
    struct table_spec spec = spec_of(TABLE_SPEC_INIT_NORMAL, 1);
    float a[DIM], b[DIM], c[DIM], again[DIM];

    (void)state;
    row_init_row(&spec, 1, a);
    row_init_row(&spec, 2, b);
    row_init_row(&spec, 1, again);
    spec.seed++;
    row_init_row(&spec, 1, c);
    assert_floats_equal(again, a, DIM);
    assert_memory_not_equal(a, b, sizeof a);
    assert_memory_not_equal(a, c, sizeof a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_uniform_row_is_the_hash_of_seed_key_and_place),
        cmocka_unit_test(rows_have_the_mean_and_deviation_that_were_asked_for),
        cmocka_unit_test(zero_is_zero),
        cmocka_unit_test(other_seeds_and_other_keys_start_elsewhere),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
