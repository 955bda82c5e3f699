/*
 * In the order of a restore's life:
 *
 *     looking (pool) -> rebuilding (shards) -------------------------------> opening.h -> done
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
#include "server/durable/loader.h"
#include "server/opening.h"
#include "server/origin.h"
#include "server/store/shelf.h"

struct part {
    struct mail mail;
    struct restore *restore;
    uint32_t index; /* of the shard on this node */
    struct err err;
    struct rebuild_facts facts;
};

struct restore {
    struct restore_config config;
    void (*done)(void *arg, const struct restore_result *result);
    void *arg;
    uv_work_t work;
    struct origin origin;
    uint32_t source, old_shard; /* being dealt out */
    struct shard *old;          /* owned; NULL: the source's files are dealt out as they are */
    struct align *align;        /* owned: of those that were made again */
    bool has_later;             /* rebuild_facts: any of them */
    bool goes_back;             /* all are dealt out once more, at a clock */
    struct part *parts;         /* owned, n_shards */
    struct log_end *ends;       /* owned, n_shards */
    struct opening_from from;
    uint32_t n_outstanding;
    void (*then)(struct restore *r); /* when all parts are back */
    struct restore_result result;
};

static void finish(struct restore *r) ON_MAIN
{
    r->done(r->arg, &r->result);
    origin_deinit(&r->origin);
    align_free(r->align);
    free(r->parts);
    free(r->ends);
    free(r);
}

/* --- work for every shard --- */

static bool may_fall_back(const struct restore *r) ON_MAIN;
static void fall_back(struct restore *r) ON_MAIN;

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
    if (r->result.err.status && may_fall_back(r))
        fall_back(r);
    else if (r->result.err.status)
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

static void name_checkpoint(struct restore *r, uint64_t number)
{
    struct err unwanted;

    if (shelf_number_path(r->config.settings->data_dir, number, r->result.from, &unwanted))
        r->result.from[0] = '\0';
}

/* --- the end: what comes from here on is written down --- */

static void on_opened(void *arg, const struct opening_result *opened)
{
    struct restore *r = arg;

    enter_main();
    r->result.err = opened->err;
    r->result.n_tables = opened->n_tables;
    r->result.n_rows = opened->n_rows;
    finish(r);
}

/* No epoch is begun for a node that will not serve: nothing that is there has changed. What was asked for has not
 * been done, which is a failure; a plain start has only to be made again. */
static void give_up(struct restore *r) ON_MAIN
{
    const char *from = r->result.from;

    if (r->from.begins_epoch)
        err_set(&r->result.err, PS_ESTOPPING,
                "stopped before %.200s was restored: nothing is changed, and the same start "
                "does it",
                from[0] ? from : "the data directory");
    else if (from[0])
        log_info("stopped before %.200s was restored: the next start does it", from);
    r->result.from[0] = '\0';
    finish(r);
}

static void begin_opening(struct restore *r) ON_MAIN
{
    const struct opening_config config = { .loop = r->config.loop,
                                           .mailbox = r->config.mailbox,
                                           .keeper = r->config.keeper,
                                           .files = r->config.files,
                                           .settings = r->config.settings,
                                           .n_nodes = r->config.n_nodes,
                                           .n_shards = r->config.n_shards,
                                           .shards = r->config.shards };

    if (r->from.above == UINT64_MAX)
        r->from.above = 0;
    r->from.told = r->origin.told;
    if (r->config.is_to_stop && *r->config.is_to_stop)
        give_up(r);
    else
        opening_start(&config, &r->from, on_opened, r);
}

/* This node's own checkpoint, of which a shard, or an old one, was made; 0: of a log alone. */
static void note_used(struct restore *r, uint64_t number)
{
    if (r->origin.is_own && number < r->from.above)
        r->from.above = number;
}

/* --- its own shards, made again --- */

static void say_later(const struct restore *r)
{
    if (r->has_later && r->origin.at.job)
        rebuild_say_later(&r->origin.at, report, NULL);
}

/* Shards of two epochs are of two histories. */
static int check_epochs(const struct restore *r, struct err *err)
{
    const struct rebuild_facts *first = &r->parts[0].facts;

    for (uint32_t i = 1; i < r->config.n_shards; i++)
        if (r->parts[i].facts.epoch != first->epoch)
            return err_set(err, PS_ECORRUPT,
                           "shard 0 could be made again from checkpoint %" PRIu64
                           " alone, shard %" PRIu32 " from %" PRIu64
                           ", and another log has begun in between: start with --at NUMBER, of "
                           "one that is whole",
                           first->number, i, r->parts[i].facts.number);
    return 0;
}

/* The checkpoint that all shards were made of; 0: they were made of several, or of none. */
static uint64_t number_of_all(const struct restore *r)
{
    for (uint32_t i = 1; i < r->config.n_shards; i++)
        if (r->parts[i].facts.number != r->parts[0].facts.number)
            return 0;
    return r->parts[0].facts.number;
}

/* Where a shard was made of its log alone, the others' logs need not reach back as far: what they were made of stays. */
static uint64_t newest_used(const struct restore *r)
{
    uint64_t newest = 0;

    for (uint32_t i = 0; i < r->config.n_shards; i++)
        if (r->parts[i].facts.number > newest)
            newest = r->parts[i].facts.number;
    return newest;
}

static void sum_up(struct restore *r) ON_MAIN
{
    for (uint32_t i = 0; i < r->config.n_shards; i++) {
        const struct rebuild_facts *facts = &r->parts[i].facts;

        r->ends[i] = facts->end;
        r->result.n_records += facts->n_records;
        r->result.n_log_bytes += r->from.begins_epoch ? 0 : facts->n_log_bytes;
        r->has_later = r->has_later || facts->has_later;
        note_used(r, facts->number);
    }
    if (!r->from.begins_epoch && !r->from.above)
        r->from.above = newest_used(r);
    r->from.ends = r->ends;
    r->from.epoch = r->parts[0].facts.epoch;
    r->from.number = number_of_all(r);
    if (!r->from.number)
        return;
    r->from.n_deltas = r->parts[0].facts.n_links - 1;
    name_checkpoint(r, r->from.number); /* where the newest was damaged it is an older one */
}

static void end_rebuilding(struct restore *r) ON_MAIN
{
    sum_up(r);
    r->result.err.status = check_epochs(r, &r->result.err);
    if (r->result.err.status) {
        finish(r);
        return;
    }
    say_later(r);
    begin_opening(r);
}

static void rebuild_part(struct mail *mail, void *owner)
{
    struct part *part = CONTAINER_OF(mail, struct part, mail);
    struct restore *r = part->restore;
    int status;
    struct rebuild_config config = { .files = r->config.files,
                                     .data_dir = r->config.settings->data_dir,
                                     .shard_index = part->index,
                                     .who = identity(r, part->index),
                                     .at = r->origin.at,
                                     .progress = shard_thread_progress,
                                     .report = report,
                                     .arg = owner };

    enter_shard();
    status = rebuild_shard(&config, shard_thread_shard(owner), shard_thread_now_ms(owner),
                           &part->facts, &part->err);
    /* Its log goes on from there; a new epoch begins with a checkpoint of its own. */
    if (!status && part->facts.number && !r->from.begins_epoch)
        status = checkpoint_sync(config.files, config.data_dir, part->facts.number, &part->err);
    send_back(part, status);
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

    enter_shard();
    shard = shard_thread_shard(owner);
    send_back(part, r->old ? deal_rows(r->old, shard, shard_thread_progress, owner, &part->err)
                           : loader_deal(&loader, shard, &facts, &part->err));
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
    note_used(r, facts.number);
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

/* Every source once more, at that clock. */
static void deal_again(struct restore *r, const struct rebuild_at *at) ON_MAIN
{
    for (uint32_t i = 0; i < r->origin.n_sources; i++)
        source_go_back(&r->origin.sources[i], at);
    r->result.n_records = 0;
    r->goes_back = true;
    on_shards(r, clear_part, begin_dealing);
}

/* Files that are dealt out as they are, and damaged: shards made again have the restore points before, and the log. */
static bool may_fall_back(const struct restore *r)
{
    return r->then == deal_next && !r->old && !r->goes_back &&
           checkpoint_is_damage(r->result.err.status) &&
           source_may_be_rebuilt(&r->origin.sources[r->source]);
}

static void fall_back(struct restore *r)
{
    report(NULL, r->result.err.text);
    r->result.err = (struct err){ 0 };
    r->origin.sources[r->source].is_exact = false;
    align_forget(r->align); /* the sources before this one */
    r->result.n_records = 0;
    on_shards(r, clear_part, begin_dealing);
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
        deal_again(r, &again);
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
    const struct origin_config config = { .files = r->config.files,
                                          .settings = r->config.settings,
                                          .n_nodes = r->config.n_nodes,
                                          .report = report };

    enter_pool();
    r->result.err.status = origin_look(&r->origin, &config, &r->result.err);
}

static void on_looked(uv_work_t *work, int status)
{
    struct restore *r = work->data;
    const struct settings *s = r->config.settings;

    enter_main();
    assert(status == 0);
    origin_name(&r->origin, r->result.from);
    r->from.begins_epoch = s->data_dir[0] != '\0';
    if (r->result.err.status) {
        finish(r);
    } else if (r->origin.is_own && source_is_of(&r->origin.sources[0], s->node,
                                                r->config.n_nodes, r->config.n_shards)) {
        r->from.begins_epoch = s->at[0] && !r->origin.was_done;
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
    r->ends = mem_alloc(config->n_shards * sizeof *r->ends);
    r->from.above = UINT64_MAX;
    for (uint32_t i = 0; i < config->n_shards; i++)
        r->parts[i] = (struct part){ .restore = r, .index = i };
    r->work.data = r;
    on_pool(r, look, on_looked);
}
