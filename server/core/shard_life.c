/* A shard's life and its tables (shard.h). */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "server/core/bsp.h"
#include "server/core/expire.h"
#include "server/core/push.h"
#include "server/core/replay_decisions.h"
#include "server/core/row_admission.h"
#include "server/core/row_provenance.h"
#include "server/core/weights.h"

/* *s is all zeros. */
static void init(struct shard *s, const struct shard_config *config)
{
    assert(config->n_shards > 0 && config->shard < config->n_shards);
    s->config = *config;
    s->budget.max = config->memory_max_bytes;
    s->membership = membership_new(config->lease_ms, config->join_ms);
    s->gradient = memory_alloc(TABLE_SPEC_DIM_MAX * sizeof *s->gradient);
    s->values = memory_alloc(TABLE_SPEC_DIM_MAX * sizeof *s->values);
    s->pushes = memory_alloc(ROW_PROVENANCE_PUSHES * sizeof *s->pushes);
    for (uint32_t id = 0; id < CODEC_ID_END; id++)
        s->codecs[id] = codec_by_id(id);
}

static void deinit(struct shard *s) ON_SHARD
{
    replay_decisions_stop(s);
    bsp_deinit(s);
    for (uint32_t i = 0; i < s->n_tables; i++) {
        table_free(s->tables[i]->table.rows);
        row_admission_deinit(s->tables[i]);
        bytes_deinit(&s->tables[i]->gone);
        free(s->tables[i]);
    }
    membership_free(s->membership);
    push_deinit(&s->small);
    push_deinit(&s->large);
    bytes_deinit(&s->keys);
    bytes_deinit(&s->contributions);
    bytes_deinit(&s->batches);
    free(s->gradient);
    free(s->values);
    free(s->pushes);
}

struct shard *shard_new(const struct shard_config *config)
{
    struct shard *s = memory_alloc(sizeof *s);

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

static void set_costs(struct shard_entry *entry)
{
    uint32_t cost = (uint32_t)sizeof(struct row) + entry->table.payload_bytes, n;

    entry->row_cost = cost > SHARD_KEY_COST ? cost : SHARD_KEY_COST;
    n = SHARD_SLICE_BYTES / 16 / entry->row_cost;
    entry->chunk_rows = n < 1 ? 1 : n < SHARD_CHUNK_MAX ? n : SHARD_CHUNK_MAX;
}

static struct shard_entry *new_entry(struct shard *s, const struct table_spec *spec)
{
    const struct optimizer *optim = optimizer_find(spec->optim);
    struct shard_entry *entry = memory_try_alloc(sizeof *entry);

    assert(optim); /* table_spec_check() has passed */
    if (!entry)
        return NULL;
    entry->table.spec = *spec;
    entry->table.weights_bytes = weights_bytes(spec->storage, spec->dim);
    entry->table.payload_bytes =
        entry->table.weights_bytes + optim->state_floats(spec->dim) * (uint32_t)sizeof(float);
    entry->optim = optim;
    entry->salt = table_spec_salt(spec);
    entry->key_end = spec->kind == TABLE_SPEC_DENSE ? table_spec_n_blocks(spec) : 0;
    set_costs(entry);
    row_admission_init(s, entry);
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
    status = shard_events_reserve(s->events, &event);
    if (status == -EAGAIN)
        return err_set(
            err, status,
            "table %s: the write-ahead log is full, as the disk is slower than the pushes",
            spec->name);
    entry = status ? NULL : new_entry(s, spec);
    if (!entry)
        return err_set(err, -ENOMEM, "table %s: no memory", spec->name);
    status = table_new(&entry->table.rows, entry->table.payload_bytes, 0, &entry->budget);
    if (status) {
        row_admission_deinit(entry);
        free(entry);
        return err_set(err, status, "table %s: %s", spec->name,
                       status == -ENOMEM ? "no memory" : status_text(status));
    }
    s->n_bsp_tables += spec->mode == TABLE_SPEC_MODE_BSP;
    s->tables[s->n_tables++] = entry;
    shard_events_record(s->events, &event);
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
        status = table_spec_check(spec, err);
    if (!status && !must_exist)
        status = id < s->n_tables ? table_spec_same(&s->tables[id]->table.spec, spec, err)
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

struct membership *shard_membership(struct shard *s)
{
    return s->membership;
}

void shard_set_events(struct shard *s, const struct shard_events *events)
{
    s->events = events;
    membership_set_events(s->membership, events, &s->version);
}

bool shard_advance(struct shard *s, uint64_t now_ms)
{
    bool any;

    /* Whose push is under way has been heard of. */
    if (push_is_running(&s->large) && now_ms > s->large.worker->last_seen_ms)
        s->large.worker->last_seen_ms = now_ms;
    (void)membership_advance(s->membership, now_ms);
    /* By this, or by leaving since the last time. */
    any = membership_n_gone(s->membership) != s->n_gone;
    s->n_gone = membership_n_gone(s->membership);
    expire_sweep(s, now_ms);
    return bsp_release(s) || any;
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
