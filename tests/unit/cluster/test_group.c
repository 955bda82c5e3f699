/* A member of a replica group, step by step: what it does, what it may acknowledge, and what it says of a wait. The
 * faults in all orders are tests/group-sim's. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "server/cluster/group.h"
#include "server/cluster/group_record.h"

static struct group_config config_of(const char *name, uint64_t run)
{
    struct group_config c = { .run = run,
                              .history = 7,
                              .ack = GROUP_ACK_RECEIVED,
                              .may_create = true,
                              .failover_after_ms = 700,
                              .standby_patience_ms = 2000 };

    snprintf(c.name, sizeof c.name, "%s", name);
    return c;
}

/* The next action has to be of this kind; what is sent before it is passed over. */
static struct group_action take(struct group *g, enum group_action_kind kind)
{
    struct group_action a;

    while (group_next_action(g, &a))
        if (a.kind == kind)
            return a;
    fail_msg("no action %d", kind);
    return a;
}

static void take_nothing(struct group *g)
{
    struct group_action a;

    while (group_next_action(g, &a))
        assert_int_equal(a.kind, GROUP_SEND);
}

/* A primary h1 (run 1) of term 1, with 10 records of which LEAD is the first. */
static void make_primary(struct group *g)
{
    const struct group_config c = config_of("h1", 1);
    const struct group_lineage log = { 0 };
    struct group_action a;

    group_init(g, &c, &log, 0);
    group_on_record(g, 0, NULL, 5);
    group_tick(g, 0);
    take(g, GROUP_BEGIN);
    group_on_rewound(g, 0, &(struct group_lineage){ .history = 7 });
    group_tick(g, 0);
    a = take(g, GROUP_WRITE);
    assert_int_equal(a.if_revision, 0);
    assert_int_equal(a.record.term, 1);
    group_on_written(g, 1, 6);
    assert_int_equal(take(g, GROUP_LEAD).term, 1);
    group_on_appended(g, 1, 1, true);
    group_on_appended(g, 1, 10, false);
    take_nothing(g);
}

static void name_standby(struct group *g, uint64_t now_ms, int64_t revision)
{
    struct group_record r = g->record;

    snprintf(r.standby, sizeof r.standby, "h2");
    r.standby_run = 2;
    group_on_record(g, now_ms, &r, revision);
}

static void answer(struct group *g, uint64_t now_ms, uint64_t sent_ms, uint64_t received)
{
    const struct group_message m = { .kind = GROUP_HEART_REPLY,
                                     .from = "h2",
                                     .run = 2,
                                     .term = g->term,
                                     .sent_ms = sent_ms,
                                     .follows = true,
                                     .received = received,
                                     .durable = received };

    group_on_message(g, now_ms, &m);
}

/* ... and in sync with h2 (run 2) at 100 ms, revision 8. */
static void make_pair(struct group *g)
{
    struct group_action a;

    make_primary(g);
    name_standby(g, 50, 7);
    answer(g, 100, 90, 10);
    group_tick(g, 100);
    a = take(g, GROUP_WRITE);
    assert_true(a.record.in_sync);
    group_on_written(g, 100, 8);
    take_nothing(g);
}

static void alone_a_primary_acknowledges_all(void **state)
{
    struct group g;
    char why[GROUP_WHY_MAX];

    (void)state;
    make_primary(&g);
    assert_true(group_ack_limit(&g, 5000) == UINT64_MAX);
    assert_true(group_may_take(&g, 5000));
    group_why(&g, 5000, why);
    assert_string_equal(why, "");
}

static void before_the_record_says_in_sync_acknowledgements_wait_already(void **state)
{
    struct group g;

    (void)state;
    make_primary(&g);
    name_standby(&g, 50, 7);
    answer(&g, 100, 90, 8); /* two records short */
    group_tick(&g, 100);
    take_nothing(&g);
    assert_int_equal(group_ack_limit(&g, 100), 8);
    answer(&g, 120, 110, 10);
    group_tick(&g, 120);
    assert_true(take(&g, GROUP_WRITE).record.in_sync);
}

static void a_silent_standby_parks_after_500_ms_and_is_out_of_sync_after_2_s(void **state)
{
    struct group g;
    struct group_action a;
    char why[GROUP_WHY_MAX];

    (void)state;
    make_pair(&g);
    group_on_appended(&g, 1, 11, false);
    assert_int_equal(group_ack_limit(&g, 590), 10);
    assert_int_equal(group_ack_limit(&g, 591),
                     0); /* 500 ms after its heartbeat was sent, at 90 */
    assert_false(group_may_serve(&g, 591));
    group_why(&g, 600, why);
    assert_non_null(strstr(why, "standby h2 does not answer"));
    group_tick(&g, 2000);
    take_nothing(&g);
    group_tick(&g, 2100);
    a = take(&g, GROUP_WRITE);
    assert_false(a.record.in_sync);
    assert_int_equal(a.if_revision, 8);
    assert_int_equal(group_ack_limit(&g, 2100), 0); /* until it is made */
    group_on_written(&g, 2110, 9);
    assert_true(group_ack_limit(&g, 2110) == UINT64_MAX);
}

static void a_standby_whose_process_is_gone_is_out_of_sync_at_once(void **state)
{
    struct group g;

    (void)state;
    make_pair(&g);
    group_on_gone(&g, 150);
    group_tick(&g, 150);
    assert_false(take(&g, GROUP_WRITE).record.in_sync);
}

static void
without_the_service_pushes_go_on_while_the_standby_answers_and_wait_if_not(void **state)
{
    struct group g;
    char why[GROUP_WHY_MAX];

    (void)state;
    make_pair(&g);
    group_on_away(&g, 110);
    for (uint64_t now = 150; now < 5000; now += 50) {
        group_on_appended(&g, 1, now, false);
        answer(&g, now, now - 5, now);
        group_tick(&g, now);
        take_nothing(&g);
        assert_int_equal(group_ack_limit(&g, now), now);
    }
    group_tick(&g, 9000);
    take_nothing(&g); /* nobody can be asked */
    assert_int_equal(group_ack_limit(&g, 9000), 0);
    group_why(&g, 9000, why);
    assert_non_null(strstr(why, "may not go on alone"));
    group_on_back(&g, 9100);
    group_tick(&g, 9100);
    assert_false(take(&g, GROUP_WRITE).record.in_sync);
}

static void a_transaction_of_which_nobody_knows_is_read_and_made_again(void **state)
{
    struct group g;

    (void)state;
    make_pair(&g);
    group_on_gone(&g, 150);
    group_tick(&g, 150);
    take(&g, GROUP_WRITE);
    group_on_written(&g, 1150, 0);
    group_tick(&g, 1150);
    take(&g, GROUP_READ);
    group_on_record(&g, 1160, &g.record, 8); /* not made, or not yet */
    assert_int_equal(group_ack_limit(&g, 1160), 0);
    group_tick(&g, 1160);
    take(&g, GROUP_WRITE);
}

static void who_is_deposed_acknowledges_nothing_and_restarts(void **state)
{
    struct group g;
    struct group_record r;

    (void)state;
    make_pair(&g);
    r = g.record;
    r.term = 2;
    snprintf(r.primary, sizeof r.primary, "h2");
    r.primary_run = 2;
    r.standby[0] = '\0';
    r.in_sync = false;
    group_on_record(&g, 200, &r, 9);
    take(&g, GROUP_RESTART);
    assert_int_equal(group_ack_limit(&g, 200), 0);
    assert_false(group_may_serve(&g, 200));
    answer(&g, 210, 205, 10);
    assert_int_equal(group_ack_limit(&g, 210), 0);
}

/* h2 (run 2) of make_pair(), at 100 ms. */
static void make_standby(struct group *g)
{
    const struct group_config c = config_of("h2", 2);
    const struct group_lineage log = {
        .history = 7, .last = 10, .n_spans = 1, .spans = { { 1, 1 } }
    };
    const struct group_record r = { .term = 1,
                                    .primary = "h1",
                                    .primary_run = 1,
                                    .standby = "h2",
                                    .standby_run = 2,
                                    .in_sync = true,
                                    .history = 7 };

    group_init(g, &c, &log, 0);
    group_on_record(g, 50, &r, 8);
}

static bool heart(struct group *g, uint64_t now_ms)
{
    struct group_message m = { .kind = GROUP_HEART, .from = "h1", .run = 1, .term = 1 };
    struct group_action a;
    bool answers = false;

    m.sent_ms = now_ms - 1;
    m.lineage =
        (struct group_lineage){ .history = 7, .last = 10, .n_spans = 1, .spans = { { 1, 1 } } };
    group_on_message(g, now_ms, &m);
    while (group_next_action(g, &a))
        answers = answers || (a.kind == GROUP_SEND && a.message.follows);
    return answers;
}

static void tick_until(struct group *g, uint64_t from_ms, uint64_t until_ms)
{
    for (uint64_t now = from_ms; now <= until_ms; now += 20)
        group_tick(g, now);
}

static void a_standby_in_sync_seals_and_asks_after_700_ms_of_silence(void **state)
{
    struct group g;
    struct group_action a;

    (void)state;
    make_standby(&g);
    assert_true(heart(&g, 100));
    assert_true(group_on_ship(&g, 100, 1, 1));
    tick_until(&g, 100, 799);
    take_nothing(&g);
    assert_true(group_on_ship(&g, 799, 1, 1)); /* it is there */
    tick_until(&g, 800, 1498);
    take_nothing(&g);
    group_tick(&g, 1500);
    a = take(&g, GROUP_WRITE);
    assert_int_equal(a.if_revision, 8);
    assert_int_equal(a.record.term, 2);
    assert_string_equal(a.record.primary, "h2");
    assert_false(a.record.in_sync);
    assert_false(group_on_ship(&g, 1510, 1, 1)); /* sealed */
    assert_false(heart(&g, 1510));
    group_on_written(&g, 1520, 9);
    assert_int_equal(take(&g, GROUP_LEAD).term, 2);
    assert_true(group_may_serve(&g, 1520));
}

static void a_standby_that_loses_follows_again_out_of_sync(void **state)
{
    struct group g;
    struct group_record r;

    (void)state;
    make_standby(&g);
    heart(&g, 100);
    group_on_gone(&g, 150);
    group_tick(&g, 150);
    take(&g, GROUP_WRITE);
    r = g.record;
    r.in_sync = false;
    group_on_written(&g, 160, 0);
    group_on_record(&g, 160, &r, 9);
    assert_true(heart(&g, 170));
    tick_until(&g, 170, 5000);
    take_nothing(&g); /* not in sync: it may not ask */
}

static void a_standby_does_not_seal_while_nobody_can_be_asked(void **state)
{
    struct group g;

    (void)state;
    make_standby(&g);
    heart(&g, 100);
    group_on_away(&g, 110);
    tick_until(&g, 120, 3000);
    assert_true(heart(&g, 3000));
}

static void its_own_standstill_is_not_the_primarys_silence(void **state)
{
    struct group g;

    (void)state;
    make_standby(&g);
    heart(&g, 100);
    group_tick(&g, 100);
    group_tick(&g, 4000); /* stood still for 3.9 s: what came could not be received */
    take_nothing(&g);
    tick_until(&g, 4020, 4480);
    take_nothing(&g);
    tick_until(&g, 4500, 4520);
    take(&g, GROUP_WRITE);
}

static void with_fsync_a_standby_asks_once_its_disk_has_its_log(void **state)
{
    struct group g;

    (void)state;
    make_standby(&g);
    g.config.is_synced = true;
    heart(&g, 100);
    group_on_appended(&g, 1, 12, false);
    group_on_gone(&g, 150);
    group_tick(&g, 150);
    take(&g, GROUP_SYNC);
    take_nothing(&g);
    group_on_durable(&g, 12);
    group_tick(&g, 160);
    take(&g, GROUP_WRITE);
}

static void three_failovers_in_ten_minutes_double_the_patience(void **state)
{
    struct group g;
    struct group_record r;

    (void)state;
    make_standby(&g);
    r = g.record;
    for (uint64_t i = 0; i < 3; i++) { /* back and forth: the last one leaves h1 */
        r.term++;
        r.in_sync = false;
        snprintf(r.primary, sizeof r.primary, i % 2 ? "h1" : "h3");
        group_on_record(&g, 100 + i, &r, (int64_t)(20 + i));
    }
    r.in_sync = true;
    group_on_record(&g, 110, &r, 30);
    tick_until(&g, 120, 1490);
    take_nothing(&g);
    tick_until(&g, 1500, 1520);
    take(&g, GROUP_WRITE);
}

static void a_returned_primary_of_a_group_in_sync_asks_its_standby_first(void **state)
{
    struct group g, standby;
    struct group_record r;
    struct group_action a;
    const struct group_config c = config_of("h1", 3);
    char why[GROUP_WHY_MAX];

    (void)state;
    make_standby(&standby);
    r = standby.record;
    group_init(&g, &c, &standby.log, 0);
    group_on_record(&g, 0, &r, 8);
    group_tick(&g, 10);
    a = take(&g, GROUP_SEND);
    assert_int_equal(a.message.kind, GROUP_TAKE_OVER);
    group_why(&g, 10, why);
    assert_non_null(strstr(why, "waits for h2"));
    group_on_message(&standby, 60, &a.message);
    group_tick(&standby, 60);
    take(&standby, GROUP_WRITE);
    group_accept_loss(&g, 20); /* or a person says so */
    group_tick(&g, 20);
    a = take(&g, GROUP_WRITE);
    assert_int_equal(a.record.term, 2);
    assert_int_equal(a.record.primary_run, 3);
}

static void a_switch_waits_until_the_standby_is_equal(void **state)
{
    struct group g;
    struct group_action a;

    (void)state;
    make_pair(&g);
    group_on_appended(&g, 1, 11, false);
    assert_int_equal(group_switch(&g, 110), 0);
    assert_false(group_may_take(&g, 110));
    assert_true(group_may_serve(&g, 110));
    group_tick(&g, 110);
    take_nothing(&g);
    answer(&g, 120, 115, 11);
    assert_int_equal(group_ack_limit(&g, 120), 11);
    group_tick(&g, 120);
    a = take(&g, GROUP_WRITE);
    assert_string_equal(a.record.primary, "h2");
    assert_int_equal(a.record.term, 2);
    assert_false(group_may_serve(&g, 121));
    group_on_written(&g, 130, 9);
    take(&g, GROUP_RESTART);
    assert_int_equal(group_switch(&g, 130), -EAGAIN);
}

static void two_logs_have_in_common_what_the_same_terms_wrote(void **state)
{
    const struct group_lineage a = {
        .history = 7, .last = 30, .n_spans = 3, .spans = { { 1, 1 }, { 4, 10 }, { 5, 21 } }
    };
    const struct group_lineage b = {
        .history = 7, .last = 25, .n_spans = 2, .spans = { { 1, 1 }, { 4, 10 } }
    };
    const struct group_lineage c = {
        .history = 7, .last = 12, .n_spans = 2, .spans = { { 1, 1 }, { 3, 9 } }
    };
    const struct group_lineage other = {
        .history = 8, .last = 30, .n_spans = 3, .spans = { { 1, 1 }, { 4, 10 }, { 5, 21 } }
    };
    const struct group_lineage none = {
        .history = 7, .last = 30, .n_spans = 1, .spans = { { 9, 1 } }
    };

    (void)state;
    assert_int_equal(group_lineage_common(&a, &a), 30);
    assert_int_equal(group_lineage_common(&a, &b), 20);
    assert_int_equal(group_lineage_common(&b, &a), 20);
    assert_int_equal(group_lineage_common(&a, &c), 8);
    assert_int_equal(group_lineage_common(&a, &other), 0);
    assert_int_equal(group_lineage_common(&a, &none), 0);
    assert_true(group_lineage_compare(&a, &b) > 0);
    assert_true(group_lineage_compare(&c, &b) < 0);
}

static void a_record_comes_back_from_its_text_and_nothing_else_is_one(void **state)
{
    static const char *const bad[] = {
        "",
        "{}",
        "[]",
        "7",
        "{\"term\":\"1\"}",
        "{\"term\":\"1\",\"primary\":\"a "
        "b\",\"primary_run\":\"1\",\"standby\":\"\",\"standby_run\":"
        "\"0\",\"in_sync\":false,\"history\":\"1\"}"
    };
    const struct group_record r = { .term = UINT64_MAX,
                                    .primary = "h1.example",
                                    .primary_run = 5,
                                    .standby = "h2",
                                    .standby_run = 6,
                                    .in_sync = true,
                                    .history = 7 };
    struct group_record back;
    char text[GROUP_RECORD_MAX];

    (void)state;
    group_record_print(&r, text);
    assert_int_equal(group_record_read(text, &back), 0);
    assert_int_equal(back.term, r.term);
    assert_string_equal(back.primary, r.primary);
    assert_string_equal(back.standby, r.standby);
    assert_true(back.in_sync);
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_int_equal(group_record_read(bad[i], &back), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone_a_primary_acknowledges_all),
        cmocka_unit_test(before_the_record_says_in_sync_acknowledgements_wait_already),
        cmocka_unit_test(a_silent_standby_parks_after_500_ms_and_is_out_of_sync_after_2_s),
        cmocka_unit_test(a_standby_whose_process_is_gone_is_out_of_sync_at_once),
        cmocka_unit_test(
            without_the_service_pushes_go_on_while_the_standby_answers_and_wait_if_not),
        cmocka_unit_test(a_transaction_of_which_nobody_knows_is_read_and_made_again),
        cmocka_unit_test(who_is_deposed_acknowledges_nothing_and_restarts),
        cmocka_unit_test(a_standby_in_sync_seals_and_asks_after_700_ms_of_silence),
        cmocka_unit_test(a_standby_that_loses_follows_again_out_of_sync),
        cmocka_unit_test(a_standby_does_not_seal_while_nobody_can_be_asked),
        cmocka_unit_test(its_own_standstill_is_not_the_primarys_silence),
        cmocka_unit_test(with_fsync_a_standby_asks_once_its_disk_has_its_log),
        cmocka_unit_test(three_failovers_in_ten_minutes_double_the_patience),
        cmocka_unit_test(a_returned_primary_of_a_group_in_sync_asks_its_standby_first),
        cmocka_unit_test(a_switch_waits_until_the_standby_is_equal),
        cmocka_unit_test(two_logs_have_in_common_what_the_same_terms_wrote),
        cmocka_unit_test(a_record_comes_back_from_its_text_and_nothing_else_is_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
