/* Each coming and going of a worker is one line, whatever else the reports say. */
#include "server/worker_events.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct lines {
    uint32_t n;
    enum log_line_level level;
    char last[400];
};

static void take(void *arg, enum log_line_level level, const char *line)
{
    struct lines *lines = arg;

    lines->n++;
    lines->level = level;
    snprintf(lines->last, sizeof lines->last, "%s", line);
}

static struct stats_worker worker(const char *job, uint32_t rank, enum worker_state state)
{
    struct stats_worker w = { .rank = rank, .state = state, .incarnation = 7, .clock = 12 };

    snprintf(w.job, sizeof w.job, "%s", job);
    snprintf(w.name, sizeof w.name, "psworker host:%u", rank);
    return w;
}

static void report(struct worker_events *c, struct stats_worker *workers, uint32_t n)
{
    worker_events_update(c, &(struct shard_report){ .workers = workers, .n_workers = n });
}

static void joins_leaves_deaths_and_losses_are_reported_once(void **state)
{
    struct lines lines = { 0 };
    struct worker_events *c = worker_events_new(take, &lines);
    struct stats_worker w[2] = { worker("ctr", 0, WORKER_LIVE),
                                 worker("ctr", 1, WORKER_EXPECTED) };

    (void)state;
    enter_main();
    report(c, w, 2);
    assert_int_equal(lines.n, 1);
    assert_int_equal(lines.level, LOG_LINE_LEVEL_INFO);
    assert_string_equal(lines.last,
                        "job ctr: worker 0 has joined (psworker host:0), now at clock 12");
    w[0].clock = 40;
    report(c, w, 2);
    assert_int_equal(lines.n, 1);
    w[1].state = WORKER_LOST;
    report(c, w, 2);
    assert_int_equal(lines.n, 2);
    assert_int_equal(lines.level, LOG_LINE_LEVEL_WARN);
    assert_non_null(strstr(lines.last, "worker 1 has not come within the join timeout"));
    w[0].state = WORKER_DEAD;
    report(c, w, 2);
    assert_int_equal(lines.n, 3);
    assert_non_null(strstr(lines.last, "(psworker host:0) is declared dead, at clock 40"));
    w[0].state = WORKER_LIVE;
    w[0].incarnation = 8;
    report(c, w, 2);
    assert_int_equal(lines.n, 4);
    w[0].state = WORKER_LEFT;
    report(c, w, 2);
    assert_int_equal(lines.n, 5);
    assert_string_equal(lines.last, "job ctr: worker 0 has left, at clock 40");
    worker_events_free(c);
    worker_events_free(NULL);
}

static void a_node_that_hears_nobody_says_so_and_when_that_is_over(void **state)
{
    struct lines lines = { 0 };
    struct worker_events *c = worker_events_new(take, &lines);
    struct stats_worker w[2] = { worker("ctr", 0, WORKER_LIVE), worker("ctr", 1, WORKER_LIVE) };

    (void)state;
    report(c, w, 2);
    w[0].state = w[1].state = WORKER_DEAD;
    w[0].is_given_up = w[1].is_given_up = true;
    report(c, w, 2);
    report(c, w, 2);
    assert_int_equal(lines.n, 4);
    assert_non_null(strstr(lines.last, "is declared dead, at clock"));
    assert_non_null(strstr(lines.last, "this node has heard no worker of the job"));
    w[0].state = WORKER_LIVE;
    w[0].is_given_up = false;
    report(c, w, 2);
    assert_int_equal(lines.n, 5);
    assert_non_null(strstr(lines.last, "worker 0 (psworker host:0) counts again"));
    w[1].is_given_up = false; /* it is dead for good, which is no news */
    report(c, w, 2);
    assert_int_equal(lines.n, 5);
    worker_events_free(c);
}

static void a_suspicion_is_reported_once_and_before_the_death(void **state)
{
    struct lines lines = { 0 };
    struct worker_events *c = worker_events_new(take, &lines);
    struct stats_worker w = worker("ctr", 2, WORKER_LIVE);

    (void)state;
    enter_main();
    report(c, &w, 1);
    w.is_suspected = true;
    w.silent_ms = 10250;
    report(c, &w, 1);
    report(c, &w, 1);
    assert_int_equal(lines.n, 2);
    assert_int_equal(lines.level, LOG_LINE_LEVEL_WARN);
    assert_string_equal(
        lines.last,
        "job ctr: worker 2 (psworker host:2) is suspected, at clock 12: a shard has not "
        "heard of it for a lease (this node for 10250 ms); the others wait until all "
        "shards of the job refuse it");
    w.state = WORKER_DEAD;
    w.is_suspected = false;
    w.agreed = (struct witnesses){ 1, { 4 } };
    report(c, &w, 1);
    assert_int_equal(lines.n, 3);
    assert_string_equal(
        lines.last,
        "job ctr: worker 2 (psworker host:2) is declared dead, at clock 12: not heard of for "
        "a lease; the others go on without it; refused by all shards, by the word of worker 4");
    worker_events_free(c);
}

/* A worker may say of another one what is not so. */
static void who_says_that_a_worker_is_suspected_is_named(void **state)
{
    struct lines lines = { 0 };
    struct worker_events *c = worker_events_new(take, &lines);
    struct stats_worker w = worker("ctr", 2, WORKER_LIVE);

    (void)state;
    enter_main();
    report(c, &w, 1);
    w.reporters = (struct witnesses){ 1, { 4 } };
    report(c, &w, 1);
    report(c, &w, 1);
    assert_int_equal(lines.n, 2);
    assert_int_equal(lines.level, LOG_LINE_LEVEL_WARN);
    assert_string_equal(
        lines.last,
        "job ctr: worker 4 says that a shard suspects worker 2 (psworker host:2), which this "
        "node hears; it is refused once another worker says so, too");
    w.reporters = (struct witnesses){ 2, { 4, 0 } };
    w.is_suspected = true;
    report(c, &w, 1);
    assert_int_equal(lines.n, 3);
    assert_non_null(strstr(lines.last, "(this node for 0 ms), by the word of worker 4 and "
                                       "worker 0; the others wait"));
    worker_events_free(c);
}

static void reports_in_another_order_and_with_other_jobs_log_nothing_twice(void **state)
{
    struct lines lines = { 0 };
    struct worker_events *c = worker_events_new(take, &lines);
    struct stats_worker one[2] = { worker("a", 0, WORKER_LIVE), worker("b", 0, WORKER_LIVE) };
    struct stats_worker other[3] = { one[1], worker("c", 0, WORKER_LIVE), one[0] };

    (void)state;
    enter_main();
    report(c, one, 2);
    assert_int_equal(lines.n, 2);
    report(c, other, 3);
    assert_int_equal(lines.n, 3);
    assert_non_null(strstr(lines.last, "job c:"));
    report(c, other, 0);
    assert_int_equal(lines.n, 3);
    worker_events_free(c);
}

/* A process that was killed and is back before the next report. */
static void another_incarnation_in_the_same_place_is_another_worker(void **state)
{
    struct lines lines = { 0 };
    struct worker_events *c = worker_events_new(take, &lines);
    struct stats_worker w = worker("a", 3, WORKER_LIVE);

    (void)state;
    enter_main();
    report(c, &w, 1);
    w.incarnation++;
    report(c, &w, 1);
    assert_int_equal(lines.n, 2);
    worker_events_free(c);
}

/* psd is started again: its membership holds ends that were logged before. */
static void workers_that_ended_before_the_start_are_not_reported_again(void **state)
{
    struct lines lines = { 0 };
    struct worker_events *c = worker_events_new(take, &lines);
    struct stats_worker w[2] = { worker("a", 0, WORKER_DEAD), worker("a", 1, WORKER_LOST) };

    (void)state;
    enter_main();
    worker_events_restore(c, &(struct shard_report){ .workers = w, .n_workers = 2 });
    report(c, w, 2);
    assert_int_equal(lines.n, 0);
    w[0].state = WORKER_LIVE;
    w[0].incarnation++;
    report(c, w, 2);
    w[0].state = WORKER_DEAD;
    report(c, w, 2);
    assert_int_equal(lines.n, 2);
    worker_events_free(c);
}

/* Reports are further apart than such a life is long. */
static void a_worker_that_joins_and_dies_between_two_reports_is_reported(void **state)
{
    struct lines lines = { 0 };
    struct worker_events *c = worker_events_new(take, &lines);
    struct stats_worker w[2] = { worker("a", 0, WORKER_DEAD), worker("a", 1, WORKER_LOST) };

    (void)state;
    enter_main();
    worker_events_restore(c, &(struct shard_report){ 0 });
    report(c, w, 1);
    assert_int_equal(lines.n, 1);
    assert_int_equal(lines.level, LOG_LINE_LEVEL_WARN);
    assert_non_null(strstr(lines.last, "worker 0 (psworker host:0) is declared dead"));
    report(c, w, 2);
    assert_int_equal(lines.n, 2);
    assert_non_null(strstr(lines.last, "worker 1 has not come within the join timeout"));
    report(c, w, 2);
    assert_int_equal(lines.n, 2);
    worker_events_free(c);
}

static void workers_out_of_checkpoint_and_log_have_not_joined(void **state)
{
    struct lines lines = { 0 };
    struct worker_events *c = worker_events_new(take, &lines);
    struct stats_worker w[3] = { worker("a", 0, WORKER_LIVE), worker("a", 1, WORKER_LIVE),
                                 worker("b", 0, WORKER_LEFT) };
    struct stats_job jobs[2] = { { .name = "a", .n_workers = 2, .min_clock = 12 },
                                 { .name = "b", .n_workers = 1 } };

    (void)state;
    enter_main();
    worker_events_restore(
        c, &(struct shard_report){ .workers = w, .n_workers = 3, .jobs = jobs, .n_jobs = 2 });
    assert_int_equal(lines.n, 1);
    assert_string_equal(lines.last,
                        "job a: restored at min clock 12; 2 of its 2 workers were live, "
                        "and have a lease to come back");
    report(c, w, 3);
    assert_int_equal(lines.n, 1);
    w[0].state = WORKER_DEAD; /* and it did not */
    report(c, w, 3);
    assert_int_equal(lines.n, 2);
    assert_non_null(strstr(lines.last, "declared dead"));
    w[1].incarnation++;
    report(c, w, 3);
    assert_int_equal(lines.n, 3);
    assert_non_null(strstr(lines.last, "worker 1 has joined"));
    worker_events_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joins_leaves_deaths_and_losses_are_reported_once),
        cmocka_unit_test(a_node_that_hears_nobody_says_so_and_when_that_is_over),
        cmocka_unit_test(a_suspicion_is_reported_once_and_before_the_death),
        cmocka_unit_test(who_says_that_a_worker_is_suspected_is_named),
        cmocka_unit_test(reports_in_another_order_and_with_other_jobs_log_nothing_twice),
        cmocka_unit_test(another_incarnation_in_the_same_place_is_another_worker),
        cmocka_unit_test(workers_that_ended_before_the_start_are_not_reported_again),
        cmocka_unit_test(a_worker_that_joins_and_dies_between_two_reports_is_reported),
        cmocka_unit_test(workers_out_of_checkpoint_and_log_have_not_joined),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
