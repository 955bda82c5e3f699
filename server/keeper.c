#include "server/keeper.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "common/log.h"
#include "common/mem.h"
#include "server/durable/saver.h"
#include "server/reporter.h"

enum state { IDLE, NUMBERING, WRITING, COMMITTING };

struct wish {
    struct wish *next;
    keeper_on_done done;
    void *arg;
};

/* One shard's part of the work: travels to the shard's thread and back. */
struct part {
    struct mail mail;
    struct keeper *keeper;
    struct shard_thread *thread;
    struct err err; /* status 0: written */
};

struct keeper {
    struct keeper_config config;
    enum state state;
    struct keeper_record record;
    /* Owned: of the one under way, of the next, and those who are just being told. */
    struct wish *served, *waiting, *telling;
    uv_work_t work;
    struct manifest *manifest;     /* owned */
    uint64_t started_ms, ended_ms; /* monotonic; of this one, and of the last */
    bool is_late;                  /* this one has been told to have failed */
    struct err err;                /* the first that went wrong */
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
    k->manifest = mem_alloc(sizeof *k->manifest);
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
    free(k->parts);
    free(k->manifest);
    free(k);
}

/* --- the end of one --- */

static void note_success(struct keeper *k)
{
    k->record.n_done++;
    k->record.number = k->manifest->number;
    k->record.unix_ms = k->manifest->unix_ms;
    k->record.n_rows = k->record.n_bytes = 0;
    for (uint32_t i = 0; i < k->config.n_shards; i++) {
        k->record.n_rows += k->manifest->files[i].n_rows;
        k->record.n_bytes += k->manifest->files[i].n_bytes;
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
    k->ended_ms = reporter_mono_ms();
    k->record.busy_since_unix_ms = k->record.until_unix_ms = 0;
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

/* --- COMMITTING --- */

static void commit(uv_work_t *work)
{
    struct keeper *k = work->data;
    int status;

    enter_pool();
    status = checkpoint_commit(k->config.files, k->config.data_dir, k->manifest, k->config.keep,
                               NULL, &k->err);
    if (!status)
        k->err.status = 0;
    assert(status == k->err.status);
}

static void on_committed(uv_work_t *work, int status)
{
    struct keeper *k = work->data;

    enter_main();
    assert(status == 0);
    finish(k);
}

/* --- WRITING --- */

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
    if (k->err.status) {
        finish(k);
        return;
    }
    k->state = COMMITTING;
    if (uv_queue_work(k->config.loop, &k->work, commit, on_committed))
        abort(); /* only for a NULL callback */
}

static void write_part(struct mail *mail, void *owner)
{
    struct part *part = CONTAINER_OF(mail, struct part, mail);
    struct keeper *k = part->keeper;
    struct shard_thread *t = owner;
    uint32_t index = shard_thread_index(t);
    int status;

    enter_shard();
    shard_settle(shard_thread_shard(t));
    status = saver_save(
        &(struct saver_config){
            .files = k->config.files,
            .data_dir = k->config.data_dir,
            .number = k->manifest->number,
            .shard_index = index,
            .identity = { .node = k->config.node,
                          .shard = k->config.node * k->config.n_shards + index,
                          .n_shards = k->manifest->n_shards } },
        shard_thread_shard(t), 0, shard_thread_progress, t, &k->manifest->files[index],
        &part->err);
    part->err.status = status;
    part->mail.run = on_part_back;
    status = mailbox_post(k->config.mailbox, &part->mail);
    assert(status == 0); /* the main thread's box outlives the shards */
}

static void start_writing(struct keeper *k) ON_MAIN
{
    int status;

    k->state = WRITING;
    k->n_outstanding = k->config.n_shards;
    for (uint32_t i = 0; i < k->config.n_shards; i++) {
        k->parts[i] =
            (struct part){ .mail.run = write_part, .keeper = k, .thread = k->config.shards[i] };
        status = shard_thread_post(k->parts[i].thread, &k->parts[i].mail);
        assert(status == 0); /* shards stop after the last checkpoint */
    }
}

/* --- NUMBERING --- */

static void find_number(uv_work_t *work)
{
    struct keeper *k = work->data;

    enter_pool();
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
    k->started_ms = reporter_mono_ms();
    k->record.busy_since_unix_ms = reporter_unix_ms();
    k->record.until_unix_ms = k->record.busy_since_unix_ms + k->config.limit_ms;
    *k->manifest = (struct manifest){ .node = k->config.node,
                                      .n_nodes = k->config.n_nodes,
                                      .shards_per_node = k->config.n_shards,
                                      .n_shards = k->config.n_nodes * k->config.n_shards,
                                      .n_files = k->config.n_shards,
                                      .unix_ms = k->record.busy_since_unix_ms };
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
    k->is_late = true;
    k->record.n_failed++;
    k->record.until_unix_ms = 0;
    err_set(&k->record.error, PS_EDEADLINE,
            "the checkpoint is not written after %" PRIu64
            " s; it goes on, and the next one waits for its end",
            k->config.limit_ms / 1000);
}

void keeper_tick(struct keeper *k, uint64_t now_ms)
{
    struct wish *late;

    if (k->state == IDLE || now_ms < k->started_ms + k->config.limit_ms)
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

const struct keeper_record *keeper_record(const struct keeper *k)
{
    return &k->record;
}
