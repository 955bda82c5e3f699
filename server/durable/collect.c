#include "server/durable/collect.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "server/durable/align.h"
#include "server/durable/deal.h"
#include "server/durable/loader.h"

#define LEASE_MS 1u /* of a shard that serves nobody */

struct collect {
    struct collect_config config;
    struct source *sources; /* owned, n_paths */
    uint32_t n_open;
    struct align *align; /* owned: of the old shards that were made again */
    bool has_later;      /* rebuild_facts: any of them */
    bool is_again;       /* files turned out to be damaged: all is to be dealt out anew */
};

static bool is_wanted(void *arg, const char *table)
{
    const struct collect *c = arg;

    for (uint32_t i = 0; i < c->config.n_tables; i++)
        if (strcmp(c->config.tables[i], table) == 0)
            return true;
    return c->config.n_tables == 0;
}

/* --- opening --- */

static int open_sources(struct collect *c, struct err *err)
{
    int status = 0;

    for (; c->n_open < c->config.n_paths && !status; c->n_open += !status)
        status = source_open(c->config.files, c->config.paths[c->n_open], &c->config.at,
                             c->config.report, c->config.arg, &c->sources[c->n_open], err);
    if (status)
        return status;
    return source_check_set(c->sources, c->config.paths, c->n_open,
                            c->config.extent == COLLECT_WHOLE, err);
}

int collect_open(const struct collect_config *config, struct collect **ret, struct err *err)
{
    struct collect *c = mem_alloc(sizeof *c);
    int status;

    assert(config->n_paths > 0 && config->n_paths <= COLLECT_N_PATHS_MAX);
    c->config = *config;
    c->sources = mem_alloc(config->n_paths * sizeof *c->sources);
    c->align = align_new();
    status = open_sources(c, err);
    if (status)
        collect_close(c);
    else
        *ret = c;
    return status;
}

void collect_close(struct collect *c)
{
    if (!c)
        return;
    for (uint32_t i = 0; i < c->n_open; i++)
        source_close(&c->sources[i]);
    align_free(c->align);
    free(c->sources);
    free(c);
}

uint32_t collect_shards_per_node(const struct collect *c)
{
    return c->sources[0].shards_per_node;
}

/* --- dealing --- */

static int deal_files(struct collect *c, const struct source *s, struct shard *to,
                      struct collect_facts *facts, struct err *err) ON_SHARD
{
    struct loader_config config = {
        .files = c->config.files, .checkpoint = &s->checkpoint, .wants = is_wanted, .arg = c
    };
    struct loader_facts loaded;
    int status = loader_deal(&config, to, &loaded, err);

    facts->n_bytes += loaded.n_bytes;
    return status;
}

static int deal_shard(struct collect *c, struct shard *from, struct shard *const *to,
                      uint32_t n_to, struct err *err) ON_SHARD
{
    int status = 0;

    for (uint32_t id = 0; id < shard_n_tables(from); id++) {
        if (!is_wanted(c, shard_table(from, id)->spec.name))
            continue;
        for (uint32_t i = 0; i < n_to && !status; i++)
            status = deal_table(from, id, to[i], NULL, NULL, err);
    }
    return status;
}

static void report(void *arg, const char *sentence)
{
    const struct collect *c = arg;

    if (c->config.report)
        c->config.report(c->config.arg, sentence);
}

static int deal_shards(struct collect *c, const struct source *s, struct shard *const *to,
                       uint32_t n_to, uint64_t now_ms, struct collect_facts *facts,
                       struct err *err) ON_SHARD
{
    const struct rebuild_config how = { .report = report, .arg = c };
    int status = 0;

    for (uint32_t i = 0; i < s->shards_per_node && !status; i++) {
        struct rebuild_facts rebuilt = { 0 };
        struct shard *from;

        status = source_rebuild(s, c->config.files, i, &how, now_ms, &from, &rebuilt, err);
        if (status)
            return align_explain(c->align, status, err);
        align_note(c->align, s->node * s->shards_per_node + i, from);
        c->has_later = c->has_later || rebuilt.has_later;
        facts->n_records += rebuilt.n_records;
        facts->n_pushes += rebuilt.n_pushes;
        facts->n_bytes += rebuilt.n_bytes;
        status = deal_shard(c, from, to, n_to, err);
        shard_free(from);
    }
    return status;
}

static int deal_source(struct collect *c, struct source *s, struct shard *const *to,
                       uint32_t n_to, uint64_t now_ms, struct collect_facts *facts,
                       struct err *err) ON_SHARD
{
    int status = 0;

    if (!s->is_exact)
        return deal_shards(c, s, to, n_to, now_ms, facts, err);
    for (uint32_t i = 0; i < n_to && !status; i++)
        status = deal_files(c, s, to[i], facts, err);
    if (checkpoint_is_damage(status) && source_may_be_rebuilt(s)) {
        s->is_exact = false;
        c->is_again = true;
        report(c, err->text);
    }
    return status;
}

static int check_tables(const struct collect *c, struct shard *to, struct err *err) ON_SHARD
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

static void clear_all(struct collect *c, struct shard *const *to, uint32_t n_to) ON_SHARD
{
    align_forget(c->align);
    for (uint32_t i = 0; i < n_to; i++)
        shard_clear(to[i]);
}

static int deal_all(struct collect *c, struct shard *const *to, uint32_t n_to, uint64_t now_ms,
                    struct collect_facts *ret, struct err *err) ON_SHARD
{
    int status;

    do {
        if (c->is_again)
            clear_all(c, to, n_to);
        *ret = (struct collect_facts){ 0 };
        c->has_later = c->is_again = false;
        status = 0;
        for (uint32_t i = 0; i < c->n_open && !status; i++)
            status = deal_source(c, &c->sources[i], to, n_to, now_ms, ret, err);
    } while (c->is_again);
    return status;
}

static void go_back(struct collect *c, struct shard *const *to, uint32_t n_to,
                    const struct rebuild_at *at) ON_SHARD
{
    for (uint32_t i = 0; i < c->n_open; i++)
        source_go_back(&c->sources[i], at);
    clear_all(c, to, n_to);
}

int collect_into(struct collect *c, struct shard *const *to, uint32_t n_to, uint64_t now_ms,
                 struct collect_facts *ret, struct err *err)
{
    const struct align_config config = { .at = source_asked(c->sources, c->n_open),
                                         .report = report,
                                         .arg = c };
    struct rebuild_at again = { 0 };
    int status = deal_all(c, to, n_to, now_ms, ret, err);

    if (!status)
        status = align_judge(c->align, &config, &again, err);
    if (!status && again.job) {
        go_back(c, to, n_to, &again);
        status = deal_all(c, to, n_to, now_ms, ret, err);
        if (!status)
            status = align_judge(c->align, &config, &again, err);
    }
    if (!status && c->has_later && config.at.job) /* as it was asked for */
        rebuild_say_later(&config.at, report, c);
    return status ? status : check_tables(c, to[0], err);
}

int collect_one(const struct collect_config *config, uint64_t now_ms, struct shard **ret,
                struct collect_facts *ret_facts, struct err *err)
{
    const struct shard_config core = {
        .n_shards = 1, .lease_ms = LEASE_MS, .join_ms = LEASE_MS, .park_ms = LEASE_MS
    };
    struct collect *c;
    int status = collect_open(config, &c, err);

    if (status)
        return status;
    *ret = shard_new(&core);
    status = collect_into(c, ret, 1, now_ms, ret_facts, err);
    collect_close(c);
    if (status) {
        shard_free(*ret);
        *ret = NULL;
    }
    return status;
}
