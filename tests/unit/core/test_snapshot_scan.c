/* Scans: what they read while rows change, come and go, and what a delta has of it. */
#include <errno.h>

#include "events_fixture.h"
#include "server/core/lock_step.h"
#include "server/core/sync_point.h"

enum { DIM = 8, N_KEYS = 2000 };

struct load {
    struct shard *s;
    struct worker *w;
    uint32_t table;
    uint64_t clock;
};

static struct load load_new(enum table_spec_mode mode, const struct table_spec_limits *limits)
{
    struct load l = { .s = make_shard(0, 1, 0) };
    struct table_spec spec = sparse_spec("t", DIM, TABLE_SPEC_ADAGRAD);

    if (limits)
        spec.limits = *limits;
    l.table = make_table(l.s, &spec);
    l.w = join(l.s, mode, 0, 0, 1);
    return l;
}

/* One gradient for each of n keys from `first` on. */
static void push_keys(struct load *l, uint64_t first, uint32_t n)
{
    static uint64_t keys[N_KEYS];
    static float values[N_KEYS * DIM];
    struct push *push = next_push(l->w, l->clock++);

    assert_true(n <= N_KEYS);
    for (uint32_t i = 0; i < n; i++)
        keys[i] = first + i;
    for (uint32_t i = 0; i < n * DIM; i++)
        values[i] = 0.25f;
    add_gradient(push, l->table, DIM, keys, n, values);
    (void)must_push(l->s, l->w, push);
}

static void begin(struct load *l, enum snapshot_scan_mode mode, struct kept_scan *ret)
{
    assert_int_equal(try_scan_begin(l->s, mode, 0, ret), 0);
}

static void scan_all(struct load *l, struct kept_scan *w)
{
    while (!scan_on(l->s, w, SNAPSHOT_SCAN_BYTES))
        ;
}

static uint64_t n_items(const struct kept_scan *w, enum snapshot_scan_what what)
{
    uint64_t n = 0;

    for (size_t i = 0; i < w->n_slices; i++)
        n += w->slices[i].slice.what == what ? w->slices[i].slice.n_items : 0;
    return n;
}

static void scan_kept(struct load *l, enum snapshot_scan_mode mode, struct kept_scan *ret)
{
    begin(l, mode, ret);
    scan_all(l, ret);
    scan_end(l->s, ret, SNAPSHOT_SCAN_KEPT);
}

static void a_full_scan_reads_every_row_once_where_nothing_happens(void **state)
{
    struct load l = load_new(TABLE_SPEC_MODE_ASYNC, NULL);
    struct kept_scan w;
    struct shard *again;
    struct event_log *none = event_log_new();

    (void)state;
    push_keys(&l, 0, 1500);
    scan_kept(&l, SNAPSHOT_SCAN_FULL, &w);
    assert_int_equal(n_items(&w, SNAPSHOT_SCAN_ROWS), 1500);
    assert_int_equal(n_items(&w, SNAPSHOT_SCAN_GONE), 0);
    assert_int_equal(w.facts.version, 1);
    assert_int_equal(try_restore(&l.s->config, &w, 1, none, 0, 5, &again), 0);
    assert_same_shard(l.s, again);
    shard_free(again);
    kept_scan_free(&w);
    event_log_free(none);
    shard_free(l.s);
}

static void a_delta_has_the_rows_that_changed_and_nothing_else(void **state)
{
    struct load l = load_new(TABLE_SPEC_MODE_ASYNC, NULL);
    struct kept_scan w;

    (void)state;
    push_keys(&l, 0, 1500);
    assert_false(snapshot_scan_may_be_delta(l.s));
    scan_kept(&l, SNAPSHOT_SCAN_FULL, &w);
    kept_scan_free(&w);
    assert_true(snapshot_scan_may_be_delta(l.s));
    push_keys(&l, 100, 15);
    scan_kept(&l, SNAPSHOT_SCAN_DELTA, &w);
    assert_int_equal(n_items(&w, SNAPSHOT_SCAN_ROWS), 15);
    assert_int_equal(w.facts.base, 1);
    assert_int_equal(w.facts.version, 2);
    kept_scan_free(&w);
    scan_kept(&l, SNAPSHOT_SCAN_DELTA, &w);
    assert_int_equal(n_items(&w, SNAPSHOT_SCAN_ROWS), 0);
    kept_scan_free(&w);
    shard_free(l.s);
}

static void a_delta_names_the_keys_that_went(void **state)
{
    const struct table_spec_limits limits = { .idle_clocks = 4 };
    struct load l = load_new(TABLE_SPEC_MODE_ASYNC, &limits);
    struct kept_scan w;

    (void)state;
    push_keys(&l, 0, 50);
    scan_kept(&l, SNAPSHOT_SCAN_FULL, &w);
    kept_scan_free(&w);
    for (int i = 0; i < 20; i++)
        push_keys(&l, 40, 20);
    enter_shard();
    for (int i = 0; i < 4; i++)
        (void)shard_advance(l.s, 0);
    assert_int_equal(shard_table(l.s, l.table)->rows_idle, 40);
    scan_kept(&l, SNAPSHOT_SCAN_DELTA, &w);
    assert_int_equal(n_items(&w, SNAPSHOT_SCAN_GONE), 40);
    assert_int_equal(n_items(&w, SNAPSHOT_SCAN_ROWS), 20);
    kept_scan_free(&w);
    scan_kept(&l, SNAPSHOT_SCAN_DELTA, &w);
    assert_int_equal(n_items(&w, SNAPSHOT_SCAN_GONE), 0);
    kept_scan_free(&w);
    shard_free(l.s);
}

static void after_a_scan_that_was_dropped_comes_a_full_one(void **state)
{
    struct load l = load_new(TABLE_SPEC_MODE_ASYNC, NULL);
    struct kept_scan w;

    (void)state;
    push_keys(&l, 0, 10);
    scan_kept(&l, SNAPSHOT_SCAN_FULL, &w);
    kept_scan_free(&w);
    begin(&l, SNAPSHOT_SCAN_DELTA, &w);
    scan_end(l.s, &w, SNAPSHOT_SCAN_DROPPED);
    assert_false(snapshot_scan_may_be_delta(l.s));
    assert_int_equal(try_scan_begin(l.s, SNAPSHOT_SCAN_DELTA, 0, &w), -EINVAL);
    scan_kept(&l, SNAPSHOT_SCAN_FULL, &w);
    kept_scan_free(&w);
    assert_true(snapshot_scan_may_be_delta(l.s));
    shard_free(l.s);
}

/* More keys than are noted: 2^20 of them. */
static void when_too_many_rows_went_no_delta_can_be(void **state)
{
    const struct table_spec_limits limits = { .victims = TABLE_SPEC_VICTIMS_OLDEST,
                                              .max_bytes = 512 << 10 };
    struct load l = load_new(TABLE_SPEC_MODE_ASYNC, &limits);
    struct kept_scan w;

    (void)state;
    push_keys(&l, 0, 10);
    scan_kept(&l, SNAPSHOT_SCAN_FULL, &w);
    kept_scan_free(&w);
    for (uint64_t first = 0; shard_table(l.s, l.table)->rows_evicted < 1 << 20;
         first += N_KEYS) {
        assert_true(snapshot_scan_may_be_delta(l.s));
        push_keys(&l, first, N_KEYS);
    }
    push_keys(&l, 1 << 30, N_KEYS);
    assert_false(snapshot_scan_may_be_delta(l.s));
    scan_kept(&l, SNAPSHOT_SCAN_FULL, &w);
    kept_scan_free(&w);
    assert_true(snapshot_scan_may_be_delta(l.s));
    shard_free(l.s);
}

static void no_scan_begins_in_a_push_that_is_half_done(void **state)
{
    struct load l = load_new(TABLE_SPEC_MODE_ASYNC, NULL);
    struct table_spec wide = sparse_spec("wide", 1024, TABLE_SPEC_SGD);
    struct push *push = next_push(l.w, 0);
    static uint64_t keys[600];
    static float values[600 * 1024];
    struct shard_push_result result;
    enum shard_push_state how;
    struct kept_scan w;
    uint32_t id = make_table(l.s, &wide), n_refused = 0;

    (void)state;
    for (uint64_t i = 0; i < 600; i++)
        keys[i] = i;
    add_gradient(push, id, 1024, keys, 600, values);
    enter_shard();
    assert_int_equal(shard_push_begin(l.s, l.w, push, 0, &result, &how), 0);
    while (how == SHARD_PUSH_RUNNING) {
        bool half_done = l.s->large.phase == PUSH_APPLY;
        int status = try_scan_begin(l.s, SNAPSHOT_SCAN_FULL, 0, &w);

        assert_int_equal(status, half_done ? -EAGAIN : 0);
        n_refused += half_done;
        if (!status)
            scan_end(l.s, &w, SNAPSHOT_SCAN_DROPPED);
        assert_int_equal(shard_push_more(l.s, 0, &result, &how), 0);
    }
    assert_true(n_refused > 0);
    free_push(push);
    shard_free(l.s);
}

/* Two workers of a job in lock step. */
static void join_pair(struct load *l, struct worker *ret[2])
{
    struct err err;

    enter_shard();
    for (uint32_t rank = 0; rank < 2; rank++)
        assert_int_equal(
            membership_join(shard_membership(l->s),
                            &(struct membership_join){ .job = "bsp",
                                                       .rank = rank,
                                                       .n_workers = 2,
                                                       .incarnation = 1,
                                                       .mode = TABLE_SPEC_MODE_BSP },
                            0, &ret[rank], &err),
            0);
}

static void push_wide(struct load *l, struct worker *worker, uint32_t id, uint64_t clock)
{
    static uint64_t keys[400];
    static float values[400 * 512];
    struct push *push = next_push(worker, clock);

    for (uint64_t i = 0; i < 400; i++)
        keys[i] = 3 * i;
    for (uint32_t i = 0; i < 400 * 512; i++)
        values[i] = (float)(i % 7 + clock);
    add_gradient(push, id, 512, keys, 400, values);
    (void)must_push(l->s, worker, push);
}

/* 2.4 MiB of them: in pieces. Meanwhile they are combined, and gone from their queue. */
static void held_pushes_are_read_after_their_clock_was_combined(void **state)
{
    struct load l = load_new(TABLE_SPEC_MODE_ASYNC, NULL);
    struct table_spec wide = sparse_spec("wide", 512, TABLE_SPEC_SGD);
    struct event_log *j = event_log_new();
    struct worker *pair[2];
    struct shard *again;
    struct kept_scan w;
    uint32_t id = make_table(l.s, &wide);

    (void)state;
    join_pair(&l, pair);
    for (uint32_t clock = 0; clock < 3; clock++)
        push_wide(&l, pair[0], id, clock);
    shard_set_events(l.s, &j->sink);
    begin(&l, SNAPSHOT_SCAN_FULL, &w);
    for (uint32_t clock = 0; clock < 3; clock++) {
        push_wide(&l, pair[1], id, clock);
        assert_false(scan_on(l.s, &w, SNAPSHOT_SCAN_BYTES));
    }
    assert_null(l.s->queues);
    scan_all(&l, &w);
    scan_end(l.s, &w, SNAPSHOT_SCAN_KEPT);
    assert_true(w.facts.state_bytes > 3 * 400 * 512 * sizeof(float));
    assert_int_equal(n_of_type(j, SHARD_EVENT_COMBINE, 0), 3);
    assert_int_equal(try_restore(&l.s->config, &w, 1, j, j->n, 0, &again), 0);
    assert_same_shard(l.s, again);
    shard_free(again);
    kept_scan_free(&w);
    event_log_free(j);
    shard_free(l.s);
}

static void a_sync_point_in_lock_step_is_exact_from_clock_to_clock(void **state)
{
    struct load l = load_new(TABLE_SPEC_MODE_ASYNC, NULL);
    struct table_spec wide = sparse_spec("wide", 512, TABLE_SPEC_SGD);
    struct worker *pair[2];
    uint32_t id = make_table(l.s, &wide);

    (void)state;
    join_pair(&l, pair);
    assert_int_equal(sync_point_of(l.s, "nobody", 0), SYNC_POINT_EARLY);
    push_wide(&l, pair[0], id, 0);
    push_wide(&l, pair[0], id, 1);
    assert_int_equal(sync_point_of(l.s, "bsp", 0), SYNC_POINT_EARLY);
    push_wide(&l, pair[1], id, 0);
    assert_int_equal(sync_point_of(l.s, "bsp", 0), SYNC_POINT_EXACT);
    assert_int_equal(sync_point_of(l.s, "bsp", 1), SYNC_POINT_EARLY);
    push_wide(&l, pair[1], id, 1);
    assert_int_equal(sync_point_of(l.s, "bsp", 0), SYNC_POINT_PAST);
    assert_int_equal(sync_point_of(l.s, "bsp", 1), SYNC_POINT_EXACT);
    shard_free(l.s);
}

#ifdef PS_FAULTS
/* The clock is complete, but there was no memory to combine it. */
static void a_clock_without_memory_is_no_sync_point_yet(void **state)
{
    struct load l = load_new(TABLE_SPEC_MODE_ASYNC, NULL);
    struct table_spec wide = sparse_spec("wide", 512, TABLE_SPEC_SGD);
    struct event_log *j = event_log_new();
    struct worker *pair[2];
    uint32_t id = make_table(l.s, &wide);

    (void)state;
    join_pair(&l, pair);
    shard_set_events(l.s, &j->sink);
    push_wide(&l, pair[0], id, 0);
    j->n_reserves_left = 1; /* the push has its place, the clock has none */
    push_wide(&l, pair[1], id, 0);
    assert_int_equal(sync_point_of(l.s, "bsp", 0), SYNC_POINT_EARLY);
    assert_int_equal(n_of_type(j, SHARD_EVENT_COMBINE, 0), 0);
    enter_shard();
    assert_false(shard_advance(l.s, 0)); /* in slices */
    assert_int_equal(sync_point_of(l.s, "bsp", 0), SYNC_POINT_EARLY);
    while (lock_step_is_combining(l.s))
        lock_step_more(l.s);
    assert_true(lock_step_has_combined(l.s));
    assert_int_equal(sync_point_of(l.s, "bsp", 0), SYNC_POINT_EXACT);
    assert_int_equal(n_of_type(j, SHARD_EVENT_COMBINE, 0), 1);
    shard_free(l.s);
    event_log_free(j);
}

static void a_scan_that_finds_no_memory_leaves_no_trace(void **state)
{
    struct load l = load_new(TABLE_SPEC_MODE_ASYNC, NULL);
    struct worker *pair[2];
    struct table_spec wide = sparse_spec("wide", 512, TABLE_SPEC_SGD);
    uint32_t id = make_table(l.s, &wide);
    struct kept_scan w;
    long k = 0;

    (void)state;
    join_pair(&l, pair);
    push_wide(&l, pair[0], id, 0);
    for (int status = -ENOMEM; status; k++) {
        memory_fail_after(k);
        status = try_scan_begin(l.s, SNAPSHOT_SCAN_FULL, 0, &w);
        memory_fail_after(-1);
        assert_true(status == 0 || status == -ENOMEM);
        assert_int_equal(l.s->queues->first->n_users, status ? 1 : 2);
        assert_true(!l.s->scan == (status != 0));
    }
    assert_true(k > 3);
    scan_end(l.s, &w, SNAPSHOT_SCAN_DROPPED);
    kept_scan_free(&w);
    assert_int_equal(l.s->queues->first->n_users, 1);
    shard_free(l.s);
}

/* failure: what it is told. */
static void try_without_space(int failure)
{
    struct load l = load_new(TABLE_SPEC_MODE_ASYNC, NULL);
    struct event_log *j = event_log_new();
    struct table_spec late = sparse_spec("late", 4, TABLE_SPEC_SGD);
    struct membership_join again = { .job = "job",
                                     .n_workers = 1,
                                     .incarnation = 2,
                                     .mode = TABLE_SPEC_MODE_ASYNC,
                                     .name = "tester" };
    struct shard_push_result result;
    struct push *push = next_push(l.w, 0);
    struct worker *worker;
    struct err err;
    uint32_t id;

    enter_shard();
    j->failure = failure;
    shard_set_events(l.s, &j->sink);
    j->n_reserves_left = 0;
    assert_int_equal(shard_table_open(l.s, &late, false, &id, &err), failure);
    j->n_reserves_left = 0;
    assert_int_equal(membership_join(shard_membership(l.s), &again, 0, &worker, &err), failure);
    assert_int_equal(l.w->incarnation, 1);
    j->n_reserves_left = 0;
    assert_int_equal(shard_push(l.s, l.w, push, 0, &result), failure);
    push->clock = MEMBERSHIP_CLOCK_END; /* refused, if there is room to say so */
    j->n_reserves_left = 0;
    assert_int_equal(shard_push(l.s, l.w, push, 0, &result), failure);
    assert_int_equal(l.w->last_seq, 0);
    assert_int_equal(j->n, 0);
    assert_int_equal(shard_push(l.s, l.w, push, 0, &result), 0);
    assert_int_equal(result.status, PS_EPROTO);
    assert_int_equal(j->n, 1);
    free_push(push);
    shard_free(l.s);
    event_log_free(j);
}

static void events_without_space_in_the_log_do_not_happen(void **state)
{
    (void)state;
    try_without_space(-ENOMEM);
    try_without_space(-EAGAIN); /* it is full for now */
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_scan_reads_every_row_once_where_nothing_happens),
        cmocka_unit_test(a_delta_has_the_rows_that_changed_and_nothing_else),
        cmocka_unit_test(a_delta_names_the_keys_that_went),
        cmocka_unit_test(after_a_scan_that_was_dropped_comes_a_full_one),
        cmocka_unit_test(when_too_many_rows_went_no_delta_can_be),
        cmocka_unit_test(no_scan_begins_in_a_push_that_is_half_done),
        cmocka_unit_test(held_pushes_are_read_after_their_clock_was_combined),
        cmocka_unit_test(a_sync_point_in_lock_step_is_exact_from_clock_to_clock),
#ifdef PS_FAULTS
        cmocka_unit_test(a_clock_without_memory_is_no_sync_point_yet),
        cmocka_unit_test(a_scan_that_finds_no_memory_leaves_no_trace),
        cmocka_unit_test(events_without_space_in_the_log_do_not_happen),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
