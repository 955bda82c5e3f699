/* Many pulls under way at once, from several threads; and calls that cannot be meant. */
#include "tests/unit/client/fixture.h"

#include <time.h>

#include "common/hash.h"
#include "worker/client/pulled_rows.h"

#define N_ROWS 96u /* keys 1 .. N_ROWS of the tests here */

/* What a row holds once fill_table() has pushed it. */
static float row_value(uint64_t key, uint32_t i)
{
    return (float)(key * 10 + i);
}

static void fill_table(struct rig *rig)
{
    uint64_t row_keys[N_ROWS];
    float values[N_ROWS * FAKE_DIM];
    struct ps_push_section push = {
        .table = rig->table, .n_keys = N_ROWS, .keys = row_keys, .values = values
    };
    struct err err;

    for (uint32_t i = 0; i < N_ROWS; i++) {
        row_keys[i] = i + 1;
        for (uint32_t k = 0; k < FAKE_DIM; k++)
            values[i * FAKE_DIM + k] = row_value(i + 1, k);
    }
    if (ps_push(rig->c, 0, 1, true, &push, 1, &err) || ps_flush(rig->c, &err))
        fail_msg("%s", err.text);
}

/* A pull with its arrays. */
struct one_pull {
    struct ps_pull *pull;
    struct ps_pull_section section;
    uint64_t row_keys[N_ROWS];
    float rows[N_ROWS * FAKE_DIM];
};

static void draw_keys(const struct rig *rig, struct one_pull *p, uint64_t dice)
{
    uint32_t n = 0;

    for (uint64_t key = 1; key <= N_ROWS; key++)
        if (hash_mix2(dice, key) % 8 == 0)
            p->row_keys[n++] = key;
    memset(p->rows, 0, sizeof p->rows);
    p->section = (struct ps_pull_section){
        .table = rig->table, .n_keys = n, .keys = p->row_keys, .dst = p->rows
    };
}

static int start_pull(const struct rig *rig, struct one_pull *p, uint64_t dice, struct err *err)
{
    draw_keys(rig, p, dice);
    return ps_pull_start(rig->c, 1, &p->section, 1, &p->pull, err);
}

static bool has_right_rows(const struct one_pull *p)
{
    for (uint32_t i = 0; i < p->section.n_keys; i++)
        for (uint32_t k = 0; k < FAKE_DIM; k++)
            if (p->rows[i * FAKE_DIM + k] != row_value(p->row_keys[i], k))
                return false;
    return true;
}

static void must_start(const struct rig *rig, struct one_pull *p, uint64_t dice)
{
    struct err err;

    if (start_pull(rig, p, dice, &err))
        fail_msg("%s", err.text);
}

static void must_end(const struct rig *rig, struct one_pull *p)
{
    struct err err;

    if (ps_pull_wait(rig->c, p->pull, &err))
        fail_msg("%s", err.text);
    assert_true(has_right_rows(p));
}

static void many_pulls_are_under_way_and_waited_for_in_any_order(void **state)
{
    struct fake_plan plan = {
        .n_shards = 3, .fault_at = -1, .shuffles_pulls = true, .seed = 51000002
    };
    enum { N = 60 }; /* more than a shard has at a time */
    struct one_pull *pulls = memory_alloc(N * sizeof *pulls);
    struct ps_stats stats;
    struct rig rig;

    (void)state;
    set_up(&rig, &plan, NULL);
    fill_table(&rig);
    for (uint32_t i = 0; i < N; i++)
        must_start(&rig, &pulls[i], i);
    for (uint32_t i = 0; i < N; i++)
        must_end(&rig, &pulls[(i * 7 + 59) % N]);
    ps_stats(rig.c, &stats);
    assert_int_equal(stats.pulls, N);
    assert_int_equal(stats.waiting_ns, 0);
    tear_down(&rig);
    free(pulls);
}

/* Decodes what has stayed as it was sent. */
static void place_rows(struct one_pull *p, const struct pulled_rows *pulled)
{
    uint32_t at = 0;

    assert_int_equal(pulled->codec, p->section.codec);
    for (uint32_t shard = 0; shard < pulled->n_shards; shard++)
        for (uint32_t i = 0; i < pulled->parts[shard].n; i++)
            memcpy(p->rows + (size_t)pulled->to[at++] * FAKE_DIM,
                   pulled->parts[shard].bytes + i * FAKE_DIM * sizeof(float),
                   FAKE_DIM * sizeof(float));
    assert_int_equal(at, p->section.n_keys);
    assert_int_equal(pulled->n, p->section.n_keys);
}

/* Also where the thread that waits would decode them as they come, and into what an earlier pull has left. */
static void rows_that_stay_as_they_are_sent_are_those_that_were_asked_for(void **state)
{
    struct fake_plan plan = {
        .n_shards = 3, .fault_at = -1, .shuffles_pulls = true, .seed = 51000004
    };
    uint32_t to[N_ROWS];
    struct pulled_rows pulled = { .to = to };
    struct one_pull *p = memory_alloc(sizeof *p);
    struct err err;
    struct rig rig;

    (void)state;
    for (int drives = 0; drives < 2; drives++) {
        struct ps_options options = make_options("");

        options.drives = options.is_interruptible = drives;
        set_up(&rig, &plan, &options);
        fill_table(&rig);
        for (uint64_t dice = 0; dice < 20; dice++) {
            draw_keys(&rig, p, dice);
            p->section.dst = NULL;
            p->section.pulled = &pulled;
            assert_int_equal(ps_pull_start(rig.c, 1, &p->section, 1, &p->pull, &err), 0);
            assert_int_equal(ps_pull_wait(rig.c, p->pull, &err), 0);
            place_rows(p, &pulled);
            assert_true(has_right_rows(p));
        }
        tear_down(&rig);
    }
    pulled_rows_deinit(&pulled);
    free(p);
}

static void a_pull_that_is_cancelled_leaves_the_others_and_is_used_again(void **state)
{
    struct fake_plan plan = {
        .n_shards = 2, .fault_at = -1, .shuffles_pulls = true, .seed = 51000003
    };
    struct one_pull *pulls = memory_alloc(3 * sizeof *pulls);
    struct ps_pull *ended;
    struct rig rig;
    struct err err;

    (void)state;
    set_up(&rig, &plan, NULL);
    fill_table(&rig);
    for (uint32_t round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < 3; i++)
            must_start(&rig, &pulls[i], round * 3 + i);
        ps_pull_cancel(rig.c, pulls[1].pull);
        assert_int_equal(ps_pull_wait(rig.c, pulls[1].pull, &err), -ECANCELED);
        ended = pulls[1].pull;
        assert_int_equal(ps_pull_wait(rig.c, ended, &err), -EINVAL);
        must_start(&rig, &pulls[1], 1000 + round); /* a late answer is to the other one */
        assert_ptr_equal(pulls[1].pull, ended);
        must_end(&rig, &pulls[0]);
        must_end(&rig, &pulls[1]);
        must_end(&rig, &pulls[2]);
    }
    for (uint32_t i = 0; i < 3; i++)
        must_start(&rig, &pulls[i], i);
    ps_pull_cancel(rig.c, NULL);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(ps_pull_wait(rig.c, pulls[i].pull, &err), -ECANCELED);
    tear_down(&rig);
    free(pulls);
}

static void
a_fence_ends_all_pulls_that_were_under_way_also_after_the_worker_goes_on(void **state)
{
    struct fake_plan plan = { .n_shards = 3,
                              .fault_at = 0,
                              .fault_type = FRAME_PULL,
                              .fault = FAKE_REFUSE,
                              .refusal = PS_EFENCED,
                              .holds_pulls = false };
    struct one_pull *pulls = memory_alloc(4 * sizeof *pulls);
    struct rig rig;
    struct err err;

    (void)state;
    plan.shuffles_pulls = true;
    set_up(&rig, &plan, NULL);
    fill_table(&rig);
    for (uint32_t i = 0; i < 3; i++)
        must_start(&rig, &pulls[i], i);
    assert_int_equal(ps_pull_wait(rig.c, pulls[0].pull, &err), PS_EFENCED);
    assert_int_equal(start_pull(&rig, &pulls[3], 3, &err), PS_EFENCED);
    assert_int_equal(ps_pull_wait(rig.c, pulls[2].pull, &err), PS_EFENCED);
    (void)ps_resume(rig.c);
    assert_int_equal(ps_pull_wait(rig.c, pulls[1].pull, &err), PS_EFENCED);
    must_start(&rig, &pulls[0], 9);
    must_end(&rig, &pulls[0]);
    tear_down(&rig);
    free(pulls);
}

static void each_pull_has_its_deadline_and_a_refusal_is_of_one_pull(void **state)
{
    struct fake_plan plan = { .n_shards = 2, .fault_at = -1, .holds_pulls = true };
    struct ps_options options = make_options(NULL);
    struct one_pull *pulls = memory_alloc(3 * sizeof *pulls);
    struct rig rig;
    struct err err;

    (void)state;
    options.pull_ms = 20;
    set_up(&rig, &plan, &options);
    for (uint32_t i = 0; i < 2; i++)
        must_start(&rig, &pulls[i], i);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(ps_pull_wait(rig.c, pulls[i].pull, &err), PS_EDEADLINE);
    tear_down(&rig);

    plan = (struct fake_plan){ .n_shards = 1,
                               .fault_at = 1,
                               .fault_type = FRAME_PULL,
                               .fault = FAKE_REFUSE,
                               .refusal = PS_ETOOBIG };
    set_up(&rig, &plan, NULL);
    fill_table(&rig);
    for (uint32_t i = 0; i < 3; i++)
        must_start(&rig, &pulls[i], i);
    must_end(&rig, &pulls[2]);
    assert_int_equal(ps_pull_wait(rig.c, pulls[1].pull, &err), PS_ETOOBIG);
    must_end(&rig, &pulls[0]);
    tear_down(&rig);
    free(pulls);
}

/* Each step: three pulls, a push, two pulls. Those behind a push see it, wherever the connection breaks. */
static int run_steps(struct rig *rig, struct err *err)
{
    float before[3][N_KEYS * FAKE_DIM], after[2][N_KEYS * FAKE_DIM],
        sum[N_KEYS * FAKE_DIM] = { 0 }, values[N_KEYS * FAKE_DIM];
    struct ps_pull_section s = { .table = rig->table, .n_keys = N_KEYS, .keys = keys };
    struct ps_pull_section sections[5] = { s, s, s, s, s };
    struct ps_pull *pulls[5];
    int status = 0;

    for (uint32_t i = 0; i < 5; i++)
        sections[i].dst = i < 3 ? before[i] : after[i - 3];
    for (uint32_t step = 0; step < N_STEPS && !status; step++) {
        for (uint32_t i = 0; i < 3 && !status; i++)
            status = ps_pull_start(rig->c, step, &sections[i], 1, &pulls[i], err);
        if (!status)
            status = push_step(rig->c, rig->table, step, err);
        for (uint32_t i = 3; i < 5 && !status; i++)
            status = ps_pull_start(rig->c, step + 1, &sections[i], 1, &pulls[i], err);
        for (uint32_t i = 5; i-- > 0 && !status;)
            status = ps_pull_wait(rig->c, pulls[i], err);
        values_of_step(step, values);
        for (uint32_t i = 0; i < N_KEYS * FAKE_DIM; i++)
            sum[i] += values[i];
        for (uint32_t i = 0; i < 2 && !status; i++)
            assert_memory_equal(after[i], sum, sizeof sum);
    }
    return status ? status : ps_leave(rig->c, err);
}

static void pulls_see_the_pushes_before_them_wherever_the_connection_breaks(void **state)
{
    static const enum fake_fault faults[] = { FAKE_DROP_BEFORE, FAKE_DROP_AFTER };
    struct fake_plan plan = { .n_shards = 2, .shuffles_pulls = true, .seed = 51000004 };
    struct rig rig;
    struct err err;

    (void)state;
    for (uint32_t i = 0; i < COUNT_OF(faults); i++) {
        bool was_hit = true;

        plan.fault = faults[i];
        for (plan.fault_at = 10; was_hit; plan.fault_at++) {
            set_up(&rig, &plan, NULL);
            if (run_steps(&rig, &err))
                fail_msg("fault %d at frame %ld: %s", (int)plan.fault, plan.fault_at, err.text);
            halt(&rig);
            was_hit = rig.f->n_frames > plan.fault_at;
            check_applied_once(rig.f);
            tear_down(&rig);
        }
        assert_true(plan.fault_at > 50);
    }
}

/* ---- several threads ---- */

#define N_THREADS 4u
#define N_AT_ONCE 5u
#define N_CALLS 400u

struct puller {
    struct rig *rig;
    uint64_t seed;
    pthread_t thread;
    uint32_t n_right, n_cancelled, n_wrong;
};

static void end_one(struct puller *p, struct one_pull *pull, bool cancels)
{
    struct err err;
    int status;

    if (cancels)
        ps_pull_cancel(p->rig->c, pull->pull);
    status = ps_pull_wait(p->rig->c, pull->pull, &err);
    pull->pull = NULL;
    if (!status && has_right_rows(pull))
        p->n_right++;
    else if (cancels && status == -ECANCELED)
        p->n_cancelled++;
    else
        p->n_wrong++;
}

static void *pull_at_random(void *arg)
{
    struct puller *p = arg;
    struct one_pull *pulls = memory_alloc(N_AT_ONCE * sizeof *pulls);
    struct err err;

    for (uint32_t i = 0; i < N_CALLS; i++) {
        uint64_t dice = hash_mix2(p->seed, i);
        struct one_pull *pull = &pulls[dice % N_AT_ONCE];

        if (pull->pull)
            end_one(p, pull, dice >> 8 & 1 && dice >> 9 & 1);
        else if (start_pull(p->rig, pull, dice, &err))
            p->n_wrong++;
    }
    for (uint32_t i = 0; i < N_AT_ONCE; i++)
        if (pulls[i].pull)
            end_one(p, &pulls[i], false);
    free(pulls);
    return NULL;
}

/* Of other rows, so that those that the threads pull stay what they are. */
static void push_meanwhile(struct rig *rig)
{
    static const uint64_t other_keys[] = { N_ROWS + 1, N_ROWS + 2, N_ROWS + 5 };
    float values[COUNT_OF(other_keys) * FAKE_DIM] = { 1 };
    struct ps_push_section push = { .table = rig->table,
                                    .n_keys = COUNT_OF(other_keys),
                                    .keys = other_keys,
                                    .values = values };
    struct ps_stats stats;
    struct err err;

    for (uint64_t clock = 1; clock < 50; clock++) {
        if (ps_push(rig->c, clock, 1, true, &push, 1, &err))
            fail_msg("%s", err.text);
        ps_stats(rig->c, &stats);
        assert_int_equal(stats.pushes, clock + 1);
    }
    if (ps_flush(rig->c, &err))
        fail_msg("%s", err.text);
}

static void run_pullers(struct fake_plan plan)
{
    struct puller pullers[N_THREADS];
    uint32_t n_done = 0;
    struct rig rig;

    set_up(&rig, &plan, NULL);
    fill_table(&rig);
    for (uint32_t i = 0; i < N_THREADS; i++) {
        pullers[i] = (struct puller){ .rig = &rig, .seed = plan.seed + i };
        assert_int_equal(pthread_create(&pullers[i].thread, NULL, pull_at_random, &pullers[i]),
                         0);
    }
    push_meanwhile(&rig);
    for (uint32_t i = 0; i < N_THREADS; i++) {
        pthread_join(pullers[i].thread, NULL);
        assert_int_equal(pullers[i].n_wrong, 0);
        n_done += pullers[i].n_right + pullers[i].n_cancelled;
    }
    assert_true(n_done > N_THREADS * N_CALLS / 4);
    tear_down(&rig);
}

static void threads_that_pull_at_random_get_their_own_rows(void **state)
{
    struct fake_plan plan = {
        .n_shards = 3, .fault_at = -1, .shuffles_pulls = true, .seed = 51000005
    };

    (void)state;
    printf("seed %llu\n", (unsigned long long)plan.seed);
    run_pullers(plan);
    plan.fault = FAKE_DROP_AFTER; /* and once a connection breaks */
    plan.fault_type = FRAME_PULL;
    plan.fault_at = 500;
    run_pullers(plan);
}

static void *wait_until_cancelled(void *arg)
{
    struct one_pull *p = arg;
    struct err err;

    assert_int_equal(ps_pull_wait((struct ps_client *)(uintptr_t)p->row_keys[0], p->pull, &err),
                     -ECANCELED);
    return NULL;
}

static void one_thread_waits_for_a_pull_and_others_are_refused(void **state)
{
    struct fake_plan plan = { .n_shards = 1, .fault_at = -1, .holds_pulls = true };
    struct one_pull *p = memory_alloc(sizeof *p);
    struct ps_stats stats = { 0 };
    pthread_t thread;
    struct rig rig;
    struct err err;

    (void)state;
    set_up(&rig, &plan, NULL);
    must_start(&rig, p, 1);
    p->row_keys[0] = (uintptr_t)rig.c;
    assert_int_equal(pthread_create(&thread, NULL, wait_until_cancelled, p), 0);
    while (!stats.waiting_ns)
        ps_stats(rig.c, &stats);
    assert_int_equal(ps_pull_wait(rig.c, p->pull, &err), -EINVAL);
    assert_non_null(strstr(err.text, "another thread"));
    ps_pull_cancel(rig.c, p->pull);
    pthread_join(thread, NULL);
    tear_down(&rig);
    free(p);
}

/* ---- calls that cannot be meant ---- */

static void assert_pull_refused(const struct rig *rig, const struct ps_pull_section *sections,
                                uint32_t n, const char *words)
{
    struct ps_pull *pull;
    struct err err;

    assert_int_equal(ps_pull_start(rig->c, 1, sections, n, &pull, &err), -EINVAL);
    if (!strstr(err.text, words))
        fail_msg("\"%s\" lacks \"%s\"", err.text, words);
}

static void assert_push_refused(const struct rig *rig, const struct ps_push_section *sections,
                                uint32_t n, const char *words)
{
    struct err err;

    assert_int_equal(ps_push(rig->c, 1, 1, true, sections, n, &err), -EINVAL);
    if (!strstr(err.text, words))
        fail_msg("\"%s\" lacks \"%s\"", err.text, words);
}

static void a_pull_that_cannot_be_meant_is_refused_with_a_sentence(void **state)
{
    static const uint64_t unsorted[] = { 1, 7, 5 }, twice[] = { 1, 7, 7 };
    static const struct ps_state_sink sink = { 0 };
    struct fake_plan plan = { .n_shards = 2, .fault_at = -1 };
    float rows[N_KEYS * FAKE_DIM];
    struct ps_pull_section s = { .n_keys = 3, .keys = unsorted, .dst = rows };
    const uint32_t numbers[] = { 0, 1, 2 };
    struct pulled_rows pulled = { 0 };
    struct rig rig;

    (void)state;
    set_up(&rig, &plan, NULL);
    assert_pull_refused(&rig, &s, 1, "section 0: key 5 follows 7: keys must ascend");
    s.keys = twice;
    assert_pull_refused(&rig, &s, 1, "key 7 follows 7");
    s.keys = keys;
    assert_pull_refused(&rig, &s, 257, "257 sections: it may have 256");
    assert_pull_refused(&rig, NULL, 1, "without an array");
    s.table = 1;
    assert_pull_refused(&rig, &s, 1, "no table 1, this client has 1");
    s.table = 0;
    s.codec = (enum codec_id)99;
    assert_pull_refused(&rig, &s, 1, "no codec 99");
    s.codec = CODEC_FP32;
    s.dst = NULL;
    assert_pull_refused(&rig, &s, 1, "3 keys, and no array of rows");
    s.sink = &sink;
    assert_pull_refused(&rig, &s, 1, "no array of rows");
    s.dst = rows;
    assert_pull_refused(&rig, &s, 1, "a sink without take()");
    s.sink = NULL;
    s.keys = NULL;
    assert_pull_refused(&rig, &s, 1, "3 keys, and no array of keys");
    s.keys = keys;
    s.pulled = &pulled;
    s.rows = numbers;
    assert_pull_refused(&rig, &s, 1, "rows stay as they are sent in one section");
    s.rows = NULL;
    assert_pull_refused(&rig, (struct ps_pull_section[]){ s, s }, 2, "section 1: rows stay");
    assert_int_equal(push_and_flush(&rig, 0, NULL), 0);
    tear_down(&rig);
}

static void a_push_that_cannot_be_meant_is_refused_with_a_sentence(void **state)
{
    static const uint64_t unsorted[] = { 1, 7, 5 };
    struct fake_plan plan = { .n_shards = 2, .fault_at = -1 };
    struct ps_options options = { .reader = true };
    float values[N_KEYS * FAKE_DIM] = { 0 };
    struct ps_push_section s[2] = { { .n_keys = 3, .keys = unsorted, .values = values } };
    struct rig rig;

    (void)state;
    set_up(&rig, &plan, NULL);
    assert_push_refused(&rig, s, 1, "key 5 follows 7");
    s[0].keys = keys;
    s[1] = s[0];
    assert_push_refused(&rig, s, 2, "section 1: table 0 has a section already");
    s[1].table = UINT32_MAX;
    assert_push_refused(&rig, s, 2, "no table 4294967295");
    s[0].op = (enum section_op)9;
    assert_push_refused(&rig, s, 1, "no operation 9");
    s[0].op = SECTION_ASSIGN;
    s[0].encoded = (const uint8_t *)values;
    assert_push_refused(&rig, s, 1, "only gradients");
    s[0].op = SECTION_GRADIENT;
    s[0].encoded = NULL;
    s[0].values = NULL;
    assert_push_refused(&rig, s, 1, "no array of rows");
    assert_push_refused(&rig, s, 1000, "1000 sections");
    halt(&rig);
    assert_int_equal(rig.f->shards[0].n_applied, 0);
    tear_down(&rig);
    set_up(&rig, &plan, &options);
    assert_push_refused(&rig, NULL, 0, "a reader does not push");
    tear_down(&rig);
}

static void nothing_is_called_after_the_farewell(void **state)
{
    struct fake_plan plan = { .n_shards = 2, .fault_at = -1, .holds_pulls = true };
    struct table_spec spec = make_spec("late");
    struct one_pull *p = memory_alloc(sizeof *p);
    struct ps_pull *pull;
    uint32_t table;
    struct rig rig, other;
    struct err err;

    (void)state;
    set_up(&rig, &plan, NULL);
    set_up(&other, &plan, NULL);
    must_start(&rig, p, 1);
    assert_int_equal(ps_pull_wait(other.c, p->pull, &err), -EINVAL); /* of another client */
    ps_pull_cancel(other.c, p->pull);
    assert_int_equal(ps_leave(rig.c, &err), 0);
    assert_int_equal(ps_pull_wait(rig.c, p->pull, &err), -ECANCELED);
    assert_int_equal(ps_pull_start(rig.c, 1, NULL, 0, &pull, &err), -EINVAL);
    assert_string_equal(err.text, "this client has left");
    assert_int_equal(push_step(rig.c, rig.table, 0, &err), -EINVAL);
    assert_int_equal(ps_flush(rig.c, &err), -EINVAL);
    assert_int_equal(ps_table(rig.c, &spec, &table, &err), -EINVAL);
    assert_int_equal(ps_table_find(rig.c, &spec, &table, &err), -EINVAL);
    assert_int_equal(ps_leave(rig.c, &err), -EINVAL);
    tear_down(&other);
    tear_down(&rig);
    free(p);
}

/* Sections of which about one in four is right. */
static int pull_something(struct rig *rig, uint64_t dice, struct err *err)
{
    static const uint64_t unsorted[] = { 3, 2, 1 };
    struct ps_pull_section *sections = memory_alloc(300 * sizeof *sections);
    float rows[N_KEYS * FAKE_DIM];
    struct ps_pull *pull;
    int status;

    for (uint32_t i = 0; i < 300; i++)
        sections[i] =
            (struct ps_pull_section){ .table = dice >> 10 & 1,
                                      .n_keys = 3,
                                      .keys = dice >> 11 & 1 || i < 3 ? keys : unsorted,
                                      .dst = rows };
    status =
        ps_pull_start(rig->c, dice & 7, sections, (uint32_t)(dice >> 20) % 300, &pull, err);
    if (!status)
        status = ps_pull_wait(rig->c, pull, err);
    free(sections);
    return status;
}

static int call_something(struct rig *rig, struct one_pull *p, uint64_t dice, struct err *err)
{
    switch (dice >> 8 & 7) {
    case 0:
    case 1:
    case 2:
        (void)(p->pull && ps_pull_wait(rig->c, p->pull, err)); /* or another's, by now */
        return start_pull(rig, p, dice, err);
    case 3:
    case 4:
        return ps_pull_wait(rig->c, p->pull, err);
    case 5:
        ps_pull_cancel(rig->c, dice >> 16 & 3 ? p->pull : NULL);
        return 0;
    case 6:
        return ps_push(rig->c, 1, 1, dice >> 16 & 1, NULL, dice >> 17 & 1, err);
    default:
        return pull_something(rig, dice, err);
    }
}

/* Calls in any order, with handles of pulls that have ended and arguments that are wrong. */
static void random_calls_never_end_the_process(void **state)
{
    const uint64_t seed = 51000006;
    struct fake_plan plan = { .n_shards = 2, .fault_at = -1, .shuffles_pulls = true };
    struct one_pull *pulls = memory_alloc(N_AT_ONCE * sizeof *pulls);
    uint32_t n_done = 0, n_refused = 0, n_cancelled = 0;
    struct rig rig;
    struct err err;

    (void)state;
    printf("seed %llu\n", (unsigned long long)seed);
    set_up(&rig, &plan, NULL);
    fill_table(&rig);
    for (uint64_t i = 0; i < 2000; i++) {
        uint64_t dice = hash_mix2(seed, i);
        int status = call_something(&rig, &pulls[dice % N_AT_ONCE], dice, &err);

        n_done += status == 0;
        n_refused += status == -EINVAL;
        n_cancelled += status == -ECANCELED;
    }
    assert_int_equal(n_done + n_refused + n_cancelled, 2000);
    assert_true(n_done > 500 && n_refused > 200 && n_cancelled > 20);
    ps_pull_cancel(rig.c, NULL);
    tear_down(&rig);
    free(pulls);
}

/* ---- who does the network's work ---- */

static uint64_t own_cpu_ns(void)
{
    struct timespec spent;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return (uint64_t)spent.tv_sec * 1000000000u + (uint64_t)spent.tv_nsec;
}

static void a_thread_that_waits_reads_its_answers_itself(void **state)
{
    struct ps_options options = make_options("");
    struct ps_stats before, after;
    float rows[N_KEYS * FAKE_DIM];
    uint64_t own_ns;
    struct rig rig;
    struct err err;

    (void)state;
    options.drives = options.is_interruptible = true;
    set_up(&rig, &(struct fake_plan){ .n_shards = 1 }, &options);
    for (uint32_t i = 0; i < 50; i++)
        assert_int_equal(pull_rows(rig.c, rig.table, 0, rows, &err), 0);
    ps_stats(rig.c, &before);
    own_ns = own_cpu_ns();
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(pull_rows(rig.c, rig.table, 0, rows, &err), 0);
    own_ns = own_cpu_ns() - own_ns;
    ps_stats(rig.c, &after);
    if (after.net_ns - before.net_ns > own_ns / 2)
        fail_msg("the network thread took %llu ns, its caller %llu",
                 (unsigned long long)(after.net_ns - before.net_ns),
                 (unsigned long long)own_ns);
    tear_down(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_pulls_are_under_way_and_waited_for_in_any_order),
        cmocka_unit_test(rows_that_stay_as_they_are_sent_are_those_that_were_asked_for),
        cmocka_unit_test(a_pull_that_is_cancelled_leaves_the_others_and_is_used_again),
        cmocka_unit_test(
            a_fence_ends_all_pulls_that_were_under_way_also_after_the_worker_goes_on),
        cmocka_unit_test(each_pull_has_its_deadline_and_a_refusal_is_of_one_pull),
        cmocka_unit_test(pulls_see_the_pushes_before_them_wherever_the_connection_breaks),
        cmocka_unit_test(threads_that_pull_at_random_get_their_own_rows),
        cmocka_unit_test(one_thread_waits_for_a_pull_and_others_are_refused),
        cmocka_unit_test(a_pull_that_cannot_be_meant_is_refused_with_a_sentence),
        cmocka_unit_test(a_push_that_cannot_be_meant_is_refused_with_a_sentence),
        cmocka_unit_test(nothing_is_called_after_the_farewell),
        cmocka_unit_test(random_calls_never_end_the_process),
        cmocka_unit_test(a_thread_that_waits_reads_its_answers_itself),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) +
           cmocka_run_group_tests_name("threads that drive", tests, all_drive, NULL);
}
