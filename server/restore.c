/*
 * In the order of a restore's life:
 *
 *     looking (pool) -> rebuilding (shards) -------------------------------> opening (shards) -> done
 *                    -> building (pool) <-> dealing (shards), one by one -->
 *                           ^                                          |
 *                           +------- clearing (shards): once more <----+  where jobs in lock step need it (align.h)
 */
#include "server/restore.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/mem.h"
#include "common/now.h"
#include "server/durable/align.h"
#include "server/durable/deal.h"
#include "server/durable/epochs.h"
#include "server/durable/loader.h"
#include "server/origin.h"
#include "server/store/shelf.h"

struct part {
    struct mail mail;
    struct restore *restore;
    uint32_t index; /* of the shard on this node */
    struct err err;
    struct rebuild_facts facts;
    int damage; /* of files that were dealt out to it; 0: none */
    uint32_t n_tables;
    uint64_t n_rows;
};

struct restore {
    struct restore_config config;
    void (*done)(void *arg, const struct restore_result *result);
    void *arg;
    uv_work_t work;
    struct origin origin;       /* owned */
    uint32_t source, old_shard; /* being dealt out */
    struct shard *old;          /* owned; NULL: the source's files are dealt out as they are */
    struct align *align;        /* owned: of those that were made again */
    bool has_later;             /* rebuild_facts: any of them */
    struct part *parts;         /* owned, n_shards */
    uint32_t n_outstanding;
    void (*then)(struct restore *r); /* when all parts are back */
    struct restore_result result;
};

static void finish(struct restore *r) ON_MAIN
{
    r->done(r->arg, &r->result);
    origin_close(&r->origin);
    align_free(r->align);
    free(r->parts);
    free(r);
}

/* --- work for every shard --- */

static void on_part_back(struct mail *mail, void *owner)
{
    struct part *part = CONTAINER_OF(mail, struct part, mail);
    struct restore *r = part->restore;

    (void)owner;
    enter_main();
    if (part->err.status && !r->result.err.status)
        r->result.err = part->err;
    if (--r->n_outstanding)
        return;
    if (r->result.err.status)
        finish(r);
    else
        r->then(r);
}

static void send_back(struct part *part, int result)
{
    int status;

    part->err.status = result;
    part->mail.run = on_part_back;
    status = mailbox_post(part->restore->config.mailbox, &part->mail);
    assert(status == 0); /* the main thread's box outlives the shards */
}

static void on_shards(struct restore *r, void (*run)(struct mail *mail, void *owner),
                      void (*then)(struct restore *r)) ON_MAIN
{
    r->then = then;
    r->n_outstanding = r->config.n_shards;
    for (uint32_t i = 0; i < r->config.n_shards; i++) {
        int status;

        r->parts[i].mail.run = run;
        status = shard_thread_post(r->config.shards[i], &r->parts[i].mail);
        assert(status == 0);
    }
}

static void on_pool(struct restore *r, uv_work_cb work, uv_after_work_cb after) ON_MAIN
{
    if (uv_queue_work(r->config.loop, &r->work, work, after))
        abort(); /* only for a NULL callback */
}

static struct part_identity identity(const struct restore *r, uint32_t index)
{
    return (struct part_identity){ .node = r->config.settings->node,
                                   .shard =
                                       r->config.settings->node * r->config.n_shards + index,
                                   .n_shards = r->config.n_nodes * r->config.n_shards };
}

static void report(void *arg, const char *sentence)
{
    (void)arg;
    log_warn("restore: %s", sentence);
}

/* --- the end: logs are opened --- */

static void name_checkpoint(struct restore *r, uint64_t number)
{
    struct err unwanted;

    if (shelf_number_path(r->config.settings->data_dir, number, r->result.from, &unwanted))
        r->result.from[0] = '\0';
}

static void sum_up(struct restore *r) ON_MAIN
{
    for (uint32_t i = 0; i < r->config.n_shards; i++) {
        const struct part *part = &r->parts[i];

        r->result.n_tables = part->n_tables;
        r->result.n_rows += part->n_rows;
        r->result.n_records += part->facts.n_records;
        r->result.n_log_bytes += part->facts.n_log_bytes;
        if (i == 0)
            r->result.number = part->facts.number;
        else if (r->result.number != part->facts.number)
            r->result.number = 0;
        if (r->result.number && part->facts.n_links)
            r->result.n_deltas = part->facts.n_links - 1;
    }
    /* Where the newest was damaged it is an older one. */
    if (r->result.number)
        name_checkpoint(r, r->result.number);
    if (r->result.begins_epoch)
        r->result.number = 0; /* its first checkpoint is a full one */
    finish(r);
}

static int open_log(struct restore *r, struct shard_thread *t, struct part *part) ON_SHARD
{
    const struct settings *s = r->config.settings;
    struct part_identity who = identity(r, part->index);
    struct log_writer_config writer = { .files = r->config.files,
                                        .identity = { .node = who.node,
                                                      .shard = who.shard,
                                                      .n_shards = who.n_shards,
                                                      .map_id = r->result.epoch },
                                        .durability = s->durability,
                                        .zstd = LOG_ZSTD_WHERE_IT_PAYS,
                                        .interval_ms = (uint32_t)s->log_interval_ms };
    struct log_end end = r->result.begins_epoch ? (struct log_end){ 0 } : part->facts.end;
    char dir[LOG_PATH_MAX];
    int status;

    if (!s->data_dir[0])
        return 0;
    status = epochs_log_dir(s->data_dir, r->result.epoch, part->index, dir, &part->err);
    if (status)
        return status;
    snprintf(writer.dir, sizeof writer.dir, "%.*s", (int)sizeof writer.dir - 1, dir);
    return shard_thread_open_log(t, &writer, &end, &part->err);
}

static void open_part(struct mail *mail, void *owner)
{
    struct part *part = CONTAINER_OF(mail, struct part, mail);
    struct shard_thread *t = owner;
    struct shard *shard;

    enter_shard();
    shard = shard_thread_shard(t);
    part->n_tables = shard_n_tables(shard);
    for (uint32_t i = 0; i < part->n_tables; i++)
        part->n_rows += table_n_rows(shard_table(shard, i)->rows);
    shard_thread_publish(t); /* whoever sees the node ready sees what it has loaded */
    send_back(part, open_log(part->restore, t, part));
}

static void make_epoch(uv_work_t *work)
{
    struct restore *r = work->data;
    const char *data_dir = r->config.settings->data_dir;
    struct err *err = &r->result.err;

    enter_pool();
    if (r->result.begins_epoch)
        err->status = checkpoint_next(r->config.files, data_dir, &r->result.epoch, err);
    if (!err->status)
        err->status = epochs_make(r->config.files, data_dir, r->result.epoch, err);
}

static void on_epoch(uv_work_t *work, int status)
{
    struct restore *r = work->data;

    enter_main();
    assert(status == 0);
    if (r->result.err.status)
        finish(r);
    else
        on_shards(r, open_part, sum_up);
}

static void begin_opening(struct restore *r) ON_MAIN
{
    if (r->config.settings->data_dir[0])
        on_pool(r, make_epoch, on_epoch);
    else
        on_shards(r, open_part, sum_up);
}

/* --- its own shards, made again --- */

static void say_later(const struct restore *r)
{
    struct rebuild_at at = origin_at(r->config.settings);

    if (r->has_later && at.job)
        rebuild_say_later(&at, report, NULL);
}

static void end_rebuilding(struct restore *r) ON_MAIN
{
    for (uint32_t i = 0; i < r->config.n_shards; i++)
        r->has_later = r->has_later || r->parts[i].facts.has_later;
    say_later(r);
    r->result.epoch = r->parts[0].facts.epoch;
    begin_opening(r);
}

static void rebuild_part(struct mail *mail, void *owner)
{
    struct part *part = CONTAINER_OF(mail, struct part, mail);
    struct restore *r = part->restore;
    struct rebuild_config config = { .files = r->config.files,
                                     .data_dir = r->config.settings->data_dir,
                                     .shard_index = part->index,
                                     .who = identity(r, part->index),
                                     .at = origin_at(r->config.settings),
                                     .progress = shard_thread_progress,
                                     .report = report,
                                     .arg = owner };

    enter_shard();
    send_back(part, rebuild_shard(&config, shard_thread_shard(owner),
                                  shard_thread_now_ms(owner), &part->facts, &part->err));
}

/* --- others' shards, made again and dealt out --- */

static void deal_next(struct restore *r) ON_MAIN;

static void deal_part(struct mail *mail, void *owner)
{
    struct part *part = CONTAINER_OF(mail, struct part, mail);
    struct restore *r = part->restore;
    struct loader_config loader = { .files = r->config.files,
                                    .checkpoint = &r->origin.sources[r->source].checkpoint,
                                    .progress = shard_thread_progress,
                                    .arg = owner };
    struct loader_facts facts;
    struct shard *shard;
    int status;

    enter_shard();
    shard = shard_thread_shard(owner);
    status = r->old ? deal_rows(r->old, shard, shard_thread_progress, owner, &part->err)
                    : loader_deal(&loader, shard, &facts, &part->err);
    part->damage = !r->old && checkpoint_is_damage(status) ? status : 0;
    send_back(part, part->damage ? 0 : status);
}

/* This thread stands in for the old shard's own. */
static void build_old(uv_work_t *work)
{
    struct restore *r = work->data;
    struct rebuild_config how = { .report = report };
    const struct source *s = &r->origin.sources[r->source];
    struct err *err = &r->result.err;
    struct rebuild_facts facts = { 0 };

    enter_shard();
    err->status = source_rebuild(s, r->config.files, r->old_shard, &how, now_mono_ms(), &r->old,
                                 &facts, err);
    err->status = align_explain(r->align, err->status, err);
    r->result.n_records += facts.n_records;
    r->has_later = r->has_later || facts.has_later;
    if (!err->status)
        align_note(r->align, s->node * s->shards_per_node + r->old_shard, r->old);
}

static void on_built(uv_work_t *work, int status)
{
    struct restore *r = work->data;

    enter_main();
    assert(status == 0);
    if (r->result.err.status)
        finish(r);
    else
        on_shards(r, deal_part, deal_next);
}

static void free_old(struct restore *r)
{
    enter_shard();
    shard_free(r->old);
    r->old = NULL;
}

static void deal_source(struct restore *r) ON_MAIN
{
    if (r->origin.sources[r->source].is_exact)
        on_shards(r, deal_part, deal_next);
    else
        on_pool(r, build_old, on_built);
}

static void clear_part(struct mail *mail, void *owner)
{
    enter_shard();
    shard_clear(shard_thread_shard(owner));
    send_back(CONTAINER_OF(mail, struct part, mail), 0);
}

static void begin_dealing(struct restore *r) ON_MAIN
{
    r->source = r->old_shard = 0;
    r->has_later = false;
    deal_source(r);
}

static void deal_again(struct restore *r) ON_MAIN
{
    align_forget(r->align);
    r->result.n_records = 0;
    on_shards(r, clear_part, begin_dealing);
}

/* Files that were dealt out are damaged: all once more, without them, or it is over. */
static bool deal_around(struct restore *r) ON_MAIN
{
    struct part *part = r->parts, *end = part + r->config.n_shards;

    while (part < end && !part->damage)
        part++;
    if (part == end)
        return false;
    part->err.status = part->damage;
    if (source_fall_back(&r->origin.sources[r->source], part->damage)) {
        report(NULL, part->err.text);
        deal_again(r);
    } else {
        r->result.err = part->err;
        finish(r);
    }
    return true;
}

static void end_dealing(struct restore *r) ON_MAIN
{
    const struct align_config config = {
        .at = source_asked(r->origin.sources, r->origin.n_sources),
        .n_unseen_nodes = r->origin.sources[0].n_nodes - r->origin.n_sources,
        .report = report
    };
    struct err *err = &r->result.err;
    struct rebuild_at again;

    err->status = align_judge(r->align, &config, &again, err);
    if (err->status) {
        finish(r);
    } else if (again.job) {
        for (uint32_t i = 0; i < r->origin.n_sources; i++)
            source_go_back(&r->origin.sources[i], &again);
        deal_again(r);
    } else {
        say_later(r);
        begin_opening(r);
    }
}

/* What follows behind the old shard, or the whole source, that has been dealt out. */
static void deal_next(struct restore *r)
{
    const struct source *s = &r->origin.sources[r->source];

    free_old(r);
    if (deal_around(r))
        return;
    if (s->is_exact || ++r->old_shard == s->shards_per_node) {
        r->old_shard = 0;
        r->source++;
    }
    if (r->source == r->origin.n_sources)
        end_dealing(r);
    else
        deal_source(r);
}

/* --- looking --- */

static void look(uv_work_t *work)
{
    struct restore *r = work->data;
    struct err *err = &r->result.err;

    enter_pool();
    err->status = origin_open(&r->origin, r->config.files, r->config.settings,
                              r->config.n_nodes, report, err);
}

static void on_looked(uv_work_t *work, int status)
{
    struct restore *r = work->data;
    const struct settings *s = r->config.settings;
    bool is_own = r->origin.n_sources && !s->restore.n;

    enter_main();
    assert(status == 0);
    origin_name(&r->origin, r->result.from);
    r->result.begins_epoch = s->data_dir[0] != '\0';
    if (r->result.err.status) {
        finish(r);
    } else if (is_own && source_is_of(&r->origin.sources[0], s->node, r->config.n_nodes,
                                      r->config.n_shards)) {
        r->result.begins_epoch = s->at[0] != '\0';
        on_shards(r, rebuild_part, end_rebuilding);
    } else if (r->origin.n_sources) {
        begin_dealing(r);
    } else {
        begin_opening(r);
    }
}

void restore_start(const struct restore_config *config,
                   void (*done)(void *arg, const struct restore_result *result), void *arg)
{
    struct restore *r = mem_alloc(sizeof *r);

    r->config = *config;
    r->done = done;
    r->arg = arg;
    r->align = align_new();
    r->parts = mem_alloc(config->n_shards * sizeof *r->parts);
    for (uint32_t i = 0; i < config->n_shards; i++)
        r->parts[i] = (struct part){ .restore = r, .index = i };
    r->work.data = r;
    on_pool(r, look, on_looked);
}
