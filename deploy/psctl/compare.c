#include "deploy/psctl/compare.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "server/core/weights.h"

#define BATCH 256u        /* keys of one lookup */
#define STAMP_FLAGS 0xffu /* of no state that is kept */

/* Two tables of one name. */
struct pair {
    const struct shard_table *a, *b; /* borrowed */
    bool has_same_payload;
    float *weights_a, *weights_b; /* owned: of one row */
    struct compare_drift *drifts; /* owned: of all that changed */
    uint64_t n_drifts, cap_drifts;
    double drift_sum;
    struct compare_table *result;
};

/* --- keys that are named --- */

static void note_key(struct compare_keys *keys, uint64_t *n, uint64_t key)
{
    uint32_t at = keys->n;

    ++*n;
    while (at > 0 && keys->items[at - 1] > key)
        at--;
    if (at == COMPARE_N_KEYS)
        return;
    keys->n += keys->n < COMPARE_N_KEYS;
    memmove(&keys->items[at + 1], &keys->items[at], (keys->n - at - 1) * sizeof key);
    keys->items[at] = key;
}

/* --- rows that both have --- */

static double measure_drift(const struct pair *p, const struct row *a, const struct row *b)
{
    uint32_t dim = p->a->spec.dim;
    double sum = 0;

    weights_load(p->a->spec.storage, a->floats, dim, p->weights_a);
    weights_load(p->b->spec.storage, b->floats, dim, p->weights_b);
    for (uint32_t i = 0; i < dim; i++) {
        double d = (double)p->weights_b[i] - (double)p->weights_a[i];

        sum += d * d;
    }
    return isnan(sum) ? INFINITY : sqrt(sum);
}

static int note_drift(struct pair *p, uint64_t key, double l2)
{
    if (p->n_drifts == p->cap_drifts) {
        uint64_t cap = p->cap_drifts ? p->cap_drifts * 2 : 1024;
        struct compare_drift *drifts = mem_try_realloc(p->drifts, cap * sizeof *drifts);

        if (!drifts)
            return -ENOMEM;
        p->drifts = drifts;
        p->cap_drifts = cap;
    }
    p->drifts[p->n_drifts++] = (struct compare_drift){ key, l2 };
    p->drift_sum += l2;
    return 0;
}

static int compare_row(struct pair *p, const struct row *a, const struct row *b)
{
    struct compare_table *t = p->result;
    bool same = p->has_same_payload && memcmp(a->floats, b->floats, p->a->payload_bytes) == 0;
    double l2 = same ? 0 : measure_drift(p, a, b);

    if (!same && (p->has_same_payload || l2 != 0)) {
        note_key(&t->changed, &t->n_changed, a->key);
        return note_drift(p, a->key, l2);
    }
    if ((a->stamp ^ b->stamp) & ~(uint64_t)STAMP_FLAGS)
        note_key(&t->restamped, &t->n_restamped, a->key);
    return 0;
}

/* --- each row of one table, and the other table's of that key --- */

struct batch {
    uint64_t keys[BATCH];
    struct row *rows[BATCH], *found[BATCH];
    uint32_t n;
};

/* The next rows of `t` from number *at on; false: there are no more. */
static bool take_batch(const struct table *t, uint64_t *at, struct batch *ret)
{
    uint64_t end = table_n_numbers(t);

    for (ret->n = 0; *at < end && ret->n < BATCH; ++*at) {
        struct row *row = table_row(t, *at);

        if (!row)
            continue;
        ret->rows[ret->n] = row;
        ret->keys[ret->n++] = row->key;
    }
    return ret->n > 0;
}

static int compare_from_a(struct pair *p)
{
    struct compare_table *t = p->result;
    struct batch batch;
    uint64_t at = 0;
    int status = 0;

    while (!status && take_batch(p->a->rows, &at, &batch)) {
        table_find_batch(p->b->rows, batch.keys, batch.n, batch.found);
        for (uint32_t i = 0; i < batch.n && !status; i++)
            if (batch.found[i])
                status = compare_row(p, batch.rows[i], batch.found[i]);
            else
                note_key(&t->only_a, &t->n_only_a, batch.keys[i]);
    }
    return status;
}

static void compare_from_b(struct pair *p)
{
    struct compare_table *t = p->result;
    struct batch batch;
    uint64_t at = 0;

    while (take_batch(p->b->rows, &at, &batch)) {
        table_find_batch(p->a->rows, batch.keys, batch.n, batch.found);
        for (uint32_t i = 0; i < batch.n; i++)
            if (!batch.found[i])
                note_key(&t->only_b, &t->n_only_b, batch.keys[i]);
    }
}

/* --- drift of a table --- */

/* Farthest first; what is as far, by key. */
static int by_drift(const void *left, const void *right)
{
    const struct compare_drift *a = left, *b = right;

    if (a->l2 != b->l2)
        return a->l2 < b->l2 ? 1 : -1;
    return a->key < b->key ? -1 : a->key > b->key;
}

static void sum_up(struct pair *p, uint32_t n_top)
{
    struct compare_table *t = p->result;

    if (p->n_drifts == 0)
        return;
    qsort(p->drifts, p->n_drifts, sizeof *p->drifts, by_drift);
    t->drift_max = p->drifts[0].l2;
    t->drift_p99 = p->drifts[p->n_drifts / 100].l2;
    t->drift_mean = p->drift_sum / (double)p->n_drifts;
    t->n_top = p->n_drifts < n_top ? (uint32_t)p->n_drifts : n_top;
    t->top = mem_alloc((t->n_top + 1) * sizeof *t->top);
    memcpy(t->top, p->drifts, t->n_top * sizeof *t->top);
}

/* --- two tables --- */

static bool has_same_payload(const struct table_spec *a, const struct table_spec *b)
{
    return a->storage == b->storage && a->optim == b->optim;
}

static bool may_compare(const struct table_spec *a, const struct table_spec *b,
                        char obstacle[static 160])
{
    if (a->kind == b->kind && a->dim == b->dim)
        return true;
    snprintf(obstacle, 160, "%s of dim %u in A, %s of dim %u in B", spec_kind_name(a->kind),
             a->dim, spec_kind_name(b->kind), b->dim);
    return false;
}

static int compare_pair(const struct shard_table *a, const struct shard_table *b,
                        uint32_t n_top, struct compare_table *t)
{
    struct pair p = { .a = a, .b = b, .result = t };
    int status = 0;

    if (!may_compare(&a->spec, &b->spec, t->obstacle))
        return 0;
    p.has_same_payload = has_same_payload(&a->spec, &b->spec);
    p.weights_a = mem_alloc(a->spec.dim * sizeof(float));
    p.weights_b = mem_alloc(a->spec.dim * sizeof(float));
    status = compare_from_a(&p);
    if (!status) {
        compare_from_b(&p);
        sum_up(&p, n_top);
    }
    free(p.drifts);
    free(p.weights_a);
    free(p.weights_b);
    return status;
}

/* --- all tables --- */

static struct shard_table *find_table(struct shard *s, const char *name) ON_SHARD
{
    for (uint32_t id = 0; id < shard_n_tables(s); id++)
        if (strcmp(shard_table(s, id)->spec.name, name) == 0)
            return shard_table(s, id);
    return NULL;
}

static int add(struct compare *c, const struct shard_table *a, const struct shard_table *b,
               uint32_t n_top)
{
    struct compare_table *t = &c->tables[c->n_tables++];

    t->spec = a ? &a->spec : &b->spec;
    t->is_in_a = a;
    t->is_in_b = b;
    t->n_a = a ? table_n_rows(a->rows) : 0;
    t->n_b = b ? table_n_rows(b->rows) : 0;
    t->n_pushes_a = a ? a->n_pushes : 0;
    t->n_pushes_b = b ? b->n_pushes : 0;
    if (a && b)
        return compare_pair(a, b, n_top, t);
    t->n_only_a = t->n_a;
    t->n_only_b = t->n_b;
    return 0;
}

int compare_shards(struct shard *a, struct shard *b, uint32_t n_top, struct compare *ret,
                   struct err *err)
{
    uint32_t n_tables = shard_n_tables(a) + shard_n_tables(b);
    int status = 0;

    assert(n_top <= COMPARE_N_TOP_MAX);
    *ret = (struct compare){ .tables = mem_alloc((n_tables + 1) * sizeof *ret->tables) };
    for (uint32_t id = 0; id < shard_n_tables(a) && !status; id++) {
        const struct shard_table *t = shard_table(a, id);

        status = add(ret, t, find_table(b, t->spec.name), n_top);
    }
    for (uint32_t id = 0; id < shard_n_tables(b) && !status; id++) {
        const struct shard_table *t = shard_table(b, id);

        if (!find_table(a, t->spec.name))
            status = add(ret, NULL, t, n_top);
    }
    if (status) {
        compare_free(ret);
        err_set(err, status, "no memory to compare all rows");
    }
    return status;
}

bool compare_is_same(const struct compare *c)
{
    for (uint32_t i = 0; i < c->n_tables; i++) {
        const struct compare_table *t = &c->tables[i];

        if (!t->is_in_a || !t->is_in_b || t->obstacle[0] || t->n_only_a || t->n_only_b ||
            t->n_changed || t->n_restamped || t->n_pushes_a != t->n_pushes_b)
            return false;
    }
    return true;
}

void compare_free(struct compare *c)
{
    for (uint32_t i = 0; i < c->n_tables; i++)
        free(c->tables[i].top);
    free(c->tables);
    *c = (struct compare){ 0 };
}
