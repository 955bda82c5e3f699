/* A shard's report. Waits: since when, and until when, a worker or a full log holds others up. Latencies: of the last minute. */
#include "server/shard_stats.h"

#include "common/clock.h"
#include "serving.h"

#define LEASE_MS 10000u /* of the fixture; its join deadline, too */
#define PARK_MS 60000u

static struct worker *join_with(struct fixture *f, uint32_t rank, uint64_t silent_ms,
                                uint32_t n_backups)
{
    struct membership_join member = { .job = "job",
                                      .rank = rank,
                                      .n_workers = 4,
                                      .incarnation = 1,
                                      .mode = TABLE_SPEC_MODE_BSP,
                                      .n_backups = n_backups,
                                      .relays = true,
                                      .name = "test" };
    uint64_t now_ms = dispatch_now_ms(f->dispatch);
    struct worker *worker;
    struct err err;

    assert_int_equal(
        membership_join(shard_membership(f->shard), &member, now_ms, &worker, &err), 0);
    worker->last_seen_ms = now_ms - silent_ms;
    return worker;
}

static struct worker *join(struct fixture *f, uint32_t rank, uint64_t silent_ms)
{
    return join_with(f, rank, silent_ms, 0);
}

static struct shard_stats_steps steps[MEMBERSHIP_N_JOBS_MAX]; /* of the fixture */

static struct shard_report *make_report_after(struct fixture *f,
                                              struct shard_stats_minute *minute)
{
    const struct shard_stats_inputs in = { .shard = f->shard,
                                           .dispatch = f->dispatch,
                                           .replies = &f->replies,
                                           .connections = &f->connections,
                                           .loop = &f->loop,
                                           .minute = minute,
                                           .steps = steps,
                                           .lease_ms = LEASE_MS,
                                           .park_max_ms = PARK_MS };

    return shard_stats_make(&in);
}

static struct shard_report *make_report(struct fixture *f)
{
    struct shard_stats_minute minute = { 0 };
    struct shard_report *report = make_report_after(f, &minute);

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

/* A worker says that a shard suspects rank 1. */
static void name_suspect(struct fixture *f, struct worker *from)
{
    const struct membership_report report = { .from = from->rank, .rank = 1, .incarnation = 1 };

    assert_false(membership_suspect(shard_membership(f->shard), from->job, &report,
                                    dispatch_now_ms(f->dispatch)));
}

static void silent_and_suspected_workers_are_waited_for_until_a_deadline(void **state)
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
    name_suspect(&f, &suspect->job->workers[0]);
    assert_false(suspect->is_suspected); /* by the word of one */
    name_suspect(&f, join(&f, 2, 8000));
    assert_true(suspect->is_suspected);
    suspect->suspected_ms -= 1500;
    report = make_report(&f);
    assert_int_equal(report->n_waits, 3);

    wait = find_wait(report, "worker suspected");
    assert_string_equal(wait->who, "job job, worker 1 (test)");
    assert_near(wait->since_unix_ms, report->made_unix_ms - LEASE_MS - 1500);
    assert_near(wait->until_unix_ms, report->made_unix_ms - 1500 + PARK_MS);
    assert_string_equal(wait->why, "its lease is over; it is dead once all shards have refused "
                                   "it, which worker 0 (test) does not say yet");

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

static void who_is_expected_is_waited_for_unless_backup_workers_are_enough(void **state)
{
    struct shard_report *report;
    struct worker *workers[3];
    struct fixture f;

    (void)state;
    set_up(&f);
    enter_shard();
    for (uint32_t i = 0; i < 3; i++)
        workers[i] = join_with(&f, i, 0, 1);
    workers[0]->clock = workers[1]->clock = 1;
    report = make_report(&f);
    assert_string_equal(find_wait(report, "worker expected")->why,
                        "it has not joined; the others' pulls wait for it"); /* or for rank 2 */
    shard_report_free(report);
    workers[2]->clock = 1;
    report = make_report(&f);
    assert_string_equal(find_wait(report, "worker expected")->why,
                        "it has not joined; the others go on without it (--backup-workers)");
    shard_report_free(report);
    tear_down(&f);
}

static uint32_t count_waits(const struct shard_report *report, const char *what)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < report->n_waits; i++)
        n += !strcmp(report->waits[i].what, what);
    return n;
}

/* Their pushes go to another node that does not answer: this one hears them all, and gets no step. */
static void a_job_whose_workers_are_heard_and_send_no_step_stands_still(void **state)
{
    struct shard_report *report;
    struct worker *workers[4];
    const struct stats_wait *wait;
    struct fixture f;

    (void)state;
    set_up(&f);
    enter_shard();
    memset(steps, 0, sizeof steps);
    for (uint32_t i = 0; i < 4; i++)
        workers[i] = join(&f, i, 0);
    for (uint32_t i = 0; i < 2; i++) { /* the second: 9 s */
        report = make_report(&f);
        assert_int_equal(count_waits(report, "job stands still"), 0);
        shard_report_free(report);
        steps[0].unexplained_ms -= 9000;
    }
    steps[0].unexplained_ms -= 3000;
    report = make_report(&f);
    wait = find_wait(report, "job stands still");
    assert_string_equal(wait->who, "job job");
    assert_non_null(strstr(wait->why, "its 4 workers are heard, and no step has come"));
    shard_report_free(report);

    workers[1]->last_seen_ms -= LEASE_MS - 1000; /* it is this one that is waited for */
    report = make_report(&f);
    assert_int_equal(count_waits(report, "worker silent"), 1);
    assert_int_equal(count_waits(report, "job stands still"), 0);
    shard_report_free(report);
    workers[1]->last_seen_ms += LEASE_MS - 1000;

    for (uint32_t i = 0; i < 2; i++) { /* a step */
        steps[0].unexplained_ms -= 30000;
        workers[2]->clock++;
        report = make_report(&f);
        assert_int_equal(count_waits(report, "job stands still"), 0);
        shard_report_free(report);
    }
    tear_down(&f);
}

/* Whatever holds it up, and whether a wait names that: one waits for the other, which is silent. */
static void a_job_without_a_step_has_no_speed(void **state)
{
    struct shard_report *report;
    struct worker *workers[2];
    struct fixture f;

    (void)state;
    set_up(&f);
    enter_shard();
    memset(steps, 0, sizeof steps);
    for (uint32_t i = 0; i < 2; i++) {
        workers[i] = join_with(&f, i, i ? LEASE_MS - 1000 : 0, 0);
        workers[i]->learning = (struct learning_worker){
            .unix_ms = 1, .samples = 10, .samples_per_s = 100, .loss = NAN
        };
    }
    for (uint32_t i = 0; i < 3; i++) { /* at once, after 9 s, after 10 s */
        report = make_report(&f);
        assert_int_equal(report->jobs[0].learning.samples, 20);
        assert_float_equal(report->jobs[0].learning.samples_per_s, i < 2 ? 200 : 0, 0);
        assert_float_equal(report->workers[0].learning.samples_per_s, i < 2 ? 100 : 0, 0);
        shard_report_free(report);
        steps[0].since_ms -= i ? 1000 : 9000;
    }
    workers[0]->clock++;
    report = make_report(&f);
    assert_float_equal(report->jobs[0].learning.samples_per_s, 200, 0);
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

static void pushes_that_wait_for_a_switch_are_not_called_those_of_a_full_log(void **state)
{
    const struct fetch_standby standby = {
        .term = 1, .ack = TERMS_ACK_GOT, .name = "b:1", .pin_bytes_max = 1000
    };
    const struct stats_wait *wait;
    struct shard_report *report;
    struct fetch_handler *fetches;
    struct fixture f;

    (void)state;
    set_up(&f);
    enter_shard();
    fetches = dispatch_fetches(f.dispatch);
    fetch_handler_begin(fetches, &standby, 0);
    fetch_handler_park(fetches, true, false);
    f.replies.is_full = true; /* as a push that has come has set it */
    f.replies.full_since_ms = clock_mono_ms() - 90000;
    report = make_report(&f);
    assert_int_equal(count_waits(report, "write-ahead log full"), 0);
    wait = find_wait(report, "switch");
    assert_string_equal(wait->who, "pushes, joins and tables of shard 0");
    assert_string_equal(
        wait->why, "they wait until standby b:1 has all that is acknowledged, at most 2 s");
    assert_near(wait->since_unix_ms, report->made_unix_ms - 90000);
    shard_report_free(report);

    fetch_handler_unpark(fetches);
    f.replies.is_full = true; /* by the log, whose notification is on its way */
    report = make_report(&f);
    assert_int_equal(count_waits(report, "switch"), 0);
    (void)find_wait(report, "write-ahead log full");
    shard_report_free(report);
    fetch_handler_end(fetches);
    tear_down(&f);
}

/* --- latencies --- */

#define SLOW_NS UINT64_C(1000000000)
#define FAST_NS UINT64_C(1000000)
_Static_assert(SHARD_STATS_N_KEPT *SHARD_STATS_KEPT_EVERY_MS == 60000, "a minute");

/* Pulls that took so long; as if the dispatcher had answered them. */
static void count_pulls(struct fixture *f, uint64_t n, uint64_t took_ns)
{
    const struct stats_requests *pulls = &dispatch_requests(f->dispatch)[FRAME_PULL];
    struct stats_requests *counted = (struct stats_requests *)(uintptr_t)pulls;

    for (uint64_t i = 0; i < n; i++)
        histogram_record(&counted->latency_ns, took_ns);
    counted->n += n;
}

/* Of pulls, in the report that is made so long after the last one that latencies are kept. */
static void next_kept(struct fixture *f, struct shard_stats_minute *minute,
                      struct stats_requests *ret)
{
    struct shard_report *report;

    minute->kept_ms -= SHARD_STATS_KEPT_EVERY_MS;
    report = make_report_after(f, minute);
    *ret = report->requests[FRAME_PULL];
    shard_report_free(report);
}

static void latencies_are_those_of_the_last_minute(void **state)
{
    struct shard_stats_minute minute = { .kept_ms = clock_mono_ms() };
    struct stats_requests pulls;
    struct fixture f;

    (void)state;
    set_up(&f);
    enter_shard();
    count_pulls(&f, 1000, SLOW_NS);
    for (uint32_t i = 0; i < SHARD_STATS_N_KEPT; i++) {
        next_kept(&f, &minute, &pulls); /* a minute, from the first report on */
        assert_int_equal(pulls.minute_ns.n, 1000);
        assert_true(histogram_quantile(&pulls.minute_ns, 0.5) >= SLOW_NS);
    }
    count_pulls(&f, 10, FAST_NS);
    for (uint32_t i = 0; i < SHARD_STATS_N_KEPT; i++) {
        next_kept(&f, &minute, &pulls);
        assert_int_equal(pulls.n, 1010);
        assert_int_equal(pulls.minute_ns.n, 10); /* the slow ones are over */
        assert_in_range(histogram_quantile(&pulls.minute_ns, 0.99), FAST_NS, 2 * FAST_NS);
        assert_int_equal(pulls.latency_ns.n, 1010);
    }
    next_kept(&f, &minute, &pulls); /* and these */
    assert_int_equal(pulls.minute_ns.n, 0);
    assert_int_equal(histogram_quantile(&pulls.minute_ns, 0.99), 0);
    shard_stats_minute_deinit(&minute);
    tear_down(&f);
}

static void a_report_soon_after_another_begins_no_new_minute(void **state)
{
    struct shard_stats_minute minute = { 0 };
    struct stats_requests pulls;
    struct fixture f;

    (void)state;
    set_up(&f);
    enter_shard();
    count_pulls(&f, 10, FAST_NS);
    for (uint32_t i = 0; i < 3 * SHARD_STATS_N_KEPT; i++) { /* a few are made each second */
        struct shard_report *report;

        minute.kept_ms = clock_mono_ms(); /* however slow this machine is */
        report = make_report_after(&f, &minute);
        pulls = report->requests[FRAME_PULL];
        shard_report_free(report);
        assert_int_equal(pulls.minute_ns.n, 10);
    }
    shard_stats_minute_deinit(&minute);
    tear_down(&f);
}

/* --- readers --- */

static void go(struct channel_loop_waiter *w)
{
    (void)w;
}

static void readers_that_wait_for_long_are_reported(void **state)
{
    struct channel_loop_waiter waiters[2] = { { 0 } };
    const struct stats_wait *wait;
    struct shard_report *report;
    struct fixture f;

    (void)state;
    set_up(&f);
    enter_shard();
    for (size_t i = 0; i < COUNT_OF(waiters); i++)
        channel_loop_enqueue_low(&f.channels, &waiters[i], go);
    report = make_report(&f);
    for (uint32_t i = 0; i < report->n_waits; i++)
        assert_string_not_equal(report->waits[i].what, "reads");
    shard_report_free(report);
    waiters[0].since_ns -= UINT64_C(3000000000);
    report = make_report(&f);
    wait = find_wait(report, "reads");
    assert_string_equal(wait->who, "2 readers' connections to shard 0");
    assert_in_range(report->made_unix_ms - wait->since_unix_ms, 3000, 60000);
    assert_int_equal(wait->until_unix_ms, 0);
    shard_report_free(report);
    for (size_t i = 0; i < COUNT_OF(waiters); i++)
        channel_loop_cancel(&f.channels, &waiters[i]);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silent_and_suspected_workers_are_waited_for_until_a_deadline),
        cmocka_unit_test(a_lease_that_is_over_and_not_yet_ended_has_its_deadline_now),
        cmocka_unit_test(who_is_expected_is_waited_for_unless_backup_workers_are_enough),
        cmocka_unit_test(a_job_whose_workers_are_heard_and_send_no_step_stands_still),
        cmocka_unit_test(a_job_without_a_step_has_no_speed),
        cmocka_unit_test(a_full_log_is_reported_since_it_became_full),
        cmocka_unit_test(pushes_that_wait_for_a_switch_are_not_called_those_of_a_full_log),
        cmocka_unit_test(latencies_are_those_of_the_last_minute),
        cmocka_unit_test(a_report_soon_after_another_begins_no_new_minute),
        cmocka_unit_test(readers_that_wait_for_long_are_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
