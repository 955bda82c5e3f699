/* Tables that an operator drops, or gives other settings: who may be in the way, and what a crash leaves. */
#include "server/core/table_admin.h"

#include <errno.h>
#include <time.h>

#include "events_fixture.h"
#include "server/core/lock_step.h"
#include "server/core/sync_point.h"

enum { DIM = 4, N_KEYS = 300, N_TABLES = 3 };

struct world {
    struct shard_config config;
    struct shard *s;
    struct event_log *log;
    uint32_t ids[N_TABLES]; /* of job/a, job/b, jobs/c: the last is another job's */
    uint64_t clock;
};

static struct table_spec spec_of(uint32_t i)
{
    static const char *const names[N_TABLES] = { "job/a", "job/b", "jobs/c" };

    return i == 1 ? dense_spec(names[i], DIM, (uint64_t)N_KEYS * DIM, TABLE_SPEC_ADAGRAD)
                  : sparse_spec(names[i], DIM, TABLE_SPEC_ADAGRAD);
}

static void push_all(struct world *w, struct worker *worker)
{
    static uint64_t keys[N_KEYS];
    static float values[N_KEYS * DIM];
    struct push *push = next_push(worker, w->clock++);

    for (uint32_t i = 0; i < N_KEYS; i++)
        keys[i] = i;
    for (uint32_t i = 0; i < N_KEYS * DIM; i++)
        values[i] = 0.25f;
    for (uint32_t i = 0; i < N_TABLES; i++)
        add_gradient(push, w->ids[i], DIM, keys, N_KEYS, values);
    (void)must_push(w->s, worker, push);
}

static struct world make_world_of(uint32_t n_shards)
{
    struct world w = { .config = { .n_shards = n_shards,
                                   .lease_ms = LEASE_MS,
                                   .join_ms = JOIN_MS,
                                   .park_ms = 1 } };

    w.s = shard_new(&w.config);
    w.log = event_log_new();
    enter_shard();
    shard_set_events(w.s, &w.log->sink);
    for (uint32_t i = 0; i < N_TABLES; i++) {
        struct table_spec spec = spec_of(i);

        w.ids[i] = make_table(w.s, &spec);
    }
    return w;
}

static struct world make_world(void)
{
    return make_world_of(1);
}

static void free_world(struct world *w)
{
    enter_shard();
    shard_free(w->s);
    event_log_free(w->log);
}

static struct worker *train(struct world *w)
{
    struct worker *worker = join(w->s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1);

    push_all(w, worker);
    return worker;
}

static int drop(struct world *w, struct table_admin_counts *ret)
{
    struct err err = { 0 };
    int status;

    enter_shard();
    status = table_admin_drop(w->s, "job", ret, &err);
    assert_int_equal(status, err.status);
    assert_true(!status == !err.text[0]);
    return status;
}

static void leave(struct world *w, struct worker *worker)
{
    enter_shard();
    membership_leave(shard_membership(w->s), worker);
}

static void a_dropped_table_is_gone_with_its_rows_and_its_number(void **state)
{
    struct world w = make_world();
    uint64_t before = shard_bytes(w.s);
    struct worker *worker = train(&w);
    struct table_admin_counts counts;
    struct table_spec spec = spec_of(0);
    struct shard_push_result result;
    struct push *push;
    const uint64_t key = 1;
    const float row[DIM] = { 1 };

    (void)state;
    assert_int_equal(drop(&w, &counts), -EBUSY); /* the worker lives */
    assert_int_equal(shard_n_live_tables(w.s), N_TABLES);
    leave(&w, worker);
    assert_int_equal(drop(&w, &counts), 0);
    assert_int_equal(counts.n_tables, 2);
    assert_int_equal(counts.n_rows, 2 * N_KEYS);
    assert_null(shard_table(w.s, w.ids[0]));
    assert_null(shard_table(w.s, w.ids[1]));
    assert_int_equal(table_n_rows(shard_table(w.s, w.ids[2])->rows), N_KEYS);
    assert_true(shard_bytes(w.s) < before + counts.n_bytes);
    assert_int_equal(drop(&w, &counts), 0); /* once more: nothing is left to do */
    assert_int_equal(counts.n_tables, 0);
    assert_int_equal(make_table(w.s, &spec),
                     N_TABLES); /* the name is free, the number is not */
    worker = join_at(w.s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1, 99, 1);
    push = next_push(worker, 0);
    add_gradient(push, w.ids[0], DIM, &key, 1, row);
    result = try_push(w.s, worker, push);
    assert_int_equal(result.status, PS_ENOTABLE);
    assert_non_null(strstr(result.text, "dropped"));
    (void)shard_advance(w.s, 5);
    free_world(&w);
}

/* Its worker is dead, or it would be in the way itself. */
static void a_large_push_to_a_table_ends_before_the_table_is_dropped(void **state)
{
    enum { N_LARGE = SHARD_SLICE_BYTES / 16 };
    static uint64_t keys[N_LARGE];
    static float values[N_LARGE * DIM];
    struct world w = make_world();
    struct worker *worker = train(&w);
    enum shard_push_state push_state;
    struct shard_push_result result;
    struct table_admin_counts counts;
    struct push *push = next_push(worker, 1);
    struct err err = { 0 };

    (void)state;
    for (uint32_t i = 0; i < N_LARGE; i++)
        keys[i] = i;
    add_gradient(push, w.ids[0], DIM, keys, N_LARGE, values);
    assert_int_equal(shard_push_begin(w.s, worker, push, 0, &result, &push_state), 0);
    assert_int_equal(push_state, SHARD_PUSH_RUNNING);
    leave(&w, worker);
    assert_int_equal(drop(&w, &counts), -EAGAIN);
    assert_int_equal(shard_n_live_tables(w.s), N_TABLES);
    assert_int_equal(table_admin_drop(w.s, "jobs", &counts, &err),
                     0); /* it names none of these */
    assert_int_equal(counts.n_tables, 1);
    while (push_state == SHARD_PUSH_RUNNING)
        (void)!shard_push_more(w.s, 0, &result, &push_state);
    assert_int_equal(drop(&w, &counts), 0);
    assert_int_equal(counts.n_tables, 2);
    free_push(push);
    free_world(&w);
}

static void the_job_with_most_tables_is_found(void **state)
{
    struct world w = make_world();
    char job[TABLE_SPEC_NAME_MAX];
    struct table_spec spec = sparse_spec("jo", DIM, TABLE_SPEC_SGD);
    struct table_admin_counts counts;
    struct err err;

    (void)state;
    (void)make_table(w.s, &spec);
    assert_int_equal(table_admin_most(w.s, job), 2);
    assert_string_equal(job, "job");
    assert_int_equal(table_admin_drop(w.s, "job", &counts, &err), 0);
    assert_int_equal(table_admin_most(w.s, job), 1);
    assert_int_equal(table_admin_drop(w.s, "jo", &counts, &err), 0);
    assert_int_equal(table_admin_drop(w.s, "jobs", &counts, &err), 0);
    assert_int_equal(table_admin_most(w.s, job), 0);
    assert_string_equal(job, "");
    free_world(&w);
}

static void expected_workers_and_held_pushes_are_in_the_way(void **state)
{
    struct world w = make_world();
    struct worker *worker = join(w.s, TABLE_SPEC_MODE_BSP, 0, 0, 2);
    struct membership_join other = { .job = "other",
                                     .n_workers = 2,
                                     .incarnation = 1,
                                     .mode = TABLE_SPEC_MODE_BSP,
                                     .name = "o" };
    struct table_admin_counts counts;
    struct err err = { 0 };

    (void)state;
    enter_shard();
    leave(&w, worker);
    assert_int_equal(drop(&w, &counts), -EBUSY); /* rank 1 may still come */
    (void)shard_advance(w.s, JOIN_MS + 1);
    assert_int_equal(membership_join(shard_membership(w.s), &other, JOIN_MS + 2, &worker, &err),
                     0);
    push_all(&w, worker); /* for a clock that rank 1 of the other job has not ended */
    assert_int_equal(drop(&w, &counts), -EBUSY);
    assert_int_equal(counts.n_tables, 0);
    leave(&w, worker);
    (void)shard_advance(w.s,
                        3 * JOIN_MS); /* nobody is expected any more: the clock is combined */
    assert_int_equal(drop(&w, &counts), 0);
    assert_int_equal(counts.n_tables, 2);
    free_world(&w);
}

/* As many sections as a worker's held pushes can have, and many tables of the job that is dropped. */
static void held_pushes_are_not_searched_for_each_table(void **state)
{
    enum { N_HELD = SECTIONS_MAX, N_EVIL = 2000 };
    struct world w = make_world();
    struct membership_join held = { .job = "held",
                                    .n_workers = 2,
                                    .incarnation = 1,
                                    .mode = TABLE_SPEC_MODE_BSP,
                                    .name = "h" };
    struct table_admin_counts counts;
    struct err err = { 0 };
    struct worker *worker;
    char name[64];
    uint32_t ids[N_HELD];
    clock_t began;

    (void)state;
    enter_shard();
    for (uint32_t i = 0; i < N_HELD + N_EVIL; i++) {
        struct table_spec spec;

        snprintf(name, sizeof name, i < N_HELD ? "held/%u" : "evil/%u", i);
        spec = sparse_spec(name, DIM, TABLE_SPEC_SGD);
        ids[i % N_HELD] =
            i < N_HELD ? make_table(w.s, &spec) : (make_table(w.s, &spec), ids[i % N_HELD]);
    }
    assert_int_equal(membership_join(shard_membership(w.s), &held, 0, &worker, &err), 0);
    for (uint32_t k = 0; k < BSP_HELD_PUSHES_MAX; k++) {
        struct push *push = next_push(worker, k);

        for (uint32_t i = 0; i < N_HELD; i++)
            add_gradient(push, ids[i], DIM, NULL, 0, NULL);
        must_push(w.s, worker, push);
    }
    assert_int_equal(w.s->tables[ids[7]]->n_held, BSP_HELD_PUSHES_MAX);
    began = clock();
    enter_shard();
    assert_int_equal(table_admin_check(w.s, "evil", NULL, &err), 0);
    assert_int_equal(table_admin_drop(w.s, "evil", &counts, &err), 0);
    assert_int_equal(counts.n_tables, N_EVIL);
    assert_true(clock() - began < CLOCKS_PER_SEC); /* seconds to a minute, otherwise */
    leave(&w, worker);
    assert_int_equal(table_admin_check(w.s, "held", NULL, &err), -EBUSY);
    (void)shard_advance(w.s, 3 * JOIN_MS); /* their worker is gone: they are void */
    while (lock_step_is_combining(w.s) || w.s->queues)
        (void)shard_advance(w.s, 3 * JOIN_MS), lock_step_more(w.s);
    assert_int_equal(w.s->tables[ids[7]]->n_held, 0);
    assert_int_equal(table_admin_drop(w.s, "held", &counts, &err), 0);
    assert_int_equal(counts.n_tables, N_HELD);
    free_world(&w);
}

/* The shard hears no worker of the job: what waits for one of them goes with the tables. */
static void workers_that_are_given_up_are_dead_when_their_tables_go(void **state)
{
    struct world w = make_world_of(2);
    struct worker *worker = join(w.s, TABLE_SPEC_MODE_BSP, 0, 0, 2);
    struct table_admin_counts counts;
    const float values[DIM] = { 0 };
    struct err err = { 0 };
    struct push *push;
    uint64_t key = 0;

    (void)state;
    enter_shard();
    worker->relays = true;
    join(w.s, TABLE_SPEC_MODE_BSP, 0, 1, 2)->relays = true;
    while (placement_shard(key, 0, 2) != 0)
        key++;
    push = next_push(worker, 0);
    add_gradient(push, w.ids[0], DIM, &key, 1, values);
    (void)must_push(w.s, worker, push);
    assert_int_equal(drop(&w, &counts), -EBUSY);
    (void)shard_advance(w.s, 2 * LEASE_MS);
    assert_true(job_is_deserted(worker->job) && sync_point_n_held(w.s, worker->job) == 1);
    assert_int_equal(table_admin_check(w.s, "job", NULL, &err), 0);
    assert_true(job_is_deserted(worker->job)); /* other nodes may say no */
    assert_int_equal(drop(&w, &counts), 0);
    assert_int_equal(counts.n_tables, 2);
    assert_int_equal(worker->state, WORKER_DEAD);
    assert_int_equal(sync_point_n_held(w.s, worker->job), 0);
    free_world(&w);
}

static int drop_named(struct world *w, const char *name, struct table_admin_counts *ret,
                      struct err *err)
{
    enter_shard();
    *err = (struct err){ 0 };
    return table_admin_drop(w->s, name, ret, err);
}

static void a_table_without_a_slash_is_dropped_by_its_name(void **state)
{
    struct world w = make_world();
    const struct table_spec bare = sparse_spec("bare", DIM, TABLE_SPEC_SGD),
                            longer = sparse_spec("barely", DIM, TABLE_SPEC_SGD);
    uint32_t id = make_table(w.s, &bare), other = make_table(w.s, &longer);
    struct table_admin_counts counts;
    struct err err;

    (void)state;
    assert_int_equal(drop_named(&w, "bare", &counts, &err), 0);
    assert_int_equal(counts.n_tables, 1);
    assert_null(shard_table(w.s, id));
    assert_non_null(shard_table(w.s, other));
    free_world(&w);
}

static void workers_of_a_job_that_may_share_the_tables_are_in_the_way(void **state)
{
    struct world w = make_world();
    struct membership_join join = { .job = "job/a",
                                    .n_workers = 1,
                                    .incarnation = 1,
                                    .mode = TABLE_SPEC_MODE_ASYNC,
                                    .name = "j" };
    struct table_admin_counts counts;
    struct worker *worker;
    struct err err = { 0 };

    (void)state;
    enter_shard();
    assert_int_equal(membership_join(shard_membership(w.s), &join, 1, &worker, &err), 0);
    assert_int_equal(drop_named(&w, "job", &counts, &err), -EBUSY);
    assert_non_null(strstr(err.text, "job job/a has workers"));
    assert_int_equal(drop_named(&w, "job/a/c", &counts, &err), -EBUSY);
    assert_int_equal(counts.n_tables, 0);
    assert_int_equal(drop_named(&w, "jobs", &counts, &err), 0);
    assert_int_equal(counts.n_tables, 1);
    leave(&w, worker);
    assert_int_equal(drop_named(&w, "job", &counts, &err), 0);
    assert_int_equal(counts.n_tables, 2);
    free_world(&w);
}

static void empty_tables_count_against_the_memory_and_give_it_back(void **state)
{
    enum { N = 100 };
    struct world w = make_world();
    uint64_t before = shard_bytes(w.s);
    struct table_admin_counts counts;
    struct err err;

    (void)state;
    for (int i = 0; i < N; i++) {
        struct table_spec spec = sparse_spec("many/00", DIM, TABLE_SPEC_SGD);

        snprintf(spec.name, sizeof spec.name, "many/%02d", i);
        (void)make_table(w.s, &spec);
    }
    assert_true(shard_bytes(w.s) - before > N * sizeof(struct table_spec));
    assert_int_equal(drop_named(&w, "many", &counts, &err), 0);
    assert_int_equal(counts.n_tables, N);
    assert_int_equal(shard_bytes(w.s), before);
    free_world(&w);
}

/* The log up to any event is the shard at that moment: each table is there whole, or gone. */
static void a_crash_at_any_event_leaves_each_table_whole_or_gone(void **state)
{
    struct world w = make_world();
    struct table_admin_counts counts;
    struct shard *again;
    size_t first;

    (void)state;
    leave(&w, train(&w));
    first = w.log->n;
    assert_int_equal(drop(&w, &counts), 0);
    assert_int_equal(w.log->n, first + 2);
    for (size_t end = first; end <= w.log->n; end++) {
        assert_int_equal(try_restore(&w.config, NULL, 0, w.log, end, 1, &again), 0);
        assert_int_equal(shard_n_live_tables(again), N_TABLES - (end - first));
        for (uint32_t i = 0; i < N_TABLES; i++)
            if (shard_table(again, w.ids[i]))
                assert_int_equal(table_n_rows(shard_table(again, w.ids[i])->rows), N_KEYS);
        if (end == w.log->n)
            assert_same_shard(w.s, again);
        shard_free(again);
    }
    free_world(&w);
}

static void a_log_without_space_stops_in_between_and_the_second_try_ends_it(void **state)
{
    struct world w = make_world();
    struct table_admin_counts counts;

    (void)state;
    leave(&w, train(&w));
    w.log->n_reserves_left = 1;
    w.log->failure = -EAGAIN;
    assert_int_equal(drop(&w, &counts), -EAGAIN);
    assert_int_equal(counts.n_tables, 1);
    assert_int_equal(drop(&w, &counts), 0);
    assert_int_equal(counts.n_tables, 1);
    free_world(&w);
}

static void a_scan_during_which_tables_go_is_whole_and_the_next_one_is_full(void **state)
{
    struct world w = make_world();
    struct table_admin_counts counts;
    struct kept_scan scans[2];
    struct worker *worker;
    struct shard *again;

    (void)state;
    leave(&w, train(&w));
    assert_int_equal(try_scan_begin(w.s, SNAPSHOT_SCAN_FULL, w.log->n, &scans[0]), 0);
    (void)scan_on(w.s, &scans[0], 600); /* the state */
    (void)scan_on(w.s, &scans[0], 600); /* a part of the first table */
    assert_int_equal(drop(&w, &counts), 0);
    while (!scan_on(w.s, &scans[0], 600))
        ;
    scan_end(w.s, &scans[0], SNAPSHOT_SCAN_KEPT);
    assert_false(snapshot_scan_may_be_delta(w.s));
    assert_int_equal(try_restore(&w.config, scans, 1, w.log, w.log->n, 1, &again), 0);
    assert_same_shard(w.s, again);
    assert_false(snapshot_scan_may_be_delta(again)); /* its base has what was dropped since */
    shard_free(again);
    kept_scan_free(&scans[0]);

    assert_int_equal(try_scan_begin(w.s, SNAPSHOT_SCAN_FULL, w.log->n, &scans[0]), 0);
    while (!scan_on(w.s, &scans[0], 60000))
        ;
    scan_end(w.s, &scans[0], SNAPSHOT_SCAN_KEPT);
    worker = join_at(w.s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1, 7, 1);
    for (uint32_t i = 0; i < 2; i++) {
        struct table_spec spec = spec_of(i);

        w.ids[i] = make_table(w.s, &spec);
    }
    push_all(&w, worker);
    assert_int_equal(try_scan_begin(w.s, SNAPSHOT_SCAN_DELTA, w.log->n, &scans[1]), 0);
    while (!scan_on(w.s, &scans[1], 60000))
        ;
    scan_end(w.s, &scans[1], SNAPSHOT_SCAN_KEPT);
    push_all(&w, worker);
    assert_int_equal(try_restore(&w.config, scans, 2, w.log, w.log->n, 1, &again), 0);
    assert_same_shard(w.s, again);
    shard_free(again);
    kept_scan_free(&scans[0]);
    kept_scan_free(&scans[1]);
    free_world(&w);
}

/* --- other settings --- */

static int set(struct world *w, const char *settings, struct err *err)
{
    struct table_admin_counts counts;

    enter_shard();
    *err = (struct err){ 0 };
    return table_admin_set(w->s, "job", settings, &counts, err);
}

static float rate_of(struct world *w, uint32_t i);

static uint32_t make_adder(struct world *w, const char *name)
{
    struct table_spec spec = dense_spec(name, DIM, DIM, TABLE_SPEC_SGD);

    spec.params = (struct optimizer_params){ .learning_rate = 1 };
    return make_table(w->s, &spec);
}

static void
tables_that_only_add_are_left_alone_but_by_their_name_and_get_what_is_asked_for(void **state)
{
    struct world w = make_world();
    struct table_spec spec;
    struct table_admin_counts counts;
    struct shard *again;
    struct err err = { 0 };
    uint32_t id;

    (void)state;
    w.ids[2] = id = make_adder(&w, "job/mean");
    spec = shard_table(w.s, id)->spec;
    assert_int_equal(set(&w, "lr=0.5,clip=2", &err), 0);
    assert_true(rate_of(&w, 0) == 0.5f && rate_of(&w, 1) == 0.5f && rate_of(&w, 2) == 1);
    assert_true(shard_table(w.s, w.ids[0])->spec.clip_norm == 2);
    assert_true(shard_table(w.s, w.ids[1])->spec.clip_norm ==
                0); /* psworker clips no dense table */
    table_admin_count(w.s, "job", true, &counts);
    assert_int_equal(counts.n_tables, 2);
    assert_int_equal(table_admin_set(w.s, "job/mean", "lr=0.5,dense-clip=2", &counts, &err), 0);
    assert_int_equal(counts.n_tables, 1);
    assert_true(rate_of(&w, 2) == 0.5f && shard_table(w.s, id)->spec.clip_norm == 2);
    assert_int_equal(shard_table_open(w.s, &spec, false, &id, &err), 0);
    assert_int_equal(id, w.ids[2]);
    assert_true(rate_of(&w, 2) == 1 && shard_table(w.s, id)->spec.clip_norm == 0);
    assert_int_equal(try_restore(&w.config, NULL, 0, w.log, w.log->n, 1, &again), 0);
    assert_same_shard(w.s, again);
    shard_free(again);
    free_world(&w);
}

static void a_second_call_sets_only_what_the_first_has_left(void **state)
{
    struct world w = make_world();
    struct err err;

    (void)state;
    assert_int_equal(set(&w, "lr=0.5", &err), 0);
    assert_int_equal(n_of_type(w.log, SHARD_EVENT_SPEC, -1), 2);
    assert_int_equal(set(&w, "lr=0.5", &err), 0);
    assert_int_equal(n_of_type(w.log, SHARD_EVENT_SPEC, -1), 2);
    free_world(&w);
}

static void nobody_joins_a_job_whose_tables_are_being_changed(void **state)
{
    struct world w = make_world();
    struct err err = { 0 };

    (void)state;
    enter_shard();
    assert_int_equal(table_admin_may_join(w.s, "job", 10, &err), 0);
    assert_int_equal(table_admin_lock(w.s, "job", 10, 20, &err), 0);
    assert_int_equal(table_admin_may_join(w.s, "job", 19, &err), -EBUSY);
    assert_non_null(strstr(err.text, "job job are being dropped"));
    assert_int_equal(table_admin_may_join(w.s, "job/part", 19, &err), -EBUSY);
    assert_int_equal(table_admin_may_join(w.s, "jobs", 19, &err), 0);
    assert_int_equal(table_admin_lock(w.s, "job", 19, 30, &err), -EBUSY);
    assert_int_equal(table_admin_may_join(w.s, "job", 20, &err),
                     0); /* whoever locked it is gone */
    assert_int_equal(table_admin_lock(w.s, "job", 20, 30, &err), 0);
    for (char name[] = "a"; *name < 'd'; ++*name)
        assert_int_equal(table_admin_lock(w.s, name, 20, 30, &err), 0);
    assert_int_equal(table_admin_lock(w.s, "more", 20, 30, &err), -EBUSY);
    table_admin_unlock(w.s, "job");
    assert_int_equal(table_admin_may_join(w.s, "job", 21, &err), 0);
    assert_int_equal(table_admin_lock(w.s, "more", 20, 30, &err), 0);
    free_world(&w);
}

static float rate_of(struct world *w, uint32_t i)
{
    enter_shard();
    return shard_table(w->s, w->ids[i])->spec.params.learning_rate;
}

static void settings_change_the_steps_from_then_on_also_when_they_are_replayed(void **state)
{
    struct world w = make_world();
    struct worker *worker = train(&w);
    struct kept_scan scan;
    struct shard *again;
    struct err err;
    float other = rate_of(&w, 2);

    (void)state;
    assert_int_equal(set(&w, "lr=0.005", &err), -EBUSY);
    leave(&w, worker);
    assert_int_equal(try_scan_begin(w.s, SNAPSHOT_SCAN_FULL, w.log->n, &scan), 0);
    while (!scan_on(w.s, &scan, 60000))
        ;
    scan_end(w.s, &scan, SNAPSHOT_SCAN_KEPT);
    assert_int_equal(set(&w, "lr=0.005,dense-lr=0.25,decay=linear,decay-clocks=50", &err), 0);
    assert_true(rate_of(&w, 0) == 0.005f && rate_of(&w, 1) == 0.25f && rate_of(&w, 2) == other);
    assert_false(snapshot_scan_may_be_delta(w.s));
    push_all(&w, join_at(w.s, TABLE_SPEC_MODE_ASYNC, 0, 0, 1, 7, 1));
    assert_int_equal(try_restore(&w.config, NULL, 0, w.log, w.log->n, 1, &again), 0);
    assert_same_shard(w.s, again);
    shard_free(again);
    assert_int_equal(try_restore(&w.config, &scan, 1, w.log, w.log->n, 1, &again), 0);
    assert_same_shard(w.s, again);
    shard_free(again);
    kept_scan_free(&scan);
    free_world(&w);
}

static void settings_that_no_table_can_have_change_nothing(void **state)
{
    static const char *const bad[] = { "lr=-1",
                                       "lr=",
                                       "lr",
                                       "dim=8",
                                       "lr=nan",
                                       "decay=slow",
                                       "decay=exp",
                                       "",
                                       "warmup=x",
                                       "momentum=1",
                                       "lr=0.5,seed=3",
                                       "=1",
                                       "warmup=4294967296" };
    struct world w = make_world();
    struct err err;
    size_t n = w.log->n;
    float rate = rate_of(&w, 0);

    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_int_equal(set(&w, bad[i], &err), PS_ESPEC);
        assert_true(err.text[0]);
    }
    assert_true(rate_of(&w, 0) == rate);
    assert_int_equal(w.log->n, n);
    free_world(&w);
}

static void
a_table_with_other_settings_is_refused_with_the_command_that_changes_them(void **state)
{
    struct world w = make_world();
    struct table_spec spec = spec_of(0);
    struct err err;
    uint32_t id;

    (void)state;
    assert_int_equal(set(&w, "lr=0.005", &err), 0);
    enter_shard();
    assert_int_equal(shard_table_open(w.s, &spec, false, &id, &err), PS_ESPEC);
    assert_non_null(strstr(err.text, "learning_rate is 0.005 here"));
    assert_non_null(strstr(err.text, "(psctl set job lr=0.01 changes it)"));
    spec.params.learning_rate = 0.005f;
    assert_int_equal(shard_table_open(w.s, &spec, false, &id, &err), 0);
    spec.dim++;
    assert_int_equal(shard_table_open(w.s, &spec, false, &id, &err), PS_ESPEC);
    assert_null(strstr(err.text, "psctl set"));
    free_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dropped_table_is_gone_with_its_rows_and_its_number),
        cmocka_unit_test(a_large_push_to_a_table_ends_before_the_table_is_dropped),
        cmocka_unit_test(the_job_with_most_tables_is_found),
        cmocka_unit_test(expected_workers_and_held_pushes_are_in_the_way),
        cmocka_unit_test(held_pushes_are_not_searched_for_each_table),
        cmocka_unit_test(workers_that_are_given_up_are_dead_when_their_tables_go),
        cmocka_unit_test(a_table_without_a_slash_is_dropped_by_its_name),
        cmocka_unit_test(workers_of_a_job_that_may_share_the_tables_are_in_the_way),
        cmocka_unit_test(empty_tables_count_against_the_memory_and_give_it_back),
        cmocka_unit_test(a_crash_at_any_event_leaves_each_table_whole_or_gone),
        cmocka_unit_test(a_log_without_space_stops_in_between_and_the_second_try_ends_it),
        cmocka_unit_test(a_scan_during_which_tables_go_is_whole_and_the_next_one_is_full),
        cmocka_unit_test(settings_change_the_steps_from_then_on_also_when_they_are_replayed),
        cmocka_unit_test(settings_that_no_table_can_have_change_nothing),
        cmocka_unit_test(
            tables_that_only_add_are_left_alone_but_by_their_name_and_get_what_is_asked_for),
        cmocka_unit_test(a_second_call_sets_only_what_the_first_has_left),
        cmocka_unit_test(nobody_joins_a_job_whose_tables_are_being_changed),
        cmocka_unit_test(
            a_table_with_other_settings_is_refused_with_the_command_that_changes_them),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
