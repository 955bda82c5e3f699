/* Who gets a connection, and who has to go for it. Times are arguments. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/net/connection_limits.h"

enum { MAX = 160, ADDRESS_MAX = 100, IDLE_MS = 60000, LEASE_MS = 10000 };

static struct sockaddr_storage host(const char *text)
{
    struct sockaddr_storage address = { 0 };
    struct sockaddr_in *v4 = (void *)&address;
    struct sockaddr_in6 *v6 = (void *)&address;

    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
    } else {
        assert_int_equal(inet_pton(AF_INET6, text, &v6->sin6_addr), 1);
        v6->sin6_family = AF_INET6;
    }
    v4->sin_port = (in_port_t)rand(); /* which says nothing of the host */
    return address;
}

static struct connection_limits *limits(void)
{
    const struct connection_limits_config config = { .connections_max = MAX,
                                                     .address_max = ADDRESS_MAX,
                                                     .idle_ms = IDLE_MS,
                                                     .lease_ms = LEASE_MS };

    enter_main();
    return connection_limits_new(&config);
}

/* NULL: refused. */
static struct connection_entry *enter(struct connection_limits *l, const char *text,
                                      uint64_t now_ms)
{
    struct sockaddr_storage address = host(text);
    struct err err = { 0 };

    enter_main();
    if (connection_limits_admit(l, &address, now_ms, &err)) {
        assert_int_equal(err.status, -EMFILE);
        assert_non_null(strstr(err.text, "--connections-"));
        return NULL;
    }
    return connection_limits_open(l, &address, now_ms);
}

static struct connection_limits_counts count(struct connection_limits *l, uint64_t now_ms)
{
    struct connection_limits_counts counts;

    enter_main();
    connection_limits_sweep(l, now_ms);
    connection_limits_count(l, &counts);
    return counts;
}

/* n connections of an address, each in this state. */
static void fill(struct connection_limits *l, const char *text, int n,
                 enum connection_entry_state state, uint64_t now_ms)
{
    for (int i = 0; i < n; i++) {
        struct connection_entry *entry = enter(l, text, now_ms);

        assert_non_null(entry);
        connection_entry_set(entry, state);
    }
}

/* n connections that have asked, each of an address that has no other. */
static void fill_from_many(struct connection_limits *l, int n, uint64_t now_ms)
{
    char text[32];

    for (int i = 0; i < n; i++) {
        snprintf(text, sizeof text, "10.1.0.%d", i);
        fill(l, text, 1, ENTRY_ASKED, now_ms);
    }
}

static void places_are_kept_for_addresses_of_live_workers(void **state)
{
    struct connection_limits *l = limits();

    (void)state;
    fill(l, "10.0.0.1", 1, ENTRY_JOINED, 1);
    fill_from_many(l, 149, 1);
    assert_int_equal(count(l, 2).open, MAX - MAX / 16);
    assert_null(enter(l, "10.0.0.3", 3));
    assert_null(enter(l, "10.0.0.4", 3));
    fill(l, "10.0.0.1", MAX / 16 - 1, ENTRY_ASKED, 3);
    assert_null(enter(l, "10.0.0.1", 3)); /* it has as many as are kept for all */
    assert_int_equal(count(l, 4).refused, 3);
    connection_limits_free(l);
}

/* All by one incarnation of one worker, which is allowed. */
static void an_address_that_joins_on_every_connection_leaves_places_to_others(void **state)
{
    struct connection_limits *l = limits();
    struct connection_entry *worker = enter(l, "10.0.0.1", 1), *silent;

    (void)state;
    connection_entry_set(worker, ENTRY_JOINED);
    fill(l, "10.0.0.2", 1, ENTRY_JOINED, 1);
    silent = enter(l, "10.0.0.2", 1);
    connection_entry_set(silent, ENTRY_JOINED);
    fill(l, "10.0.0.2", 147, ENTRY_JOINED, 2);
    (void)count(l, 3);
    assert_null(enter(l, "10.0.0.2", 4));
    connection_entry_set(worker, ENTRY_CLOSED);
    fill(l, "10.0.0.1", 1, ENTRY_JOINED, 5);
    fill(l, "10.0.0.1", MAX / 16 - 1, ENTRY_JOINED, 5); /* those kept */
    fill(l, "10.0.0.3", 60, ENTRY_ASKED, 6);            /* not each other's */
    assert_true(connection_entry_is_evicted(silent));
    assert_int_equal(count(l, 6).open, MAX - 1);
    assert_int_equal(count(l, 6).unjoined, 60);
    connection_limits_free(l);
}

static void an_address_with_half_of_the_places_keeps_them(void **state)
{
    struct connection_limits *l = limits();

    (void)state;
    fill(l, "10.0.0.1", MAX / 2 + 5, ENTRY_JOINED, 1);
    fill(l, "10.0.0.2", 65, ENTRY_JOINED, 1);
    fill_from_many(l, 5, 1);
    assert_null(enter(l, "10.0.0.4", 1));
    assert_int_equal(count(l, 1).evicted, 5);
    connection_limits_free(l);
}

static void an_address_is_a_live_workers_until_a_lease_after_its_connection_broke(void **state)
{
    struct connection_limits *l = limits();
    struct connection_entry *worker = enter(l, "10.0.0.1", 1);

    (void)state;
    connection_entry_set(worker, ENTRY_JOINED);
    (void)count(l, 1000);
    connection_entry_set(worker, ENTRY_CLOSED);
    fill_from_many(l, 150, 2000);
    assert_int_equal(count(l, 2000).open, 150);
    assert_null(enter(l, "10.0.0.4", 3000));
    fill(l, "10.0.0.1", 1, ENTRY_ASKED, 3000);
    assert_null(enter(l, "10.0.0.1", 1000 + LEASE_MS + 1));
    connection_limits_free(l);
}

static void an_address_has_so_many_that_have_not_joined(void **state)
{
    struct connection_limits *l = limits();

    (void)state;
    fill(l, "10.0.0.1", 40, ENTRY_JOINED, 1);
    (void)count(l, 1);
    fill(l, "10.0.0.1", ADDRESS_MAX, ENTRY_ASKED, 1);
    assert_null(enter(l, "10.0.0.1", 1));
    assert_null(enter(l, "::ffff:10.0.0.1", 1));
    assert_non_null(enter(l, "10.0.0.2", 1));
    assert_non_null(enter(l, "fe80::1", 1));
    connection_limits_free(l);
}

static void the_oldest_that_does_nothing_goes_for_a_new_one(void **state)
{
    struct connection_limits *l = limits();
    struct connection_entry *first = enter(l, "10.0.0.2", 1), *second = enter(l, "10.0.0.2", 2);

    (void)state;
    connection_entry_set(first, ENTRY_ASKED);
    fill(l, "10.0.0.2", ADDRESS_MAX - 2, ENTRY_GREETED, 3);
    assert_null(enter(l, "10.0.0.2", 1 + CONNECTION_LIMITS_GRACE_MS));
    assert_non_null(enter(l, "10.0.0.2", 2 + CONNECTION_LIMITS_GRACE_MS));
    assert_false(connection_entry_is_evicted(first));
    assert_true(connection_entry_is_evicted(second));
    fill(l, "10.0.0.3", 50, ENTRY_ASKED, 1100); /* all is full */
    assert_non_null(enter(l, "10.0.0.4", 1200));
    assert_int_equal(count(l, 1200).evicted, 2);
    connection_entry_set(second, ENTRY_CLOSED);
    assert_int_equal(count(l, 1201).open, 150);
    connection_limits_free(l);
}

static void an_address_with_few_need_not_wait_for_one_with_many(void **state)
{
    struct connection_limits *l = limits();

    (void)state;
    fill(l, "10.0.0.2", 75, ENTRY_GREETED, 1);
    fill(l, "10.0.0.3", 75, ENTRY_GREETED, 1);
    assert_null(enter(l, "10.0.0.2", 2));
    fill(l, "10.0.0.4", 40, ENTRY_GREETED, 2);
    assert_int_equal(count(l, 3).open, 150);
    connection_limits_free(l);
}

static void one_that_neither_joins_nor_asks_goes_when_its_time_is_over(void **state)
{
    struct connection_limits *l = limits();
    struct connection_entry *entries[4];

    (void)state;
    for (int i = 0; i < 4; i++)
        entries[i] = enter(l, "10.0.0.1", 1 + (uint64_t)i);
    connection_entry_set(entries[0], ENTRY_JOINED);
    connection_entry_set(entries[1], ENTRY_ASKED);
    assert_int_equal(count(l, IDLE_MS + 3).evicted, 0);
    assert_int_equal(count(l, IDLE_MS + 4).evicted, 1);
    assert_true(connection_entry_is_evicted(entries[2]));
    assert_int_equal(count(l, IDLE_MS + 5).evicted, 2);
    assert_int_equal(count(l, 10 * IDLE_MS).open, 2);
    connection_limits_free(l);
}

static void one_that_has_asked_once_and_is_silent_goes_too(void **state)
{
    enum { LIMIT_MS = CONNECTION_LIMITS_ASKED_TIMES * IDLE_MS };
    struct connection_limits *l = limits();
    struct connection_entry *silent = enter(l, "10.0.0.1", 1), *asks = enter(l, "10.0.0.1", 2);

    (void)state;
    connection_entry_set(silent, ENTRY_ASKED);
    connection_entry_set(asks, ENTRY_ASKED);
    for (uint64_t now_ms = 1000; now_ms <= LIMIT_MS; now_ms += 1000) {
        connection_entry_touch(asks, now_ms);
        assert_int_equal(count(l, now_ms).evicted, 0);
    }
    assert_int_equal(count(l, LIMIT_MS + 2).evicted, 1);
    assert_true(connection_entry_is_evicted(silent));
    assert_false(connection_entry_is_evicted(asks));
    connection_limits_free(l);
}

/* Peers that send one request and no more take all places; the readers of 10.0.0.9 go on asking. */
static void silent_peers_that_have_asked_make_place_for_a_new_one(void **state)
{
    struct connection_entry *readers[MAX / 4], *silent;
    struct connection_limits *l = limits();

    (void)state;
    for (int i = 0; i < MAX / 4; i++)
        connection_entry_set(readers[i] = enter(l, "10.0.0.9", 1), ENTRY_ASKED);
    silent = enter(l, "10.0.0.2", 2);
    connection_entry_set(silent, ENTRY_ASKED);
    fill(l, "10.0.0.2", 78, ENTRY_ASKED, 3);
    fill(l, "10.0.0.3", 31, ENTRY_ASKED, 4);
    assert_non_null(enter(l, "10.0.0.4", 5)); /* at once, of the address that has most */
    assert_true(connection_entry_is_evicted(silent));
    for (int i = 0; i < MAX / 4; i++)
        connection_entry_touch(readers[i], 20000);
    for (int i = 0; i < 35; i++)
        assert_non_null(enter(l, "10.0.0.5", 20000));
    for (int i = 0; i < MAX / 4; i++)
        assert_false(connection_entry_is_evicted(readers[i]));
    assert_int_equal(count(l, 20000).open, 150);
    connection_limits_free(l);
}

static void who_has_more_than_others_takes_no_place_of_theirs(void **state)
{
    struct connection_limits *l = limits();

    (void)state;
    fill(l, "10.0.0.1", 60, ENTRY_ASKED, 1); /* silent by then */
    fill(l, "10.0.0.2", 90, ENTRY_ASKED, 15000);
    assert_null(enter(l, "10.0.0.2", 16000));
    assert_int_equal(count(l, 16000).open, 150);
    connection_limits_free(l);
}

static void a_worker_that_is_silent_for_a_lease_counts_as_not_joined(void **state)
{
    struct connection_limits *l = limits();
    struct connection_entry *worker = enter(l, "10.0.0.1", 1);

    (void)state;
    connection_entry_set(worker, ENTRY_JOINED);
    connection_entry_touch(worker, 5000);
    fill(l, "10.0.0.1", 79, ENTRY_JOINED, 1);
    fill(l, "10.0.0.2", 70, ENTRY_JOINED, 5000);
    assert_int_equal(count(l, 5000).unjoined, 0);
    assert_null(enter(l, "10.0.0.3", 5000));
    assert_int_equal(count(l, 2 + LEASE_MS).unjoined, 79);
    assert_non_null(enter(l, "10.0.0.3", 2 + LEASE_MS));
    assert_false(connection_entry_is_evicted(worker));
    connection_limits_free(l);
}

static void see(void *arg, const struct connection_limits_address *a)
{
    struct connection_limits_address *ret = arg;

    *ret = *a;
}

static void a_host_has_all_addresses_of_its_64_bits_of_ipv6(void **state)
{
    struct connection_limits_address seen = { 0 };
    struct connection_limits *l = limits();
    char text[INET6_ADDRSTRLEN];

    (void)state;
    for (int i = 0; i < ADDRESS_MAX; i++) {
        snprintf(text, sizeof text, "2001:db8:1:2:%x::%x", (unsigned)i, (unsigned)i);
        fill(l, text, 1, ENTRY_GREETED, 1);
    }
    assert_null(enter(l, "2001:db8:1:2::1", 1));
    assert_non_null(enter(l, "2001:db8:1:3::1", 1));
    (void)count(l, 1);
    connection_limits_each(l, 1, see, &seen);
    assert_string_equal(seen.text, "[2001:db8:1:2::]/64");
    connection_limits_free(l);
}

static void the_report_names_the_address_and_since_when(void **state)
{
    struct connection_limits_address seen = { 0 };
    struct connection_limits *l = limits();

    (void)state;
    fill(l, "10.0.0.1", 1, ENTRY_ASKED, 5);
    fill(l, "10.0.0.1", 3, ENTRY_GREETED, 7);
    (void)count(l, 8);
    connection_limits_each(l, 8, see, &seen);
    assert_int_equal(seen.n_open, 0); /* nothing is said of the first moment */
    connection_limits_each(l, 8 + CONNECTION_LIMITS_GRACE_MS, see, &seen);
    assert_string_equal(seen.text, "10.0.0.1");
    assert_true(seen.n_open == 4 && seen.n_idle == 3 && seen.idle_since_ms == 7);
    connection_limits_free(l);
}

static void a_process_that_was_stopped_has_silenced_nobody(void **state)
{
    struct connection_limits *l = limits();
    struct connection_limits_clock clock = { 0 };
    const uint64_t stopped_ms = (CONNECTION_LIMITS_ASKED_TIMES + 1) * IDLE_MS;
    struct connection_entry *entry;
    uint64_t now_ms = 1000;

    (void)state;
    entry = enter(l, "10.0.0.1", connection_limits_time(&clock, now_ms));
    connection_entry_set(entry, ENTRY_JOINED);
    now_ms += stopped_ms;
    for (uint64_t until_ms = now_ms + CONNECTION_LIMITS_CATCH_UP_MS; now_ms < until_ms;
         now_ms += 100)
        connection_limits_sweep(l, connection_limits_time(&clock, now_ms));
    assert_false(connection_entry_is_evicted(entry));
    connection_entry_touch(entry, now_ms); /* its shard has read on */
    now_ms += 100;
    assert_int_equal(connection_limits_time(&clock, now_ms), now_ms);
    connection_limits_sweep(l, now_ms);
    assert_false(connection_entry_is_evicted(entry));
    connection_limits_sweep(l, now_ms + stopped_ms); /* what would be without the clock */
    assert_true(connection_entry_is_evicted(entry));
    connection_limits_free(l);
}

static void the_time_of_two_stalls_in_a_row_is_left_out_together(void **state)
{
    struct connection_limits_clock clock = { 0 };

    (void)state;
    assert_int_equal(connection_limits_time(&clock, 1000), 1000);
    assert_int_equal(connection_limits_time(&clock, 1400), 1400);
    assert_int_equal(connection_limits_time(&clock, 5000), 1400);
    assert_int_equal(connection_limits_time(&clock, 5300), 1700);
    assert_int_equal(connection_limits_time(&clock, 5900), 1700);
    assert_int_equal(connection_limits_time(&clock, 6300), 2100);
    assert_int_equal(connection_limits_time(&clock, 6700), 2500);
    assert_int_equal(connection_limits_time(&clock, 6899), 2699);
    assert_int_equal(connection_limits_time(&clock, 6900), 6900);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_that_was_stopped_has_silenced_nobody),
        cmocka_unit_test(the_time_of_two_stalls_in_a_row_is_left_out_together),
        cmocka_unit_test(places_are_kept_for_addresses_of_live_workers),
        cmocka_unit_test(an_address_that_joins_on_every_connection_leaves_places_to_others),
        cmocka_unit_test(an_address_with_half_of_the_places_keeps_them),
        cmocka_unit_test(an_address_is_a_live_workers_until_a_lease_after_its_connection_broke),
        cmocka_unit_test(an_address_has_so_many_that_have_not_joined),
        cmocka_unit_test(the_oldest_that_does_nothing_goes_for_a_new_one),
        cmocka_unit_test(an_address_with_few_need_not_wait_for_one_with_many),
        cmocka_unit_test(one_that_neither_joins_nor_asks_goes_when_its_time_is_over),
        cmocka_unit_test(one_that_has_asked_once_and_is_silent_goes_too),
        cmocka_unit_test(silent_peers_that_have_asked_make_place_for_a_new_one),
        cmocka_unit_test(who_has_more_than_others_takes_no_place_of_theirs),
        cmocka_unit_test(a_worker_that_is_silent_for_a_lease_counts_as_not_joined),
        cmocka_unit_test(a_host_has_all_addresses_of_its_64_bits_of_ipv6),
        cmocka_unit_test(the_report_names_the_address_and_since_when),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
