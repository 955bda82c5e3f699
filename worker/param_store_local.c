/*
 * The trainer's tables inside this process: shards of server/core, fed with the same encoded
 * bytes that a server would get, so that what a codec loses is lost here too. No network; time passes only for the
 * tables' own rules (--ttl), and no lease ends.
 *
 * There is one shard, or several that threads share: each call is then a task for each shard, and ends with the last
 * one. A shard has the same requests in the same order whatever the threads do.
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
#include "worker/compute/thread_pool.h"
#include "worker/param_store.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct local_shard {
    struct shard *shard;         /* owned */
    uint32_t ids[PS_TABLES_MAX]; /* the shard's number of the store's table 0, 1, 2 ... */
    struct push push;            /* scratch */
    struct pull pull;
    struct bytes out; /* owned: the encoded answer */
    struct shard_push_result result;
    struct err err; /* of the last call; status 0: it went well */
};

struct local {
    struct param_store store;
    struct local_shard *shards; /* owned, n_shards */
    uint32_t n_shards;
    struct thread_pool *pool; /* owned; NULL: the caller's thread alone */
    struct task_threads threads;
    struct push_encoder *encoder; /* owned */
    char job[TABLE_SPEC_NAME_MAX];
    uint32_t n_tables;
    uint64_t begun_ms;
    struct request_set pull_set, push_set; /* encoded, one request for each shard */
    struct partition partition;            /* of the pull's keys */
    const struct ps_pull_section *pulling; /* borrowed between pull_start and pull_wait */
    uint32_t n_pulling;
    struct push pushing;              /* clock, n_samples, tick and seq of the push */
    const struct checkpoint *loading; /* borrowed while it is read */
    struct ps_stats stats;
};

static struct local *local_of(struct param_store *s)
{
    return (struct local *)(void *)s;
}

/* --- tables --- */

/* The store's number of the table that shard 0 knows as `id`; n_tables: it has none yet. */
static uint32_t number_of(const struct local *l, uint32_t id)
{
    uint32_t i = 0;

    while (i < l->n_tables && l->shards[0].ids[i] != id)
        i++;
    return i;
}

/* Opens the table in each shard, for the store's next number; *ret_table is the one that it has, or that. */
static int open_table(struct local *l, const struct table_spec *spec, bool must_exist,
                      uint32_t *ret_table, struct err *err) ON_SHARD
{
    uint32_t ids[PARAM_STORE_LOCAL_SHARDS_MAX];

    for (uint32_t i = 0; i < l->n_shards; i++) {
        int status = shard_table_open(l->shards[i].shard, spec, must_exist, &ids[i], err);

        if (status)
            return status;
    }
    *ret_table = number_of(l, ids[0]);
    if (*ret_table < l->n_tables)
        return 0;
    if (l->n_tables == PS_TABLES_MAX)
        return err_set(err, -ENOSPC, "more than %u tables", PS_TABLES_MAX);
    if (push_encoder_add_table(l->encoder, l->n_tables,
                               &shard_table(l->shards[0].shard, ids[0])->spec))
        return err_set(err, -ENOMEM, "no memory for table %s", spec->name);
    for (uint32_t i = 0; i < l->n_shards; i++)
        l->shards[i].ids[l->n_tables] = ids[i];
    l->n_tables++;
    return 0;
}

static int table(struct param_store *s, const struct table_spec *spec, uint32_t *ret_table,
                 struct err *err)
{
    enter_shard();
    return open_table(local_of(s), spec, false, ret_table, err);
}

static int table_find(struct param_store *s, struct table_spec *spec, uint32_t *ret_table,
                      struct err *err)
{
    struct local *l = local_of(s);
    int status;

    enter_shard();
    status = open_table(l, spec, true, ret_table, err);
    if (!status)
        *spec = shard_table(l->shards[0].shard, l->shards[0].ids[*ret_table])->spec;
    return status;
}

/* --- shards and threads --- */

/* Runs task(l, shard) for each shard. The first shard that failed says why. */
static int each_shard(struct local *l, task_threads_task *task, bool may_share, struct err *err)
{
    const struct task_threads none = { 0 };

    task_threads_run(may_share ? &l->threads : &none, l->n_shards, task, l);
    for (uint32_t i = 0; i < l->n_shards; i++)
        if (l->shards[i].err.status)
            return err_set(err, l->shards[i].err.status, "%s", l->shards[i].err.text);
    return 0;
}

/* --- pulls --- */

static int pull_start(struct param_store *s, uint64_t clock,
                      const struct ps_pull_section *sections, uint32_t n, struct err *err)
{
    struct local *l = local_of(s);
    int status;

    request_set_release(&l->pull_set);
    status = request_set_acquire(&l->pull_set, n);
    if (!status)
        status =
            push_encoder_pull(l->encoder, sections, n, &l->partition, l->pull_set.requests);
    if (status)
        return err_set(err, status, "a pull cannot be encoded: %s", status_text(status));
    for (uint32_t i = 0; i < l->n_shards; i++) {
        l->pull_set.requests[i]->clock = clock;
        request_pull(l->pull_set.requests[i], l->shards[i].ids, 0, &l->shards[i].pull);
    }
    l->pulling = sections;
    l->n_pulling = n;
    return 0;
}

/* Rows of shard `i` as they are encoded: values[k] is those of section k. */
static int read_rows(struct local *l, struct local_shard *of, const uint8_t **values,
                     size_t *value_bytes) ON_SHARD
{
    uint64_t min_clock, version;
    size_t total = 0;
    uint8_t *answer;
    int status = shard_pull_plan(of->shard, &of->pull, SIZE_MAX, value_bytes, &of->err);

    if (status)
        return status;
    for (uint32_t i = 0; i < l->n_pulling; i++)
        total += value_bytes[i];
    bytes_consume(&of->out, bytes_len(&of->out));
    answer = bytes_reserve(&of->out, total + 1);
    if (!answer)
        return err_set(&of->err, -ENOMEM, "no memory for %zu bytes of rows", total);
    for (uint32_t i = 0; i < l->n_pulling; i++, answer += value_bytes[i - 1])
        values[i] = answer;
    return shard_pull(of->shard, NULL, &of->pull, of->out.bytes + of->out.end, &min_clock,
                      &version, &of->err);
}

static void pull_shard(void *arg, uint32_t i, uint32_t thread)
{
    struct local *l = arg;
    struct local_shard *of = &l->shards[i];
    const uint8_t *values[SECTIONS_MAX];
    size_t value_bytes[SECTIONS_MAX];
    int status;

    (void)thread;
    enter_shard();
    of->err.status = 0;
    if (read_rows(l, of, values, value_bytes))
        return;
    status = push_encoder_pulled(l->encoder, l->pulling, l->n_pulling, &l->partition, i, values,
                                 value_bytes);
    if (status)
        (void)err_set(&of->err, status, "an answer makes no sense: %s", status_text(status));
}

/* Shards write rows of their own. Bits of `present` share bytes, and sinks and scans are of one thread. */
static bool may_share(const struct ps_pull_section *sections, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (sections[i].present || sections[i].sink || sections[i].scan)
            return false;
    return true;
}

static int pull_wait(struct param_store *s, struct err *err)
{
    struct local *l = local_of(s);
    int status = each_shard(l, pull_shard, may_share(l->pulling, l->n_pulling), err);

    if (status)
        return status;
    for (uint32_t i = 0; i < l->n_pulling; i++)
        l->stats.rows_pulled += l->pulling[i].n_keys;
    l->stats.pulls++;
    return 0;
}

/* --- pushes --- */

static void push_shard(void *arg, uint32_t i, uint32_t thread)
{
    struct local *l = arg;
    struct local_shard *of = &l->shards[i];
    struct worker *worker;
    int status;

    (void)thread;
    enter_shard();
    of->err.status = 0;
    of->result.rows_refused = 0;
    status = membership_find(shard_membership(of->shard), l->job, 0, 1, 0, &worker);
    request_push(l->push_set.requests[i], of->ids, &of->push);
    of->push.seq = l->pushing.seq;
    of->push.clock = l->pushing.clock;
    of->push.n_samples = l->pushing.n_samples;
    of->push.tick = l->pushing.tick;
    if (!status)
        status = shard_push(of->shard, worker, &of->push, 0, &of->result);
    if (status) {
        (void)err_set(&of->err, status, "%s", status_text(status));
        return;
    }
    (void)shard_advance(of->shard, clock_mono_ms() - l->begun_ms);
    if (of->result.status)
        (void)err_set(&of->err, of->result.status, "%s", of->result.text);
}

static int push(struct param_store *s, uint64_t clock, uint32_t n_samples, bool tick,
                const struct ps_push_section *sections, uint32_t n, struct err *err)
{
    struct local *l = local_of(s);
    int status;

    request_set_release(&l->push_set);
    status = request_set_acquire(&l->push_set, n);
    if (!status)
        status = push_encoder_push(l->encoder, sections, n, l->push_set.requests);
    if (status)
        return err_set(err, status, "a push cannot be encoded: %s", status_text(status));
    l->pushing = (struct push){
        .seq = l->pushing.seq + 1, .clock = clock, .n_samples = n_samples, .tick = tick
    };
    status = each_shard(l, push_shard, true, err);
    l->stats.pushes++;
    for (uint32_t i = 0; i < l->n_shards; i++)
        l->stats.rows_refused += l->shards[i].result.rows_refused;
    for (uint32_t i = 0; i < n; i++)
        l->stats.rows_pushed += sections[i].n_keys;
    return status;
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
    thread_pool_free(l->pool);
    for (uint32_t i = 0; i < l->n_shards; i++) {
        shard_free(l->shards[i].shard);
        bytes_deinit(&l->shards[i].out);
    }
    push_encoder_free(l->encoder);
    partition_deinit(&l->partition);
    request_set_deinit(&l->pull_set);
    request_set_deinit(&l->push_set);
    free(l->shards);
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

/* Each shard reads all of it, and takes the rows that are its own. */
static void load_shard(void *arg, uint32_t i, uint32_t thread)
{
    const struct local *l = arg;
    const struct loader_config config = { .files = &file_os, .checkpoint = l->loading };
    struct local_shard *of = &l->shards[i];
    struct loader_facts facts;

    (void)thread;
    enter_shard();
    of->err.status = 0;
    of->err.status = loader_reshard(&config, of->shard, &facts, &of->err);
}

/* *ret: what its manifest says. */
static int load(struct local *l, const char *path, struct manifest *ret, struct err *err)
{
    struct checkpoint c;
    int status = find_checkpoint(path, &c, err);

    if (status)
        return status;
    l->loading = &c;
    status = each_shard(l, load_shard, true, err);
    l->loading = NULL;
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

static int join(struct local *l, struct err *err) ON_SHARD
{
    const struct membership_join join = { .job = l->job,
                                          .n_workers = 1,
                                          .incarnation = 1,
                                          .mode = TABLE_SPEC_MODE_ASYNC,
                                          .name = "local" };
    struct worker *worker;
    int status = 0;

    for (uint32_t i = 0; i < l->n_shards && !status; i++)
        status = membership_join(shard_membership(l->shards[i].shard), &join, 0, &worker, err);
    return status;
}

static void run_tasks(void *arg, uint32_t n_tasks, task_threads_task *task, void *job)
{
    thread_pool_run(arg, n_tasks, task, job);
}

/* Without threads it is slower, and no more. */
static void start_threads(struct local *l, uint32_t n)
{
    n = n < l->n_shards ? n : l->n_shards;
    if (n < 2 || thread_pool_new(n, &l->pool))
        return;
    l->threads = (struct task_threads){ n, run_tasks, l->pool };
    push_encoder_share(l->encoder, &l->threads);
}

int param_store_local_open(const struct param_store_local_options *options,
                           struct param_store **ret, struct err *err)
{
    const uint32_t n_shards = options->n_shards ? options->n_shards : 1;
    struct local *l = memory_alloc(sizeof *l);
    int status = 0;

    assert(n_shards <= PARAM_STORE_LOCAL_SHARDS_MAX);
    enter_shard();
    l->store.ops = &ops;
    snprintf(l->job, sizeof l->job, "%s", options->job);
    l->begun_ms = clock_mono_ms();
    l->n_shards = n_shards;
    l->shards = memory_alloc(n_shards * sizeof *l->shards);
    for (uint32_t i = 0; i < n_shards; i++)
        l->shards[i].shard = shard_new(&(struct shard_config){
            .shard = i, .n_shards = n_shards, .lease_ms = UINT32_MAX, .join_ms = UINT32_MAX });
    l->encoder = push_encoder_new(n_shards);
    partition_init(&l->partition, n_shards);
    request_set_init(&l->pull_set, n_shards, 0);
    request_set_init(&l->push_set, n_shards, 0);
    if (l->encoder)
        start_threads(l, options->n_threads);
    else
        status = err_set(err, -ENOMEM, "no memory for pushes");
    if (!status && options->checkpoint_dir)
        status = load_all(l, options->checkpoint_dir, err);
    if (!status)
        status = join(l, err);
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
                                               .identity = { .n_shards = l->n_shards } };
    int status = checkpoint_next(&file_os, data_dir, &m->number, err);

    config.number = m->number;
    for (uint32_t i = 0; i < l->n_shards && !status; i++) {
        config.shard_index = config.identity.shard = i;
        status = shard_file_writer_save(&config, l->shards[i].shard, 0, NULL, NULL,
                                        &m->files[i], err);
    }
    if (status)
        return status;
    m->unix_ms = clock_unix_ms();
    m->n_nodes = 1;
    m->shards_per_node = m->n_shards = m->n_files = l->n_shards;
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
