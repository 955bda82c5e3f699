/* A shard's life and its tables (shard.h). */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "server/core/bsp.h"
#include "server/core/combine.h"
#include "server/core/expire.h"
#include "server/core/lock_step.h"
#include "server/core/push.h"
#include "server/core/replay_decisions.h"
#include "server/core/row_admission.h"
#include "server/core/row_provenance.h"
#include "server/core/shard_log_events.h"
#include "server/core/weights.h"

/* *s is all zeros. */
static void init(struct shard *s, const struct shard_config *config)
{
    assert(config->n_shards > 0 && config->shard < config->n_shards);
    s->config = *config;
    s->budget.max = config->memory_max_bytes;
    s->slice_bytes = SHARD_SLICE_BYTES;
    s->membership = membership_new(config->lease_ms, config->join_ms);
    if (config->n_shards == 1)
        membership_set_alone(s->membership);
    s->scratch_floats = TABLE_SPEC_DIM_MAX;
    s->gradient = memory_alloc_lines(s->scratch_floats * sizeof *s->gradient);
    s->values = memory_alloc_lines(s->scratch_floats * sizeof *s->values);
    s->pushes = memory_alloc(ROW_PROVENANCE_PUSHES * sizeof *s->pushes);
    s->small_clock = memory_alloc(sizeof *s->small_clock);
    s->large_clock = memory_alloc(sizeof *s->large_clock);
    for (uint32_t id = 0; id < CODEC_ID_END; id++)
        s->codecs[id] = codec_by_id(id);
}

static void free_entry(struct shard_entry *entry)
{
    table_free(entry->table.rows);
    memory_budget_release(entry->budget.parent, sizeof *entry);
    row_admission_deinit(entry);
    bytes_deinit(&entry->gone);
    free(entry);
}

static void deinit(struct shard *s) ON_SHARD
{
    replay_decisions_stop(s);
    bsp_deinit(s);
    for (uint32_t i = 0; i < s->n_tables; i++)
        if (s->tables[i])
            free_entry(s->tables[i]);
    free(s->tables);
    free(s->names);
    membership_free(s->membership);
    push_deinit(&s->small);
    push_deinit(&s->large);
    free(s->small_clock);
    free(s->large_clock);
    free(s->gradient);
    free(s->values);
    bytes_deinit(&s->found);
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

/* --- tables by name --- */

/* FNV-1a. */
static uint32_t hash_of(const char *name)
{
    uint32_t hash = 0x811c9dc5u;

    for (; *name; name++)
        hash = (hash ^ (uint8_t)*name) * 0x01000193u;
    return hash;
}

/* tables_cap is a power of 2, and not 0. */
static struct shard_entry **names_of(const struct shard *s, const char *name)
{
    return &s->names[hash_of(name) & (s->tables_cap - 1)];
}

static struct shard_entry *find_table(const struct shard *s, const char *name)
{
    struct shard_entry *entry = s->n_live ? *names_of(s, name) : NULL;

    while (entry && strcmp(entry->table.spec.name, name) != 0)
        entry = entry->next_name;
    return entry;
}

static void add_name(struct shard *s, struct shard_entry *entry)
{
    struct shard_entry **at = names_of(s, entry->table.spec.name);

    entry->next_name = *at;
    *at = entry;
}

static void remove_name(struct shard *s, const struct shard_entry *entry)
{
    struct shard_entry **at = names_of(s, entry->table.spec.name);

    while (*at != entry)
        at = &(*at)->next_name;
    *at = entry->next_name;
}

/* Space for n more ids. -ENOMEM: nothing has changed. */
static int reserve_ids(struct shard *s, uint32_t n)
{
    uint32_t cap = s->tables_cap ? s->tables_cap : 16;
    struct shard_entry **tables, **names;

    if (s->n_tables + n <= s->tables_cap)
        return 0;
    while (cap < s->n_tables + n)
        cap *= 2;
    tables = memory_try_alloc(cap * sizeof(struct shard_entry *));
    names = memory_try_alloc(cap * sizeof(struct shard_entry *));
    if (!tables || !names) {
        free(tables);
        free(names);
        return -ENOMEM;
    }
    if (s->n_tables)
        memcpy(tables, s->tables, s->n_tables * sizeof(struct shard_entry *));
    free(s->tables);
    free(s->names);
    s->tables = tables;
    s->names = names;
    s->tables_cap = cap;
    for (uint32_t i = 0; i < s->n_tables; i++)
        if (s->tables[i])
            add_name(s, s->tables[i]);
    return 0;
}

static void set_costs(struct shard_entry *entry)
{
    uint32_t cost = (uint32_t)sizeof(struct row) + entry->table.payload_bytes, n;

    entry->row_cost = cost > SHARD_KEY_COST ? cost : SHARD_KEY_COST;
    n = SHARD_SLICE_BYTES / 16 / entry->row_cost;
    entry->chunk_rows = n < 1 ? 1 : n < SHARD_CHUNK_MAX ? n : SHARD_CHUNK_MAX;
}

/* Of a table that is one layer. -ENOMEM: the scratch memory is as it was. */
static int widen_scratch(struct shard *s, uint32_t dim)
{
    float *gradient, *values;

    if (dim <= s->scratch_floats)
        return 0;
    gradient = memory_try_large(dim * sizeof *gradient);
    values = gradient ? memory_try_large(dim * sizeof *values) : NULL;
    if (!values) {
        free(gradient);
        return -ENOMEM;
    }
    free(s->gradient);
    free(s->values);
    s->gradient = gradient;
    s->values = values;
    s->scratch_floats = dim;
    return 0;
}

static struct shard_entry *new_entry(struct shard *s, const struct table_spec *spec)
{
    const struct optimizer *optim = optimizer_find(spec->optim);
    struct shard_entry *entry;

    assert(optim); /* table_spec_check() has passed */
    entry = widen_scratch(s, spec->dim) ? NULL : memory_try_alloc(sizeof *entry);
    if (!entry)
        return NULL;
    entry->table.spec = *spec;
    entry->table.weights_bytes = weights_bytes(spec->storage, spec->dim);
    entry->table.payload_bytes =
        entry->table.weights_bytes + table_spec_state_floats(spec) * (uint32_t)sizeof(float);
    entry->optim = optim;
    entry->salt = table_spec_salt(spec);
    entry->key_end = spec->kind == TABLE_SPEC_DENSE ? table_spec_n_blocks(spec) : 0;
    set_costs(entry);
    row_admission_init(s, entry);
    return entry;
}

/* The entry counts as well: thousands of tables without a row take megabytes. */
static int start_rows(struct shard *s, struct shard_entry *entry)
{
    int status = memory_budget_acquire(&s->budget, sizeof *entry);

    if (status)
        return status;
    status = table_new(&entry->table.rows, entry->table.payload_bytes, 0, &entry->budget);
    if (status)
        memory_budget_release(&s->budget, sizeof *entry);
    return status;
}

static int check_limits(const struct shard *s, const struct table_spec *spec, struct err *err)
{
    if (s->config.tables_max && !s->replay && s->n_live >= s->config.tables_max)
        return err_set(err, -ENOSPC,
                       "table %s: this shard has %u tables, which is all of --tables-max "
                       "(psctl drop JOB removes those of a job)",
                       spec->name, s->n_live);
    if (s->n_tables >= SHARD_TABLE_NUMBERS_MAX)
        return err_set(err, -ENOSPC,
                       "table %s: this shard has given all %u numbers to tables (psctl restore "
                       "makes a data directory where they begin anew)",
                       spec->name, SHARD_TABLE_NUMBERS_MAX);
    return 0;
}

static int make_table(struct shard *s, const struct table_spec *spec, uint32_t *ret_id,
                      struct err *err)
{
    const struct shard_event event = { .type = SHARD_EVENT_TABLE,
                                       .version = s->version,
                                       .table = { s->n_tables, spec } };
    struct shard_entry *entry;
    int status = check_limits(s, spec, err);

    if (status)
        return status;
    if (reserve_ids(s, 1))
        return err_set(err, -ENOMEM, "table %s: no memory", spec->name);
    status = shard_events_reserve(s->events, &event);
    if (status == -EAGAIN)
        return err_set(err, status,
                       "table %s: the write-ahead log takes no more now, because of its disk, "
                       "the standby or a switch: psctl why has it",
                       spec->name);
    entry = status ? NULL : new_entry(s, spec);
    if (!entry)
        return err_set(err, -ENOMEM, "table %s: no memory", spec->name);
    status = start_rows(s, entry);
    if (status) {
        row_admission_deinit(entry);
        free(entry);
        return err_set(err, status, "table %s: %s", spec->name,
                       status == -ENOMEM ? "no memory" : status_text(status));
    }
    s->n_bsp_tables += spec->mode == TABLE_SPEC_MODE_BSP;
    s->n_live++;
    *ret_id = entry->id = s->n_tables;
    s->tables[s->n_tables++] = entry;
    add_name(s, entry);
    shard_events_record(s->events, &event);
    return 0;
}

/* What the next checkpoint would need to be a delta: rows of a table that it does not name are no keys. */
static void need_full_checkpoint(struct shard *s)
{
    s->base.counts = s->base.is_there = false;
}

/* A table that only adds is what its worker says it is. Earlier versions of psctl set changed such tables, too, and the
 * job could not go on. */
static int check_same(struct shard *s, struct shard_entry *entry, const struct table_spec *spec,
                      struct err *err) ON_SHARD
{
    const struct shard_event event = { .type = SHARD_EVENT_SPEC,
                                       .version = s->version,
                                       .table = { entry->id, spec } };
    int status = table_spec_same(&entry->table.spec, spec, err);

    if (!status || !table_spec_only_adds(spec) ||
        table_spec_same_layout(&entry->table.spec, spec, NULL))
        return status;
    if (push_is_running(&s->large) || lock_step_is_combining(s))
        return err_set(err, -EAGAIN, "table %s: a large push or clock is under way",
                       spec->name);
    shard_log_events_rows(s);
    status = shard_events_reserve(s->events, &event);
    if (status)
        return err_set(err, status, "table %s: %s", spec->name,
                       status == -EAGAIN ? "the write-ahead log is full" : "no memory");
    entry->table.spec = *spec;
    need_full_checkpoint(s);
    shard_events_record(s->events, &event);
    return 0;
}

/* Makes the table, whose specification has been checked, or compares it with the one that is there. */
static int open_table(struct shard *s, const struct table_spec *spec, uint32_t *ret_id,
                      struct err *err) ON_SHARD
{
    struct shard_entry *entry = find_table(s, spec->name);
    int status;

    if (!entry)
        return make_table(s, spec, ret_id, err);
    status = check_same(s, entry, spec, err);
    if (!status)
        *ret_id = entry->id;
    return status;
}

int shard_table_open(struct shard *s, const struct table_spec *spec, bool must_exist,
                     uint32_t *ret_id, struct err *err)
{
    const struct shard_entry *entry = find_table(s, spec->name);
    int status;

    if (must_exist && !entry)
        return err_set(err, PS_ENOTABLE, "no table is called %s", spec->name);
    if (must_exist) {
        *ret_id = entry->id;
        return 0;
    }
    status = entry ? table_spec_check(spec, err) : table_spec_check_new(spec, err);
    return status ? status : open_table(s, spec, ret_id, err);
}

int shard_table_restore(struct shard *s, const struct table_spec *spec, uint32_t *ret_id,
                        struct err *err)
{
    int status = table_spec_check(spec, err);

    return status ? status : open_table(s, spec, ret_id, err);
}

void shard_remove_table(struct shard *s, uint32_t id)
{
    struct shard_entry *entry = s->tables[id];

    assert(entry && !entry->changing);
    if (s->row_events.entry == entry)
        s->row_events = (struct shard_row_events){ 0 };
    need_full_checkpoint(s);
    s->base.n_gone -= bytes_len(&entry->gone) / sizeof(uint64_t);
    s->n_bsp_tables -= entry->table.spec.mode == TABLE_SPEC_MODE_BSP;
    remove_name(s, entry);
    s->tables[id] = NULL;
    s->n_live--;
    free_entry(entry);
}

int shard_skip_tables(struct shard *s, uint32_t n)
{
    int status = n > SHARD_TABLE_NUMBERS_MAX - s->n_tables ? -ENOSPC : reserve_ids(s, n);

    if (status)
        return status;
    memset(s->tables + s->n_tables, 0, n * sizeof(struct shard_entry *));
    s->n_tables += n;
    return 0;
}

uint32_t shard_n_live_tables(const struct shard *s)
{
    return s->n_live;
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
    if (push_is_running(&s->large))
        membership_hear(s->large.worker, now_ms);
    (void)membership_advance(s->membership, now_ms);
    /* By this, or by leaving since the last time. */
    any = membership_n_gone(s->membership) != s->n_gone;
    s->n_gone = membership_n_gone(s->membership);
    expire_sweep(s, now_ms);
    return bsp_release_some(s) || any;
}

uint32_t shard_gradient_max(const struct shard *s)
{
    return shard_magnitude_max(&s->config);
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
