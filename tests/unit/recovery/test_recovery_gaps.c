/* Records that were dropped: nothing behind them is acknowledged, or found again, until a checkpoint of a
 * later state is safe; and then all is. */
#include "tests/unit/recovery/logged_world.h"

static const struct shape shape = { .n_keys = 60, .n_large = 50, .limits = true };

enum fate { PENDING, SAFE, USELESS };

struct gap_world {
    struct logged_world l;
    enum fate fates[SCANS_MAX]; /* of the world's scans */
    size_t n_fates;
    uint64_t n_full; /* of the world's, when that was noted */
    /* Safe ones that the world has no more use for, until a new one is safe. */
    struct kept_scan stash[SCANS_MAX];
    uint64_t stash_through[SCANS_MAX];
    size_t n_stash;
    uint64_t n_gaps, n_mended;
};

static void drop_stash(struct gap_world *g)
{
    while (g->n_stash)
        kept_scan_free(&g->stash[--g->n_stash]);
}

/* Where a full scan is under way, which drops what was before when it is done: safe or not. */
static void stash_scans(struct gap_world *g)
{
    struct world *w = &g->l.w;
    size_t n = g->n_fates;

    while (n && g->fates[n - 1] != SAFE)
        n--;
    if (!w->going.scan || w->going.mode != SNAPSHOT_SCAN_FULL || n == 0)
        return;
    drop_stash(g);
    memcpy(g->stash, w->scans, n * sizeof *w->scans);
    memcpy(g->stash_through, g->l.through, n * sizeof *g->l.through);
    g->n_stash = n;
    while (w->n_scans > n)
        kept_scan_free(&w->scans[--w->n_scans]);
    w->n_scans = g->l.n_through = g->n_fates = 0;
}

static void unstash_scans(struct gap_world *g)
{
    struct world *w = &g->l.w;

    drop_scans(w);
    memcpy(w->scans, g->stash, g->n_stash * sizeof *w->scans);
    memcpy(g->l.through, g->stash_through, g->n_stash * sizeof *g->l.through);
    w->n_scans = g->l.n_through = g->n_stash;
    g->n_stash = 0;
}

/* As wal_thread.h says it: a scan is a checkpoint when its log is durable and has lost nothing since it
 * began. */
static void check_scans(struct gap_world *g)
{
    struct logged_world *l = &g->l;

    if (l->w.n_full != g->n_full)
        g->n_fates = 0;
    g->n_full = l->w.n_full;
    while (g->n_fates < l->n_through)
        g->fates[g->n_fates++] = PENDING;
    for (size_t i = 0; i < g->n_fates; i++) {
        uint64_t first = l->w.scans[i].position;

        if (g->fates[i] != PENDING)
            continue;
        if (l->queue.lost_last > first) {
            g->fates[i] = USELESS;
        } else if (l->queue.progress.durable >= l->through[i]) {
            g->n_mended += l->queue.lost_first != 0;
            wal_queue_close_gap(&l->queue, first);
            g->fates[i] = SAFE;
            drop_stash(g);
        }
    }
}

static void go_on_for(struct gap_world *g, uint32_t n_steps)
{
    struct logged_world *l = &g->l;

    for (uint32_t i = 0; i < n_steps; i++) {
        uint64_t n_dropped = l->queue.n_dropped, doubtful = l->queue.progress.doubtful;

        stash_scans(g);
        logged_step(l);
        g->n_gaps += l->queue.n_dropped > n_dropped || l->queue.progress.doubtful > doubtful;
        check_scans(g);
        if (l->durability == WAL_FSYNC && l->queue.lost_first)
            assert_true(wal_queue_acknowledged(&l->queue) < l->queue.lost_first);
    }
}

/* From the newest checkpoint. */
static void crash_here(struct gap_world *g, long power_cut)
{
    struct logged_world *l = &g->l;
    uint64_t promised;
    size_t n_scans = g->n_fates;
    struct wal_replay r;

    enter_shard();
    l->disk.full = false;
    promised = promised_events(l, promise_of(l));
    die(l, power_cut);
    while (n_scans && g->fates[n_scans - 1] != SAFE)
        n_scans--;
    if (n_scans == 0) {
        unstash_scans(g);
        n_scans = l->n_through;
    }
    r = recovery_of(l, n_scans);
    if (recover(l, &r))
        fail_msg("%s", r.err.text);
    if (r.end.verdict == WAL_DAMAGED || r.end.last < promised)
        fail_msg("%s, last %llu, promised %llu: %s", wal_reader_verdict_name(r.end.verdict),
                 (unsigned long long)r.end.last, (unsigned long long)promised, r.end.text);
    assert_is_reference(l, r.s, r.end.last);
    rise(l, n_scans, r.s, &r.end);
    for (g->n_fates = 0; g->n_fates < n_scans; g->n_fates++)
        g->fates[g->n_fates] = SAFE;
    drop_stash(g);
}

static void end_gaps(struct gap_world *g)
{
    drop_stash(g);
    g->n_fates = 0;
    end_logged(&g->l);
}

/* none, async: training goes on over a full disk. */
static void a_disk_that_is_full_for_long_leaves_gaps_that_checkpoints_mend(void **state)
{
    const struct dice dice = dice_of_this_run("gaps of a full disk");
    uint64_t n_gaps = 0, n_mended = 0;

    (void)state;
    for (uint64_t round = 0; round < 4; round++) {
        enum wal_durability d = round % 2 ? WAL_ASYNC : WAL_NONE;
        struct gap_world g = { 0 };

        assert_int_equal(begin_logged(&g.l, dice, &shape, round, d), 0);
        g.l.queue.max_bytes = 60000;
        for (uint32_t i = 0; i < 30; i++) {
            g.l.disk.full = i % 4 == 1;
            go_on_for(&g, 150);
            if (i % 10 == 9) {
                crash_here(&g, d == WAL_ASYNC ? (long)i : -1);
                g.l.queue.max_bytes = 60000;
            }
        }
        n_gaps += g.n_gaps;
        n_mended += g.n_mended;
        end_gaps(&g);
    }
    print_message("%llu gaps, %llu mended\n", (unsigned long long)n_gaps,
                  (unsigned long long)n_mended);
    assert_true(n_gaps > 5 && n_mended > 0);
}

/* none: what a failed sync has left is in doubt. */
static void syncs_that_fail_under_none_are_gaps_too(void **state)
{
    const struct dice dice = dice_of_this_run("failed syncs");
    struct gap_world g = { 0 };
    uint64_t n_doubts = 0;

    (void)state;
    /* A few of a hundred doubts see a checkpoint before the next crash: on until one has. */
    for (uint64_t round = 0; round < 20 || (g.n_mended == 0 && round < 400); round++) {
        assert_int_equal(begin_logged(&g.l, dice, &shape, round, WAL_NONE), 0);
        for (uint32_t i = 0; i < 8; i++) {
            g.l.disk.files.fail_at = g.l.disk.files.n_ops + (long)roll(&g.l.w.dice, 60);
            go_on_for(&g, 100);
            n_doubts += g.l.queue.progress.doubtful > 0;
            if (i % 4 == 3)
                crash_here(&g, (long)i);
        }
        end_gaps(&g);
    }
    print_message("%llu doubts, %llu mended\n", (unsigned long long)n_doubts,
                  (unsigned long long)g.n_mended);
    assert_true(n_doubts > 0 && g.n_mended > 0);
}

#ifdef PS_FAULTS
/* No block is left that nobody has been promised. */
static void starve(struct wal_queue *q)
{
    wal_block_free(q->pool);
    wal_block_free(q->small);
    q->pool = q->small = NULL;
    q->pool_bytes = 0;
}

/* For those that nobody asks whether there is room for them. */
static uint64_t append_without_memory(void *owner, const struct wal_record *record)
{
    struct logged_world *l = owner;
    uint64_t number;

    if (!shard_event_is_asked_for(record->event.type) && roll(&l->w.dice, 3) == 0) {
        starve(&l->queue);
        memory_fail_after(0);
    }
    number = sink_append(owner, record);
    memory_fail_after(-1);
    return number;
}

static void under_fsync_nothing_behind_a_gap_is_acknowledged_until_it_is_mended(void **state)
{
    const struct dice dice = dice_of_this_run("gaps without memory");
    struct gap_world g = { 0 };

    (void)state;
    for (uint64_t round = 0; round < 6; round++) {
        assert_int_equal(begin_logged(&g.l, dice, &shape, round, WAL_FSYNC), 0);
        for (uint32_t i = 0; i < 6; i++) {
            g.l.recorder.config.sink.append = append_without_memory;
            go_on_for(&g, 200);
            g.l.recorder.config.sink.append = sink_append;
            go_on_for(&g, 200);
            crash_here(&g, (long)i);
        }
        end_gaps(&g);
    }
    print_message("%llu gaps, %llu mended\n", (unsigned long long)g.n_gaps,
                  (unsigned long long)g.n_mended);
    assert_true(g.n_gaps > 5 && g.n_mended > 0);
}

/* Reading, and doing again: all is given back, and in the end it is the same. */
static void a_recovery_without_memory_says_so(void **state)
{
    struct logged_world l;
    struct wal_replay r;
    int status = -ENOMEM;
    long k = 0;

    (void)state;
    enter_shard();
    assert_int_equal(begin_logged(&l, dice_of_this_run("no memory"), &shape, 0, WAL_FSYNC), 0);
    logged_steps(&l, 150);
    r = recovery_of(&l, 0);
    for (; status; k++) {
        struct shard *again = shard_new(&l.w.config);

        replay_begin(again);
        memory_fail_after(k);
        status = wal_replay_run(again, &r.config, l.w.now_ms, &r.facts, &r.end, &r.err);
        memory_fail_after(-1);
        replay_end(again, l.w.now_ms);
        assert_true(status == 0 || status == -ENOMEM);
        assert_true(status == 0 || r.err.text[0] != '\0');
        shard_free(again);
    }
    assert_true(k > 20);
    assert_int_equal(recover(&l, &r), 0);
    assert_is_reference(&l, r.s, l.w.event_log->n);
    shard_free(r.s);
    end_logged(&l);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_disk_that_is_full_for_long_leaves_gaps_that_checkpoints_mend),
        cmocka_unit_test(syncs_that_fail_under_none_are_gaps_too),
#ifdef PS_FAULTS
        cmocka_unit_test(under_fsync_nothing_behind_a_gap_is_acknowledged_until_it_is_mended),
        cmocka_unit_test(a_recovery_without_memory_says_so),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
