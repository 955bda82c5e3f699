/* A shard's life and its tables (shard.h). */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "server/core/shard_again.h"
#include "server/core/shard_grow.h"
#include "server/core/shard_lockstep.h"
#include "server/core/shard_look.h"
#include "server/core/shard_run.h"
#include "server/core/shard_sweep.h"
#include "server/core/weights.h"

/* *s is all zeros. */
static void init(struct shard *s, const struct shard_config *config)
{
    assert(config->n_shards > 0 && config->shard < config->n_shards);
    s->config = *config;
    s->budget.max = config->memory_max_bytes;
    s->roster = roster_new(config->lease_ms, config->join_ms);
    s->gradient = mem_alloc(SPEC_DIM_MAX * sizeof *s->gradient);
    s->values = mem_alloc(SPEC_DIM_MAX * sizeof *s->values);
    s->pushes = mem_alloc(SHARD_LOOK_PUSHES * sizeof *s->pushes);
}

static void deinit(struct shard *s) ON_SHARD
{
    shard_again_stop(s);
    shard_lockstep_free(s);
    for (uint32_t i = 0; i < s->n_tables; i++) {
        table_free(s->tables[i]->table.rows);
        shard_grow_deinit(s->tables[i]);
        buf_deinit(&s->tables[i]->gone);
        free(s->tables[i]);
    }
    roster_free(s->roster);
    shard_run_deinit(&s->small);
    shard_run_deinit(&s->large);
    buf_deinit(&s->keys);
    buf_deinit(&s->contributions);
    buf_deinit(&s->batches);
    free(s->gradient);
    free(s->values);
    free(s->pushes);
}

struct shard *shard_new(const struct shard_config *config)
{
    struct shard *s = mem_alloc(sizeof *s);

    init(s, config);
    return s;
}

void shard_free(struct shard *s)
{
    if (s)
        deinit(s);
    free(s);
}

void shard_clear(struct shard *s)
{
    struct shard_config config = s->config;

    deinit(s);
    *s = (struct shard){ 0 };
    init(s, &config);
}

/* n_tables when there is none of that name. */
static uint32_t find_table(const struct shard *s, const char *name)
{
    uint32_t id = 0;

    while (id < s->n_tables && strcmp(s->tables[id]->table.spec.name, name) != 0)
        id++;
    return id;
}

static struct shard_entry *new_entry(struct shard *s, const struct table_spec *spec)
{
    const struct optim *optim = optim_find(spec->optim);
    struct shard_entry *entry = mem_try_alloc(sizeof *entry);

    assert(optim); /* spec_check() has passed */
    if (!entry)
        return NULL;
    entry->table.spec = *spec;
    entry->table.weights_bytes = weights_bytes(spec->storage, spec->dim);
    entry->table.payload_bytes =
        entry->table.weights_bytes + optim->state_floats(spec->dim) * (uint32_t)sizeof(float);
    entry->optim = optim;
    entry->salt = spec_salt(spec);
    entry->key_end = spec->kind == SPEC_DENSE ? spec_n_blocks(spec) : 0;
    shard_grow_init(s, entry);
    return entry;
}

static int make_table(struct shard *s, const struct table_spec *spec, struct err *err)
{
    const struct shard_event event = { .type = SHARD_EVENT_TABLE,
                                       .version = s->version,
                                       .table = { s->n_tables, spec } };
    struct shard_entry *entry;
    int status;

    if (s->n_tables == SHARD_N_TABLES_MAX)
        return err_set(err, -ENOSPC,
                       "table %s: this shard has %u tables, which is the most it can have",
                       spec->name, SHARD_N_TABLES_MAX);
    status = shard_journal_room(s->journal, &event);
    if (status == -EAGAIN)
        return err_set(err, status,
                       "table %s: the push log is full, as the disk is slower than the pushes",
                       spec->name);
    entry = status ? NULL : new_entry(s, spec);
    if (!entry)
        return err_set(err, -ENOMEM, "table %s: no memory", spec->name);
    status = table_new(&entry->table.rows, entry->table.payload_bytes, 0, &entry->budget);
    if (status) {
        shard_grow_deinit(entry);
        free(entry);
        return err_set(err, status, "table %s: %s", spec->name,
                       status == -ENOMEM ? "no memory" : status_text(status));
    }
    s->n_bsp_tables += spec->mode == SPEC_MODE_BSP;
    s->tables[s->n_tables++] = entry;
    shard_journal_record(s->journal, &event);
    return 0;
}

int shard_table_ask(struct shard *s, const struct table_spec *spec, bool must_exist,
                    uint32_t *ret_id, struct err *err)
{
    uint32_t id = find_table(s, spec->name);
    int status = 0;

    if (must_exist && id == s->n_tables)
        return err_set(err, PS_ENOTABLE, "no table is called %s", spec->name);
    if (!must_exist)
        status = spec_check(spec, err);
    if (!status && !must_exist)
        status = id < s->n_tables ? spec_same(&s->tables[id]->table.spec, spec, err)
                                  : make_table(s, spec, err);
    if (!status)
        *ret_id = id;
    return status;
}

struct shard_table *shard_table(struct shard *s, uint32_t id)
{
    struct shard_entry *entry = shard_entry_at(s, id);

    return entry ? &entry->table : NULL;
}

uint32_t shard_n_tables(const struct shard *s)
{
    return s->n_tables;
}

struct roster *shard_roster(struct shard *s)
{
    return s->roster;
}

void shard_listen(struct shard *s, const struct shard_journal *journal)
{
    s->journal = journal;
    roster_tell(s->roster, journal, &s->version);
}

bool shard_advance(struct shard *s, uint64_t now_ms)
{
    bool any;

    /* Whose push is under way has been heard of. */
    if (shard_run_is_under_way(&s->large) && now_ms > s->large.worker->last_seen_ms)
        s->large.worker->last_seen_ms = now_ms;
    (void)roster_advance(s->roster, now_ms);
    /* By this, or by leaving since the last time. */
    any = roster_n_gone(s->roster) != s->n_gone;
    s->n_gone = roster_n_gone(s->roster);
    shard_sweep(s, now_ms);
    return shard_lockstep_release(s) || any;
}

uint64_t shard_version(const struct shard *s)
{
    return s->version;
}

uint64_t shard_bytes(const struct shard *s)
{
    return s->budget.used + s->held_bytes;
}

const struct shard_counters *shard_counters(const struct shard *s)
{
    return &s->counters;
}

const struct shard_refusal *shard_last_refusal(const struct shard *s)
{
    return &s->refusal;
}
