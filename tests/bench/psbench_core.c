#include "tests/bench/psbench_core.h"

#include <errno.h>
#include <stdlib.h>
#include <uv.h>

#include "common/memory.h"
#include "proto/codec_catalog.h"
#include "server/core/optimizer.h"
#include "server/core/row_init.h"
#include "server/core/table.h"
#include "server/core/weights.h"
#include "tests/bench/psbench_handshake.h"
#include "tests/bench/psbench_keys.h"

#define CHUNK_MAX 1024u
#define TRY_S 0.04
#define LINE_BYTES 64u

/* One way to use the table. */
struct way {
    uint32_t chunk; /* keys looked up at a time */
    uint32_t ahead; /* row i + ahead is asked for while row i is worked on; 0: none is */
};

struct psbench_core {
    const struct psbench_settings *settings; /* borrowed */
    const struct psbench_pool *pool;         /* borrowed */
    struct table_spec spec;
    struct table *table; /* owned */
    const struct codec *codec, *answer_codec;
    const struct optimizer *optim;
    struct optimizer_step step;
    uint32_t k, weights_floats; /* where in the payload the state begins */
    size_t row_bytes, value_bytes, answer_bytes;
    uint64_t *keys;        /* owned: [n_sets][n_keys] */
    uint8_t *answer;       /* owned: n_keys encoded rows */
    float *weights, *grad; /* owned: a row each */
    uint32_t next_set;
    double pulls_due;
    uint64_t version;
    struct way way;
};

static void ask_for(const struct psbench_core *c, const struct row *row)
{
    const char *at = (const char *)row;

    for (size_t i = 0; i < c->row_bytes; i += LINE_BYTES)
        __builtin_prefetch(at + i, 1);
}

static void ask_for_first(const struct psbench_core *c, struct row *const *rows, uint32_t n)
{
    for (uint32_t i = 0; i < n && i < c->way.ahead; i++)
        ask_for(c, rows[i]);
}

static void ask_for_next(const struct psbench_core *c, struct row *const *rows, uint32_t i,
                         uint32_t n)
{
    if (c->way.ahead && i + c->way.ahead < n)
        ask_for(c, rows[i + c->way.ahead]);
}

static void pull_rows(struct psbench_core *c, struct row *const *rows, uint32_t n, uint8_t *dst)
{
    bool plain = c->spec.storage == TABLE_SPEC_FP32;
    uint32_t i;

    ask_for_first(c, rows, n);
    for (i = 0; i < n; i++, dst += c->answer_bytes) {
        const float *weights = plain ? rows[i]->floats : c->weights;

        ask_for_next(c, rows, i, n);
        if (!plain)
            weights_load(c->spec.storage, rows[i]->floats, c->spec.dim, c->weights);
        c->answer_codec->encode(weights, c->spec.dim, c->k, dst);
    }
}

static void step_row(struct psbench_core *c, struct row *row, const float *grad)
{
    float *state = row->floats + c->weights_floats;

    if (c->spec.storage == TABLE_SPEC_FP32) {
        c->optim->step(row->floats, state, grad, c->spec.dim, &c->step);
    } else {
        weights_load(c->spec.storage, row->floats, c->spec.dim, c->weights);
        c->optim->step(c->weights, state, grad, c->spec.dim, &c->step);
        weights_store(c->spec.storage, c->weights, c->spec.dim, hash_mix2(row->key, c->version),
                      row->floats);
    }
    row_touch(row, c->version);
}

static void push_rows(struct psbench_core *c, struct row *const *rows, uint32_t n,
                      const uint8_t *src)
{
    bool plain = c->codec->id == CODEC_FP32;
    uint32_t i;

    ask_for_first(c, rows, n);
    for (i = 0; i < n; i++, src += c->value_bytes) {
        const float *grad = plain ? (const float *)(const void *)src : c->grad;

        ask_for_next(c, rows, i, n);
        if (!plain && c->codec->decode(src, c->spec.dim, c->k, c->grad))
            abort(); /* what encode() wrote */
        step_row(c, rows[i], grad);
    }
}

static void one_request(struct psbench_core *c, enum psbench_kind kind)
{
    const struct psbench_pool *p = c->pool;
    const uint64_t *keys = c->keys + (size_t)(c->next_set++ % p->n_sets) * p->n_keys;
    struct row *rows[CHUNK_MAX];
    uint32_t at, n;

    c->version++;
    for (at = 0; at < p->n_keys; at += n) {
        n = p->n_keys - at < c->way.chunk ? p->n_keys - at : c->way.chunk;
        table_find_batch(c->table, keys + at, n, rows);
        if (kind == PSBENCH_IS_PULL)
            pull_rows(c, rows, n, c->answer + at * c->answer_bytes);
        else
            push_rows(c, rows, n, p->values + at * c->value_bytes);
    }
}

static enum psbench_kind next_kind(struct psbench_core *c)
{
    const struct psbench_settings *s = c->settings;

    if (s->load != PSBENCH_MIX)
        return s->load == PSBENCH_PULL ? PSBENCH_IS_PULL : PSBENCH_IS_PUSH;
    c->pulls_due += (double)s->pull_share;
    if (c->pulls_due < 1)
        return PSBENCH_IS_PUSH;
    c->pulls_due--;
    return PSBENCH_IS_PULL;
}

double psbench_core_run(struct psbench_core *c, double seconds)
{
    uint64_t start_ns = uv_hrtime(), now_ns, n_rows = 0;

    do {
        one_request(c, next_kind(c));
        n_rows += c->pool->n_keys;
        now_ns = uv_hrtime();
    } while ((double)(now_ns - start_ns) < seconds * 1e9);
    return (double)n_rows * 1e9 / (double)(now_ns - start_ns);
}

static void find_best_way(struct psbench_core *c)
{
    static const uint32_t chunks[] = { 32, 64, 128, 256, CHUNK_MAX };
    static const uint32_t aheads[] = { 0, 4, 8, 16, 32 };
    struct way best = { chunks[0], aheads[0] };
    double most = 0, rows_per_s;

    for (size_t i = 0; i < COUNT_OF(chunks); i++)
        for (size_t j = 0; j < COUNT_OF(aheads); j++) {
            c->way = (struct way){ chunks[i], aheads[j] };
            rows_per_s = psbench_core_run(c, TRY_S);
            if (rows_per_s > most) {
                most = rows_per_s;
                best = c->way;
            }
        }
    c->way = best;
}

/* The same rows in the same order as a server that was filled by one connection. */
static int fill_table(struct psbench_core *c)
{
    uint64_t i, n = c->settings->rows;
    struct row *row;
    int status = 0;

    for (i = 1; i <= n && !status; i++) {
        status = table_insert(c->table, hash_mix(i), &row);
        if (status)
            break;
        row_init_row(&c->spec, row->key, c->weights);
        weights_set(c->spec.storage, c->weights, c->spec.dim, row->floats);
        c->optim->init(c->weights, row->floats + c->weights_floats, c->spec.dim,
                       &c->spec.params);
    }
    return status;
}

int psbench_core_new(const struct psbench_settings *s, struct psbench_core **ret,
                     struct err *err)
{
    struct psbench_core *c = memory_alloc(sizeof *c);
    struct table_request request;
    uint32_t payload_bytes;
    int status;

    c->settings = s;
    psbench_handshake_table(s, &request);
    c->spec = request.spec;
    c->optim = optimizer_find(c->spec.optim);
    c->step = optimizer_step_at(c->optim, &c->spec, 0, 1);
    c->weights_floats = weights_bytes(c->spec.storage, s->dim) / (uint32_t)sizeof(float);
    payload_bytes =
        (c->weights_floats + c->optim->state_floats(s->dim)) * (uint32_t)sizeof(float);
    c->row_bytes = sizeof(struct row) + payload_bytes;
    c->weights = memory_alloc(s->dim * sizeof *c->weights);
    c->grad = memory_alloc(s->dim * sizeof *c->grad);
    status = table_new(&c->table, payload_bytes, 0, NULL);
    if (!status)
        status = fill_table(c);
    if (status) {
        psbench_core_free(c);
        return err_set(err, status, "limits: a table of %llu rows: %s",
                       (unsigned long long)s->rows, status_text(status));
    }
    *ret = c;
    return 0;
}

int psbench_core_load(struct psbench_core *c, const struct psbench_settings *s,
                      const struct psbench_pool *pool, struct err *err)
{
    c->settings = s;
    c->pool = pool;
    c->codec = codec_by_id((uint32_t)s->codec);
    c->answer_codec = c->codec->feedback ? codec_by_id(CODEC_FP32) : c->codec;
    c->k = psbench_handshake_k(s);
    c->value_bytes = c->codec->row_bytes(s->dim, c->k);
    c->answer_bytes = c->answer_codec->row_bytes(s->dim, 0);
    free(c->answer);
    free(c->keys);
    c->answer = memory_alloc(c->answer_bytes * s->keys_per_request);
    c->keys = psbench_pool_decode(pool);
    if (!c->keys)
        return err_set(err, -ENOMEM, "limits: no memory for the keys");
    find_best_way(c);
    return 0;
}

void psbench_core_free(struct psbench_core *c)
{
    if (!c)
        return;
    table_free(c->table);
    free(c->keys);
    free(c->answer);
    free(c->weights);
    free(c->grad);
    free(c);
}

uint32_t psbench_core_chunk(const struct psbench_core *c)
{
    return c->way.chunk;
}

uint32_t psbench_core_ahead(const struct psbench_core *c)
{
    return c->way.ahead;
}
