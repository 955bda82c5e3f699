#include "server/net/group_view.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include <cmocka.h>

#include "common/status.h"

static const struct hello_reply map = { .version = 1,
                                        .n_nodes = 3,
                                        .node = 1,
                                        .shards_per_node = 2,
                                        .map_id = 77,
                                        .nodes = { "a:1", "b:1", "c:1" } };

struct fixture {
    struct group_view *view;
    struct groups groups; /* as they were at the last change */
    uint32_t n_changes;
};

static void on_change(void *arg)
{
    struct fixture *f = arg;

    f->n_changes++;
    group_view_get(f->view, &f->groups);
}

static void set_up(struct fixture *f)
{
    enter_main();
    *f = (struct fixture){ .view = group_view_new(&map) };
    assert_non_null(f->view);
    group_view_on_change(f->view, on_change, f);
}

static void set_own(struct fixture *f, enum group_view_role role, uint64_t term,
                    const char *primary, const char *standby)
{
    struct group own = { .term = term };

    enter_main();
    snprintf(own.primary, sizeof own.primary, "%s", primary);
    snprintf(own.standby, sizeof own.standby, "%s", standby);
    group_view_set_own(f->view, role, &own);
}

static void without_a_standby_there_are_no_groups(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    memset(&f.groups, 1, sizeof f.groups);
    group_view_get(f.view, &f.groups);
    assert_int_equal(f.groups.n, 0);
    assert_int_equal(f.groups.number, 0);
    assert_true(group_view_is_primary(f.view));
    group_view_free(f.view);
}

static void what_is_set_stands_beside_the_addresses_of_the_other_nodes(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    set_own(&f, GROUP_VIEW_PRIMARY, 5, "b:1", "d:1");
    assert_int_equal(f.n_changes, 1);
    assert_int_equal(f.groups.number, 1);
    assert_int_equal(f.groups.n, 3);
    assert_string_equal(f.groups.items[0].primary, "a:1");
    assert_int_equal(f.groups.items[0].term, 0);
    assert_string_equal(f.groups.items[1].primary, "b:1");
    assert_string_equal(f.groups.items[1].standby, "d:1");
    assert_int_equal(f.groups.items[1].term, 5);
    assert_string_equal(f.groups.items[2].primary, "c:1");
    group_view_free(f.view);
}

static void only_what_is_new_counts_and_a_smaller_term_never(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    set_own(&f, GROUP_VIEW_PRIMARY, 5, "b:1", "d:1");
    set_own(&f, GROUP_VIEW_PRIMARY, 5, "b:1", "d:1");
    assert_int_equal(f.n_changes, 1);
    set_own(&f, GROUP_VIEW_PRIMARY, 5, "b:1", "");
    assert_int_equal(f.n_changes, 2);
    set_own(&f, GROUP_VIEW_OTHER, 4, "x:1", "");
    assert_int_equal(f.n_changes, 2);
    assert_true(group_view_is_primary(f.view));
    set_own(&f, GROUP_VIEW_OTHER, 65536, "d:1", "b:1");
    assert_int_equal(f.n_changes, 3);
    assert_int_equal(group_view_number(f.view), 3);
    assert_string_equal(f.groups.items[1].primary, "d:1");
    assert_false(group_view_is_primary(f.view));
    set_own(&f, GROUP_VIEW_PRIMARY, 65536, "d:1", "b:1"); /* the role alone */
    assert_int_equal(f.n_changes, 4);
    assert_true(group_view_is_primary(f.view));
    group_view_free(f.view);
}

static void a_refusal_names_the_cluster_and_the_primary(void **state)
{
    struct hello_reply reply = { .version = 9, .status = -1 };
    struct fixture f;

    (void)state;
    set_up(&f);
    set_own(&f, GROUP_VIEW_OTHER, 7, "d:1", "b:1");
    group_view_refuse(f.view, &reply);
    assert_int_equal(reply.version, 9);
    assert_int_equal(reply.status, PS_EMOVED);
    assert_int_equal(reply.n_nodes, 3);
    assert_int_equal(reply.map_id, 77);
    assert_string_equal(reply.groups.items[1].primary, "d:1");
    assert_non_null(strstr(reply.text, "node 1"));
    assert_non_null(strstr(reply.text, "d:1 is their primary (term 7)"));
    group_view_free(f.view);
}

#define N_CHANGES 20000u

struct readers {
    struct fixture f;
    _Atomic bool is_over;
};

/* Term, addresses and number of one moment: the term is in the address. */
static void read_groups(void *arg)
{
    struct readers *r = arg;
    struct groups *g = malloc(sizeof *g);
    uint64_t number = 0;
    char want[MESSAGE_ADDRESS_MAX];

    while (!r->is_over) {
        group_view_get(r->f.view, g);
        assert_true(g->number >= number);
        number = g->number;
        if (!g->n)
            continue;
        snprintf(want, sizeof want, "at:%llu", (unsigned long long)g->items[1].term);
        assert_string_equal(g->items[1].primary, want);
        assert_true(g->items[1].term >= number); /* the number never runs ahead of the groups */
    }
    free(g);
}

static void other_threads_read_whole_groups(void **state)
{
    struct readers r = { .is_over = false };
    uv_thread_t threads[2];
    char primary[MESSAGE_ADDRESS_MAX];

    (void)state;
    set_up(&r.f);
    group_view_on_change(r.f.view, NULL, NULL);
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        assert_int_equal(uv_thread_create(&threads[i], read_groups, &r), 0);
    for (uint64_t term = 1; term <= N_CHANGES; term++) {
        snprintf(primary, sizeof primary, "at:%llu", (unsigned long long)term);
        set_own(&r.f, GROUP_VIEW_PRIMARY, term, primary, "");
    }
    r.is_over = true;
    for (size_t i = 0; i < COUNT_OF(threads); i++)
        uv_thread_join(&threads[i]);
    assert_int_equal(group_view_number(r.f.view), N_CHANGES);
    group_view_free(r.f.view);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_standby_there_are_no_groups),
        cmocka_unit_test(what_is_set_stands_beside_the_addresses_of_the_other_nodes),
        cmocka_unit_test(only_what_is_new_counts_and_a_smaller_term_never),
        cmocka_unit_test(a_refusal_names_the_cluster_and_the_primary),
        cmocka_unit_test(other_threads_read_whole_groups),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
