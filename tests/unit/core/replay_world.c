#include "tests/unit/core/replay_world.h"

#include "server/core/bsp.h"
#include "server/core/lock_step.h"
#include "server/core/push_apply.h"

static struct table_spec spec_of(const struct world *w, uint32_t id)
{
    static const struct {
        uint32_t dim;
        enum table_spec_optim optim;
        enum table_spec_storage storage;
        enum table_spec_mode mode;
    } kinds[N_TABLES] = {
        { 64, TABLE_SPEC_ADAGRAD, TABLE_SPEC_FP32, TABLE_SPEC_MODE_JOB },
        { 33, TABLE_SPEC_ADAM, TABLE_SPEC_BF16, TABLE_SPEC_MODE_JOB },     /* admission, idle */
        { 16, TABLE_SPEC_FTRL, TABLE_SPEC_FP16, TABLE_SPEC_MODE_JOB },     /* budget, oldest */
        { 32, TABLE_SPEC_MOMENTUM, TABLE_SPEC_FP32, TABLE_SPEC_MODE_JOB }, /* dense */
        { 17, TABLE_SPEC_ROWWISE_ADAGRAD, TABLE_SPEC_BF16, TABLE_SPEC_MODE_BSP },
        { 24, TABLE_SPEC_SGD, TABLE_SPEC_BF16, TABLE_SPEC_MODE_JOB },      /* budget, rarest */
        { 8, TABLE_SPEC_ADAGRAD, TABLE_SPEC_FP16, TABLE_SPEC_MODE_ASYNC }, /* rare rows */
        { 20, TABLE_SPEC_ADAGRAD, TABLE_SPEC_FP32,
          TABLE_SPEC_MODE_BSP }, /* budget of lock step, ttl */
    };
    char name[16];
    struct table_spec spec;

    snprintf(name, sizeof name, id == 7 ? "bsp/t%u" : "t%u", id);
    spec = id == 3 ? dense_spec(name, kinds[id].dim, 900 * 32, kinds[id].optim)
                   : sparse_spec(name, kinds[id].dim, kinds[id].optim);
    spec.storage = kinds[id].storage;
    spec.mode = kinds[id].mode;
    spec.clip_norm = id == 2 ? 0.5f : 0;
    spec.row_decay = id == 0 || id == 1 || id > 5 ? 0.01f : 0;
    if (id == 7)
        spec.schedule =
            (struct lr_schedule){ .decay = TABLE_SPEC_DECAY_PLATEAU, .decay_clocks = 1 };
    if (!w->shape->limits)
        return spec;
    if (id == 1)
        spec.limits = (struct table_spec_limits){ .admit_touches = 2,
                                                  .admit_clocks = 30,
                                                  .idle_clocks = 12 };
    if (id == 2)
        spec.limits = (struct table_spec_limits){ .victims = TABLE_SPEC_VICTIMS_OLDEST,
                                                  .max_bytes = 96 << 10 };
    if (id == 5)
        spec.limits = (struct table_spec_limits){ .victims = TABLE_SPEC_VICTIMS_RAREST,
                                                  .max_bytes = 40 << 10 };
    if (id == 6)
        spec.limits = (struct table_spec_limits){ .rare_touches = 2, .rare_clocks = 5 };
    if (id == 7)
        spec.limits = (struct table_spec_limits){ .victims = TABLE_SPEC_VICTIMS_OLDEST,
                                                  .max_bytes = 64 << 10,
                                                  .ttl_s = 20 };
    return spec;
}

const char *job_name(uint32_t job)
{
    static const char *const names[N_JOBS] = { "async", "ssp", "bsp" };

    return names[job];
}

static struct worker *worker_of(struct world *w, uint32_t job, uint32_t rank)
{
    enter_shard();
    return membership_worker(shard_membership(w->s), job_name(job), rank);
}

/* --- what may happen --- */

void finish_push(struct world *w)
{
    struct shard_push_result result;
    enum shard_push_state state;

    if (!w->under_way)
        return;
    enter_shard();
    shard_finish_push(w->s);
    (void)!shard_push_more(w->s, w->now_ms, &result, &state);
    assert_int_equal(state, SHARD_PUSH_DONE);
    free_push(w->under_way);
    w->under_way = NULL;
}

void join_one(struct world *w)
{
    uint32_t job = (uint32_t)roll(&w->dice, N_JOBS), rank = (uint32_t)roll(&w->dice, N_WORKERS);
    const struct worker *old = worker_of(w, job, rank);
    bool again = old && old->state == WORKER_LIVE && roll(&w->dice, 2);
    struct membership_join join = { .job = job_name(job),
                                    .rank = rank,
                                    .n_workers = N_WORKERS,
                                    .incarnation = again ? old->incarnation : ++w->incarnations,
                                    .mode = (enum table_spec_mode)(TABLE_SPEC_MODE_ASYNC + job),
                                    .bound = job == 1 ? 2 : 0,
                                    .n_backups = job == 2 ? w->n_backups : 0,
                                    .clock = old ? old->clock : 0,
                                    .last_acked = again ? old->last_seq : 0,
                                    .name = again ? "reconnected" : "tester" };
    struct worker *worker;
    struct err err;

    if (!again && roll(&w->dice, 3) == 0)
        join.clock = 0;
    enter_shard();
    finish_push(w);
    (void)!membership_join(shard_membership(w->s), &join, w->now_ms, &worker, &err);
}

void leave_one(struct world *w)
{
    struct worker *worker =
        worker_of(w, (uint32_t)roll(&w->dice, N_JOBS), (uint32_t)roll(&w->dice, N_WORKERS));

    enter_shard();
    finish_push(w);
    if (worker)
        membership_leave(shard_membership(w->s), worker);
    (void)shard_advance(w->s, w->now_ms);
}

void time_passes(struct world *w)
{
    w->now_ms += roll(&w->dice, roll(&w->dice, 8) ? LEASE_MS / 4 : 2 * LEASE_MS);
    enter_shard();
    (void)shard_advance(w->s, w->now_ms);
}

void advance_one(struct world *w)
{
    struct worker *worker =
        worker_of(w, (uint32_t)roll(&w->dice, N_JOBS), (uint32_t)roll(&w->dice, N_WORKERS));

    if (!worker || worker->state != WORKER_LIVE)
        return;
    enter_shard();
    if (membership_advance_clock(worker, worker->clock + roll(&w->dice, 2)))
        (void)shard_advance(w->s, w->now_ms);
}

static uint32_t pick_keys(struct world *w, uint32_t id, uint32_t n_wanted, uint64_t *keys)
{
    uint64_t n_keys = id == 3 ? 900 : w->shape->n_keys;
    uint32_t n = 0;

    for (uint64_t key = 0; key < n_keys && n < n_wanted; key++)
        if (roll(&w->dice, n_keys - key) < n_wanted - n)
            keys[n++] = id == 3 ? key : key * key;
    return n;
}

static void add_random(struct world *w, struct push *push, uint32_t id, uint32_t n_wanted)
{
    static const enum codec_id codecs[] = { CODEC_FP32, CODEC_BF16, CODEC_INT8, CODEC_TOPK };
    static uint64_t keys[KEYS_MAX];
    static float values[KEYS_MAX * 3 * DIM_MAX];
    const struct table_spec *spec = &shard_table(w->s, id)->spec;
    uint32_t dim = spec->dim, n = pick_keys(w, id, n_wanted, keys);
    enum section_op op = roll(&w->dice, 10)
                             ? SECTION_GRADIENT
                             : SECTION_ASSIGN + (enum section_op)roll(&w->dice, 2);

    if (id == 7 && roll(&w->dice, 4) == 0) { /* the jobs of other names are refused */
        add_section(push, id, SECTION_RATE, CODEC_FP32, dim, keys, 0, values)->steps =
            section_rate_steps(0.01f * (float)(1 + roll(&w->dice, 100)));
        return;
    }
    if (op == SECTION_ASSIGN_STATE) {
        dim += table_spec_state_floats(spec);
        for (uint32_t i = 0; i < n * dim; i++)
            values[i] =
                roll(&w->dice, 20000) ? hash_unit(hash_mix2(w->dice.seed, w->dice.n++)) : -1;
        for (uint32_t i = 0; i < n && spec->row_decay > 0; i++)
            values[(i + 1) * dim - 1] = (float)roll(&w->dice, 100);
        add_section(push, id, op, CODEC_FP32, dim, keys, n, values)->steps =
            roll(&w->dice, 100);
        return;
    }
    for (uint32_t i = 0; i < n * dim; i++)
        values[i] = roll_float(&w->dice);
    if (n && roll(&w->dice, 25) == 0)
        values[roll(&w->dice, (uint64_t)n * dim)] = NAN;
    if (op == SECTION_GRADIENT &&
        roll(&w->dice, 12) == 0) { /* refused where tables are in lock step */
        add_gradient_at(push, id, codecs[roll(&w->dice, 3)], dim, keys, n, values,
                        values + (size_t)KEYS_MAX * DIM_MAX,
                        (struct section_delay){ .lambda = 2, .constant = roll(&w->dice, 2) });
        return;
    }
    add_section(push, id, op, codecs[roll(&w->dice, COUNT_OF(codecs))], dim, keys, n, values);
}

/* Of the three, the one that is most behind in half of the cases: so that clocks become complete. */
static struct worker *pick_worker(struct world *w)
{
    uint32_t job = (uint32_t)roll(&w->dice, N_JOBS);
    struct worker *picked = worker_of(w, job, (uint32_t)roll(&w->dice, N_WORKERS));

    for (uint32_t rank = 0; rank < N_WORKERS && roll(&w->dice, 2); rank++) {
        struct worker *other = worker_of(w, job, rank);

        if (other && picked && other->state == WORKER_LIVE && other->clock < picked->clock)
            picked = other;
    }
    return picked && picked->state == WORKER_LIVE ? picked : NULL;
}

void push_one(struct world *w)
{
    struct worker *worker = pick_worker(w);
    struct shard_push_result result;
    enum shard_push_state state;
    struct push *push;
    uint32_t first, n_sections;
    bool large = roll(&w->dice, 6) == 0;

    enter_shard();
    if (!worker || shard_n_tables(w->s) == 0)
        return;
    push = next_push(worker, worker->clock);
    push->tick = roll(&w->dice, 3) != 0;
    push->n_samples = (uint32_t)roll(&w->dice, 5);
    if (roll(&w->dice, 20) == 0 && push->seq > 1)
        push->seq--;
    if (roll(&w->dice, 20) == 0 && push->clock)
        push->clock--;
    first = (uint32_t)roll(&w->dice, shard_n_tables(w->s));
    n_sections = (uint32_t)roll(&w->dice, 4);
    for (uint32_t i = 0; i < n_sections && i < shard_n_tables(w->s); i++)
        add_random(w, push, (first + i) % shard_n_tables(w->s),
                   large ? w->shape->n_large : (uint32_t)roll(&w->dice, 40));
    (void)!shard_push_begin(w->s, worker, push, w->now_ms, &result, &state);
    if (state == SHARD_PUSH_RUNNING) {
        w->under_way = push;
        w->n_large++;
        return;
    }
    w->n_overtaken += push_apply_is_under_way(w->s);
    free_push(push);
}

void go_on(struct world *w)
{
    struct shard_push_result result;
    enum shard_push_state state;

    enter_shard();
    if (!w->under_way) {
        w->n_clock_slices += lock_step_is_combining(w->s);
        lock_step_more(w->s);
        return;
    }
    (void)!shard_push_more(w->s, w->now_ms, &result, &state);
    if (state != SHARD_PUSH_DONE)
        return;
    free_push(w->under_way);
    w->under_way = NULL;
}

void table_one(struct world *w)
{
    uint32_t id;
    struct err err;

    enter_shard();
    id = shard_n_tables(w->s);
    if (id < N_TABLES) {
        struct table_spec spec = spec_of(w, id);

        (void)!shard_table_open(w->s, &spec, false, &id, &err);
    }
}

/* --- scans --- */

void drop_scans(struct world *w)
{
    for (size_t i = 0; i < w->n_scans; i++)
        kept_scan_free(&w->scans[i]);
    w->n_scans = 0;
}

static void end_scan(struct world *w)
{
    if (w->going.mode == SNAPSHOT_SCAN_FULL) {
        drop_scans(w);
        w->n_full++;
    } else {
        w->n_deltas++;
    }
    scan_end(w->s, &w->going, SNAPSHOT_SCAN_KEPT);
    w->scans[w->n_scans++] = w->going;
    w->going = (struct kept_scan){ 0 };
}

/* So that rows come and go in the middle of a table. */
static size_t slice_bytes(struct world *w)
{
    size_t most = w->shape->n_keys < 100 ? 2000 : 100000;

    return 600 + roll(&w->dice, most);
}

static void scan_some(struct world *w)
{
    bool delta;

    enter_shard();
    if (w->going.scan) {
        if (roll(&w->dice, 60) == 0) {
            scan_end(w->s, &w->going, SNAPSHOT_SCAN_DROPPED);
            kept_scan_free(&w->going);
            assert_false(snapshot_scan_may_be_delta(w->s));
            return;
        }
        for (uint64_t n = 1 + roll(&w->dice, 9); n && w->going.scan; n--)
            if (scan_on(w->s, &w->going, slice_bytes(w)))
                end_scan(w);
        return;
    }
    delta = snapshot_scan_may_be_delta(w->s) && w->n_scans < SCANS_MAX && roll(&w->dice, 4);
    if (try_scan_begin(w->s, delta ? SNAPSHOT_SCAN_DELTA : SNAPSHOT_SCAN_FULL, w->event_log->n,
                       &w->going) != 0)
        assert_true(push_apply_is_under_way(w->s));
}

/* --- the crash --- */

struct shard *restore(struct world *w)
{
    struct shard *again;

    assert_int_equal(try_restore(&w->config, w->scans, w->n_scans, w->event_log,
                                 w->event_log->n, w->now_ms, &again),
                     0);
    return again;
}

bool check(struct world *w)
{
    struct shard *again;

    enter_shard();
    if (push_apply_is_under_way(w->s)) {
        w->n_half_done++;
        w->n_clocks_half_done += w->s->large.phase != PUSH_APPLY;
        again = restore(w);
        shard_free(again);
        if (roll(&w->dice, 4))
            return false;
        finish_push(w);
    }
    bsp_finish(w->s);
    again = restore(w);
    assert_same_shard(w->s, again);
    shard_free(again);
    w->n_checks++;
    return true;
}

/* What was made again goes on in the place of what it was. */
static void crash(struct world *w)
{
    struct shard *again;

    enter_shard();
    if (w->going.scan) {
        scan_end(w->s, &w->going, SNAPSHOT_SCAN_DROPPED);
        kept_scan_free(&w->going);
    }
    again = restore(w);
    shard_set_events(w->s, NULL);
    if (w->under_way) {
        shard_finish_push(w->s);
        free_push(w->under_way);
        w->under_way = NULL;
    }
    shard_free(w->s);
    w->s = again;
    shard_set_events(w->s, &w->event_log->sink);
    w->n_crashes++;
}

void step(struct world *w)
{
    uint64_t dice = roll(&w->dice, 200);

    if (dice < 90)
        push_one(w);
    else if (dice < 130)
        go_on(w);
    else if (dice < 142)
        join_one(w);
    else if (dice < 145)
        leave_one(w);
    else if (dice < 155)
        time_passes(w);
    else if (dice < 158)
        advance_one(w);
    else if (dice < 164)
        table_one(w);
    else if (dice < 199)
        scan_some(w);
    else
        crash(w);
}

struct world begin_world_of(struct dice dice, const struct shape *shape, uint64_t round)
{
    struct world w = { .dice = dice,
                       .shape = shape,
                       .config = { .n_shards = 1,
                                   .memory_max_bytes = shape->memory_max_bytes,
                                   .lease_ms = LEASE_MS,
                                   .join_ms = JOIN_MS,
                                   .park_ms = 1000 },
                       .n_backups = shape->backups && round % 2,
                       .event_log = event_log_new() };

    w.dice.seed = hash_mix2(w.dice.seed, round);
    enter_shard();
    w.s = shard_new(&w.config);
    shard_set_events(w.s, &w.event_log->sink);
    for (uint32_t i = 0; i < 3; i++)
        table_one(&w);
    for (uint32_t i = 0; i < 4 * N_WORKERS; i++)
        join_one(&w);
    return w;
}

struct world begin_world(const char *test, const struct shape *shape, uint64_t round)
{
    return begin_world_of(dice_of_this_run(test), shape, round);
}

void end_world(struct world *w)
{
    enter_shard();
    finish_push(w);
    bsp_finish(w->s);
    assert_true(check(w));
    if (w->going.scan)
        scan_end(w->s, &w->going, SNAPSHOT_SCAN_DROPPED);
    kept_scan_free(&w->going);
    drop_scans(w);
    shard_free(w->s);
    event_log_free(w->event_log);
}
