/* A worker that is declared dead, now and then or again and again. */
#include "worker/client/cluster_client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void only_what_is_recent_counts(void **state)
{
    struct cluster_client_fences f = { 0 };
    uint64_t now_ms = 12345;
    uint32_t i;

    (void)state;
    for (i = 0; i < 100; i++, now_ms += CLUSTER_CLIENT_FENCES_MS / 5)
        assert_int_equal(cluster_client_count_fence(&f, now_ms), i < 5 ? i + 1 : 5);
    for (i = 0; i < 3; i++)
        assert_true(cluster_client_count_fence(&f, now_ms) <= CLUSTER_CLIENT_FENCES_MAX + 1);
    assert_int_equal(cluster_client_count_fence(&f, now_ms), CLUSTER_CLIENT_FENCES_MAX + 1);
    assert_int_equal(cluster_client_count_fence(&f, now_ms + CLUSTER_CLIENT_FENCES_MS), 1);
}

static void the_first_return_is_at_once_and_each_further_one_later(void **state)
{
    (void)state;
    assert_int_equal(cluster_client_rejoin_delay_ms(1), 0);
    assert_int_equal(cluster_client_rejoin_delay_ms(2), 100);
    assert_int_equal(cluster_client_rejoin_delay_ms(CLUSTER_CLIENT_FENCES_MAX), 800);
}

static void an_incarnation_that_comes_back_is_greater_than_all_before(void **state)
{
    (void)state;
    assert_int_equal(cluster_client_next_incarnation(100, 0, 5000, 77),
                     5000); /* by the clock */
    assert_int_equal(cluster_client_next_incarnation(100, 4999, 5000, 77), 5000);
    /* It is behind: past the fence, at which a worker may have left. */
    assert_int_equal(cluster_client_next_incarnation(100, 5000, 5000, 77), 5078);
    assert_int_equal(cluster_client_next_incarnation(100, 5001, 5000, 60000), 5002);
    assert_int_equal(cluster_client_next_incarnation(7000, 0, 5000, 60077),
                     7078); /* or past oneself */
    assert_int_equal(cluster_client_next_incarnation(7000, 6000, 5000, 0), 7001);
    assert_true(cluster_client_next_incarnation(UINT64_MAX, 0, 5000, 77) == UINT64_MAX);
    assert_true(cluster_client_next_incarnation(1, UINT64_MAX, 5000, 77) == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_is_recent_counts),
        cmocka_unit_test(the_first_return_is_at_once_and_each_further_one_later),
        cmocka_unit_test(an_incarnation_that_comes_back_is_greater_than_all_before),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
