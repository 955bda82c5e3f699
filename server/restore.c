#include "server/restore.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/mem.h"

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
    char (*dirs)[CHECKPOINT_PATH_MAX]; /* owned, result.n_dirs */
    struct checkpoint_id *ids;         /* owned, the same */
    struct part *parts;                /* owned, n_shards */
    uint32_t n_outstanding;
    struct restore_result result;
};

static void finish(struct restore *r)
{
    r->done(r->arg, &r->result);
    free(r->dirs);
    free(r->ids);
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
    struct shard *shard;
    int status = 0;

    enter_shard();
    shard = shard_thread_shard(t);
    for (uint32_t i = 0; i < r->result.n_dirs && !status; i++)
        status = checkpoint_load(r->config.files, r->dirs[i], shard, shard_thread_progress, t,
                                 &part->err);
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

    snprintf(r->result.dir, sizeof r->result.dir, "%s", r->dirs[0]);
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
    int fd;

    snprintf(manifest, sizeof manifest, "%s/MANIFEST", dir);
    if (r->config.files->open_read(r->config.files->state, manifest, &fd))
        return checkpoint_newest(r->config.files, dir, r->dirs[i], &r->ids[i], warn, NULL, err);
    (void)r->config.files->close(r->config.files->state, fd);
    if (strlen(dir) >= CHECKPOINT_PATH_MAX)
        return err_set(err, PS_ESETTING, "restore: a path of more than %u bytes",
                       CHECKPOINT_PATH_MAX - 1);
    snprintf(r->dirs[i], CHECKPOINT_PATH_MAX, "%s", dir);
    return checkpoint_verify(r->config.files, dir, &r->ids[i], err);
}

/* The node's own newest checkpoint; none is fine. */
static int find_own(struct restore *r, struct err *err)
{
    int status = find_in(r, r->config.settings->data_dir, 0, err);

    if (status == PS_ENOCHECKPOINT)
        return 0;
    if (status)
        return status;
    if (r->ids[0].n_nodes != r->config.n_nodes || r->ids[0].node != r->config.settings->node)
        return err_set(err, PS_ECLUSTER,
                       "%s was written by node %u of %u, this is node %u of %u: name the "
                       "directories of all %u "
                       "nodes with --restore DIR,DIR, or start with --no-restore",
                       r->dirs[0], r->ids[0].node, r->ids[0].n_nodes, r->config.settings->node,
                       r->config.n_nodes, r->ids[0].n_nodes);
    r->result.n_dirs = 1;
    return 0;
}

/* Are the directories those of all nodes of one cluster? */
static int check_set(struct restore *r, uint32_t n, struct err *err)
{
    for (uint32_t i = 0; i < n; i++) {
        if (r->ids[i].n_nodes != n)
            return err_set(
                err, PS_ECLUSTER,
                "restore: %.120s was written by one of %u nodes, %u directories are given",
                r->dirs[i], r->ids[i].n_nodes, n);
        for (uint32_t j = 0; j < i; j++)
            if (r->ids[j].node == r->ids[i].node)
                return err_set(err, PS_ECLUSTER,
                               "restore: %.100s and %.100s were both written by node %u",
                               r->dirs[j], r->dirs[i], r->ids[i].node);
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
    r->dirs = mem_alloc(SETTINGS_LIST_MAX * sizeof *r->dirs);
    r->ids = mem_alloc(SETTINGS_LIST_MAX * sizeof *r->ids);
    r->work.data = r;
    if (uv_queue_work(config->loop, &r->work, find, on_found))
        abort(); /* only for a NULL callback */
}
