/* How often the log says the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "server/complaints.h"

static void a_few_at_once_and_then_one_a_minute_that_counts(void **state)
{
    struct complaints c = { 0 };
    char more[64] = "";
    uint32_t n = 0;

    (void)state;
    for (uint64_t ms = 1; ms <= 10 * 60000; ms += 100)
        n += complaints_pass(&c, "push", -1, ms, more);
    assert_int_equal(n, COMPLAINTS_AT_ONCE + 9);
    assert_string_equal(more, " (and 599 lines like it)");
}

static void another_kind_has_lines_of_its_own(void **state)
{
    struct complaints c = { 0 };
    char more[64];

    (void)state;
    for (int i = 0; i < 10; i++)
        (void)complaints_pass(&c, "push", -1, 1, more);
    assert_false(complaints_pass(&c, "push", -1, 1, more));
    assert_true(complaints_pass(&c, "push", -2, 1, more));
    assert_true(complaints_pass(&c, "join", -1, 1, more));
    assert_string_equal(more, "");
}

static void more_kinds_than_places_forget_the_oldest(void **state)
{
    struct complaints c = { 0 };
    char more[64];

    (void)state;
    for (int i = 0; i < 5; i++)
        (void)complaints_pass(&c, "push", 0, 1, more);
    for (int i = 1; i <= (int)COMPLAINTS_KINDS; i++)
        assert_true(complaints_pass(&c, "push", -i, 1, more));
    assert_true(complaints_pass(&c, "push", 0, 1, more));
}

static void what_is_quiet_for_long_may_say_a_few_at_once_again(void **state)
{
    struct complaints c = { 0 };
    char more[64];

    (void)state;
    for (int i = 0; i < 10; i++)
        (void)complaints_pass(&c, "push", -1, 1, more);
    for (uint32_t i = 0; i < COMPLAINTS_AT_ONCE; i++)
        assert_true(complaints_pass(&c, "push", -1, 3600000, more));
    assert_false(complaints_pass(&c, "push", -1, 3600000, more));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_few_at_once_and_then_one_a_minute_that_counts),
        cmocka_unit_test(another_kind_has_lines_of_its_own),
        cmocka_unit_test(more_kinds_than_places_forget_the_oldest),
        cmocka_unit_test(what_is_quiet_for_long_may_say_a_few_at_once_again),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
