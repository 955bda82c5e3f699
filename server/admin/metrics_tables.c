#include "server/admin/metrics_tables.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "server/admin/metrics_text.h"

#define TABLE(name, type, field, help)                                            \
    {                                                                             \
        "psd_table_" name, type, help, offsetof(struct stats_table, field), false \
    }
#define TABLE_EACH(name, type, field, help)                                      \
    {                                                                            \
        "psd_table_" name, type, help, offsetof(struct stats_table, field), true \
    }
static const struct metrics_family table_families[] = {
    TABLE("rows", "gauge", n_rows, "Rows of a table on a shard."),
    TABLE("bytes", "gauge", bytes, "Memory of a table on a shard."),
    TABLE("slab_bytes", "gauge", slab_bytes,
          "Memory of a table's rows, heads and free places included."),
    TABLE("index_bytes", "gauge", index_bytes, "Memory of a table's index."),
    TABLE("sketch_bytes", "gauge", count_min_bytes,
          "Memory of the counters of keys that have no row yet."),
    TABLE_EACH("memory_max_bytes", "gauge", bytes_max,
               "Budget of a table on a shard; 0 is none of its own."),
    TABLE_EACH("row_bytes", "gauge", row_bytes, "Memory of one row, its head included."),
    TABLE_EACH("payload_bytes", "gauge", payload_bytes,
               "Memory of one row's weights and optimizer state."),
    TABLE("pushes_total", "counter", n_pushes,
          "Pushes of a table: its optimizer's step count."),
    TABLE("rows_pulled_total", "counter", rows_pulled, "Rows of a table read."),
    TABLE("rows_pushed_total", "counter", rows_pushed, "Rows of a table updated."),
    TABLE("rows_refused_total", "counter", rows_refused,
          "New rows of a table refused for want of memory."),
    TABLE("rows_unadmitted_total", "counter", rows_unadmitted,
          "Pushes of keys of a table that have not come often enough to get a row."),
    TABLE("rows_removed_total", "counter", n_removed,
          "Rows of a table removed, for whatever reason."),
    TABLE("rows_evicted_total", "counter", rows_evicted,
          "Rows of a table removed to make space under a full budget."),
    TABLE("rows_idle_total", "counter", rows_idle,
          "Rows of a table removed as no push came for idle_clocks."),
    TABLE("rows_expired_total", "counter", rows_expired,
          "Rows of a table removed as no push came for their time to live."),
    TABLE("rows_rare_total", "counter", rows_rare,
          "Rows of a table removed as too few pushes came in rare_clocks."),
};

static uint32_t n_tables_of(const struct node_report *node, uint32_t s)
{
    return node->shards[s] ? node->shards[s]->n_tables : 0;
}

/* Where a table's samples are. */
#define PLACE_REST UINT32_MAX
#define PLACE_OWN (UINT32_MAX - 1) /* else the number of the job */

/* Borrowed of the reports. */
struct table_name {
    const char *text;
    size_t n; /* of a job: up to its slash, and with it */
};

struct table_places {
    uint32_t *items;               /* owned: of each table of each shard, in their order */
    struct table_name *own, *jobs; /* owned: at most n_max of each */
    uint64_t *sums;                /* owned: of one shard, for each job */
    uint32_t *n_summed;            /* owned: the same: how many tables */
    uint32_t n_own, n_jobs, n_max;
};

/* n 0: a table that stands alone, as a dense one of no job does. */
static struct table_name job_of(const struct stats_table *t)
{
    const char *slash = t->spec.kind == TABLE_SPEC_DENSE ? strchr(t->spec.name, '/') : NULL;

    return (struct table_name){ t->spec.name, slash ? (size_t)(slash - t->spec.name) + 1 : 0 };
}

/* The number of the name among them; n: it is not there. */
static uint32_t find_name(const struct table_name *names, uint32_t n, struct table_name name)
{
    uint32_t i = 0;

    while (i < n && (names[i].n != name.n || memcmp(names[i].text, name.text, name.n) != 0))
        i++;
    return i;
}

static uint32_t place_of(const struct table_places *p, const struct stats_table *t)
{
    const struct table_name job = job_of(t), name = { t->spec.name, strlen(t->spec.name) };
    uint32_t i;

    if (!job.n)
        return find_name(p->own, p->n_own, name) < p->n_own ? PLACE_OWN : PLACE_REST;
    i = find_name(p->jobs, p->n_jobs, job);
    return i < p->n_jobs ? i : PLACE_REST;
}

/* The first tables, and the first jobs with dense ones. */
static void choose_names(struct table_places *p, const struct shard_report *first)
{
    for (uint32_t t = 0; t < first->n_tables; t++) {
        const char *name = first->tables[t].spec.name;
        const struct table_name job = job_of(&first->tables[t]);

        if (job.n && p->n_jobs < p->n_max && find_name(p->jobs, p->n_jobs, job) == p->n_jobs)
            p->jobs[p->n_jobs++] = job;
        else if (!job.n && p->n_own < p->n_max)
            p->own[p->n_own++] = (struct table_name){ name, strlen(name) };
    }
}

static void free_places(struct table_places *p)
{
    free(p->items);
    free(p->own);
    free(p->jobs);
    free(p->sums);
    free(p->n_summed);
}

/* After the first shard that has tables: its order is the same from scrape to scrape. False without memory. */
static bool choose_tables(const struct node_report *node, struct table_places *p)
{
    const struct shard_report *first = NULL;
    size_t n = 0;

    for (uint32_t s = 0; s < node->n_shards; s++) {
        if (!first && n_tables_of(node, s))
            first = node->shards[s];
        n += n_tables_of(node, s);
    }
    p->n_max = !first                                   ? 0
               : node->metrics_tables < first->n_tables ? node->metrics_tables
                                                        : first->n_tables;
    p->items = memory_try_alloc((n + 1) * sizeof *p->items);
    p->own = memory_try_alloc((p->n_max + 1) * sizeof *p->own);
    p->jobs = memory_try_alloc((p->n_max + 1) * sizeof *p->jobs);
    p->sums = memory_try_alloc((p->n_max + 1) * sizeof *p->sums);
    p->n_summed = memory_try_alloc((p->n_max + 1) * sizeof *p->n_summed);
    if (!p->items || !p->own || !p->jobs || !p->sums || !p->n_summed)
        return false;
    if (first)
        choose_names(p, first);
    n = 0;
    for (uint32_t s = 0; s < node->n_shards; s++)
        for (uint32_t t = 0; t < n_tables_of(node, s); t++)
            p->items[n++] = place_of(p, &node->shards[s]->tables[t]);
    return true;
}

static void put_overheads(FILE *out, const struct node_report *node, const uint32_t *place)
{
    const char *name = "psd_table_row_overhead_bytes";

    metrics_text_head(
        out, name, "gauge",
        "Memory of rows and index beyond weights and optimizer state, of each row.");
    for (uint32_t s = 0; s < node->n_shards; s++)
        for (uint32_t t = 0; t < n_tables_of(node, s); t++) {
            if (*place++ != PLACE_OWN)
                continue;
            fprintf(out, "%s{shard=\"%" PRIu32 "\"", name, node->shards[s]->shard);
            metrics_text_label(out, "table", node->shards[s]->tables[t].spec.name);
            fprintf(out, "} %.3f\n", stats_overhead(&node->shards[s]->tables[t]));
        }
}

static void put_sums(FILE *out, const struct shard_report *shard,
                     const struct metrics_family *f, const struct table_places *p)
{
    char name[TABLE_SPEC_NAME_MAX + 16];

    for (uint32_t i = 0; i < p->n_jobs; i++) {
        if (!p->n_summed[i])
            continue;
        snprintf(name, sizeof name, "%.*s (dense)", (int)p->jobs[i].n - 1, p->jobs[i].text);
        fprintf(out, "%s{shard=\"%" PRIu32 "\"", f->name, shard->shard);
        metrics_text_label(out, "table", name);
        fprintf(out, "} %" PRIu64 "\n", p->sums[i]);
    }
}

/* Returns the places behind this shard's. The sum of the others has no label `table`: no table has that name. */
static const uint32_t *put_tables_of(FILE *out, const struct shard_report *shard,
                                     const struct metrics_family *f,
                                     const struct table_places *p, const uint32_t *place)
{
    uint64_t sum = 0;
    uint32_t n_others = 0;

    memset(p->sums, 0, p->n_jobs * sizeof *p->sums);
    memset(p->n_summed, 0, p->n_jobs * sizeof *p->n_summed);
    for (uint32_t t = 0; t < shard->n_tables; t++, place++) {
        uint64_t value = metrics_text_field(&shard->tables[t], f);

        if (*place == PLACE_OWN) {
            fprintf(out, "%s{shard=\"%" PRIu32 "\"", f->name, shard->shard);
            metrics_text_label(out, "table", shard->tables[t].spec.name);
            fprintf(out, "} %" PRIu64 "\n", value);
        } else if (*place == PLACE_REST) {
            sum += value;
            n_others++;
        } else {
            p->sums[*place] += value;
            p->n_summed[*place]++;
        }
    }
    if (f->is_no_sum)
        return place;
    put_sums(out, shard, f, p);
    if (n_others)
        fprintf(out, "%s{shard=\"%" PRIu32 "\"} %" PRIu64 "\n", f->name, shard->shard, sum);
    return place;
}

static void put_all(FILE *out, const struct node_report *node, const struct table_places *p)
{
    for (size_t i = 0; i < COUNT_OF(table_families); i++) {
        const uint32_t *at = p->items;

        metrics_text_head(out, table_families[i].name, table_families[i].type,
                          table_families[i].help);
        for (uint32_t s = 0; s < node->n_shards; s++)
            if (node->shards[s])
                at = put_tables_of(out, node->shards[s], &table_families[i], p, at);
    }
    put_overheads(out, node, p->items);
}

bool metrics_tables_put(FILE *out, const struct node_report *node)
{
    struct table_places places = { 0 };
    bool is_chosen = choose_tables(node, &places);

    if (is_chosen)
        put_all(out, node, &places);
    free_places(&places);
    return is_chosen;
}
