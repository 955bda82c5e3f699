#include "tests/sim/client.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/node.h"
#include "worker/client/ps.h"

#define FOREVER_MS 3600000u

/* The pull of one step. */
struct step_pull {
    struct ps_pull *pull; /* NULL: none is under way */
    bool is_here;         /* its rows are, or it has none */
    uint64_t clock;
    uint32_t n_keys; /* that it asks for */
    uint8_t numbers[PLAN_N_KEYS_MAX];
    uint64_t keys[PLAN_N_KEYS_MAX];
    struct ps_pull_section sections[PLAN_N_TABLES_MAX];
    float *rows[PLAN_N_TABLES_MAX]; /* owned */
};

struct client_state {
    struct ps_client *ps;
    uint64_t clock; /* steps that are done */
    uint64_t incarnation, last_seq;
    struct {
        uint64_t clock;
        uint32_t part, n_parts;
        enum section_op op;
    } push;                                   /* that is being made */
    uint64_t asked;                           /* steps whose rows were asked for */
    struct step_pull pulls[PLAN_N_PULLS_MAX]; /* that of a step at step % PLAN_N_PULLS_MAX */
    float *values[PLAN_N_TABLES_MAX];         /* owned */
    float *states[PLAN_N_TABLES_MAX];         /* owned */
};

static void start_later(struct client *c, uint64_t delay_us);

/* Of the process that runs: there may be two of a rank. */
static struct client_state *state_of(void)
{
    return process_current()->state;
}

/* --- pushes --- */

void client_numbers(struct client *c, uint64_t incarnation)
{
    struct client_state *s = state_of();
    struct sent_push like = {
        .rank = c->rank, .incarnation = incarnation, .clock = s->push.clock, .op = s->push.op
    };

    if (s->incarnation != incarnation)
        s->last_seq = 0;
    s->incarnation = incarnation;
    like.seq = ++s->last_seq;
    for (uint32_t i = 0; i < c->world->plan.n_shards; i++) {
        like.shard = i;
        (void)push_history_make(&c->world->push_history, &c->world->plan, &like, s->push.part,
                                s->push.n_parts);
    }
}

bool client_lies(const struct client *c, uint64_t *ret_incarnation)
{
    const struct plan *p = &c->world->plan;
    const struct process *accused;
    const struct client_state *s;

    /* Behind the middle of a job the third worker may be through with it; with backup workers at any clock. */
    if (c->rank != p->liar || c->clock >= p->n_steps / 2 || p->n_backups)
        return false;
    accused = c->world->clients[p->accused].process;
    s = accused ? accused->state : NULL;
    *ret_incarnation = s ? s->incarnation : 0;
    return *ret_incarnation != 0;
}

static void fill_section(struct client *c, uint32_t table, uint64_t *keys,
                         struct ps_push_section *ret)
{
    const struct plan *p = &c->world->plan;
    struct client_state *s = state_of();
    uint32_t n = 0;

    for (uint32_t key = 0; key < p->n_keys; key++) {
        if (key % s->push.n_parts != s->push.part ||
            !plan_pushes(p, c->rank, s->push.clock, table, key))
            continue;
        keys[n] = plan_key(key);
        for (uint32_t i = 0; i < p->dims[table]; i++)
            s->values[table][(size_t)n * p->dims[table] + i] =
                plan_gradient(p, c->rank, s->push.clock, table, key, i);
        n++;
    }
    *ret = (struct ps_push_section){ .table = table,
                                     .op = SECTION_GRADIENT,
                                     .codec = CODEC_FP32,
                                     .n_keys = n,
                                     .keys = keys,
                                     .values = s->values[table] };
}

/* Rows that are set, without or with their state. */
static void fill_assigned(struct client *c, uint32_t table, uint64_t *keys,
                          struct ps_push_section *ret)
{
    const struct plan *p = &c->world->plan;
    const uint32_t dim = p->dims[table], n_state = p->widths[table] - dim;
    struct client_state *s = state_of();
    uint32_t n = 0;

    for (uint32_t key = 0; key < p->n_keys; key++) {
        if (!plan_assigns(p, c->rank, s->push.clock, table, key))
            continue;
        keys[n] = plan_key(key);
        for (uint32_t i = 0; i < dim; i++)
            s->values[table][(size_t)n * dim + i] =
                plan_assigned(p, c->rank, s->push.clock, table, key, i);
        for (uint32_t i = 0; i < n_state; i++)
            s->states[table][(size_t)n * n_state + i] =
                plan_assigned(p, c->rank, s->push.clock, table, key, dim + i);
        n++;
    }
    *ret = (struct ps_push_section){ .table = table,
                                     .op = s->push.op,
                                     .codec = CODEC_FP32,
                                     .n_keys = n,
                                     .keys = keys,
                                     .values = s->values[table],
                                     .state = s->states[table],
                                     .steps = plan_steps(p, c->rank, s->push.clock) };
}

/* Before the gradients of a clock, if the plan says so. */
static int assign(struct client *c, uint64_t clock, struct err *err)
{
    const struct plan *p = &c->world->plan;
    struct client_state *s = state_of();
    uint64_t keys[PLAN_N_TABLES_MAX][PLAN_N_KEYS_MAX];
    struct ps_push_section sections[PLAN_N_TABLES_MAX];

    s->push.clock = clock;
    s->push.op = plan_op(p, c->rank, clock);
    if (s->push.op == SECTION_GRADIENT)
        return 0;
    world_trace(c->world, "rank %u assigns at clock %llu", c->rank, (unsigned long long)clock);
    for (uint32_t table = 0; table < p->n_tables; table++)
        fill_assigned(c, table, keys[table], &sections[table]);
    return ps_push(s->ps, clock, p->n_samples[c->rank], false, sections, p->n_tables, err);
}

static int push(struct client *c, uint64_t clock, struct err *err)
{
    const struct plan *p = &c->world->plan;
    struct client_state *s = state_of();
    uint32_t n_parts = dice_once_in(&machine.dice, 4) ? 2 : 1;
    uint64_t keys[PLAN_N_TABLES_MAX][PLAN_N_KEYS_MAX];
    struct ps_push_section sections[PLAN_N_TABLES_MAX];
    int status = 0;

    world_trace(c->world, "rank %u pushes clock %llu", c->rank, (unsigned long long)clock);
    s->push.clock = clock;
    s->push.op = SECTION_GRADIENT;
    s->push.n_parts = n_parts;
    for (uint32_t i = 0; i < n_parts && !status; i++) {
        s->push.part = i;
        for (uint32_t table = 0; table < p->n_tables; table++)
            fill_section(c, table, keys[table], &sections[table]);
        status = ps_push(s->ps, clock, p->n_samples[c->rank], i == n_parts - 1, sections,
                         p->n_tables, err);
    }
    return status;
}

/* --- pulls --- */

static struct step_pull *pull_of(uint64_t clock)
{
    return &state_of()->pulls[clock % PLAN_N_PULLS_MAX];
}

/* Which keys a pull asks for: a part of all, of all tables. */
static int start_pull(struct client *c, struct step_pull *pull, struct err *err)
{
    const struct plan *p = &c->world->plan;

    pull->n_keys = 0;
    for (uint32_t key = 0; key < p->n_keys; key++)
        if (plan_asks_for(p, c->rank, pull->clock, key)) {
            pull->numbers[pull->n_keys] = (uint8_t)key;
            pull->keys[pull->n_keys++] = plan_key(key);
        }
    for (uint32_t i = 0; i < p->n_tables; i++)
        pull->sections[i] = (struct ps_pull_section){ .table = i,
                                                      .codec = CODEC_FP32,
                                                      .n_keys = pull->n_keys,
                                                      .keys = pull->keys,
                                                      .dst = pull->rows[i] };
    return ps_pull_start(state_of()->ps, pull->clock, pull->sections, p->n_tables, &pull->pull,
                         err);
}

/* Is it what the shard had? */
static bool is_same(const struct client *c, uint32_t shard, const struct step_pull *pull,
                    const struct shard_answer *a)
{
    const struct plan *p = &c->world->plan;

    for (uint32_t table = 0; table < p->n_tables; table++) {
        uint32_t dim = p->dims[table], n = dim < PLAN_DIM_MAX ? dim : PLAN_DIM_MAX;

        for (uint32_t i = 0; i < pull->n_keys; i++)
            for (uint32_t k = 0; k < n && plan_shard_of(p, pull->numbers[i]) == shard; k++)
                if (pull->rows[table][(size_t)i * dim + k] !=
                    a->rows[table][pull->numbers[i]][k])
                    return false;
    }
    return true;
}

static void check_pulled(const struct client *c, uint32_t shard, const struct step_pull *pull)
{
    /* One of a pair that was the primary may have answered: the last one that it was. */
    for (uint32_t i = 0; i < 2 * WORLD_N_ANSWERS; i++) {
        const struct shard_record *rec = &c->world->members[i % 2][shard];
        const struct shard_answer *a =
            rec->answers ? &rec->answers[c->rank * WORLD_N_ANSWERS + i / 2] : NULL;

        if (a && a->n_facts != UINT64_MAX && a->clock == pull->clock &&
            (a->is_mixed || is_same(c, shard, pull, a)))
            return;
    }
    world_fail(c->world, "rank %u, pull of clock %llu: shard %u never had these rows", c->rank,
               (unsigned long long)pull->clock, shard);
}

static int end_pull(struct client *c, struct step_pull *pull, struct err *err)
{
    struct ps_pull *started = pull->pull;
    int status;

    pull->pull = NULL;
    status = ps_pull_wait(state_of()->ps, started, err);
    if (status)
        return status;
    pull->is_here = true;
    for (uint32_t i = 0; i < c->world->plan.n_shards; i++)
        check_pulled(c, i, pull);
    return 0;
}

/* Whoever has several under way now and then wants one no longer, and asks again. */
static int cancel_and_ask(struct client *c, struct step_pull *pull, struct err *err)
{
    struct ps_pull *started = pull->pull;
    int status;

    pull->pull = NULL;
    ps_pull_cancel(state_of()->ps, started);
    status = ps_pull_wait(state_of()->ps, started, err);
    return status == -ECANCELED ? start_pull(c, pull, err) : status;
}

/* The next step's rows, if it asks for any. */
static int ask(struct client *c, struct err *err)
{
    struct client_state *s = state_of();
    struct step_pull *pull = pull_of(s->asked);

    pull->clock = s->asked++;
    pull->is_here = !plan_pulls_at(&c->world->plan, c->rank, pull->clock);
    return pull->is_here ? 0 : start_pull(c, pull, err);
}

/* --- scans --- */

/* What a scan has brought of its table. */
struct scanned {
    uint32_t table, n[PLAN_N_KEYS_MAX]; /* how often each key came */
    uint64_t n_starts[PLAN_N_SHARDS_MAX];
};

static void note_scanned(const struct client *c, const struct ps_scan_rows *rows,
                         struct scanned *ret)
{
    for (size_t i = 0; i < rows->n; i++) {
        const uint64_t number = (rows->keys[i] - 1) / 3;

        if (number >= c->world->plan.n_keys || plan_key((uint32_t)number) != rows->keys[i])
            world_fail(c->world, "rank %u: a scan has key %llu", c->rank,
                       (unsigned long long)rows->keys[i]);
        ret->n[number]++;
    }
}

/* A key whose row has been there since the scan's version came once; no key came twice, whatever happened. A shard that
 * has restarted may have had that version twice, once of pushes that nobody was told of. */
static void check_scanned(const struct client *c, const struct ps_scan *scan,
                          const struct scanned *got)
{
    for (uint32_t key = 0; key < c->world->plan.n_keys; key++) {
        const uint32_t shard = plan_shard_of(&c->world->plan, key);
        const struct shard_record *rec = c->world->records[shard];
        const struct model_row *row = &rec->model.rows[got->table][key];
        const bool is_due = row->is_there && row->made <= ps_scan_version(scan, shard) &&
                            rec->n_starts == got->n_starts[shard] &&
                            !c->world->n_promotions; /* the other one may have been asked */

        if (got->n[key] > 1 || (is_due && got->n[key] == 0))
            world_fail(c->world, "rank %u: a scan of table %u has key %u %u times", c->rank,
                       got->table, key, got->n[key]);
    }
}

/* Rows are read before they are safe, so a restart may lose what a scan has seen. */
static bool has_restarted(const struct client *c, const struct scanned *got)
{
    for (uint32_t i = 0; i < c->world->plan.n_shards; i++)
        if (c->world->records[i]->n_starts != got->n_starts[i])
            return true;
    return false;
}

/* A whole table, in small slices. The rows in them are compared where a shard sends them (taps.c). */
static int scan(struct client *c, struct err *err)
{
    const struct plan *p = &c->world->plan;
    struct scanned got = { .table = (uint32_t)dice_roll(&machine.dice, p->n_tables) };
    struct ps_scan_options options = {
        .state = dice_once_in(&machine.dice, 2),
        .slice_bytes = (uint32_t)dice_from(&machine.dice, 1, 400),
    };
    struct ps_scan_rows rows;
    struct ps_scan *under_way;
    int status = ps_scan_start(state_of()->ps, got.table, &options, &under_way, err);

    for (uint32_t i = 0; i < p->n_shards; i++)
        got.n_starts[i] = c->world->records[i]->n_starts;
    c->is_scanning = true;
    while (!status && ps_scan_goes_on(under_way)) {
        status = ps_scan_next(under_way, &rows, err);
        if (!status)
            note_scanned(c, &rows, &got);
    }
    if (!status)
        check_scanned(c, under_way, &got);
    world_trace(c->world, "rank %u has scanned table %u: %s", c->rank, got.table,
                status_text(status));
    c->is_scanning = false;
    ps_scan_free(under_way);
    return status == -ESTALE && has_restarted(c, &got) ? 0 : status;
}

/* --- steps --- */

/* Of several under way some other one may be waited for first, or cancelled. */
static int wait_for_one(struct client *c, struct step_pull *wanted, struct err *err)
{
    const struct plan *p = &c->world->plan;
    struct step_pull *pull = wanted;

    if (p->n_pulls > 1 && dice_once_in(&machine.dice, 3))
        pull = pull_of(dice_roll(&machine.dice, PLAN_N_PULLS_MAX));
    if (!pull->pull)
        pull = wanted;
    if (p->n_pulls > 1 && dice_once_in(&machine.dice, 8))
        return cancel_and_ask(c, pull, err);
    return end_pull(c, pull, err);
}

static int get_rows(struct client *c, struct err *err)
{
    struct client_state *s = state_of();
    uint64_t clock = s->clock;
    int status = 0;

    while (!status && (s->asked <= clock || !pull_of(clock)->is_here))
        status = s->asked <= clock ? ask(c, err) : wait_for_one(c, pull_of(clock), err);
    return status;
}

/* May the rows of one more step be asked for while this one is computed? */
static bool may_ask(const struct plan *p)
{
    struct client_state *s = state_of();
    uint32_t n_under_way = 0;

    for (uint32_t i = 0; i < PLAN_N_PULLS_MAX; i++)
        n_under_way += s->pulls[i].pull != NULL;
    return n_under_way < p->n_pulls &&
           s->asked <= s->clock + (p->n_pulls > 1 ? p->n_pulls : p->ahead) &&
           s->asked < p->n_steps;
}

/* With backup workers the job does not wait for this one: most times it goes on where the job is. */
static void catch_up(struct client *c)
{
    const struct plan *p = &c->world->plan;
    struct client_state *s = state_of();
    struct ps_stats stats;
    uint64_t clock;

    if (!p->n_backups || dice_once_in(&machine.dice, 4))
        return;
    ps_stats(s->ps, &stats);
    clock = stats.min_clock < p->n_steps ? stats.min_clock : p->n_steps - 1;
    if (clock > s->clock)
        c->clock = s->clock = s->asked = clock;
}

static int step(struct client *c, struct err *err)
{
    const struct plan *p = &c->world->plan;
    struct client_state *s = state_of();
    int status;

    catch_up(c);
    status = get_rows(c, err);

    for (uint32_t i = 0; i < p->n_pulls && !status && may_ask(p); i++)
        status = ask(c, err);
    if (status)
        return status;
    fiber_sleep(dice_from(&machine.dice, p->compute_us / 4, p->compute_us));
    status = assign(c, s->clock, err);
    if (!status)
        status = push(c, s->clock, err);
    if (!status && p->scans && dice_once_in(&machine.dice, 4))
        status = scan(c, err);
    if (!status)
        c->clock = ++s->clock;
    return status;
}

static int open_tables(struct client *c, struct err *err)
{
    const struct plan *p = &c->world->plan;
    uint32_t id;
    int status = 0;

    for (uint32_t i = 0; i < p->n_tables && !status; i++) {
        status = ps_table(state_of()->ps, &p->specs[i], &id, err);
        if (!status && id != i)
            world_fail(c->world, "rank %u: table %u has number %u", c->rank, i, id);
    }
    return status;
}

/* Ends it, whatever has become of it. */
static void drop_pull(struct step_pull *pull)
{
    struct err ignored;

    if (!pull->pull)
        return;
    ps_pull_cancel(state_of()->ps, pull->pull);
    if (ps_pull_wait(state_of()->ps, pull->pull, &ignored))
        pull->is_here = false;
    pull->pull = NULL;
}

static void go_on_at(struct client *c, uint64_t clock)
{
    struct client_state *s = state_of();

    for (uint32_t i = 0; i < PLAN_N_PULLS_MAX; i++)
        drop_pull(&s->pulls[i]);
    c->clock = s->clock = s->asked = clock;
    s->incarnation = 0; /* has pushed nothing yet */
}

/* Whoever has flushed relies on it that all shards have all that it has pushed, also where that were no rows. */
static int flush(const struct client *c, struct err *err)
{
    int status = ps_flush(state_of()->ps, err);

    if (status)
        return status;
    for (const struct sent_push *p = c->world->push_history.first; p; p = p->next)
        if (p->rank == c->rank && p->incarnation == state_of()->incarnation && !p->is_acked)
            world_fail(c->world,
                       "rank %u has flushed, and shard %u has not acknowledged push %llu",
                       c->rank, p->shard, (unsigned long long)p->seq);
    return 0;
}

/* 0: all steps are done, and it has left. */
static int train(struct client *c, struct err *err)
{
    int status = 0;

    while (!status && state_of()->clock < c->world->plan.n_steps)
        status = step(c, err);
    for (uint32_t i = 0; i < PLAN_N_PULLS_MAX && !status; i++)
        if (state_of()->pulls[i].pull)
            status = end_pull(c, &state_of()->pulls[i], err);
    if (!status)
        status = flush(c, err);
    if (!status)
        status = ps_leave(state_of()->ps, err);
    return status == PS_EDEADLINE && state_of()->clock >= c->world->plan.n_steps ? 0 : status;
}

static int work(struct client *c, struct err *err)
{
    int status = open_tables(c, err);

    if (status)
        return status;
    go_on_at(c, ps_clock(state_of()->ps));
    status = train(c, err);
    for (int i = 0; status == PS_EFENCED && i < 20; i++) {
        world_trace(c->world, "rank %u is fenced", c->rank);
        go_on_at(c, ps_resume(state_of()->ps));
        status = train(c, err);
    }
    return status;
}

static struct client_state *new_state(const struct plan *p)
{
    struct client_state *s = calloc(1, sizeof *s);

    assert(s);
    for (uint32_t i = 0; i < p->n_tables; i++) {
        size_t n_bytes = (size_t)p->n_keys * p->dims[i] * sizeof(float);

        s->values[i] = malloc(n_bytes);
        s->states[i] =
            malloc((size_t)p->n_keys * (p->widths[i] - p->dims[i]) * sizeof(float) + 1);
        assert(s->values[i] && s->states[i]);
        for (uint32_t k = 0; k < PLAN_N_PULLS_MAX; k++) {
            s->pulls[k].rows[i] = malloc(n_bytes);
            assert(s->pulls[k].rows[i]);
        }
    }
    return s;
}

static void on_notice(void *arg, const char *sentence)
{
    const struct client *c = arg;

    world_trace(c->world, "rank %u: %s", c->rank, sentence);
}

static void run(void *owner)
{
    static const char *const names[] = { "a", "b", "c", "d", "e", "f", "g", "h" };
    struct client *c = owner;
    const struct plan *p = &c->world->plan;
    struct ps_options options = { .servers = p->pairs.has_standby
                                                 ? "10.0.0.1:7070,10.0.0.11:7070"
                                                 : "10.0.0.1:7070",
                                  .name = names[c->n_processes % COUNT_OF(names)],
                                  .job = "job",
                                  .rank = c->rank,
                                  .n_workers = p->n_workers,
                                  .n_backups = p->n_backups,
                                  .names_keys = p->names_keys,
                                  .mode = p->mode,
                                  .bound = p->bound,
                                  .connect_ms = FOREVER_MS,
                                  .give_up_ms = FOREVER_MS,
                                  .pull_ms = FOREVER_MS,
                                  .on_notice = on_notice,
                                  .notice_arg = c };
    struct err err = { 0 };
    int status;

    c->is_scanning = false;
    process_current()->state = new_state(p);
    status = ps_open(&options, &state_of()->ps, &err);
    if (!status)
        status = work(c, &err);
    process_current()->exit_status = status;
    snprintf(process_current()->last_error, sizeof process_current()->last_error, "%.390s",
             err.text);
    ps_close(state_of()->ps);
}

static void on_end(void *owner)
{
    struct client *c = owner;
    const struct process *p = c->process;

    if (p != process_current()) /* it had been replaced */
        return;
    c->process = NULL;
    if (p->exit_status == 0) {
        c->is_done = true;
        world_trace(c->world, "rank %u has finished", c->rank);
    } else if (p->exit_status == PS_EFENCED ||
               (p->exit_status == PS_EPROTO && c->world->plan.durability != WAL_FSYNC)) {
        world_trace(c->world, "rank %u gives up: %s", c->rank, p->last_error);
        start_later(c, 1000000);
    } else {
        world_fail(c->world, "rank %u ends: %s", c->rank, p->last_error);
    }
}

/* --- life --- */

static void on_start(void *owner, uint64_t number, void *data)
{
    struct client *c = owner;
    char name[24];

    (void)number;
    (void)data;
    if (c->process)
        return;
    snprintf(name, sizeof name, "rank %u", c->rank);
    c->n_processes++;
    c->process = process_start(name, NULL, run, on_end, c);
    c->process->node = UINT32_MAX;
    c->process->rank = c->rank;
    c->process->drift_ppm = plan_drift(&c->world->plan, 1000 + c->rank);
}

static void start_later(struct client *c, uint64_t delay_us)
{
    events_in(&machine.events, delay_us, on_start, c, 0, NULL);
}

void client_init(struct client *c, struct world *world, uint32_t rank)
{
    *c = (struct client){ .world = world, .rank = rank };
}

void client_start(struct client *c)
{
    start_later(c, dice_roll(&c->world->dice, 30000));
}

void client_crash(struct client *c)
{
    if (c->is_done || !c->process)
        return;
    world_trace(c->world, "rank %u dies", c->rank);
    process_kill(c->process);
    c->process = NULL;
    start_later(c, dice_from(&c->world->dice, 1000, 1500 * (uint64_t)c->world->plan.lease_ms));
}

static void on_late(void *owner, uint64_t number, void *data)
{
    (void)number;
    (void)data;
    process_kill(owner);
}

void client_replace(struct client *c, uint64_t for_us)
{
    if (c->is_done || !c->process)
        return;
    world_trace(c->world, "rank %u stands still for %llu us, and is replaced", c->rank,
                (unsigned long long)for_us);
    process_freeze(c->process, for_us);
    /* Two processes of a rank that ask the clock within one millisecond would be one incarnation. */
    c->process->behind_ms = 3600000;
    events_in(&machine.events, for_us + dice_from(&c->world->dice, 10000, 200000), on_late,
              c->process, 0, NULL);
    c->process = NULL;
    start_later(c, dice_from(&c->world->dice, 1000, for_us));
}

void client_freeze(struct client *c, uint64_t for_us)
{
    if (!c->process)
        return;
    world_trace(c->world, "rank %u stands still for %llu us", c->rank,
                (unsigned long long)for_us);
    process_freeze(c->process, for_us);
}
