/*
 * One way for both directions: deal the keys out, make room for everything that the request
 * needs (all that can fail), then encode, which cannot fail.
 */
#include "worker/client/encode.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "proto/codec_catalog.h"
#include "proto/keys.h"
#include "worker/client/deal.h"
#include "worker/client/row_format.h"
#include "worker/client/settle.h"

struct table_info {
    char name[SPEC_NAME_MAX];
    enum spec_kind kind;
    uint32_t dim;
    uint64_t salt;
    struct residual residual;
    struct settle settle; /* of the push at hand, if is_settling */
    bool is_settling;
};

/* One section's keys of one shard. */
struct key_room {
    uint64_t *keys; /* owned */
    uint64_t cap;
};

/* What pushes touch and what pulls touch are apart, as two threads do the two. */
struct encoder {
    uint32_t n_shards, n_tables;
    struct table_info *tables; /* owned, PS_TABLES_MAX; the residuals are the pushes' */
    struct deal push, pull;    /* of the last request each */
    struct key_room push_keys, pull_keys;
    struct ps_push_section
        *sections;               /* owned, SECTIONS_MAX: the push at hand, as it goes out */
    uint64_t residual_max_bytes; /* of a sparse table; 0: no bound */
    uint64_t n_settled;          /* rows */
    float *scratch;              /* owned: 2 rows of dim_max floats; the pushes' */
    uint32_t dim_max;
};

struct encoder *encoder_new(uint32_t n_shards)
{
    struct encoder *e = mem_alloc(sizeof *e);

    assert(n_shards > 0);
    e->n_shards = n_shards;
    e->tables = mem_alloc(PS_TABLES_MAX * sizeof *e->tables);
    e->sections = mem_alloc(SECTIONS_MAX * sizeof *e->sections);
    deal_init(&e->push, n_shards);
    deal_init(&e->pull, n_shards);
    return e;
}

void encoder_free(struct encoder *e)
{
    uint32_t i;

    if (!e)
        return;
    for (i = 0; i < e->n_tables; i++) {
        residual_deinit(&e->tables[i].residual);
        settle_deinit(&e->tables[i].settle);
    }
    deal_deinit(&e->push);
    deal_deinit(&e->pull);
    free(e->tables);
    free(e->push_keys.keys);
    free(e->pull_keys.keys);
    free(e->sections);
    free(e->scratch);
    free(e);
}

/* Blocks of dense tables are few, and each is pushed in every step. */
static void bound_table(const struct encoder *e, struct table_info *t)
{
    residual_bound(&t->residual, t->kind == SPEC_SPARSE ? e->residual_max_bytes : 0);
}

void encoder_bound_residuals(struct encoder *e, uint64_t max_bytes)
{
    uint32_t i;

    e->residual_max_bytes = max_bytes;
    for (i = 0; i < e->n_tables; i++)
        bound_table(e, &e->tables[i]);
}

int encoder_add_table(struct encoder *e, uint32_t table, const struct table_spec *spec)
{
    struct table_info *t = &e->tables[table];
    float *scratch;

    assert(table == e->n_tables && table < PS_TABLES_MAX);
    if (spec->dim > e->dim_max) {
        scratch = mem_try_realloc(e->scratch, 2 * (size_t)spec->dim * sizeof *scratch);
        if (!scratch)
            return -ENOMEM;
        e->scratch = scratch;
        e->dim_max = spec->dim;
    }
    *t = (struct table_info){ .kind = spec->kind, .dim = spec->dim, .salt = spec_salt(spec) };
    memcpy(t->name, spec->name, sizeof t->name);
    residual_init(&t->residual, spec->dim);
    bound_table(e, t);
    e->n_tables++;
    return 0;
}

static struct table_info *table_of(struct encoder *e, uint32_t table)
{
    assert(table < e->n_tables);
    return &e->tables[table];
}

static int reserve_keys(struct key_room *room, uint64_t n_keys)
{
    uint64_t *keys;

    if (n_keys <= room->cap)
        return 0;
    keys = mem_try_realloc(room->keys, n_keys * sizeof *keys);
    if (!keys)
        return -ENOMEM;
    room->keys = keys;
    room->cap = n_keys;
    return 0;
}

/* The shard's keys of one section, one behind the other. */
static void gather_keys(const struct key_room *room, const uint64_t *keys, struct deal_group g)
{
    uint32_t i;

    for (i = 0; i < g.n; i++)
        room->keys[i] = keys[g.numbers[i]];
}

/* Appends the group's keys to `out`, which has room, and notes them in the section. */
static void put_keys(const struct key_room *room, const uint64_t *keys, struct deal_group g,
                     struct buf *out, struct section *ret)
{
    uint8_t *dst = out->bytes + out->end;

    gather_keys(room, keys, g);
    ret->n_keys = g.n;
    ret->keys = dst;
    ret->key_bytes = keys_encode(room->keys, g.n, dst);
    buf_commit(out, ret->key_bytes);
}

static struct row_format push_format(struct encoder *e, const struct ps_push_section *s)
{
    struct table_info *t = table_of(e, s->table);
    struct row_format f;

    row_format_init(&f, s, t->dim, &t->residual);
    if (t->is_settling) /* what is owed is in the values */
        f.owed = NULL;
    return f;
}

/* Row `at` of the section. */
static void put_row(struct encoder *e, const struct ps_push_section *s,
                    const struct row_format *f, uint32_t at, uint8_t *dst)
{
    if (s->encoded)
        memcpy(dst, s->encoded + at * f->row_bytes, f->row_bytes);
    else
        row_format_put(f, s->keys[at], s->values + (size_t)at * f->dim, e->scratch, dst);
}

static void put_values(struct encoder *e, const struct ps_push_section *s,
                       const struct row_format *f, struct deal_group g, struct buf *out,
                       struct section *ret)
{
    uint8_t *dst = out->bytes + out->end;
    uint32_t i;

    ret->values = dst;
    ret->value_bytes = g.n * f->row_bytes;
    for (i = 0; i < g.n; i++, dst += f->row_bytes)
        put_row(e, s, f, g.numbers[i], dst);
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

/* The section as it goes out: as it is, or in full where residuals have no room left. */
static int settle_section(struct encoder *e, struct ps_push_section *s)
{
    struct table_info *t = table_of(e, s->table);
    const struct codec *codec = codec_by_id(s->codec);

    assert(!s->encoded || s->op == SECTION_GRADIENT);
    t->is_settling = s->op == SECTION_GRADIENT && !s->encoded && codec && codec->feedback &&
                     settle_is_due(&t->residual, s->keys, s->n_keys);
    if (!t->is_settling)
        return 0;
    if (settle_prepare(&t->settle, &t->residual, s))
        return -ENOMEM;
    s->codec = CODEC_FP32;
    s->n_keys = t->settle.n_keys;
    s->keys = t->settle.keys;
    s->values = t->settle.values;
    return 0;
}

static int settle_sections(struct encoder *e, const struct ps_push_section *sections,
                           uint32_t n)
{
    uint32_t i;

    for (i = 0; i < n; i++) {
        e->sections[i] = sections[i];
        if (settle_section(e, &e->sections[i]))
            return -ENOMEM;
    }
    return 0;
}

static void note_settled(struct encoder *e, uint32_t n)
{
    uint32_t i;

    for (i = 0; i < n; i++) {
        struct table_info *t = table_of(e, e->sections[i].table);

        if (!t->is_settling)
            continue;
        settle_done(&t->settle, &t->residual);
        e->n_settled += t->settle.n_keys;
        t->is_settling = false;
    }
}

/* All that can fail. */
static int prepare_push(struct encoder *e, const struct ps_push_section *given, uint32_t n,
                        struct buf *bufs)
{
    const struct ps_push_section *sections = e->sections;
    uint64_t n_keys = 0;
    struct row_format f;
    uint32_t i;

    if (settle_sections(e, given, n))
        return -ENOMEM;
    for (i = 0; i < n; i++)
        n_keys += sections[i].n_keys;
    if (deal_begin(&e->push, n, n_keys) || reserve_keys(&e->push_keys, n_keys))
        return -ENOMEM;
    for (i = 0; i < n; i++) {
        deal_add(&e->push, sections[i].keys, sections[i].n_keys,
                 table_of(e, sections[i].table)->salt);
        f = push_format(e, &sections[i]);
        if (f.residual &&
            residual_reserve(f.residual, row_format_new_rows(f.residual, sections[i].n_keys)))
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

int encoder_push(struct encoder *e, const struct ps_push_section *given, uint32_t n,
                 struct buf *bufs, struct push *pushes)
{
    const struct ps_push_section *sections = e->sections;
    struct row_format f;
    struct section *out;
    uint32_t i, shard;

    assert(n <= SECTIONS_MAX);
    if (prepare_push(e, given, n, bufs))
        return -ENOMEM;
    for (i = 0; i < n; i++) {
        f = push_format(e, &sections[i]);
        if (sections[i].op == SECTION_ASSIGN)
            forget_residuals(e, &sections[i]);
        row_format_touch(&f, sections[i].keys, sections[i].n_keys);
        for (shard = 0; shard < e->n_shards; shard++) {
            out = &pushes[shard].sections[i];
            *out = (struct section){ .table_id = sections[i].table,
                                     .op = sections[i].op,
                                     .codec = f.codec->id,
                                     .k = f.k };
            put_keys(&e->push_keys, sections[i].keys, deal_group(&e->push, i, shard),
                     &bufs[shard], out);
            put_values(e, &sections[i], &f, deal_group(&e->push, i, shard), &bufs[shard], out);
        }
    }
    for (shard = 0; shard < e->n_shards; shard++)
        pushes[shard].n_sections = n;
    note_settled(e, n);
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
    if (deal_begin(&e->pull, n, n_keys) || reserve_keys(&e->pull_keys, n_keys))
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
            put_keys(&e->pull_keys, sections[i].keys, deal_group(&e->pull, i, shard),
                     &bufs[shard], out);
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

void encoder_residuals(const struct encoder *e, struct encoder_residuals *ret)
{
    uint32_t i;

    *ret = (struct encoder_residuals){ .n_settled = e->n_settled };
    for (i = 0; i < e->n_tables; i++) {
        ret->n_rows += e->tables[i].residual.n_rows;
        ret->n_bytes += residual_bytes(&e->tables[i].residual);
    }
}

uint32_t encoder_n_tables(const struct encoder *e)
{
    return e->n_tables;
}

struct residual *encoder_residual(struct encoder *e, uint32_t table)
{
    return &table_of(e, table)->residual;
}

const char *encoder_table_name(const struct encoder *e, uint32_t table)
{
    assert(table < e->n_tables);
    return e->tables[table].name;
}
