/* Records that were dropped: nothing behind them is acknowledged, or found again, until a checkpoint of a
 * later state is safe; and then all is. */
#include "tests/unit/durable/logged_world.h"

static const struct shape shape = { .n_keys = 60, .n_large = 50, .limits = true };

enum fate { PENDING, SAFE, USELESS };

struct gap_world {
    struct logged_world l;
    enum fate fates[WALKS_MAX]; /* of the world's walks */
    size_t n_fates;
    uint64_t n_full; /* of the world's, when that was noted */
    /* Safe ones that the world has no more use for, until a new one is safe. */
    struct kept_walk stash[WALKS_MAX];
    uint64_t stash_through[WALKS_MAX];
    size_t n_stash;
    uint64_t n_gaps, n_mended;
};

static void drop_stash(struct gap_world *g)
{
    while (g->n_stash)
        kept_walk_free(&g->stash[--g->n_stash]);
}

/* Where a full walk is under way, which drops what was before when it is done: safe or not. */
static void stash_walks(struct gap_world *g)
{
    struct world *w = &g->l.w;
    size_t n = g->n_fates;

    while (n && g->fates[n - 1] != SAFE)
        n--;
    if (!w->going.walk || w->going.mode != SHARD_WALK_FULL || n == 0)
        return;
    drop_stash(g);
    memcpy(g->stash, w->walks, n * sizeof *w->walks);
    memcpy(g->stash_through, g->l.through, n * sizeof *g->l.through);
    g->n_stash = n;
    while (w->n_walks > n)
        kept_walk_free(&w->walks[--w->n_walks]);
    w->n_walks = g->l.n_through = g->n_fates = 0;
}

static void unstash_walks(struct gap_world *g)
{
    struct world *w = &g->l.w;

    drop_walks(w);
    memcpy(w->walks, g->stash, g->n_stash * sizeof *w->walks);
    memcpy(g->l.through, g->stash_through, g->n_stash * sizeof *g->l.through);
    w->n_walks = g->l.n_through = g->n_stash;
    g->n_stash = 0;
}

/* As log_thread.h says it: a walk is a checkpoint when its log is durable and has lost nothing since it
 * began. */
static void judge_walks(struct gap_world *g)
{
    struct logged_world *l = &g->l;

    if (l->w.n_full != g->n_full)
        g->n_fates = 0;
    g->n_full = l->w.n_full;
    while (g->n_fates < l->n_through)
        g->fates[g->n_fates++] = PENDING;
    for (size_t i = 0; i < g->n_fates; i++) {
        uint64_t first = l->w.walks[i].position;

        if (g->fates[i] != PENDING)
            continue;
        if (l->queue.lost_last > first) {
            g->fates[i] = USELESS;
        } else if (l->queue.progress.durable >= l->through[i]) {
            g->n_mended += l->queue.lost_first != 0;
            log_queue_mend(&l->queue, first);
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

        stash_walks(g);
        logged_step(l);
        g->n_gaps += l->queue.n_dropped > n_dropped || l->queue.progress.doubtful > doubtful;
        judge_walks(g);
        if (l->durability == LOG_FSYNC && l->queue.lost_first)
            assert_true(log_queue_acknowledged(&l->queue) < l->queue.lost_first);
    }
}

/* From the newest checkpoint. */
static void crash_here(struct gap_world *g, long power_cut)
{
    struct logged_world *l = &g->l;
    uint64_t promised;
    size_t n_walks = g->n_fates;
    struct recovery r;

    enter_shard();
    l->disk.full = false;
    promised = promised_events(l, promise_of(l));
    die(l, power_cut);
    while (n_walks && g->fates[n_walks - 1] != SAFE)
        n_walks--;
    if (n_walks == 0) {
        unstash_walks(g);
        n_walks = l->n_through;
    }
    r = recovery_of(l, n_walks);
    if (recover(l, &r))
        fail_msg("%s", r.err.text);
    if (r.end.verdict == LOG_DAMAGED || r.end.last < promised)
        fail_msg("%s, last %llu, promised %llu: %s", log_verdict_name(r.end.verdict),
                 (unsigned long long)r.end.last, (unsigned long long)promised, r.end.text);
    assert_is_twin(l, r.s, r.end.last);
    rise(l, n_walks, r.s, &r.end);
    for (g->n_fates = 0; g->n_fates < n_walks; g->n_fates++)
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
        enum log_durability d = round % 2 ? LOG_ASYNC : LOG_NONE;
        struct gap_world g = { 0 };

        assert_int_equal(begin_logged(&g.l, dice, &shape, round, d), 0);
        g.l.queue.max_bytes = 60000;
        for (uint32_t i = 0; i < 30; i++) {
            g.l.disk.full = i % 4 == 1;
            go_on_for(&g, 150);
            if (i % 10 == 9) {
                crash_here(&g, d == LOG_ASYNC ? (long)i : -1);
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
    for (uint64_t round = 0; round < 20; round++) {
        assert_int_equal(begin_logged(&g.l, dice, &shape, round, LOG_NONE), 0);
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
static void starve(struct log_queue *q)
{
    log_block_free(q->spare);
    log_block_free(q->small);
    q->spare = q->small = NULL;
    q->spare_bytes = 0;
}

/* For those that nobody asks whether there is room for them. */
static uint64_t append_without_memory(void *owner, const struct log_record *record)
{
    struct logged_world *l = owner;
    uint64_t number;

    if (!shard_event_is_asked_for(record->event.type) && roll(&l->w.dice, 3) == 0) {
        starve(&l->queue);
        mem_fail_after(0);
    }
    number = sink_append(owner, record);
    mem_fail_after(-1);
    return number;
}

static void under_fsync_nothing_behind_a_gap_is_acknowledged_until_it_is_mended(void **state)
{
    const struct dice dice = dice_of_this_run("gaps without memory");
    struct gap_world g = { 0 };

    (void)state;
    for (uint64_t round = 0; round < 6; round++) {
        assert_int_equal(begin_logged(&g.l, dice, &shape, round, LOG_FSYNC), 0);
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
    struct recovery r;
    int status = -ENOMEM;
    long k = 0;

    (void)state;
    enter_shard();
    assert_int_equal(begin_logged(&l, dice_of_this_run("no memory"), &shape, 0, LOG_FSYNC), 0);
    logged_steps(&l, 150);
    r = recovery_of(&l, 0);
    for (; status; k++) {
        struct shard *again = shard_new(&l.w.config);

        shard_replay_begin(again);
        mem_fail_after(k);
        status = recovery_run(again, &r.config, l.w.now_ms, &r.facts, &r.end, &r.err);
        mem_fail_after(-1);
        shard_replay_end(again, l.w.now_ms);
        assert_true(status == 0 || status == -ENOMEM);
        assert_true(status == 0 || r.err.text[0] != '\0');
        shard_free(again);
    }
    assert_true(k > 20);
    assert_int_equal(recover(&l, &r), 0);
    assert_is_twin(&l, r.s, l.w.journal->n);
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
