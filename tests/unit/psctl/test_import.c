/* Which arrays are which table's. */
#include "deploy/psctl/import.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static void add(struct tensor_inputs *set, const char *tail)
{
    struct tensor_input *t = &set->items[set->n++];

    *t = (struct tensor_input){ .type = "F32", .n_dims = 1, .dims = { 4 }, .n_bytes = 16 };
    snprintf(t->name, sizeof t->name, "job/w%s", tail);
}

static void the_state_of_each_optimizer_is_its_tables(void **state)
{
    (void)state;
    for (int i = 0; i < TABLE_SPEC_OPTIM_END; i++) {
        const enum table_spec_optim optim = (enum table_spec_optim)i;
        struct tensor_input items[1 + EXPORT_STATES_MAX];
        struct tensor_inputs set = { .items = items };
        struct import_table *tables;
        uint32_t n;

        add(&set, "");
        for (uint32_t k = 0; k < export_n_states(optim); k++)
            add(&set, export_state_names(optim)[k]);
        assert_int_equal(import_find_tables(&set, &tables, &n, NULL), 0);
        assert_int_equal(n, 1);
        assert_string_equal(tables[0].name, "job/w");
        assert_int_equal(tables[0].n_state, export_n_states(optim));
        for (uint32_t k = 0; k < tables[0].n_state; k++)
            assert_ptr_equal(tables[0].state[k], &items[1 + k]);
        free(tables);
    }
}

static void an_array_that_is_named_as_state_may_be_a_table(void **state)
{
    struct tensor_input item;
    struct tensor_inputs set = { .items = &item };
    struct import_table *tables;
    uint32_t n;

    (void)state;
    add(&set, ".state.f");
    assert_int_equal(import_find_tables(&set, &tables, &n, NULL), 0);
    assert_int_equal(n, 1);
    assert_string_equal(tables[0].name, "job/w.state.f");
    free(tables);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_state_of_each_optimizer_is_its_tables),
        cmocka_unit_test(an_array_that_is_named_as_state_may_be_a_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
