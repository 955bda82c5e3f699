/* Whether the standby is in sync, and the gates: held to what they promise in random runs, and to each step by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/hash.h"
#include "common/status.h"
#include "server/replication/gate.h"
#include "server/replication/sync.h"
#include "tests/support/seed.h"

#define N_SHARDS 3u
#define PATIENCE_MS 1000u

/* --- by hand --- */

static struct sync_shard good(uint64_t now_ms)
{
    return (struct sync_shard){ .is_connected = true,
                                .held = 10,
                                .closed_at = 10,
                                .heard_ms = now_ms,
                                .caught_up_ms = now_ms };
}

static void a_standby_is_waited_for_before_it_is_in_sync_and_until_it_is_not(void **state)
{
    struct sync_shard shard = good(100);
    struct sync s;

    (void)state;
    sync_init(&s, PATIENCE_MS, false, 100);
    assert_int_equal(sync_step(&s, &shard, 1, false, 100), SYNC_NOTHING);
    assert_int_equal(sync_step(&s, &shard, 1, true, 100), SYNC_CLOSE_GATES);
    assert_int_equal(sync_step(&s, &shard, 1, true, 100), SYNC_NOTHING); /* the gate is open */
    shard.is_closed = true;
    shard.closed_at = 11;
    assert_int_equal(sync_step(&s, &shard, 1, true, 100), SYNC_NOTHING); /* 11 may be lost */
    shard.held = 11;
    assert_int_equal(sync_step(&s, &shard, 1, true, 100), SYNC_WRITE_YES);
    assert_int_equal(sync_step(&s, &shard, 1, true, 100), SYNC_NOTHING);
    sync_note_write(&s, 0, 100);
    assert_int_equal(s.state, SYNC_IN);
    assert_string_equal(sync_state_name(s.state), "in sync");
    shard.heard_ms = 200;
    assert_int_equal(sync_step(&s, &shard, 1, true, 200 + PATIENCE_MS), SYNC_NOTHING);
    assert_int_equal(sync_step(&s, &shard, 1, true, 201 + PATIENCE_MS), SYNC_WRITE_NO);
    assert_int_equal(sync_step(&s, &shard, 1, true, 202 + PATIENCE_MS), SYNC_NOTHING);
    sync_note_write(&s, 0, 2000);
    assert_int_equal(sync_step(&s, &shard, 1, true, 2000), SYNC_OPEN_GATES);
    assert_int_equal(s.state, SYNC_OUT);
}

/* now_ms is of a turn's beginning; what has happened in it may be noted a millisecond later. */
static void what_is_noted_later_in_a_turn_is_not_long_ago(void **state)
{
    struct sync_shard shard = good(101);
    struct sync s;

    (void)state;
    sync_init(&s, PATIENCE_MS, false, 101);
    assert_int_equal(sync_step(&s, &shard, 1, true, 101), SYNC_CLOSE_GATES);
    assert_int_equal(sync_step(&s, &shard, 1, true, 100), SYNC_NOTHING);
    shard.is_closed = true;
    assert_int_equal(sync_step(&s, &shard, 1, true, 100), SYNC_WRITE_YES);
    sync_note_write(&s, 0, 101);
    assert_int_equal(sync_step(&s, &shard, 1, true, 100), SYNC_NOTHING);
}

static void replies_wait_as_long_as_it_cannot_be_written_that_it_is_out_of_sync(void **state)
{
    struct sync_shard shard = good(100);
    struct sync s;

    (void)state;
    sync_init(&s, PATIENCE_MS, true, 100);
    shard.is_connected = false;
    assert_int_equal(sync_step(&s, &shard, 1, true, 100), SYNC_WRITE_NO);
    sync_note_write(&s, -5, 100);
    assert_int_equal(sync_step(&s, &shard, 1, true, 101), SYNC_NOTHING);
    assert_int_equal(sync_step(&s, &shard, 1, true, 100 + SYNC_RETRY_MS), SYNC_WRITE_NO);
    sync_note_write(&s, 0, 1200);
    assert_int_equal(sync_step(&s, &shard, 1, true, 1200), SYNC_OPEN_GATES);
}

static void a_write_of_yes_that_failed_is_taken_back(void **state)
{
    struct sync_shard shard = good(100);
    struct sync s;

    (void)state;
    sync_init(&s, PATIENCE_MS, false, 100);
    assert_int_equal(sync_step(&s, &shard, 1, true, 100), SYNC_CLOSE_GATES);
    shard.is_closed = true;
    assert_int_equal(sync_step(&s, &shard, 1, true, 100), SYNC_WRITE_YES);
    sync_note_write(&s, -5, 100); /* the disk may say yes all the same */
    assert_int_equal(s.state, SYNC_LEAVING);
    assert_int_equal(sync_step(&s, &shard, 1, true, 100 + SYNC_RETRY_MS), SYNC_WRITE_NO);
    sync_note_write(&s, 0, 1100);
    assert_int_equal(sync_step(&s, &shard, 1, true, 1100), SYNC_OPEN_GATES);
}

static void a_standby_that_does_not_catch_up_is_not_waited_for_for_long(void **state)
{
    struct sync_shard shard = good(100);
    struct sync s;

    (void)state;
    sync_init(&s, PATIENCE_MS, false, 100);
    assert_int_equal(sync_step(&s, &shard, 1, true, 100), SYNC_CLOSE_GATES);
    shard.is_closed = true;
    shard.closed_at = 1000;
    shard.heard_ms = 1101;
    assert_int_equal(sync_step(&s, &shard, 1, true, 1101), SYNC_OPEN_GATES);
    assert_int_equal(s.state, SYNC_OUT);
}

/* --- the gate --- */

static int fetch(struct gate *g, uint64_t next, uint64_t durable, uint64_t appended)
{
    const struct fetch m = { .next = next, .durable = durable };

    return gate_fetch(g, &m, appended, 100);
}

static void a_gate_takes_the_acknowledgement_that_was_asked_for(void **state)
{
    struct gate g = { .ack = TERMS_ACK_GOT };

    (void)state;
    gate_begin(&g, 5);
    assert_int_equal(fetch(&g, 8, 6, 10), 0);
    assert_int_equal(gate_acknowledged(&g), UINT64_MAX);
    gate_close(&g, 10);
    assert_int_equal(g.closed_at, 10);
    assert_int_equal(gate_acknowledged(&g), 7);
    g.ack = TERMS_ACK_DISK;
    assert_int_equal(gate_acknowledged(&g), 6);
    g.ack = TERMS_ACK_NO;
    assert_int_equal(gate_acknowledged(&g), UINT64_MAX);
    g.ack = TERMS_ACK_GOT;
    gate_seal(&g);
    gate_open(&g);
    assert_int_equal(fetch(&g, 11, 10, 10), 0);
    assert_int_equal(gate_acknowledged(&g), 7); /* for ever */
}

static void what_a_standby_cannot_have_is_not_believed(void **state)
{
    struct gate g = { .ack = TERMS_ACK_GOT };

    (void)state;
    gate_begin(&g, 5);
    assert_int_equal(fetch(&g, 0, 0, 10), PS_EPROTO);
    assert_int_equal(fetch(&g, 12, 0, 10), PS_EPROTO); /* never was */
    assert_int_equal(fetch(&g, 9, 9, 10), PS_EPROTO);  /* durable, and not received */
    assert_int_equal(fetch(&g, 5, 0, 10), PS_EPROTO);  /* it had more */
    assert_int_equal(fetch(&g, UINT64_MAX, 0, 10), PS_EPROTO);
    assert_int_equal(g.received, 5);
    assert_int_equal(fetch(&g, 11, 10, 10), 0);
    assert_int_equal(g.caught_up_ms, 100);
}

static void with_disk_a_gate_waits_for_what_is_durable_there(void **state)
{
    struct gate g = { .ack = TERMS_ACK_DISK };

    (void)state;
    gate_begin(&g, 5);
    assert_int_equal(fetch(&g, 8, 6, 10), 0);
    assert_int_equal(gate_held(&g), 6);
    g.ack = TERMS_ACK_GOT;
    assert_int_equal(gate_held(&g), 7);
}

static void a_sealed_gate_acknowledges_nothing_whatever_the_mode(void **state)
{
    (void)state;
    for (int ack = 0; ack < TERMS_ACK_END; ack++) {
        struct gate g = { .ack = (enum terms_ack)ack };

        gate_begin(&g, 5);
        gate_close(&g, 10);
        gate_seal(&g);
        assert_in_range(gate_acknowledged(&g), 0, 5);
    }
}

/* --- the promise, in random runs ---
 *
 * The disk's word is what a write that has ended wrote; one under way, and one that failed, may have written either.
 * Wherever the disk may say yes, no reply has gone out whose record the standby does not have, with
 * `disk` on its own disk. */

struct world {
    uint64_t seed, now_ms;
    struct sync sync;
    struct gate gates[N_SHARDS];
    uint64_t appended[N_SHARDS], has[N_SHARDS], durable[N_SHARDS], heard_ms[N_SHARDS];
    bool is_connected[N_SHARDS], is_followed;
    bool may_be_yes, writes_yes;
    uint64_t released[N_SHARDS]; /* replies have gone out up to here */
    uint64_t n_in_sync, n_released_alone;
};

static uint64_t dice(struct world *w, uint64_t n)
{
    w->seed = hash_mix(w->seed + 1);
    return w->seed % n;
}

static uint64_t outlives(const struct world *w, uint32_t i)
{
    return w->gates[i].ack == TERMS_ACK_DISK ? w->durable[i] : w->has[i];
}

static void release(struct world *w)
{
    for (uint32_t i = 0; i < N_SHARDS; i++) {
        const uint64_t by_standby = gate_acknowledged(&w->gates[i]);
        const uint64_t through = by_standby < w->appended[i] ? by_standby : w->appended[i];

        if (through > w->released[i])
            w->released[i] = through;
        w->n_released_alone += w->released[i] > outlives(w, i);
        if (w->may_be_yes && w->released[i] > outlives(w, i))
            fail_msg("a reply of record %llu of shard %u is out, the standby has %llu, and the "
                     "disk may say that it is in sync",
                     (unsigned long long)w->released[i], i, (unsigned long long)outlives(w, i));
    }
}

static void query(struct world *w, struct sync_shard *ret)
{
    for (uint32_t i = 0; i < N_SHARDS; i++)
        ret[i] = (struct sync_shard){ .is_connected = w->is_connected[i],
                                      .is_closed = w->gates[i].mode != GATE_OPEN,
                                      .held = gate_held(&w->gates[i]),
                                      .closed_at = w->gates[i].closed_at,
                                      .heard_ms = w->heard_ms[i],
                                      .caught_up_ms = w->gates[i].caught_up_ms };
}

static void step(struct world *w)
{
    struct sync_shard shards[N_SHARDS];
    enum sync_order order;

    query(w, shards);
    order = sync_step(&w->sync, shards, N_SHARDS, w->is_followed, w->now_ms);
    for (uint32_t i = 0; i < N_SHARDS; i++) {
        if (order == SYNC_CLOSE_GATES)
            gate_close(&w->gates[i], w->appended[i]);
        if (order == SYNC_OPEN_GATES)
            gate_open(&w->gates[i]);
        if (order == SYNC_OPEN_GATES || order == SYNC_CLOSE_GATES)
            release(w); /* between two shards' orders, too */
    }
    if (order == SYNC_WRITE_YES || order == SYNC_WRITE_NO)
        w->writes_yes = order == SYNC_WRITE_YES;
    if (order == SYNC_WRITE_YES)
        w->may_be_yes = true;
}

static void end_write(struct world *w)
{
    const int status = dice(w, 4) ? 0 : -5;

    if (!w->sync.writes)
        return;
    if (!status)
        w->may_be_yes = w->writes_yes;
    sync_note_write(&w->sync, status, w->now_ms);
    w->n_in_sync += w->sync.state == SYNC_IN;
}

/* A standby that has crashed follows anew, with what it then has; the server waits until it is out of sync. */
static void follow(struct world *w)
{
    if (w->sync.state != SYNC_OUT) {
        w->sync.ends = true;
        return;
    }
    w->sync.ends = false;
    w->is_followed = true;
    for (uint32_t i = 0; i < N_SHARDS; i++) {
        w->has[i] -= dice(w, 3) ? 0 : dice(w, w->has[i] - w->durable[i] + 1);
        gate_begin(&w->gates[i], w->has[i]);
        w->is_connected[i] = true;
    }
}

static void one_fetch(struct world *w, uint32_t i)
{
    const struct fetch m = { .next = w->has[i] + 1, .durable = w->durable[i] };

    if (!w->is_connected[i] || !w->is_followed)
        return;
    assert_int_equal(gate_fetch(&w->gates[i], &m, w->appended[i], w->now_ms), 0);
    w->heard_ms[i] = w->now_ms;
    /* What it gets now it tells with the next one. */
    w->has[i] += dice(w, w->appended[i] - w->has[i] + 1);
    w->durable[i] += dice(w, w->has[i] - w->durable[i] + 1);
}

static void play(struct world *w, uint32_t n_events)
{
    for (uint32_t n = 0; n < n_events; n++) {
        const uint32_t i = (uint32_t)dice(w, N_SHARDS);

        w->now_ms += dice(w, 30);
        switch (dice(w, 12)) {
        case 0:
        case 1:
            w->appended[i] += dice(w, 4);
            break;
        case 2:
            end_write(w);
            break;
        case 3:
            step(w);
            break;
        case 4:
            if (dice(w, 40) == 0)
                w->is_connected[i] = false;
            break;
        case 5:
            if (!w->is_followed || !w->is_connected[i])
                follow(w);
            break;
        case 6:
            if (dice(w, 100) == 0)
                w->now_ms += PATIENCE_MS * 2;
            break;
        default:
            one_fetch(w, i);
        }
        release(w);
    }
}

static void no_reply_goes_out_alone_while_the_disk_may_say_in_sync(void **state)
{
    const uint64_t seed = seed_of_run(16);
    uint64_t n_in_sync = 0, n_alone = 0;

    (void)state;
    for (uint64_t round = 0; round < 300; round++) {
        struct world w = { .seed = seed * 1000 + round, .now_ms = 1 };

        sync_init(&w.sync, PATIENCE_MS, false, w.now_ms);
        for (uint32_t i = 0; i < N_SHARDS; i++)
            w.gates[i].ack = round % 2 ? TERMS_ACK_GOT : TERMS_ACK_DISK;
        play(&w, 3000);
        n_in_sync += w.n_in_sync;
        n_alone += w.n_released_alone;
    }
    assert_true(n_in_sync > 100); /* the runs did come there, */
    assert_true(n_alone > 100);   /* and went on without a standby */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_standby_is_waited_for_before_it_is_in_sync_and_until_it_is_not),
        cmocka_unit_test(what_is_noted_later_in_a_turn_is_not_long_ago),
        cmocka_unit_test(replies_wait_as_long_as_it_cannot_be_written_that_it_is_out_of_sync),
        cmocka_unit_test(a_write_of_yes_that_failed_is_taken_back),
        cmocka_unit_test(a_standby_that_does_not_catch_up_is_not_waited_for_for_long),
        cmocka_unit_test(a_gate_takes_the_acknowledgement_that_was_asked_for),
        cmocka_unit_test(what_a_standby_cannot_have_is_not_believed),
        cmocka_unit_test(with_disk_a_gate_waits_for_what_is_durable_there),
        cmocka_unit_test(a_sealed_gate_acknowledges_nothing_whatever_the_mode),
        cmocka_unit_test(no_reply_goes_out_alone_while_the_disk_may_say_in_sync),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
