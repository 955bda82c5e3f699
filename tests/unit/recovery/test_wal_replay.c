/* Whatever happens to a shard and to its disk: what its log gives back is the shard, bit for bit, as it was
 * at some record, and at none before what was promised. */
#include "tests/support/share.h"
#include "tests/unit/recovery/logged_world.h"

static const struct shape small = { .n_keys = 60, .n_large = 50, .limits = true };
static const struct shape large = { .n_keys = 2500, .n_large = 1400, .limits = true };

struct sums {
    uint64_t n_lives, n_records, n_lost, n_from_scans, n_useless, n_waited;
};

/* From the scans that the log is long enough for; others must be refused, but those that nothing happened
 * to while they went on: they need no log. */
static void check_scans(struct logged_world *l, uint64_t last, size_t n_usable,
                        struct sums *sums)
{
    enter_shard();
    for (size_t n = 1; n <= l->w.n_scans; n++) {
        struct wal_replay r = recovery_of(l, n);
        int status = recover(l, &r);

        if (n <= n_usable) {
            assert_int_equal(status, 0);
            assert_int_equal(r.facts.last, last);
            assert_is_reference(l, r.s, last);
            sums->n_from_scans++;
        } else if (l->w.scans[n - 1].position == l->through[n - 1]) {
            assert_int_equal(status, 0);
            assert_is_reference(l, r.s, r.facts.last);
        } else {
            assert_int_equal(status, PS_ECORRUPT);
            assert_non_null(strstr(r.err.text, "the checkpoint needs the log"));
            sums->n_useless++;
        }
        shard_free(r.s);
    }
}

/* What is there after a crash, by all ways, and the run goes on with one of them. */
static void crash_and_rise(struct logged_world *l, long power_cut, struct sums *sums,
                           const char *what)
{
    struct wal_replay r = recovery_of(l, 0);
    uint64_t promised = promised_events(l, l->promised), was = l->w.event_log->n;
    size_t n_scans;

    enter_shard();
    die(l, power_cut);
    if (recover(l, &r))
        fail_msg("%s: %s", what, r.err.text);
    if (r.end.verdict == WAL_DAMAGED || r.end.last < promised || r.facts.last != r.end.last)
        fail_msg("%s: %s, last %llu, promised %llu: %s", what,
                 wal_reader_verdict_name(r.end.verdict), (unsigned long long)r.end.last,
                 (unsigned long long)promised, r.end.text);
    assert_is_reference(l, r.s, r.end.last);
    n_scans = n_usable_scans(l, r.end.last);
    check_scans(l, r.end.last, n_scans, sums);
    if (n_scans) {
        shard_free(r.s);
        r = recovery_of(l, n_scans);
        assert_int_equal(recover(l, &r), 0);
    }
    sums->n_lives++;
    sums->n_records += r.end.last;
    sums->n_lost += was - r.end.last;
    rise(l, n_scans, r.s, &r.end);
}

static void live(struct logged_world *l, uint32_t n_steps)
{
    for (uint32_t i = 0; i < n_steps && !l->disk.files.dead; i++)
        logged_step(l);
}

static void print_sums(const struct sums *s)
{
    print_message("%llu lives, %llu records read, %llu lost that were not promised; %llu times "
                  "from scans, %llu scans without their log; %llu events waited\n",
                  (unsigned long long)s->n_lives, (unsigned long long)s->n_records,
                  (unsigned long long)s->n_lost, (unsigned long long)s->n_from_scans,
                  (unsigned long long)s->n_useless, (unsigned long long)s->n_waited);
}

/* True if operation k was carried out. */
static bool crash_at(struct dice dice, enum wal_durability durability, long k, bool torn,
                     struct sums *sums)
{
    struct logged_world l;
    char what[60];
    bool was_hit;

    snprintf(what, sizeof what, "durability %d, operation %ld, torn %d", (int)durability, k,
             torn);
    assert_int_equal(
        begin_logged(&l, dice, &small, torn + 2 * (uint64_t)durability, durability), 0);
    l.disk.files.fail_at = l.disk.files.n_ops + k;
    l.disk.files.dies = true;
    l.disk.files.torn = torn;
    live(&l, 200);
    was_hit = l.disk.files.dead;
    crash_and_rise(&l, k % 3 - 1, sums, what);
    live(&l, 10);
    end_logged(&l);
    return was_hit;
}

static void after_a_crash_at_any_file_operation(void **state)
{
    const struct dice dice = dice_of_this_run("a crash at any operation");
    struct sums sums = { 0 };

    (void)state;
    for (enum wal_durability d = WAL_NONE; d <= WAL_FSYNC; d++)
        for (int torn = 0; torn < 2; torn++) {
            long k = torn + 2 * share_first();

            while (crash_at(dice, d, k, torn, &sums))
                k += 2 * share_step();
            assert_true(k > 20);
        }
    print_sums(&sums);
    assert_true(sums.n_from_scans > 0 && sums.n_lost > 0);
}

/* Errors that the log mends by itself, deaths, power cuts, one after another. */
static void after_many_crashes_in_a_row(void **state)
{
    const struct dice dice = dice_of_this_run("many crashes");
    struct sums sums = { 0 };

    (void)state;
    for (uint64_t round = (uint64_t)share_first_of(12); round < 12;
         round += (uint64_t)share_step_of(12)) {
        const struct shape *shape = round % 4 == 3 ? &large : &small;
        struct logged_world l;
        char what[40];

        assert_int_equal(
            begin_logged(&l, dice, shape, round, round % 3 == 0 ? WAL_ASYNC : WAL_FSYNC), 0);
        for (uint32_t i = 0; i < 12; i++) {
            uint64_t fate = roll(&l.w.dice, 4);

            snprintf(what, sizeof what, "round %u, life %u", (unsigned)round, i);
            l.disk.files.fail_at = (long)roll(&l.w.dice, 60);
            l.disk.files.dies = fate & 1;
            l.disk.files.torn = fate & 2;
            live(&l, 80);
            crash_and_rise(&l, (long)roll(&l.w.dice, 4) - 1, &sums, what);
        }
        end_logged(&l);
    }
    print_sums(&sums);
    assert_true(!share_is_all() || (sums.n_from_scans > 0 && sums.n_lost > 0));
}

/* FULL: pushes, joins and clocks wait, all else goes on, and nothing of it is missing. */
static void behind_a_disk_that_is_full_for_a_while(void **state)
{
    const struct dice dice = dice_of_this_run("a full disk");
    struct sums sums = { 0 };

    (void)state;
    /* In one of a few rounds the log fills up: on until it has. */
    for (uint64_t round = 0; round < 3 || (sums.n_waited == 0 && round < 100); round++) {
        struct logged_world l;
        uint64_t promised;

        assert_int_equal(begin_logged(&l, dice, &large, round, WAL_FSYNC), 0);
        l.queue.max_bytes = 1200000;
        for (uint32_t i = 0; i < 4; i++) {
            l.disk.full = i % 2;
            promised = l.promised;
            live(&l, 150);
            assert_true(!l.disk.full || l.promised == promised);
        }
        l.disk.full = false;
        l.log_ms += 5000;
        work(&l);
        assert_int_equal(l.queue.n_dropped, 0);
        assert_int_equal(l.promised, l.w.event_log->n);
        sums.n_waited += l.n_waited;
        crash_and_rise(&l, 0, &sums, "full");
        end_logged(&l);
    }
    print_sums(&sums);
    assert_true(sums.n_waited > 0);
    assert_int_equal(sums.n_lost, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(after_a_crash_at_any_file_operation),
        cmocka_unit_test(after_many_crashes_in_a_row),
        cmocka_unit_test(behind_a_disk_that_is_full_for_a_while),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
