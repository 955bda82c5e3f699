/*
 * One way for both directions: partition the keys by shard, reserve memory for everything that the
 * request needs (all that can fail), then encode, which cannot fail.
 */
#include "worker/client/push_encoder.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "proto/codec_catalog.h"
#include "proto/key_codec.h"
#include "proto/placement.h"
#include "worker/client/error_feedback.h"
#include "worker/client/error_feedback_flush.h"

/*
 * The keys of one push or pull, grouped by the shard that owns them: for each section the indices
 * of its keys, in their order.
 *
 *     order    [all keys]                    section 0: shard 0's, shard 1's ...; section 1 ...
 *     starts   [n_sections][n_shards + 1]    where each group begins in `order`
 */
struct partition {
    uint32_t n_shards, n_sections;
    uint32_t *order;  /* owned */
    uint64_t *starts; /* owned */
    uint64_t n_keys, cap_order, cap_starts;
};

/* The keys of one section that one shard owns: indices[0 .. n). */
struct key_group {
    const uint32_t *indices;
    uint32_t n;
};

/* How the rows of a section are written: its codec, and where the codec's error goes. */
struct row_format {
    const struct codec *codec;
    uint32_t dim, k;
    size_t row_bytes;
    struct error_feedback *residual; /* keeps the error; NULL: it is dropped */
    struct error_feedback *leftover; /* residuals of an earlier codec; NULL: there are none */
};

struct table_info {
    char name[TABLE_SPEC_NAME_MAX];
    enum table_spec_kind kind;
    uint32_t dim;
    uint64_t salt;
    struct error_feedback residual;
    struct error_feedback_flush flush; /* of the current push, if is_flushing */
    bool is_flushing;
};

/* The keys of one section for one shard, one behind the other. */
struct key_buffer {
    uint64_t *keys; /* owned */
    uint64_t cap;
};

/* Pushes and pulls use different fields, as two threads use them. */
struct push_encoder {
    uint32_t n_shards, n_tables;
    struct table_info *tables;   /* owned, PS_TABLES_MAX; the residuals are the pushes' */
    struct partition push, pull; /* of the last request each */
    struct key_buffer push_keys, pull_keys;
    struct ps_push_section
        *sections;               /* owned, SECTIONS_MAX: the current push, as it goes out */
    uint64_t residual_max_bytes; /* of a sparse table; 0: no bound */
    uint64_t n_flushed;          /* rows */
    float *scratch;              /* owned: 2 rows of dim_max floats; the pushes' */
    uint32_t dim_max;
};

/* ---- keys by shard ---- */

static void init_partition(struct partition *p, uint32_t n_shards)
{
    *p = (struct partition){ .n_shards = n_shards };
}

static void deinit_partition(struct partition *p)
{
    free(p->order);
    free(p->starts);
    *p = (struct partition){ .n_shards = p->n_shards };
}

/* Drops the last request, and reserves memory for n_sections with n_keys keys in all. -ENOMEM: the
 * partition is empty. */
static int start_partition(struct partition *p, uint32_t n_sections, uint64_t n_keys)
{
    uint64_t n_starts = (uint64_t)n_sections * (p->n_shards + 1);
    void *grown;

    p->n_sections = 0;
    p->n_keys = 0;
    if (n_keys > p->cap_order) {
        grown = memory_try_realloc(p->order, n_keys * sizeof *p->order);
        if (!grown)
            return -ENOMEM;
        p->order = grown;
        p->cap_order = n_keys;
    }
    if (n_starts > p->cap_starts) {
        grown = memory_try_realloc(p->starts, n_starts * sizeof *p->starts);
        if (!grown)
            return -ENOMEM;
        p->starts = grown;
        p->cap_starts = n_starts;
    }
    return 0;
}

/* starts[s + 1] counts shard s's keys; then sums turn counts into starts. */
static void count_keys(const struct partition *p, uint64_t *starts, const uint64_t *keys,
                       uint32_t n_keys, uint64_t salt)
{
    uint32_t i;

    memset(starts, 0, (p->n_shards + 1) * sizeof *starts);
    for (i = 0; i < n_keys; i++)
        starts[placement_shard(keys[i], salt, p->n_shards) + 1]++;
    starts[0] = p->n_keys;
    for (i = 0; i < p->n_shards; i++)
        starts[i + 1] += starts[i];
}

/* Of the next section. */
static void partition_section(struct partition *p, const uint64_t *keys, uint32_t n_keys,
                              uint64_t salt)
{
    uint64_t *starts = p->starts + (size_t)p->n_sections * (p->n_shards + 1);
    uint32_t i;

    assert((uint64_t)(p->n_sections + 1) * (p->n_shards + 1) <= p->cap_starts);
    assert(p->n_keys + n_keys <= p->cap_order);
    count_keys(p, starts, keys, n_keys, salt);
    for (i = 0; i < n_keys; i++)
        p->order[starts[placement_shard(keys[i], salt, p->n_shards)]++] = i;
    /* Each start has moved to the next shard's: move them back. */
    memmove(starts + 1, starts, p->n_shards * sizeof *starts);
    starts[0] = p->n_keys;
    p->n_keys += n_keys;
    p->n_sections++;
}

static struct key_group group_of(const struct partition *p, uint32_t section, uint32_t shard)
{
    const uint64_t *starts = p->starts + (size_t)section * (p->n_shards + 1) + shard;

    assert(section < p->n_sections && shard < p->n_shards);
    return (struct key_group){ p->order + starts[0], (uint32_t)(starts[1] - starts[0]) };
}

/* ---- rows ---- */

uint32_t push_encoder_k(const struct codec *codec, uint32_t dim, float fraction)
{
    float k = floorf((float)dim * fraction);

    if (codec->id != CODEC_TOPK)
        return 0;
    if (!(k >= 1.0f))
        return 1;
    return k < (float)dim ? (uint32_t)k : dim;
}

uint32_t push_encoder_n_new_rows(const struct error_feedback *r, uint32_t n_keys)
{
    uint32_t space = r->rows_max > r->n_rows ? r->rows_max - r->n_rows : 0;

    return n_keys < space ? n_keys : space;
}

/* residual: of the section's table, borrowed; a section that is encoded already does not use it. */
static void init_row_format(struct row_format *f, const struct ps_push_section *section,
                            uint32_t dim, struct error_feedback *residual)
{
    *f = (struct row_format){ .dim = dim };
    f->codec = codec_by_id(section->op == SECTION_ASSIGN ? CODEC_FP32 : section->codec);
    assert(f->codec);
    f->k = push_encoder_k(f->codec, dim, section->topk_fraction);
    f->row_bytes = f->codec->row_bytes(dim, f->k);
    if (section->encoded)
        return;
    if (f->codec->feedback)
        f->residual = residual;
    else if (section->op == SECTION_GRADIENT && residual->n_rows)
        f->leftover = residual;
}

/* Makes the residuals of the keys the newest, in the order of the keys and not of the shards.
 * Memory for them has been reserved. */
static void touch_residuals(const struct row_format *f, const uint64_t *keys, uint32_t n_keys)
{
    uint32_t i;

    for (i = 0; i < n_keys && f->residual; i++)
        (void)error_feedback_row(f->residual, keys[i]);
}

static bool all_finite(const float *x, uint32_t n)
{
    uint32_t i;

    for (i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

/* A row that holds NaN or infinity is sent as NaN in every float: no codec then hides it from the
 * server, which refuses the row, and the residual stays finite. */
static void encode_nan(const struct row_format *f, float *scratch, uint8_t *dst)
{
    uint32_t i;

    for (i = 0; i < f->dim; i++)
        scratch[i] = NAN;
    f->codec->encode(scratch, f->dim, f->k, dst);
}

/* Without feedback, but an earlier codec may have left a residual: this push brings it. */
static void encode_without_feedback(const struct row_format *f, uint64_t key,
                                    const float *values, float *scratch, uint8_t *dst)
{
    const float *leftover = f->leftover ? error_feedback_find(f->leftover, key) : NULL;
    uint32_t i;

    if (!leftover) {
        f->codec->encode(values, f->dim, f->k, dst);
        return;
    }
    for (i = 0; i < f->dim; i++)
        scratch[i] = values[i] + leftover[i];
    f->codec->encode(scratch, f->dim, f->k, dst);
    error_feedback_remove(f->leftover, key);
}

/* Writes row_bytes to dst. scratch: 2 * dim floats. */
static void encode_row(const struct row_format *f, uint64_t key, const float *values,
                       float *scratch, uint8_t *dst)
{
    if (!f->residual)
        encode_without_feedback(f, key, values, scratch, dst);
    else if (!all_finite(values, f->dim))
        encode_nan(f, scratch, dst);
    else
        codec_encode_feedback(f->codec, values, error_feedback_find(f->residual, key), f->dim,
                              f->k, scratch, dst);
}

/* ---- the encoder and its tables ---- */

struct push_encoder *push_encoder_new(uint32_t n_shards)
{
    struct push_encoder *e = memory_alloc(sizeof *e);

    assert(n_shards > 0);
    e->n_shards = n_shards;
    e->tables = memory_alloc(PS_TABLES_MAX * sizeof *e->tables);
    e->sections = memory_alloc(SECTIONS_MAX * sizeof *e->sections);
    init_partition(&e->push, n_shards);
    init_partition(&e->pull, n_shards);
    return e;
}

void push_encoder_free(struct push_encoder *e)
{
    uint32_t i;

    if (!e)
        return;
    for (i = 0; i < e->n_tables; i++) {
        error_feedback_deinit(&e->tables[i].residual);
        error_feedback_flush_deinit(&e->tables[i].flush);
    }
    deinit_partition(&e->push);
    deinit_partition(&e->pull);
    free(e->tables);
    free(e->push_keys.keys);
    free(e->pull_keys.keys);
    free(e->sections);
    free(e->scratch);
    free(e);
}

/* Blocks of dense tables are few, and each is pushed in every step. */
static void bound_table(const struct push_encoder *e, struct table_info *t)
{
    error_feedback_bound(&t->residual,
                         t->kind == TABLE_SPEC_SPARSE ? e->residual_max_bytes : 0);
}

void push_encoder_bound_residuals(struct push_encoder *e, uint64_t max_bytes)
{
    uint32_t i;

    e->residual_max_bytes = max_bytes;
    for (i = 0; i < e->n_tables; i++)
        bound_table(e, &e->tables[i]);
}

int push_encoder_add_table(struct push_encoder *e, uint32_t table,
                           const struct table_spec *spec)
{
    struct table_info *t = &e->tables[table];
    float *scratch;

    assert(table == e->n_tables && table < PS_TABLES_MAX);
    if (spec->dim > e->dim_max) {
        scratch = memory_try_realloc(e->scratch, 2 * (size_t)spec->dim * sizeof *scratch);
        if (!scratch)
            return -ENOMEM;
        e->scratch = scratch;
        e->dim_max = spec->dim;
    }
    *t = (struct table_info){ .kind = spec->kind,
                              .dim = spec->dim,
                              .salt = table_spec_salt(spec) };
    memcpy(t->name, spec->name, sizeof t->name);
    error_feedback_init(&t->residual, spec->dim);
    bound_table(e, t);
    e->n_tables++;
    return 0;
}

static struct table_info *table_of(struct push_encoder *e, uint32_t table)
{
    assert(table < e->n_tables);
    return &e->tables[table];
}

static int reserve_keys(struct key_buffer *buffer, uint64_t n_keys)
{
    uint64_t *keys;

    if (n_keys <= buffer->cap)
        return 0;
    keys = memory_try_realloc(buffer->keys, n_keys * sizeof *keys);
    if (!keys)
        return -ENOMEM;
    buffer->keys = keys;
    buffer->cap = n_keys;
    return 0;
}

/* The shard's keys of one section, one behind the other. */
static void gather_keys(const struct key_buffer *buffer, const uint64_t *keys,
                        struct key_group g)
{
    uint32_t i;

    for (i = 0; i < g.n; i++)
        buffer->keys[i] = keys[g.indices[i]];
}

/* Appends the group's keys to `out`, which has space for them, and notes them in the section. */
static void write_keys(const struct key_buffer *buffer, const uint64_t *keys,
                       struct key_group g, struct bytes *out, struct section *ret)
{
    uint8_t *dst = out->bytes + out->end;

    gather_keys(buffer, keys, g);
    ret->n_keys = g.n;
    ret->keys = dst;
    ret->key_bytes = key_codec_encode(buffer->keys, g.n, dst);
    bytes_commit(out, ret->key_bytes);
}

static struct row_format push_format(struct push_encoder *e, const struct ps_push_section *s)
{
    struct table_info *t = table_of(e, s->table);
    struct row_format f;

    init_row_format(&f, s, t->dim, &t->residual);
    if (t->is_flushing) /* its values contain the residuals */
        f.leftover = NULL;
    return f;
}

/* Row `at` of the section. */
static void write_row(struct push_encoder *e, const struct ps_push_section *s,
                      const struct row_format *f, uint32_t at, uint8_t *dst)
{
    if (s->encoded)
        memcpy(dst, s->encoded + at * f->row_bytes, f->row_bytes);
    else
        encode_row(f, s->keys[at], s->values + (size_t)at * f->dim, e->scratch, dst);
}

static void write_values(struct push_encoder *e, const struct ps_push_section *s,
                         const struct row_format *f, struct key_group g, struct bytes *out,
                         struct section *ret)
{
    uint8_t *dst = out->bytes + out->end;
    uint32_t i;

    ret->values = dst;
    ret->value_bytes = g.n * f->row_bytes;
    for (i = 0; i < g.n; i++, dst += f->row_bytes)
        write_row(e, s, f, g.indices[i], dst);
    bytes_commit(out, ret->value_bytes);
}

/* Memory for one shard's keys and values of all sections. */
static int reserve_push(struct push_encoder *e, const struct ps_push_section *sections,
                        uint32_t n, uint32_t shard, struct request *request)
{
    size_t n_bytes = 1; /* at least one: the pointers of an empty section are valid, too */
    uint32_t i;

    assert(n <= request->cap_sections);
    request->n_sections = n;
    for (i = 0; i < n; i++)
        n_bytes += group_of(&e->push, i, shard).n *
                   (KEY_CODEC_BYTES_MAX + push_format(e, &sections[i]).row_bytes);
    return bytes_reserve(&request->bytes, n_bytes) ? 0 : -ENOMEM;
}

/* Leaves the section as it is; or in full, with the oldest residuals, if these fill their memory. */
static int flush_section(struct push_encoder *e, struct ps_push_section *s)
{
    struct table_info *t = table_of(e, s->table);
    const struct codec *codec = codec_by_id(s->codec);

    assert(!s->encoded || s->op == SECTION_GRADIENT);
    t->is_flushing = s->op == SECTION_GRADIENT && !s->encoded && codec && codec->feedback &&
                     error_feedback_flush_is_due(&t->residual, s->keys, s->n_keys);
    if (!t->is_flushing)
        return 0;
    if (error_feedback_flush_prepare(&t->flush, &t->residual, s))
        return -ENOMEM;
    s->codec = CODEC_FP32;
    s->n_keys = t->flush.n_keys;
    s->keys = t->flush.keys;
    s->values = t->flush.values;
    return 0;
}

static int flush_sections(struct push_encoder *e, const struct ps_push_section *sections,
                          uint32_t n)
{
    uint32_t i;

    for (i = 0; i < n; i++) {
        e->sections[i] = sections[i];
        if (flush_section(e, &e->sections[i]))
            return -ENOMEM;
    }
    return 0;
}

static void finish_flush(struct push_encoder *e, uint32_t n)
{
    uint32_t i;

    for (i = 0; i < n; i++) {
        struct table_info *t = table_of(e, e->sections[i].table);

        if (!t->is_flushing)
            continue;
        error_feedback_flush_done(&t->flush, &t->residual);
        e->n_flushed += t->flush.n_keys;
        t->is_flushing = false;
    }
}

/* Everything that can fail. */
static int prepare_push(struct push_encoder *e, const struct ps_push_section *given, uint32_t n,
                        struct request *const *requests)
{
    const struct ps_push_section *sections = e->sections;
    uint64_t n_keys = 0;
    struct row_format f;
    uint32_t i;

    if (flush_sections(e, given, n))
        return -ENOMEM;
    for (i = 0; i < n; i++)
        n_keys += sections[i].n_keys;
    if (start_partition(&e->push, n, n_keys) || reserve_keys(&e->push_keys, n_keys))
        return -ENOMEM;
    for (i = 0; i < n; i++) {
        partition_section(&e->push, sections[i].keys, sections[i].n_keys,
                          table_of(e, sections[i].table)->salt);
        f = push_format(e, &sections[i]);
        if (f.residual &&
            error_feedback_reserve(f.residual,
                                   push_encoder_n_new_rows(f.residual, sections[i].n_keys)))
            return -ENOMEM;
    }
    for (i = 0; i < e->n_shards; i++)
        if (reserve_push(e, sections, n, i, requests[i]))
            return -ENOMEM;
    return 0;
}

static void remove_residuals(struct push_encoder *e, const struct ps_push_section *s)
{
    uint32_t i;

    for (i = 0; i < s->n_keys; i++)
        error_feedback_remove(&table_of(e, s->table)->residual, s->keys[i]);
}

/* One section of one shard's push; `request` has space for it. */
static void write_push_section(struct push_encoder *e, uint32_t i, uint32_t shard,
                               const struct row_format *f, struct request *request)
{
    const struct ps_push_section *given = &e->sections[i];
    struct key_group g = group_of(&e->push, i, shard);
    struct section *out = &request->sections[i];

    *out = (struct section){
        .table_id = given->table, .op = given->op, .codec = f->codec->id, .k = f->k
    };
    write_keys(&e->push_keys, given->keys, g, &request->bytes, out);
    write_values(e, given, f, g, &request->bytes, out);
}

int push_encoder_push(struct push_encoder *e, const struct ps_push_section *given, uint32_t n,
                      struct request *const *requests)
{
    const struct ps_push_section *sections = e->sections;
    struct row_format f;
    uint32_t i, shard;

    assert(n <= SECTIONS_MAX);
    if (prepare_push(e, given, n, requests))
        return -ENOMEM;
    for (i = 0; i < n; i++) {
        f = push_format(e, &sections[i]);
        if (sections[i].op == SECTION_ASSIGN)
            remove_residuals(e, &sections[i]);
        touch_residuals(&f, sections[i].keys, sections[i].n_keys);
        for (shard = 0; shard < e->n_shards; shard++)
            write_push_section(e, i, shard, &f, requests[shard]);
    }
    finish_flush(e, n);
    return 0;
}

static int prepare_pull(struct push_encoder *e, const struct ps_pull_section *sections,
                        uint32_t n, struct request *const *requests)
{
    uint64_t n_keys = 0;
    size_t n_bytes;
    uint32_t i, shard;

    for (i = 0; i < n; i++)
        n_keys += sections[i].n_keys;
    if (start_partition(&e->pull, n, n_keys) || reserve_keys(&e->pull_keys, n_keys))
        return -ENOMEM;
    for (i = 0; i < n; i++)
        partition_section(&e->pull, sections[i].keys, sections[i].n_keys,
                          table_of(e, sections[i].table)->salt);
    for (shard = 0; shard < e->n_shards; shard++) {
        for (i = 0, n_bytes = 1; i < n; i++)
            n_bytes += (size_t)group_of(&e->pull, i, shard).n * KEY_CODEC_BYTES_MAX;
        assert(n <= requests[shard]->cap_sections);
        requests[shard]->n_sections = n;
        if (!bytes_reserve(&requests[shard]->bytes, n_bytes))
            return -ENOMEM;
    }
    return 0;
}

int push_encoder_pull(struct push_encoder *e, const struct ps_pull_section *sections,
                      uint32_t n, struct request *const *requests)
{
    struct section *out;
    uint32_t i, shard;

    assert(n <= SECTIONS_MAX);
    for (i = 0; i < n; i++)
        if (!codec_by_id(sections[i].codec) || codec_by_id(sections[i].codec)->feedback)
            return PS_ECODEC;
    if (prepare_pull(e, sections, n, requests))
        return -ENOMEM;
    for (shard = 0; shard < e->n_shards; shard++) {
        for (i = 0; i < n; i++) {
            out = &requests[shard]->sections[i];
            *out = (struct section){ .table_id = sections[i].table,
                                     .codec = sections[i].codec,
                                     .state = sections[i].sink != NULL };
            write_keys(&e->pull_keys, sections[i].keys, group_of(&e->pull, i, shard),
                       &requests[shard]->bytes, out);
        }
    }
    return 0;
}

static int decode_section(struct push_encoder *e, const struct ps_pull_section *s,
                          struct key_group g, const uint8_t *values, size_t value_bytes)
{
    const struct codec *codec = codec_by_id(s->codec);
    uint32_t dim = table_of(e, s->table)->dim, i;
    size_t row_bytes = codec->row_bytes(dim, 0);
    int status;

    if (value_bytes != g.n * row_bytes)
        return PS_ECOUNT;
    for (i = 0; i < g.n; i++) {
        status =
            codec->decode(values + i * row_bytes, dim, 0, s->dst + (size_t)g.indices[i] * dim);
        if (status)
            return status;
    }
    return 0;
}

int push_encoder_pulled(struct push_encoder *e, const struct ps_pull_section *sections,
                        uint32_t n, uint32_t shard, const uint8_t *const *values,
                        const size_t *value_bytes)
{
    uint32_t i;
    int status;

    assert(n == e->pull.n_sections);
    for (i = 0; i < n; i++) {
        const struct ps_state_sink *sink = sections[i].sink;
        struct key_group g = group_of(&e->pull, i, shard);

        status = sink ? sink->take(sink->arg, &sections[i], shard, g.indices, g.n, values[i],
                                   value_bytes[i])
                      : decode_section(e, &sections[i], g, values[i], value_bytes[i]);
        if (status)
            return status;
    }
    return 0;
}

void push_encoder_residuals(const struct push_encoder *e, struct push_encoder_residuals *ret)
{
    uint32_t i;

    *ret = (struct push_encoder_residuals){ .n_flushed = e->n_flushed };
    for (i = 0; i < e->n_tables; i++) {
        ret->n_rows += e->tables[i].residual.n_rows;
        ret->n_bytes += error_feedback_bytes(&e->tables[i].residual);
    }
}

uint32_t push_encoder_n_tables(const struct push_encoder *e)
{
    return e->n_tables;
}

struct error_feedback *push_encoder_residual(struct push_encoder *e, uint32_t table)
{
    return &table_of(e, table)->residual;
}

const char *push_encoder_table_name(const struct push_encoder *e, uint32_t table)
{
    assert(table < e->n_tables);
    return e->tables[table].name;
}
