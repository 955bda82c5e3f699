/* News of suspected workers between three shards: who is told what, and when all agree. */
#include "worker/client/suspects.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define N_SHARDS 3u

static const struct suspects nobody;

static struct suspects one(uint32_t rank, uint64_t incarnation)
{
    return (struct suspects){ 1, { { .rank = rank, .incarnation = incarnation } } };
}

static struct suspects ask(struct suspects_relay *r, uint32_t shard)
{
    struct suspects asked = { 0 };
    bool has_update = suspects_has_update(r, shard);

    suspects_ask(r, shard, &asked);
    assert_int_equal(has_update, asked.n > 0);
    return asked;
}

static void assert_asks(struct suspects_relay *r, uint32_t shard, bool is_agreed)
{
    struct suspects asked = ask(r, shard);

    assert_int_equal(asked.n, 1);
    assert_int_equal(asked.items[0].rank, 5);
    assert_int_equal(asked.items[0].incarnation, 7);
    assert_int_equal(asked.items[0].is_agreed, is_agreed);
}

static void assert_silent(struct suspects_relay *r, uint32_t shard)
{
    assert_int_equal(ask(r, shard).n, 0);
}

/* Shard 0 suspects rank 5. */
static struct suspects_relay *set_up(void)
{
    struct suspects_relay *r = suspects_new(N_SHARDS);
    struct suspects suspected = one(5, 7);

    for (uint32_t i = 0; i < N_SHARDS; i++)
        assert_silent(r, i);
    suspects_answered(r, 0, &suspected, &nobody);
    return r;
}

static void agree(struct suspects_relay *r)
{
    for (uint32_t i = 1; i < N_SHARDS; i++) {
        assert_asks(r, i, false);
        suspects_answered(r, i, &nobody, &nobody);
    }
}

static void all_shards_refuse_a_worker_before_it_is_declared_dead(void **state)
{
    struct suspects_relay *r = set_up();

    (void)state;
    assert_silent(r, 0);
    assert_asks(r, 1, false);
    assert_asks(r, 2, false);
    assert_silent(r, 1); /* once */
    suspects_answered(r, 1, &nobody, &nobody);
    for (uint32_t i = 0; i < N_SHARDS; i++)
        assert_silent(r, i); /* shard 2 has not answered */
    suspects_answered(r, 2, &nobody, &nobody);
    for (uint32_t i = 0; i < N_SHARDS; i++)
        assert_asks(r, i, true);
    for (uint32_t i = 0; i < N_SHARDS; i++)
        suspects_answered(r, i, &nobody, &nobody);
    for (uint32_t i = 0; i < N_SHARDS; i++)
        assert_silent(r, i); /* forgotten */
    suspects_free(r);
    suspects_free(NULL);
}

static void a_shard_that_suspects_it_too_needs_no_report(void **state)
{
    struct suspects_relay *r = set_up();
    struct suspects suspected = one(5, 7);

    (void)state;
    suspects_answered(r, 1, &suspected, &nobody);
    assert_silent(r, 1);
    assert_asks(r, 2, false);
    suspects_answered(r, 2, &suspected, &nobody); /* it says so of what it has just been told */
    for (uint32_t i = 0; i < N_SHARDS; i++)
        assert_asks(r, i, true);
    suspects_free(r);
}

static void a_shard_whose_connection_was_lost_is_asked_again(void **state)
{
    struct suspects_relay *r = set_up();

    (void)state;
    assert_asks(r, 1, false);
    suspects_lost(r, 1); /* before its answer */
    assert_asks(r, 1, false);
    suspects_answered(r, 1, &nobody, &nobody);
    suspects_lost(r, 1); /* after it: it may have been restarted */
    suspects_lost(r, 0);
    assert_asks(r, 2, false);
    suspects_answered(r, 2, &nobody, &nobody);
    assert_silent(r, 2); /* not all refuse it any more */
    for (uint32_t i = 0; i < 2; i++) {
        assert_asks(r, i, false);
        suspects_answered(r, i, &nobody, &nobody);
    }
    assert_asks(r, 2, true);
    suspects_free(r);
}

static void what_was_agreed_stays_when_a_connection_is_lost(void **state)
{
    struct suspects_relay *r = set_up();

    (void)state;
    agree(r);
    for (uint32_t i = 0; i < N_SHARDS; i++) {
        assert_asks(r, i, true);
        suspects_lost(r, i); /* with the answer */
        assert_asks(r, i, true);
        suspects_answered(r, i, &nobody, &nobody);
        suspects_lost(r, i);
        assert_silent(r, i); /* it was told */
    }
    suspects_free(r);
}

static void a_shard_that_lost_the_end_of_a_suspect_is_asked_again(void **state)
{
    struct suspects_relay *r = set_up();
    struct suspects suspected = one(5, 7);

    (void)state;
    agree(r);
    assert_asks(r, 1, true);
    suspects_answered(r, 1, &nobody, &nobody);
    suspects_lost(r, 1); /* restarted; what it had not synced is gone */
    assert_silent(r, 1);
    suspects_answered(r, 1, &suspected, &nobody);
    assert_asks(r, 1, true);
    suspects_free(r);
}

/* It hears the worker, and believes two that say so. */
static void a_shard_that_doubts_it_is_asked_with_each_heartbeat(void **state)
{
    struct suspects_relay *r = set_up();
    struct suspects suspected = one(5, 7);

    (void)state;
    assert_asks(r, 1, false);
    suspects_answered(r, 1, &nobody, &suspected);
    assert_false(suspects_has_update(r, 1)); /* not before the next one is due */
    for (uint32_t i = 0; i < 3; i++) {
        struct suspects asked = { 0 };

        suspects_ask(r, 1, &asked);
        assert_int_equal(asked.n, 1);
        suspects_answered(r, 1, &nobody, &suspected);
    }
    assert_asks(r, 2, false);
    suspects_answered(r, 2, &nobody, &nobody);
    assert_silent(r, 0); /* shard 1 does not refuse it */
    suspects_answered(r, 1, &suspected, &nobody);
    assert_asks(r, 0, true);
    suspects_free(r);
}

static void a_suspect_that_no_shard_refuses_is_dropped(void **state)
{
    struct suspects_relay *r = set_up();
    struct suspects suspected = one(5, 7);

    (void)state;
    suspects_lost(r, 0); /* restarted */
    assert_true(suspects_are_open(r));
    assert_asks(r, 0, false);
    suspects_answered(r, 0, &nobody, &suspected);
    assert_false(suspects_are_open(r));
    suspects_free(r);
}

static void two_incarnations_of_a_rank_are_two_suspects(void **state)
{
    struct suspects_relay *r = set_up();
    struct suspects suspected = one(5, 8), asked;

    (void)state;
    agree(r);
    suspects_answered(r, 2, &suspected, &nobody);
    asked = ask(r, 1);
    assert_int_equal(asked.n, 2);
    assert_true(asked.items[0].is_agreed);
    assert_int_equal(asked.items[1].incarnation, 8);
    assert_false(asked.items[1].is_agreed);
    suspects_free(r);
}

static void more_than_one_message_takes_come_in_the_next_one(void **state)
{
    struct suspects_relay *r = suspects_new(2);
    uint32_t n = 0;

    (void)state;
    for (uint32_t round = 0; round < 100; round++) { /* more than are kept: no harm */
        struct suspects suspected = one(round, 1);

        suspects_answered(r, 0, &suspected, &nobody);
    }
    while (suspects_has_update(r, 1)) {
        struct suspects asked = ask(r, 1);

        assert_true(asked.n <= MESSAGE_SUSPECTS_MAX);
        n += asked.n;
        suspects_answered(r, 1, &nobody, &nobody);
        if (n >= 64)
            break;
    }
    assert_int_equal(n, 64);
    suspects_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_shards_refuse_a_worker_before_it_is_declared_dead),
        cmocka_unit_test(a_shard_that_suspects_it_too_needs_no_report),
        cmocka_unit_test(a_shard_whose_connection_was_lost_is_asked_again),
        cmocka_unit_test(what_was_agreed_stays_when_a_connection_is_lost),
        cmocka_unit_test(a_shard_that_lost_the_end_of_a_suspect_is_asked_again),
        cmocka_unit_test(a_shard_that_doubts_it_is_asked_with_each_heartbeat),
        cmocka_unit_test(a_suspect_that_no_shard_refuses_is_dropped),
        cmocka_unit_test(two_incarnations_of_a_rank_are_two_suspects),
        cmocka_unit_test(more_than_one_message_takes_come_in_the_next_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
