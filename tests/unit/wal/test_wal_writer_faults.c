/* What the log promises when files, power or memory fail at any point. */
#include <errno.h>

#include "common/memory.h"
#include "server/wal/wal_control.h"
#include "tests/support/bad_disk.h"
#include "tests/support/share.h"
#include "tests/unit/wal/fixture.h"

#define CONTROL LOG_DIR "/wal-000.control"

enum fault { FAULT_ERROR, FAULT_TORN, FAULT_DEATH, FAULT_TORN_DEATH, N_FAULTS };

static struct wal_writer_config config_of(struct bad_disk *d, enum wal_durability durability)
{
    struct wal_writer_config config = fixture_config(&d->ops, durability);

    snprintf(config.control, sizeof config.control, CONTROL);
    return config;
}

/* What must be there after a power cut. */
static uint64_t promised(const struct fixture_log *l)
{
    return l->queue.durability == WAL_FSYNC   ? wal_queue_acknowledged(&l->queue)
           : l->queue.durability == WAL_ASYNC ? l->queue.progress.durable
                                              : 0;
}

static void append(struct fixture_log *l, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(fixture_append(l), 0);
}

/* A little of everything. Stops when the process is dead. 0 if the log could be opened. */
static int live(struct fixture_log *l, struct bad_disk *d, enum wal_durability durability,
                uint64_t from, uint64_t *ret_promised)
{
    const struct wal_writer_config config = config_of(d, durability);
    struct wal_end end;
    int status = fixture_read(&d->ops, from, &end);

    if (!status)
        status = fixture_open(l, &config, &end);
    if (status)
        return status;
    *ret_promised = durability == WAL_NONE ? 0 : end.last; /* told to workers as applied */
    wal_writer_sync(l->writer); /* as a checkpoint does, here before there is a record */
    fixture_work(l);
    for (uint32_t i = 0; i < 24 && !d->files.dead; i++) {
        append(l, 4 + i % 5);
        fixture_work(l);
        *ret_promised = promised(l);
        l->now_ms += 400;
        if (i == 9)
            (void)!wal_writer_truncate(l->writer, 20, NULL);
    }
    return 0;
}

/* All but what was cut off. */
static uint64_t read_from(const struct wal_segments *all)
{
    return all->n && all->firsts[0] <= 20 ? all->firsts[0] : 1;
}

/* What is there; and nothing is missing that the control file names. Returns where it was read from. */
static uint64_t read_all(struct bad_disk *d, struct wal_end *ret, const char *what)
{
    struct wal_segments all;
    struct wal_control control;
    uint64_t from, newest;

    assert_int_equal(wal_segment_list(&d->ops, LOG_DIR, &all, NULL), 0);
    newest = all.n ? all.firsts[all.n - 1] : 0;
    from = read_from(&all);
    free(all.firsts);
    assert_int_equal(fixture_read(&d->ops, from, ret), 0);
    assert_int_equal(wal_control_read(&d->ops, CONTROL, &control, NULL), 0);
    if (ret->verdict != WAL_GAP && ret->verdict != WAL_DAMAGED && /* these are told already */
        (control.segment > newest || control.durable > ret->last_read))
        fail_msg("%s: the control file names segment %llu and record %llu, there are %llu and "
                 "%llu",
                 what, (unsigned long long)control.segment, (unsigned long long)control.durable,
                 (unsigned long long)newest, (unsigned long long)ret->last_read);
    return from;
}

/* What is there is a whole prefix; and a new life begins behind it. */
static void check_and_go_on(struct bad_disk *d, enum wal_durability durability,
                            uint64_t at_least, const char *what)
{
    const struct wal_writer_config config = config_of(d, durability);
    struct fixture_log l = { 0 };
    struct wal_end end;
    uint64_t from = read_all(d, &end, what), last;

    if (end.verdict == WAL_DAMAGED || end.verdict == WAL_GAP || end.last < at_least)
        fail_msg("%s: %s, last %llu, promised %llu: %s", what,
                 wal_reader_verdict_name(end.verdict), (unsigned long long)end.last,
                 (unsigned long long)at_least, end.text);
    last = end.last;
    assert_int_equal(fixture_open(&l, &config, &end), 0);
    append(&l, 12);
    fixture_work(&l);
    assert_int_equal(wal_writer_close(l.writer, l.now_ms, 0), 0);
    fixture_free(&l);
    assert_int_equal(fixture_read(&d->ops, from, &end), 0);
    if (end.verdict != WAL_CLEAN || end.last != last + 12)
        fail_msg("%s: after going on: last %llu of %llu: %s", what,
                 (unsigned long long)end.last, (unsigned long long)last + 12, end.text);
}

/* True if operation k was carried out. */
static bool crash_at(enum wal_durability durability, enum fault fault, long k, uint64_t seed)
{
    struct fixture_log l = { 0 };
    struct bad_disk d;
    uint64_t at_least = 0;
    char what[80];
    bool was_hit;

    snprintf(what, sizeof what, "durability %d, fault %d, operation %ld, seed %llu",
             (int)durability, (int)fault, k, (unsigned long long)seed);
    bad_disk_init(&d);
    d.files.fail_at = k;
    d.files.torn = fault == FAULT_TORN || fault == FAULT_TORN_DEATH;
    d.files.dies = fault == FAULT_DEATH || fault == FAULT_TORN_DEATH;
    (void)live(&l, &d, durability, 1, &at_least);
    was_hit = d.files.n_ops > k;
    fixture_free(&l);
    assert_int_equal(crash_files_n_open(&d.files), 0);
    bad_disk_power_cut(&d, seed, durability == WAL_NONE);
    check_and_go_on(&d, durability, at_least, what);
    crash_files_deinit(&d.files);
    return was_hit;
}

static void a_crash_at_any_operation_loses_nothing_that_was_promised(void **state)
{
    (void)state;
    for (enum wal_durability d = WAL_NONE; d <= WAL_FSYNC; d++)
        for (enum fault fault = 0; fault < N_FAULTS; fault++)
            for (uint64_t seed = 0; seed < 5; seed++) {
                long k = share_first();

                while (crash_at(d, fault, k, seed ? seed * 1000 + (uint64_t)k : 0))
                    k += share_step();
                assert_true(k > 30);
            }
}

/* Lives that end in any way, one after another on one disk: what any of them has promised is there
 * in the end. */
static void many_crashes_in_a_row_lose_nothing_that_was_promised(void **state)
{
    (void)state;
    for (uint64_t seed = 1 + (uint64_t)share_first(); seed <= 60;
         seed += (uint64_t)share_step()) {
        enum wal_durability durability = seed % 2 ? WAL_ASYNC : WAL_FSYNC;
        uint64_t at_least = 0, promise;
        struct bad_disk d;
        struct wal_end end;
        char what[80];

        bad_disk_init(&d);
        for (uint64_t i = 0; i < 8; i++) {
            uint64_t dice = hash_mix2(seed, i), from;
            struct fixture_log l = { 0 };

            snprintf(what, sizeof what, "seed %llu, life %llu", (unsigned long long)seed,
                     (unsigned long long)i);
            from = read_all(&d, &end, what);
            crash_files_heal(&d.files);
            promise = 0;
            d.files.fail_at = (long)(dice % 90);
            d.files.torn = dice >> 20 & 1;
            d.files.dies = dice >> 21 & 1;
            (void)live(&l, &d, durability, from, &promise);
            fixture_free(&l);
            if (dice >> 22 & 1)
                bad_disk_power_cut(&d, dice >> 23 & 1 ? dice : 0, durability == WAL_NONE);
            crash_files_heal(&d.files);
            at_least = promise > at_least ? promise : at_least;
            read_all(&d, &end, what);
            if (end.verdict == WAL_DAMAGED || end.verdict == WAL_GAP || end.last < at_least)
                fail_msg("%s: %s, last %llu, promised %llu: %s", what,
                         wal_reader_verdict_name(end.verdict), (unsigned long long)end.last,
                         (unsigned long long)at_least, end.text);
        }
        crash_files_deinit(&d.files);
    }
}

/* The process lives on: what failed is done again elsewhere, and nothing is missing. */
static bool error_at(enum wal_durability durability, enum fault fault, long k)
{
    struct fixture_log l = { 0 };
    struct bad_disk d;
    struct wal_end end;
    uint64_t at_least = 0, last;
    bool was_hit;
    int status;

    bad_disk_init(&d);
    d.files.fail_at = k;
    d.files.torn = fault == FAULT_TORN;
    status = live(&l, &d, durability, 1, &at_least);
    was_hit = d.files.n_ops > k;
    crash_files_heal(&d.files);
    if (!status) {
        l.now_ms += 5000;
        fixture_work(&l);
        assert_int_equal(l.queue.progress.state, WAL_WRITER_OK);
        assert_int_equal(l.queue.n_dropped, 0);
        assert_true(l.queue.progress.n_failures <= 1);
        assert_int_equal(wal_writer_close(l.writer, l.now_ms, 0), 0);
        last = l.queue.next_number - 1;
        fixture_free(&l);
        if (durability != WAL_NONE)
            bad_disk_power_cut(&d, 0, false);
        read_all(&d, &end, __func__);
        assert_int_equal(end.verdict, WAL_CLEAN);
        assert_int_equal(end.last, last);
    } else {
        fixture_free(&l);
    }
    crash_files_deinit(&d.files);
    return was_hit;
}

static void an_error_at_any_operation_is_mended_and_nothing_is_missing(void **state)
{
    (void)state;
    for (enum wal_durability d = WAL_NONE; d <= WAL_FSYNC; d++)
        for (enum fault fault = FAULT_ERROR; fault <= FAULT_TORN; fault++) {
            long k = share_first();

            while (error_at(d, fault, k))
                k += share_step();
            assert_true(k > 30);
        }
}

static void under_fsync_a_full_disk_stops_acknowledging_until_there_is_space(void **state)
{
    struct fixture_log l = { 0 };
    struct bad_disk d;
    struct wal_end end;
    uint64_t at_least = 0, was;

    (void)state;
    bad_disk_init(&d);
    assert_int_equal(live(&l, &d, WAL_FSYNC, 1, &at_least), 0);
    was = wal_queue_acknowledged(&l.queue);
    d.full = true;
    while (l.queue.state == WAL_QUEUE_OPEN) {
        append(&l, 1);
        l.now_ms += 100;
        fixture_work(&l);
        assert_int_equal(wal_queue_acknowledged(&l.queue), was);
    }
    assert_int_equal(l.queue.state, WAL_QUEUE_FULL);
    assert_int_equal(l.queue.progress.state, WAL_WRITER_FAILED);
    assert_int_equal(l.queue.progress.err.status, -ENOSPC);
    assert_non_null(strstr(l.queue.progress.err.text, "cannot write"));
    assert_int_equal(l.queue.n_dropped, 0);
    d.full = false;
    l.now_ms += 500; /* its retry_ms */
    fixture_work(&l);
    assert_int_equal(wal_queue_acknowledged(&l.queue), l.queue.next_number - 1);
    assert_int_equal(l.queue.state, WAL_QUEUE_OPEN);
    was = l.queue.next_number - 1;
    fixture_free(&l);
    bad_disk_power_cut(&d, 0, false);
    read_all(&d, &end, __func__);
    assert_int_equal(end.last, was);
    crash_files_deinit(&d.files);
}

static void training_goes_on_over_a_full_disk_and_the_gap_is_reported(void **state)
{
    (void)state;
    for (enum wal_durability durability = WAL_NONE; durability <= WAL_ASYNC; durability++) {
        struct fixture_log l = { 0 };
        struct bad_disk d;
        struct wal_end end;
        uint64_t at_least = 0, behind;

        bad_disk_init(&d);
        assert_int_equal(live(&l, &d, durability, 1, &at_least), 0);
        d.full = true;
        while (l.queue.n_dropped < 10) {
            append(&l, 1);
            l.now_ms += 50;
            fixture_work(&l);
            assert_true(l.queue.state != WAL_QUEUE_FULL);
            assert_int_equal(wal_queue_acknowledged(&l.queue), l.queue.next_number - 1);
        }
        behind = l.queue.lost_last + 1;
        assert_int_equal(l.queue.progress.state, WAL_WRITER_FAILED);
        d.full = false;
        l.now_ms += 5000;
        fixture_work(&l);
        assert_int_equal(l.queue.progress.state, WAL_WRITER_OK);
        append(&l, 20);
        fixture_work(&l);
        assert_int_equal(wal_writer_close(l.writer, l.now_ms, 0), 0);
        fixture_free(&l);
        read_all(&d, &end, __func__);
        assert_int_equal(end.verdict, WAL_GAP);
        assert_int_equal(end.last, behind - 11);
        assert_int_equal(fixture_read(&d.ops, behind, &end), 0);
        assert_int_equal(end.verdict, WAL_CLEAN);
        assert_int_equal(end.last, behind + 19);
        crash_files_deinit(&d.files);
    }
}

#ifdef PS_FAULTS
static void without_memory_at_any_point_nothing_is_lost_or_leaked(void **state)
{
    struct fixture_log l = { 0 };
    struct bad_disk d;
    struct wal_end end;
    int status = -ENOMEM;

    (void)state;
    bad_disk_init(&d);
    for (long k = 0; status && k < 200; k++) {
        struct wal_writer_config c = fixture_config(&d.ops, WAL_FSYNC);

        memory_fail_after(k);
        status = fixture_read(&d.ops, 1, &end);
        if (!status) {
            status = fixture_open(&l, &c, &end);
            for (int i = 0; i < 40 && !status; i++) {
                status = fixture_append(&l);
                if (!status)
                    fixture_work(&l); /* lists and zstd ask for memory, too */
            }
            memory_fail_after(-1);
            if (l.writer) {
                l.now_ms += 5000;
                fixture_work(&l);
                assert_int_equal(wal_queue_acknowledged(&l.queue), l.queue.next_number - 1);
            }
            fixture_free(&l);
        }
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
        assert_int_equal(crash_files_n_open(&d.files), 0);
        assert_int_equal(fixture_read(&d.ops, 1, &end), 0);
        assert_int_equal(end.verdict, WAL_CLEAN);
    }
    assert_int_equal(status, 0);
    assert_true(end.last >= 40);
    crash_files_deinit(&d.files);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_crash_at_any_operation_loses_nothing_that_was_promised),
        cmocka_unit_test(many_crashes_in_a_row_lose_nothing_that_was_promised),
        cmocka_unit_test(an_error_at_any_operation_is_mended_and_nothing_is_missing),
        cmocka_unit_test(under_fsync_a_full_disk_stops_acknowledging_until_there_is_space),
        cmocka_unit_test(training_goes_on_over_a_full_disk_and_the_gap_is_reported),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_at_any_point_nothing_is_lost_or_leaked),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
