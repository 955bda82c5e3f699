#include "deploy/psctl/compare_run.h"

#include <inttypes.h>
#include <stdio.h>

#include "deploy/psctl/compare.h"
#include "deploy/psctl/digest.h"
#include "deploy/psctl/offline.h"

/* --- JSON --- */

static void add_keys(cJSON *object, const char *name, const struct compare_keys *keys)
{
    cJSON *array = cJSON_AddArrayToObject(object, name);
    char text[24];

    for (uint32_t i = 0; i < keys->n; i++) {
        snprintf(text, sizeof text, "%" PRIu64, keys->items[i]);
        cJSON_AddItemToArray(array, cJSON_CreateRaw(text));
    }
}

static void add_drift(cJSON *object, const struct compare_table *t)
{
    cJSON *drift = cJSON_AddObjectToObject(object, "drift"), *top;

    cJSON_AddNumberToObject(drift, "mean", t->drift_mean);
    cJSON_AddNumberToObject(drift, "p99", t->drift_p99);
    cJSON_AddNumberToObject(drift, "max", t->drift_max);
    top = cJSON_AddArrayToObject(object, "top");
    for (uint32_t i = 0; i < t->n_top; i++) {
        cJSON *item = cJSON_CreateObject();

        offline_add_u64(item, "key", t->top[i].key);
        cJSON_AddNumberToObject(item, "l2", t->top[i].l2);
        cJSON_AddItemToArray(top, item);
    }
}

static cJSON *table_json(const struct compare_table *t)
{
    cJSON *object = cJSON_CreateObject();

    cJSON_AddStringToObject(object, "name", t->spec->name);
    cJSON_AddBoolToObject(object, "in_a", t->is_in_a);
    cJSON_AddBoolToObject(object, "in_b", t->is_in_b);
    offline_add_u64(object, "rows_a", t->n_a);
    offline_add_u64(object, "rows_b", t->n_b);
    offline_add_u64(object, "pushes_a", t->n_pushes_a);
    offline_add_u64(object, "pushes_b", t->n_pushes_b);
    if (t->obstacle[0])
        cJSON_AddStringToObject(object, "obstacle", t->obstacle);
    offline_add_u64(object, "only_a", t->n_only_a);
    offline_add_u64(object, "only_b", t->n_only_b);
    offline_add_u64(object, "changed", t->n_changed);
    offline_add_u64(object, "restamped", t->n_restamped);
    add_keys(object, "only_a_keys", &t->only_a);
    add_keys(object, "only_b_keys", &t->only_b);
    add_keys(object, "changed_keys", &t->changed);
    add_keys(object, "restamped_keys", &t->restamped);
    add_drift(object, t);
    return object;
}

static cJSON *compare_json(const struct compare *c)
{
    cJSON *object = cJSON_CreateObject(), *tables;

    cJSON_AddBoolToObject(object, "same", compare_is_same(c));
    tables = cJSON_AddArrayToObject(object, "tables");
    for (uint32_t i = 0; i < c->n_tables; i++)
        cJSON_AddItemToArray(tables, table_json(&c->tables[i]));
    return object;
}

/* --- for people --- */

static void show_keys(const char *what, uint64_t n, const struct compare_keys *keys)
{
    if (n == 0)
        return;
    printf("  %-12s %" PRIu64 " rows: key", what, n);
    for (uint32_t i = 0; i < keys->n; i++)
        printf(" %" PRIu64, keys->items[i]);
    puts(n > keys->n ? " ..." : "");
}

static void show_table(const struct compare_table *t)
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

static void show_compare(const struct compare *c)
{
    for (uint32_t i = 0; i < c->n_tables; i++)
        show_table(&c->tables[i]);
}

/* --- diff --- */

static int diff(const struct options *o, struct shard *a, struct shard *b, struct err *err)
    ON_SHARD
{
    struct compare c;
    int status = compare_shards(a, b, o->top, &c, err);

    if (status)
        return status;
    if (o->json)
        offline_print_json(compare_json(&c));
    else
        show_compare(&c);
    compare_free(&c);
    return 0;
}

int compare_run_diff(const struct options *o, const char *const *words, uint32_t n_words)
{
    struct shard *a = NULL, *b = NULL;
    struct collect_facts facts;
    struct err err = { 0 };
    int status;

    (void)n_words;
    enter_shard();
    status = offline_collect(o, words[0], COLLECT_PART, &a, &facts, &err);
    if (!status)
        status = offline_collect(o, words[1], COLLECT_PART, &b, &facts, &err);
    if (!status)
        status = diff(o, a, b, &err);
    shard_free(a);
    shard_free(b);
    err.status = status;
    return status ? offline_fail(&err) : EXIT_ANSWERED;
}

/* --- replay --- */

static cJSON *digests_json(struct shard *s, const struct collect_facts *facts) ON_SHARD
{
    cJSON *object = cJSON_CreateObject(), *tables;
    char text[24];

    offline_add_u64(object, "records", facts->n_records);
    offline_add_u64(object, "pushes", facts->n_pushes);
    tables = cJSON_AddArrayToObject(object, "tables");
    for (uint32_t id = 0; id < shard_n_tables(s); id++) {
        const struct shard_table *t = shard_table(s, id);
        cJSON *item = cJSON_CreateObject();

        snprintf(text, sizeof text, "%016" PRIx64, digest_table(t));
        cJSON_AddStringToObject(item, "name", t->spec.name);
        offline_add_u64(item, "rows", table_n_rows(t->rows));
        offline_add_u64(item, "pushes", t->n_pushes);
        cJSON_AddStringToObject(item, "digest", text);
        cJSON_AddItemToArray(tables, item);
    }
    return object;
}

static void show_digests(struct shard *s, const struct collect_facts *facts) ON_SHARD
{
    printf("%" PRIu64 " records done again, %" PRIu64 " of them pushes\n", facts->n_records,
           facts->n_pushes);
    for (uint32_t id = 0; id < shard_n_tables(s); id++) {
        const struct shard_table *t = shard_table(s, id);

        printf("%016" PRIx64 "  %s: %" PRIu64 " rows, %" PRIu64 " steps\n", digest_table(t),
               t->spec.name, table_n_rows(t->rows), t->n_pushes);
    }
}

/* *ret_same is false where they differ. */
static int hold_against(const struct options *o, struct shard *replayed, bool *ret_same,
                        cJSON *json, struct err *err) ON_SHARD
{
    struct options end = *o;
    struct shard *other = NULL;
    struct collect_facts facts;
    struct compare c;
    int status;

    end.at[0] = '\0';
    status = offline_collect(&end, o->against, COLLECT_PART, &other, &facts, err);
    if (!status)
        status = compare_shards(replayed, other, 0, &c, err);
    if (!status) {
        *ret_same = compare_is_same(&c);
        if (json)
            cJSON_AddItemToObject(json, "against", compare_json(&c));
        else if (*ret_same)
            puts("no difference");
        else
            show_compare(&c);
        compare_free(&c);
    }
    shard_free(other);
    return status;
}

int compare_run_replay(const struct options *o, const char *const *words, uint32_t n_words)
{
    struct shard *s = NULL;
    struct collect_facts facts;
    struct err err = { 0 };
    cJSON *json = NULL;
    bool same = true;
    int status;

    (void)n_words;
    enter_shard();
    status = offline_collect(o, words[0], COLLECT_PART, &s, &facts, &err);
    if (!status && o->json)
        json = digests_json(s, &facts);
    else if (!status)
        show_digests(s, &facts);
    if (!status && o->against[0])
        status = hold_against(o, s, &same, json, &err);
    if (json && !status)
        offline_print_json(json);
    else
        cJSON_Delete(json);
    shard_free(s);
    err.status = status;
    if (status)
        return offline_fail(&err);
    return same ? EXIT_ANSWERED : EXIT_FAILED;
}
