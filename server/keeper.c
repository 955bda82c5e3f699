#include "server/keeper.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/log.h"
#include "common/mem.h"
#include "common/now.h"
#include "server/durable/epochs.h"
#include "server/store/shelf.h"

enum state { IDLE, NUMBERING, WRITING, COMMITTING, RELEASING };

struct wish {
    struct wish *next;
    keeper_on_done done;
    void *arg;
};

/* One shard's part of the work: travels to the shard's thread and back. */
struct part {
    struct mail mail;
    struct keeper *keeper;
    uint32_t index; /* of the shard on this node */
    struct part_facts facts;
    struct err err; /* status 0: written, and its log is safe */
};

struct keeper {
    struct keeper_config config;
    enum state state;
    struct keeper_record record;
    /* Owned: of the one under way, of the next, and those who are just being told. */
    struct wish *served, *waiting, *telling;
    uv_work_t work;
    uint64_t number;               /* of the next; 0: checkpoint_next() */
    uint64_t base;                 /* the last that is whole, for deltas; 0: none */
    uint32_t n_deltas;             /* since the last full one */
    uv_mutex_t lock;               /* of the manifest while shards add their jobs */
    struct manifest *manifest;     /* owned: of the one under way */
    uint64_t *firsts;              /* owned, n_shards: what each log is cut at */
    uint64_t started_ms, ended_ms; /* monotonic; of this one, and of the last */
    uint64_t moved_ms,
        n_moved;    /* when the shards' bytes were seen to move, and how many there were */
    bool is_late;   /* this one has been told to have failed */
    struct err err; /* the first that went wrong */
    uint32_t n_outstanding;
    struct part *parts; /* owned, n_shards */
};

static void start(struct keeper *k) ON_MAIN;

struct keeper *keeper_new(const struct keeper_config *config)
{
    struct keeper *k = mem_alloc(sizeof *k);

    k->config = *config;
    if (!k->config.limit_ms)
        k->config.limit_ms = KEEPER_LIMIT_MS;
    k->parts = mem_alloc(config->n_shards * sizeof *k->parts);
    k->firsts = mem_alloc(config->n_shards * sizeof *k->firsts);
    k->manifest = mem_alloc(sizeof *k->manifest);
    if (uv_mutex_init(&k->lock))
        abort();
    return k;
}

static void free_wishes(struct wish *wish)
{
    struct wish *next;

    for (; wish; wish = next) {
        next = wish->next;
        free(wish);
    }
}

void keeper_free(struct keeper *k)
{
    if (!k)
        return;
    assert(k->state == IDLE);
    free_wishes(k->waiting);
    uv_mutex_destroy(&k->lock);
    free(k->manifest);
    free(k->firsts);
    free(k->parts);
    free(k);
}

/* --- the end of one --- */

static void note_success(struct keeper *k)
{
    k->record.n_done++;
    k->record.number = k->manifest->number;
    k->record.unix_ms = k->manifest->unix_ms;
    k->record.n_rows = k->record.n_bytes = 0;
    k->record.base = k->manifest->base;
    k->record.took_ms = k->ended_ms - k->started_ms;
    for (uint32_t i = 0; i < k->config.n_shards; i++) {
        k->record.n_rows += k->parts[i].facts.n_rows;
        k->record.n_bytes += k->parts[i].facts.n_bytes;
    }
}

/* A `done` may wish for the next one. */
static void tell(struct keeper *k, struct wish *wishes) ON_MAIN
{
    struct wish *wish;

    k->telling = wishes;
    while ((wish = k->telling)) {
        k->telling = wish->next;
        wish->done(wish->arg, &k->record);
        free(wish);
    }
}

static void note_late_end(const struct keeper *k)
{
    if (k->err.status)
        log_error("checkpoint %" PRIu64 ", which is late, has failed: %s", k->manifest->number,
                  k->err.text);
    else
        log_info("checkpoint %" PRIu64 ", which is late, is written", k->manifest->number);
}

static void finish(struct keeper *k) ON_MAIN
{
    struct wish *served = k->served;

    k->state = IDLE;
    k->ended_ms = now_mono_ms();
    k->record.busy_since_unix_ms = k->record.until_unix_ms = k->record.busy_number = 0;
    k->record.error = k->err;
    if (!k->err.status)
        note_success(k);
    else if (!k->is_late)
        k->record.n_failed++;
    if (k->is_late)
        note_late_end(k);
    k->served = NULL;
    tell(k, served);
    if (k->state == IDLE && k->waiting)
        start(k);
}

/* --- RELEASING: the shards learn how it ended --- */

static void on_released(struct mail *mail, void *owner)
{
    struct part *part = CONTAINER_OF(mail, struct part, mail);
    struct keeper *k = part->keeper;

    (void)owner;
    enter_main();
    if (--k->n_outstanding == 0)
        finish(k);
}

static void send_back(struct part *part, void (*run)(struct mail *mail, void *owner))
{
    int status;

    part->mail.run = run;
    status = mailbox_post(part->keeper->config.mailbox, &part->mail);
    assert(status == 0); /* the main thread's box outlives the shards */
}

static void release_part(struct mail *mail, void *owner)
{
    struct part *part = CONTAINER_OF(mail, struct part, mail);
    const struct keeper *k = part->keeper;

    enter_shard();
    if (k->err.status)
        shard_save_end(shard_thread_save(owner), SHARD_WALK_DROPPED, 0);
    else
        shard_save_end(shard_thread_save(owner), SHARD_WALK_KEPT, k->firsts[part->index] + 1);
    send_back(part, on_released);
}

static void to_shards(struct keeper *k, void (*run)(struct mail *mail, void *owner)) ON_MAIN
{
    k->n_outstanding = k->config.n_shards;
    for (uint32_t i = 0; i < k->config.n_shards; i++) {
        int status;

        k->parts[i].mail.run = run;
        status = shard_thread_post(k->config.shards[i], &k->parts[i].mail);
        assert(status == 0); /* shards stop after the last checkpoint */
    }
}

static void release(struct keeper *k) ON_MAIN
{
    k->state = RELEASING;
    if (k->err.status) {
        k->base = 0; /* the walks are dropped: what went meanwhile is not known */
    } else {
        k->n_deltas = k->manifest->base ? k->n_deltas + 1 : 0;
        k->base = k->manifest->number;
    }
    to_shards(k, release_part);
}

/* --- COMMITTING --- */

/* With which its epoch begins: nobody is served yet, and nothing of what was before may go. */
static bool begins_epoch(const struct manifest *m)
{
    return m->number == m->map_id;
}

static void commit(uv_work_t *work)
{
    struct keeper *k = work->data;
    struct manifest *m = k->manifest;
    uint32_t keep = begins_epoch(m) ? CHECKPOINT_KEEP_ALL : k->config.keep;
    bool has_delta = false;

    enter_pool();
    for (uint32_t i = 0; i < m->n_files; i++) {
        m->files[i] = k->parts[i].facts;
        has_delta = has_delta || m->files[i].is_delta;
    }
    if (!has_delta)
        m->base = 0;
    k->err.status =
        checkpoint_commit(k->config.files, k->config.data_dir, m, keep, k->firsts, &k->err);
    if (!k->err.status && !begins_epoch(m))
        epochs_tidy(k->config.files, k->config.data_dir, m->map_id);
}

static void on_committed(uv_work_t *work, int status)
{
    struct keeper *k = work->data;

    enter_main();
    assert(status == 0);
    release(k);
}

/* --- WRITING --- */

/* Of a checkpoint that has failed: shards that were done have closed their files. */
static void discard(uv_work_t *work)
{
    struct keeper *k = work->data;
    char dir[SHELF_PATH_MAX];
    struct err err;

    enter_pool();
    if (!shelf_number_path(k->config.data_dir, k->manifest->number, dir, &err))
        shelf_remove(k->config.files, dir);
}

static void on_part_back(struct mail *mail, void *owner)
{
    struct part *part = CONTAINER_OF(mail, struct part, mail);
    struct keeper *k = part->keeper;

    (void)owner;
    enter_main();
    if (part->err.status && !k->err.status)
        k->err = part->err;
    if (--k->n_outstanding)
        return;
    k->state = COMMITTING;
    if (uv_queue_work(k->config.loop, &k->work, k->err.status ? discard : commit, on_committed))
        abort(); /* only for a NULL callback */
}

static void on_saved(void *arg, const struct part_facts *facts, const struct err *err)
{
    struct part *part = arg;

    part->facts = *facts;
    part->err = *err;
    send_back(part, on_part_back);
}

static void note_jobs(struct keeper *k, struct shard_thread *t) ON_SHARD
{
    uv_mutex_lock(&k->lock);
    saver_note_jobs(shard_thread_shard(t), k->manifest);
    uv_mutex_unlock(&k->lock);
}

static void write_part(struct mail *mail, void *owner)
{
    struct part *part = CONTAINER_OF(mail, struct part, mail);
    struct keeper *k = part->keeper;
    struct shard_thread *t = owner;
    struct saver_config file = { .files = k->config.files,
                                 .data_dir = k->config.data_dir,
                                 .number = k->manifest->number,
                                 .shard_index = part->index,
                                 .identity = k->config.identity,
                                 .base = k->manifest->base };

    enter_shard();
    file.identity.shard += part->index;
    note_jobs(k, t);
    shard_save_begin(shard_thread_save(t), &file, on_saved, part);
}

static void start_writing(struct keeper *k) ON_MAIN
{
    k->state = WRITING;
    k->record.busy_number = k->manifest->number;
    for (uint32_t i = 0; i < k->config.n_shards; i++)
        k->parts[i] = (struct part){ .keeper = k, .index = i };
    to_shards(k, write_part);
}

/* --- NUMBERING --- */

static void find_number(uv_work_t *work)
{
    struct keeper *k = work->data;

    enter_pool();
    k->manifest->number = k->number;
    k->number = 0;
    if (!k->manifest->number)
        k->err.status =
            checkpoint_next(k->config.files, k->config.data_dir, &k->manifest->number, &k->err);
}

static void on_numbered(uv_work_t *work, int status)
{
    struct keeper *k = work->data;

    enter_main();
    assert(status == 0);
    if (k->err.status)
        finish(k);
    else
        start_writing(k);
}

/* --- the start of one --- */

static void start(struct keeper *k)
{
    k->served = k->waiting;
    k->waiting = NULL;
    k->state = NUMBERING;
    k->err = (struct err){ 0 };
    k->is_late = false;
    k->started_ms = k->moved_ms = now_mono_ms();
    k->record.busy_since_unix_ms = now_unix_ms();
    k->record.until_unix_ms = k->record.busy_since_unix_ms + k->config.limit_ms;
    *k->manifest = (struct manifest){ .unix_ms = k->record.busy_since_unix_ms,
                                      .node = k->config.identity.node,
                                      .n_nodes = k->config.n_nodes,
                                      .shards_per_node = k->config.n_shards,
                                      .n_shards = k->config.identity.n_shards,
                                      .map_id = k->config.identity.map_id,
                                      .n_files = k->config.n_shards };
    if (k->n_deltas < k->config.n_deltas_max)
        k->manifest->base = k->base;
    k->work.data = k;
    if (uv_queue_work(k->config.loop, &k->work, find_number, on_numbered))
        abort(); /* only for a NULL callback */
}

void keeper_wish(struct keeper *k, keeper_on_done done, void *arg)
{
    struct wish *wish = mem_alloc(sizeof *wish);

    *wish = (struct wish){ .next = k->waiting, .done = done, .arg = arg };
    k->waiting = wish;
    if (k->state == IDLE)
        start(k);
}

static void forget(struct wish **at, const void *arg)
{
    struct wish *wish;

    while ((wish = *at)) {
        if (wish->arg == arg) {
            *at = wish->next;
            free(wish);
        } else {
            at = &wish->next;
        }
    }
}

void keeper_forget(struct keeper *k, const void *arg)
{
    forget(&k->served, arg);
    forget(&k->waiting, arg);
    forget(&k->telling, arg);
}

/* Nothing takes a shard's hands off its file: the work goes on, and may still end well. */
static void note_lateness(struct keeper *k) ON_MAIN
{
    char name[40] = "the checkpoint";

    if (k->record.busy_number)
        snprintf(name, sizeof name, "checkpoint %" PRIu64, k->record.busy_number);
    k->is_late = true;
    k->record.n_failed++;
    k->record.until_unix_ms = 0;
    err_set(&k->record.error, PS_EDEADLINE,
            "%s has not moved for %" PRIu64
            " s; it goes on, and the next one waits for its end",
            name, k->config.limit_ms / 1000);
}

static void look_whether_it_moves(struct keeper *k, uint64_t now_ms) ON_MAIN
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < k->config.n_shards; i++)
        n += shard_thread_saved_bytes(k->config.shards[i]);
    if (n == k->n_moved)
        return;
    k->n_moved = n;
    if (now_ms <= k->moved_ms || k->is_late)
        return;
    k->record.until_unix_ms += now_ms - k->moved_ms;
    k->moved_ms = now_ms;
}

void keeper_tick(struct keeper *k, uint64_t now_ms)
{
    struct wish *late;

    if (k->state == IDLE)
        return;
    look_whether_it_moves(k, now_ms);
    if (now_ms < k->moved_ms + k->config.limit_ms)
        return;
    if (!k->is_late)
        note_lateness(k);
    late = k->served;
    k->served = NULL;
    tell(k, late);
    late = k->waiting;
    k->waiting = NULL;
    tell(k, late);
}

bool keeper_is_due(const struct keeper *k, uint64_t since_ms, uint64_t every_ms,
                   uint64_t now_ms)
{
    if (k->ended_ms > since_ms)
        since_ms = k->ended_ms;
    return k->state == IDLE && now_ms >= since_ms + every_ms;
}

void keeper_begin(struct keeper *k, const struct keeper_start *from)
{
    k->config.identity.map_id = from->epoch;
    k->number = from->begins_epoch ? from->epoch : 0;
    k->base = from->number;
    k->n_deltas = from->n_deltas;
}

bool keeper_is_idle(const struct keeper *k)
{
    return k->state == IDLE;
}

const struct keeper_record *keeper_record(const struct keeper *k)
{
    return &k->record;
}

void keeper_tell(const struct keeper_record *record)
{
    char kind[48] = "all";

    if (record->base)
        snprintf(kind, sizeof kind, "what has changed since %" PRIu64, record->base);
    log_info("checkpoint %" PRIu64 " written, %s: %" PRIu64 " rows, %" PRIu64 " bytes",
             record->number, kind, record->n_rows, record->n_bytes);
}
