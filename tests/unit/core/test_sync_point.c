/* Sync points of a job in bounded staleness (sync_point.h): nothing beyond one is answered or applied before all
 * are there, so the state is exact; and nobody waits for who is gone. */
#include "server/core/sync_point.h"

#include <errno.h>

#include "events_fixture.h"

#define DIM 2u
#define SYNC_STEPS 4u
#define N_WORKERS 3u

struct bench {
    struct shard *s;
    uint32_t table;
    struct worker *w[N_WORKERS];
};

static void bench_init_shard(struct bench *b, uint32_t sync_steps)
{
    struct table_spec spec = sparse_spec("t", DIM, TABLE_SPEC_SGD);

    enter_shard();
    *b = (struct bench){
        .s = shard_new(&(struct shard_config){
            .n_shards = 1, .lease_ms = LEASE_MS, .join_ms = JOIN_MS, .sync_steps = sync_steps })
    };
    b->table = make_table(b->s, &spec);
}

static void bench_init(struct bench *b, enum table_spec_mode mode, uint32_t bound,
                       uint32_t n_workers)
{
    bench_init_shard(b, SYNC_STEPS);
    for (uint32_t i = 0; i < n_workers; i++)
        b->w[i] = join(b->s, mode, bound, i, n_workers);
}

static void bench_deinit(struct bench *b)
{
    enter_shard();
    shard_free(b->s);
}

static struct push *make_step(const struct bench *b, uint32_t rank, uint64_t clock)
{
    static const uint64_t keys[] = { 1, 5 };
    static const float values[2 * DIM] = { 1, 2, 3, 4 };
    struct push *push = next_push(b->w[rank], clock);

    add_gradient(push, b->table, DIM, keys, 2, values);
    return push;
}

static void step(struct bench *b, uint32_t rank)
{
    (void)must_push(b->s, b->w[rank], make_step(b, rank, b->w[rank]->clock));
}

static enum sync_point sync_point_after(const struct bench *b, uint64_t n_steps)
{
    enter_shard();
    return sync_point_of(b->s, "job", n_steps - 1);
}

static void a_pull_waits_for_the_bound_and_for_the_last_sync_point(void **state)
{
    struct bench b;

    (void)state;
    for (uint32_t bound = 0; bound < 7; bound++) {
        bench_init(&b, TABLE_SPEC_MODE_SSP, bound, 2);
        for (uint64_t least = 0; least < 3 * SYNC_STEPS; least++) {
            for (uint64_t clock = 0; clock < 4 * SYNC_STEPS; clock++)
                assert_int_equal(ready(b.s, b.w[0], clock, b.table),
                                 least + bound >= clock &&
                                     least >= clock / SYNC_STEPS * SYNC_STEPS);
            step(&b, 0);
            step(&b, 1);
        }
        bench_deinit(&b);
    }
}

/* It changes rows, though it is no step. */
static void an_assignment_of_a_later_step_ends_a_sync_point(void **state)
{
    const uint64_t key = 1;
    const float row[DIM] = { 7, 8 };
    struct bench b;
    struct push *push;

    (void)state;
    bench_init(&b, TABLE_SPEC_MODE_SSP, 2, 1);
    for (uint32_t i = 0; i < SYNC_STEPS; i++) {
        if (i == SYNC_STEPS - 1) { /* of the last step before it changes nothing */
            push = next_push(b.w[0], i);
            push->tick = false;
            add_assign(push, b.table, DIM, &key, 1, row);
            must_push(b.s, b.w[0], push);
        }
        step(&b, 0);
    }
    assert_int_equal(sync_point_after(&b, SYNC_STEPS), SYNC_POINT_EXACT);
    push = next_push(b.w[0], SYNC_STEPS);
    push->tick = false;
    add_assign(push, b.table, DIM, &key, 1, row);
    must_push(b.s, b.w[0], push);
    assert_int_equal(sync_point_after(&b, SYNC_STEPS), SYNC_POINT_PAST);
    bench_deinit(&b);
}

static void a_pull_says_what_it_waits_for(void **state)
{
    struct bench b;
    struct pull pull = { .clock = 3 };
    bool is_sync_point;

    (void)state;
    bench_init(&b, TABLE_SPEC_MODE_SSP, 2, 2);
    pull.n_sections = 1;
    pull.sections[0].table_id = b.table;
    assert_int_equal(shard_pull_needs(b.s, b.w[0]->job, &pull, &is_sync_point), 1);
    assert_false(is_sync_point);
    pull.clock = 5;
    assert_int_equal(shard_pull_needs(b.s, b.w[0]->job, &pull, &is_sync_point), 4);
    assert_true(is_sync_point);
    pull.clock = 7;
    assert_int_equal(shard_pull_needs(b.s, b.w[0]->job, &pull, &is_sync_point), 5);
    assert_false(is_sync_point);
    bench_deinit(&b);
}

/* A step that reads asynchronous tables alone, or nothing, pushes to the others like any other. */
static void no_pull_of_such_a_job_gets_by(void **state)
{
    struct table_spec async = sparse_spec("async", DIM, TABLE_SPEC_SGD);
    struct pull nothing = { .clock = SYNC_STEPS };
    struct bench b;
    uint32_t id;

    (void)state;
    async.mode = TABLE_SPEC_MODE_ASYNC;
    bench_init(&b, TABLE_SPEC_MODE_SSP, 9, 2);
    id = make_table(b.s, &async);
    assert_true(ready(b.s, b.w[0], SYNC_STEPS - 1, id));
    assert_false(ready(b.s, b.w[0], SYNC_STEPS, id));
    assert_false(shard_pull_ready(b.s, b.w[0], &nothing));
    assert_true(shard_pull_ready(b.s, NULL, &nothing));
    bench_deinit(&b);
}

static void other_jobs_have_no_sync_points(void **state)
{
    struct table_spec ssp = sparse_spec("ssp", DIM, TABLE_SPEC_SGD);
    struct bench b;

    (void)state;
    ssp.mode = TABLE_SPEC_MODE_SSP;
    ssp.bound = 9;
    bench_init(&b, TABLE_SPEC_MODE_ASYNC, 0, 2);
    assert_true(ready(b.s, b.w[0], 5 * SYNC_STEPS, b.table));
    assert_true(ready(b.s, b.w[0], SYNC_STEPS, make_table(b.s, &ssp)));
    for (uint32_t i = 0; i < 2 * SYNC_STEPS; i++)
        step(&b, 0);
    bench_deinit(&b);
    bench_init(&b, TABLE_SPEC_MODE_BSP, 0, 2);
    for (uint32_t i = 0; i < 2 * SYNC_STEPS; i++)
        step(&b, 0); /* held */
    bench_deinit(&b);
    bench_init_shard(&b, 0);
    b.w[0] = join(b.s, TABLE_SPEC_MODE_SSP, 9, 0, 2);
    assert_true(ready(b.s, b.w[0], 9, b.table));
    for (uint32_t i = 0; i < 9; i++)
        step(&b, 0);
    bench_deinit(&b);
}

static void at_a_sync_point_the_state_is_exact_until_a_worker_goes_on(void **state)
{
    struct bench b;

    (void)state;
    bench_init(&b, TABLE_SPEC_MODE_SSP, 9, 2);
    for (uint32_t i = 0; i < SYNC_STEPS; i++)
        step(&b, 0);
    for (uint32_t i = 0; i + 1 < SYNC_STEPS; i++)
        step(&b, 1);
    assert_false(ready(b.s, b.w[0], SYNC_STEPS, b.table));
    assert_int_equal(sync_point_after(&b, SYNC_STEPS - 1),
                     SYNC_POINT_PAST); /* no sync point: as ever */
    assert_int_equal(sync_point_after(&b, SYNC_STEPS), SYNC_POINT_EARLY);
    step(&b, 1);
    assert_int_equal(sync_point_after(&b, SYNC_STEPS), SYNC_POINT_EXACT);
    assert_true(ready(b.s, b.w[0], SYNC_STEPS, b.table));
    step(&b, 0);
    assert_int_equal(sync_point_after(&b, SYNC_STEPS), SYNC_POINT_PAST);
    bench_deinit(&b);
}

/* Who leaves, dies or never comes holds nobody up. */
static void the_wait_ends_with_the_awaited_worker(void **state)
{
    struct bench b;
    struct shard_push_result result;

    (void)state;
    for (int how = 0; how < 3; how++) {
        bench_init(&b, TABLE_SPEC_MODE_SSP, 9, 2);
        if (how == 2) {
            bench_deinit(&b);
            bench_init_shard(&b, SYNC_STEPS);
            b.w[0] = join(b.s, TABLE_SPEC_MODE_SSP, 9, 0, 2);
        }
        for (uint32_t i = 0; i < SYNC_STEPS; i++)
            step(&b, 0);
        assert_false(ready(b.s, b.w[0], SYNC_STEPS, b.table));
        assert_int_equal(try_push(b.s, b.w[0], make_step(&b, 0, SYNC_STEPS)).status, -EBUSY);
        if (how == 0) {
            membership_leave(shard_membership(b.s), b.w[1]);
        } else {
            uint64_t over_ms = (how == 1 ? LEASE_MS : JOIN_MS) + 1;
            struct worker *w;

            assert_int_equal(membership_find(shard_membership(b.s), "job", 0, 1, over_ms, &w),
                             0);
            assert_true(shard_advance(b.s, over_ms));
        }
        assert_true(ready(b.s, b.w[0], SYNC_STEPS, b.table));
        assert_int_equal(sync_point_after(&b, SYNC_STEPS), SYNC_POINT_EXACT);
        result = must_push(b.s, b.w[0], make_step(&b, 0, SYNC_STEPS));
        assert_int_equal(result.min_clock, SYNC_STEPS + 1);
        bench_deinit(&b);
    }
}

static void a_push_behind_a_sync_point_is_retried_and_changes_nothing(void **state)
{
    struct event_log *j = event_log_new();
    struct shard_push_result result;
    struct bench b;
    uint64_t version;

    (void)state;
    bench_init(&b, TABLE_SPEC_MODE_SSP, 9, 2);
    for (uint32_t i = 0; i < SYNC_STEPS; i++)
        step(&b, 0);
    shard_set_events(b.s, &j->sink);
    version = shard_version(b.s);
    for (int i = 0; i < 3; i++) {
        result = try_push(b.s, b.w[0], make_step(&b, 0, SYNC_STEPS));
        assert_int_equal(result.status, -EBUSY);
        assert_string_equal(
            result.text, "a push of clock 4 waits for the sync point at 4: worker 1 is at 0");
    }
    assert_int_equal(j->n, 0);
    assert_int_equal(shard_version(b.s), version);
    assert_int_equal(b.w[0]->last_seq, SYNC_STEPS);
    assert_int_equal(shard_counters(b.s)->pushes_refused, 0);
    /* What it says of itself counts on the push that is still to come. */
    assert_false(membership_advance_clock(b.w[0], SYNC_STEPS + 1));
    for (uint32_t i = 0; i < SYNC_STEPS; i++)
        step(&b, 1);
    assert_int_equal(sync_point_after(&b, SYNC_STEPS), SYNC_POINT_EXACT);
    (void)must_push(b.s, b.w[0], make_step(&b, 0, SYNC_STEPS));
    assert_int_equal(n_of_type(j, SHARD_EVENT_ADVANCE, 0), 0);
    shard_set_events(b.s, NULL);
    event_log_free(j);
    bench_deinit(&b);
}

/* It came back at a clock that other shards have, and asks nothing before it pushes. */
static void a_worker_that_skips_a_sync_point_is_moved_up_to_it_first(void **state)
{
    struct event_log *j = event_log_new();
    struct bench b;

    (void)state;
    bench_init(&b, TABLE_SPEC_MODE_SSP, 9, 2);
    for (uint32_t i = 0; i < SYNC_STEPS; i++)
        step(&b, 0);
    step(&b, 1);
    shard_set_events(b.s, &j->sink);
    assert_int_equal(try_push(b.s, b.w[0], make_step(&b, 0, SYNC_STEPS)).status, -EBUSY);
    (void)must_push(b.s, b.w[1], make_step(&b, 1, SYNC_STEPS + 1));
    assert_int_equal(j->n, 2);
    assert_int_equal(j->events[0]->e.type, SHARD_EVENT_ADVANCE);
    assert_int_equal(j->events[0]->e.advance.clock, SYNC_STEPS);
    assert_int_equal(j->events[1]->e.type, SHARD_EVENT_PUSH);
    (void)must_push(b.s, b.w[0], make_step(&b, 0, SYNC_STEPS));
    shard_set_events(b.s, NULL);
    event_log_free(j);
    bench_deinit(&b);
}

/* Also if its push was not acknowledged, and it was behind until now: two that came back would wait for each other. */
static void two_workers_that_skip_a_sync_point_do_not_wait_for_each_other(void **state)
{
    struct event_log *j = event_log_new();
    struct bench b;

    (void)state;
    bench_init(&b, TABLE_SPEC_MODE_SSP, 9, 2);
    shard_set_events(b.s, &j->sink);
    b.w[0]->is_behind = true;
    assert_int_equal(try_push(b.s, b.w[0], make_step(&b, 0, SYNC_STEPS + 1)).status, -EBUSY);
    assert_int_equal(j->n, 1);
    assert_int_equal(j->events[0]->e.type, SHARD_EVENT_ADVANCE);
    assert_int_equal(b.w[0]->clock, SYNC_STEPS);
    assert_int_equal(try_push(b.s, b.w[1], make_step(&b, 1, 2 * SYNC_STEPS)).status, -EBUSY);
    assert_int_equal(b.w[1]->clock, 2 * SYNC_STEPS);
    assert_int_equal(sync_point_after(&b, SYNC_STEPS), SYNC_POINT_EXACT);
    for (uint64_t clock = SYNC_STEPS + 1; clock < 2 * SYNC_STEPS; clock++)
        (void)must_push(b.s, b.w[0], make_step(&b, 0, clock));
    assert_int_equal(sync_point_after(&b, 2 * SYNC_STEPS), SYNC_POINT_EXACT);
    (void)must_push(b.s, b.w[1], make_step(&b, 1, 2 * SYNC_STEPS));
    shard_set_events(b.s, NULL);
    event_log_free(j);
    bench_deinit(&b);
}

/* --- at random --- */

/* Follows the events: what was true when min clock was at each sync point. */
struct monitor {
    struct shard *s;
    struct job *job;
    uint64_t next, n_advances; /* next: the next sync point */
    struct shard_events sink;
};

static int monitor_reserve(void *owner, const struct shard_event *event)
{
    (void)owner;
    (void)event;
    return 0;
}

/* To be asked between two calls, too: a push is reported before it ticks. */
static void check_sync_points(struct monitor *w)
{
    enter_shard();
    for (; job_min_clock(w->job) >= w->next; w->next += SYNC_STEPS)
        assert_int_equal(sync_point_of(w->s, "job", w->next - 1), SYNC_POINT_EXACT);
}

static void monitor_record(void *owner, const struct shard_event *event)
{
    struct monitor *w = owner;

    if (event->type == SHARD_EVENT_ADVANCE) {
        w->n_advances++;
        check_sync_points(w);
    }
    if (event->type == SHARD_EVENT_PUSH)
        assert_true(event->push.push->clock < w->next);
}

struct actor {
    uint64_t clock, incarnation;
    bool is_gone;
};

static void go_or_come(struct bench *b, struct actor *a, uint32_t rank, struct dice *dice)
{
    enter_shard();
    if (!a->is_gone && rank > 0 && roll(dice, 3) == 0) {
        membership_leave(shard_membership(b->s), b->w[rank]);
        (void)shard_advance(b->s, 0);
        a->is_gone = true;
    } else if (a->is_gone) {
        assert_ptr_equal(
            join_at(b->s, TABLE_SPEC_MODE_SSP, 3, rank, N_WORKERS, ++a->incarnation, 0),
            b->w[rank]);
        a->clock = b->w[rank]->clock + (roll(dice, 4) == 0 ? roll(dice, 3) : 0);
        a->is_gone = false;
    }
}

/* Now and then a step asks nothing. */
static bool try_step(struct bench *b, struct actor *a, uint32_t rank, struct dice *dice)
{
    bool asks = roll(dice, 5) > 0;
    int status;

    enter_shard();
    if (asks)
        (void)membership_advance_clock(b->w[rank], a->clock);
    if (asks && !ready(b->s, b->w[rank], a->clock, b->table))
        return false;
    status = try_push(b->s, b->w[rank], make_step(b, rank, a->clock)).status;
    assert_true(status == 0 || (status == -EBUSY && !asks));
    a->clock += status == 0;
    return status == 0;
}

static void at_random_every_sync_point_is_exact_and_a_worker_can_always_go_on(void **state)
{
    enum { N_EVENTS = 20000 };
    struct dice dice = dice_of_this_run("sync points");
    struct actor actors[N_WORKERS] = { { 0 } };
    struct monitor monitor = { .next = SYNC_STEPS };
    struct bench b;

    (void)state;
    bench_init(&b, TABLE_SPEC_MODE_SSP, 3, N_WORKERS);
    monitor.s = b.s;
    monitor.job = b.w[0]->job;
    monitor.sink = (struct shard_events){ &monitor, monitor_reserve, monitor_record };
    enter_shard();
    shard_set_events(b.s, &monitor.sink);
    for (uint32_t i = 0; i < N_WORKERS; i++)
        actors[i].incarnation = 1;
    for (uint64_t e = 0; e < N_EVENTS; e++) {
        uint32_t rank = (uint32_t)roll(&dice, N_WORKERS);
        bool any = false;

        if (roll(&dice, 50) == 0)
            go_or_come(&b, &actors[rank], rank, &dice);
        else if (!actors[rank].is_gone)
            any = try_step(&b, &actors[rank], rank, &dice);
        check_sync_points(&monitor);
        for (uint32_t i = 0; i < N_WORKERS && !any && e % 64 == 0; i++)
            any = !actors[i].is_gone && try_step(&b, &actors[i], i, &dice);
        check_sync_points(&monitor);
        assert_true(any || e % 64);
    }
    assert_true(monitor.next > 100 * SYNC_STEPS);
    assert_true(monitor.n_advances > 0);
    shard_set_events(b.s, NULL);
    bench_deinit(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pull_waits_for_the_bound_and_for_the_last_sync_point),
        cmocka_unit_test(an_assignment_of_a_later_step_ends_a_sync_point),
        cmocka_unit_test(a_pull_says_what_it_waits_for),
        cmocka_unit_test(no_pull_of_such_a_job_gets_by),
        cmocka_unit_test(other_jobs_have_no_sync_points),
        cmocka_unit_test(at_a_sync_point_the_state_is_exact_until_a_worker_goes_on),
        cmocka_unit_test(the_wait_ends_with_the_awaited_worker),
        cmocka_unit_test(a_push_behind_a_sync_point_is_retried_and_changes_nothing),
        cmocka_unit_test(a_worker_that_skips_a_sync_point_is_moved_up_to_it_first),
        cmocka_unit_test(two_workers_that_skip_a_sync_point_do_not_wait_for_each_other),
        cmocka_unit_test(at_random_every_sync_point_is_exact_and_a_worker_can_always_go_on),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
