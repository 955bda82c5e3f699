/* A link's tables: known anew on each connection, under the shard's number of this connection. */
#include "worker/client/table_ids.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define N_TABLES 20u /* more than the array holds at first */

static void tables_are_known_one_by_one_and_after_a_reset_again(void **state)
{
    static const struct table_request request;
    struct table_ids t = { 0 };

    (void)state;
    assert_true(table_ids_all_known(&t));
    for (uint32_t i = 0; i < N_TABLES; i++) {
        assert_int_equal(table_ids_reserve(&t), 0);
        table_ids_add(&t, &request)->request_id = 100 + i;
    }
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < N_TABLES; i++) {
            struct requested_table *item = table_ids_find(&t, 100 + i);

            assert_ptr_equal(item, &t.items[i]);
            assert_int_equal(item->ever_known, round > 0);
            assert_false(table_ids_all_known(&t));
            table_ids_set(&t, item, 50 * round + i);
        }
        assert_true(table_ids_all_known(&t));
        for (uint32_t i = 0; i < N_TABLES; i++)
            assert_int_equal(t.shard_ids[i], 50 * round + i);
        table_ids_reset(&t);
        assert_null(table_ids_find(&t, 100));
        for (uint32_t i = 0; i < N_TABLES; i++)
            t.items[i].request_id = 100 + i;
    }
    table_ids_deinit(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_known_one_by_one_and_after_a_reset_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
