#include "tests/sim/check.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/core/sync_point.h"
#include "tests/sim/agree.h"
#include "tests/sim/node.h"
#include "tests/sim/optim.h"
#include "tests/sim/os.h"

/* --- the same? --- */

static void check_row(const struct world *w, const struct check_place *at,
                      const struct model *model, uint32_t table, uint32_t key,
                      const struct row *row, const char *when)
{
    const struct model_row *reference = &model->rows[table][key];
    uint32_t width = w->plan.widths[table];
    const float *values = model->values[table] + (size_t)key * width;

    if (!row && !reference->is_there)
        return;
    if (!row || !reference->is_there)
        world_fail(w, "shard %u, %s: table %u, key %u is %s", at->shard, when, table, key,
                   row ? "there, and should not be" : "not there");
    if (row_version(row) != reference->version)
        world_fail(w, "shard %u, %s: table %u, key %u has version %llu, not %llu", at->shard,
                   when, table, key, (unsigned long long)row_version(row),
                   (unsigned long long)reference->version);
    for (uint32_t i = 0; i < width; i++) /* bit for bit, but for the sign of 0 */
        if (row->floats[i] != values[i])
            world_fail(w, "shard %u, %s: table %u, key %u, float %u is %g, not %g", at->shard,
                       when, table, key, i, (double)row->floats[i], (double)values[i]);
}

static void check_table(const struct world *w, const struct check_place *at, struct shard *core,
                        const struct model *model, uint32_t table, const char *when) ON_SHARD
{
    const struct shard_table *t = shard_table(core, table);
    uint64_t n_rows = 0;

    if (t->n_pushes != model->n_pushes[table])
        world_fail(w, "shard %u, %s: table %u has taken %llu steps, not %llu", at->shard, when,
                   table, (unsigned long long)t->n_pushes,
                   (unsigned long long)model->n_pushes[table]);
    for (uint32_t key = 0; key < w->plan.n_keys; key++) {
        uint64_t name = plan_key(key);
        struct row *row;

        table_find_batch(t->rows, &name, 1, &row);
        check_row(w, at, model, table, key, row, when);
        n_rows += row != NULL;
    }
    if (table_n_rows(t->rows) != n_rows)
        world_fail(w, "shard %u, %s: table %u has rows of keys that nobody pushed", at->shard,
                   when, table);
}

static void check_worker(const struct world *w, const struct check_place *at,
                         const struct worker *is, const struct model_worker *reference,
                         const char *when)
{
    if (is->state != reference->state || is->incarnation != reference->incarnation ||
        is->clock != reference->clock || is->last_seq != reference->last_seq)
        world_fail(
            w,
            "shard %u, %s: rank %u is %s, incarnation %llu, clock %llu, push %llu; not %s, "
            "%llu, %llu, %llu",
            at->shard, when, is->rank, worker_state_name(is->state),
            (unsigned long long)is->incarnation, (unsigned long long)is->clock,
            (unsigned long long)is->last_seq, worker_state_name(reference->state),
            (unsigned long long)reference->incarnation, (unsigned long long)reference->clock,
            (unsigned long long)reference->last_seq);
}

void check_same(const struct world *w, const struct check_place *at, struct shard *core,
                struct model *model, const char *when)
{
    if (shard_n_tables(core) != model->n_tables || shard_version(core) != model->version)
        world_fail(w, "shard %u, %s: %u tables and version %llu, not %u and %llu", at->shard,
                   when, shard_n_tables(core), (unsigned long long)shard_version(core),
                   model->n_tables, (unsigned long long)model->version);
    for (uint32_t i = 0; i < model->n_tables; i++)
        check_table(w, at, core, model, i, when);
    for (uint32_t i = 0; model->run && i < w->plan.n_workers; i++) {
        const struct worker *is = membership_worker(shard_membership(core), "job", i);

        if (!is)
            world_fail(w, "shard %u, %s: rank %u is not known", at->shard, when, i);
        check_worker(w, at, is, &model->workers[i], when);
    }
}

/* --- a disk --- */

static void on_report(void *arg, const char *sentence)
{
    world_trace(arg, "rebuild: %s", sentence);
}

int check_rebuild(const struct world *w, const struct check_place *at, const struct disk *disk,
                  const struct recover_shard_at *to, struct shard **ret,
                  struct recover_shard_facts *ret_facts, struct err *err)
{
    char data_dir[32];
    struct recover_shard_config config = {
        .files = &disk->ops,
        .data_dir = data_dir,
        .shard_index = at->local,
        .identity = { .node = at->node, .shard = at->shard, .n_shards = w->plan.n_shards },
        .at = to ? *to : (struct recover_shard_at){ 0 },
        .follows = check_record(w, at)->life.follower != NULL,
        .keep = UINT64_MAX,
        .report = on_report,
        .arg = (void *)(uintptr_t)w
    };
    struct shard *core = shard_new(&(struct shard_config){ .shard = at->shard,
                                                           .n_shards = w->plan.n_shards,
                                                           .lease_ms = w->plan.lease_ms,
                                                           .join_ms = 3 * w->plan.lease_ms,
                                                           .park_ms = 60000,
                                                           .sync_steps = w->plan.sync_steps });
    int status;

    snprintf(data_dir, sizeof data_dir, OS_DATA_DIR "%u",
             (at->member ? w->seconds : w->nodes)[at->node].number);
    status = recover_shard_run(&config, core, world_ms(w), ret_facts, err);
    *ret = core;
    if (!status)
        return 0;
    shard_free(core);
    *ret = NULL;
    return status;
}

uint64_t check_floor(const struct world *w, const struct shard_record *rec, bool loses_power)
{
    uint64_t floor = loses_power ? rec->safe : rec->written;

    if (rec->lost && rec->lost <= floor)
        floor = rec->lost - 1;
    if (w->plan.durability == WAL_FSYNC && rec->promised > floor)
        floor = rec->promised;
    return floor;
}

/* Of a pair the other one may have it (pair.h). */
static void check_acked(const struct world *w, const struct shard_record *rec, uint64_t last)
{
    const struct history *h = &rec->history;
    const uint32_t shard = rec->shard;

    for (uint64_t i = last; i < h->n; i++) {
        const struct fact *fact = &h->facts[i];

        if (fact->type == SHARD_EVENT_PUSH && fact->push->is_acked &&
            w->plan.durability == WAL_FSYNC && !node_is_paired(w, rec))
            world_fail(w, "shard %u: push %llu of rank %u was acknowledged, and is lost", shard,
                       (unsigned long long)fact->push->seq, fact->rank);
    }
}

void check_promise(const struct world *w, const struct shard_record *rec, uint64_t last,
                   uint64_t keep, bool loses_power)
{
    uint64_t floor = check_floor(w, rec, loses_power);

    if (last > rec->history.n)
        world_fail(w, "shard %u: %llu records are there, %llu were recorded", rec->shard,
                   (unsigned long long)last, (unsigned long long)rec->history.n);
    check_acked(w, rec, last);
    floor = floor > keep ? keep : floor;
    /* Rows that are told for a push which is not there are no part of the log (wal_replay.h). */
    while (floor > last && rec->history.facts[floor - 1].type == SHARD_EVENT_ROWS)
        floor--;
    if (last < floor)
        world_fail(w, "shard %u%s: of %llu records that were safe %llu are there", rec->shard,
                   rec->member ? " of the second member" : "", (unsigned long long)floor,
                   (unsigned long long)last);
}

void check_fold(const struct world *w, const struct shard_record *rec, uint64_t last,
                struct model *ret)
{
    model_init(ret, &w->plan);
    model_copy(&rec->base, ret);
    for (uint64_t i = 0; i < last; i++) {
        const char *wrong = model_apply(ret, &rec->history.facts[i]);

        if (wrong)
            world_fail(w, "shard %u: record %llu: %s", rec->shard, (unsigned long long)i + 1,
                       wrong);
    }
}

void check_crash_now(struct world *w, const struct check_place *at, const struct disk *disk,
                     bool loses_power)
{
    struct recover_shard_facts facts;
    struct err err = { 0 };
    struct model model;
    struct shard *core;
    struct disk copy;

    disk_clone(disk, dice_of(w->plan.seed, 1000 + machine.events.n_run), &copy);
    if (loses_power)
        disk_power_cut(&copy);
    if (check_rebuild(w, at, &copy, NULL, &core, &facts, &err) != 0)
        world_fail(w, "shard %u: if it died now it could not start: %s", at->shard, err.text);
    check_promise(w, check_record(w, at), facts.end.last, UINT64_MAX, loses_power);
    check_fold(w, check_record(w, at), facts.end.last, &model);
    if (facts.needs <= facts.end.last) /* else a standby goes on with what the primary has */
        check_same(w, at, core, &model, "if it died now");
    model_deinit(&model);
    shard_free(core);
    disk_deinit(&copy);
}

/* --- the interval --- */

/* A record of that age is on the disk, but for the time that the disk has taken meanwhile, or its process has stood still,
 * and for ten times that age after a failure. */
static uint64_t interval_us(const struct plan *p)
{
    return 1000 * ((uint64_t)p->interval_ms + 3) * 101 /
           100; /* by a clock that is as slow as plan_drift() has it */
}

void check_interval(struct world *w, struct shard_record *rec)
{
    const uint32_t shard = rec->shard;
    uint64_t bound_us = interval_us(&w->plan), now_us = machine_now_us(), held_us;
    const struct history *h = &rec->history;

    if (w->plan.durability != WAL_ASYNC || !rec->life.log_fiber)
        return;
    held_us = rec->life.log_fiber->disk_us + process_frozen_us(rec->life.log_fiber->process);
    if (now_us < rec->failed_us + 10 * bound_us + held_us - rec->life.failed_held_us)
        return;
    while (rec->due < h->n &&
           h->facts[rec->due].here_us + bound_us + held_us - h->facts[rec->due].at_held_us <
               now_us)
        rec->due++;
    if (rec->due > rec->safe && (!rec->lost || rec->due < rec->lost))
        world_fail(
            w, "shard %u: record %llu is %llu us old and not on the disk, interval %u ms",
            shard, (unsigned long long)rec->due,
            (unsigned long long)(now_us - h->facts[rec->due - 1].here_us), w->plan.interval_ms);
}

/* --- lock step --- */

void calm_init(struct calm *c, const struct plan *plan)
{
    *c = (struct calm){ .plan = plan };
}

/* The weighted sum of a clock's gradients, exact in fp32. False: nobody pushed the key. */
static bool sum_clock(const struct plan *p, uint64_t clock, uint32_t table, uint32_t key,
                      float *sum)
{
    uint32_t total = 0;
    bool any = false;

    for (uint32_t rank = 0; rank < p->n_workers; rank++)
        total += p->n_samples[rank];
    for (uint32_t rank = 0; rank < p->n_workers; rank++) {
        if (!plan_pushes(p, rank, clock, table, key))
            continue;
        any = true;
        for (uint32_t i = 0; i < p->dims[table] && i < PLAN_DIM_MAX; i++)
            sum[i] += (float)p->n_samples[rank] / (float)total *
                      plan_gradient(p, rank, clock, table, key, i);
    }
    return any;
}

void calm_step(struct calm *c)
{
    const struct plan *p = c->plan;

    c->n_steps++;
    for (uint32_t table = 0; table < p->n_tables; table++) {
        struct table_spec spec = p->specs[table];

        if (spec.dim > PLAN_DIM_MAX)
            spec.dim = PLAN_DIM_MAX; /* sgd: each float by itself */
        for (uint32_t key = 0; key < p->n_keys; key++) {
            float sum[PLAN_DIM_MAX] = { 0 }, *row = c->rows[table][key];

            if (!sum_clock(p, c->n_steps - 1, table, key, sum))
                continue;
            if (!(c->is_there[table] >> key & 1))
                optimizer_begin(&spec, 0, row);
            c->is_there[table] |= UINT64_C(1) << key;
            optimizer_step(&spec, c->n_steps, sum, row);
        }
    }
}

static void check_calm_row(const struct world *w, const struct check_place *at,
                           const struct calm *c, uint32_t table, uint32_t key,
                           const struct row *row, const char *when)
{
    const struct plan *p = &w->plan;
    uint32_t width = p->dims[table] > PLAN_DIM_MAX ? PLAN_DIM_MAX : p->widths[table];
    const float *want = c->rows[table][key];
    bool any = c->is_there[table] >> key & 1, same = any == (row != NULL);

    for (uint32_t i = 0; row && i < width; i++)
        same = same && row->floats[i] == want[i];
    if (!same)
        world_fail(w, "shard %u, %s %llu: table %u, key %u has %g, undisturbed %g", at->shard,
                   when, (unsigned long long)c->n_steps - 1, table, key,
                   row ? (double)row->floats[0] : 0, (double)want[0]);
}

/* After the clocks of a run that nothing disturbs. */
static void check_calm(const struct world *w, const struct check_place *at, struct shard *core,
                       const struct calm *c, const char *when) ON_SHARD
{
    const struct plan *p = &w->plan;

    for (uint32_t table = 0; table < p->n_tables; table++)
        for (uint32_t key = 0; key < p->n_keys; key++) {
            uint64_t name = plan_key(key);
            struct row *row;

            if (plan_shard_of(p, key) != at->shard)
                continue;
            table_find_batch(shard_table(core, table)->rows, &name, 1, &row);
            check_calm_row(w, at, c, table, key, row, when);
        }
}

uint64_t check_n_steps(const struct world *w, uint32_t shard, uint64_t record)
{
    const struct history *h = &w->records[shard]->history;

    while (record && h->facts[record - 1].type != SHARD_EVENT_COMBINE)
        record--;
    return record ? h->facts[record - 1].clock + 1 : 0;
}

void check_clock(const struct world *w, const struct check_place *at, const struct disk *disk,
                 const struct calm *calm, bool is_kept)
{
    const struct recover_shard_at to = { .job = "job", .clock = calm->n_steps };
    struct recover_shard_facts facts;
    struct err err = { 0 };
    struct shard *core;
    struct disk copy;
    int status;

    disk_clone(disk, dice_of(w->plan.seed, 2000 + calm->n_steps), &copy);
    status = check_rebuild(w, at, &copy, &to, &core, &facts, &err);
    if (!status)
        check_calm(w, at, core, calm, "cut at clock");
    else if (is_kept || status != PS_ENOCHECKPOINT)
        world_fail(w, "shard %u: cut at clock %llu: %s", at->shard,
                   (unsigned long long)calm->n_steps - 1, err.text);
    if (core)
        shard_free(core);
    disk_deinit(&copy);
}

/* --- bounded staleness --- */

uint64_t check_min_clock(const struct world *w, uint32_t shard, uint64_t record)
{
    struct model model;
    uint64_t min_clock;

    check_fold(w, w->records[shard], record, &model);
    min_clock = model_min_clock(&model);
    model_deinit(&model);
    return min_clock;
}

/* Up to that record every push of a step below `sync_point` is there, and none of a later one. */
static void check_pushes(const struct world *w, const struct check_place *at,
                         uint64_t sync_point, uint64_t last)
{
    const struct history *h = &w->records[at->shard]->history;
    uint64_t n_in = 0, n_made = 0;

    for (uint64_t i = 0; i < h->n; i++) {
        if (h->facts[i].type != SHARD_EVENT_PUSH)
            continue;
        n_in += i < last;
        if ((i < last) != (h->facts[i].push->clock < sync_point))
            world_fail(w,
                       "shard %u: sync point at %llu: push %llu of rank %u, clock %llu, is %s",
                       at->shard, (unsigned long long)sync_point,
                       (unsigned long long)h->facts[i].push->seq, h->facts[i].rank,
                       (unsigned long long)h->facts[i].push->clock, i < last ? "in" : "out");
    }
    for (const struct sent_push *p = w->push_history.first; p; p = p->next)
        n_made += p->shard == at->shard && p->clock < sync_point;
    if (w->plan.lease_ms == PLAN_LEASE_MS && n_in != n_made)
        world_fail(w, "shard %u: sync point at %llu: %llu pushes are in, %llu were made",
                   at->shard, (unsigned long long)sync_point, (unsigned long long)n_in,
                   (unsigned long long)n_made);
}

/* A push in slices is in the log before its last row was decided. Behind the cut stand keys that got no row from it or
 * from one before: whoever went on with the shard never had them. */
static void fold_late(const struct world *w, uint32_t shard, uint64_t last, struct model *model)
{
    const struct history *h = &w->records[shard]->history;

    for (uint64_t i = last; i < h->n && !h->facts[i].is_dropped; i++) {
        const struct fact *fact = &h->facts[i];
        const char *wrong;

        if (fact->type != SHARD_EVENT_ROWS || fact->op != SHARD_ROWS_LEFT ||
            fact->version > model->version)
            continue;
        wrong = model_apply(model, fact);
        if (wrong)
            world_fail(w, "shard %u: record %llu: %s", shard, (unsigned long long)i + 1, wrong);
    }
}

bool check_sync_point(const struct world *w, const struct check_place *at,
                      const struct disk *disk, uint64_t sync_point, bool is_kept)
{
    const struct recover_shard_at to = { .job = "job", .clock = sync_point };
    struct recover_shard_facts facts;
    struct err err = { 0 };
    struct model model;
    struct shard *core;
    struct disk copy;
    int status;

    disk_clone(disk, dice_of(w->plan.seed, 3000 + sync_point), &copy);
    status = check_rebuild(w, at, &copy, &to, &core, &facts, &err);
    disk_deinit(&copy);
    if (status && (is_kept || status != PS_ENOCHECKPOINT))
        world_fail(w, "shard %u: sync point at %llu: %s", at->shard,
                   (unsigned long long)sync_point, err.text);
    if (status)
        return false;
    if (facts.has_later || sync_point_of(core, "job", sync_point - 1) != SYNC_POINT_EXACT)
        world_fail(w, "shard %u: sync point at %llu is not exact", at->shard,
                   (unsigned long long)sync_point);
    check_pushes(w, at, sync_point, facts.end.last);
    check_fold(w, w->records[at->shard], facts.end.last, &model);
    fold_late(w, at->shard, facts.end.last, &model);
    check_same(w, at, core, &model, "at a sync point");
    model_deinit(&model);
    shard_free(core);
    return true;
}

void check_end(const struct world *w, const struct check_place *at, struct shard *core,
               const struct calm *calm)
{
    const struct history *h = &w->records[at->shard]->history;
    const struct worker *any = membership_worker(shard_membership(core), "job", 0);
    uint64_t n_acked = 0, n_in = 0;

    for (const struct sent_push *p = w->push_history.first; p; p = p->next)
        n_acked += p->shard == at->shard && p->is_acked;
    for (uint64_t i = 0; i < h->n; i++)
        n_in += h->facts[i].type == SHARD_EVENT_PUSH && h->facts[i].push->is_acked;
    if (!plan_may_lose(&w->plan) && n_in != n_acked)
        world_fail(w, "shard %u: of %llu acknowledged pushes %llu are in it", at->shard,
                   (unsigned long long)n_acked, (unsigned long long)n_in);
    if (any && any->job->staleness_violations)
        world_fail(w, "shard %u: %llu pulls were answered beyond the bound", at->shard,
                   (unsigned long long)any->job->staleness_violations);
    if (!plan_is_exact(&w->plan))
        return;
    agree_check_end(w, at->shard);
    if (agree_n_whole(w, at->shard) == w->plan.n_steps)
        check_calm(w, at, core, calm, "at the end of clock");
}
