/*
 * One way for both directions: deal the keys out, make room for everything that the request
 * needs (all that can fail), then encode, which cannot fail.
 */
#include "worker/client/encode.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "proto/codec_catalog.h"
#include "proto/keys.h"
#include "worker/client/deal.h"
#include "worker/client/residual.h"

struct table_info {
    uint32_t dim;
    uint64_t salt;
    struct residual residual;
};

struct encoder {
    uint32_t n_shards, n_tables;
    struct table_info *tables; /* owned, PS_TABLES_MAX */
    struct deal push, pull;    /* of the last request each */
    uint64_t *keys;            /* owned: one section's keys of one shard */
    uint64_t cap_keys;
    float *scratch; /* owned: 2 rows of dim_max floats */
    uint32_t dim_max;
};

struct encoder *encoder_new(uint32_t n_shards)
{
    struct encoder *e = mem_alloc(sizeof *e);

    assert(n_shards > 0);
    e->n_shards = n_shards;
    e->tables = mem_alloc(PS_TABLES_MAX * sizeof *e->tables);
    deal_init(&e->push, n_shards);
    deal_init(&e->pull, n_shards);
    return e;
}

void encoder_free(struct encoder *e)
{
    uint32_t i;

    if (!e)
        return;
    for (i = 0; i < e->n_tables; i++)
        residual_deinit(&e->tables[i].residual);
    deal_deinit(&e->push);
    deal_deinit(&e->pull);
    free(e->tables);
    free(e->keys);
    free(e->scratch);
    free(e);
}

int encoder_add_table(struct encoder *e, uint32_t table, const struct table_spec *spec)
{
    float *scratch;

    assert(table == e->n_tables && table < PS_TABLES_MAX);
    if (spec->dim > e->dim_max) {
        scratch = mem_try_realloc(e->scratch, 2 * (size_t)spec->dim * sizeof *scratch);
        if (!scratch)
            return -ENOMEM;
        e->scratch = scratch;
        e->dim_max = spec->dim;
    }
    e->tables[table].dim = spec->dim;
    e->tables[table].salt = spec_salt(spec);
    residual_init(&e->tables[table].residual, spec->dim);
    e->n_tables++;
    return 0;
}

static struct table_info *table_of(struct encoder *e, uint32_t table)
{
    assert(table < e->n_tables);
    return &e->tables[table];
}

static int reserve_keys(struct encoder *e, uint64_t n_keys)
{
    uint64_t *keys;

    if (n_keys <= e->cap_keys)
        return 0;
    keys = mem_try_realloc(e->keys, n_keys * sizeof *keys);
    if (!keys)
        return -ENOMEM;
    e->keys = keys;
    e->cap_keys = n_keys;
    return 0;
}

/* The shard's keys of one section, one behind the other in e->keys. */
static void gather_keys(struct encoder *e, const uint64_t *keys, struct deal_group g)
{
    uint32_t i;

    for (i = 0; i < g.n; i++)
        e->keys[i] = keys[g.numbers[i]];
}

/* Appends the group's keys to `out`, which has room, and notes them in the section. */
static void put_keys(struct encoder *e, const uint64_t *keys, struct deal_group g,
                     struct buf *out, struct section *ret)
{
    uint8_t *dst = out->bytes + out->end;

    gather_keys(e, keys, g);
    ret->n_keys = g.n;
    ret->keys = dst;
    ret->key_bytes = keys_encode(e->keys, g.n, dst);
    buf_commit(out, ret->key_bytes);
}

/* A section without its place: which codec, how many of a row's values, how many bytes a row
 * takes. */
struct row_format {
    const struct codec *codec;
    uint32_t dim, k;
    size_t row_bytes;
    struct residual *residual; /* NULL: nothing is kept */
};

static uint32_t topk_k(uint32_t dim, float fraction)
{
    float k = floorf((float)dim * fraction);

    if (!(k >= 1.0f))
        return 1;
    return k < (float)dim ? (uint32_t)k : dim;
}

static struct row_format push_format(struct encoder *e, const struct ps_push_section *s)
{
    struct table_info *t = table_of(e, s->table);
    struct row_format f = { .dim = t->dim };

    f.codec = codec_by_id(s->op == SECTION_ASSIGN ? CODEC_FP32 : s->codec);
    assert(f.codec);
    if (f.codec->id == CODEC_TOPK)
        f.k = topk_k(t->dim, s->topk_fraction);
    if (f.codec->feedback)
        f.residual = &t->residual;
    f.row_bytes = f.codec->row_bytes(f.dim, f.k);
    return f;
}

static bool all_finite(const float *x, uint32_t n)
{
    uint32_t i;

    for (i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

/* A row that holds NaN or infinity goes out as NaN all over: no codec then hides it from the
 * server, who refuses it, and what is owed to the row stays clean. */
static void encode_poison(struct encoder *e, const struct row_format *f, uint8_t *dst)
{
    uint32_t i;

    for (i = 0; i < f->dim; i++)
        e->scratch[i] = NAN;
    f->codec->encode(e->scratch, f->dim, f->k, dst);
}

static void put_row(struct encoder *e, const struct row_format *f, uint64_t key,
                    const float *values, uint8_t *dst)
{
    if (!f->residual)
        f->codec->encode(values, f->dim, f->k, dst);
    else if (!all_finite(values, f->dim))
        encode_poison(e, f, dst);
    else
        codec_encode_feedback(f->codec, values, residual_row(f->residual, key), f->dim, f->k,
                              e->scratch, dst);
}

static void put_values(struct encoder *e, const struct ps_push_section *s,
                       const struct row_format *f, struct deal_group g, struct buf *out,
                       struct section *ret)
{
    uint8_t *dst = out->bytes + out->end;
    uint32_t i, at;

    ret->values = dst;
    ret->value_bytes = g.n * f->row_bytes;
    for (i = 0; i < g.n; i++, dst += f->row_bytes) {
        at = g.numbers[i];
        put_row(e, f, s->keys[at], s->values + (size_t)at * f->dim, dst);
    }
    buf_commit(out, ret->value_bytes);
}

/* Room for one shard's keys and values of all sections. */
static int reserve_push(struct encoder *e, const struct ps_push_section *sections, uint32_t n,
                        uint32_t shard, struct buf *out)
{
    size_t n_bytes = 1; /* never none: an empty section's pointers are good too */
    uint32_t i;

    for (i = 0; i < n; i++)
        n_bytes += deal_group(&e->push, i, shard).n *
                   (KEYS_BYTES_MAX + push_format(e, &sections[i]).row_bytes);
    return buf_reserve(out, n_bytes) ? 0 : -ENOMEM;
}

/* Rows that sections[0 .. i] may add to what is owed by their last one's table. */
static uint32_t new_rows(const struct ps_push_section *sections, uint32_t i)
{
    uint64_t n = 0;
    uint32_t j;

    for (j = 0; j <= i; j++)
        if (sections[j].table == sections[i].table)
            n += sections[j].n_keys;
    return n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

/* All that can fail. */
static int prepare_push(struct encoder *e, const struct ps_push_section *sections, uint32_t n,
                        struct buf *bufs)
{
    uint64_t n_keys = 0;
    struct row_format f;
    uint32_t i;

    for (i = 0; i < n; i++)
        n_keys += sections[i].n_keys;
    if (deal_begin(&e->push, n, n_keys) || reserve_keys(e, n_keys))
        return -ENOMEM;
    for (i = 0; i < n; i++) {
        deal_add(&e->push, sections[i].keys, sections[i].n_keys,
                 table_of(e, sections[i].table)->salt);
        f = push_format(e, &sections[i]);
        if (f.residual && residual_reserve(f.residual, new_rows(sections, i)))
            return -ENOMEM;
    }
    for (i = 0; i < e->n_shards; i++)
        if (reserve_push(e, sections, n, i, &bufs[i]))
            return -ENOMEM;
    return 0;
}

static void forget_residuals(struct encoder *e, const struct ps_push_section *s)
{
    uint32_t i;

    for (i = 0; i < s->n_keys; i++)
        residual_remove(&table_of(e, s->table)->residual, s->keys[i]);
}

int encoder_push(struct encoder *e, const struct ps_push_section *sections, uint32_t n,
                 struct buf *bufs, struct push *pushes)
{
    struct row_format f;
    struct section *out;
    uint32_t i, shard;

    assert(n <= SECTIONS_MAX);
    if (prepare_push(e, sections, n, bufs))
        return -ENOMEM;
    for (i = 0; i < n; i++) {
        f = push_format(e, &sections[i]);
        if (sections[i].op == SECTION_ASSIGN)
            forget_residuals(e, &sections[i]);
        for (shard = 0; shard < e->n_shards; shard++) {
            out = &pushes[shard].sections[i];
            *out = (struct section){ .table_id = sections[i].table,
                                     .op = sections[i].op,
                                     .codec = f.codec->id,
                                     .k = f.k };
            put_keys(e, sections[i].keys, deal_group(&e->push, i, shard), &bufs[shard], out);
            put_values(e, &sections[i], &f, deal_group(&e->push, i, shard), &bufs[shard], out);
        }
    }
    for (shard = 0; shard < e->n_shards; shard++)
        pushes[shard].n_sections = n;
    return 0;
}

static int prepare_pull(struct encoder *e, const struct ps_pull_section *sections, uint32_t n,
                        struct buf *bufs)
{
    uint64_t n_keys = 0;
    size_t n_bytes;
    uint32_t i, shard;

    for (i = 0; i < n; i++)
        n_keys += sections[i].n_keys;
    if (deal_begin(&e->pull, n, n_keys) || reserve_keys(e, n_keys))
        return -ENOMEM;
    for (i = 0; i < n; i++)
        deal_add(&e->pull, sections[i].keys, sections[i].n_keys,
                 table_of(e, sections[i].table)->salt);
    for (shard = 0; shard < e->n_shards; shard++) {
        for (i = 0, n_bytes = 1; i < n; i++)
            n_bytes += (size_t)deal_group(&e->pull, i, shard).n * KEYS_BYTES_MAX;
        if (!buf_reserve(&bufs[shard], n_bytes))
            return -ENOMEM;
    }
    return 0;
}

int encoder_pull(struct encoder *e, const struct ps_pull_section *sections, uint32_t n,
                 struct buf *bufs, struct pull *pulls)
{
    struct section *out;
    uint32_t i, shard;

    assert(n <= SECTIONS_MAX);
    for (i = 0; i < n; i++)
        if (!codec_by_id(sections[i].codec) || codec_by_id(sections[i].codec)->feedback)
            return PS_ECODEC;
    if (prepare_pull(e, sections, n, bufs))
        return -ENOMEM;
    for (shard = 0; shard < e->n_shards; shard++) {
        for (i = 0; i < n; i++) {
            out = &pulls[shard].sections[i];
            *out = (struct section){ .table_id = sections[i].table,
                                     .codec = sections[i].codec,
                                     .state = sections[i].sink != NULL };
            put_keys(e, sections[i].keys, deal_group(&e->pull, i, shard), &bufs[shard], out);
        }
        pulls[shard].n_sections = n;
    }
    return 0;
}

static int take_section(struct encoder *e, const struct ps_pull_section *s, struct deal_group g,
                        const uint8_t *values, size_t value_bytes)
{
    const struct codec *codec = codec_by_id(s->codec);
    uint32_t dim = table_of(e, s->table)->dim, i;
    size_t row_bytes = codec->row_bytes(dim, 0);
    int status;

    if (value_bytes != g.n * row_bytes)
        return PS_ECOUNT;
    for (i = 0; i < g.n; i++) {
        status =
            codec->decode(values + i * row_bytes, dim, 0, s->dst + (size_t)g.numbers[i] * dim);
        if (status)
            return status;
    }
    return 0;
}

int encoder_pulled(struct encoder *e, const struct ps_pull_section *sections, uint32_t n,
                   uint32_t shard, const uint8_t *const *values, const size_t *value_bytes)
{
    uint32_t i;
    int status;

    assert(n == e->pull.n_sections);
    for (i = 0; i < n; i++) {
        const struct ps_state_sink *sink = sections[i].sink;
        struct deal_group g = deal_group(&e->pull, i, shard);

        status = sink ? sink->take(sink->arg, &sections[i], shard, g.numbers, g.n, values[i],
                                   value_bytes[i])
                      : take_section(e, &sections[i], g, values[i], value_bytes[i]);
        if (status)
            return status;
    }
    return 0;
}

void encoder_residuals(const struct encoder *e, uint64_t *ret_rows, uint64_t *ret_bytes)
{
    uint32_t i;

    *ret_rows = *ret_bytes = 0;
    for (i = 0; i < e->n_tables; i++) {
        *ret_rows += e->tables[i].residual.n_rows;
        *ret_bytes += residual_bytes(&e->tables[i].residual);
    }
}
