/* How evenly pushes go on while the disk is slower than they come: the two rules, held to a disk and workers on simulated
 * time. Before there was a pace, pushes ran on until the queue was full, and stood still until half of it was written. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base.h"
#include "server/wal/wal_pace.h"
#include "server/wal/wal_portion.h"

#define MIB (UINT64_C(1) << 20)
#define MAX_BYTES (64 * MIB)
#define STEP_US UINT64_C(100)
#define N_CLIENTS 16u /* each has one push under way */
#define N_SEEN 200000u

struct sim {
    uint64_t now_us, bytes_per_s,
        fixed_us; /* of the disk: its speed, and what each sync costs besides */
    uint64_t push_bytes;
    bool is_paced; /* false: as before there was a pace */
    uint64_t backlog_bytes, written_bytes, syncing_bytes, synced_at_us, sync_began_us;
    uint64_t longest_sync_us, max_backlog_bytes;
    bool is_full;
    uint64_t since_us[N_CLIENTS]; /* when the client's push came */
    uint32_t next;                /* client in line */
    uint32_t n_seen;
    uint64_t *seen_us; /* latencies */
    struct wal_pace pace;
    struct wal_portion portion;
};

static void disk_step(struct sim *s)
{
    uint64_t us = s->now_us - s->sync_began_us, bytes;

    if (s->syncing_bytes && s->now_us < s->synced_at_us)
        return;
    if (s->syncing_bytes) {
        s->backlog_bytes -= s->syncing_bytes;
        s->written_bytes += s->syncing_bytes;
        s->longest_sync_us = us > s->longest_sync_us ? us : s->longest_sync_us;
        wal_portion_note(&s->portion, s->syncing_bytes, s->syncing_bytes, us * 1000,
                         s->backlog_bytes ? WAL_PORTION_MORE_WAITS : WAL_PORTION_LAST);
        s->pace.bytes_per_s = wal_portion_raw_speed(&s->portion);
        s->is_full = s->is_full && s->backlog_bytes > MAX_BYTES / 2;
    }
    bytes = wal_portion_next(&s->portion);
    s->syncing_bytes = bytes < s->backlog_bytes ? bytes : s->backlog_bytes;
    s->sync_began_us = s->now_us;
    s->synced_at_us = s->now_us + s->fixed_us + s->syncing_bytes * 1000000 / s->bytes_per_s;
}

/* One push in a step: the shard's own speed. */
static void push_step(struct sim *s)
{
    uint64_t now_ms = s->now_us / 1000;

    if (s->is_full || (s->is_paced && wal_pace_wait_ms(&s->pace, now_ms)))
        return;
    s->backlog_bytes += s->push_bytes;
    wal_pace_append(&s->pace, now_ms, s->push_bytes, s->backlog_bytes);
    s->is_full = s->backlog_bytes >= MAX_BYTES;
    if (s->backlog_bytes > s->max_backlog_bytes)
        s->max_backlog_bytes = s->backlog_bytes;
    assert_true(s->n_seen < N_SEEN);
    s->seen_us[s->n_seen++] = s->now_us - s->since_us[s->next] + STEP_US;
    s->since_us[s->next] = s->now_us;
    s->next = (s->next + 1) % N_CLIENTS;
}

static void sim_begin(struct sim *s, uint64_t bytes_per_s, uint64_t push_bytes)
{
    *s = (struct sim){ .now_us = 1000000,
                       .bytes_per_s = bytes_per_s,
                       .fixed_us = 1000,
                       .push_bytes = push_bytes,
                       .is_paced = true,
                       .seen_us = malloc(N_SEEN * sizeof(uint64_t)) };
    assert_non_null(s->seen_us);
    wal_pace_init(&s->pace, MAX_BYTES);
    wal_portion_init(&s->portion);
    for (uint32_t i = 0; i < N_CLIENTS; i++)
        s->since_us[i] = s->now_us;
}

static void sim_run(struct sim *s, uint64_t ms)
{
    uint64_t until_us = s->now_us + ms * 1000;

    for (; s->now_us < until_us; s->now_us += STEP_US) {
        disk_step(s);
        push_step(s);
    }
}

/* What came before no longer counts. */
static void sim_reset(struct sim *s)
{
    s->n_seen = 0;
    s->written_bytes = 0;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static uint64_t quantile_us(struct sim *s, double q)
{
    qsort(s->seen_us, s->n_seen, sizeof *s->seen_us, compare);
    return s->seen_us[(uint32_t)(q * (s->n_seen - 1))];
}

static void assert_even(struct sim *s, uint64_t ms)
{
    uint64_t p50 = quantile_us(s, 0.5), p99 = quantile_us(s, 0.99), worst = quantile_us(s, 1);
    double share = (double)s->written_bytes * 1000 / (double)ms / (double)s->bytes_per_s;

    print_message("%4" PRIu64 " MB/s: %.2f of the disk, p50 %.1f ms, p99 %.1f, worst %.1f\n",
                  s->bytes_per_s / 1000000, share, (double)p50 / 1e3, (double)p99 / 1e3,
                  (double)worst / 1e3);
    assert_true(share >= 0.9);
    assert_true(p99 <= 4 * p50);
    assert_true(worst < 200000);
}

static void pushes_are_spread_and_the_disk_is_used(void **state)
{
    static const uint64_t speeds[] = { 50, 100, 200, 475, 1000 };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(speeds); i++) {
        struct sim s;

        sim_begin(&s, speeds[i] * 1000000, 264000);
        sim_run(&s, 3000);
        sim_reset(&s);
        sim_run(&s, 8000);
        assert_even(&s, 8000);
        assert_true(s.max_backlog_bytes < MAX_BYTES);
        free(s.seen_us);
    }
}

static void without_a_pace_they_run_and_stand_still(void **state)
{
    struct sim s;

    (void)state;
    sim_begin(&s, 100000000, 264000);
    s.is_paced = false;
    sim_run(&s, 11000);
    assert_true(quantile_us(&s, 1) > 200000);
    assert_true(quantile_us(&s, 1) > 20 * quantile_us(&s, 0.5));
    free(s.seen_us);
}

static void nobody_waits_for_a_disk_that_keeps_up(void **state)
{
    struct sim s;

    (void)state;
    sim_begin(&s, UINT64_C(4000000000), 264000);
    sim_run(&s, 5000);
    assert_true(quantile_us(&s, 1) <= (N_CLIENTS + 1) * STEP_US);
    assert_int_equal(s.portion.bytes, WAL_PORTION_MAX);
    free(s.seen_us);
}

static void the_first_wait_is_no_longer_than_the_others(void **state)
{
    struct sim s;

    (void)state;
    sim_begin(&s, 100000000, 264000);
    sim_run(&s, 2000);
    print_message("worst %.1f ms\n", (double)quantile_us(&s, 1) / 1e3);
    assert_true(quantile_us(&s, 1) < 200000);
    free(s.seen_us);
}

static void a_disk_that_changes_its_speed_is_followed(void **state)
{
    struct sim s;

    (void)state;
    sim_begin(&s, 400000000, 264000);
    sim_run(&s, 3000);
    s.bytes_per_s = 80000000;
    sim_run(&s, 3000);
    sim_reset(&s);
    s.longest_sync_us = 0;
    sim_run(&s, 5000);
    assert_even(&s, 5000);
    assert_true(s.longest_sync_us < 80000);
    free(s.seen_us);
}

static void the_wait_grows_with_the_backlog_and_ends(void **state)
{
    struct wal_pace p;
    uint64_t was = 0;

    (void)state;
    for (uint64_t mib = 0; mib < 64; mib += 8) {
        wal_pace_init(&p, MAX_BYTES);
        p.bytes_per_s = 10 * MIB;
        p.next_ns = UINT64_C(5000000000);
        wal_pace_append(&p, 5000, MIB / 2, mib * MIB);
        assert_true(mib <= 16 ? wal_pace_wait_ms(&p, 5000) == 0
                              : wal_pace_wait_ms(&p, 5000) > was);
        was = wal_pace_wait_ms(&p, 5000);
    }
    wal_pace_append(&p, 5000, 64 * MIB, 70 * MIB); /* and has an end, whatever the speed was */
    assert_int_equal(wal_pace_wait_ms(&p, 5000), 1000);
    assert_int_equal(wal_pace_wait_ms(&p, 6000), 0);
}

/* --- portions --- */

static void feed(struct wal_portion *p, uint32_t n, double mb_per_s, double fixed_ms)
{
    while (n--) {
        uint64_t bytes = wal_portion_next(p);

        wal_portion_note(p, bytes, bytes,
                         (uint64_t)((fixed_ms + (double)bytes / mb_per_s / 1e3) * 1e6),
                         WAL_PORTION_MORE_WAITS);
    }
}

static void a_portion_takes_some_tens_of_ms(void **state)
{
    struct wal_portion p;

    (void)state;
    wal_portion_init(&p);
    feed(&p, 30, 100, 1);
    assert_in_range(p.bytes, 3500000, 4500000);
    assert_in_range(wal_portion_disk_speed(&p), 90000000, 100000000);
    feed(&p, 30, 2000, 1);
    assert_int_equal(p.bytes, WAL_PORTION_MAX);
    feed(&p, 60, 5, 1);
    assert_int_equal(p.bytes, WAL_PORTION_MIN);
}

/* A disk with heads: 25 ms for each sync, so small portions would cost most of its speed. */
static void a_dear_sync_makes_portions_larger(void **state)
{
    struct wal_portion p;

    (void)state;
    wal_portion_init(&p);
    feed(&p, 30, 100, 25);
    assert_int_equal(p.bytes, WAL_PORTION_MAX);
    assert_true(wal_portion_disk_speed(&p) > 80000000);
}

static void what_is_too_small_says_nothing(void **state)
{
    struct wal_portion p;

    (void)state;
    wal_portion_init(&p);
    for (int i = 0; i < 10; i++)
        wal_portion_note(&p, 4096, 4096, 5000000, WAL_PORTION_LAST);
    assert_int_equal(wal_portion_disk_speed(&p), 0);
}

/* mb_per_s: of records, in each way. */
static uint32_t n_compressed(double plain, double compressed)
{
    struct wal_portion p;
    uint32_t n = 0;

    wal_portion_init(&p);
    for (int i = 0; i < 200; i++) {
        uint64_t bytes = wal_portion_next(&p), raw = p.compresses ? bytes * 4 / 3 : bytes;

        n += p.compresses;
        wal_portion_note(&p, bytes, raw,
                         (uint64_t)((double)raw / (p.compresses ? compressed : plain) * 1e3),
                         WAL_PORTION_MORE_WAITS);
    }
    return n;
}

static void what_lets_more_through_is_done(void **state)
{
    (void)state;
    assert_in_range(n_compressed(475, 200), 5, 30);
    assert_in_range(n_compressed(100, 130), 170, 195);
}

/* --- while the disk is the bound --- */

/* The disk takes 20 MB/s, and pushes are held back for three quarters of the time: without, it would be 80. */
static enum wal_bound_change tick_bound(struct wal_bound *b, uint64_t now_ms,
                                        enum wal_bound_waits waits)
{
    const struct wal_bound_sample now = { .ms = now_ms,
                                          .stored_bytes = now_ms * 20000,
                                          .held_ms = now_ms / 4 * 3,
                                          .disk_bytes_per_s = 20000000 };

    return wal_bound_tick(b, &now, waits);
}

static void what_a_disk_would_have_to_take_is_what_pushes_bring_while_they_may(void **state)
{
    struct wal_bound b = { 0 };
    struct wal_bound_rates r;
    uint64_t now = 100000;

    (void)state;
    (void)tick_bound(&b, now, WAL_BOUND_NO_PUSH_WAITS);
    (void)tick_bound(&b, now += 400, WAL_BOUND_PUSHES_WAIT);
    assert_false(wal_bound_rates(&b, &r)); /* too short a time */
    for (uint64_t end = now + 60000; now < end;) {
        (void)tick_bound(&b, now += 400, WAL_BOUND_PUSHES_WAIT);
        if (!wal_bound_rates(&b, &r))
            continue;
        assert_int_equal(r.bytes_per_s, 20000000);
        assert_int_equal(r.needed_bytes_per_s, 80000000);
        assert_true(r.ms <= 20400 && r.held_ms == r.ms / 4 * 3); /* of the last seconds */
    }
    assert_true(r.ms >= 10000);
    assert_false(r.is_least);
    b.last.held_ms += r.ms / 4; /* held back all the time */
    assert_true(wal_bound_rates(&b, &r));
    assert_true(r.is_least);
    assert_in_range(r.needed_bytes_per_s, 199000000, 200000000);
}

static void a_bound_is_reported_when_it_lasts_and_when_it_ends(void **state)
{
    struct wal_bound b = { 0 };
    uint64_t now = 100000;
    uint32_t n[3] = { 0 };

    (void)state;
    assert_int_equal(tick_bound(&b, now, WAL_BOUND_PUSHES_WAIT),
                     WAL_BOUND_UNCHANGED); /* a moment */
    for (uint64_t end = now + 10000; now < end; now += 50)
        assert_int_equal(tick_bound(&b, now, WAL_BOUND_NO_PUSH_WAITS), WAL_BOUND_UNCHANGED);
    assert_false(b.is_on);
    for (uint32_t i = 0; i < 5; i++) { /* twenty seconds with, ten without */
        for (uint64_t end = now + 20000; now < end; now += 50) {
            n[tick_bound(&b, now, WAL_BOUND_PUSHES_WAIT)]++;
            assert_true(b.is_on);
        }
        for (uint64_t end = now + 10000; now < end; now += 50)
            n[tick_bound(&b, now, WAL_BOUND_NO_PUSH_WAITS)]++;
        assert_false(b.is_on);
    }
    assert_int_equal(n[WAL_BOUND_BEGAN], 3); /* one a minute at most */
    assert_int_equal(n[WAL_BOUND_ENDED], 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pushes_are_spread_and_the_disk_is_used),
        cmocka_unit_test(without_a_pace_they_run_and_stand_still),
        cmocka_unit_test(nobody_waits_for_a_disk_that_keeps_up),
        cmocka_unit_test(the_first_wait_is_no_longer_than_the_others),
        cmocka_unit_test(a_disk_that_changes_its_speed_is_followed),
        cmocka_unit_test(the_wait_grows_with_the_backlog_and_ends),
        cmocka_unit_test(a_portion_takes_some_tens_of_ms),
        cmocka_unit_test(a_dear_sync_makes_portions_larger),
        cmocka_unit_test(what_is_too_small_says_nothing),
        cmocka_unit_test(what_lets_more_through_is_done),
        cmocka_unit_test(what_a_disk_would_have_to_take_is_what_pushes_bring_while_they_may),
        cmocka_unit_test(a_bound_is_reported_when_it_lasts_and_when_it_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
