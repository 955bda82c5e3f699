#include "deploy/psctl/diff.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/memory.h"
#include "deploy/psctl/data_dir.h"
#include "server/core/row_decay.h"
#include "server/core/weights.h"

#define STAMP_FLAGS 0xffu

uint64_t diff_digest(const struct shard_table *table)
{
    const size_t head_bytes = 2 * sizeof(uint64_t);
    uint8_t *bytes = memory_alloc(head_bytes + table->payload_bytes);
    uint64_t n = table_n_numbers(table->rows), sum = 0;

    for (uint64_t i = 0; i < n; i++) {
        const struct row *row = table_row(table->rows, i);
        uint64_t head[2];

        if (!row)
            continue;
        head[0] = row->key;
        head[1] = row->stamp & ~(uint64_t)STAMP_FLAGS;
        memcpy(bytes, head, head_bytes);
        memcpy(bytes + head_bytes, row->floats, table->payload_bytes);
        sum += XXH3_64bits(bytes, head_bytes + table->payload_bytes);
    }
    free(bytes);
    return sum;
}

#define BATCH 256u             /* keys of one lookup */
#define STAMP_FLAGS_DIFF 0xffu /* of no state that is kept */

/* Two tables of one name. */
struct pair {
    const struct shard_table *a, *b; /* borrowed */
    bool has_same_payload;
    float *weights_a, *weights_b; /* owned: of one row */
    struct diff_drift *drifts;    /* owned: of all that changed */
    uint64_t n_drifts, cap_drifts;
    double drift_sum;
    struct diff_table *result;
};

/* --- keys that are named --- */

static void note_key(struct diff_keys *keys, uint64_t *n, uint64_t key)
{
    uint32_t at = keys->n;

    ++*n;
    while (at > 0 && keys->items[at - 1] > key)
        at--;
    if (at == DIFF_N_KEYS)
        return;
    keys->n += keys->n < DIFF_N_KEYS;
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
    row_decay_show(p->a, a, p->weights_a);
    row_decay_show(p->b, b, p->weights_b);
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
        struct diff_drift *drifts = memory_try_realloc(p->drifts, cap * sizeof *drifts);

        if (!drifts)
            return -ENOMEM;
        p->drifts = drifts;
        p->cap_drifts = cap;
    }
    p->drifts[p->n_drifts++] = (struct diff_drift){ key, l2 };
    p->drift_sum += l2;
    return 0;
}

static int diff_row(struct pair *p, const struct row *a, const struct row *b)
{
    struct diff_table *t = p->result;
    bool has_decayed = row_decay_is_on(&p->a->spec) &&
                       p->a->n_pushes != p->b->n_pushes; /* whatever is stored */
    bool same = p->has_same_payload && !has_decayed &&
                memcmp(a->floats, b->floats, p->a->payload_bytes) == 0;
    double l2 = same ? 0 : measure_drift(p, a, b);

    if (!same && (p->has_same_payload || l2 != 0)) {
        note_key(&t->changed, &t->n_changed, a->key);
        return note_drift(p, a->key, l2);
    }
    if ((a->stamp ^ b->stamp) & ~(uint64_t)STAMP_FLAGS_DIFF)
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

static int diff_from_a(struct pair *p)
{
    struct diff_table *t = p->result;
    struct batch batch;
    uint64_t at = 0;
    int status = 0;

    while (!status && take_batch(p->a->rows, &at, &batch)) {
        table_find_batch(p->b->rows, batch.keys, batch.n, batch.found);
        for (uint32_t i = 0; i < batch.n && !status; i++)
            if (batch.found[i])
                status = diff_row(p, batch.rows[i], batch.found[i]);
            else
                note_key(&t->only_a, &t->n_only_a, batch.keys[i]);
    }
    return status;
}

static void diff_from_b(struct pair *p)
{
    struct diff_table *t = p->result;
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
    const struct diff_drift *a = left, *b = right;

    if (a->l2 != b->l2)
        return a->l2 < b->l2 ? 1 : -1;
    return a->key < b->key ? -1 : a->key > b->key;
}

static void sum_up(struct pair *p, uint32_t n_top)
{
    struct diff_table *t = p->result;

    if (p->n_drifts == 0)
        return;
    qsort(p->drifts, p->n_drifts, sizeof *p->drifts, by_drift);
    t->drift_max = p->drifts[0].l2;
    t->drift_p99 = p->drifts[p->n_drifts / 100].l2;
    t->drift_mean = p->drift_sum / (double)p->n_drifts;
    t->n_top = p->n_drifts < n_top ? (uint32_t)p->n_drifts : n_top;
    t->top = memory_alloc((t->n_top + 1) * sizeof *t->top);
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
    snprintf(obstacle, 160, "%s of dim %u in A, %s of dim %u in B",
             table_spec_kind_name(a->kind), a->dim, table_spec_kind_name(b->kind), b->dim);
    return false;
}

static int diff_pair(const struct shard_table *a, const struct shard_table *b, uint32_t n_top,
                     struct diff_table *t)
{
    struct pair p = { .a = a, .b = b, .result = t };
    int status = 0;

    if (!may_compare(&a->spec, &b->spec, t->obstacle))
        return 0;
    p.has_same_payload = has_same_payload(&a->spec, &b->spec);
    p.weights_a = memory_alloc(a->spec.dim * sizeof(float));
    p.weights_b = memory_alloc(a->spec.dim * sizeof(float));
    status = diff_from_a(&p);
    if (!status) {
        diff_from_b(&p);
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

static int add(struct diff *c, const struct shard_table *a, const struct shard_table *b,
               uint32_t n_top)
{
    struct diff_table *t = &c->tables[c->n_tables++];

    t->spec = a ? &a->spec : &b->spec;
    t->is_in_a = a;
    t->is_in_b = b;
    t->n_a = a ? table_n_rows(a->rows) : 0;
    t->n_b = b ? table_n_rows(b->rows) : 0;
    t->n_pushes_a = a ? a->n_pushes : 0;
    t->n_pushes_b = b ? b->n_pushes : 0;
    if (a && b)
        return diff_pair(a, b, n_top, t);
    t->n_only_a = t->n_a;
    t->n_only_b = t->n_b;
    return 0;
}

int diff_shards(struct shard *a, struct shard *b, uint32_t n_top, struct diff *ret,
                struct err *err)
{
    uint32_t n_tables = shard_n_tables(a) + shard_n_tables(b);
    int status = 0;

    assert(n_top <= DIFF_N_TOP_MAX);
    *ret = (struct diff){ .tables = memory_alloc((n_tables + 1) * sizeof *ret->tables) };
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
        diff_free(ret);
        err_set(err, status, "no memory to compare all rows");
    }
    return status;
}

bool diff_is_same(const struct diff *c)
{
    for (uint32_t i = 0; i < c->n_tables; i++) {
        const struct diff_table *t = &c->tables[i];

        if (!t->is_in_a || !t->is_in_b || t->obstacle[0] || t->n_only_a || t->n_only_b ||
            t->n_changed || t->n_restamped || t->n_pushes_a != t->n_pushes_b)
            return false;
    }
    return true;
}

void diff_free(struct diff *c)
{
    for (uint32_t i = 0; i < c->n_tables; i++)
        free(c->tables[i].top);
    free(c->tables);
    *c = (struct diff){ 0 };
}

/* --- JSON --- */

static void add_keys(cJSON *object, const char *name, const struct diff_keys *keys)
{
    cJSON *array = cJSON_AddArrayToObject(object, name);
    char text[24];

    for (uint32_t i = 0; i < keys->n; i++) {
        snprintf(text, sizeof text, "%" PRIu64, keys->items[i]);
        cJSON_AddItemToArray(array, cJSON_CreateRaw(text));
    }
}

static void add_drift(cJSON *object, const struct diff_table *t)
{
    cJSON *drift = cJSON_AddObjectToObject(object, "drift"), *top;

    cJSON_AddNumberToObject(drift, "mean", t->drift_mean);
    cJSON_AddNumberToObject(drift, "p99", t->drift_p99);
    cJSON_AddNumberToObject(drift, "max", t->drift_max);
    top = cJSON_AddArrayToObject(object, "top");
    for (uint32_t i = 0; i < t->n_top; i++) {
        cJSON *item = cJSON_CreateObject();

        data_dir_add_u64(item, "key", t->top[i].key);
        cJSON_AddNumberToObject(item, "l2", t->top[i].l2);
        cJSON_AddItemToArray(top, item);
    }
}

static cJSON *table_json(const struct diff_table *t)
{
    cJSON *object = cJSON_CreateObject();

    cJSON_AddStringToObject(object, "name", t->spec->name);
    cJSON_AddBoolToObject(object, "in_a", t->is_in_a);
    cJSON_AddBoolToObject(object, "in_b", t->is_in_b);
    data_dir_add_u64(object, "rows_a", t->n_a);
    data_dir_add_u64(object, "rows_b", t->n_b);
    data_dir_add_u64(object, "pushes_a", t->n_pushes_a);
    data_dir_add_u64(object, "pushes_b", t->n_pushes_b);
    if (t->obstacle[0])
        cJSON_AddStringToObject(object, "obstacle", t->obstacle);
    data_dir_add_u64(object, "only_a", t->n_only_a);
    data_dir_add_u64(object, "only_b", t->n_only_b);
    data_dir_add_u64(object, "changed", t->n_changed);
    data_dir_add_u64(object, "restamped", t->n_restamped);
    add_keys(object, "only_a_keys", &t->only_a);
    add_keys(object, "only_b_keys", &t->only_b);
    add_keys(object, "changed_keys", &t->changed);
    add_keys(object, "restamped_keys", &t->restamped);
    add_drift(object, t);
    return object;
}

static cJSON *compare_json(const struct diff *c)
{
    cJSON *object = cJSON_CreateObject(), *tables;

    cJSON_AddBoolToObject(object, "same", diff_is_same(c));
    tables = cJSON_AddArrayToObject(object, "tables");
    for (uint32_t i = 0; i < c->n_tables; i++)
        cJSON_AddItemToArray(tables, table_json(&c->tables[i]));
    return object;
}

/* --- for people --- */

static void show_keys(const char *what, uint64_t n, const struct diff_keys *keys)
{
    if (n == 0)
        return;
    printf("  %-12s %" PRIu64 " rows: key", what, n);
    for (uint32_t i = 0; i < keys->n; i++)
        printf(" %" PRIu64, keys->items[i]);
    puts(n > keys->n ? " ..." : "");
}

static void show_table(const struct diff_table *t)
{
    printf("%s: %" PRIu64 " rows in A, %" PRIu64 " in B", t->spec->name, t->n_a, t->n_b);
    if (t->obstacle[0]) {
        printf("; cannot be compared: %s\n", t->obstacle);
        return;
    }
    if (!t->is_in_a || !t->is_in_b) {
        printf("; there is no such table in %s\n", t->is_in_a ? "B" : "A");
        return;
    }
    if (t->n_pushes_a != t->n_pushes_b)
        printf("; %" PRIu64 " steps in A, %" PRIu64 " in B", t->n_pushes_a, t->n_pushes_b);
    puts(t->n_only_a || t->n_only_b || t->n_changed || t->n_restamped ? ""
                                                                      : "; all are the same");
    show_keys("only in A", t->n_only_a, &t->only_a);
    show_keys("only in B", t->n_only_b, &t->only_b);
    show_keys("changed", t->n_changed, &t->changed);
    show_keys("same values, other version", t->n_restamped, &t->restamped);
    if (t->n_changed)
        printf("  drift        mean %g, p99 %g, max %g\n", t->drift_mean, t->drift_p99,
               t->drift_max);
    for (uint32_t i = 0; i < t->n_top; i++)
        printf("  %12g  key %" PRIu64 "\n", t->top[i].l2, t->top[i].key);
}

static void show_compare(const struct diff *c)
{
    for (uint32_t i = 0; i < c->n_tables; i++)
        show_table(&c->tables[i]);
}

/* --- diff --- */

static int diff(const struct options *o, struct shard *a, struct shard *b, bool *ret_same,
                struct err *err) ON_SHARD
{
    struct diff c;
    int status = diff_shards(a, b, o->top, &c, err);

    if (status)
        return status;
    if (o->json)
        data_dir_print_json(compare_json(&c));
    else
        show_compare(&c);
    *ret_same = diff_is_same(&c);
    diff_free(&c);
    return 0;
}

int diff_run(const struct options *o, const char *const *words, uint32_t n_words)
{
    struct shard *a = NULL, *b = NULL;
    struct load_cluster_facts facts;
    struct err err = { 0 };
    bool same = false;
    int status;

    (void)n_words;
    enter_shard();
    status = data_dir_collect(o, words[0], LOAD_CLUSTER_PART, &a, &facts, &err);
    if (!status)
        status = data_dir_collect(o, words[1], LOAD_CLUSTER_PART, &b, &facts, &err);
    if (!status)
        status = diff(o, a, b, &same, &err);
    shard_free(a);
    shard_free(b);
    err.status = status;
    if (status)
        return data_dir_fail(&err);
    return same ? EXIT_ANSWERED : EXIT_FAILED;
}

/* --- replay --- */

static cJSON *digests_json(struct shard *s, const struct load_cluster_facts *facts) ON_SHARD
{
    cJSON *object = cJSON_CreateObject(), *tables;
    char text[24];

    data_dir_add_u64(object, "records", facts->n_records);
    data_dir_add_u64(object, "pushes", facts->n_pushes);
    tables = cJSON_AddArrayToObject(object, "tables");
    for (uint32_t id = 0; id < shard_n_tables(s); id++) {
        const struct shard_table *t = shard_table(s, id);
        cJSON *item = cJSON_CreateObject();

        snprintf(text, sizeof text, "%016" PRIx64, diff_digest(t));
        cJSON_AddStringToObject(item, "name", t->spec.name);
        data_dir_add_u64(item, "rows", table_n_rows(t->rows));
        data_dir_add_u64(item, "pushes", t->n_pushes);
        cJSON_AddStringToObject(item, "digest", text);
        cJSON_AddItemToArray(tables, item);
    }
    return object;
}

static void show_digests(struct shard *s, const struct load_cluster_facts *facts) ON_SHARD
{
    printf("%" PRIu64 " records replayed, %" PRIu64 " of them pushes\n", facts->n_records,
           facts->n_pushes);
    for (uint32_t id = 0; id < shard_n_tables(s); id++) {
        const struct shard_table *t = shard_table(s, id);

        printf("%016" PRIx64 "  %s: %" PRIu64 " rows, %" PRIu64 " steps\n", diff_digest(t),
               t->spec.name, table_n_rows(t->rows), t->n_pushes);
    }
}

/* *ret_same is false where they differ. */
static int hold_against(const struct options *o, struct shard *replayed, bool *ret_same,
                        cJSON *json, struct err *err) ON_SHARD
{
    struct options end = *o;
    struct shard *other = NULL;
    struct load_cluster_facts facts;
    struct diff c;
    int status;

    end.at[0] = '\0';
    status = data_dir_collect(&end, o->against, LOAD_CLUSTER_PART, &other, &facts, err);
    if (!status)
        status = diff_shards(replayed, other, 0, &c, err);
    if (!status) {
        *ret_same = diff_is_same(&c);
        if (json)
            cJSON_AddItemToObject(json, "against", compare_json(&c));
        else if (*ret_same)
            puts("no difference");
        else
            show_compare(&c);
        diff_free(&c);
    }
    shard_free(other);
    return status;
}

int diff_replay(const struct options *o, const char *const *words, uint32_t n_words)
{
    struct shard *s = NULL;
    struct load_cluster_facts facts;
    struct err err = { 0 };
    cJSON *json = NULL;
    bool same = true;
    int status;

    (void)n_words;
    enter_shard();
    status = data_dir_collect(o, words[0], LOAD_CLUSTER_PART, &s, &facts, &err);
    if (!status && o->json)
        json = digests_json(s, &facts);
    else if (!status)
        show_digests(s, &facts);
    if (!status && o->against[0])
        status = hold_against(o, s, &same, json, &err);
    if (json && !status)
        data_dir_print_json(json);
    else
        cJSON_Delete(json);
    shard_free(s);
    err.status = status;
    if (status)
        return data_dir_fail(&err);
    return same ? EXIT_ANSWERED : EXIT_FAILED;
}
