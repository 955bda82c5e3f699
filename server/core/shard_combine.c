#include "server/core/shard_combine.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "proto/keys.h"
#include "server/core/shard_again.h"
#include "server/core/shard_change.h"
#include "server/core/shard_grow.h"
#include "server/core/shard_look.h"
#include "server/core/shard_rows.h"
#include "server/core/shard_sweep.h"

/* One held section and how far the merge has come in it. */
struct contribution {
    const struct section *section; /* borrowed from the held push */
    struct shard_entry *entry;
    const struct codec *codec;
    size_t row_bytes;
    float weight;
    uint32_t order;       /* by (rank, seq, place in the push) */
    const uint64_t *keys; /* scratch */
    uint32_t at;          /* the next key */
};

/* All that one clock is made of; everything in it is scratch. */
struct clock_work {
    struct contribution *contributions; /* sorted by (table, order) */
    uint32_t n_contributions;
    struct shard_rows *batches; /* one for each table */
    uint32_t n_batches;
    uint64_t n_keys;  /* of all contributions */
    uint64_t *merged; /* room for n_keys: the batches' keys */
};

static uint64_t rank_samples(const struct shard_held *h, uint64_t clock)
{
    uint64_t most = 0;

    for (uint32_t rank = h->rank; h && h->clock == clock && h->rank == rank; h = h->next)
        if (h->n_samples > most)
            most = h->n_samples;
    return most;
}

/* N, and how many ranks take part. */
static uint64_t all_samples(const struct shard_held *first, uint64_t *ret_n_ranks)
{
    const struct shard_held *before = NULL;
    uint64_t total = 0;

    *ret_n_ranks = 0;
    for (const struct shard_held *h = first; h && h->clock == first->clock;
         before = h, h = h->next) {
        if (before && before->rank == h->rank)
            continue;
        total += rank_samples(h, first->clock);
        ++*ret_n_ranks;
    }
    return total;
}

static int by_table(const void *a, const void *b)
{
    const struct contribution *x = a, *y = b;

    if (x->section->table_id != y->section->table_id)
        return x->section->table_id < y->section->table_id ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

static void add_contribution(const struct shard *s, struct clock_work *work,
                             const struct section *section, float weight)
{
    struct contribution *c = &work->contributions[work->n_contributions];

    *c = (struct contribution){ .section = section,
                                .entry = s->tables[section->table_id],
                                .codec = codec_by_id((uint32_t)section->codec),
                                .weight = weight,
                                .order = work->n_contributions++ };
    c->row_bytes = c->codec->row_bytes(c->entry->table.spec.dim, section->k);
}

static int reserve(struct shard *s, struct clock_work *work, const struct shard_held *first)
{
    uint64_t n_sections = 0;

    for (const struct shard_held *h = first; h && h->clock == first->clock; h = h->next) {
        n_sections += h->n_sections;
        for (uint32_t i = 0; i < h->n_sections; i++)
            work->n_keys += h->sections[i].n_keys;
    }
    work->contributions =
        shard_scratch(&s->contributions, n_sections, sizeof *work->contributions);
    work->batches = shard_scratch(&s->batches, n_sections, sizeof *work->batches);
    work->merged = shard_scratch(&s->keys, 2 * work->n_keys, sizeof *work->merged);
    return work->contributions && work->batches && work->merged ? 0 : -ENOMEM;
}

static void gather(const struct shard *s, struct clock_work *work,
                   const struct shard_held *first)
{
    uint64_t *keys = work->merged + work->n_keys; /* the upper half of the scratch */
    uint64_t n_ranks, total = all_samples(first, &n_ranks), samples = 0;
    const struct shard_held *before = NULL;

    for (const struct shard_held *h = first; h && h->clock == first->clock;
         before = h, h = h->next) {
        float weight;

        if (!before || before->rank != h->rank)
            samples = rank_samples(h, first->clock);
        weight = (float)(total ? (double)samples / (double)total : 1.0 / (double)n_ranks);
        for (uint32_t i = 0; i < h->n_sections; i++)
            add_contribution(s, work, &h->sections[i], weight);
    }
    qsort(work->contributions, work->n_contributions, sizeof *work->contributions, by_table);
    for (uint32_t i = 0; i < work->n_contributions; i++) {
        struct contribution *c = &work->contributions[i];
        int status =
            keys_decode(c->section->keys, c->section->key_bytes, c->section->n_keys, keys);

        assert(!status); /* it was judged when it came */
        c->keys = keys;
        keys += c->section->n_keys;
    }
}

/* The least key that any of n contributions is at; false when all are at their end. */
static bool next_key(const struct contribution *c, uint32_t n, uint64_t *ret_key)
{
    bool any = false;

    *ret_key = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (c[i].at == c[i].section->n_keys || (any && c[i].keys[c[i].at] >= *ret_key))
            continue;
        *ret_key = c[i].keys[c[i].at];
        any = true;
    }
    return any;
}

static bool is_at(const struct contribution *c, uint64_t key)
{
    return c->at < c->section->n_keys && c->keys[c->at] == key;
}

/* Writes the union of the keys of n contributions, ascending; returns how many. */
static uint32_t merge(struct contribution *c, uint32_t n, uint64_t *dst)
{
    uint32_t n_merged = 0;
    uint64_t key;

    while (next_key(c, n, &key)) {
        for (uint32_t i = 0; i < n; i++)
            c[i].at += is_at(&c[i], key);
        dst[n_merged++] = key;
    }
    for (uint32_t i = 0; i < n; i++)
        c[i].at = 0;
    return n_merged;
}

/* How many contributions from c on are to the same table. */
static uint32_t run_of(const struct clock_work *work, uint32_t first)
{
    uint32_t n = 1;

    while (first + n < work->n_contributions &&
           work->contributions[first + n].entry == work->contributions[first].entry)
        n++;
    return n;
}

/* One batch of rows for each table. */
static void make_batches(struct clock_work *work)
{
    uint64_t *merged = work->merged;

    for (uint32_t i = 0, n; i < work->n_contributions; i += n) {
        struct shard_rows *b = &work->batches[work->n_batches++];

        n = run_of(work, i);
        *b = (struct shard_rows){ .entry = work->contributions[i].entry, .keys = merged };
        b->n_keys = merge(&work->contributions[i], n, merged);
        merged += b->n_keys;
    }
}

static void add_weighted(float *restrict sum, const float *restrict row, float weight,
                         uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i++)
        sum[i] += weight * row[i];
}

static void scale(float *restrict row, float weight, uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i++)
        row[i] *= weight;
}

/* Finite gradients may add up to more than a float holds: infinite, it would leave NaN in the row. */
static void bound(float *restrict sum, uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i++)
        sum[i] = sum[i] > FLT_MAX ? FLT_MAX : sum[i] < -FLT_MAX ? -FLT_MAX : sum[i];
}

/* s->gradient = sum of the weighted rows of `key`, in the order of c. */
static void sum_rows(struct shard *s, struct contribution *c, uint32_t n, uint64_t key,
                     uint32_t dim)
{
    bool first = true;

    for (uint32_t i = 0; i < n; i++) {
        float *row = first ? s->gradient : s->values;
        int status;

        if (!is_at(&c[i], key))
            continue;
        status = c[i].codec->decode(c[i].section->values + c[i].at++ * c[i].row_bytes, dim,
                                    c[i].section->k, row);
        assert(!status); /* as with the keys */
        if (first)
            scale(row, c[i].weight, dim);
        else
            add_weighted(s->gradient, row, c[i].weight, dim);
        first = false;
    }
    bound(s->gradient, dim);
}

/* The next n rows of the batch, at most SHARD_CHUNK_MAX. */
static void apply_chunk(struct shard *s, struct shard_rows *b, uint32_t n,
                        struct contribution *c, uint32_t n_c, const struct optim_step *step)
{
    const uint64_t *keys = b->keys + b->n_done;
    struct row *rows[SHARD_CHUNK_MAX];

    table_find_batch(b->entry->table.rows, keys, n, rows);
    shard_grow_rows(s, b->entry, SECTION_GRADIENT, s->version, keys, n, rows);
    for (uint32_t i = 0; i < n; i++) {
        sum_rows(s, c, n_c, keys[i], b->entry->table.spec.dim);
        shard_change_step(s, b->entry, rows[i], s->gradient, step, s->version);
    }
    b->n_done += n;
}

/* For all rows of the batch, before one of them has changed: what the push under way still makes here may take the
 * place of any row that does not wait for this clock, and that row must not be one that the clock has changed. As
 * it is told, all that goes with a clock went before it. */
static void change_first(struct shard *s, const struct shard_rows *b, uint32_t chunk)
{
    for (uint32_t i = 0, n; i < b->n_keys; i += n) {
        n = b->n_keys - i < chunk ? b->n_keys - i : chunk;
        shard_change_first(s, b->entry, b->keys + i, n);
    }
}

static void apply_batch(struct shard *s, struct shard_rows *b, struct contribution *c,
                        uint32_t n_c, uint64_t clock)
{
    const struct optim_step step = optim_step_at(b->entry->optim, &b->entry->table.spec, clock,
                                                 ++b->entry->table.n_pushes);
    uint32_t chunk = shard_chunk(b->entry);

    change_first(s, b, chunk);
    while (b->n_done < b->n_keys) {
        uint32_t n = b->n_keys - b->n_done;

        apply_chunk(s, b, n < chunk ? n : chunk, c, n_c, &step);
    }
}

static void apply(struct shard *s, struct clock_work *work, uint64_t run, uint64_t clock)
{
    struct contribution *c = work->contributions;

    for (uint32_t i = 0; i < work->n_batches; i++)
        shard_rows_begin(&work->batches[i]);
    for (uint32_t i = 0; i < work->n_batches; i++) {
        struct shard_rows *b = &work->batches[i];
        uint32_t n = run_of(work, (uint32_t)(c - work->contributions));

        shard_sweep_note_push(b->entry, run, clock, s->version);
        apply_batch(s, b, c, n, clock);
        shard_rows_end(b);
        c += n;
    }
}

static void trim(struct shard *s)
{
    struct buf *all[] = { &s->keys, &s->contributions, &s->batches };

    for (size_t i = 0; i < COUNT_OF(all); i++)
        shard_trim(all[i]);
}

int shard_combine_reserve(struct shard *s, const struct shard_held *first)
{
    struct clock_work work = { 0 };
    int status = reserve(s, &work, first);

    if (status)
        trim(s);
    return status;
}

void shard_combine(struct shard *s, const struct shard_held *first, uint64_t run)
{
    struct clock_work work = { 0 };

    if (first) {
        int status = reserve(s, &work, first);

        assert(!status); /* shard_combine_reserve() has been there */
        gather(s, &work, first);
        make_batches(&work);
    }
    if (work.n_batches) {
        s->version++;
        shard_look_note_clock(s, run, first->clock);
        s->counters.combined_clocks++;
        if (s->again)
            shard_again_begin(s);
        apply(s, &work, run, first->clock);
    }
    trim(s);
}
