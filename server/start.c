/*
 * In the order of a start's life:
 *
 *     finding (pool) -> recovering (shards) ------------------------------------+
 *                    -> rebuilding (pool) <-> resharding (shards), one by one --+
 *                          ^                                          |         |
 *                          +------- clearing (shards): once more <----+         |
 *                                   where jobs in lock step need it (reshard.h) |
 *     +-------------------------------------------------------------------------+
 *     +-> naming (pool) -> saving (checkpointer), if an epoch begins -> opening (shards) -> tidying (pool) -> done
 *
 * The functions stand in the reverse order, the last step first.
 */
#include "server/start.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log_line.h"
#include "common/memory.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/directory.h"
#include "server/checkpoint/loader.h"
#include "server/recovery/reshard.h"
#include "server/recovery/timeline.h"
#include "server/start_source.h"
#include "server/wal/wal_control.h"

/* One shard's part of a step: goes to the shard's thread and back. */
struct task {
    struct mail mail;
    struct start *start; /* borrowed */
    uint32_t index;      /* of the shard on this node */
    struct err err;
    struct recover_shard_facts facts;
    struct recover_shard_progress progress; /* its part of start_config.progress */
    uint32_t n_tables;
    uint64_t n_rows;
};

struct start {
    struct start_config config;
    void (*done)(void *arg, const struct start_result *result);
    void *arg;
    uv_work_t work;
    struct start_source source;
    uint32_t source_index, old_shard; /* being resharded */
    struct shard *old;       /* owned; NULL: the source's files are loaded as they are */
    struct reshard *reshard; /* owned: of those that were rebuilt */
    bool has_later;          /* recover_shard_facts: any of them */
    bool goes_back;          /* all are resharded once more, at a clock */
    struct task *tasks;      /* owned, n_shards */
    uint64_t *needs;         /* owned, n_shards: recover_shard_facts */
    struct wal_end *ends; /* owned, n_shards: where the logs continue, unless an epoch begins */
    bool begins_epoch;
    uint64_t epoch; /* of the logs */
    uint64_t
        above; /* the oldest of the data directory's checkpoints that the shards were made of; 0: of none */
    uint64_t below; /* recover_shard_config */
    /* The checkpoint that every shard was made of, and its place in its chain; 0: none, or not the same. */
    uint64_t number;
    uint32_t n_deltas;
    uint32_t n_outstanding;
    void (*then)(struct start *s); /* when all tasks are back */
    struct start_result result;
};

static void free_old(struct start *s)
{
    enter_shard();
    shard_free(s->old);
    s->old = NULL;
}

static void finish(struct start *s) ON_MAIN
{
    if (s->old)
        free_old(s);
    s->done(s->arg, &s->result);
    start_source_deinit(&s->source);
    reshard_free(s->reshard);
    free(s->tasks);
    free(s->ends);
    free(s->needs);
    free(s);
}

/* --- progress, and the end before the end --- */

static bool is_to_stop(const struct start *s)
{
    return s->config.is_to_stop && atomic_load(s->config.is_to_stop);
}

/* Differences: an attempt that begins anew takes back what the one before had counted. */
static void note_progress(struct task *task, const struct recover_shard_progress *now)
{
    struct start_progress *sum = task->start->config.progress;

    if (!sum)
        return;
    atomic_fetch_add(&sum->n_bytes, now->n_bytes - task->progress.n_bytes);
    atomic_fetch_add(&sum->n_total_bytes, now->n_total_bytes - task->progress.n_total_bytes);
    atomic_fetch_add(&sum->n_records, now->n_records - task->progress.n_records);
    task->progress = *now;
}

/* Of a shard's thread: shows life. PS_ESTOPPING: the start is to stop. */
static int go_on(void *arg)
{
    const struct task *task = arg;

    shard_thread_progress(task->start->config.shards[task->index]);
    return is_to_stop(task->start) ? PS_ESTOPPING : 0;
}

static int on_recovered(void *arg, const struct recover_shard_progress *progress)
{
    note_progress(arg, progress);
    return go_on(arg);
}

/* --- work for every shard --- */

static void stop_early(struct start *s) ON_MAIN;

static bool may_rebuild(const struct start *s) ON_MAIN;
static void rebuild_instead(struct start *s) ON_MAIN;

static void on_task_back(struct mail *mail, void *owner)
{
    struct task *task = CONTAINER_OF(mail, struct task, mail);
    struct start *s = task->start;

    (void)owner;
    enter_main();
    if (task->err.status && !s->result.err.status)
        s->result.err = task->err;
    if (--s->n_outstanding)
        return;
    if (s->result.err.status == PS_ESTOPPING && is_to_stop(s))
        stop_early(s);
    else if (s->result.err.status && may_rebuild(s))
        rebuild_instead(s);
    else if (s->result.err.status)
        finish(s);
    else
        s->then(s);
}

static void send_back(struct task *task, int result)
{
    int status;

    task->err.status = result;
    task->mail.run = on_task_back;
    status = mailbox_post(task->start->config.mailbox, &task->mail);
    assert(status == 0); /* the main thread's box outlives the shards */
}

static void on_shards(struct start *s, void (*run)(struct mail *mail, void *owner),
                      void (*then)(struct start *s)) ON_MAIN
{
    s->then = then;
    s->n_outstanding = s->config.n_shards;
    for (uint32_t i = 0; i < s->config.n_shards; i++) {
        int status;

        s->tasks[i].mail.run = run;
        status = shard_thread_post(s->config.shards[i], &s->tasks[i].mail);
        assert(status == 0);
    }
}

static void on_pool(struct start *s, uv_work_cb work, uv_after_work_cb after) ON_MAIN
{
    if (uv_queue_work(s->config.loop, &s->work, work, after))
        abort(); /* only for a NULL callback */
}

static struct shard_file_identity identity(const struct start *s, uint32_t index)
{
    return (struct shard_file_identity){ .node = s->config.node,
                                         .shard = s->config.node * s->config.n_shards + index,
                                         .n_shards = s->config.n_nodes * s->config.n_shards };
}

static void report_restore(void *arg, const char *sentence)
{
    (void)arg;
    log_line_warn("restore: %s", sentence);
}

static void name_checkpoint(struct start *s, uint64_t number)
{
    struct err unwanted;

    if (directory_number_path(s->config.settings->data_dir, number, s->result.from, &unwanted))
        s->result.from[0] = '\0';
}

/* This node's own checkpoint, of which a shard, or an old one, was made; 0: of a log alone. */
static void note_used(struct start *s, uint64_t number)
{
    if (s->source.is_own && number < s->above)
        s->above = number;
}

/* --- tidying: data that the start did not use --- */

static void report_tidying(void *arg, const char *sentence)
{
    (void)arg;
    log_line_warn("%s", sentence);
}

/* Checkpoints between two numbers; the newest first, so that none is left without what it needs. One that was not
 * finished goes with the next. */
static int archive_unused(const struct start *s, uint64_t above, uint64_t below,
                          struct err *err)
{
    const char *data_dir = s->config.settings->data_dir;
    struct directory_numbers numbers = { 0 };
    char dir[DIRECTORY_PATH_MAX];
    int status = directory_path(data_dir, dir, err);

    if (!status)
        status = directory_list(s->config.files, dir, &numbers, err);
    for (size_t i = 0; i < numbers.n && !status; i++) {
        uint64_t number = numbers.items[i];

        if (number <= above || number >= below)
            continue;
        status = directory_number_path(data_dir, number, dir, err);
        if (status || checkpoint_is_unfinished(s->config.files, dir))
            continue;
        status = checkpoint_archive(s->config.files, data_dir, number, err);
        if (!status)
            log_line_warn("checkpoint %" PRIu64
                          " is archived: no start uses it; psctl prune removes it: "
                          "%s.aside",
                          number, dir);
    }
    free(numbers.items);
    return status;
}

/* Removes data from before the epoch; also where the start that began it was interrupted. */
static int finish_epoch(const struct start *s, struct err *err)
{
    const char *data_dir = s->config.settings->data_dir;
    struct timeline_beginning b = { 0 };
    int status = timeline_read_beginning(s->config.files, data_dir, s->epoch, &b, err);

    if (!status)
        status = archive_unused(s, b.above, s->epoch, err);
    if (!status && b.has_options)
        status =
            timeline_preserve(s->config.files, data_dir, s->epoch, report_tidying, NULL, err);
    timeline_beginning_deinit(&b);
    return status;
}

/* Nothing depends on it: a failure is logged, and the next start does it again. But a standby goes on with other
 * records than those that a newer checkpoint has: no later start may find that one. */
static void tidy(uv_work_t *work)
{
    struct start *s = work->data;
    struct err err = { 0 };
    int status = 0;

    enter_pool();
    if (s->epoch)
        status = finish_epoch(s, &err);
    /* In its own epoch, a checkpoint newer than those it was made of is damaged. */
    if (!status && !s->begins_epoch)
        status = archive_unused(s, s->above, UINT64_MAX, &err);
    if (status && s->config.follows)
        s->result.err = err;
    else if (status)
        log_line_warn("data that this start did not use could not be archived: %s", err.text);
}

static void on_tidy(uv_work_t *work, int status)
{
    enter_main();
    assert(status == 0);
    finish(work->data);
}

/* --- opening --- */

static struct wal_writer_config writer_of(const struct task *task)
{
    const struct start *s = task->start;
    const struct settings *settings = s->config.settings;

    return (struct wal_writer_config){
        .files = s->config.files,
        .identity = { .node = s->config.node,
                      .shard = s->config.node * s->config.n_shards + task->index,
                      .n_shards = s->config.n_nodes * s->config.n_shards,
                      .map_id = s->epoch },
        .durability = settings->durability,
        .zstd = WAL_ZSTD_WHERE_IT_PAYS,
        .interval_ms = (uint32_t)settings->log_interval_ms
    };
}

static int open_log(struct task *task, struct shard_thread *t) ON_SHARD
{
    const struct start *s = task->start;
    const struct wal_end start = { 0 };
    struct wal_writer_config writer = writer_of(task);
    char dir[WAL_PATH_MAX];
    int status;

    if (!s->config.settings->data_dir[0])
        return 0;
    status =
        timeline_log_dir(s->config.settings->data_dir, s->epoch, task->index, dir, &task->err);
    if (status)
        return status;
    snprintf(writer.dir, sizeof writer.dir, "%.*s", (int)sizeof writer.dir - 1, dir);
    status =
        wal_control_path(s->config.settings->data_dir, task->index, writer.control, &task->err);
    if (status)
        return status;
    if (s->config.follows)
        return shard_thread_open_standby_log(t, &writer, &s->ends[task->index],
                                             s->needs[task->index], &task->err);
    return shard_thread_open_log(t, &writer, s->begins_epoch ? &start : &s->ends[task->index],
                                 &task->err);
}

static void on_shard_opened(struct mail *mail, void *owner)
{
    struct task *task = CONTAINER_OF(mail, struct task, mail);
    struct start *s = task->start;

    (void)owner;
    enter_main();
    if (task->err.status && !s->result.err.status)
        s->result.err = task->err;
    s->result.n_tables = task->n_tables;
    s->result.n_rows += task->n_rows;
    if (--s->n_outstanding)
        return;
    if (!s->result.err.status && s->config.settings->data_dir[0])
        on_pool(s, tidy, on_tidy);
    else
        finish(s);
}

static void open_shard(struct mail *mail, void *owner)
{
    struct task *task = CONTAINER_OF(mail, struct task, mail);
    struct shard_thread *t = owner;
    struct shard *shard;
    int status;

    enter_shard();
    shard = shard_thread_shard(t);
    task->n_tables = shard_n_live_tables(shard);
    for (uint32_t i = 0; i < shard_n_tables(shard); i++)
        if (shard_table(shard, i))
            task->n_rows += table_n_rows(shard_table(shard, i)->rows);
    shard_thread_publish(t); /* a ready node's report shows what it has loaded */
    task->err.status = open_log(task, t);
    task->mail.run = on_shard_opened;
    status = mailbox_post(task->start->config.mailbox, &task->mail);
    assert(status == 0); /* the main thread's box outlives the shards */
}

static void open_all(struct start *s) ON_MAIN
{
    s->result.epoch = s->epoch;
    s->n_outstanding = s->config.n_shards;
    for (uint32_t i = 0; i < s->config.n_shards; i++) {
        int status;

        s->tasks[i] = (struct task){ .mail.run = open_shard, .start = s, .index = i };
        status = shard_thread_post(s->config.shards[i], &s->tasks[i].mail);
        assert(status == 0);
    }
}

/* --- saving --- */

static void on_saved(void *arg, const struct checkpointer_record *record)
{
    struct start *s = arg;

    enter_main();
    s->result.err = record->error;
    if (record->error.status)
        finish(s);
    else
        open_all(s);
}

static void init_checkpointer(struct start *s) ON_MAIN
{
    checkpointer_begin(s->config.checkpointer,
                       &(struct checkpointer_start){ .epoch = s->epoch,
                                                     .begins_epoch = s->begins_epoch,
                                                     .number = s->begins_epoch ? 0 : s->number,
                                                     .n_deltas = s->n_deltas });
}

/* --- naming --- */

/* Above every epoch that there is: also where checkpoints were taken away by hand. */
static int make_epoch(struct start *s, struct err *err)
{
    const struct file_ops *files = s->config.files;
    const char *data_dir = s->config.settings->data_dir;
    const struct timeline_beginning b = { .above = s->above,
                                          .has_options = s->source.options[0] != '\0',
                                          .options = s->source.options };
    uint64_t newest;
    int status = timeline_newest(files, data_dir, 0, &newest, err);

    if (!status)
        status = checkpoint_next_above(files, data_dir, newest, &s->epoch, err);
    if (!status)
        status = timeline_make(files, data_dir, s->epoch, err);
    return status ? status : timeline_write_beginning(files, data_dir, s->epoch, &b, err);
}

static void name_epoch(uv_work_t *work)
{
    struct start *s = work->data;
    struct err *err = &s->result.err;

    enter_pool();
    if (s->begins_epoch)
        err->status = make_epoch(s, err);
    else
        err->status =
            timeline_make(s->config.files, s->config.settings->data_dir, s->epoch, err);
    if (!err->status)
        err->status = timeline_make_logs(s->config.files, s->config.settings->data_dir,
                                         s->epoch, s->config.n_shards, err);
}

static void on_named(uv_work_t *work, int status)
{
    struct start *s = work->data;

    enter_main();
    assert(status == 0);
    if (s->result.err.status) {
        finish(s);
        return;
    }
    init_checkpointer(s);
    if (s->begins_epoch)
        checkpointer_request(s->config.checkpointer, on_saved, s);
    else
        open_all(s);
}

/* --- the shards are as they were --- */

/* No epoch begins for a node that will not serve: nothing has changed. An --at or --restore that was not done is a
 * failure; a plain start is only to be made again. */
static void stop_early(struct start *s)
{
    const char *from = s->result.from;

    s->result.err = (struct err){ 0 };
    if (s->begins_epoch)
        err_set(&s->result.err, PS_ESTOPPING,
                "stopped before %.200s was restored: nothing is changed, and the same start "
                "does it",
                from[0] ? from : "the data directory");
    else if (from[0])
        log_line_info("stopped before %.200s was restored: the next start does it", from);
    s->result.from[0] = '\0';
    finish(s);
}

static void end_restoring(struct start *s) ON_MAIN
{
    if (s->above == UINT64_MAX)
        s->above = 0;
    if (is_to_stop(s))
        stop_early(s);
    else if (s->config.settings->data_dir[0])
        on_pool(s, name_epoch, on_named);
    else
        open_all(s);
}

/* --- recovering: its own shards --- */

static void log_later(const struct start *s)
{
    if (s->has_later && s->source.at.job)
        recover_shard_report_later(&s->source.at, report_restore, NULL);
}

/* Shards of two epochs are of two histories. */
static int check_epochs(const struct start *s, struct err *err)
{
    const struct recover_shard_facts *first = &s->tasks[0].facts;

    for (uint32_t i = 1; i < s->config.n_shards; i++)
        if (s->tasks[i].facts.epoch != first->epoch)
            return err_set(err, PS_ECORRUPT,
                           "shard 0 could be recovered from checkpoint %" PRIu64
                           " alone, shard %" PRIu32 " from %" PRIu64
                           ", and another log has begun in between: start with --at NUMBER, of "
                           "one that is whole",
                           first->number, i, s->tasks[i].facts.number);
    return 0;
}

/* The checkpoint that all shards were made of; 0: they were made of several, or of none. */
static uint64_t number_of_all(const struct start *s)
{
    for (uint32_t i = 1; i < s->config.n_shards; i++)
        if (s->tasks[i].facts.number != s->tasks[0].facts.number)
            return 0;
    return s->tasks[0].facts.number;
}

/* The newest checkpoint that any shard was recovered from. If a shard was recovered from its log alone, the logs of the
 * others need not reach back as far, and their checkpoints stay. */
static uint64_t newest_used(const struct start *s)
{
    uint64_t newest = 0;

    for (uint32_t i = 0; i < s->config.n_shards; i++)
        if (s->tasks[i].facts.number > newest)
            newest = s->tasks[i].facts.number;
    return newest;
}

/* Records are given up: a checkpoint that has some of them is none for any shard. */
static bool gives_up(const struct start *s)
{
    for (uint32_t i = 0; s->config.follows && i < s->config.n_shards; i++)
        if (s->config.keep[i] != UINT64_MAX)
            return true;
    return false;
}

static void sum_facts(struct start *s) ON_MAIN
{
    for (uint32_t i = 0; i < s->config.n_shards; i++) {
        const struct recover_shard_facts *facts = &s->tasks[i].facts;

        s->ends[i] = facts->end;
        s->needs[i] = facts->needs;
        s->result.n_records += facts->n_records;
        s->result.n_log_bytes += s->begins_epoch ? 0 : facts->n_log_bytes;
        s->has_later = s->has_later || facts->has_later;
        note_used(s, facts->number);
    }
    if (!s->begins_epoch && !s->above && !gives_up(s))
        s->above = newest_used(s);
    s->epoch = s->tasks[0].facts.epoch;
    s->number = number_of_all(s);
    if (s->number) {
        s->n_deltas = s->tasks[0].facts.n_links - 1;
        name_checkpoint(s, s->number); /* where the newest was damaged it is an older one */
    } else if (s->result.from[0]) {    /* the log alone, or checkpoints of several numbers */
        snprintf(s->result.from, sizeof s->result.from, "%s", s->config.settings->data_dir);
    }
}

static void recover_own(struct mail *mail, void *owner);
static void clear_shard(struct mail *mail, void *owner);
static void end_recovering(struct start *s) ON_MAIN;

static void recover_once_more(struct start *s) ON_MAIN
{
    on_shards(s, recover_own, end_recovering);
}

/* Records are given up: a checkpoint in which another shard has some of them is archived (tidy()), and no later start
 * finds it. So this one does without it, too: where the log does not lead up from the checkpoint before, that is seen
 * now. */
static bool needs_archived(const struct start *s) ON_MAIN
{
    return gives_up(s) && newest_used(s) > s->above;
}

static void end_recovering(struct start *s) ON_MAIN
{
    sum_facts(s);
    s->result.err.status = check_epochs(s, &s->result.err);
    if (!s->result.err.status && needs_archived(s)) {
        s->below = s->above + 1;
        s->above = UINT64_MAX;
        s->result.n_records = s->result.n_log_bytes = 0;
        on_shards(s, clear_shard, recover_once_more);
        return;
    }
    if (s->result.err.status) {
        finish(s);
        return;
    }
    log_later(s);
    end_restoring(s);
}

static void recover_own(struct mail *mail, void *owner)
{
    struct task *task = CONTAINER_OF(mail, struct task, mail);
    struct start *s = task->start;
    int status;
    struct recover_shard_config config = { .files = s->config.files,
                                           .data_dir = s->config.settings->data_dir,
                                           .shard_index = task->index,
                                           .identity = identity(s, task->index),
                                           .at = s->source.at,
                                           .follows = s->config.follows,
                                           .keep = s->config.follows
                                                       ? s->config.keep[task->index]
                                                       : UINT64_MAX,
                                           .below = s->below,
                                           .progress = on_recovered,
                                           .report = report_restore,
                                           .arg = task };

    enter_shard();
    status = recover_shard_run(&config, shard_thread_shard(owner), shard_thread_now_ms(owner),
                               &task->facts, &task->err);
    if (status && s->below) {
        const struct err why = task->err;

        err_set(&task->err, status,
                "checkpoints from %" PRIu64
                " on have records that are given up, and without them: %.200s",
                s->below, why.text);
    }
    /* Its log goes on from there; a new epoch begins with a checkpoint of its own. */
    if (!status && task->facts.number && !s->begins_epoch)
        status = checkpoint_sync(config.files, config.data_dir, task->facts.number, &task->err);
    send_back(task, status);
}

/* --- rebuilding and resharding: others' shards --- */

static void reshard_next(struct start *s) ON_MAIN;

static void reshard_into(struct mail *mail, void *owner)
{
    struct task *task = CONTAINER_OF(mail, struct task, mail);
    struct start *s = task->start;
    struct loader_config loader = { .files = s->config.files,
                                    .checkpoint =
                                        &s->source.sources[s->source_index].checkpoint,
                                    .progress = go_on,
                                    .arg = task };
    struct loader_facts facts;
    struct shard *shard;

    enter_shard();
    shard = shard_thread_shard(owner);
    send_back(task, s->old ? reshard_rows(s->old, shard, go_on, task, &task->err)
                           : loader_reshard(&loader, shard, &facts, &task->err));
}

/* Of records alone: how many bytes the shards behind this one have is not known. */
static int on_old_recovered(void *arg, const struct recover_shard_progress *progress)
{
    struct start *s = arg;

    note_progress(&s->tasks[0], &(struct recover_shard_progress){
                                    .n_records = s->result.n_records + progress->n_records });
    return is_to_stop(s) ? PS_ESTOPPING : 0;
}

/* This thread stands in for the old shard's own. */
static void rebuild_old(uv_work_t *work)
{
    struct start *s = work->data;
    struct recover_shard_config how = { .progress = on_old_recovered,
                                        .report = report_restore,
                                        .arg = s };
    const struct restore_source *from = &s->source.sources[s->source_index];
    struct err *err = &s->result.err;
    struct recover_shard_facts facts = { 0 };

    enter_shard();
    err->status = restore_source_recover(from, s->config.files, s->old_shard, &how,
                                         clock_mono_ms(), &s->old, &facts, err);
    err->status = reshard_explain(s->reshard, err->status, err);
    s->result.n_records += facts.n_records;
    s->has_later = s->has_later || facts.has_later;
    note_used(s, facts.number);
    if (!err->status)
        reshard_add(s->reshard, from->node * from->shards_per_node + s->old_shard, s->old);
}

static void on_rebuilt(uv_work_t *work, int status)
{
    struct start *s = work->data;

    enter_main();
    assert(status == 0);
    if (s->result.err.status == PS_ESTOPPING && is_to_stop(s))
        stop_early(s);
    else if (s->result.err.status)
        finish(s);
    else
        on_shards(s, reshard_into, reshard_next);
}

static void reshard_source(struct start *s) ON_MAIN
{
    if (s->source.sources[s->source_index].is_exact)
        on_shards(s, reshard_into, reshard_next);
    else
        on_pool(s, rebuild_old, on_rebuilt);
}

static void clear_shard(struct mail *mail, void *owner)
{
    enter_shard();
    shard_clear(shard_thread_shard(owner));
    send_back(CONTAINER_OF(mail, struct task, mail), 0);
}

static void begin_resharding(struct start *s) ON_MAIN
{
    s->source_index = s->old_shard = 0;
    s->has_later = false;
    reshard_source(s);
}

/* Every source once more, at that clock. */
static void reshard_once_more(struct start *s, const struct recover_shard_at *at) ON_MAIN
{
    for (uint32_t i = 0; i < s->source.n_sources; i++)
        restore_source_rewind(&s->source.sources[i], at);
    s->result.n_records = 0;
    s->goes_back = true;
    on_shards(s, clear_shard, begin_resharding);
}

/* True if files that were loaded as they are are damaged: a rebuilt shard has older checkpoints, and the log. */
static bool may_rebuild(const struct start *s)
{
    return s->then == reshard_next && !s->old && !s->goes_back &&
           checkpoint_is_damage(s->result.err.status) &&
           restore_source_is_recoverable(&s->source.sources[s->source_index]);
}

static void rebuild_instead(struct start *s)
{
    report_restore(NULL, s->result.err.text);
    s->result.err = (struct err){ 0 };
    s->source.sources[s->source_index].is_exact = false;
    reshard_reset(s->reshard); /* the sources before this one */
    s->result.n_records = 0;
    on_shards(s, clear_shard, begin_resharding);
}

static void end_resharding(struct start *s) ON_MAIN
{
    const struct reshard_config config = {
        .at = restore_source_requested(s->source.sources, s->source.n_sources),
        .n_unseen_nodes = s->source.sources[0].n_nodes - s->source.n_sources,
        .report = report_restore
    };
    struct err *err = &s->result.err;
    struct recover_shard_at restart_at;

    err->status = reshard_check(s->reshard, &config, &restart_at, err);
    if (err->status) {
        finish(s);
    } else if (restart_at.job) {
        reshard_once_more(s, &restart_at);
    } else {
        log_later(s);
        end_restoring(s);
    }
}

/* The next step after an old shard, or a whole source, was resharded. */
static void reshard_next(struct start *s)
{
    const struct restore_source *from = &s->source.sources[s->source_index];

    free_old(s);
    if (from->is_exact || ++s->old_shard == from->shards_per_node) {
        s->old_shard = 0;
        s->source_index++;
    }
    if (s->source_index == s->source.n_sources)
        end_resharding(s);
    else
        reshard_source(s);
}

/* --- finding the source --- */

static void find_source(uv_work_t *work)
{
    struct start *s = work->data;
    const struct start_source_config config = { .files = s->config.files,
                                                .settings = s->config.settings,
                                                .node = s->config.node,
                                                .n_nodes = s->config.n_nodes,
                                                .report = report_restore };

    enter_pool();
    s->result.err.status = start_source_find(&s->source, &config, &s->result.err);
}

static void on_source_found(uv_work_t *work, int status)
{
    struct start *s = work->data;
    const struct settings *settings = s->config.settings;

    enter_main();
    assert(status == 0);
    start_source_name(&s->source, s->result.from);
    s->begins_epoch = settings->data_dir[0] != '\0';
    if (s->result.err.status) {
        finish(s);
    } else if (s->source.is_own &&
               restore_source_is_of(&s->source.sources[0], s->config.node, s->config.n_nodes,
                                    s->config.n_shards)) {
        s->begins_epoch = !s->config.follows && settings->at[0] && !s->source.was_done;
        on_shards(s, recover_own, end_recovering);
    } else if (s->config.follows) {
        err_set(&s->result.err, PS_ECLUSTER,
                "%.200s is of another layout than the primary: it cannot go on as its standby",
                settings->data_dir);
        finish(s);
    } else if (s->source.n_sources) {
        begin_resharding(s);
    } else {
        end_restoring(s);
    }
}

void start_run(const struct start_config *config,
               void (*done)(void *arg, const struct start_result *result), void *arg)
{
    struct start *s = memory_alloc(sizeof *s);

    s->config = *config;
    s->done = done;
    s->arg = arg;
    s->reshard = reshard_new();
    s->tasks = memory_alloc(config->n_shards * sizeof *s->tasks);
    s->ends = memory_alloc(config->n_shards * sizeof *s->ends);
    s->needs = memory_alloc(config->n_shards * sizeof *s->needs);
    s->above = UINT64_MAX;
    for (uint32_t i = 0; i < config->n_shards; i++)
        s->tasks[i] = (struct task){ .start = s, .index = i };
    s->work.data = s;
    on_pool(s, find_source, on_source_found);
}
