/*
 * The trainer's tables inside this process: one shard of server/core, fed with the same encoded
 * bytes that a server would get, so that what a codec loses is lost here too. No network and no
 * thread; time passes only for the tables' own rules (--ttl), and no lease ends.
 */
#include "common/file.h"
#include "common/mem.h"
#include "proto/message.h"
#include "server/core/shard.h"
#include "server/durable/loader.h"
#include "server/durable/saver.h"
#include "server/store/shelf.h"
#include "worker/client/encode.h"
#include "worker/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct local {
    struct store store;
    struct shard *shard;     /* owned */
    struct encoder *encoder; /* owned */
    char job[SPEC_NAME_MAX];
    uint32_t ids[PS_TABLES_MAX]; /* the shard's number of the store's table 0, 1, 2 ... */
    uint32_t n_tables;
    uint64_t seq, begun_ms;
    struct push push; /* scratch */
    struct pull pull;
    struct buf in, out;                    /* owned: encoded request and answer */
    const struct ps_pull_section *pulling; /* borrowed between pull_start and pull_wait */
    uint32_t n_pulling;
    struct ps_stats stats;
};

static struct local *local_of(struct store *s)
{
    return (struct local *)(void *)s;
}

/* The store's number of the shard's table `id`: the one it has, or the next. */
static int number(struct local *l, const struct table_spec *spec, uint32_t id,
                  uint32_t *ret_table, struct err *err)
{
    uint32_t i = 0;

    while (i < l->n_tables && l->ids[i] != id)
        i++;
    *ret_table = i;
    if (i < l->n_tables)
        return 0;
    if (i == PS_TABLES_MAX)
        return err_set(err, -ENOSPC, "more than %u tables", PS_TABLES_MAX);
    if (encoder_add_table(l->encoder, i, spec))
        return err_set(err, -ENOMEM, "no memory for table %s", spec->name);
    l->ids[l->n_tables++] = id;
    return 0;
}

/* From the store's numbers, which the encoder writes, to the shard's. */
static void translate(const struct local *l, struct section *sections, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        sections[i].table_id = l->ids[sections[i].table_id];
}

static int table(struct store *s, const struct table_spec *spec, uint32_t *ret_table,
                 struct err *err)
{
    struct local *l = local_of(s);
    uint32_t id;
    int status;

    enter_shard();
    status = shard_table_ask(l->shard, spec, false, &id, err);
    return status ? status : number(l, spec, id, ret_table, err);
}

static int table_find(struct store *s, struct table_spec *spec, uint32_t *ret_table,
                      struct err *err)
{
    struct local *l = local_of(s);
    uint32_t id;
    int status;

    enter_shard();
    status = shard_table_ask(l->shard, spec, true, &id, err);
    if (status)
        return status;
    *spec = shard_table(l->shard, id)->spec;
    return number(l, spec, id, ret_table, err);
}

static int pull_start(struct store *s, uint64_t clock, const struct ps_pull_section *sections,
                      uint32_t n, struct err *err)
{
    struct local *l = local_of(s);
    int status;

    buf_consume(&l->in, buf_len(&l->in));
    status = encoder_pull(l->encoder, sections, n, &l->in, &l->pull);
    if (status)
        return err_set(err, status, "a pull cannot be encoded: %s", status_text(status));
    translate(l, l->pull.sections, l->pull.n_sections);
    l->pull.clock = clock;
    l->pulling = sections;
    l->n_pulling = n;
    return 0;
}

static int pull_wait(struct store *s, struct err *err)
{
    struct local *l = local_of(s);
    const uint8_t *values[SECTIONS_MAX];
    size_t value_bytes[SECTIONS_MAX], total = 0;
    uint64_t min_clock, version;
    uint8_t *answer;
    int status;

    enter_shard();
    status = shard_pull_plan(l->shard, &l->pull, SIZE_MAX, value_bytes, err);
    if (status)
        return status;
    for (uint32_t i = 0; i < l->n_pulling; i++)
        total += value_bytes[i];
    buf_consume(&l->out, buf_len(&l->out));
    answer = buf_reserve(&l->out, total + 1);
    if (!answer)
        return err_set(err, -ENOMEM, "no memory for %zu bytes of rows", total);
    status = shard_pull(l->shard, NULL, &l->pull, answer, &min_clock, &version, err);
    if (status)
        return status;
    for (uint32_t i = 0; i < l->n_pulling; i++) {
        values[i] = answer;
        answer += value_bytes[i];
        l->stats.rows_pulled += l->pulling[i].n_keys;
    }
    l->stats.pulls++;
    status = encoder_pulled(l->encoder, l->pulling, l->n_pulling, 0, values, value_bytes);
    return status ? err_set(err, status, "an answer makes no sense: %s", status_text(status))
                  : 0;
}

static uint64_t mono_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static int push(struct store *s, uint64_t clock, uint32_t n_samples, bool tick,
                const struct ps_push_section *sections, uint32_t n, struct err *err)
{
    struct local *l = local_of(s);
    struct shard_push_result result;
    struct worker *worker;
    int status;

    enter_shard();
    buf_consume(&l->in, buf_len(&l->in));
    status = encoder_push(l->encoder, sections, n, &l->in, &l->push);
    if (status)
        return err_set(err, status, "a push cannot be encoded: %s", status_text(status));
    status = roster_find(shard_roster(l->shard), l->job, 0, 1, 0, &worker);
    if (status)
        return err_set(err, status, "%s", status_text(status));
    translate(l, l->push.sections, l->push.n_sections);
    l->push.seq = ++l->seq;
    l->push.clock = clock;
    l->push.n_samples = n_samples;
    l->push.tick = tick;
    status = shard_push(l->shard, worker, &l->push, 0, &result);
    if (status)
        return err_set(err, status, "%s", status_text(status));
    l->stats.pushes++;
    l->stats.rows_refused += result.rows_refused;
    for (uint32_t i = 0; i < n; i++)
        l->stats.rows_pushed += sections[i].n_keys;
    (void)shard_advance(l->shard, mono_ms() - l->begun_ms);
    return result.status ? err_set(err, result.status, "%s", result.text) : 0;
}

static int done(struct store *s, struct err *err)
{
    (void)s;
    (void)err;
    return 0;
}

static uint64_t clock_of(const struct store *s)
{
    (void)s;
    return 0;
}

static void stats(const struct store *s, struct ps_stats *ret)
{
    const struct local *l = (const struct local *)(const void *)s;
    struct encoder_residuals owed;

    encoder_residuals(l->encoder, &owed);
    *ret = l->stats;
    ret->residual_rows = owed.n_rows;
    ret->residual_bytes = owed.n_bytes;
    ret->residual_settled = owed.n_settled;
    ret->pulled_clock = UINT64_MAX; /* a pull sees every push */
}

static struct encoder *encoder(const struct store *s)
{
    return ((const struct local *)(const void *)s)->encoder;
}

static void close_store(struct store *s)
{
    struct local *l = local_of(s);

    enter_shard();
    shard_free(l->shard);
    encoder_free(l->encoder);
    buf_deinit(&l->in);
    buf_deinit(&l->out);
    free(l);
}

static uint64_t resume(struct store *s)
{
    (void)s;
    return 0;
}

static const struct store_ops ops = { .table = table,
                                      .table_find = table_find,
                                      .pull_start = pull_start,
                                      .pull_wait = pull_wait,
                                      .push = push,
                                      .flush = done,
                                      .leave = done,
                                      .clock = clock_of,
                                      .stats = stats,
                                      .encoder = encoder,
                                      .close = close_store,
                                      .resume = resume };

/* `path` is one checkpoint, or a data directory with several. */
static int find_checkpoint(const char *path, struct checkpoint *ret, struct err *err)
{
    if (checkpoint_find_whole(&file_os, path, ret, NULL, NULL, NULL) == 0)
        return 0;
    if (checkpoint_open(&file_os, path, ret, NULL))
        return err_set(err, PS_ENOCHECKPOINT,
                       "%s: neither a checkpoint nor a data directory with a valid one", path);
    return 0;
}

/* *ret: what its manifest says. */
static int load(struct local *l, const char *path, struct manifest *ret, struct err *err)
    ON_SHARD
{
    struct checkpoint c;
    struct loader_facts facts;
    int status = find_checkpoint(path, &c, err);

    if (status)
        return status;
    status = loader_deal(&(struct loader_config){ .files = &file_os, .checkpoint = &c },
                         l->shard, &facts, err);
    *ret = c.links[0];
    checkpoint_close(&c);
    return status;
}

/* A model is whole when every node of its cluster is there, once. */
static int check_nodes(const bool *seen, uint32_t n_nodes, const char *paths, struct err *err)
{
    for (uint32_t i = 0; i < n_nodes; i++)
        if (i >= MESSAGE_NODES_MAX || !seen[i])
            return err_set(
                err, PS_ENOCHECKPOINT,
                "--checkpoint %.100s: %u nodes have written this model, and node %u is not "
                "among the directories given",
                paths, n_nodes, i);
    return 0;
}

static int load_all(struct local *l, const char *paths, struct err *err)
{
    char list[CHECKPOINT_PATH_MAX], *at = list, *path;
    bool seen[MESSAGE_NODES_MAX] = { false };
    struct manifest *m;
    uint32_t n_nodes;
    int status = 0;

    enter_shard();
    if (snprintf(list, sizeof list, "%s", paths) >= (int)sizeof list)
        return err_set(err, PS_ETOOBIG, "the list of checkpoints is longer than %zu characters",
                       sizeof list - 1);
    m = mem_alloc(sizeof *m);
    while (!status && (path = strsep(&at, ",")) != NULL) {
        status = load(l, path, m, err);
        if (!status && m->node < MESSAGE_NODES_MAX)
            seen[m->node] = true;
    }
    n_nodes = m->n_nodes;
    free(m);
    return status ? status : check_nodes(seen, n_nodes, paths, err);
}

int store_local_open(const char *job, const char *checkpoint_dir, struct store **ret,
                     struct err *err)
{
    struct shard_config config = {
        .shard = 0, .n_shards = 1, .lease_ms = UINT32_MAX, .join_ms = UINT32_MAX
    };
    struct roster_join join = {
        .job = job, .n_workers = 1, .incarnation = 1, .mode = SPEC_MODE_ASYNC, .name = "local"
    };
    struct local *l = mem_alloc(sizeof *l);
    struct worker *worker;
    int status = 0;

    enter_shard();
    l->store.ops = &ops;
    snprintf(l->job, sizeof l->job, "%s", job);
    l->begun_ms = mono_ms();
    l->shard = shard_new(&config);
    l->encoder = encoder_new(1);
    if (checkpoint_dir)
        status = load_all(l, checkpoint_dir, err);
    if (!status)
        status = roster_join(shard_roster(l->shard), &join, 0, &worker, err);
    if (status) {
        close_store(&l->store);
        return status;
    }
    *ret = &l->store;
    return 0;
}

int store_local_may_save(const char *data_dir, struct err *err)
{
    char base[SHELF_PATH_MAX];
    struct err why;
    int status = shelf_path(data_dir, base, &why);

    if (!status)
        status = shelf_make_dir(&file_os, data_dir, NULL, &why);
    if (!status)
        status = shelf_make_dir(&file_os, base, data_dir, &why);
    if (!status && access(base, W_OK | X_OK) != 0)
        status = err_set(&why, -errno, "cannot write into: %s: %s", strerror(errno), base);
    return status ? err_set(err, status, "--save: %s", why.text) : 0;
}

static int save(struct local *l, const char *data_dir, struct manifest *m, struct err *err)
    ON_SHARD
{
    struct saver_config config = { .files = &file_os,
                                   .data_dir = data_dir,
                                   .identity = { .n_shards = 1 } };
    struct timespec now;
    int status = checkpoint_next(&file_os, data_dir, &m->number, err);

    config.number = m->number;
    if (!status)
        status = saver_save(&config, l->shard, 0, NULL, NULL, &m->files[0], err);
    if (status)
        return status;
    clock_gettime(CLOCK_REALTIME, &now);
    m->unix_ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    m->n_nodes = m->shards_per_node = m->n_shards = m->n_files = 1;
    return checkpoint_commit(&file_os, data_dir, m, 3, NULL, err);
}

int store_local_save(struct store *s, const char *data_dir, struct err *err)
{
    struct manifest *m = mem_alloc(sizeof *m);
    int status;

    enter_shard();
    status = save(local_of(s), data_dir, m, err);
    free(m);
    return status;
}
