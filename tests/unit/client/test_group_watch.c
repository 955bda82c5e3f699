/* What a client believes of the groups. Nothing is sent here: test_moves.c does that. */
#include "worker/client/group_watch.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/memory.h"
#include "common/status.h"
#include "tests/support/seed.h"

#define N_NODES 3u

struct fixture {
    uv_loop_t loop;
    struct channel_loop channels;
    struct hello hello;
    struct hello_reply reply;
    struct address found;
    struct group_watch *watch;
    uint32_t n_moves, moved_node;
    uint64_t moved_term;
    char from[ADDRESS_SERVER_MAX], to[ADDRESS_SERVER_MAX];
};

static void on_moved(void *owner, uint32_t node, const struct address *from,
                     const struct address *to, uint64_t term)
{
    struct fixture *f = owner;

    f->n_moves++;
    f->moved_node = node;
    f->moved_term = term;
    memcpy(f->from, from->text, sizeof f->from);
    memcpy(f->to, to->text, sizeof f->to);
}

static void init(struct fixture *f, uint32_t n_nodes)
{
    *f =
        (struct fixture){ .reply = { .n_nodes = n_nodes, .shards_per_node = 1, .map_id = 42 } };
    assert_int_equal(uv_loop_init(&f->loop), 0);
    channel_loop_init(&f->channels, &f->loop);
    for (uint32_t i = 0; i < n_nodes; i++)
        snprintf(f->reply.nodes[i], MESSAGE_ADDRESS_MAX, "n%u:1", i);
    assert_int_equal(address_parse("here:9", 6, &f->found, NULL), 0);
}

static int make(struct fixture *f, struct err *err)
{
    const struct group_watch_config config = { .channels = &f->channels,
                                               .hello = &f->hello,
                                               .servers = &f->found,
                                               .n_servers = 1,
                                               .found = &f->found,
                                               .reply = &f->reply,
                                               .moved = on_moved,
                                               .owner = f };

    return group_watch_new(&config, &f->watch, err);
}

static void set_up(struct fixture *f)
{
    struct err err;

    init(f, N_NODES);
    assert_int_equal(make(f, &err), 0);
}

static void tear_down(struct fixture *f)
{
    group_watch_free(f->watch);
    channel_loop_close(&f->channels);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    channel_loop_deinit(&f->channels);
}

static struct groups *say(uint32_t node, uint64_t term, const char *primary,
                          const char *standby)
{
    struct groups *groups = memory_alloc(sizeof *groups);

    groups->n = N_NODES;
    groups->items[node].term = term;
    snprintf(groups->items[node].primary, MESSAGE_ADDRESS_MAX, "%s", primary);
    snprintf(groups->items[node].standby, MESSAGE_ADDRESS_MAX, "%s", standby);
    return groups;
}

static void learn(struct fixture *f, uint32_t node, uint64_t term, const char *primary,
                  const char *standby)
{
    struct groups *groups = say(node, term, primary, standby);

    group_watch_learn(f->watch, groups);
    free(groups);
}

static bool is_behind(struct fixture *f, uint32_t node, uint64_t term)
{
    struct groups *groups = say(node, term, "x:1", "");
    bool result = group_watch_is_behind(f->watch, node, groups);

    free(groups);
    return result;
}

static const char *at(const struct fixture *f, uint32_t node)
{
    return group_watch_at(f->watch, node)->text;
}

static void a_greater_term_moves_the_node_and_a_smaller_one_is_never_believed(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    assert_string_equal(at(&f, 1), "n1:1");
    learn(&f, 1, 3, "n1:1", "s:1"); /* where it is already */
    assert_int_equal(f.n_moves, 0);
    learn(&f, 1, 65536, "s:1", "");
    assert_int_equal(f.n_moves, 1);
    assert_int_equal(f.moved_node, 1);
    assert_int_equal(f.moved_term, 65536);
    assert_string_equal(f.from, "n1:1");
    assert_string_equal(f.to, "s:1");
    learn(&f, 1, 4, "n1:1", "s:1"); /* the old primary was started again, and knows nothing */
    assert_string_equal(at(&f, 1), "s:1");
    assert_true(is_behind(&f, 1, 4));
    assert_true(is_behind(&f, 1, 0));
    assert_false(is_behind(&f, 1, 65536));
    assert_false(is_behind(&f, 0, 0));
    learn(&f, 1, 65537, "s:1", "n1:1"); /* a restart of the same one */
    assert_int_equal(f.n_moves, 1);
    learn(&f, 1, 131072, "n1:1", "");
    assert_string_equal(at(&f, 1), "n1:1");
    assert_string_equal(at(&f, 0), "n0:1");
    assert_int_equal(f.n_moves, 2);
    tear_down(&f);
}

static void one_term_has_one_primary(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    learn(&f, 0, 3, "n0:1", "s:1");
    learn(&f, 0, 3, "x:1", "y:1");
    assert_string_equal(at(&f, 0), "n0:1");
    assert_int_equal(f.n_moves, 0);
    tear_down(&f);
}

static void groups_of_another_cluster_and_addresses_that_are_none_are_ignored(void **state)
{
    struct groups *groups = say(0, 9, "x:1", "");
    struct fixture f;

    (void)state;
    set_up(&f);
    groups->n = 2;
    group_watch_learn(f.watch, groups);
    free(groups);
    learn(&f, 0, 9, "no address", "");
    learn(&f, 0, 9, "", "");
    learn(&f, 0, 0, "x:1", "y:1"); /* not known there */
    assert_string_equal(at(&f, 0), "n0:1");
    assert_false(is_behind(&f, 0, 1));
    learn(&f, 0, 9, "n0:1", "nor this"); /* a standby: nobody to be watched */
    assert_int_equal(f.n_moves, 0);
    tear_down(&f);
}

static void one_node_is_where_it_was_found(void **state)
{
    struct fixture f;
    struct err err;

    (void)state;
    init(&f, 1);
    f.reply.groups = (struct groups){ .n = 1, .items = { { .term = 3, .primary = "own:1" } } };
    assert_int_equal(make(&f, &err), 0);
    assert_string_equal(at(&f, 0), "here:9");
    group_watch_free(f.watch);
    f.reply.status = PS_EMOVED; /* said by a standby */
    assert_int_equal(make(&f, &err), 0);
    assert_string_equal(at(&f, 0), "own:1");
    assert_int_equal(f.n_moves, 0);
    group_watch_free(f.watch);
    snprintf(f.reply.nodes[0], MESSAGE_ADDRESS_MAX, "own:1");
    assert_int_equal(make(&f, &err), 0);
    assert_string_equal(at(&f, 0), "own:1");
    tear_down(&f);
}

static void a_list_with_no_address_is_refused(void **state)
{
    struct fixture f;
    struct err err;

    (void)state;
    init(&f, 2);
    snprintf(f.reply.nodes[1], MESSAGE_ADDRESS_MAX, "nonsense");
    assert_int_equal(make(&f, &err), -EINVAL);
    assert_non_null(strstr(err.text, "nonsense"));
    assert_null(f.watch);
    tear_down(&f);
}

/* Without a word of a standby there is nothing to do, however long it lasts. */
static void nobody_is_asked_where_nobody_has_a_standby(void **state)
{
    struct fixture f;

    (void)state;
    set_up(&f);
    for (uint64_t now_ms = 1000; now_ms < 100000; now_ms += 20) {
        group_watch_tick(f.watch, now_ms);
        assert_true(group_watch_is_quiet(f.watch));
    }
    assert_int_equal(uv_loop_alive(&f.loop), 0);
    learn(&f, 1, 3, "127.0.0.1:1", "127.0.0.1:2");
    group_watch_tick(f.watch, 100000);
    assert_false(group_watch_is_quiet(f.watch)); /* and the next tick makes connections */
    tear_down(&f);
}

/* Against a twin that knows the greatest term and its primary. */
static void whatever_is_said_the_greatest_term_counts(void **state)
{
    const uint64_t seed = seed_by_the_clock();
    uint64_t terms[N_NODES] = { 0 }, n = 0;
    char primaries[N_NODES][16];
    struct fixture f;

    (void)state;
    set_up(&f);
    for (uint32_t i = 0; i < N_NODES; i++)
        snprintf(primaries[i], sizeof primaries[i], "n%u:1", i);
    for (uint32_t step = 0; step < 20000; step++) {
        uint32_t node = (uint32_t)(hash_mix2(seed, n++) % N_NODES);
        uint64_t term = terms[node] + hash_mix2(seed, n++) % 5;
        char primary[16];

        term = term > 3 ? term - 3 : 0;
        /* Of a term there is one primary. */
        snprintf(primary, sizeof primary, "p%u:1", (unsigned)(hash_mix2(seed, term) % 3));
        learn(&f, node, term, primary, hash_mix2(seed, n++) % 2 ? "s:1" : "");
        if (term > terms[node]) {
            terms[node] = term;
            memcpy(primaries[node], primary, sizeof primary);
        }
        for (uint32_t i = 0; i < N_NODES; i++)
            assert_string_equal(at(&f, i), primaries[i]);
        assert_int_equal(is_behind(&f, node, term), term < terms[node]);
    }
    assert_true(f.n_moves > 100);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_greater_term_moves_the_node_and_a_smaller_one_is_never_believed),
        cmocka_unit_test(one_term_has_one_primary),
        cmocka_unit_test(groups_of_another_cluster_and_addresses_that_are_none_are_ignored),
        cmocka_unit_test(one_node_is_where_it_was_found),
        cmocka_unit_test(a_list_with_no_address_is_refused),
        cmocka_unit_test(nobody_is_asked_where_nobody_has_a_standby),
        cmocka_unit_test(whatever_is_said_the_greatest_term_counts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
