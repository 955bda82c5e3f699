/* The waits of a shard's report: since when, and until when, a worker or a full log holds others up. */
#include "server/shard_stats.h"

#include "common/clock.h"
#include "serving.h"

#define LEASE_MS 10000u /* of the fixture; its join deadline, too */

static struct worker *join(struct fixture *f, uint32_t rank, uint64_t silent_ms)
{
    struct membership_join member = { .job = "job",
                                      .rank = rank,
                                      .n_workers = 4,
                                      .incarnation = 1,
                                      .mode = TABLE_SPEC_MODE_BSP,
                                      .name = "test" };
    uint64_t now_ms = dispatch_now_ms(f->dispatch);
    struct worker *worker;
    struct err err;

    assert_int_equal(
        membership_join(shard_membership(f->shard), &member, now_ms, &worker, &err), 0);
    worker->last_seen_ms = now_ms - silent_ms;
    return worker;
}

static struct shard_report *make_report(struct fixture *f)
{
    static const struct shard_stats_minute no_minute;
    struct shard_stats_minute minute = no_minute;
    const struct shard_stats_inputs in = { .shard = f->shard,
                                           .dispatch = f->dispatch,
                                           .replies = &f->replies,
                                           .connections = &f->connections,
                                           .loop = &f->loop,
                                           .minute = &minute,
                                           .lease_ms = LEASE_MS };
    struct shard_report *report = shard_stats_make(&in);

    shard_stats_minute_deinit(&minute);
    return report;
}

static const struct stats_wait *find_wait(const struct shard_report *report, const char *what)
{
    for (uint32_t i = 0; i < report->n_waits; i++)
        if (!strcmp(report->waits[i].what, what))
            return &report->waits[i];
    fail_msg("no wait: %s", what);
    return NULL;
}

/* The machine may take a while between two looks at the clock. */
static void assert_near(uint64_t unix_ms, uint64_t wanted_ms)
{
    assert_in_range(unix_ms, wanted_ms - 1000, wanted_ms + 1000);
}

static void a_suspected_worker_has_no_deadline_and_others_have_theirs(void **state)
{
    const struct stats_wait *wait;
    struct shard_report *report;
    struct worker *suspect;
    struct fixture f;

    (void)state;
    set_up(&f);
    enter_shard();
    (void)join(&f, 0, 0);
    suspect = join(&f, 1, LEASE_MS + 1500);
    (void)join(&f, 2, 8000);
    assert_false(membership_suspect(shard_membership(f.shard), suspect->job, 1, 1, false));
    report = make_report(&f);
    assert_int_equal(report->n_waits, 3);

    wait = find_wait(report, "worker suspected");
    assert_string_equal(wait->who, "job job, worker 1 (test)");
    assert_near(wait->since_unix_ms, report->made_unix_ms - LEASE_MS - 1500);
    assert_int_equal(wait->until_unix_ms, 0);

    wait = find_wait(report, "worker silent");
    assert_string_equal(wait->who, "job job, worker 2 (test)");
    assert_near(wait->since_unix_ms, report->made_unix_ms - 8000);
    assert_near(wait->until_unix_ms, report->made_unix_ms + LEASE_MS - 8000);

    wait = find_wait(report, "worker expected");
    assert_string_equal(wait->who, "job job, worker 3");
    assert_near(wait->since_unix_ms, report->made_unix_ms);
    assert_near(wait->until_unix_ms, report->made_unix_ms + LEASE_MS);
    shard_report_free(report);
    tear_down(&f);
}

static void a_lease_that_is_over_and_not_yet_ended_has_its_deadline_now(void **state)
{
    const struct stats_wait *wait;
    struct shard_report *report;
    struct fixture f;

    (void)state;
    set_up(&f);
    enter_shard();
    (void)join(&f, 0, LEASE_MS + 5000);
    report = make_report(&f);
    wait = find_wait(report, "worker silent");
    assert_int_equal(wait->until_unix_ms, report->made_unix_ms);
    shard_report_free(report);
    tear_down(&f);
}

static void a_full_log_is_reported_since_it_became_full(void **state)
{
    const struct stats_wait *wait;
    struct shard_report *report;
    struct fixture f;

    (void)state;
    set_up(&f);
    enter_shard();
    f.replies.is_full = true;
    f.replies.full_since_ms = clock_mono_ms() - 90000;
    report = make_report(&f);
    wait = find_wait(report, "write-ahead log full");
    assert_near(wait->since_unix_ms, report->made_unix_ms - 90000);
    assert_int_equal(wait->until_unix_ms, 0);
    shard_report_free(report);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_suspected_worker_has_no_deadline_and_others_have_theirs),
        cmocka_unit_test(a_lease_that_is_over_and_not_yet_ended_has_its_deadline_now),
        cmocka_unit_test(a_full_log_is_reported_since_it_became_full),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
