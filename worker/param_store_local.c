/*
 * The trainer's tables inside this process: one shard of server/core, fed with the same encoded
 * bytes that a server would get, so that what a codec loses is lost here too. No network and no
 * thread; time passes only for the tables' own rules (--ttl), and no lease ends.
 */
#include "common/clock.h"
#include "common/file.h"
#include "common/memory.h"
#include "proto/message.h"
#include "server/checkpoint/directory.h"
#include "server/checkpoint/loader.h"
#include "server/checkpoint/shard_file_writer.h"
#include "server/core/shard.h"
#include "worker/client/push_encoder.h"
#include "worker/param_store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct local {
    struct param_store store;
    struct shard *shard;          /* owned */
    struct push_encoder *encoder; /* owned */
    char job[TABLE_SPEC_NAME_MAX];
    uint32_t ids[PS_TABLES_MAX]; /* the shard's number of the store's table 0, 1, 2 ... */
    uint32_t n_tables;
    uint64_t seq, begun_ms;
    struct push push; /* scratch */
    struct pull pull;
    struct request_set pull_set, push_set; /* encoded */
    struct partition partition;            /* of the pull's keys */
    struct bytes out;                      /* owned: the encoded answer */
    const struct ps_pull_section *pulling; /* borrowed between pull_start and pull_wait */
    uint32_t n_pulling;
    struct ps_stats stats;
};

static struct local *local_of(struct param_store *s)
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
    if (push_encoder_add_table(l->encoder, i, spec))
        return err_set(err, -ENOMEM, "no memory for table %s", spec->name);
    l->ids[l->n_tables++] = id;
    return 0;
}

static int table(struct param_store *s, const struct table_spec *spec, uint32_t *ret_table,
                 struct err *err)
{
    struct local *l = local_of(s);
    uint32_t id;
    int status;

    enter_shard();
    status = shard_table_open(l->shard, spec, false, &id, err);
    return status ? status : number(l, spec, id, ret_table, err);
}

static int table_find(struct param_store *s, struct table_spec *spec, uint32_t *ret_table,
                      struct err *err)
{
    struct local *l = local_of(s);
    uint32_t id;
    int status;

    enter_shard();
    status = shard_table_open(l->shard, spec, true, &id, err);
    if (status)
        return status;
    *spec = shard_table(l->shard, id)->spec;
    return number(l, spec, id, ret_table, err);
}

static int pull_start(struct param_store *s, uint64_t clock,
                      const struct ps_pull_section *sections, uint32_t n, struct err *err)
{
    struct local *l = local_of(s);
    struct request *request;
    int status;

    request_set_release(&l->pull_set);
    status = request_set_acquire(&l->pull_set, n);
    if (!status)
        status =
            push_encoder_pull(l->encoder, sections, n, &l->partition, l->pull_set.requests);
    if (status)
        return err_set(err, status, "a pull cannot be encoded: %s", status_text(status));
    request = l->pull_set.requests[0];
    request->clock = clock;
    request_pull(request, l->ids, 0, &l->pull);
    l->pulling = sections;
    l->n_pulling = n;
    return 0;
}

static int pull_wait(struct param_store *s, struct err *err)
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
    bytes_consume(&l->out, bytes_len(&l->out));
    answer = bytes_reserve(&l->out, total + 1);
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
    status = push_encoder_pulled(l->encoder, l->pulling, l->n_pulling, &l->partition, 0, values,
                                 value_bytes);
    return status ? err_set(err, status, "an answer makes no sense: %s", status_text(status))
                  : 0;
}

static int push(struct param_store *s, uint64_t clock, uint32_t n_samples, bool tick,
                const struct ps_push_section *sections, uint32_t n, struct err *err)
{
    struct local *l = local_of(s);
    struct shard_push_result result;
    struct worker *worker;
    int status;

    enter_shard();
    request_set_release(&l->push_set);
    status = request_set_acquire(&l->push_set, n);
    if (!status)
        status = push_encoder_push(l->encoder, sections, n, l->push_set.requests);
    if (status)
        return err_set(err, status, "a push cannot be encoded: %s", status_text(status));
    status = membership_find(shard_membership(l->shard), l->job, 0, 1, 0, &worker);
    if (status)
        return err_set(err, status, "%s", status_text(status));
    request_push(l->push_set.requests[0], l->ids, &l->push);
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
    (void)shard_advance(l->shard, clock_mono_ms() - l->begun_ms);
    return result.status ? err_set(err, result.status, "%s", result.text) : 0;
}

static int done(struct param_store *s, struct err *err)
{
    (void)s;
    (void)err;
    return 0;
}

static uint64_t clock_of(const struct param_store *s)
{
    (void)s;
    return 0;
}

static void stats(const struct param_store *s, struct ps_stats *ret)
{
    const struct local *l = (const struct local *)(const void *)s;
    struct push_encoder_residuals residuals;

    push_encoder_residuals(l->encoder, &residuals);
    *ret = l->stats;
    ret->residual_rows = residuals.n_rows;
    ret->residual_bytes = residuals.n_bytes;
    ret->residual_flushed = residuals.n_flushed;
    ret->pulled_clock = UINT64_MAX; /* a pull sees every push */
}

static struct push_encoder *encoder(const struct param_store *s)
{
    return ((const struct local *)(const void *)s)->encoder;
}

static void close_store(struct param_store *s)
{
    struct local *l = local_of(s);

    enter_shard();
    shard_free(l->shard);
    push_encoder_free(l->encoder);
    partition_deinit(&l->partition);
    request_set_deinit(&l->pull_set);
    request_set_deinit(&l->push_set);
    bytes_deinit(&l->out);
    free(l);
}

static uint64_t resume(struct param_store *s)
{
    (void)s;
    return 0;
}

static const struct param_store_ops ops = { .table = table,
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
    status = loader_reshard(&(struct loader_config){ .files = &file_os, .checkpoint = &c },
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
                "--checkpoint %.100s: %u node%s written this model, and node %u is not "
                "among the directories given",
                paths, n_nodes, n_nodes == 1 ? " has" : "s have", i);
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
    m = memory_alloc(sizeof *m);
    while (!status && (path = strsep(&at, ",")) != NULL) {
        status = load(l, path, m, err);
        if (!status && m->node < MESSAGE_NODES_MAX)
            seen[m->node] = true;
    }
    n_nodes = m->n_nodes;
    free(m);
    return status ? status : check_nodes(seen, n_nodes, paths, err);
}

int param_store_local_open(const char *job, const char *checkpoint_dir,
                           struct param_store **ret, struct err *err)
{
    struct shard_config config = {
        .shard = 0, .n_shards = 1, .lease_ms = UINT32_MAX, .join_ms = UINT32_MAX
    };
    struct membership_join join = { .job = job,
                                    .n_workers = 1,
                                    .incarnation = 1,
                                    .mode = TABLE_SPEC_MODE_ASYNC,
                                    .name = "local" };
    struct local *l = memory_alloc(sizeof *l);
    struct worker *worker;
    int status = 0;

    enter_shard();
    l->store.ops = &ops;
    snprintf(l->job, sizeof l->job, "%s", job);
    l->begun_ms = clock_mono_ms();
    l->shard = shard_new(&config);
    l->encoder = push_encoder_new(1);
    partition_init(&l->partition, 1);
    request_set_init(&l->pull_set, 1, 0);
    request_set_init(&l->push_set, 1, 0);
    if (!l->encoder)
        status = err_set(err, -ENOMEM, "no memory for pushes");
    if (!status && checkpoint_dir)
        status = load_all(l, checkpoint_dir, err);
    if (!status)
        status = membership_join(shard_membership(l->shard), &join, 0, &worker, err);
    if (status) {
        close_store(&l->store);
        return status;
    }
    *ret = &l->store;
    return 0;
}

int param_store_local_may_save(const char *data_dir, struct err *err)
{
    char base[DIRECTORY_PATH_MAX];
    struct err why;
    int status = directory_path(data_dir, base, &why);

    if (!status)
        status = directory_make_dir(&file_os, data_dir, NULL, &why);
    if (!status)
        status = directory_make_dir(&file_os, base, data_dir, &why);
    if (!status && access(base, W_OK | X_OK) != 0)
        status = err_set(&why, -errno, "cannot write into: %s: %s", strerror(errno), base);
    return status ? err_set(err, status, "--save: %s", why.text) : 0;
}

static int save(struct local *l, const char *data_dir, struct manifest *m, struct err *err)
    ON_SHARD
{
    struct shard_file_writer_config config = { .files = &file_os,
                                               .data_dir = data_dir,
                                               .identity = { .n_shards = 1 } };
    int status = checkpoint_next(&file_os, data_dir, &m->number, err);

    config.number = m->number;
    if (!status)
        status = shard_file_writer_save(&config, l->shard, 0, NULL, NULL, &m->files[0], err);
    if (status)
        return status;
    m->unix_ms = clock_unix_ms();
    m->n_nodes = m->shards_per_node = m->n_shards = m->n_files = 1;
    return checkpoint_commit(&file_os, data_dir, m, 3, NULL, err);
}

int param_store_local_save(struct param_store *s, const char *data_dir, struct err *err)
{
    struct manifest *m = memory_alloc(sizeof *m);
    int status;

    enter_shard();
    status = save(local_of(s), data_dir, m, err);
    free(m);
    return status;
}
