/* Reports of learning: what counts, how often, the curve that is kept, and what comes back of it. */
#include <errno.h>
#include <math.h>

#include "events_fixture.h"
#include "server/core/learning.h"
#include "server/core/snapshot_bytes.h"
#include "server/core/snapshot_meta.h"

#define START_MS UINT64_C(1700000000000)

/* Only test builds can fail allocations on demand. */
#ifdef PS_FAULTS
static const bool has_faults = true;
static void fail_after(long n_allocs)
{
    memory_fail_after(n_allocs);
}
#else
static const bool has_faults = false;
static void fail_after(long n_allocs)
{
    (void)n_allocs;
}
#endif

static struct learning_report report_of(uint64_t samples, float loss)
{
    return (struct learning_report){ .samples = samples,
                                     .steps = 10,
                                     .loss = loss,
                                     .samples_per_s = 1000,
                                     .busy = { 100, 200, 300, 400, 500, 600 } };
}

/* A job of n workers on a shard that writes its events to `log`, or NULL. */
static struct worker *make_job(struct shard *s, struct event_log *log, uint32_t n_workers)
{
    enter_shard();
    if (log)
        shard_set_events(s, &log->sink);
    for (uint32_t i = 0; i < n_workers; i++)
        (void)join(s, TABLE_SPEC_MODE_ASYNC, 0, i, n_workers);
    return membership_job(shard_membership(s), 0)->workers;
}

static int learn(struct shard *s, struct worker *w, const struct learning_report *r,
                 uint64_t ms)
{
    return membership_learn(shard_membership(s), w, r, ms, START_MS + ms);
}

static void what_makes_no_sense_does_not_count(void **state)
{
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = make_job(s, NULL, 1);
    struct learning_report bad[] = {
        { .samples = LEARNING_SAMPLES_MAX + 1 },
        { .steps = 1, .loss = NAN },
        { .steps = 1, .loss = INFINITY },
        { .steps = 1, .loss = -0.5f },
        { .samples_per_s = NAN },
        { .samples_per_s = -1 },
        { .samples_per_s = 2e15f },
        { .busy = { 0, 0, 0, 0, 0, 1001 } },
        { .n_validations = 1, .auc = 1.5f },
        { .n_validations = 1, .auc = NAN },
        { .n_validations = 1, .auc = 0.5f, .logloss = -1 },
        { .n_validations = 1, .has_one_class = true, .logloss = NAN },
    };
    struct learning_report good = { .n_validations = 1, .has_one_class = true, .auc = NAN };

    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_non_null(learning_report_wrong(&bad[i]));
        assert_int_equal(learn(s, w, &bad[i], 10000 * i), -EINVAL);
    }
    assert_null(w->job->curve);
    assert_int_equal(
        membership_learn(shard_membership(s), w, &good, 0, LEARNING_UNIX_MS_MAX + 1), -EINVAL);
    assert_int_equal(learn(s, w, &good, 1000000), 0);
    assert_int_equal(w->job->curve->n, 1);
    assert_true(isnan(w->job->curve->points[0].auc) && isnan(w->job->curve->points[0].loss));
    shard_free(s);
}

static void a_flood_of_reports_counts_a_few_times_a_second(void **state)
{
    struct event_log *log = event_log_new();
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = make_job(s, log, 100);
    uint64_t n;

    (void)state;
    for (uint64_t ms = 0; ms < 10000; ms++) {
        const struct learning_report r = report_of(ms, 1);

        for (uint32_t i = 0; i < 100; i += 50)
            assert_int_equal(learn(s, &w[i], &r, ms), 0);
    }
    n = n_of_type(log, SHARD_EVENT_LEARNED, -1);
    assert_in_range(n, 10, 2 * (LEARNING_BURST + 1 + 10000 / (100 * LEARNING_SHARE_MS)));
    shard_free(s);
    event_log_free(log);
}

/* The trivial twin keeps every report; the curve has at most 512 points of the same run. */
static void a_curve_always_shows_the_whole_run(void **state)
{
    struct dice d = dice_of_this_run("a_curve_always_shows_the_whole_run");
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = make_job(s, NULL, 1);
    uint64_t ms = 0, samples = 0, weight = 0, in_curve = 0;
    double sum = 0, curve_sum = 0, longest = 0;
    const struct learning_curve *c;

    (void)state;
    for (uint32_t i = 0; i < 20000; i++) {
        const uint64_t more = 1 + roll(&d, 2000);
        const float loss = 1 + roll_float(&d);
        struct learning_report r = report_of(samples += more, loss);

        ms += i == 9000 ? 86400000 : 1000 + roll(&d, 3000); /* a pause of a day costs nothing */
        assert_int_equal(learn(s, w, &r, ms), 0);
        weight += more;
        sum += (double)loss * (double)more;
    }
    c = w->job->curve;
    assert_in_range(c->n, LEARNING_POINTS_MAX / 2, LEARNING_POINTS_MAX);
    for (uint32_t i = 0; i < c->n; i++) {
        const struct learning_point *p = &c->points[i];
        const double step = (double)(p->samples - (i ? p[-1].samples : 0));

        assert_true(!i || (p->samples > p[-1].samples && p->unix_ms > p[-1].unix_ms));
        in_curve += p->weight;
        curve_sum += (double)p->loss * (double)p->weight;
        longest = step > longest ? step : longest;
    }
    assert_int_equal(in_curve, weight);
    assert_true(fabs(curve_sum - sum) < 1e-4 * sum);
    assert_int_equal(c->points[c->n - 1].samples, samples);
    assert_true(longest < 4 * (double)samples / c->n);
    shard_free(s);
}

static void validations_stay_where_they_were_made(void **state)
{
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = make_job(s, NULL, 1);
    const struct learning_curve *c;
    struct learning_summary all;
    uint32_t n = 0;

    (void)state;
    for (uint32_t i = 1; i <= 3000; i++) {
        struct learning_report r = report_of(100 * i, 1);

        r.n_validations = i / 500; /* the last one stands in each report */
        r.auc = 0.5f + (float)r.n_validations / 100;
        r.logloss = 1;
        assert_int_equal(learn(s, w, &r, 1000 * (uint64_t)i), 0);
    }
    c = w->job->curve;
    for (uint32_t i = 0; i < c->n; i++)
        n += isnan(c->points[i].auc) ? 0u : 1u;
    assert_int_equal(n, 6);
    learning_summarise(w->job, &all);
    assert_true(all.auc == 0.5f + 6.0f / 100);
    membership_leave(shard_membership(s), w); /* and validates once more */
    assert_int_equal(
        learn(s, w,
              &(struct learning_report){
                  .samples = 300000, .n_validations = 7, .auc = 0.75f, .logloss = 0.5f },
              3000500),
        0);
    learning_summarise(w->job, &all);
    assert_true(all.auc == 0.75f && all.loss == 1 && all.samples == 300000);
    assert_true(all.samples_per_s == 0);
    shard_free(s);
}

static void a_job_is_the_sum_of_its_workers(void **state)
{
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = make_job(s, NULL, 2);
    struct learning_report a = report_of(1000, 1), b = report_of(3000, 2);
    struct learning_summary all;

    (void)state;
    b.busy[0] = 500;
    assert_int_equal(learn(s, &w[0], &a, 100), 0);
    assert_int_equal(learn(s, &w[1], &b, 100), 0);
    learning_summarise(w->job, &all);
    assert_int_equal(all.samples, 4000);
    assert_true(fabs(all.loss - 1.75) < 1e-6 && fabs(all.busy[0] - 0.4) < 1e-6);
    assert_true(all.samples_per_s == 2000 && isnan(all.auc));
    assert_int_equal(w->job->curve->n, 1); /* of one moment */
    assert_true(fabs(w->job->curve->points[0].loss - 1.75) < 1e-6);
    a.samples = 10; /* a process that counts anew */
    assert_int_equal(learn(s, &w[0], &a, 1000), 0);
    learning_summarise(w->job, &all);
    assert_int_equal(all.samples, 4000);
    shard_free(s);
}

/* --- as bytes --- */

static void fill(struct shard *s, struct worker *w, uint32_t n)
{
    for (uint32_t i = 1; i <= n; i++) {
        struct learning_report r = report_of(100 * i, 1 / (float)i);

        r.n_validations = i / 7;
        r.auc = 0.5f;
        assert_int_equal(learn(s, &w[i % 2], &r, 1000 * (uint64_t)i), 0);
    }
}

static struct bytes bytes_of(const struct shard *s)
{
    struct bytes b = { 0 };

    assert_int_equal(snapshot_meta_encode(s, &b), 0);
    return b;
}

/* fail_at: of the allocations; -1: none. What was read is written as the same bytes. */
static int decode(const uint8_t *bytes, size_t n_bytes, long fail_at)
{
    struct shard *s = make_shard(0, 1, 0);
    uint8_t *copy =
        copy_bytes(bytes, n_bytes); /* a block of its own: one byte too many shows */
    int status;

    enter_shard();
    fail_after(fail_at);
    status = snapshot_meta_decode(s, copy, n_bytes, 0);
    fail_after(-1);
    if (!status) {
        struct bytes again = bytes_of(s);

        assert_int_equal(bytes_len(&again), n_bytes);
        assert_memory_equal(bytes_front(&again), bytes, n_bytes);
        bytes_deinit(&again);
    }
    free(copy);
    shard_free(s);
    return status;
}

static void a_checkpoint_has_it_and_an_older_one_does_not(void **state)
{
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = make_job(s, NULL, 2);
    struct bytes old = bytes_of(s), b;

    (void)state;
    assert_int_equal(bytes_front(&old)[4], 1); /* as older programs write and read it */
    assert_int_equal(decode(bytes_front(&old), bytes_len(&old), -1), 0);
    fill(s, w, 700);
    b = bytes_of(s);
    assert_int_equal(bytes_front(&b)[4], 2);
    assert_in_range(bytes_len(&b), 10000, 48 * LEARNING_POINTS_MAX + 1000);
    assert_int_equal(decode(bytes_front(&b), bytes_len(&b), -1), 0);
    for (long k = 0; has_faults && decode(bytes_front(&b), bytes_len(&b), k); k++)
        assert_in_range(k, 0, 20);
    bytes_deinit(&b);
    bytes_deinit(&old);
    shard_free(s);
}

static void bytes_that_were_damaged_are_refused_or_harmless(void **state)
{
    struct dice d = dice_of_this_run("bytes_that_were_damaged_are_refused_or_harmless");
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = make_job(s, NULL, 2);
    struct bytes b;
    uint8_t *copy;
    size_t n;

    (void)state;
    fill(s, w, 20);
    b = bytes_of(s);
    n = bytes_len(&b);
    for (size_t n_kept = 0; n_kept < n; n_kept++)
        assert_int_not_equal(decode(bytes_front(&b), n_kept, -1), 0);
    for (uint32_t i = 0; i < 4000; i++) {
        copy = copy_bytes(bytes_front(&b), n);
        copy[roll(&d, n)] ^= (uint8_t)(1u << roll(&d, 8));
        (void)decode(copy, n, -1);
        free(copy);
    }
    bytes_deinit(&b);
    shard_free(s);
}

/* --- as events --- */

static void the_events_lead_to_the_same_curve(void **state)
{
    struct event_log *log = event_log_new();
    struct shard *s = make_shard(0, 1, 0), *again = make_shard(0, 1, 0);
    struct worker *w = make_job(s, log, 2);
    struct bytes a, b;
    struct err err;

    (void)state;
    fill(s, w, 900);
    replay_begin(again);
    for (size_t i = 0; i < log->n; i++)
        assert_int_equal(shard_replay(again, &log->events[i]->e, 0, &err), 0);
    replay_end(again, 0);
    a = bytes_of(s);
    b = bytes_of(again);
    assert_int_equal(bytes_len(&a), bytes_len(&b));
    assert_memory_equal(bytes_front(&a), bytes_front(&b), bytes_len(&a));
    bytes_deinit(&a);
    bytes_deinit(&b);
    shard_free(s);
    shard_free(again);
    event_log_free(log);
}

static void a_log_may_lie(void **state)
{
    const struct shard_event_worker nobody = { "job", 9, 1 };
    struct event_log *log = event_log_new();
    struct shard *s = make_shard(0, 1, 0), *again = make_shard(0, 1, 0);
    struct worker *w = make_job(s, log, 1);
    struct learning_report r = report_of(1, 1);
    struct shard_event *e;
    struct err err;

    (void)state;
    assert_int_equal(learn(s, w, &r, 1), 0);
    replay_begin(again);
    assert_int_equal(shard_replay(again, &log->events[0]->e, 0, &err), 0);
    e = &log->events[1]->e;
    assert_int_equal(e->type, SHARD_EVENT_LEARNED);
    log->events[1]->learned.loss = NAN;
    assert_int_equal(shard_replay(again, e, 0, &err), PS_ECORRUPT);
    log->events[1]->learned.loss = 1;
    e->learned.unix_ms = UINT64_MAX;
    assert_int_equal(shard_replay(again, e, 0, &err), PS_ECORRUPT);
    e->learned.unix_ms = 1;
    fail_after(0);
    assert_int_equal(shard_replay(again, e, 0, &err), has_faults ? -ENOMEM : 0);
    fail_after(-1);
    e->learned.worker = nobody;
    assert_int_equal(shard_replay(again, e, 0, &err), PS_ECORRUPT);
    shard_free(s);
    shard_free(again);
    event_log_free(log);
}

static void what_the_log_or_memory_has_no_space_for_is_lost(void **state)
{
    struct event_log *log = event_log_new();
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = make_job(s, log, 1);
    struct learning_report r = report_of(1, 1);

    (void)state;
    fail_after(0);
    if (has_faults)
        assert_int_equal(learn(s, w, &r, 1), -ENOMEM);
    fail_after(-1);
    log->n_reserves_left = 0;
    log->failure = -EAGAIN;
    assert_int_equal(learn(s, w, &r, 2), -EAGAIN);
    assert_int_equal(w->learning.unix_ms, 0);
    assert_int_equal(w->job->curve->n, 0);
    assert_int_equal(learn(s, w, &r, 3), 0);
    assert_int_equal(w->job->curve->n, 1);
    shard_free(s);
    event_log_free(log);
}

static void a_clock_set_back_and_a_fresh_job(void **state)
{
    struct shard *s = make_shard(0, 1, 0);
    struct worker *w = make_job(s, NULL, 1);
    struct learning_report r = report_of(1, 1);
    const struct learning_curve *c;

    (void)state;
    assert_int_equal(learn(s, w, &r, 10000), 0);
    r.samples = 2;
    assert_int_equal(membership_learn(shard_membership(s), w, &r, 11000, 5), 0);
    r.samples = 3;
    assert_int_equal(membership_learn(shard_membership(s), w, &r, 12000, 1005), 0);
    c = w->job->curve;
    assert_int_equal(c->n, 3); /* an hour set back hides no hour of the run */
    assert_true(c->points[2].unix_ms == c->points[0].unix_ms);
    membership_leave(shard_membership(s), w);
    w = join_at(s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1, 99, 20000);
    assert_null(w->job->curve);
    assert_int_equal(w->learning.unix_ms, 0);
    shard_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_makes_no_sense_does_not_count),
        cmocka_unit_test(a_flood_of_reports_counts_a_few_times_a_second),
        cmocka_unit_test(a_curve_always_shows_the_whole_run),
        cmocka_unit_test(validations_stay_where_they_were_made),
        cmocka_unit_test(a_job_is_the_sum_of_its_workers),
        cmocka_unit_test(a_checkpoint_has_it_and_an_older_one_does_not),
        cmocka_unit_test(bytes_that_were_damaged_are_refused_or_harmless),
        cmocka_unit_test(the_events_lead_to_the_same_curve),
        cmocka_unit_test(a_log_may_lie),
        cmocka_unit_test(what_the_log_or_memory_has_no_space_for_is_lost),
        cmocka_unit_test(a_clock_set_back_and_a_fresh_job),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
