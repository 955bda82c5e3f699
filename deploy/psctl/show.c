#include "deploy/psctl/show.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "deploy/psctl/grid.h"

struct show {
    FILE *out;
    const cJSON *root; /* borrowed */
    double now_unix_ms;
};

/* What is missing reads as 0 or "": an older psd may not know a field. */
static double number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

static const char *text(const cJSON *object, const char *name)
{
    const char *value = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));

    return value ? value : "";
}

static const cJSON *child(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* Room for what the format_* functions write. */
#define CELL_MAX 48

static const char *format_count(char dst[static CELL_MAX], double n)
{
    snprintf(dst, CELL_MAX, "%.0f", n);
    return dst;
}

static const char *format_bytes(char dst[static CELL_MAX], double n)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    size_t unit = 0;

    for (; n >= 1024 && unit + 1 < COUNT_OF(units); unit++)
        n /= 1024;
    snprintf(dst, CELL_MAX, unit ? "%.1f %s" : "%.0f %s", n, units[unit]);
    return dst;
}

static const char *format_ns(char dst[static CELL_MAX], double ns)
{
    if (ns >= 1e9)
        snprintf(dst, CELL_MAX, "%.2f s", ns / 1e9);
    else if (ns >= 1e6)
        snprintf(dst, CELL_MAX, "%.1f ms", ns / 1e6);
    else
        snprintf(dst, CELL_MAX, "%.0f us", ns / 1e3);
    return dst;
}

static const char *format_lasting(char dst[static CELL_MAX], double ms)
{
    double s = ms > 0 ? ms / 1000 : 0;

    if (s < 120)
        snprintf(dst, CELL_MAX, "%.0f s", s);
    else if (s < 7200)
        snprintf(dst, CELL_MAX, "%.0f min", s / 60);
    else if (s < 172800)
        snprintf(dst, CELL_MAX, "%.0f h", s / 3600);
    else
        snprintf(dst, CELL_MAX, "%.0f d", s / 86400);
    return dst;
}

/* A text of a peer's or the server's, safe at a terminal. */
static void put(FILE *out, const char *before, const char *value, const char *after)
{
    char tame[512];

    snprintf(tame, sizeof tame, "%s", value);
    grid_tame(tame);
    fprintf(out, "%s%s%s", before, tame, after);
}

static void show_node(const struct show *s)
{
    const cJSON *r = s->root;
    const char *state = cJSON_IsTrue(child(r, "stopping")) ? "stopping"
                        : cJSON_IsTrue(child(r, "ready"))  ? "ready"
                                                           : "starting";
    char cell[CELL_MAX];

    put(s->out, "psd ", text(r, "version"), "");
    put(s->out, " at ", text(r, "address"), "");
    fprintf(s->out, ", node %.0f of %.0f, pid %.0f, up %s: %s", number(r, "node"),
            number(r, "n_nodes"), number(r, "pid"),
            format_lasting(cell, s->now_unix_ms - number(r, "started_unix_ms")), state);
    put(s->out, ", ", text(r, "health"), "\n");
    if (text(r, "http_address")[0])
        put(s->out, "pages        http://", text(r, "http_address"), "/\n");
}

static void show_totals(const struct show *s)
{
    const cJSON *t = child(s->root, "totals"), *net = child(t, "net"),
                *counters = child(t, "counters");
    char cell[CELL_MAX], max[CELL_MAX];
    double limit = number(s->root, "memory_max_bytes");

    fprintf(s->out, "rows         %.0f in %s of %s; the process holds ", number(t, "rows"),
            format_bytes(cell, number(t, "bytes")),
            limit > 0 ? format_bytes(max, limit) : "no limit");
    fprintf(s->out, "%s\n", format_bytes(cell, number(s->root, "rss_bytes")));
    fprintf(s->out,
            "workers      %.0f live, %.0f waits (psctl why), %.0f staleness violations\n",
            number(t, "live_workers"), number(t, "n_waits"), number(t, "staleness_violations"));
    fprintf(
        s->out,
        "refused      %.0f requests, %.0f greetings, %.0f malformed frames, %.0f slow peers, ",
        number(net, "refused_requests"), number(net, "refused_greetings"),
        number(net, "malformed_frames"), number(net, "slow_peers"));
    fprintf(s->out, "%.0f pushes with NaN, %.0f new rows\n", number(counters, "nan_pushes"),
            number(counters, "rows_refused"));
}

static void show_checkpoints(const struct show *s)
{
    const cJSON *c = child(s->root, "checkpoints"), *busy = child(c, "under_way");
    char cell[CELL_MAX];

    fprintf(s->out, "checkpoints  %.0f done, %.0f failed", number(c, "done"),
            number(c, "failed"));
    if (number(c, "last_number") > 0)
        fprintf(s->out, "; the last is number %.0f", number(c, "last_number"));
    if (number(c, "last_unix_ms") > 0)
        fprintf(s->out, ", %s ago",
                format_lasting(cell, s->now_unix_ms - number(c, "last_unix_ms")));
    if (text(c, "last_error")[0])
        put(s->out, "; it failed since: ", text(c, "last_error"), "");
    if (busy)
        fprintf(s->out, "; number %.0f is being written, since %s", number(busy, "number"),
                format_lasting(cell, s->now_unix_ms - number(busy, "since_unix_ms")));
    fputc('\n', s->out);
}

static void show_shards(const struct show *s)
{
    static const char *const heads[] = { "SHARD",    "REPORT",      "ROWS",   "MEMORY",
                                         "VERSION",  "CONNECTIONS", "PULLS",  "P99",
                                         "PUSHES",   "P99",         "PARKED", "REFUSED",
                                         "MALFORMED" };
    char cell[CELL_MAX];
    struct grid g;
    const cJSON *shard;

    grid_init(&g, heads, COUNT_OF(heads));
    cJSON_ArrayForEach(shard, child(s->root, "shards"))
    {
        const cJSON *net = child(shard, "net"), *counters = child(shard, "counters");
        const cJSON *requests = child(shard, "requests");

        grid_add(&g, "%s", format_count(cell, number(shard, "shard")));
        if (cJSON_IsTrue(child(shard, "reported")))
            grid_add(&g, "%.1f s old", number(shard, "report_age_ms") / 1000);
        else
            grid_add(&g, "none");
        grid_add(&g, "%s", format_count(cell, number(shard, "rows")));
        grid_add(&g, "%s", format_bytes(cell, number(shard, "bytes")));
        grid_add(&g, "%s", format_count(cell, number(shard, "version")));
        grid_add(&g, "%s", format_count(cell, number(net, "connections")));
        grid_add(&g, "%s", format_count(cell, number(counters, "pulls")));
        grid_add(&g, "%s", format_ns(cell, number(child(requests, "pull"), "p99_ns")));
        grid_add(&g, "%s", format_count(cell, number(counters, "pushes")));
        grid_add(&g, "%s", format_ns(cell, number(child(requests, "push"), "p99_ns")));
        grid_add(&g, "%s", format_count(cell, number(net, "parked_pulls")));
        grid_add(&g, "%s", format_count(cell, number(net, "refused_requests")));
        grid_add(&g, "%s", format_count(cell, number(net, "malformed_frames")));
    }
    fputc('\n', s->out);
    grid_finish(&g, s->out);
}

static void show_status(const struct show *s)
{
    show_node(s);
    show_totals(s);
    show_checkpoints(s);
    show_shards(s);
}

/* A limit of 0 is none. */
static void add_memory(struct grid *g, double n_bytes, double max)
{
    char held[CELL_MAX], limit[CELL_MAX];

    format_bytes(held, n_bytes);
    if (max > 0)
        grid_add(g, "%s of %s", held, format_bytes(limit, max));
    else
        grid_add(g, "%s", held);
}

static void show_tables(const struct show *s)
{
    static const char *const heads[] = { "<TABLE", "<KIND",    "DIM",          "<OPTIMIZER",
                                         "RATE",   "<MODE",    "<STORED",      "ROWS",
                                         "MEMORY", "OVERHEAD", "PUSHES",       "PULLED",
                                         "PUSHED", "REMOVED",  "NOT ADMITTED", "REFUSED" };
    char cell[CELL_MAX];
    struct grid g;
    const cJSON *t;

    if (cJSON_GetArraySize(child(s->root, "tables")) == 0) {
        fprintf(s->out, "no table yet: the first job that needs one makes it\n");
        return;
    }
    grid_init(&g, heads, COUNT_OF(heads));
    cJSON_ArrayForEach(t, child(s->root, "tables"))
    {
        grid_add(&g, "%s", text(t, "name"));
        grid_add(&g, "%s", text(t, "kind"));
        grid_add(&g, "%s", format_count(cell, number(t, "dim")));
        grid_add(&g, "%s", text(t, "optimizer"));
        grid_add(&g, "%g", number(t, "learning_rate"));
        grid_add(&g, "%s", text(t, "mode"));
        grid_add(&g, "%s", text(t, "storage"));
        grid_add(&g, "%s", format_count(cell, number(t, "rows")));
        add_memory(&g, number(t, "bytes"), number(t, "bytes_max"));
        grid_add(&g, "%.1f B", number(t, "overhead_bytes_per_row"));
        grid_add(&g, "%s", format_count(cell, number(t, "pushes")));
        grid_add(&g, "%s", format_count(cell, number(t, "rows_pulled")));
        grid_add(&g, "%s", format_count(cell, number(t, "rows_pushed")));
        grid_add(&g, "%s", format_count(cell, number(t, "rows_removed")));
        grid_add(&g, "%s", format_count(cell, number(t, "rows_unadmitted")));
        grid_add(&g, "%s", format_count(cell, number(t, "rows_refused")));
    }
    grid_finish(&g, s->out);
}

static double greatest_clock(const cJSON *workers)
{
    double max = 0;
    const cJSON *w;

    cJSON_ArrayForEach(w, workers) max = number(w, "clock") > max ? number(w, "clock") : max;
    return max;
}

static void show_job(const struct show *s, const cJSON *job)
{
    static const char *const heads[] = { "RANK",   "<STATE",   "CLOCK",
                                         "BEHIND", "HEARD OF", "<NAME" };
    const cJSON *workers = child(job, "workers"), *w, *n;
    double first = greatest_clock(workers);
    char cell[CELL_MAX];
    struct grid g;

    put(s->out, "job ", text(job, "name"), "");
    put(s->out, ": ", text(job, "mode"), "");
    if (strcmp(text(job, "mode"), "ssp") == 0)
        fprintf(s->out, " with bound %.0f", number(job, "bound"));
    fprintf(s->out, ", min clock %.0f, %.0f deaths, %.0f fenced, %.0f staleness violations\n",
            number(job, "min_clock"), number(job, "deaths"), number(job, "fenced"),
            number(job, "staleness_violations"));
    fprintf(s->out, "staleness of pulls, clocks:");
    cJSON_ArrayForEach(n, child(job, "staleness"))
        fprintf(s->out, " %s: %.0f ", n->string, n->valuedouble);
    fprintf(s->out, " max %.0f\n", number(job, "staleness_max"));
    grid_init(&g, heads, COUNT_OF(heads));
    cJSON_ArrayForEach(w, workers)
    {
        grid_add(&g, "%s", format_count(cell, number(w, "rank")));
        grid_add(&g, "%s", text(w, "state"));
        grid_add(&g, "%s", format_count(cell, number(w, "clock")));
        grid_add(&g, "%s", format_count(cell, first - number(w, "clock")));
        grid_add(&g, "%s ago", format_lasting(cell, number(w, "silent_ms")));
        grid_add(&g, "%s", text(w, "name"));
    }
    grid_finish(&g, s->out);
}

static void show_workers(const struct show *s)
{
    const cJSON *jobs = child(s->root, "jobs"), *job;
    bool first = true;

    cJSON_ArrayForEach(job, jobs)
    {
        if (!first)
            fputc('\n', s->out);
        show_job(s, job);
        first = false;
    }
    if (first)
        fprintf(s->out, "no job has come\n");
}

static bool is_same_wait(const cJSON *a, const cJSON *b)
{
    return strcmp(text(a, "what"), text(b, "what")) == 0 &&
           strcmp(text(a, "who"), text(b, "who")) == 0 &&
           strcmp(text(a, "why"), text(b, "why")) == 0;
}

/* How often it is there: each shard tells of its own. 0: it stood before. */
static uint32_t count_wait(const cJSON *waits, const cJSON *wait)
{
    const cJSON *w;
    uint32_t n = 0;

    cJSON_ArrayForEach(w, waits)
    {
        if (!is_same_wait(w, wait))
            continue;
        if (n == 0 && w != wait)
            return 0;
        n++;
    }
    return n;
}

static void show_why(const struct show *s)
{
    const cJSON *w, *waits = child(s->root, "waits");
    char since[CELL_MAX], until[CELL_MAX];

    if (cJSON_GetArraySize(waits) == 0)
        fprintf(s->out, "nothing waits\n");
    cJSON_ArrayForEach(w, waits)
    {
        uint32_t n = count_wait(waits, w);

        if (n == 0)
            continue;
        put(s->out, "", text(w, "what"), ": ");
        put(s->out, "", text(w, "who"), "");
        if (n > 1)
            fprintf(s->out, ", on %u shards", n);
        put(s->out, "; ", text(w, "why"), "; ");
        fprintf(s->out, "since %s",
                format_lasting(since, s->now_unix_ms - number(w, "since_unix_ms")));
        if (number(w, "until_unix_ms") > 0)
            fprintf(s->out, ", for %s more at most\n",
                    format_lasting(until, number(w, "until_unix_ms") - s->now_unix_ms));
        else
            fprintf(s->out, ", without a deadline\n");
    }
}

static void show_checkpoint(const struct show *s)
{
    double base = number(s->root, "base");
    char cell[CELL_MAX], kind[CELL_MAX] = "full";

    if (base > 0)
        snprintf(kind, sizeof kind, "a delta to %.0f", base);
    fprintf(s->out, "checkpoint %.0f is written: %s, %.0f rows in %s, %.3f s\n",
            number(s->root, "number"), kind, number(s->root, "rows"),
            format_bytes(cell, number(s->root, "bytes")), number(s->root, "ms") / 1000);
}

static void show_floats(const struct show *s, const char *name)
{
    const cJSON *x;

    if (cJSON_GetArraySize(child(s->root, name)) == 0)
        return;
    fprintf(s->out, "%-12s", name);
    cJSON_ArrayForEach(x, child(s->root, name))
    {
        if (cJSON_IsString(x))
            put(s->out, " ", x->valuestring, "");
        else
            fprintf(s->out, " %.9g", x->valuedouble);
    }
    fputc('\n', s->out);
}

static void show_push(const struct show *s)
{
    const cJSON *push = child(s->root, "pushed_by");

    fprintf(s->out, "pushed by    ");
    if (number(s->root, "version") == 0) {
        fprintf(s->out, "nobody yet\n");
        return;
    }
    if (!push) {
        fprintf(s->out, "not among the last 65,536 pushes of its shard\n");
        return;
    }
    if (text(push, "job")[0])
        put(s->out, "job ", text(push, "job"), "");
    else
        fprintf(s->out, "a job that is gone");
    fprintf(s->out, ", clock %.0f", number(push, "clock"));
    if (cJSON_IsTrue(child(push, "combined"))) {
        fprintf(s->out, " of lock step, all its workers together\n");
        return;
    }
    fprintf(s->out, ": rank %.0f", number(push, "rank"));
    put(s->out, ", incarnation ", text(push, "incarnation"), "");
    fprintf(s->out, ", push number %.0f\n", number(push, "seq"));
}

static void show_row(const struct show *s)
{
    put(s->out, "row ", text(s->root, "key"), "");
    put(s->out, " of ", text(s->root, "table"), "");
    fprintf(s->out, ", on shard %.0f of node %.0f", number(s->root, "shard"),
            number(s->root, "node"));
    if (!cJSON_IsTrue(child(s->root, "found"))) {
        fprintf(s->out, ": there is none; a pull reads its initial weights\n");
        return;
    }
    fprintf(s->out, "\nversion      %.0f, %.0f touches\n", number(s->root, "version"),
            number(s->root, "touches"));
    show_push(s);
    show_floats(s, "weights");
    put(s->out, "optimizer    ", text(s->root, "optimizer"), "\n");
    show_floats(s, "state");
}

static const struct {
    const char *name, *must_have; /* a field without which it is another program's answer */
    void (*show)(const struct show *s);
} commands[] = {
    { "status", "totals", show_status },         { "tables", "tables", show_tables },
    { "workers", "jobs", show_workers },         { "why", "waits", show_why },
    { "checkpoint", "number", show_checkpoint }, { "row", "found", show_row },
};

bool show_answer(const char *command, const char *json, FILE *out)
{
    cJSON *root = cJSON_Parse(json);
    struct show s = { .out = out, .root = root, .now_unix_ms = number(root, "now_unix_ms") };
    bool shown = false;

    for (size_t i = 0; i < COUNT_OF(commands); i++)
        if (strcmp(commands[i].name, command) == 0 && child(root, commands[i].must_have)) {
            commands[i].show(&s);
            shown = true;
        }
    cJSON_Delete(root);
    return shown;
}
