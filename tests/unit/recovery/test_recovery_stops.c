/* A recovery that stops on the way, and one that cannot go on. */
#include "tests/unit/recovery/logged_world.h"

static const struct shape shape = { .n_keys = 60, .n_large = 50, .limits = true };

/* The record with which the shard has the state after this clock; 0: there is none. */
static uint64_t sync_point_record(struct logged_world *l, const char *job, uint64_t clock)
{
    struct shard *s = shard_new(&l->w.config);
    uint64_t found = 0;
    struct err err;

    enter_shard();
    replay_begin(s);
    for (uint64_t i = 0; i < l->w.event_log->n && !found; i++) {
        assert_int_equal(shard_replay(s, &l->w.event_log->events[i]->e, l->w.now_ms, &err), 0);
        if (sync_point_of(s, job, clock) != SYNC_POINT_EARLY)
            found = i + 1;
    }
    replay_end(s, l->w.now_ms);
    shard_free(s);
    return found;
}

/* The run goes on behind the base; what was there before is out of the way. */
static void go_on_behind(struct logged_world *l, const struct wal_replay *base)
{
    struct wal_replay r = recovery_of(l, 0);

    enter_shard();
    die(l, -1);
    rise(l, 0, base->s, &base->end);
    logged_steps(l, 30);
    die(l, 0);
    if (recover(l, &r))
        fail_msg("%s", r.err.text);
    assert_true(r.end.verdict == WAL_CLEAN || r.end.verdict == WAL_TORN);
    assert_int_equal(r.end.last, l->w.event_log->n);
    assert_is_reference(l, r.s, r.end.last);
    rise(l, 0, r.s, &r.end);
}

static void at_a_sync_point_and_the_run_continues_from_it(void **state)
{
    const struct dice dice = dice_of_this_run("cuts");
    uint64_t n_found = 0, n_not = 0;

    (void)state;
    enter_shard();
    for (uint64_t round = 0; round < 24; round++) {
        struct logged_world l;
        struct wal_replay r;
        uint64_t wanted;

        assert_int_equal(begin_logged(&l, dice, &shape, round, WAL_FSYNC), 0);
        logged_steps(&l, 300);
        r = recovery_of(&l, 0);
        r.config.sync_job = job_name((uint32_t)(round % N_JOBS));
        r.config.sync_clock = roll(&l.w.dice, round % 4 ? 6 : 400);
        wanted = sync_point_record(&l, r.config.sync_job, r.config.sync_clock);
        if (recover(&l, &r))
            fail_msg("%s", r.err.text);
        assert_int_equal(r.facts.covers_sync_point, wanted != 0);
        assert_int_equal(r.facts.last, wanted ? wanted : l.w.event_log->n);
        assert_int_equal(r.end.last, r.facts.last);
        assert_int_equal(r.end.verdict, wanted ? WAL_STOPPED : WAL_CLEAN);
        assert_int_equal(r.end.version, shard_version(r.s));
        assert_is_reference(&l, r.s, r.facts.last);
        n_found += wanted != 0;
        n_not += wanted == 0;
        go_on_behind(&l, &r);
        end_logged(&l);
    }
    assert_true(n_found > 3 && n_not > 0);
}

/* Is this key without a row, or with one of another version? */
static bool is_left(struct shard *s, const struct shard_event *e, uint32_t i)
{
    const struct row *row = find_row(s, e->rows.table_id, e->rows.keys[i]);

    return !row || row_version(row) != e->version;
}

/* Of a clock that was recorded before its last row was decided: keys that got no row follow it. Returns how many. */
static uint64_t check_late_rows(struct logged_world *l, const char *job, uint64_t clock,
                                uint64_t at)
{
    struct wal_replay r = recovery_of(l, 0);
    uint64_t n_late = 0;

    r.config.sync_job = job;
    r.config.sync_clock = clock;
    if (recover(l, &r))
        fail_msg("%s", r.err.text);
    assert_int_equal(r.facts.last, at);
    for (uint64_t i = at; i < l->w.event_log->n; i++) {
        const struct shard_event *e = &l->w.event_log->events[i]->e;

        if (e->type != SHARD_EVENT_ROWS || e->rows.op != SHARD_ROWS_LEFT ||
            e->version > shard_version(r.s))
            continue;
        for (uint32_t k = 0; k < e->rows.n_keys; k++, n_late++)
            assert_true(is_left(r.s, e, k));
    }
    shard_free(r.s);
    return n_late;
}

static void at_a_clock_whose_rows_were_left_out_later(void **state)
{
    static const struct shape wide = {
        .n_keys = 2500, .n_large = 1400, .limits = true, .memory_max_bytes = 1 << 20
    };
    const struct dice dice = dice_of_this_run("late rows");
    uint64_t n_late = 0;

    (void)state;
    enter_shard();
    for (uint64_t round = 0; round < 40 && !n_late; round++) {
        struct logged_world l;

        assert_int_equal(begin_logged(&l, dice, &wide, round, WAL_FSYNC), 0);
        logged_steps(&l, 300);
        for (uint64_t clock = 0; clock < 12; clock++) {
            uint64_t at = sync_point_record(&l, "bsp", clock);

            if (at && l.w.event_log->events[at - 1]->e.type == SHARD_EVENT_COMBINE)
                n_late += check_late_rows(&l, "bsp", clock, at);
        }
        end_logged(&l);
    }
    assert_true(n_late > 0);
}

static void at_any_record(void **state)
{
    struct logged_world l;

    (void)state;
    enter_shard();
    assert_int_equal(begin_logged(&l, dice_of_this_run("any record"), &shape, 0, WAL_ASYNC), 0);
    logged_steps(&l, 200);
    for (uint64_t through = 1; through <= l.w.event_log->n; through += 3) {
        struct wal_replay r = recovery_of(&l, 0);

        r.config.through = through;
        assert_int_equal(recover(&l, &r), 0);
        assert_int_equal(r.facts.n_records, through);
        assert_int_equal(r.end.last, r.facts.last);
        for (uint64_t i = r.end.last; i < through; i++)
            assert_int_equal(l.w.event_log->events[i]->e.type, SHARD_EVENT_ROWS);
        assert_is_reference(&l, r.s, through);
        shard_free(r.s);
    }
    end_logged(&l);
}

/* What was wanted is in the checkpoint already. */
static void before_the_first_record(void **state)
{
    struct logged_world l;
    struct wal_replay r;

    (void)state;
    enter_shard();
    assert_int_equal(begin_logged(&l, dice_of_this_run("no record"), &shape, 0, WAL_FSYNC), 0);
    do
        logged_steps(&l, 50);
    while (l.w.n_scans == 0 || l.w.scans[0].position == l.w.event_log->n);
    r = recovery_of(&l, 1);
    r.config.through = r.config.from - 1;
    r.config.needs = 0;
    assert_int_equal(recover(&l, &r), 0);
    assert_int_equal(r.end.verdict, WAL_STOPPED);
    assert_int_equal(r.end.last, r.config.from - 1);
    assert_int_equal(r.end.last_present, r.config.from - 1);
    assert_int_equal(r.facts.n_records, 0);
    shard_free(r.s);
    end_logged(&l);
}

static int stop_at_third(void *owner, const struct wal_replay_facts *facts)
{
    uint32_t *n = owner;

    assert_int_equal(facts->n_records, ++*n * WAL_REPLAY_STEP);
    return *n == 3 ? -ECANCELED : 0;
}

static void when_the_progress_callback_returns_an_error(void **state)
{
    struct logged_world l;
    struct wal_replay r;
    uint32_t n = 0;
    char want[64];

    (void)state;
    enter_shard();
    assert_int_equal(begin_logged(&l, dice_of_this_run("progress"), &shape, 0, WAL_NONE), 0);
    while (l.w.event_log->n < 4 * WAL_REPLAY_STEP)
        logged_steps(&l, 500);
    r = recovery_of(&l, 0);
    r.config.on_progress = stop_at_third;
    r.config.owner = &n;
    assert_int_equal(recover(&l, &r), -ECANCELED);
    /* Rows whose push has not come yet do not count. */
    assert_int_equal(r.facts.n_records, 3 * WAL_REPLAY_STEP);
    assert_true(r.facts.last <= r.facts.n_records);
    snprintf(want, sizeof want, "up to record %llu when", (unsigned long long)r.facts.last);
    assert_non_null(strstr(r.err.text, want));
    shard_free(r.s);
    end_logged(&l);
}

/* --- what cannot have happened --- */

/* One thing about it is another. */
static void spoil(struct kept_event *k, struct dice *dice)
{
    struct shard_event *e = &k->e;

    switch (roll(dice, 5)) {
    case 0:
        e->version += roll(dice, 3) - 1;
        break;
    case 1:
        e->type = (enum shard_event_type)(e->type == SHARD_EVENT_ADVANCE ? SHARD_EVENT_GONE
                                                                         : e->type);
        if (e->type == SHARD_EVENT_GONE)
            e->gone.state = (int)roll(dice, 5);
        break;
    case 2:
        if (e->type == SHARD_EVENT_PUSH && k->push->n_sections)
            k->push->sections[0].table_id += 1 + (uint32_t)roll(dice, 3);
        else if (e->type == SHARD_EVENT_ROWS)
            e->rows.table_id += (uint32_t)roll(dice, 30);
        else if (e->type == SHARD_EVENT_TABLE)
            e->table.id++;
        break;
    case 3:
        if (e->type == SHARD_EVENT_PUSH)
            k->push->seq += roll(dice, 2) ? 1 : UINT64_MAX;
        else if (e->type == SHARD_EVENT_COMBINE)
            e->combine.clock++;
        else if (e->type == SHARD_EVENT_JOIN)
            k->join.n_workers = 0;
        break;
    default:
        if (e->type == SHARD_EVENT_PUSH && k->push->n_sections)
            k->push->sections[0].n_keys += 1;
        else if (e->type == SHARD_EVENT_COMBINE)
            e->combine.run++;
        break;
    }
}

/* The world's events in a log of their own, but for one that is spoilt, left out or told twice. */
static void write_spoilt(struct logged_world *l, struct dice *dice)
{
    uint64_t victim = roll(dice, l->w.event_log->n), how = roll(dice, 4);

    for (uint64_t i = 0; i < l->w.event_log->n; i++) {
        struct kept_event *k = l->w.event_log->events[i];

        if (i == victim && how == 0)
            continue;
        if (i == victim && how > 1)
            spoil(k, dice);
        for (uint64_t n = i == victim && how == 1 ? 2 : 1; n; n--) {
            if (shard_event_is_asked_for(k->e.type))
                assert_int_equal(shard_events_reserve(&l->recorder.events, &k->e), 0);
            shard_events_record(&l->recorder.events, &k->e);
            work(l);
        }
    }
}

static void an_event_that_cannot_have_happened_is_reported_with_its_place(void **state)
{
    const struct dice dice = dice_of_this_run("spoilt");
    const struct wal_end nothing = { 0 };
    uint64_t n_refused = 0, n_taken = 0;

    (void)state;
    enter_shard();
    for (uint64_t round = 0; round < 150; round++) {
        struct logged_world l;
        struct wal_replay r;
        int status;

        assert_int_equal(begin_logged(&l, dice, &shape, round, WAL_NONE), 0);
        logged_steps(&l, 80);
        shard_set_events(l.w.s, NULL);
        close_log(&l);
        crash_files_deinit(&l.disk.files);
        bad_disk_init(&l.disk);
        l.promised = 0;
        assert_int_equal(open_log(&l, &nothing), 0);
        write_spoilt(&l, &l.w.dice);
        r = recovery_of(&l, 0);
        status = recover(&l, &r);
        assert_true(status == 0 || status == PS_ECORRUPT);
        if (status) {
            assert_non_null(strstr(r.err.text, "cannot be replayed: "));
            assert_non_null(strstr(r.err.text, " of " LOG_DIR "/0000000000000"));
        }
        n_refused += status != 0;
        n_taken += status == 0;
        shard_free(r.s);

        close_log(&l);
        drop_scans(&l.w);
        finish_push(&l.w);
        if (l.w.going.scan)
            scan_end(l.w.s, &l.w.going, SNAPSHOT_SCAN_DROPPED);
        kept_scan_free(&l.w.going);
        shard_free(l.w.s);
        event_log_free(l.w.event_log);
        crash_files_deinit(&l.disk.files);
    }
    print_message("%llu refused, %llu taken\n", (unsigned long long)n_refused,
                  (unsigned long long)n_taken);
    assert_true(n_refused > 20 && n_taken > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_a_sync_point_and_the_run_continues_from_it),
        cmocka_unit_test(at_a_clock_whose_rows_were_left_out_later),
        cmocka_unit_test(at_any_record),
        cmocka_unit_test(before_the_first_record),
        cmocka_unit_test(when_the_progress_callback_returns_an_error),
        cmocka_unit_test(an_event_that_cannot_have_happened_is_reported_with_its_place),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
