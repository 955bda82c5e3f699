#include "worker/param_store_stale_cache.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "proto/codec_catalog.h"
#include "worker/cache/stale_rows.h"
#include "worker/param_store_proxy.h"

/* A section of the request under way that asks for less than it was asked for: number `section` of
 * the inner pull, whose rows go to the places `numbers` of dst. */
struct chunk {
    uint32_t section;
    const struct ps_pull_section *whole; /* borrowed */
    const uint32_t *numbers;             /* of its missing keys */
    uint64_t version;                    /* of the rows that it brings: its own */
};

struct reuse {
    struct param_store_proxy forward;
    struct param_store_ops
        ops; /* below; pushes change nothing here, so it overlaps where `inner` does */
    struct param_store_stale_cache_options options;
    struct memory_budget budget; /* of all that is kept */
    struct stale_rows kept[PS_TABLES_MAX];
    bool sparse[PS_TABLES_MAX];
    struct ps_pull_section sections[SECTIONS_MAX]; /* the inner pull, while under way */
    struct chunk chunks[SECTIONS_MAX];
    uint32_t n_sections, n_chunks;
    uint64_t n_versions; /* that were given out; no number comes twice */
    uint64_t min_clock;  /* known when it was sent */
    /* lowest min clock of what it was given from what is kept; UINT64_MAX: nothing was */
    _Atomic uint64_t kept_clock;
    uint64_t *keys; /* owned, as the next two: of the parts */
    uint32_t *numbers;
    float *rows;
    uint64_t cap_keys, cap_floats;
    _Atomic uint64_t rows_asked, rows_cached, bytes_saved, staleness_max;
};

static struct reuse *reuse_of(const struct param_store *s)
{
    return (struct reuse *)(void *)(uintptr_t)s;
}

/* --- tables --- */

static uint32_t bound_of(const struct reuse *r, const struct table_spec *spec)
{
    enum table_spec_mode mode =
        spec->mode == TABLE_SPEC_MODE_JOB ? r->options.mode : spec->mode;
    uint32_t bound = spec->mode == TABLE_SPEC_MODE_SSP ? spec->bound : r->options.bound;

    if (mode == TABLE_SPEC_MODE_BSP)
        return 0;
    if (mode == TABLE_SPEC_MODE_ASYNC || bound > r->options.reuse_clocks)
        return r->options.reuse_clocks;
    return bound;
}

static int keep_table(struct param_store *s, const struct table_spec *spec, uint32_t table,
                      struct err *err)
{
    struct reuse *r = reuse_of(s);

    r->sparse[table] = spec->kind == TABLE_SPEC_SPARSE;
    return stale_rows_init(&r->kept[table], spec->dim, bound_of(r, spec), &r->budget)
               ? err_set(err, -ENOMEM, "table %s: no memory", spec->name)
               : 0;
}

static void reset(struct reuse *r)
{
    for (uint32_t i = 0; i < PS_TABLES_MAX; i++)
        stale_rows_clear(&r->kept[i]);
}

/* --- pull --- */

/* For the parts of all sections, at most. */
static int reserve(struct reuse *r, const struct ps_pull_section *sections, uint32_t n)
{
    uint64_t n_keys = 0, n_floats = 0;

    for (uint32_t i = 0; i < n; i++) {
        n_keys += sections[i].n_keys;
        n_floats += (uint64_t)sections[i].n_keys * r->kept[sections[i].table].dim;
    }
    if (n_keys > r->cap_keys) {
        uint64_t *keys = memory_try_realloc(r->keys, n_keys * sizeof *keys);
        uint32_t *numbers;

        if (!keys)
            return -ENOMEM;
        r->keys = keys;
        numbers = memory_try_realloc(r->numbers, n_keys * sizeof *numbers);
        if (!numbers)
            return -ENOMEM;
        r->numbers = numbers;
        r->cap_keys = n_keys;
    }
    if (n_floats > r->cap_floats) {
        float *rows = memory_try_realloc(r->rows, n_floats * sizeof *rows);

        if (!rows)
            return -ENOMEM;
        r->rows = rows;
        r->cap_floats = n_floats;
    }
    return 0;
}

static void count(struct reuse *r, const struct ps_pull_section *s, uint32_t n_missing)
{
    uint32_t n_kept = s->n_keys - n_missing;
    size_t row_bytes = codec_by_id(s->codec)->row_bytes(r->kept[s->table].dim, 0);

    if (r->sparse[s->table]) {
        atomic_fetch_add_explicit(&r->rows_asked, s->n_keys, memory_order_relaxed);
        atomic_fetch_add_explicit(&r->rows_cached, n_kept, memory_order_relaxed);
    }
    atomic_fetch_add_explicit(&r->bytes_saved, n_kept * row_bytes, memory_order_relaxed);
}

static void begin(struct reuse *r)
{
    r->n_sections = r->n_chunks = 0;
    atomic_store_explicit(&r->kept_clock, UINT64_MAX, memory_order_relaxed);
}

/* The oldest that was taken from what is kept: it bounds what this pull has brought. */
static void note_served(struct reuse *r, uint64_t clock, uint64_t kept_clock)
{
    uint64_t age = clock > kept_clock ? clock - kept_clock : 0;

    atomic_store_explicit(&r->kept_clock, kept_clock, memory_order_relaxed);
    if (age > atomic_load_explicit(&r->staleness_max, memory_order_relaxed))
        atomic_store_explicit(&r->staleness_max, age, memory_order_relaxed);
}

/* Of a table that keeps nothing. */
static void ask_whole(struct reuse *r, const struct ps_pull_section *s)
{
    if (s->versions)
        memset(s->versions, 0, s->n_keys * sizeof *s->versions);
    r->sections[r->n_sections++] = *s;
}

/* What is asked of the servers: whole sections, and parts of those whose table keeps rows. */
static void compose(struct reuse *r, uint64_t clock, const struct ps_pull_section *sections,
                    uint32_t n)
{
    uint32_t *numbers = r->numbers;
    uint64_t *keys = r->keys, kept_clock = UINT64_MAX;
    float *rows = r->rows;

    for (uint32_t i = 0; i < n; i++) {
        const struct ps_pull_section *s = &sections[i];
        struct stale_rows *kept = &r->kept[s->table];
        uint32_t n_missing;

        if (!kept->rows) {
            ask_whole(r, s);
            continue;
        }
        stale_rows_sweep(kept, clock);
        n_missing = stale_rows_read(
            kept, clock,
            &(struct stale_rows_ask){ s->n_keys, s->keys, s->dst, s->versions, s->places },
            numbers, &kept_clock);
        count(r, s, n_missing);
        if (!n_missing)
            continue;
        for (uint32_t k = 0; k < n_missing; k++)
            keys[k] = s->keys[numbers[k]];
        r->chunks[r->n_chunks++] = (struct chunk){ r->n_sections, s, numbers, ++r->n_versions };
        r->sections[r->n_sections++] = (struct ps_pull_section){
            .table = s->table, .codec = s->codec, .n_keys = n_missing, .keys = keys, .dst = rows
        };
        keys += n_missing;
        numbers += n_missing;
        rows += (size_t)n_missing * kept->dim;
    }
    note_served(r, clock, kept_clock);
}

/* In SSP servers have a say in when a step may begin, also one that needs no row of them. */
static bool asks(const struct reuse *r)
{
    return r->n_sections || r->options.mode == TABLE_SPEC_MODE_SSP;
}

static int start_inner(struct reuse *r, uint64_t clock, const struct ps_pull_section *sections,
                       uint32_t n, struct err *err)
{
    int status = r->forward.inner->ops->pull_start(r->forward.inner, clock, sections, n, err);

    if (status)
        reset(r);
    return status;
}

static int pull_start(struct param_store *s, uint64_t clock,
                      const struct ps_pull_section *sections, uint32_t n, struct err *err)
{
    struct reuse *r = reuse_of(s);
    struct ps_stats stats;
    int status = reserve(r, sections, n);

    begin(r);
    if (status)
        return err_set(err, status, "no memory for a pull");
    r->forward.inner->ops->stats(r->forward.inner, &stats);
    r->min_clock = stats.min_clock;
    compose(r, clock, sections, n);
    return asks(r) ? start_inner(r, clock, r->sections, r->n_sections, err) : 0;
}

/* The servers' rows as they are; what is kept stays as it is. */
static int pull_for_eval(struct param_store *s, uint64_t clock,
                         const struct ps_pull_section *sections, uint32_t n, struct err *err)
{
    struct reuse *r = reuse_of(s);

    begin(r);
    r->n_sections = n;
    return start_inner(r, clock, sections, n, err);
}

/* To where it was asked for, and kept. */
static void take(struct reuse *r, const struct chunk *chunk)
{
    const struct ps_pull_section *s = &r->sections[chunk->section], *whole = chunk->whole;
    struct stale_rows *kept = &r->kept[s->table];
    const float *row = s->dst;

    for (uint32_t i = 0; i < s->n_keys; i++, row += kept->dim) {
        const uint32_t n = chunk->numbers[i];
        uint32_t place = 0;
        bool is_kept;

        memcpy(whole->dst + (size_t)n * kept->dim, row, kept->dim * sizeof *row);
        is_kept = stale_rows_put(kept, s->keys[i],
                                 (struct stale_rows_origin){ r->min_clock, chunk->version },
                                 row, &place);
        if (!whole->versions)
            continue;
        whole->versions[n] = is_kept ? chunk->version : 0;
        whole->places[n] = place;
    }
}

static int pull_wait(struct param_store *s, struct err *err)
{
    struct reuse *r = reuse_of(s);
    int status = asks(r) ? r->forward.inner->ops->pull_wait(r->forward.inner, err) : 0;

    if (status) {
        reset(r);
        return status;
    }
    for (uint32_t i = 0; i < r->n_chunks; i++)
        take(r, &r->chunks[i]);
    return 0;
}

/* --- the rest --- */

static int push(struct param_store *s, uint64_t clock, uint32_t n_samples, bool tick,
                const struct ps_push_section *sections, uint32_t n, struct err *err)
{
    struct reuse *r = reuse_of(s);

    return r->forward.inner->ops->push(r->forward.inner, clock, n_samples, tick, sections, n,
                                       err);
}

static void stats(const struct param_store *s, struct ps_stats *ret)
{
    struct reuse *r = reuse_of(s);
    uint64_t age = atomic_load_explicit(&r->staleness_max, memory_order_relaxed);
    uint64_t kept_clock = atomic_load_explicit(&r->kept_clock, memory_order_relaxed);

    r->forward.inner->ops->stats(r->forward.inner, ret);
    if (kept_clock < ret->pulled_clock)
        ret->pulled_clock = kept_clock;
    if (age > ret->staleness_max)
        ret->staleness_max = age;
    ret->rows_asked = atomic_load_explicit(&r->rows_asked, memory_order_relaxed);
    ret->rows_cached = atomic_load_explicit(&r->rows_cached, memory_order_relaxed);
    ret->bytes_saved = atomic_load_explicit(&r->bytes_saved, memory_order_relaxed);
    ret->rows_pulled_again = ret->rows_asked - ret->rows_cached;
}

static void close_store(struct param_store *s)
{
    struct reuse *r = reuse_of(s);

    r->forward.inner->ops->close(r->forward.inner);
    for (uint32_t i = 0; i < PS_TABLES_MAX; i++)
        stale_rows_deinit(&r->kept[i]);
    free(r->keys);
    free(r->numbers);
    free(r->rows);
    free(r);
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
                                            .close = close_store,
                                            .has_places = true };

struct param_store *
param_store_stale_cache_new(struct param_store *inner,
                            const struct param_store_stale_cache_options *options)
{
    struct reuse *r = memory_alloc(sizeof *r);

    r->ops = ops;
    r->ops.overlaps = inner->ops->overlaps;
    r->forward = (struct param_store_proxy){ { &r->ops, inner->journal }, inner, keep_table };
    r->options = *options;
    r->budget.max = options->max_bytes;
    return &r->forward.store;
}
