#include "tests/sim/keeper.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

static void on_step(void *owner, uint64_t life, void *data);

static uint32_t n_parts(const struct keeper *k)
{
    return k->world->plan.shards_per_node;
}

static void go_on(struct keeper *k, uint64_t most_us)
{
    events_in(&k->world->events, dice_from(&k->world->dice, most_us / 8, most_us), on_step, k,
              k->life, NULL);
}

static void rest(struct keeper *k)
{
    uint64_t every_us = k->world->plan.checkpoint_every_us;

    k->is_under_way = false;
    /* Less and less often: some schedules wait for leases at the end. */
    go_on(k, (every_us ? every_us : 20000) * (1 + k->n_done / 4));
}

/* --- the end of one --- */

static void drop(struct keeper *k)
{
    enter_shard();
    for (uint32_t i = 0; i < n_parts(k); i++) {
        struct keeper_part *part = &k->parts[i];

        if (!part->saver)
            continue;
        if (!part->is_closed)
            saver_discard(part->saver);
        saver_end(part->saver, k->servers[i].core, SHARD_WALK_DROPPED);
        part->saver = NULL;
    }
    k->base = 0; /* what went meanwhile is not known */
}

static void fail(struct keeper *k, int status)
{
    world_tell(k->world, "node %u: the checkpoint fails: %s", k->node, status_text(status));
    drop(k);
    rest(k);
}

static void keep(struct keeper *k, const uint64_t *firsts)
{
    enter_shard();
    for (uint32_t i = 0; i < n_parts(k); i++) {
        saver_end(k->parts[i].saver, k->servers[i].core, SHARD_WALK_KEPT);
        k->parts[i].saver = NULL;
        logger_saved(&k->servers[i].log, k->parts[i].first, firsts[i] + 1);
    }
    k->n_deltas = k->manifest->base ? k->n_deltas + 1 : 0;
    k->base = k->manifest->number;
    k->n_done++;
    world_tell(k->world, "node %u: checkpoint %llu is whole, base %llu", k->node,
               (unsigned long long)k->base, (unsigned long long)k->manifest->base);
}

static struct keeper_save *note_save(struct keeper *k)
{
    struct keeper_save *save = &k->saves[k->n_saves++ % PLAN_N_KEPT_MAX];

    *save = (struct keeper_save){ .is_sure = false };
    for (uint32_t i = 0; i < n_parts(k); i++)
        save->through[i] = k->parts[i].through;
    return save;
}

const struct keeper_save *keeper_oldest(const struct keeper *k, bool *ret_is_cut)
{
    uint64_t keep = k->world->plan.keep, n = k->n_saves < keep ? k->n_saves : keep;

    *ret_is_cut = k->n_done > 0;
    for (; n > 0; n--) {
        const struct keeper_save *save = &k->saves[(k->n_saves - n) % PLAN_N_KEPT_MAX];

        if (save->is_sure)
            return save;
    }
    return NULL;
}

static void commit(struct keeper *k)
{
    uint64_t firsts[PLAN_N_SHARDS_MAX];
    struct keeper_save *save = note_save(k);
    struct manifest *m = k->manifest;
    struct err err = { 0 };
    bool has_delta = false;
    int status;

    for (uint32_t i = 0; i < n_parts(k); i++) {
        m->files[i] = k->parts[i].facts;
        has_delta = has_delta || m->files[i].is_delta;
    }
    if (!has_delta)
        m->base = 0;
    status =
        checkpoint_commit(&k->disk->ops, k->data_dir, m, k->world->plan.keep, firsts, &err);
    if (k->disk->dead)
        return;
    if (status) {
        fail(k, status);
        return;
    }
    save->is_sure = true;
    keep(k, firsts);
    rest(k);
}

/* --- a part --- */

static int begin(struct keeper *k, uint32_t i)
{
    struct keeper_part *part = &k->parts[i];
    struct server *s = &k->servers[i];
    struct saver_config config = {
        .files = &k->disk->ops,
        .data_dir = k->data_dir,
        .number = k->manifest->number,
        .shard_index = i,
        .identity = { .node = k->node, .shard = s->shard, .n_shards = k->world->plan.n_shards },
        .base = k->manifest->base
    };
    struct err err = { 0 };
    int status;

    enter_shard();
    if (!shard_walk_may_be_delta(s->core))
        config.base = 0;
    part->first = recorder_last(&s->log.recorder);
    status = saver_begin(&config, s->core, part->first, &part->saver, &err);
    if (status)
        return status == -EAGAIN ? 0 : status;
    saver_note_jobs(s->core, k->manifest);
    part->state = PART_FILL;
    return 0;
}

/* A slice is read, or a buffer written. */
static int fill(struct keeper *k, uint32_t i)
{
    struct keeper_part *part = &k->parts[i];
    struct saver_buffer *buffer;
    struct err err = { 0 };
    int status = 0;

    enter_shard();
    if (dice_once_in(&k->world->dice, 2) ||
        saver_fill(part->saver, k->servers[i].core) != SAVER_MORE) {
        buffer = saver_take(part->saver);
        if (buffer) {
            status = saver_write(part->saver, buffer, &err);
            saver_give_back(part->saver, buffer);
        }
    }
    if (!status && saver_is_written(part->saver)) {
        part->through = recorder_last(&k->servers[i].log.recorder);
        logger_sync(&k->servers[i].log, part->through);
        part->state = PART_CLOSE;
    }
    return status;
}

static int close_file(struct keeper_part *part)
{
    struct err err = { 0 };
    int status = saver_close(part->saver, part->through, &part->facts, &err);

    part->is_closed = true;
    part->state = PART_SYNC;
    return status;
}

static int await(struct keeper *k, uint32_t i)
{
    struct keeper_part *part = &k->parts[i];
    int status = logger_await(&k->servers[i].log, part->first, part->through);

    if (status == -EAGAIN)
        return 0;
    part->state = PART_DONE;
    return status;
}

static int step_part(struct keeper *k, uint32_t i)
{
    switch (k->parts[i].state) {
    case PART_BEGIN:
        return begin(k, i);
    case PART_FILL:
        return fill(k, i);
    case PART_CLOSE:
        return close_file(&k->parts[i]);
    case PART_SYNC:
        return await(k, i);
    case PART_DONE:
        break;
    }
    return 0;
}

static bool is_done(const struct keeper *k)
{
    for (uint32_t i = 0; i < n_parts(k); i++)
        if (k->parts[i].state != PART_DONE)
            return false;
    return true;
}

/* --- the whole --- */

static bool has_gap(const struct keeper *k)
{
    for (uint32_t i = 0; i < n_parts(k); i++)
        if (k->servers[i].book->lost)
            return true;
    return false;
}

static void start(struct keeper *k)
{
    const struct plan *p = &k->world->plan;
    struct err err = { 0 };
    int status;

    *k->manifest = (struct manifest){ .unix_ms = world_ms(k->world),
                                      .node = k->node,
                                      .n_nodes = p->n_nodes,
                                      .shards_per_node = p->shards_per_node,
                                      .n_shards = p->n_shards,
                                      .n_files = p->shards_per_node };
    if (k->n_deltas < p->n_deltas_max)
        k->manifest->base = k->base;
    for (uint32_t i = 0; i < n_parts(k); i++)
        k->parts[i] = (struct keeper_part){ .state = PART_BEGIN };
    status = checkpoint_next(&k->disk->ops, k->data_dir, &k->manifest->number, &err);
    if (status) {
        rest(k);
        return;
    }
    k->is_under_way = true;
    go_on(k, k->world->plan.disk_us);
}

static void on_step(void *owner, uint64_t life, void *data)
{
    struct keeper *k = owner;
    uint32_t i = (uint32_t)dice_roll(&k->world->dice, n_parts(k));
    int status;

    (void)data;
    if (!life || life != k->life)
        return;
    if (!k->is_under_way) {
        if (k->world->plan.checkpoint_every_us || has_gap(k))
            start(k);
        else
            rest(k);
        return;
    }
    if (is_done(k)) {
        commit(k);
        return;
    }
    status = step_part(k, i);
    if (status && !k->disk->dead)
        fail(k, status);
    else if (!status)
        go_on(k, k->world->plan.disk_us / 4 + 8);
}

void keeper_init(struct keeper *k)
{
    k->manifest = calloc(1, sizeof *k->manifest);
    assert(k->manifest);
}

void keeper_deinit(struct keeper *k)
{
    keeper_stop(k);
    free(k->manifest);
}

void keeper_start(struct keeper *k, uint64_t life, uint64_t base, uint32_t n_deltas)
{
    k->life = life;
    k->base = base;
    k->n_deltas = n_deltas;
    rest(k);
}

void keeper_stop(struct keeper *k)
{
    if (k->life && k->is_under_way)
        drop(k);
    k->is_under_way = false;
    k->life = 0;
}
