#include "deploy/psctl/latency.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "deploy/psctl/cluster_query.h"
#include "deploy/psctl/cluster_rates.h"
#include "deploy/psctl/cluster_report.h"
#include "deploy/psctl/data_dir.h"
#include "deploy/psctl/field.h"
#include "deploy/psctl/text_grid.h"

#define N_BUCKETS_MAX 1024u
#define N_REQUESTS_MAX 1e18
#define BAR_MAX 30       /* characters of the longest bar */
#define BUSY_CPU 0.9     /* share of a core */
#define SHARE_MIN 0.01   /* of the time; what was waited for less is not worth a sentence */
#define HISTOGRAM_MIN 20 /* fewer requests than that make none */
#define SENTENCE_MAX 400

/* Of the requests of one type on all nodes. */
struct times {
    double last_ns[N_BUCKETS_MAX], n[N_BUCKETS_MAX]; /* ascending */
    uint32_t n_buckets;
    double n_all;
};

/* --- histograms --- */

static void add_bucket(struct times *t, double last_ns, double n)
{
    uint32_t at = 0;

    if (!(last_ns >= 0) || !(n > 0 && n < N_REQUESTS_MAX)) /* no histogram of psd's */
        return;
    while (at < t->n_buckets && t->last_ns[at] < last_ns)
        at++;
    t->n_all += n;
    if (at < t->n_buckets && t->last_ns[at] == last_ns) {
        t->n[at] += n;
        return;
    }
    if (t->n_buckets == N_BUCKETS_MAX)
        return;
    memmove(&t->last_ns[at + 1], &t->last_ns[at], (t->n_buckets - at) * sizeof *t->last_ns);
    memmove(&t->n[at + 1], &t->n[at], (t->n_buckets - at) * sizeof *t->n);
    t->last_ns[at] = last_ns;
    t->n[at] = n;
    t->n_buckets++;
}

static void add_times(const cJSON *answers, const char *type, struct times *ret)
{
    const cJSON *node, *bucket;

    *ret = (struct times){ 0 };
    cJSON_ArrayForEach(node, field_child(answers, "nodes"))
    {
        const cJSON *requests = field_child(field_child(node, "totals"), "requests");

        cJSON_ArrayForEach(bucket, field_child(field_child(requests, type), "minute_ns"))
            add_bucket(ret, cJSON_GetNumberValue(cJSON_GetArrayItem(bucket, 0)),
                       cJSON_GetNumberValue(cJSON_GetArrayItem(bucket, 1)));
    }
}

/* The upper end of the bucket in which the q-quantile is. */
static double quantile(const struct times *t, double q)
{
    double below = 0;

    for (uint32_t i = 0; i < t->n_buckets; i++) {
        below += t->n[i];
        if (below >= q * t->n_all)
            return t->last_ns[i];
    }
    return 0;
}

/* The types of requests, as the first node that answers lists them. */
static const cJSON *types_of(const cJSON *answers)
{
    const cJSON *node;

    cJSON_ArrayForEach(node, field_child(answers, "nodes"))
    {
        const cJSON *requests = field_child(field_child(node, "totals"), "requests");

        if (cJSON_IsObject(requests))
            return requests;
    }
    return NULL;
}

/* --- what was waited for --- */

PRINTF_LIKE(2, 3) static void say(cJSON *sentences, const char *fmt, ...)
{
    char sentence[SENTENCE_MAX];
    va_list args;

    va_start(args, fmt);
    vsnprintf(sentence, sizeof sentence, fmt, args);
    va_end(args);
    cJSON_AddItemToArray(sentences, cJSON_CreateString(sentence));
}

static const cJSON *slowest_of(const cJSON *job)
{
    const cJSON *w, *slowest = NULL;

    cJSON_ArrayForEach(w, field_child(job, "workers"))
    {
        if (strcmp(field_text(w, "state"), "left") == 0)
            continue;
        if (!slowest || field_number(w, "clock") < field_number(slowest, "clock"))
            slowest = w;
    }
    return slowest;
}

static void explain_jobs(const cJSON *before, const cJSON *after, double seconds,
                         cJSON *sentences)
{
    const cJSON *job;

    cJSON_ArrayForEach(job, field_child(after, "jobs"))
    {
        const cJSON *old = field_find(field_child(before, "jobs"), "name",
                                      field_text(job, "name")),
                    *slowest = slowest_of(job);
        double waited =
            (field_number(job, "parked_ms") - field_number(old, "parked_ms")) / 1000;

        if (!old || !slowest || waited < SHARE_MIN * seconds)
            continue;
        say(sentences,
            "pulls of job %s waited %.1f s in the last %.1f s for slower workers; worker %.0f "
            "(%.60s) "
            "is the last, at clock %.0f",
            field_text(job, "name"), waited, seconds, field_number(slowest, "rank"),
            field_text(slowest, "name"), field_number(slowest, "clock"));
    }
}

static void explain_shard(const cJSON *before, const cJSON *node, const cJSON *shard,
                          double seconds, cJSON *sentences)
{
    const cJSON *old = cluster_rates_shard_before(before, node, shard),
                *log = field_child(shard, "log");
    struct cluster_rates r = cluster_rates_of(before, node, shard);
    double n = field_number(shard, "shard"),
           waited = (field_number(log, "push_wait_us") -
                     field_number(field_child(old, "log"), "push_wait_us")) /
                    1e6;
    char speed[FIELD_CELL_MAX];

    if (old && waited > SHARE_MIN * seconds)
        say(sentences,
            "pushes to shard %.0f waited %.1f s in the last %.1f s for the write-ahead log's "
            "disk, "
            "which takes %s/s",
            n, waited, seconds,
            field_format_bytes(speed, field_number(log, "disk_bytes_per_s")));
    if (field_number(log, "replies_waiting") > 0)
        say(sentences,
            "replies of shard %.0f that wait for a sync of the write-ahead log now: %.0f", n,
            field_number(log, "replies_waiting"));
    if (r.cpu > BUSY_CPU)
        say(sentences,
            "requests to shard %.0f wait for each other: it is busy for %.0f %% of the time", n,
            r.cpu > 1 ? 100 : r.cpu * 100);
}

/* Sentences. */
static cJSON *explain(const cJSON *before, const cJSON *after)
{
    cJSON *sentences = cJSON_CreateArray(), *old = cluster_report_merge(before),
          *now = cluster_report_merge(after);
    const cJSON *node, *shard;
    double seconds = 0;

    cJSON_ArrayForEach(node, field_child(after, "nodes"))
    {
        double s = cluster_rates_seconds(before, node);

        seconds = s > seconds ? s : seconds;
        cJSON_ArrayForEach(shard, field_child(node, "shards"))
            explain_shard(before, node, shard, s, sentences);
    }
    explain_jobs(old, now, seconds, sentences);
    cJSON_Delete(old);
    cJSON_Delete(now);
    return sentences;
}

/* --- printing --- */

static void print_table(const cJSON *after, const struct terminal *terminal, FILE *out)
{
    static const char *const heads[] = {
        "<REQUEST", "IN A MINUTE", "P50", "1P90", "P99", "MAX"
    };
    static const double quantiles[] = { 0.5, 0.9, 0.99, 1 };
    const cJSON *type;
    struct text_grid g;
    struct times t;
    char cell[FIELD_CELL_MAX];

    text_grid_init(&g, heads, COUNT_OF(heads));
    cJSON_ArrayForEach(type, types_of(after))
    {
        add_times(after, type->string, &t);
        if (t.n_all == 0)
            continue;
        text_grid_add(&g, "%s", type->string);
        text_grid_add(&g, "%s", field_format_count(cell, t.n_all));
        for (size_t i = 0; i < COUNT_OF(quantiles); i++)
            text_grid_add(&g, "%s", field_format_ns(cell, quantile(&t, quantiles[i])));
    }
    text_grid_finish(&g, terminal, out);
}

/* Into which power of two a time falls: the least that is not below it. */
static double power_of(double ns)
{
    double p = 1024;

    while (p < ns + 1)
        p *= 2;
    return p;
}

static double most_in_a_power(const struct times *t)
{
    double most = 0, n = 0;

    for (uint32_t i = 0; i < t->n_buckets; i++) {
        bool is_new = i && power_of(t->last_ns[i]) != power_of(t->last_ns[i - 1]);

        n = is_new ? t->n[i] : n + t->n[i];
        most = n > most ? n : most;
    }
    return most;
}

static void print_bar(double last_ns, double n, double n_all, double most,
                      const struct terminal *terminal, FILE *out)
{
    char cell[FIELD_CELL_MAX];
    int width = (int)(n / most * BAR_MAX + 0.5);

    fprintf(out, "  <= %9s  %s", field_format_ns(cell, last_ns),
            terminal_begin(terminal, TERMINAL_GREEN));
    for (int i = 0; i < width || i < 1; i++)
        fputc('#', out);
    fprintf(out, "%s%*s  %5.1f %%  %.0f\n", terminal_end(terminal, TERMINAL_GREEN),
            BAR_MAX - (width > 1 ? width : 1), "", 100 * n / n_all, n);
}

static void print_histogram(const char *type, const struct times *t,
                            const struct terminal *terminal, FILE *out)
{
    double most = most_in_a_power(t), n = 0;

    fprintf(out, "\n%s, %.0f in the last minute\n", type, t->n_all);
    for (uint32_t i = 0; i < t->n_buckets; i++) {
        n += t->n[i];
        if (i + 1 < t->n_buckets && power_of(t->last_ns[i + 1]) == power_of(t->last_ns[i]))
            continue;
        print_bar(power_of(t->last_ns[i]), n, t->n_all, most, terminal, out);
        n = 0;
    }
}

void latency_print(const cJSON *before, const cJSON *after, const struct terminal *terminal,
                   FILE *out)
{
    cJSON *sentences = explain(before, after);
    const cJSON *type, *sentence;
    struct times t;

    print_table(after, terminal, out);
    cJSON_ArrayForEach(type, types_of(after))
    {
        add_times(after, type->string, &t);
        if (t.n_all >= HISTOGRAM_MIN)
            print_histogram(type->string, &t, terminal, out);
    }
    fputc('\n', out);
    cJSON_ArrayForEach(sentence, sentences) field_put(out, "", sentence->valuestring, "\n");
    if (!cJSON_GetArraySize(sentences))
        fputs("no request waited for anything but its turn\n", out);
    cJSON_Delete(sentences);
}

cJSON *latency_report(const cJSON *before, const cJSON *after)
{
    cJSON *root = cJSON_CreateObject(), *requests = cJSON_AddObjectToObject(root, "requests");
    const cJSON *type;
    struct times t;

    cJSON_ArrayForEach(type, types_of(after))
    {
        cJSON *item = cJSON_AddObjectToObject(requests, type->string), *list;

        add_times(after, type->string, &t);
        cJSON_AddNumberToObject(item, "n_minute", t.n_all);
        cJSON_AddNumberToObject(item, "p50_ns", quantile(&t, 0.5));
        cJSON_AddNumberToObject(item, "p90_ns", quantile(&t, 0.9));
        cJSON_AddNumberToObject(item, "p99_ns", quantile(&t, 0.99));
        cJSON_AddNumberToObject(item, "max_ns", quantile(&t, 1));
        list = cJSON_AddArrayToObject(item, "minute_ns");
        for (uint32_t i = 0; i < t.n_buckets; i++) {
            double pair[] = { t.last_ns[i], t.n[i] };

            cJSON_AddItemToArray(list, cJSON_CreateDoubleArray(pair, COUNT_OF(pair)));
        }
    }
    cJSON_AddItemToObject(root, "waited_for", explain(before, after));
    return root;
}

int latency_run(const struct options *o, const char *const *words, uint32_t n_words)
{
    struct terminal terminal = terminal_of(stdout, o->output == OPTIONS_WIDE);
    struct cluster_query q;
    int code = EXIT_FAILED;

    (void)words;
    (void)n_words;
    if (cluster_query_open(&q, o)) {
        cJSON *before = cluster_rates_ask(&q), *after;

        cluster_rates_wait(o->every_ms);
        after = cluster_rates_ask(&q);
        code = cluster_query_print_failures(&q) ? EXIT_FAILED : EXIT_ANSWERED;
        if (o->json)
            data_dir_print_json(latency_report(before, after));
        else if (types_of(after))
            latency_print(before, after, &terminal, stdout);
        cJSON_Delete(before);
        cJSON_Delete(after);
    }
    cluster_query_close(&q);
    return code;
}
