#include "server/restore.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/mem.h"
#include "server/durable/loader.h"

struct part {
    struct mail mail;
    struct restore *restore;
    struct err err;
    uint32_t n_tables;
    uint64_t n_rows;
};

struct restore {
    struct restore_config config;
    void (*done)(void *arg, const struct restore_result *result);
    void *arg;
    uv_work_t work;
    struct checkpoint *found; /* owned, result.n_dirs */
    struct part *parts;       /* owned, n_shards */
    uint32_t n_outstanding;
    struct restore_result result;
};

static void finish(struct restore *r)
{
    r->done(r->arg, &r->result);
    for (uint32_t i = 0; i < SETTINGS_LIST_MAX; i++)
        checkpoint_close(&r->found[i]);
    free(r->found);
    free(r->parts);
    free(r);
}

/* --- loading, on the shards' threads --- */

static void on_part_back(struct mail *mail, void *owner)
{
    struct part *part = CONTAINER_OF(mail, struct part, mail);
    struct restore *r = part->restore;

    (void)owner;
    enter_main();
    if (part->err.status && !r->result.err.status)
        r->result.err = part->err;
    r->result.n_tables = part->n_tables;
    r->result.n_rows += part->n_rows;
    if (--r->n_outstanding == 0)
        finish(r);
}

static void load_part(struct mail *mail, void *owner)
{
    struct part *part = CONTAINER_OF(mail, struct part, mail);
    struct restore *r = part->restore;
    struct shard_thread *t = owner;
    struct loader_config config = { .files = r->config.files,
                                    .progress = shard_thread_progress,
                                    .arg = t };
    struct loader_facts facts;
    struct shard *shard;
    int status = 0;

    enter_shard();
    shard = shard_thread_shard(t);
    for (uint32_t i = 0; i < r->result.n_dirs && !status; i++) {
        config.checkpoint = &r->found[i];
        status = loader_deal(&config, shard, &facts, &part->err);
    }
    part->err.status = status;
    part->n_tables = shard_n_tables(shard);
    for (uint32_t i = 0; i < part->n_tables; i++)
        part->n_rows += table_n_rows(shard_table(shard, i)->rows);
    shard_thread_publish(t); /* whoever sees the node ready sees what it has loaded */
    part->mail.run = on_part_back;
    status = mailbox_post(r->config.mailbox, &part->mail);
    assert(status == 0); /* the main thread's box outlives the shards */
}

static void start_loading(struct restore *r) ON_MAIN
{
    int status;

    snprintf(r->result.dir, sizeof r->result.dir, "%s", r->found[0].dir);
    r->parts = mem_alloc(r->config.n_shards * sizeof *r->parts);
    r->n_outstanding = r->config.n_shards;
    for (uint32_t i = 0; i < r->config.n_shards; i++) {
        r->parts[i] = (struct part){ .mail.run = load_part, .restore = r };
        status = shard_thread_post(r->config.shards[i], &r->parts[i].mail);
        assert(status == 0);
    }
}

/* --- finding, on the pool --- */

static void warn(void *arg, const char *sentence)
{
    (void)arg;
    log_warn("checkpoint skipped: %s", sentence);
}

/* `dir` is a data directory, or one checkpoint in it. */
static int find_in(struct restore *r, const char *dir, uint32_t i, struct err *err)
{
    char manifest[SETTINGS_TEXT_MAX + 16];
    int fd, status;

    snprintf(manifest, sizeof manifest, "%s/MANIFEST", dir);
    if (r->config.files->open_read(r->config.files->state, manifest, &fd))
        return checkpoint_find_whole(r->config.files, dir, &r->found[i], warn, NULL, err);
    (void)r->config.files->close(r->config.files->state, fd);
    status = checkpoint_open(r->config.files, dir, &r->found[i], err);
    return status ? status : checkpoint_verify(r->config.files, &r->found[i], NULL, NULL, err);
}

/* The node's own newest checkpoint; none is fine. */
static int find_own(struct restore *r, struct err *err)
{
    int status = find_in(r, r->config.settings->data_dir, 0, err);
    const struct manifest *m = r->found[0].links;

    if (status == PS_ENOCHECKPOINT)
        return 0;
    if (status)
        return status;
    if (m->n_nodes != r->config.n_nodes || m->node != r->config.settings->node)
        return err_set(err, PS_ECLUSTER,
                       "%s was written by node %u of %u, this is node %u of %u: name the "
                       "directories of all %u "
                       "nodes with --restore DIR,DIR, or start with --no-restore",
                       r->found[0].dir, m->node, m->n_nodes, r->config.settings->node,
                       r->config.n_nodes, m->n_nodes);
    r->result.n_dirs = 1;
    return 0;
}

/* Are the directories those of all nodes of one cluster? */
static int check_set(struct restore *r, uint32_t n, struct err *err)
{
    for (uint32_t i = 0; i < n; i++) {
        if (r->found[i].links->n_nodes != n)
            return err_set(
                err, PS_ECLUSTER,
                "restore: %.120s was written by one of %u nodes, %u directories are given",
                r->found[i].dir, r->found[i].links->n_nodes, n);
        for (uint32_t j = 0; j < i; j++)
            if (r->found[j].links->node == r->found[i].links->node)
                return err_set(err, PS_ECLUSTER,
                               "restore: %.100s and %.100s were both written by node %u",
                               r->found[j].dir, r->found[i].dir, r->found[i].links->node);
    }
    return 0;
}

static int find_named(struct restore *r, struct err *err)
{
    const struct setting_list *named = &r->config.settings->restore;
    int status = 0;

    for (uint32_t i = 0; i < named->n && !status; i++)
        status = find_in(r, named->items[i], i, err);
    if (!status)
        status = check_set(r, named->n, err);
    if (!status)
        r->result.n_dirs = named->n;
    return status;
}

static void find(uv_work_t *work)
{
    struct restore *r = work->data;
    const struct settings *settings = r->config.settings;

    enter_pool();
    if (settings->restore.n)
        r->result.err.status = find_named(r, &r->result.err);
    else if (settings->data_dir[0] && !settings->no_restore)
        r->result.err.status = find_own(r, &r->result.err);
}

static void on_found(uv_work_t *work, int status)
{
    struct restore *r = work->data;

    enter_main();
    assert(status == 0);
    if (r->result.err.status || r->result.n_dirs == 0)
        finish(r);
    else
        start_loading(r);
}

void restore_start(const struct restore_config *config,
                   void (*done)(void *arg, const struct restore_result *result), void *arg)
{
    struct restore *r = mem_alloc(sizeof *r);

    r->config = *config;
    r->done = done;
    r->arg = arg;
    r->found = mem_alloc(SETTINGS_LIST_MAX * sizeof *r->found);
    r->work.data = r;
    if (uv_queue_work(config->loop, &r->work, find, on_found))
        abort(); /* only for a NULL callback */
}
