/* Lock-step clocks that are combined in slices, very small ones, while everything else goes on: against a reference
 * that combines each at once, at the moment at which it takes effect; and made again from the events. */
#include <errno.h>

#include "events_fixture.h"
#include "server/core/combine.h"
#include "server/core/lock_step.h"
#include "server/core/push_apply.h"

enum { N_TABLES = 3, N_WORKERS = 3, N_KEYS = 4000, DIM_MAX = 300 };

static const struct {
    uint32_t dim, n_keys, n_large;
    enum table_spec_optim optim;
    enum table_spec_storage storage;
    float clip_norm;
} kinds[N_TABLES] = {
    { 7, 4000, 3000, TABLE_SPEC_ADAM, TABLE_SPEC_FP32, 0 },
    { 300, 800, 500, TABLE_SPEC_ADAGRAD, TABLE_SPEC_BF16, 0.7f },
    { 64, 900, 700, TABLE_SPEC_FTRL, TABLE_SPEC_FP16, 0 },
};

struct side {
    struct shard *s;
    struct worker *bsp[N_WORKERS], *async;
};

struct pair {
    struct dice dice;
    struct side sliced, whole;
    bool may_combine; /* the whole one */
    struct shard_events waits;
    struct event_log *log;          /* of the one in slices */
    uint64_t incarnations, n_whole; /* clocks of the whole one */
    uint64_t n_slices, n_half_done, n_read, n_overtaken, n_begun_again, n_clocks;
};

static int on_reserve(void *owner, const struct shard_event *event)
{
    const struct pair *p = owner;

    return event->type == SHARD_EVENT_COMBINE && !p->may_combine ? -ENOMEM : 0;
}

static void on_record(void *owner, const struct shard_event *event)
{
    struct pair *p = owner;

    p->n_whole += event->type == SHARD_EVENT_COMBINE;
}

/* What took effect in slices is combined at once now. */
static void follow(struct pair *p)
{
    enter_shard();
    p->may_combine = true;
    while (p->n_whole < n_of_type(p->log, SHARD_EVENT_COMBINE, 0))
        assert_true(bsp_release_clock(p->whole.s));
    p->may_combine = false;
    assert_int_equal(shard_version(p->sliced.s), shard_version(p->whole.s));
}

static struct worker *join_side(struct side *side, const char *job, uint32_t rank,
                                uint64_t incarnation)
{
    bool is_bsp = job[0] == 'b';
    struct membership_join join = { .job = job,
                                    .rank = rank,
                                    .n_workers = is_bsp ? N_WORKERS : 1,
                                    .incarnation = incarnation,
                                    .mode =
                                        is_bsp ? TABLE_SPEC_MODE_BSP : TABLE_SPEC_MODE_ASYNC };
    struct worker *w;
    struct err err;

    enter_shard();
    assert_int_equal(membership_join(shard_membership(side->s), &join, 0, &w, &err), 0);
    return w;
}

static uint32_t pick_keys(struct pair *p, uint32_t table, uint32_t n_wanted, uint64_t *keys)
{
    uint64_t n_keys = kinds[table].n_keys;
    uint32_t n = 0;

    for (uint64_t key = 0; key < n_keys && n < n_wanted; key++)
        if (roll(&p->dice, n_keys - key) < n_wanted - n)
            keys[n++] = key * 3;
    return n;
}

static void add_random(struct pair *p, struct push *push, uint32_t table, uint32_t n_wanted)
{
    static const enum codec_id codecs[] = { CODEC_FP32, CODEC_BF16, CODEC_INT8, CODEC_TOPK };
    static uint64_t keys[N_KEYS];
    static float values[500 * 300];
    uint32_t dim = kinds[table].dim, n = pick_keys(p, table, n_wanted, keys);

    assert_true(n * dim <= COUNT_OF(values));
    for (uint32_t i = 0; i < n * dim; i++)
        values[i] = roll_float(&p->dice);
    add_section(push, table, SECTION_GRADIENT, codecs[roll(&p->dice, COUNT_OF(codecs))], dim,
                keys, n, values);
}

static void push_whole(struct pair *p, struct worker *w, const struct push *push)
{
    struct shard_push_result result;

    enter_shard();
    assert_int_equal(shard_push(p->whole.s, w, push, 0, &result), 0);
}

/* To its end but for the clock that it completes. */
static void push_in_slices(struct pair *p, struct worker *w, const struct push *push)
{
    struct shard_push_result result;
    enum shard_push_state state;
    int status = 0;

    enter_shard();
    for (;;) {
        status = shard_push_begin(p->sliced.s, w, push, 0, &result, &state);
        if (state != SHARD_PUSH_BUSY)
            break;
        (void)bsp_more(p->sliced.s, 50000);
        follow(p);
    }
    if (state == SHARD_PUSH_RUNNING) {
        shard_finish_push(p->sliced.s);
        status = shard_push_more(p->sliced.s, 0, &result, &state);
    }
    assert_int_equal(state, SHARD_PUSH_DONE);
    assert_int_equal(status, 0);
}

static void push_to_both(struct pair *p, struct worker *sliced, struct worker *whole,
                         const struct push *push)
{
    push_in_slices(p, sliced, push);
    push_whole(p, whole, push);
    follow(p);
}

/* Of a random worker; one may be a clock ahead. */
static void push_bsp(struct pair *p)
{
    uint32_t rank = (uint32_t)roll(&p->dice, N_WORKERS);
    struct worker *w = p->sliced.bsp[rank];
    struct push *push;

    if (w->state != WORKER_LIVE || w->clock > job_min_clock(w->job) + 1)
        return;
    push = next_push(w, w->clock);
    push->tick = roll(&p->dice, 3) != 0;
    push->n_samples = (uint32_t)roll(&p->dice, 5);
    for (uint32_t table = 0; table < N_TABLES; table++)
        if (roll(&p->dice, 3))
            add_random(p, push, table, roll(&p->dice, 3) ? kinds[table].n_large : 20);
    push_to_both(p, w, p->whole.bsp[rank], push);
    free_push(push);
}

/* Another job's, which overtakes. */
static void push_async(struct pair *p)
{
    struct push *push = next_push(p->sliced.async, 0);

    add_random(p, push, (uint32_t)roll(&p->dice, N_TABLES), 1 + (uint32_t)roll(&p->dice, 300));
    p->n_overtaken += push_apply_is_under_way(p->sliced.s);
    push_to_both(p, p->sliced.async, p->whole.async, push);
    free_push(push);
}

/* A worker that is counted no more, or comes back. */
static void leave_or_join(struct pair *p)
{
    uint32_t rank = (uint32_t)roll(&p->dice, N_WORKERS);
    bool is_live = p->sliced.bsp[rank]->state == WORKER_LIVE;
    bool was_combining = p->sliced.s->large_clock->queue != NULL;

    enter_shard();
    if (is_live) {
        membership_leave(shard_membership(p->sliced.s), p->sliced.bsp[rank]);
        membership_leave(shard_membership(p->whole.s), p->whole.bsp[rank]);
    } else {
        p->incarnations++;
        p->sliced.bsp[rank] = join_side(&p->sliced, "bsp", rank, p->incarnations);
        p->whole.bsp[rank] = join_side(&p->whole, "bsp", rank, p->incarnations);
    }
    (void)shard_advance(p->sliced.s, 0);
    (void)shard_advance(p->whole.s, 0);
    follow(p);
    p->n_begun_again += was_combining;
}

static void read_both(struct pair *p)
{
    uint32_t table = (uint32_t)roll(&p->dice, N_TABLES), dim = kinds[table].dim;
    static uint64_t keys[N_KEYS];
    static float got[500 * 300], want[500 * 300];
    uint32_t n = pick_keys(p, table, 1 + (uint32_t)roll(&p->dice, 120), keys);

    enter_shard();
    p->n_read += push_apply_is_under_way(p->sliced.s);
    read_weights(p->sliced.s, table, keys, n, got);
    read_weights(p->whole.s, table, keys, n, want);
    assert_memory_equal(got, want, n * dim * sizeof *got);
}

static void slice(struct pair *p)
{
    const struct worker *w = p->sliced.bsp[roll(&p->dice, N_WORKERS)];

    enter_shard();
    if (lock_step_is_combining(p->sliced.s))
        p->n_slices++;
    if (p->sliced.s->large_clock->job)
        assert_false(ready(p->sliced.s, w, w->clock, 0)); /* its own pulls wait */
    (void)bsp_more(p->sliced.s, 1 + roll(&p->dice, roll(&p->dice, 4) ? 3000 : 200000));
    follow(p);
}

static void scan(struct pair *p)
{
    struct kept_scan w;
    bool half_done = push_apply_is_under_way(p->sliced.s);
    int status;

    enter_shard();
    status = try_scan_begin(p->sliced.s, SNAPSHOT_SCAN_FULL, p->log->n, &w);
    assert_int_equal(status, half_done ? -EAGAIN : 0);
    p->n_half_done += half_done;
    if (status)
        return;
    scan_end(p->sliced.s, &w, SNAPSHOT_SCAN_DROPPED);
    kept_scan_free(&w);
}

/* And from the log, whose clock is whole. */
static void assert_same(struct pair *p)
{
    const struct shard_config config = {
        .n_shards = 1, .lease_ms = LEASE_MS, .join_ms = JOIN_MS, .park_ms = 1000
    };
    const size_t n_before = p->log->n;
    struct shard *again;

    enter_shard();
    assert_int_equal(try_restore(&config, NULL, 0, p->log, n_before, 0, &again), 0);
    bsp_finish(p->sliced.s);
    follow(p);
    if (p->log->n > n_before) { /* the last slice had time for the next clock, too */
        shard_free(again);
        assert_int_equal(try_restore(&config, NULL, 0, p->log, p->log->n, 0, &again), 0);
    }
    assert_same_shard(p->sliced.s, p->whole.s);
    assert_same_shard(p->sliced.s, again);
    shard_free(again);
}

static void set_up_side(struct pair *p, struct side *side)
{
    side->s = make_shard(0, 1, 0);
    for (uint32_t i = 0; i < N_TABLES; i++) {
        struct table_spec spec = sparse_spec("", kinds[i].dim, kinds[i].optim);

        snprintf(spec.name, sizeof spec.name, "t%u", i);
        spec.storage = kinds[i].storage;
        spec.clip_norm = kinds[i].clip_norm;
        if (side == &p->sliced && i == 0)
            shard_set_events(side->s, &p->log->sink);
        assert_int_equal(make_table(side->s, &spec), i);
    }
    for (uint32_t rank = 0; rank < N_WORKERS; rank++)
        side->bsp[rank] = join_side(side, "bsp", rank, 1);
    side->async = join_side(side, "async", 0, 1);
}

static void run(struct pair *p, uint32_t n_steps)
{
    for (uint32_t i = 0; i < n_steps; i++) {
        uint64_t what = roll(&p->dice, 100);

        if (what < 6)
            push_bsp(p);
        else if (what < 14)
            push_async(p);
        else if (what < 15)
            leave_or_join(p);
        else if (what < 25)
            read_both(p);
        else if (what < 27)
            scan(p);
        else
            slice(p);
        if (i % 500 == 499)
            assert_same(p);
    }
}

static void slices_end_in_the_bits_of_a_clock_combined_at_once(void **state)
{
    struct pair p = { .dice = dice_of_this_run("clocks in slices"), .incarnations = 1 };

    (void)state;
    enter_shard();
    p.log = event_log_new();
    p.waits = (struct shard_events){ &p, on_reserve, on_record };
    set_up_side(&p, &p.sliced);
    set_up_side(&p, &p.whole);
    shard_set_events(p.whole.s, &p.waits);
    run(&p, 6000);
    p.n_clocks = n_of_type(p.log, SHARD_EVENT_COMBINE, 0);
    print_message(
        "%llu clocks, %llu slices; under way: %llu scans refused, %llu reads, %llu pushes; "
        "%llu joins and leaves before the effect\n",
        (unsigned long long)p.n_clocks, (unsigned long long)p.n_slices,
        (unsigned long long)p.n_half_done, (unsigned long long)p.n_read,
        (unsigned long long)p.n_overtaken, (unsigned long long)p.n_begun_again);
    assert_true(p.n_clocks > 10 && p.n_slices > 300 && p.n_read > 10 && p.n_overtaken > 10 &&
                p.n_half_done > 0);
    assert_same(&p);
    shard_free(p.sliced.s);
    shard_free(p.whole.s);
    event_log_free(p.log);
}

/* --- one clock --- */

enum { WIDE = 512, N_WIDE = 600 };

static struct push *wide_push(const struct worker *w, uint64_t clock, uint64_t first)
{
    struct push *push = next_push(w, clock);
    static uint64_t keys[N_WIDE];
    static float values[N_WIDE * WIDE];

    push->tick = true;
    push->n_samples = 1;
    for (uint64_t i = 0; i < N_WIDE; i++)
        keys[i] = first + i;
    for (uint32_t i = 0; i < N_WIDE * WIDE; i++)
        values[i] = (float)(first + i % 13);
    add_gradient(push, 0, WIDE, keys, N_WIDE, values);
    return push;
}

struct one {
    struct shard *s;
    struct worker *w[2];
    struct event_log *log;
};

/* Of two workers' pushes the first is held. */
static void hold_one(struct one *o)
{
    struct table_spec spec = sparse_spec("wide", WIDE, TABLE_SPEC_SGD);

    enter_shard();
    o->s = make_shard(0, 1, 0);
    o->log = event_log_new();
    shard_set_events(o->s, &o->log->sink);
    make_table(o->s, &spec);
    for (uint32_t rank = 0; rank < 2; rank++)
        o->w[rank] = join(o->s, TABLE_SPEC_MODE_BSP, 0, rank, 2);
    (void)must_push(o->s, o->w[0], wide_push(o->w[0], 0, 0));
}

static void end_one(struct one *o)
{
    enter_shard();
    shard_free(o->s);
    event_log_free(o->log);
}

/* The push that completes a clock is answered when all of its rows have changed. */
static void the_last_push_waits_for_its_clock(void **state)
{
    struct one o;
    struct push *push, *next;
    struct shard_push_result result, other;
    enum shard_push_state how, how_other;
    uint32_t n_slices = 0;

    (void)state;
    enter_shard();
    hold_one(&o);
    push = wide_push(o.w[1], 0, 300);
    next = wide_push(o.w[0], 1, 0);
    assert_int_equal(shard_push_begin(o.s, o.w[1], push, 0, &result, &how), 0);
    for (; how == SHARD_PUSH_RUNNING; n_slices++) {
        assert_int_equal(table_n_rows(shard_table(o.s, 0)->rows) > 0,
                         o.s->large_clock->phase >= COMBINE_APPLY);
        assert_int_equal(shard_push_begin(o.s, o.w[0], next, 0, &other, &how_other), 0);
        assert_int_equal(how_other, SHARD_PUSH_BUSY);
        assert_int_equal(shard_push_more(o.s, 0, &result, &how), 0);
    }
    assert_true(n_slices > 5);
    assert_int_equal(result.status, 0);
    assert_int_equal(result.min_clock, 1);
    assert_int_equal(result.version, 1);
    assert_int_equal(table_n_rows(shard_table(o.s, 0)->rows), 900);
    assert_true(ready(o.s, o.w[0], 1, 0));
    assert_true(lock_step_has_combined(o.s));
    assert_false(lock_step_has_combined(o.s));
    while (lock_step_is_combining(o.s))
        lock_step_more(o.s);
    assert_int_equal(o.s->held_bytes, 0);
    free_push(push);
    free_push(next);
    end_one(&o);
}

/* So it is if it is small, and others' are large. */
static void a_small_last_push_waits_as_well(void **state)
{
    const uint64_t key = 5;
    const float values[WIDE] = { 0 };
    struct one o;
    struct push *push;
    struct shard_push_result result;
    enum shard_push_state how;

    (void)state;
    enter_shard();
    hold_one(&o);
    push = next_push(o.w[1], 0);
    push->tick = true;
    add_gradient(push, 0, WIDE, &key, 1, values);
    assert_int_equal(shard_push_begin(o.s, o.w[1], push, 0, &result, &how), 0);
    assert_int_equal(how, SHARD_PUSH_RUNNING);
    while (how == SHARD_PUSH_RUNNING)
        assert_int_equal(shard_push_more(o.s, 0, &result, &how), 0);
    assert_int_equal(table_n_rows(shard_table(o.s, 0)->rows), N_WIDE);
    free_push(push);
    end_one(&o);
}

/* Before it takes effect: a worker that joined is not at its end. */
static void a_clock_that_is_complete_no_more_is_begun_again(void **state)
{
    struct one o;
    struct worker *w;

    (void)state;
    enter_shard();
    hold_one(&o);
    membership_leave(shard_membership(o.s), o.w[1]);
    (void)shard_advance(o.s, 0);
    assert_true(lock_step_is_combining(o.s));
    /* As if it had joined at clock 0. */
    w = join_at(o.s, TABLE_SPEC_MODE_BSP, 0, 1, 2, 2, 0);
    w->clock = 0;
    while (lock_step_is_combining(o.s))
        lock_step_more(o.s);
    assert_int_equal(shard_version(o.s), 0);
    assert_non_null(o.s->queues);
    membership_leave(shard_membership(o.s), w);
    (void)shard_advance(o.s, 0);
    while (lock_step_is_combining(o.s))
        lock_step_more(o.s);
    assert_int_equal(shard_version(o.s), 1);
    assert_null(o.s->queues);
    assert_int_equal(table_n_rows(shard_table(o.s, 0)->rows), N_WIDE);
    end_one(&o);
}

/* Tables change, the daemon stops. */
static void what_is_under_way_can_be_ended_at_once(void **state)
{
    struct one o;

    (void)state;
    for (uint32_t n = 0; n < 12; n++) {
        enter_shard();
        hold_one(&o);
        membership_leave(shard_membership(o.s), o.w[1]);
        (void)shard_advance(o.s, 0);
        for (uint32_t i = 0; i < n; i++)
            (void)bsp_more(o.s, 100000);
        lock_step_finish(o.s);
        assert_false(lock_step_is_combining(o.s));
        assert_int_equal(shard_version(o.s), 1);
        assert_int_equal(o.s->held_bytes, 0);
        assert_int_equal(table_n_rows(shard_table(o.s, 0)->rows), N_WIDE);
        assert_int_equal(n_of_type(o.log, SHARD_EVENT_COMBINE, 0), 1);
        end_one(&o);
    }
}

/* A push that comes while a clock gives its place back is not refused for want of it. */
static void place_that_a_clock_gives_back_is_waited_for(void **state)
{
    struct one o;
    struct push *push;
    struct shard_push_result result;
    enum shard_push_state how;

    (void)state;
    enter_shard();
    hold_one(&o);
    membership_leave(shard_membership(o.s), o.w[1]);
    (void)shard_advance(o.s, 0);
    assert_true(lock_step_is_combining(o.s));
    push = next_push(o.w[0], 1);
    add_gradient(push, 0, WIDE, (const uint64_t[]){ 0 }, 1, (const float[WIDE]){ 0 });
    o.s->held_bytes += BSP_HELD_BYTES_MAX - 1000000;
    assert_int_equal(shard_push_begin(o.s, o.w[0], push, 0, &result, &how), -ENOMEM);
    assert_non_null(strstr(result.text, "when the clock before is combined"));
    o.s->held_bytes -= BSP_HELD_BYTES_MAX - 1000000;
    while (lock_step_is_combining(o.s))
        lock_step_more(o.s);
    assert_int_equal(shard_push_begin(o.s, o.w[0], push, 0, &result, &how), 0);
    free_push(push);
    end_one(&o);
}

#ifdef PS_FAULTS
static void without_memory_it_is_as_it_was(void **state)
{
    struct one o;
    uint32_t n_failed = 0;

    (void)state;
    enter_shard();
    for (long k = 0;; k++) {
        hold_one(&o);
        membership_leave(shard_membership(o.s), o.w[1]);
        memory_fail_after(k);
        (void)shard_advance(o.s, 0);
        memory_fail_after(-1);
        if (lock_step_is_combining(o.s))
            break;
        n_failed++;
        assert_int_equal(shard_version(o.s), 0);
        assert_true(o.s->held_bytes > 0);
        assert_int_equal(n_of_type(o.log, SHARD_EVENT_COMBINE, 0), 0);
        assert_true(bsp_is_behind(o.s, o.w[0]->job));
        end_one(&o);
    }
    assert_true(n_failed >= 4);
    /* Its event finds no space at its effect. */
    o.log->n_reserves_left = 0;
    while (lock_step_is_combining(o.s))
        lock_step_more(o.s);
    assert_int_equal(shard_version(o.s), 0);
    o.log->n_reserves_left = -1;
    (void)shard_advance(o.s, 0);
    while (lock_step_is_combining(o.s))
        lock_step_more(o.s);
    assert_int_equal(shard_version(o.s), 1);
    end_one(&o);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_end_in_the_bits_of_a_clock_combined_at_once),
        cmocka_unit_test(the_last_push_waits_for_its_clock),
        cmocka_unit_test(a_small_last_push_waits_as_well),
        cmocka_unit_test(a_clock_that_is_complete_no_more_is_begun_again),
        cmocka_unit_test(what_is_under_way_can_be_ended_at_once),
        cmocka_unit_test(place_that_a_clock_gives_back_is_waited_for),
#ifdef PS_FAULTS
        cmocka_unit_test(without_memory_it_is_as_it_was),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
