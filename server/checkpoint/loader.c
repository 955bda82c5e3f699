#include "server/checkpoint/loader.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "server/checkpoint/checkpoint.h"
#include "server/core/replay.h"
#include "server/core/restore.h"

/* A chain on its way into a shard. */
struct load {
    const struct loader_config *config;
    struct shard *shard;
    uint32_t *ids; /* owned: the shard's numbers of the file's tables */
    bool is_whole; /* loader_load(): all of it is this shard's, state included */
    uint32_t n_behind;
    uint8_t *state; /* owned: of the newest file */
    size_t state_bytes, state_cap;
    struct loader_facts *facts;
    struct err *err;
};

static int wrong(const struct load *l, const struct shard_file_reader *r, int status,
                 const char *reason)
{
    return err_set(l->err, status, "%.110s: %.110s", reason, r->path);
}

/* --- tables --- */

#define UNWANTED UINT32_MAX /* the number of a table that is left out */

static bool is_wanted(const struct load *l, const struct shard_file_table *table)
{
    const struct loader_config *c = l->config;

    if (table->n_dropped)
        return false;
    return l->is_whole || !c->wants || c->wants(c->arg, table->spec.name);
}

/* What a shard cannot take of a file is the file's fault, unless it is memory that is missing. */
static int fault_of(int status)
{
    return status == -ENOMEM || status == PS_EBUDGET || status == -ENOSPC ? status
                                                                          : PS_ECORRUPT;
}

/* As another file had them, or not yet there. */
static int skip_dropped(struct load *l, const struct shard_file_reader *r,
                        const struct shard_file_table *t) ON_SHARD
{
    int status = 0;

    if (shard_n_tables(l->shard) <= t->id)
        status = shard_skip_tables(l->shard, t->n_dropped);
    if (status)
        return wrong(l, r, status, "no memory for its tables");
    for (uint32_t id = t->id; id < t->id + t->n_dropped; id++)
        if (id >= shard_n_tables(l->shard) || shard_table(l->shard, id))
            return wrong(l, r, PS_ECORRUPT, "its tables are not those of the file before");
    return 0;
}

/* One item for each record. */
static int reserve_ids(struct load *l, const struct shard_file_reader *r)
{
    free(l->ids);
    l->ids = memory_try_alloc((r->header.n_tables + 1) * sizeof *l->ids);
    return l->ids ? 0 : wrong(l, r, -ENOMEM, "no memory for its tables");
}

/* Makes the file's tables, or finds them as another file had them. */
static int load_tables(struct load *l, const struct shard_file_reader *r) ON_SHARD
{
    int reserved = reserve_ids(l, r);

    if (reserved)
        return reserved;
    for (uint32_t i = 0; i < r->header.n_tables; i++) {
        const struct shard_file_table *t = &r->tables[i];
        struct err why = { 0 };
        int status;

        l->ids[i] = UNWANTED;
        status = l->is_whole && t->n_dropped ? skip_dropped(l, r, t) : 0;
        if (status)
            return status;
        if (!is_wanted(l, t))
            continue;
        status = shard_table_restore(l->shard, &t->spec, &l->ids[i], &why);
        if (status)
            return wrong(l, r, fault_of(status), why.text[0] ? why.text : status_text(status));
        if (l->is_whole && l->ids[i] != t->id)
            return wrong(l, r, PS_ECORRUPT, "its tables are not those of the file before");
        if (l->is_whole)
            restore_expect(l->shard, t->id, t->n_rows);
        /* Both are the catalog's. */
        assert(shard_table(l->shard, l->ids[i])->payload_bytes == t->payload_bytes);
    }
    return 0;
}

static void load_counts(struct load *l, const struct shard_file_reader *r) ON_SHARD
{
    for (uint32_t i = 0; i < r->header.n_tables; i++)
        if (l->ids[i] != UNWANTED)
            restore_counts(l->shard, l->ids[i], r->tables[i].n_pushes, r->header.version);
}

/* --- state --- */

static int reserve_state(struct load *l, const struct shard_file_reader *r)
{
    if (!l->is_whole || l->n_behind)
        return 0;
    l->state_cap = (size_t)r->header.state_bytes;
    l->state = memory_try_alloc(l->state_cap + 1);
    return l->state ? 0 : wrong(l, r, -ENOMEM, "no memory for what lock step holds");
}

static void add_state(struct load *l, const struct shard_file_reader_chunk *piece)
{
    if (!l->state)
        return;
    assert(piece->n_bytes <= l->state_cap - l->state_bytes); /* the reader has counted */
    memcpy(l->state + l->state_bytes, piece->bytes, piece->n_bytes);
    l->state_bytes += piece->n_bytes;
}

/* --- what a chain shows --- */

static int on_file(void *owner, const struct shard_file_reader *r, uint32_t n_behind)
{
    struct load *l = owner;
    int status;

    enter_shard();
    l->n_behind = n_behind;
    status = load_tables(l, r);
    if (!status)
        status = reserve_state(l, r);
    if (!status && !n_behind)
        load_counts(l, r);
    return status;
}

static int load_rows(struct load *l, const struct shard_file_reader *r,
                     const struct shard_file_reader_chunk *piece) ON_SHARD
{
    uint32_t n_ours, id = l->ids[piece->table];
    int status = piece->what == SHARD_FILE_ROWS
                     ? restore_rows(l->shard, id, piece->bytes, piece->n_items, &n_ours)
                     : restore_gone(l->shard, id, piece->bytes, piece->n_items, &n_ours);

    if (status)
        return err_set(l->err, fault_of(status), "cannot load table %s: %s: %.100s",
                       r->tables[piece->table].spec.name, status_text(status), r->path);
    if (l->is_whole && n_ours < piece->n_items)
        return wrong(l, r, PS_ECORRUPT, "a row of another shard");
    return 0;
}

static int on_piece(void *owner, const struct shard_file_reader *r,
                    const struct shard_file_reader_chunk *piece)
{
    struct load *l = owner;
    int status = 0;

    enter_shard();
    if (piece->what == SHARD_FILE_STATE)
        add_state(l, piece);
    else if (l->ids[piece->table] != UNWANTED)
        status = load_rows(l, r, piece);
    l->facts->n_bytes += piece->n_bytes;
    l->facts->n_rows += piece->what == SHARD_FILE_ROWS ? piece->n_items : 0;
    if (status || !l->config->progress)
        return status;
    status = l->config->progress(l->config->arg);
    return status ? wrong(l, r, status, "loading was to end") : 0;
}

/* --- the two ways --- */

static int load_chain(struct load *l, uint32_t i) ON_SHARD
{
    const struct checkpoint_visitor visitor = { .owner = l,
                                                .on_file = on_file,
                                                .on_piece = on_piece };
    struct shard_file_facts newest;
    int status = checkpoint_chain_read(l->config->files, l->config->checkpoint, i, &visitor,
                                       &newest, l->err);

    if (status)
        return status;
    l->facts->first = newest.first;
    l->facts->through = newest.through;
    l->facts->version = newest.version;
    if (!l->is_whole) /* no log brings the pushes that came while the file was written */
        restore_version(l->shard, newest.last_version);
    return 0;
}

static struct load begin(const struct loader_config *config, struct shard *shard,
                         struct loader_facts *facts, struct err *err)
{
    *facts = (struct loader_facts){ 0 };
    return (struct load){ .config = config, .shard = shard, .facts = facts, .err = err };
}

int loader_load(const struct loader_config *config, uint32_t shard_index, struct shard *shard,
                uint64_t now_ms, struct loader_facts *ret, struct err *err)
{
    struct load l = begin(config, shard, ret, err);
    int status;

    l.is_whole = true;
    replay_begin(shard);
    status = load_chain(&l, shard_index);
    if (!status) {
        status = replay_state(shard, l.state, l.state_bytes, now_ms);
        if (status)
            err_set(err, status, "jobs or held pushes of shard %u in %.160s: %s", shard_index,
                    config->checkpoint->dir, status_text(status));
    }
    free(l.state);
    free(l.ids);
    return status;
}

int loader_reshard(const struct loader_config *config, struct shard *shard,
                   struct loader_facts *ret, struct err *err)
{
    struct load l = begin(config, shard, ret, err);
    int status = 0;

    for (uint32_t i = 0; i < config->checkpoint->links[0].n_files && !status; i++)
        status = load_chain(&l, i);
    free(l.ids);
    return status;
}
