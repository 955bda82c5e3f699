/* The names of columns and the lists that claim them, without a schema. */
#include "tests/unit/data/fixture.h"
#include "worker/data/columns.h"

static void a_list_claims_names_and_positions_once(void **state)
{
    static const char *const names[] = { "y", "a", "b", "c" };
    struct columns c;
    struct err err;

    (void)state;
    assert_int_equal(columns_init(&c, 4, &err), 0);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(columns_set_name(&c, i, names[i], 1, &err), 0);
    assert_int_equal(columns_claim(&c, "label", "y", COLUMNS_LABEL, &err), 0);
    assert_int_equal(columns_claim(&c, "numeric", "1-2", COLUMNS_NUMERIC, &err), 0);
    assert_int_equal(columns_claim(&c, "categorical", "a", COLUMNS_CATEGORICAL, &err),
                     PS_ESETTING);
    fixture_assert_says(&err, "column 1 a is numeric already");
    assert_int_equal(columns_claim(&c, "categorical", "*", COLUMNS_CATEGORICAL, &err), 0);
    columns_claim_rest(&c);
    assert_int_equal(c.kinds[0], COLUMNS_LABEL);
    assert_int_equal(c.kinds[2], COLUMNS_NUMERIC);
    assert_int_equal(c.kinds[3], COLUMNS_CATEGORICAL);
    columns_deinit(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(
        a_list_claims_names_and_positions_once) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
