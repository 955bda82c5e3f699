#include "server/checkpointer.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "common/number.h"
#include "server/checkpoint/directory.h"
#include "server/recovery/disk_usage.h"
#include "server/recovery/timeline.h"
#include "server/shard_checkpoint.h"

#define RETRY_MS 5000u /* after a checkpoint for a log, unless one has succeeded since */
#define LOG_MIN_BYTES \
    (UINT64_C(1) << 20) /* shorter logs are no reason, however short of space a disk is */
#define REDUNDANT_LOG_BYTES (UINT64_C(64) << 20)

enum state { IDLE, NUMBERING, WRITING, COMMITTING, RELEASING };

struct checkpoint_request {
    struct checkpoint_request *next;
    checkpointer_on_done done;
    void *arg;
};

/* One shard's part of a step: goes to the shard's thread and back. */
struct task {
    struct mail mail;
    struct checkpointer *checkpointer;
    uint32_t index; /* of the shard on this node */
    struct shard_file_facts facts;
    struct err err; /* status 0: written, and its log is safe */
};

struct checkpointer {
    struct checkpointer_config config;
    enum state state;
    struct checkpointer_record record;
    /* Owned: of the one that runs, of the next, and those being answered. */
    struct checkpoint_request *served, *waiting, *answering;
    uv_work_t work;
    uint64_t number;           /* of the next; 0: checkpoint_next() */
    uint64_t base;             /* the last that is whole, for deltas; 0: none */
    uint32_t n_deltas;         /* since the last full one */
    uv_mutex_t lock;           /* of the manifest while shards add their jobs */
    struct manifest *manifest; /* owned: of the one that runs */
    uint64_t *firsts;          /* owned, n_shards: the record that each log is truncated at */
    uint64_t started_ms, ended_ms; /* monotonic; of this one, and of the last */
    uint64_t moved_ms,
        n_moved;  /* when the shards' bytes were seen to move, and how many there were */
    bool is_late; /* this one's requests were answered with a failure */
    bool is_stopped;
    struct err err; /* the first that went wrong */
    uint32_t n_outstanding;
    struct task *tasks; /* owned, n_shards */
};

static void start(struct checkpointer *k) ON_MAIN;

struct checkpointer *checkpointer_new(const struct checkpointer_config *config)
{
    struct checkpointer *k = memory_alloc(sizeof *k);

    k->config = *config;
    if (!k->config.limit_ms)
        k->config.limit_ms = CHECKPOINTER_LIMIT_MS;
    k->tasks = memory_alloc(config->n_shards * sizeof *k->tasks);
    k->firsts = memory_alloc(config->n_shards * sizeof *k->firsts);
    k->manifest = memory_alloc(sizeof *k->manifest);
    if (uv_mutex_init(&k->lock))
        abort();
    return k;
}

void checkpointer_find_last(struct checkpointer *k)
{
    struct checkpoint found;
    struct err err = { 0 };
    const struct manifest *m;

    if (checkpoint_find(k->config.files, k->config.data_dir, 0, &found, NULL, NULL, &err))
        return; /* none, or none that is whole: the start will say which */
    m = &found.links[0];
    k->record.number = m->number;
    k->record.unix_ms = m->unix_ms;
    k->record.base = m->base;
    for (uint32_t i = 0; i < m->n_files; i++) {
        k->record.n_rows += m->files[i].n_rows;
        k->record.n_bytes += m->files[i].n_bytes;
    }
    checkpoint_close(&found);
}

static void free_requests(struct checkpoint_request *request)
{
    struct checkpoint_request *next;

    for (; request; request = next) {
        next = request->next;
        free(request);
    }
}

void checkpointer_free(struct checkpointer *k)
{
    if (!k)
        return;
    assert(k->state == IDLE || k->is_stopped);
    free_requests(k->served);
    free_requests(k->waiting);
    uv_mutex_destroy(&k->lock);
    free(k->manifest);
    free(k->firsts);
    free(k->tasks);
    free(k);
}

/* --- the end of one --- */

static void note_success(struct checkpointer *k)
{
    k->record.n_done++;
    k->record.number = k->manifest->number;
    k->record.unix_ms = k->manifest->unix_ms;
    k->record.n_rows = k->record.n_bytes = 0;
    k->record.base = k->manifest->base;
    k->record.took_ms = k->ended_ms - k->started_ms;
    for (uint32_t i = 0; i < k->config.n_shards; i++) {
        k->record.n_rows += k->tasks[i].facts.n_rows;
        k->record.n_bytes += k->tasks[i].facts.n_bytes;
    }
}

/* A `done` may request the next one. */
static void answer(struct checkpointer *k, struct checkpoint_request *requests) ON_MAIN
{
    struct checkpoint_request *request;

    k->answering = requests;
    while ((request = k->answering)) {
        k->answering = request->next;
        request->done(request->arg, &k->record);
        free(request);
    }
}

static void note_late_end(const struct checkpointer *k)
{
    if (k->err.status)
        log_line_error("checkpoint %" PRIu64 ", which is late, has failed: %s",
                       k->manifest->number, k->err.text);
    else
        log_line_info("checkpoint %" PRIu64 ", which is late, is written", k->manifest->number);
}

static void finish(struct checkpointer *k) ON_MAIN
{
    struct checkpoint_request *served = k->served;

    k->state = IDLE;
    k->ended_ms = clock_mono_ms();
    k->record.busy_since_unix_ms = k->record.until_unix_ms = k->record.busy_number = 0;
    k->record.error = k->err;
    if (!k->err.status)
        note_success(k);
    else if (!k->is_late)
        k->record.n_failed++;
    if (k->is_late)
        note_late_end(k);
    k->served = NULL;
    answer(k, served);
    if (k->state == IDLE && k->waiting && !k->is_stopped)
        start(k);
}

/* --- RELEASING: the shards are notified --- */

static void on_released(struct mail *mail, void *owner)
{
    struct task *task = CONTAINER_OF(mail, struct task, mail);
    struct checkpointer *k = task->checkpointer;

    (void)owner;
    enter_main();
    if (--k->n_outstanding == 0 && !k->is_stopped)
        finish(k);
}

static void send_back(struct task *task, void (*run)(struct mail *mail, void *owner))
{
    int status;

    task->mail.run = run;
    status = mailbox_post(task->checkpointer->config.mailbox, &task->mail);
    assert(status == 0); /* the main thread's box outlives the shards */
}

static void release_shard(struct mail *mail, void *owner)
{
    struct task *task = CONTAINER_OF(mail, struct task, mail);
    const struct checkpointer *k = task->checkpointer;

    enter_shard();
    if (k->err.status)
        shard_checkpoint_end(shard_thread_checkpoint(owner), SNAPSHOT_SCAN_DROPPED, 0);
    else
        shard_checkpoint_end(shard_thread_checkpoint(owner), SNAPSHOT_SCAN_KEPT,
                             k->firsts[task->index] + 1);
    send_back(task, on_released);
}

static void to_shards(struct checkpointer *k, void (*run)(struct mail *mail, void *owner))
    ON_MAIN
{
    k->n_outstanding = k->config.n_shards;
    for (uint32_t i = 0; i < k->config.n_shards; i++) {
        int status;

        k->tasks[i].mail.run = run;
        status = shard_thread_post(k->config.shards[i], &k->tasks[i].mail);
        assert(status == 0); /* shards stop after the last checkpoint */
    }
}

static void release(struct checkpointer *k) ON_MAIN
{
    k->state = RELEASING;
    if (k->err.status) {
        k->base = 0; /* the scans are dropped: what went meanwhile is not known */
    } else {
        k->n_deltas = k->manifest->base ? k->n_deltas + 1 : 0;
        k->base = k->manifest->number;
    }
    to_shards(k, release_shard);
}

/* --- COMMITTING --- */

/* The first of its epoch: the node does not serve yet, and nothing from before may be removed. */
static bool begins_epoch(const struct manifest *m)
{
    return m->number == m->map_id;
}

/* With fewer than `keep` restore points the log's beginning is one, too: as long as that costs no more of the disk than
 * the checkpoints, or a segment. */
static void give_up_beginning(struct checkpointer *k)
{
    const struct manifest *m = k->manifest;
    struct disk_usage usage;
    struct err err;

    for (uint32_t i = 0; i < m->n_files; i++)
        if (k->firsts[i])
            return; /* there are enough of them */
    disk_usage_read(k->config.files, k->config.data_dir, &usage);
    if (usage.log_bytes <= REDUNDANT_LOG_BYTES || usage.log_bytes <= usage.checkpoint_bytes)
        return;
    if (checkpoint_firsts(k->config.files, k->config.data_dir, m->n_files, k->firsts, &err))
        memset(k->firsts, 0, m->n_files * sizeof *k->firsts);
}

static void commit(uv_work_t *work)
{
    struct checkpointer *k = work->data;
    struct manifest *m = k->manifest;
    uint32_t keep = begins_epoch(m) ? CHECKPOINT_KEEP_ALL : k->config.keep;
    bool has_delta = false;

    enter_pool();
    for (uint32_t i = 0; i < m->n_files; i++) {
        m->files[i] = k->tasks[i].facts;
        has_delta = has_delta || m->files[i].is_delta;
    }
    if (!has_delta)
        m->base = 0;
    k->err.status =
        checkpoint_commit(k->config.files, k->config.data_dir, m, keep, k->firsts, &k->err);
    if (k->err.status || begins_epoch(m))
        return;
    give_up_beginning(k);
    timeline_remove_unused(k->config.files, k->config.data_dir, m->map_id);
}

static void on_committed(uv_work_t *work, int status)
{
    struct checkpointer *k = work->data;

    enter_main();
    assert(status == 0);
    if (!k->is_stopped)
        release(k);
}

/* --- WRITING --- */

/* Of a checkpoint that has failed: shards that were done have closed their files. */
static void discard(uv_work_t *work)
{
    struct checkpointer *k = work->data;
    char dir[DIRECTORY_PATH_MAX];
    struct err err;

    enter_pool();
    if (!directory_number_path(k->config.data_dir, k->manifest->number, dir, &err))
        directory_remove(k->config.files, dir);
}

static void on_task_back(struct mail *mail, void *owner)
{
    struct task *task = CONTAINER_OF(mail, struct task, mail);
    struct checkpointer *k = task->checkpointer;

    (void)owner;
    enter_main();
    if (task->err.status && !k->err.status)
        k->err = task->err;
    if (--k->n_outstanding || k->is_stopped)
        return;
    k->state = COMMITTING;
    if (uv_queue_work(k->config.loop, &k->work, k->err.status ? discard : commit, on_committed))
        abort(); /* only for a NULL callback */
}

static void on_saved(void *arg, const struct shard_file_facts *facts, const struct err *err)
{
    struct task *task = arg;

    task->facts = *facts;
    task->err = *err;
    send_back(task, on_task_back);
}

static void note_jobs(struct checkpointer *k, struct shard_thread *t) ON_SHARD
{
    uv_mutex_lock(&k->lock);
    shard_file_writer_note_jobs(shard_thread_shard(t), k->manifest);
    uv_mutex_unlock(&k->lock);
}

static void write_file(struct mail *mail, void *owner)
{
    struct task *task = CONTAINER_OF(mail, struct task, mail);
    struct checkpointer *k = task->checkpointer;
    struct shard_thread *t = owner;
    struct shard_file_writer_config file = { .files = k->config.files,
                                             .data_dir = k->config.data_dir,
                                             .number = k->manifest->number,
                                             .shard_index = task->index,
                                             .identity = k->config.identity,
                                             .base = k->manifest->base };

    enter_shard();
    file.identity.shard += task->index;
    note_jobs(k, t);
    shard_checkpoint_begin(shard_thread_checkpoint(t), &file, on_saved, task);
}

static void start_writing(struct checkpointer *k) ON_MAIN
{
    k->state = WRITING;
    k->record.busy_number = k->manifest->number;
    for (uint32_t i = 0; i < k->config.n_shards; i++)
        k->tasks[i] = (struct task){ .checkpointer = k, .index = i };
    to_shards(k, write_file);
}

/* --- NUMBERING --- */

static void find_number(uv_work_t *work)
{
    struct checkpointer *k = work->data;

    enter_pool();
    k->manifest->number = k->number;
    k->number = 0;
    if (!k->manifest->number)
        k->err.status =
            checkpoint_next(k->config.files, k->config.data_dir, &k->manifest->number, &k->err);
}

static void on_numbered(uv_work_t *work, int status)
{
    struct checkpointer *k = work->data;

    enter_main();
    assert(status == 0);
    if (k->is_stopped)
        return;
    if (k->err.status)
        finish(k);
    else
        start_writing(k);
}

/* --- the start of one --- */

static void start(struct checkpointer *k)
{
    k->served = k->waiting;
    k->waiting = NULL;
    k->state = NUMBERING;
    k->err = (struct err){ 0 };
    k->is_late = false;
    k->started_ms = k->moved_ms = clock_mono_ms();
    k->record.busy_since_unix_ms = clock_unix_ms();
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

void checkpointer_request(struct checkpointer *k, checkpointer_on_done done, void *arg)
{
    struct checkpoint_request *request = memory_alloc(sizeof *request);

    *request = (struct checkpoint_request){ .next = k->waiting, .done = done, .arg = arg };
    k->waiting = request;
    if (k->state == IDLE && !k->is_stopped)
        start(k);
}

void checkpointer_stop(struct checkpointer *k)
{
    if (k)
        k->is_stopped = true;
}

static void cancel(struct checkpoint_request **at, const void *arg)
{
    struct checkpoint_request *request;

    while ((request = *at)) {
        if (request->arg == arg) {
            *at = request->next;
            free(request);
        } else {
            at = &request->next;
        }
    }
}

void checkpointer_cancel(struct checkpointer *k, const void *arg)
{
    cancel(&k->served, arg);
    cancel(&k->waiting, arg);
    cancel(&k->answering, arg);
}

/* Nothing takes a shard's hands off its file: the work goes on, and may still end well. */
static void note_lateness(struct checkpointer *k) ON_MAIN
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

static void note_progress(struct checkpointer *k, uint64_t now_ms) ON_MAIN
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < k->config.n_shards; i++)
        n += shard_thread_checkpoint_bytes(k->config.shards[i]);
    if (n == k->n_moved)
        return;
    k->n_moved = n;
    if (now_ms <= k->moved_ms || k->is_late)
        return;
    k->record.until_unix_ms += now_ms - k->moved_ms;
    k->moved_ms = now_ms;
}

void checkpointer_tick(struct checkpointer *k, uint64_t now_ms)
{
    struct checkpoint_request *late;

    if (k->state == IDLE)
        return;
    note_progress(k, now_ms);
    if (now_ms < k->moved_ms + k->config.limit_ms)
        return;
    if (!k->is_late)
        note_lateness(k);
    late = k->served;
    k->served = NULL;
    answer(k, late);
    late = k->waiting;
    k->waiting = NULL;
    answer(k, late);
}

bool checkpointer_is_due(const struct checkpointer *k, uint64_t since_ms, uint64_t every_ms,
                         uint64_t now_ms)
{
    if (k->ended_ms > since_ms)
        since_ms = k->ended_ms;
    return k->state == IDLE && now_ms >= since_ms + every_ms;
}

void checkpointer_begin(struct checkpointer *k, const struct checkpointer_start *from)
{
    k->config.identity.map_id = from->epoch;
    k->number = from->begins_epoch ? from->epoch : 0;
    k->base = from->number;
    k->n_deltas = from->n_deltas;
}

const struct checkpointer_record *checkpointer_record(const struct checkpointer *k)
{
    return &k->record;
}

void checkpointer_log(const struct checkpointer_record *record)
{
    char kind[48] = "all";

    if (record->base)
        snprintf(kind, sizeof kind, "what has changed since %" PRIu64, record->base);
    log_line_info("checkpoint %" PRIu64 " written, %s: %" PRIu64 " row%s, %" PRIu64 " bytes",
                  record->number, kind, record->n_rows, NUMBER_PLURAL(record->n_rows),
                  record->n_bytes);
}

/* --- the trigger --- */

static uint64_t log_bytes(const struct checkpointer *k)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < k->config.n_shards; i++)
        sum += shard_thread_log_bytes(k->config.shards[i]);
    return sum;
}

/* Records that a log lacks are safe again once a checkpoint holds their changes. */
static bool has_gap(const struct checkpointer *k)
{
    for (uint32_t i = 0; i < k->config.n_shards; i++)
        if (shard_thread_log_has_gap(k->config.shards[i]))
            return true;
    return false;
}

/* The logs are short again once a checkpoint has succeeded, whoever requested it. */
static void note_done(const struct checkpointer *k, struct checkpointer_trigger *t) ON_MAIN
{
    uint64_t n_done = k->record.n_done;

    if (n_done != t->n_done) {
        t->log_bytes = t->tried_bytes;
        t->tried_ms = 0;
    }
    t->n_done = n_done;
}

/* log-max, as far as the disk allows it. */
static uint64_t find_log_max(const struct checkpointer *k, struct checkpointer_trigger *t)
{
    const uint64_t wanted = t->settings->log_max_bytes;
    uint64_t share = t->space_bytes / 2 / (k->config.keep + 1);

    share = share < LOG_MIN_BYTES ? LOG_MIN_BYTES : share;
    if (!t->space_bytes || share >= wanted) {
        t->is_short = false;
        return wanted;
    }
    if (!t->is_short)
        log_line_info(
            "log-max: a checkpoint is taken after each %" PRIu64 " MiB of log, and not %" PRIu64
            ": the logs of %u checkpoints are kept, and have half of the disk's %" PRIu64
            " MiB",
            share >> 20, wanted >> 20, k->config.keep + 1, t->space_bytes >> 20);
    t->is_short = true;
    return share;
}

bool checkpointer_is_triggered(struct checkpointer *k, struct checkpointer_trigger *t,
                               uint64_t now_ms)
{
    uint64_t every_ms = t->settings->checkpoint_every_ms;
    uint64_t n_bytes = t->found_bytes + log_bytes(k);

    if (k->state != IDLE)
        return false;
    k->record.every_ms = every_ms;
    k->record.log_max_bytes = find_log_max(k, t);
    note_done(k, t);
    t->tried_bytes = n_bytes;
    if (every_ms && checkpointer_is_due(k, t->since_ms, every_ms, now_ms))
        return true;
    if ((t->tried_ms && now_ms < t->tried_ms + RETRY_MS) ||
        !(has_gap(k) || n_bytes >= t->log_bytes + k->record.log_max_bytes))
        return false;
    t->tried_ms = now_ms;
    return true;
}
