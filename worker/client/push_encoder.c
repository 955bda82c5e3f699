/*
 * One way for both directions: partition the keys by shard (partition.h), reserve memory for everything
 * that the request needs (all that can fail), then encode, which cannot fail.
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
#include "worker/client/error_feedback.h"
#include "worker/client/error_feedback_flush.h"
#include "worker/client/partition.h"
#include "worker/client/pulled_rows.h"
#include "worker/client/scan.h"

struct table_info {
    char name[TABLE_SPEC_NAME_MAX];
    enum table_spec_kind kind;
    uint32_t dim, n_state; /* floats of a row */
    uint64_t salt;
    struct error_feedback residual;
    struct error_feedback_flush flush; /* of the current push, if its section is flushed */
};

/* A section of the current push: how its rows are written, and where the codec's error goes. */
struct push_section {
    struct ps_push_section given; /* or in full, with the oldest residuals, if it is flushed */
    struct table_info *table;
    const struct codec *codec;
    uint32_t dim, k;
    size_t row_bytes;
    struct error_feedback *residual; /* keeps the error; NULL: it is dropped */
    struct error_feedback *leftover; /* residuals of an earlier codec; NULL: there are none */
    bool is_flushed;
};

/* Pulls, on any threads, read the tables' dim and salt alone. */
struct push_encoder {
    uint32_t n_shards;
    _Atomic uint32_t n_tables; /* one may come while pulls of the others are read */
    const struct codec *codecs[CODEC_ID_END]; /* their builds for this processor */
    struct table_info *tables;     /* owned, PS_TABLES_MAX; the residuals are the pushes' */
    struct partition push;         /* of the last one */
    struct push_section *sections; /* owned, SECTIONS_MAX: of the current push */
    uint64_t residual_max_bytes;   /* of a sparse table; 0: no bound */
    uint64_t n_flushed;            /* rows */
    bool keeps_residuals;
    struct task_threads threads; /* write rows, a shard at a time */
    float *scratch;              /* owned: 2 rows of dim_max floats; the pushes' */
    uint32_t dim_max;
};

/* ---- keys ---- */

/* Appends the group's keys to `out`, which has space for them, and notes them in the section. */
static void write_keys(struct partition_group g, struct bytes *out, struct section *ret)
{
    uint8_t *dst = out->bytes + out->end;

    ret->n_keys = g.n;
    ret->keys = dst;
    ret->key_bytes = key_codec_encode(g.keys, g.n, dst);
    bytes_commit(out, ret->key_bytes);
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
static void encode_nan(const struct push_section *s, float *scratch, uint8_t *dst)
{
    uint32_t i;

    for (i = 0; i < s->dim; i++)
        scratch[i] = NAN;
    s->codec->encode(scratch, s->dim, s->k, dst);
}

/* Without feedback, but an earlier codec may have left a residual: this push brings it. */
static void encode_with_leftover(const struct push_section *s, uint64_t key,
                                 const float *values, float *scratch, uint8_t *dst)
{
    const float *leftover = error_feedback_find(s->leftover, key);
    uint32_t i;

    if (!leftover) {
        s->codec->encode(values, s->dim, s->k, dst);
        return;
    }
    for (i = 0; i < s->dim; i++)
        scratch[i] = values[i] + leftover[i];
    s->codec->encode(scratch, s->dim, s->k, dst);
    error_feedback_remove(s->leftover, key);
}

/* Weights, then the optimizer's state. */
static void write_state(const struct push_section *s, uint32_t at, const float *values,
                        uint8_t *dst)
{
    const size_t n_state = s->table->n_state, weights_bytes = s->dim * sizeof(float);

    memcpy(dst, values, weights_bytes);
    if (n_state)
        memcpy(dst + weights_bytes, s->given.state + at * n_state, n_state * sizeof(float));
}

/* The weights of a gradient, behind it. */
static void write_then(const struct push_section *s, uint32_t at, uint8_t *row)
{
    const size_t n_bytes = s->dim * sizeof(float);

    if (s->given.op == SECTION_GRADIENT_AT)
        memcpy(row + s->row_bytes - n_bytes, s->given.then + (size_t)at * s->dim, n_bytes);
}

/* Writes row `at` of the section, but for what write_then() does, to dst. scratch: 2 * dim floats. */
static void write_row(const struct push_section *s, uint32_t at, float *scratch, uint8_t *dst)
{
    const uint64_t key = s->given.keys[at];
    const float *values;

    if (s->given.encoded) {
        memcpy(dst, s->given.encoded + at * s->row_bytes, s->row_bytes);
        return;
    }
    values = s->given.values + (size_t)at * s->dim;
    if (s->given.op == SECTION_ASSIGN_STATE)
        write_state(s, at, values, dst);
    else if (s->leftover)
        encode_with_leftover(s, key, values, scratch, dst);
    else if (!s->residual)
        s->codec->encode(values, s->dim, s->k, dst);
    else if (!all_finite(values, s->dim))
        encode_nan(s, scratch, dst);
    else
        codec_encode_feedback(s->codec, values, error_feedback_find(s->residual, key), s->dim,
                              s->k, scratch, dst);
}

/* ---- the encoder and its tables ---- */

struct push_encoder *push_encoder_new(uint32_t n_shards)
{
    struct push_encoder *e = memory_try_alloc(sizeof *e);

    assert(n_shards > 0);
    if (!e)
        return NULL;
    e->n_shards = n_shards;
    e->tables = memory_try_alloc(PS_TABLES_MAX * sizeof *e->tables);
    e->sections = memory_try_alloc(SECTIONS_MAX * sizeof *e->sections);
    if (!e->tables || !e->sections) {
        push_encoder_free(e);
        return NULL;
    }
    for (uint32_t id = 0; id < CODEC_ID_END; id++)
        e->codecs[id] = codec_by_id(id);
    partition_init(&e->push, n_shards);
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
    partition_deinit(&e->push);
    free(e->tables);
    free(e->sections);
    free(e->scratch);
    free(e);
}

void push_encoder_share(struct push_encoder *e, const struct task_threads *threads)
{
    e->threads = *threads;
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
                              .n_state = table_spec_state_floats(spec),
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

/* ---- pushes ---- */

/* The section goes out in full, with the oldest residuals: these fill their memory. Of the weights that their
 * gradients are of nothing is known, so the section asks for no delay compensation. */
static int prepare_flush(struct push_encoder *e, struct push_section *s)
{
    struct error_feedback_flush *flush = &s->table->flush;

    if (error_feedback_flush_prepare(flush, &s->table->residual, &s->given))
        return -ENOMEM;
    s->is_flushed = true;
    s->codec = e->codecs[CODEC_FP32];
    s->given.n_keys = flush->n_keys;
    s->given.keys = flush->keys;
    s->given.values = flush->values;
    s->given.op = SECTION_GRADIENT;
    return 0;
}

/* Of a codec with feedback. */
static int prepare_residuals(struct push_encoder *e, struct push_section *s)
{
    struct error_feedback *residual = &s->table->residual;

    e->keeps_residuals = true;
    if (error_feedback_flush_is_due(residual, s->given.keys, s->given.n_keys))
        return prepare_flush(e, s);
    s->residual = residual;
    return error_feedback_reserve(residual, push_encoder_n_new_rows(residual, s->given.n_keys));
}

/* The codec of its rows, and its residuals' memory; those of a section that is encoded already are the caller's. */
static int prepare_section(struct push_encoder *e, const struct ps_push_section *given,
                           struct push_section *s)
{
    struct table_info *t = table_of(e, given->table);
    int status = 0;

    assert((uint32_t)given->codec < CODEC_ID_END);
    assert(!given->encoded || given->op == SECTION_GRADIENT);
    *s = (struct push_section){ .given = *given, .table = t, .dim = t->dim };
    s->codec = e->codecs[section_op_is_gradient(given->op) ? given->codec : CODEC_FP32];
    if (s->codec->feedback && !given->encoded)
        status = prepare_residuals(e, s);
    else if (t->residual.n_rows && section_op_is_gradient(given->op) && !given->encoded)
        s->leftover = &t->residual;
    s->k = push_encoder_k(s->codec, s->dim, given->topk_fraction);
    s->row_bytes = s->codec->row_bytes(s->dim, s->k);
    if (given->op == SECTION_ASSIGN_STATE)
        s->row_bytes += t->n_state * sizeof(float);
    if (s->given.op == SECTION_GRADIENT_AT)
        s->row_bytes += s->dim * sizeof(float);
    return status;
}

/* Memory for one shard's keys and values of all sections. */
static int reserve_push(const struct push_encoder *e, uint32_t n, uint32_t shard,
                        struct request *request)
{
    size_t n_bytes = 1; /* at least one: the pointers of an empty section are valid, too */

    assert(n <= request->cap_sections);
    request->n_sections = n;
    for (uint32_t i = 0; i < n; i++)
        n_bytes += partition_group(&e->push, i, shard).n *
                   (KEY_CODEC_BYTES_MAX + e->sections[i].row_bytes);
    return bytes_reserve(&request->bytes, n_bytes) ? 0 : -ENOMEM;
}

/* Everything that can fail. */
static int prepare_push(struct push_encoder *e, const struct ps_push_section *given, uint32_t n,
                        struct request *const *requests)
{
    uint64_t n_keys = 0;
    uint32_t i;

    for (i = 0; i < n; i++) {
        if (prepare_section(e, &given[i], &e->sections[i]))
            return -ENOMEM;
        n_keys += e->sections[i].given.n_keys;
    }
    if (partition_start(&e->push, n, n_keys))
        return -ENOMEM;
    for (i = 0; i < n; i++)
        partition_add(&e->push, e->sections[i].given.keys, e->sections[i].given.n_keys,
                      e->sections[i].table->salt);
    for (i = 0; i < e->n_shards; i++)
        if (reserve_push(e, n, i, requests[i]))
            return -ENOMEM;
    return 0;
}

/* Makes the residuals of the section's keys the newest, in the order of the keys and not of the shards.
 * Memory for them has been reserved. */
static void touch_residuals(const struct push_section *s)
{
    for (uint32_t i = 0; i < s->given.n_keys; i++)
        (void)error_feedback_row(s->residual, s->given.keys[i]);
}

/* Rows that were assigned, or have gone out in full, owe nothing. */
static void drop_residuals(struct push_encoder *e, const struct push_section *s)
{
    if (s->is_flushed)
        e->n_flushed += s->given.n_keys;
    for (uint32_t i = 0; i < s->given.n_keys; i++)
        error_feedback_remove(&s->table->residual, s->given.keys[i]);
}

/* One section of one shard's push; `request` has space for it. */
static void write_push_section(const struct push_encoder *e, uint32_t i, uint32_t shard,
                               struct request *request)
{
    const struct push_section *s = &e->sections[i];
    const struct partition_group g = partition_group(&e->push, i, shard);
    struct section *out = &request->sections[i];
    uint8_t *dst;

    *out = (struct section){
        .table_id = s->given.table,
        .op = s->given.op,
        .codec = s->codec->id,
        .k = s->k,
        .steps = section_op_has_steps(s->given.op) ? s->given.steps : 0,
    };
    write_keys(g, &request->bytes, out);
    dst = request->bytes.bytes + request->bytes.end;
    out->values = dst;
    out->value_bytes = g.n * s->row_bytes;
    for (uint32_t row = 0; row < g.n; row++, dst += s->row_bytes) {
        write_row(s, g.indices[row], e->scratch, dst);
        write_then(s, g.indices[row], dst);
    }
    bytes_commit(&request->bytes, out->value_bytes);
}

/* All sections of a push that touches no residuals. */
struct write_job {
    const struct push_encoder *e;
    uint32_t n;
    struct request *const *requests;
};

static void write_shard(void *arg, uint32_t shard, uint32_t thread)
{
    const struct write_job *job = arg;

    (void)thread;
    for (uint32_t i = 0; i < job->n; i++)
        write_push_section(job->e, i, shard, job->requests[shard]);
}

/* Shards are apart but for residuals, and e->scratch, which these alone need. */
static bool shards_are_apart(const struct push_encoder *e, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct push_section *s = &e->sections[i];

        if (s->residual || s->leftover || s->is_flushed || !section_op_is_gradient(s->given.op))
            return false;
    }
    return true;
}

int push_encoder_push(struct push_encoder *e, const struct ps_push_section *given, uint32_t n,
                      struct request *const *requests)
{
    assert(n <= SECTIONS_MAX);
    if (prepare_push(e, given, n, requests))
        return -ENOMEM;
    if (e->threads.n && shards_are_apart(e, n)) {
        struct write_job job = { e, n, requests };

        task_threads_run(&e->threads, e->n_shards, write_shard, &job);
        return 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct push_section *s = &e->sections[i];

        if (s->residual)
            touch_residuals(s);
        for (uint32_t shard = 0; shard < e->n_shards; shard++)
            write_push_section(e, i, shard, requests[shard]);
        if (s->is_flushed || !section_op_is_gradient(s->given.op))
            drop_residuals(e, s);
    }
    return 0;
}

/* ---- pulls ---- */

static const struct table_info *pulled_table(const struct push_encoder *e,
                                             const struct ps_pull_section *s)
{
    assert(s->table < e->n_tables);
    return &e->tables[s->table];
}

static int prepare_pull(const struct push_encoder *e, const struct ps_pull_section *sections,
                        uint32_t n, struct partition *p, struct request *const *requests)
{
    uint64_t n_keys = 0;
    size_t n_bytes;
    uint32_t i, shard;

    for (i = 0; i < n; i++)
        n_keys += sections[i].n_keys;
    if (partition_start(p, n, n_keys))
        return -ENOMEM;
    for (i = 0; i < n; i++)
        partition_add(p, sections[i].keys, sections[i].n_keys,
                      pulled_table(e, &sections[i])->salt);
    for (shard = 0; shard < e->n_shards; shard++) {
        for (i = 0, n_bytes = 1; i < n; i++)
            n_bytes += (size_t)partition_group(p, i, shard).n * KEY_CODEC_BYTES_MAX;
        assert(n <= requests[shard]->cap_sections);
        requests[shard]->n_sections = n;
        if (!bytes_reserve(&requests[shard]->bytes, n_bytes))
            return -ENOMEM;
    }
    return 0;
}

int push_encoder_pull(const struct push_encoder *e, const struct ps_pull_section *sections,
                      uint32_t n, struct partition *p, struct request *const *requests)
{
    struct section *out;
    uint32_t i, shard;

    assert(n <= SECTIONS_MAX);
    for (i = 0; i < n; i++)
        if (!codec_by_id(sections[i].codec) || codec_by_id(sections[i].codec)->feedback)
            return PS_ECODEC;
    if (prepare_pull(e, sections, n, p, requests))
        return -ENOMEM;
    for (shard = 0; shard < e->n_shards; shard++) {
        for (i = 0; i < n; i++) {
            out = &requests[shard]->sections[i];
            *out = (struct section){ .table_id = sections[i].table,
                                     .codec = sections[i].codec,
                                     .state = sections[i].sink && !sections[i].sink->ask,
                                     .present = sections[i].present != NULL };
            if (sections[i].sink && sections[i].sink->ask)
                out->delta = sections[i].sink->ask(sections[i].sink->arg, &sections[i], shard);
            if (sections[i].scan)
                scan_ask(sections[i].scan, shard, out);
            write_keys(partition_group(p, i, shard), &requests[shard]->bytes, out);
        }
    }
    return 0;
}

/* The bits stand in the order of the shard's keys. The caller's are of several shards: those of this one are set or
 * cleared. */
static void take_present(const struct ps_pull_section *s, struct partition_group g,
                         const uint8_t *bits)
{
    for (uint32_t i = 0; i < g.n; i++) {
        const uint32_t at = g.indices[i];
        const uint8_t mask = (uint8_t)(1u << at % 8);

        if (bits[i / 8] >> i % 8 & 1)
            s->present[at / 8] |= mask;
        else
            s->present[at / 8] = (uint8_t)(s->present[at / 8] & ~mask);
    }
    if (s->n_keys % 8) /* beyond the last key */
        s->present[s->n_keys / 8] =
            (uint8_t)(s->present[s->n_keys / 8] & ((1u << s->n_keys % 8) - 1));
}

/* Any bytes of such a codec are rows. */
static int keep_section(const struct push_encoder *e, const struct ps_pull_section *s,
                        uint32_t shard, struct partition_group g, const uint8_t *values,
                        size_t value_bytes)
{
    const size_t row_bytes = codec_by_id(s->codec)->row_bytes(pulled_table(e, s)->dim, 0);

    if (value_bytes != g.n * row_bytes)
        return PS_ECOUNT;
    pulled_rows_take(s->pulled, shard, g.indices, (struct codec_rows){ values, g.n });
    return 0;
}

static int decode_section(const struct push_encoder *e, const struct ps_pull_section *s,
                          struct partition_group g, const uint8_t *values, size_t value_bytes)
{
    const struct codec *codec = codec_by_id(s->codec);
    uint32_t dim = pulled_table(e, s)->dim, i;
    size_t row_bytes = codec->row_bytes(dim, 0);
    int status;

    if (value_bytes != g.n * row_bytes + (s->present ? section_present_bytes(g.n) : 0))
        return PS_ECOUNT;
    if (s->present)
        take_present(s, g, values + g.n * row_bytes);
    if (codec->id == CODEC_FP32 && !s->rows &&
        g.n == s->n_keys) { /* all of them, in their order, as they are */
        if (g.n)
            memcpy(s->dst, values, g.n * row_bytes);
        return 0;
    }
    for (i = 0; i < g.n; i++) {
        const size_t at = s->rows ? s->rows[g.indices[i]] : g.indices[i];

        status = codec->decode(values + i * row_bytes, dim, 0, s->dst + at * dim);
        if (status)
            return status;
    }
    return 0;
}

int push_encoder_pulled(const struct push_encoder *e, const struct ps_pull_section *sections,
                        uint32_t n, const struct partition *p, uint32_t shard,
                        const uint8_t *const *values, const size_t *value_bytes)
{
    uint32_t i;
    int status;

    assert(n == p->n_sections);
    for (i = 0; i < n; i++) {
        const struct ps_pull_section *s = &sections[i];
        struct partition_group g = partition_group(p, i, shard);

        if (s->scan)
            status = scan_take(s->scan, shard, values[i], value_bytes[i]);
        else if (s->sink)
            status = s->sink->take(s->sink->arg, s, shard, g.indices, g.n, values[i],
                                   value_bytes[i]);
        else if (s->pulled)
            status = keep_section(e, s, shard, g, values[i], value_bytes[i]);
        else
            status = decode_section(e, s, g, values[i], value_bytes[i]);
        if (status)
            return status;
    }
    return 0;
}

/* ---- residuals ---- */

bool push_encoder_keeps_residuals(const struct push_encoder *e)
{
    return e->keeps_residuals;
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
    e->keeps_residuals = true; /* the caller may fill it */
    return &table_of(e, table)->residual;
}

const char *push_encoder_table_name(const struct push_encoder *e, uint32_t table)
{
    assert(table < e->n_tables);
    return e->tables[table].name;
}
