#include "deploy/psctl/restore.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/memory.h"
#include "common/number.h"
#include "deploy/psctl/data_dir.h"
#include "proto/placement.h"
#include "server/checkpoint/shard_file_writer.h"
#include "server/data_dir_lock.h"
#include "server/recovery/timeline.h"

#define LEASE_MS 1u /* of shards that serve nobody */

struct restore {
    const struct options *options;
    const char *word; /* the paths as they were given */
    struct data_dir_paths paths;
    char job[TABLE_SPEC_NAME_MAX];
    struct load_cluster_config config;
    struct load_cluster *collect; /* owned */
    uint32_t n_shards;            /* of the node */
    struct shard **shards;        /* owned, n_shards */
    struct manifest *manifest;    /* owned */
    struct load_cluster_facts facts;
    struct data_dir_lock lock;
};

/* --- where it goes --- */

static int check_layout(const struct restore *r, struct err *err)
{
    const struct options *o = r->options;

    if (o->node >= o->nodes)
        return err_set(err, PS_ESETTING,
                       "node: found %u, expected 0 to %u, as there are %u nodes", o->node,
                       o->nodes - 1, o->nodes);
    if (r->n_shards * o->nodes > PLACEMENT_N_SHARDS_MAX)
        return err_set(err, PS_ESETTING,
                       "shards: %u on each of %u nodes are more than the %u of a cluster",
                       r->n_shards, o->nodes, PLACEMENT_N_SHARDS_MAX);
    return 0;
}

/* Nothing that is there may become older than what is written now. */
static int check_empty(const char *dir, struct err *err)
{
    const struct recover_shard_at end = { 0 };
    struct restore_source there;
    uint64_t epoch = 0;
    bool holds;
    int status = restore_source_open(&file_os, dir, &end, NULL, NULL, &there, err);

    if (status == -EACCES)
        return status;
    holds = status || there.has_checkpoint || there.has_log;
    restore_source_close(&there);
    status = timeline_newest(&file_os, dir, 0, &epoch, err);
    if (status || (!holds && epoch == 0))
        return status;
    return err_set(err, -EEXIST, "to: %.200s holds the data of a node already", dir);
}

static int take_directory(struct restore *r, struct err *err)
{
    int status = data_dir_lock_acquire(r->options->to, &r->lock, err);

    return status ? status : check_empty(r->options->to, err);
}

/* --- what goes there --- */

static void reset(struct restore *r) ON_SHARD
{
    for (uint32_t i = 0; r->shards && i < r->n_shards; i++)
        shard_free(r->shards[i]);
    free(r->shards);
    r->shards = NULL;
    load_cluster_close(r->collect);
    r->collect = NULL;
}

static int open_all(struct restore *r, struct err *err) ON_SHARD
{
    int status = load_cluster_open(&r->config, &r->collect, err);

    if (!status && !r->n_shards)
        r->n_shards = load_cluster_shards_per_node(r->collect);
    return status;
}

static int collect(struct restore *r, struct err *err) ON_SHARD
{
    const struct options *o = r->options;
    int status = open_all(r, err);

    if (status)
        return status;
    r->shards = memory_alloc(r->n_shards * sizeof *r->shards);
    for (uint32_t i = 0; i < r->n_shards; i++)
        r->shards[i] = shard_new(&(struct shard_config){ .shard = o->node * r->n_shards + i,
                                                         .n_shards = o->nodes * r->n_shards,
                                                         .lease_ms = LEASE_MS,
                                                         .join_ms = LEASE_MS,
                                                         .park_ms = LEASE_MS });
    return load_cluster_into(r->collect, r->shards, r->n_shards, clock_mono_ms(), &r->facts,
                             err);
}

/* `read` of files that psd may write to meanwhile: begun again as long as it has to be. */
static int read_with_retries(struct restore *r, int (*read)(struct restore *, struct err *),
                             struct err *err) ON_SHARD
{
    struct retry_scan scan = { .config = &r->config };
    int status;

    do {
        reset(r);
        retry_scan_begin(&scan);
        status = read(r, err);
    } while (retry_scan_is_due(&scan, status));
    return retry_scan_end(&scan, status, err);
}

/* The files are there, and the layout may be: nothing is made before. */
static int precheck(struct restore *r, struct err *err) ON_SHARD
{
    const struct options *o = r->options;
    int status;

    if (!o->to[0])
        return err_set(err, PS_ESETTING,
                       "to: expected the data directory to make, --to DATA_DIR");
    r->n_shards = o->shards;
    status = data_dir_read_paths(r->word, &r->paths, err);
    if (!status)
        status = data_dir_config(o, &r->paths, LOAD_CLUSTER_WHOLE, r->job, &r->config, err);
    if (!status)
        status = read_with_retries(r, open_all, err);
    return status ? status : check_layout(r, err);
}

static int save(struct restore *r, struct err *err) ON_SHARD
{
    const struct options *o = r->options;
    struct manifest *m = r->manifest;
    int status = 0;

    for (uint32_t i = 0; i < r->n_shards && !status; i++)
        status = shard_file_writer_save(
            &(struct shard_file_writer_config){
                .files = &file_os,
                .data_dir = o->to,
                .number = m->number,
                .shard_index = i,
                .identity = { .node = o->node,
                              .shard = o->node * r->n_shards + i,
                              .n_shards = m->n_shards,
                              .map_id = m->map_id } },
            r->shards[i], 0, NULL, NULL, &m->files[i], err);
    return status;
}

static int write_all(struct restore *r, struct err *err) ON_SHARD
{
    const struct options *o = r->options;
    struct manifest *m = r->manifest = memory_alloc(sizeof *r->manifest);
    int status = checkpoint_next(&file_os, o->to, &m->number, err);

    m->unix_ms = clock_unix_ms();
    m->node = o->node;
    m->n_nodes = o->nodes;
    m->shards_per_node = m->n_files = r->n_shards;
    m->n_shards = o->nodes * r->n_shards;
    m->map_id = m->number; /* of the epoch that begins with it */
    if (!status)
        status = timeline_make(&file_os, o->to, m->map_id, err);
    if (!status)
        status = save(r, err);
    return status ? status : checkpoint_commit(&file_os, o->to, m, 1, NULL, err);
}

/* --- telling --- */

static void report(const struct restore *r) ON_SHARD
{
    uint64_t n_rows = 0, n_bytes = 0;
    cJSON *json;

    for (uint32_t i = 0; i < r->n_shards; i++) {
        n_rows += r->manifest->files[i].n_rows;
        n_bytes += r->manifest->files[i].n_bytes;
    }
    if (!r->options->json) {
        printf("%s is made: checkpoint %" PRIu64
               " of node %u of %u with %u shard%s, %u table%s, "
               "%" PRIu64 " row%s, %" PRIu64 " bytes; %" PRIu64 " log record%s replayed\n",
               r->options->to, r->manifest->number, r->options->node, r->options->nodes,
               r->n_shards, NUMBER_PLURAL(r->n_shards), shard_n_tables(r->shards[0]),
               NUMBER_PLURAL(shard_n_tables(r->shards[0])), n_rows, NUMBER_PLURAL(n_rows),
               n_bytes, r->facts.n_records, NUMBER_PLURAL(r->facts.n_records));
        return;
    }
    json = cJSON_CreateObject();
    data_dir_add_u64(json, "number", r->manifest->number);
    data_dir_add_u64(json, "shards", r->n_shards);
    data_dir_add_u64(json, "tables", shard_n_tables(r->shards[0]));
    data_dir_add_u64(json, "rows", n_rows);
    data_dir_add_u64(json, "bytes", n_bytes);
    data_dir_add_u64(json, "records", r->facts.n_records);
    data_dir_print_json(json);
}

static void deinit(struct restore *r) ON_SHARD
{
    reset(r);
    free(r->manifest);
    data_dir_lock_release(&r->lock);
}

int restore_run(const struct options *o, const char *const *words, uint32_t n_words)
{
    struct restore r = { .options = o, .word = words[0], .lock = { .fd = -1 } };
    struct err err = { 0 };
    int status;

    (void)n_words;
    enter_shard();
    status = precheck(&r, &err);
    if (!status)
        status = take_directory(&r, &err);
    if (!status)
        status = read_with_retries(&r, collect, &err);
    if (!status)
        status = write_all(&r, &err);
    if (!status)
        report(&r);
    else /* what failed before it wrote leaves nothing; behind that, it is for people to inspect */
        data_dir_lock_abandon(&r.lock);
    deinit(&r);
    err.status = status;
    return status ? data_dir_fail(&err) : EXIT_ANSWERED;
}
