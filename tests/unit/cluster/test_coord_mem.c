/* The coordination service in memory: a store, its clients, leases, and clients that are away. */
#include <errno.h>

#include "server/cluster/coord_mem.h"
#include "tests/unit/cluster/coord_calls.h"

static void put(struct coord *c, const char *key, int64_t if_revision, const char *value,
                int64_t lease, struct calls_answer *answer)
{
    const struct coord_write write = { .change = COORD_PUT,
                                       .key = key,
                                       .if_revision = if_revision,
                                       .value = value,
                                       .lease = lease };

    answer->is_there = false;
    c->ops->put_if(c, &write, 1, 1000, calls_on_done, answer);
    assert_false(answer->is_there);
}

static void a_store_without_faults_does_what_the_table_says(void **state)
{
    struct coord_mem *m = coord_mem_new(1);
    struct coord *c = coord_mem_client(m);
    struct calls_answer a = { 0 };
    struct calls_view view = { 0 };
    int64_t revision;

    (void)state;
    c->ops->watch(c, "n/", calls_on_event, &view);
    put(c, "n/1", 0, "a", 0, &a);
    coord_mem_advance(m, 0);
    assert_true(a.result.is_made);
    revision = a.result.revision;
    put(c, "n/1", 0, "b", 0, &a);
    coord_mem_advance(m, 1);
    assert_false(a.result.is_made);
    assert_string_equal(a.items[0].value, "a");
    put(c, "n/1", revision, "b", 0, &a);
    coord_mem_advance(m, 2);
    assert_true(a.result.is_made);
    assert_string_equal(calls_value(&view, "n/1"), "b");
    a.is_there = false;
    c->ops->get(c, "n/", true, 1000, calls_on_done, &a);
    coord_mem_advance(m, 3);
    assert_int_equal(a.result.n_items, 1);
    assert_string_equal(coord_mem_find(m, "n/1")->value, "b");
    c->ops->close(c, NULL, NULL);
    coord_mem_free(m);
}

static void a_lease_ends_unless_it_is_kept(void **state)
{
    struct coord_mem *m = coord_mem_new(1);
    struct coord *c = coord_mem_client(m);
    struct calls_answer a = { 0 };
    struct calls_view view = { 0 };
    int64_t lease;

    (void)state;
    c->ops->watch(c, "", calls_on_event, &view);
    c->ops->grant(c, 2000, 1000, calls_on_done, &a);
    coord_mem_advance(m, 0);
    lease = a.result.lease;
    put(c, "n", 0, "a", lease, &a);
    coord_mem_advance(m, 1500);
    a.is_there = false;
    c->ops->keep(c, lease, 1000, calls_on_done, &a);
    coord_mem_advance(m, 3400);
    assert_int_equal(a.err.status, 0);
    assert_non_null(calls_value(&view, "n"));
    coord_mem_advance(m, 3501);
    assert_null(calls_value(&view, "n"));
    a.is_there = false;
    c->ops->keep(c, lease, 1000, calls_on_done, &a);
    coord_mem_advance(m, 3502);
    assert_int_equal(a.err.status, -ENOENT);
    c->ops->close(c, NULL, NULL);
    coord_mem_free(m);
}

static void a_client_that_is_away_hears_nothing_and_then_all(void **state)
{
    struct coord_mem *m = coord_mem_new(1);
    struct coord *here = coord_mem_client(m), *away = coord_mem_client(m);
    struct calls_answer a = { 0 }, b = { 0 };
    struct calls_view view = { 0 };

    (void)state;
    away->ops->watch(away, "", calls_on_event, &view);
    coord_mem_advance(m, 0);
    coord_mem_set_away(m, 1, true);
    put(here, "n", 0, "a", 0, &a);
    put(away, "x", 0, "a", 0, &b);
    coord_mem_advance(m, 999);
    assert_true(a.result.is_made);
    assert_false(b.is_there);
    coord_mem_advance(m, 1100);
    assert_int_equal(b.err.status, PS_EDEADLINE);
    assert_int_equal(view.n_away, 1);
    assert_null(calls_value(&view, "n"));
    coord_mem_set_away(m, 1, false);
    coord_mem_advance(m, 1200);
    assert_string_equal(calls_value(&view, "n"), "a");
    assert_int_equal(view.n_back, 1);
    assert_int_equal(view.n_all, 1);
    coord_mem_set_away(m, 1, true);
    put(here, "n", coord_mem_find(m, "n")->mod_revision, "b", 0, &a);
    coord_mem_advance(m, 1201);
    coord_mem_compact(m);
    coord_mem_set_away(m, 1, false);
    coord_mem_advance(m, 1300);
    assert_int_equal(view.n_all, 2);
    assert_string_equal(calls_value(&view, "n"), "b");
    here->ops->close(here, NULL, NULL);
    away->ops->close(away, NULL, NULL);
    coord_mem_free(m);
}

static void a_store_that_is_restored_has_what_its_copy_had(void **state)
{
    struct coord_mem *m = coord_mem_new(1);
    struct coord *c = coord_mem_client(m);
    struct calls_answer a = { 0 };
    struct calls_view view = { 0 };
    int64_t revision;

    (void)state;
    c->ops->watch(c, "", calls_on_event, &view);
    put(c, "n", 0, "a", 0, &a);
    coord_mem_advance(m, 0);
    coord_mem_copy(m);
    put(c, "n", a.result.revision, "b", 0, &a);
    coord_mem_advance(m, 1);
    revision = a.result.revision;
    assert_false(coord_mem_knows_restore(m, 0));
    put(c, "n", revision, "c", 0, &a); /* on its way: lost */
    coord_mem_restore(m, true, 100);
    assert_false(coord_mem_knows_restore(m, 0));
    coord_mem_advance(m, 101);
    assert_string_equal(calls_value(&view, "n"), "a");
    assert_int_equal(view.n_restored, 1);
    assert_true(view.revision < revision);
    assert_true(coord_mem_knows_restore(m, 0));
    coord_mem_advance(m, 1001);
    assert_int_equal(a.err.status, PS_EDEADLINE);
    coord_mem_restore(m, false, 0);
    coord_mem_advance(m, 1002);
    assert_null(calls_value(&view, "n"));
    assert_int_equal(view.n_restored, 2);
    c->ops->close(c, NULL, NULL);
    coord_mem_free(m);
}

static void a_watch_reports_each_key_that_is_removed(void **state)
{
    struct coord_mem *m = coord_mem_new(1);
    struct coord *c = coord_mem_client(m);
    struct calls_answer a = { 0 };
    struct calls_view view = { 0 };

    (void)state;
    c->ops->watch(c, "", calls_on_event, &view);
    put(c, "n", 0, "a", 0, &a);
    coord_mem_advance(m, 0);
    coord_mem_remove_all(m);
    coord_mem_advance(m, 1);
    assert_null(calls_value(&view, "n"));
    assert_int_equal(view.n_restored, 0);
    assert_int_equal(view.n_all, 1);
    c->ops->close(c, NULL, NULL);
    coord_mem_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_without_faults_does_what_the_table_says),
        cmocka_unit_test(a_lease_ends_unless_it_is_kept),
        cmocka_unit_test(a_client_that_is_away_hears_nothing_and_then_all),
        cmocka_unit_test(a_store_that_is_restored_has_what_its_copy_had),
        cmocka_unit_test(a_watch_reports_each_key_that_is_removed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
