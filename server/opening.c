/* In the order of its life: naming -> saving -> opening -> tidying. */
#include "server/opening.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/log.h"
#include "common/mem.h"
#include "server/durable/beginning.h"
#include "server/durable/epochs.h"
#include "server/store/checkpoint_links.h"
#include "server/store/shelf.h"

struct part {
    struct mail mail;
    struct opening *opening;
    uint32_t index; /* of the shard on this node */
    struct err err;
    uint32_t n_tables;
    uint64_t n_rows;
};

struct opening {
    struct opening_config config;
    struct opening_from from; /* epoch: also of a new one, once it has a name */
    void (*done)(void *arg, const struct opening_result *result);
    void *arg;
    uv_work_t work;
    struct part *parts; /* owned, n_shards */
    uint32_t n_outstanding;
    struct opening_result result;
};

static void finish(struct opening *o) ON_MAIN
{
    o->done(o->arg, &o->result);
    free(o->parts);
    free(o);
}

static void on_pool(struct opening *o, uv_work_cb work, uv_after_work_cb after) ON_MAIN
{
    o->work.data = o;
    if (uv_queue_work(o->config.loop, &o->work, work, after))
        abort(); /* only for a NULL callback */
}

/* --- tidying: what the start was not made of --- */

static void report(void *arg, const char *sentence)
{
    (void)arg;
    log_warn("%s", sentence);
}

/* Checkpoints between two numbers; the newest first, so that none is left without what it needs. One that was not
 * finished goes with the next. */
static int set_aside(const struct opening *o, uint64_t above, uint64_t below, struct err *err)
{
    const char *data_dir = o->config.settings->data_dir;
    struct shelf_numbers numbers = { 0 };
    char dir[SHELF_PATH_MAX];
    int status = shelf_path(data_dir, dir, err);

    if (!status)
        status = shelf_list(o->config.files, dir, &numbers, err);
    for (size_t i = 0; i < numbers.n && !status; i++) {
        uint64_t number = numbers.items[i];

        if (number <= above || number >= below)
            continue;
        status = shelf_number_path(data_dir, number, dir, err);
        if (status || checkpoint_is_unfinished(o->config.files, dir))
            continue;
        status = checkpoint_set_aside(o->config.files, data_dir, number, err);
        if (!status)
            log_warn("checkpoint %" PRIu64
                     " is set aside: it counts no more, and is never removed: "
                     "%s.aside",
                     number, dir);
    }
    free(numbers.items);
    return status;
}

/* What the epoch has left; also where the start that began it was interrupted. */
static int leave(const struct opening *o, struct err *err)
{
    const char *data_dir = o->config.settings->data_dir;
    struct beginning b = { 0 };
    int status = beginning_read(o->config.files, data_dir, o->from.epoch, &b, err);

    if (!status)
        status = set_aside(o, b.above, o->from.epoch, err);
    if (!status && b.was_told)
        status = epochs_leave(o->config.files, data_dir, o->from.epoch, report, NULL, err);
    beginning_deinit(&b);
    return status;
}

/* Nothing depends on it: what fails is told, and done by the next start. */
static void tidy(uv_work_t *work)
{
    struct opening *o = work->data;
    struct err err = { 0 };
    int status = 0;

    enter_pool();
    if (o->from.epoch)
        status = leave(o, &err);
    /* In its own epoch, what is newer than what it was made of is damaged. */
    if (!status && !o->from.begins_epoch)
        status = set_aside(o, o->from.above, UINT64_MAX, &err);
    if (status)
        log_warn("what this start is not made of could not be set aside: %s", err.text);
}

static void on_tidy(uv_work_t *work, int status)
{
    enter_main();
    assert(status == 0);
    finish(work->data);
}

/* --- opening --- */

static struct log_writer_config writer_of(const struct part *part)
{
    const struct opening *o = part->opening;
    const struct settings *s = o->config.settings;

    return (struct log_writer_config){
        .files = o->config.files,
        .identity = { .node = s->node,
                      .shard = s->node * o->config.n_shards + part->index,
                      .n_shards = o->config.n_nodes * o->config.n_shards,
                      .map_id = o->from.epoch },
        .durability = s->durability,
        .zstd = LOG_ZSTD_WHERE_IT_PAYS,
        .interval_ms = (uint32_t)s->log_interval_ms
    };
}

static int open_log(struct part *part, struct shard_thread *t) ON_SHARD
{
    const struct opening *o = part->opening;
    const struct log_end start = { 0 };
    struct log_writer_config writer = writer_of(part);
    char dir[LOG_PATH_MAX];
    int status;

    if (!o->config.settings->data_dir[0])
        return 0;
    status = epochs_log_dir(o->config.settings->data_dir, o->from.epoch, part->index, dir,
                            &part->err);
    if (status)
        return status;
    snprintf(writer.dir, sizeof writer.dir, "%.*s", (int)sizeof writer.dir - 1, dir);
    return shard_thread_open_log(
        t, &writer, o->from.begins_epoch ? &start : &o->from.ends[part->index], &part->err);
}

static void on_part_back(struct mail *mail, void *owner)
{
    struct part *part = CONTAINER_OF(mail, struct part, mail);
    struct opening *o = part->opening;

    (void)owner;
    enter_main();
    if (part->err.status && !o->result.err.status)
        o->result.err = part->err;
    o->result.n_tables = part->n_tables;
    o->result.n_rows += part->n_rows;
    if (--o->n_outstanding)
        return;
    if (!o->result.err.status && o->config.settings->data_dir[0])
        on_pool(o, tidy, on_tidy);
    else
        finish(o);
}

static void open_part(struct mail *mail, void *owner)
{
    struct part *part = CONTAINER_OF(mail, struct part, mail);
    struct shard_thread *t = owner;
    struct shard *shard;
    int status;

    enter_shard();
    shard = shard_thread_shard(t);
    part->n_tables = shard_n_tables(shard);
    for (uint32_t i = 0; i < part->n_tables; i++)
        part->n_rows += table_n_rows(shard_table(shard, i)->rows);
    shard_thread_publish(t); /* whoever sees the node ready sees what it has loaded */
    part->err.status = open_log(part, t);
    part->mail.run = on_part_back;
    status = mailbox_post(part->opening->config.mailbox, &part->mail);
    assert(status == 0); /* the main thread's box outlives the shards */
}

static void open_all(struct opening *o) ON_MAIN
{
    o->n_outstanding = o->config.n_shards;
    for (uint32_t i = 0; i < o->config.n_shards; i++) {
        int status;

        o->parts[i] = (struct part){ .mail.run = open_part, .opening = o, .index = i };
        status = shard_thread_post(o->config.shards[i], &o->parts[i].mail);
        assert(status == 0);
    }
}

/* --- saving --- */

static void on_saved(void *arg, const struct keeper_record *record)
{
    struct opening *o = arg;

    enter_main();
    o->result.err = record->error;
    if (record->error.status)
        finish(o);
    else
        open_all(o);
}

static void tell_keeper(struct opening *o) ON_MAIN
{
    const struct opening_from *from = &o->from;

    keeper_begin(o->config.keeper,
                 &(struct keeper_start){ .epoch = from->epoch,
                                         .begins_epoch = from->begins_epoch,
                                         .number = from->begins_epoch ? 0 : from->number,
                                         .n_deltas = from->n_deltas });
}

/* --- naming --- */

/* Above every epoch that there is: also where checkpoints were taken away by hand. */
static int begin_epoch(struct opening *o, struct err *err)
{
    const struct file_ops *files = o->config.files;
    const char *data_dir = o->config.settings->data_dir;
    const struct beginning b = { .above = o->from.above,
                                 .was_told = o->from.told[0] != '\0',
                                 .told = (char *)(uintptr_t)o->from.told };
    uint64_t newest;
    int status = epochs_newest(files, data_dir, 0, &newest, err);

    if (!status)
        status = checkpoint_next_above(files, data_dir, newest, &o->from.epoch, err);
    if (!status)
        status = epochs_make(files, data_dir, o->from.epoch, err);
    return status ? status : beginning_write(files, data_dir, o->from.epoch, &b, err);
}

static void name(uv_work_t *work)
{
    struct opening *o = work->data;
    struct err *err = &o->result.err;

    enter_pool();
    if (o->from.begins_epoch)
        err->status = begin_epoch(o, err);
    else
        err->status =
            epochs_make(o->config.files, o->config.settings->data_dir, o->from.epoch, err);
}

static void on_named(uv_work_t *work, int status)
{
    struct opening *o = work->data;

    enter_main();
    assert(status == 0);
    if (o->result.err.status) {
        finish(o);
        return;
    }
    tell_keeper(o);
    if (o->from.begins_epoch)
        keeper_wish(o->config.keeper, on_saved, o);
    else
        open_all(o);
}

void opening_start(const struct opening_config *config, const struct opening_from *from,
                   void (*done)(void *arg, const struct opening_result *result), void *arg)
{
    struct opening *o = mem_alloc(sizeof *o);

    *o = (struct opening){ .config = *config, .from = *from, .done = done, .arg = arg };
    o->parts = mem_alloc(config->n_shards * sizeof *o->parts);
    if (config->settings->data_dir[0])
        on_pool(o, name, on_named);
    else
        open_all(o);
}
