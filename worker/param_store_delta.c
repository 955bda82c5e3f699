#include "worker/param_store_delta.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "proto/codec_catalog.h"
#include "proto/message.h"
#include "server/core/delta_rows.h"
#include "worker/param_store_proxy.h"

#define ROW_BYTES_BESIDE 32u /* its head, and its place in the index */

struct known_table {
    struct table_spec spec;
    struct delta_rows *shards; /* owned, of each shard; NULL: the table is pulled whole */
};

struct deltas {
    struct param_store_proxy forward;
    struct param_store_ops ops; /* below */
    struct param_store_delta_options options;
    struct delta_memory memory;
    struct ps_state_sink sink;
    uint32_t n_shards;
    struct known_table *tables[PS_TABLES_MAX];     /* owned */
    struct ps_pull_section sections[SECTIONS_MAX]; /* the inner pull, while under way */
    _Atomic uint64_t bytes_saved;
};

static struct deltas *deltas_of(const struct param_store *s)
{
    return (struct deltas *)(void *)(uintptr_t)s;
}

/* --- tables --- */

static void free_table(const struct deltas *d, struct known_table *t)
{
    for (uint32_t i = 0; t && t->shards && i < d->n_shards; i++)
        delta_rows_deinit(&t->shards[i]);
    if (t)
        free(t->shards);
    free(t);
}

static int make_rows(struct deltas *d, struct known_table *t)
{
    int status = 0;

    t->shards = memory_try_alloc(d->n_shards * sizeof *t->shards);
    if (!t->shards)
        return -ENOMEM;
    memset(t->shards, 0, d->n_shards * sizeof *t->shards);
    for (uint32_t i = 0; i < d->n_shards && !status; i++)
        status = delta_rows_init(&t->shards[i], &t->spec, &d->memory);
    return status;
}

static int keep_table(struct param_store *s, const struct table_spec *spec, uint32_t table,
                      struct err *err)
{
    struct deltas *d = deltas_of(s);
    struct known_table *t = memory_try_alloc(sizeof *t);
    int status = -ENOMEM;

    if (t) {
        *t = (struct known_table){ .spec = *spec };
        status = make_rows(d, t);
    }
    if (status) {
        free_table(d, t);
        return err_set(err, status, "table %s: no memory", spec->name);
    }
    d->tables[table] = t;
    return 0;
}

/* --- the sink --- */

static const struct param_store_delta_kind *kind_of(const struct deltas *d,
                                                    const struct known_table *t)
{
    return t->spec.kind == TABLE_SPEC_SPARSE ? &d->options.rows : &d->options.dense;
}

/* Rows that find space beside those that are here, about: what finds none after all is not kept. */
static uint32_t rows_max(const struct deltas *d, const struct known_table *t, uint32_t shard)
{
    const struct memory_budget *budget = &d->memory.budget;
    const uint64_t row_bytes = t->spec.dim * sizeof(float) + ROW_BYTES_BESIDE;
    const uint64_t free_bytes = budget->max > budget->used ? budget->max - budget->used : 0;
    const uint64_t n = delta_rows_n(&t->shards[shard]) + free_bytes / d->n_shards / row_bytes;

    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

static struct section_delta ask(void *arg, const struct ps_pull_section *s, uint32_t shard)
{
    struct deltas *d = arg;
    struct known_table *t = d->tables[s->table];

    const struct param_store_delta_kind *kind = kind_of(d, t);

    return (struct section_delta){ .asked = true,
                                   .mode = kind->mode,
                                   .tolerance = kind->tolerance,
                                   .base = delta_rows_ask(&t->shards[shard]),
                                   .rows_max = rows_max(d, t, shard) };
}

static int take(void *arg, const struct ps_pull_section *s, uint32_t shard,
                const uint32_t *numbers, uint32_t n, const uint8_t *values, size_t value_bytes)
{
    struct deltas *d = arg;
    const struct codec *codec = codec_by_id(s->codec);
    const struct known_table *t = d->tables[s->table];
    const uint64_t plain_bytes = (uint64_t)n * codec->row_bytes(t->spec.dim, 0);

    if (value_bytes < plain_bytes)
        atomic_fetch_add_explicit(&d->bytes_saved, plain_bytes - value_bytes,
                                  memory_order_relaxed);
    return delta_rows_read(&t->shards[shard],
                           &(struct delta_answer){ codec,
                                                   kind_of(d, t)->mode == SECTION_DELTA_SPARSE,
                                                   n, s->keys, numbers, values, value_bytes },
                           s->dst);
}

/* --- pull --- */

static bool is_plain(const struct ps_pull_section *s)
{
    return s->sink || s->present || s->scan || s->versions;
}

static int pull_start(struct param_store *s, uint64_t clock,
                      const struct ps_pull_section *sections, uint32_t n, struct err *err)
{
    struct deltas *d = deltas_of(s);
    struct param_store *inner = d->forward.inner;

    if (n)
        memcpy(d->sections, sections, n * sizeof *sections);
    for (uint32_t i = 0; i < n; i++)
        if (!is_plain(&sections[i]))
            d->sections[i].sink = &d->sink;
    return inner->ops->pull_start(inner, clock, d->sections, n, err);
}

/* The servers' rows as they are; what is here stays as it is. */
static int pull_for_eval(struct param_store *s, uint64_t clock,
                         const struct ps_pull_section *sections, uint32_t n, struct err *err)
{
    struct param_store *inner = deltas_of(s)->forward.inner;

    return inner->ops->pull_start(inner, clock, sections, n, err);
}

static int pull_wait(struct param_store *s, struct err *err)
{
    struct param_store *inner = deltas_of(s)->forward.inner;

    return inner->ops->pull_wait(inner, err);
}

/* --- the rest --- */

static int push(struct param_store *s, uint64_t clock, uint32_t n_samples, bool tick,
                const struct ps_push_section *sections, uint32_t n, struct err *err)
{
    struct param_store *inner = deltas_of(s)->forward.inner;

    return inner->ops->push(inner, clock, n_samples, tick, sections, n, err);
}

static void stats(const struct param_store *s, struct ps_stats *ret)
{
    struct deltas *d = deltas_of(s);

    d->forward.inner->ops->stats(d->forward.inner, ret);
    ret->bytes_saved += atomic_load_explicit(&d->bytes_saved, memory_order_relaxed);
}

static void close_store(struct param_store *s)
{
    struct deltas *d = deltas_of(s);

    d->forward.inner->ops->close(d->forward.inner);
    for (uint32_t i = 0; i < PS_TABLES_MAX; i++)
        free_table(d, d->tables[i]);
    delta_memory_deinit(&d->memory);
    free(d);
}

static const struct param_store_ops ops = { .table = param_store_proxy_table,
                                            .table_find = param_store_proxy_table_find,
                                            .pull_start = pull_start,
                                            .pull_for_eval = pull_for_eval,
                                            .pull_wait = pull_wait,
                                            .push = push,
                                            .flush = param_store_proxy_flush,
                                            .leave = param_store_proxy_leave,
                                            .copy = param_store_proxy_copy,
                                            .clock = param_store_proxy_clock,
                                            .stats = stats,
                                            .encoder = param_store_proxy_encoder,
                                            .resume = param_store_proxy_resume,
                                            .cancel = param_store_proxy_cancel,
                                            .close = close_store };

static uint32_t features_of(const struct param_store_delta_options *options)
{
    return options->rows.mode == SECTION_DELTA_SPARSE ||
                   options->dense.mode == SECTION_DELTA_SPARSE
               ? MESSAGE_FEATURE_SPARSE_DELTAS
               : 0;
}

struct param_store *param_store_delta_new(struct param_store *inner,
                                          const struct param_store_delta_options *options)
{
    static const struct ps_tap none = { 0 };
    struct deltas *d = memory_alloc(sizeof *d);

    *d = (struct deltas){
        .forward = { { &d->ops, inner->journal }, inner, keep_table },
        .ops = ops,
        .options = *options,
        .memory.budget.max = options->max_bytes,
        .sink = { .take = take, .ask = ask, .features = features_of(options), .arg = d },
        .n_shards = inner->ops->set_tap(inner, &none)
    };
    d->ops.overlaps = inner->ops->overlaps;
    return &d->forward.store;
}
