#include "server/recovery/load_cluster.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "server/checkpoint/loader.h"
#include "server/recovery/reshard.h"

#define LEASE_MS 1u /* of a shard that serves nobody */

struct load_cluster {
    struct load_cluster_config config;
    struct restore_source *sources; /* owned, n_paths */
    uint32_t n_open;
    struct reshard *reshard; /* owned: of the old shards that were made again */
    bool has_later;          /* recover_shard_facts: any of them */
    bool must_restart;       /* files turned out to be damaged: reshard all rows again */
};

static bool is_wanted(void *arg, const char *table)
{
    const struct load_cluster *c = arg;

    for (uint32_t i = 0; i < c->config.n_tables; i++)
        if (strcmp(c->config.tables[i], table) == 0)
            return true;
    return c->config.n_tables == 0;
}

/* --- opening --- */

static int open_sources(struct load_cluster *c, struct err *err)
{
    int status = 0;

    for (; c->n_open < c->config.n_paths && !status; c->n_open += !status)
        status =
            restore_source_open(c->config.files, c->config.paths[c->n_open], &c->config.at,
                                c->config.report, c->config.arg, &c->sources[c->n_open], err);
    if (status)
        return status;
    return restore_source_check_set(c->sources, c->config.paths, c->n_open,
                                    c->config.extent == LOAD_CLUSTER_WHOLE, err);
}

int load_cluster_open(const struct load_cluster_config *config, struct load_cluster **ret,
                      struct err *err)
{
    struct load_cluster *c = memory_alloc(sizeof *c);
    int status;

    assert(config->n_paths > 0 && config->n_paths <= LOAD_CLUSTER_N_PATHS_MAX);
    c->config = *config;
    c->sources = memory_alloc(config->n_paths * sizeof *c->sources);
    c->reshard = reshard_new();
    status = open_sources(c, err);
    if (status)
        load_cluster_close(c);
    else
        *ret = c;
    return status;
}

void load_cluster_close(struct load_cluster *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; i < c->n_open; i++)
        restore_source_close(&c->sources[i]);
    reshard_free(c->reshard);
    free(c->sources);
    free(c);
}

uint32_t load_cluster_shards_per_node(const struct load_cluster *c)
{
    return c->sources[0].shards_per_node;
}

/* --- dealing --- */

static int distribute_files(struct load_cluster *c, const struct restore_source *s,
                            struct shard *to, struct load_cluster_facts *facts, struct err *err)
    ON_SHARD
{
    struct loader_config config = {
        .files = c->config.files, .checkpoint = &s->checkpoint, .wants = is_wanted, .arg = c
    };
    struct loader_facts loaded;
    int status = loader_reshard(&config, to, &loaded, err);

    facts->n_bytes += loaded.n_bytes;
    return status;
}

static int distribute_shard(struct load_cluster *c, struct shard *from, struct shard *const *to,
                            uint32_t n_to, struct err *err) ON_SHARD
{
    int status = 0;

    for (uint32_t id = 0; id < shard_n_tables(from); id++) {
        const struct shard_table *t = shard_table(from, id);

        if (!t || !is_wanted(c, t->spec.name))
            continue;
        for (uint32_t i = 0; i < n_to && !status; i++)
            status = reshard_table(from, id, to[i], NULL, NULL, err);
    }
    return status;
}

static void report(void *arg, const char *sentence)
{
    const struct load_cluster *c = arg;

    if (c->config.report)
        c->config.report(c->config.arg, sentence);
}

static int distribute_shards(struct load_cluster *c, const struct restore_source *s,
                             struct shard *const *to, uint32_t n_to, uint64_t now_ms,
                             struct load_cluster_facts *facts, struct err *err) ON_SHARD
{
    const struct recover_shard_config how = { .report = report, .arg = c };
    int status = 0;

    for (uint32_t i = 0; i < s->shards_per_node && !status; i++) {
        struct recover_shard_facts rebuilt = { 0 };
        struct shard *from;

        status =
            restore_source_recover(s, c->config.files, i, &how, now_ms, &from, &rebuilt, err);
        if (status)
            return reshard_explain(c->reshard, status, err);
        reshard_add(c->reshard, s->node * s->shards_per_node + i, from);
        c->has_later = c->has_later || rebuilt.has_later;
        facts->n_records += rebuilt.n_records;
        facts->n_pushes += rebuilt.n_pushes;
        facts->n_bytes += rebuilt.n_bytes;
        status = distribute_shard(c, from, to, n_to, err);
        shard_free(from);
    }
    return status;
}

static int distribute_source(struct load_cluster *c, struct restore_source *s,
                             struct shard *const *to, uint32_t n_to, uint64_t now_ms,
                             struct load_cluster_facts *facts, struct err *err) ON_SHARD
{
    int status = 0;

    if (!s->is_exact)
        return distribute_shards(c, s, to, n_to, now_ms, facts, err);
    for (uint32_t i = 0; i < n_to && !status; i++)
        status = distribute_files(c, s, to[i], facts, err);
    if (checkpoint_is_damage(status) && restore_source_is_recoverable(s)) {
        s->is_exact = false;
        c->must_restart = true;
        report(c, err->text);
    }
    return status;
}

static int check_tables(const struct load_cluster *c, struct shard *to, struct err *err)
    ON_SHARD
{
    for (uint32_t i = 0; i < c->config.n_tables; i++) {
        uint32_t id = 0;

        while (id < shard_n_tables(to) &&
               strcmp(shard_table(to, id)->spec.name, c->config.tables[i]) != 0)
            id++;
        if (id == shard_n_tables(to))
            return err_set(err, PS_ENOTABLE, "there is no table %.100s in %.100s",
                           c->config.tables[i], c->config.paths[0]);
    }
    return 0;
}

static void clear_all(struct load_cluster *c, struct shard *const *to, uint32_t n_to) ON_SHARD
{
    reshard_reset(c->reshard);
    for (uint32_t i = 0; i < n_to; i++)
        shard_clear(to[i]);
}

static int distribute_all(struct load_cluster *c, struct shard *const *to, uint32_t n_to,
                          uint64_t now_ms, struct load_cluster_facts *ret, struct err *err)
    ON_SHARD
{
    int status;

    do {
        if (c->must_restart)
            clear_all(c, to, n_to);
        *ret = (struct load_cluster_facts){ 0 };
        c->has_later = c->must_restart = false;
        status = 0;
        for (uint32_t i = 0; i < c->n_open && !status; i++)
            status = distribute_source(c, &c->sources[i], to, n_to, now_ms, ret, err);
    } while (c->must_restart);
    return status;
}

static void rewind_all(struct load_cluster *c, struct shard *const *to, uint32_t n_to,
                       const struct recover_shard_at *at) ON_SHARD
{
    for (uint32_t i = 0; i < c->n_open; i++)
        restore_source_rewind(&c->sources[i], at);
    clear_all(c, to, n_to);
}

int load_cluster_into(struct load_cluster *c, struct shard *const *to, uint32_t n_to,
                      uint64_t now_ms, struct load_cluster_facts *ret, struct err *err)
{
    const struct reshard_config config = {
        .at = restore_source_requested(c->sources, c->n_open), .report = report, .arg = c
    };
    struct recover_shard_at restart_at = { 0 };
    int status = distribute_all(c, to, n_to, now_ms, ret, err);

    if (!status)
        status = reshard_check(c->reshard, &config, &restart_at, err);
    if (!status && restart_at.job) {
        rewind_all(c, to, n_to, &restart_at);
        status = distribute_all(c, to, n_to, now_ms, ret, err);
        if (!status)
            status = reshard_check(c->reshard, &config, &restart_at, err);
    }
    if (!status && c->has_later && config.at.job) /* as it was asked for */
        recover_shard_report_later(&config.at, report, c);
    return status ? status : check_tables(c, to[0], err);
}

int load_cluster_one(const struct load_cluster_config *config, uint64_t now_ms,
                     struct shard **ret, struct load_cluster_facts *ret_facts, struct err *err)
{
    const struct shard_config core = {
        .n_shards = 1, .lease_ms = LEASE_MS, .join_ms = LEASE_MS, .park_ms = LEASE_MS
    };
    struct load_cluster *c;
    int status = load_cluster_open(config, &c, err);

    if (status)
        return status;
    *ret = shard_new(&core);
    status = load_cluster_into(c, ret, 1, now_ms, ret_facts, err);
    load_cluster_close(c);
    if (status) {
        shard_free(*ret);
        *ret = NULL;
    }
    return status;
}
