#include "deploy/psctl/text_output.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

void text_output_grid_init(struct text_output_grid *g, const char *const *heads,
                           uint32_t n_columns)
{
    assert(n_columns > 0 && n_columns <= TEXT_OUTPUT_COLUMNS_MAX);
    *g = (struct text_output_grid){ .heads = heads, .n_columns = n_columns };
}

/* Replaces what a terminal would obey, in place. */
static void text_output_grid_tame(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

static void push_cell(struct text_output_grid *g, char *cell)
{
    if (g->n_cells == g->cap_cells) {
        size_t cap = g->cap_cells ? g->cap_cells * 2 : 64;
        char **cells = memory_alloc(cap * sizeof *cells);

        if (g->n_cells)
            memcpy(cells, g->cells, g->n_cells * sizeof *cells);
        free(g->cells);
        g->cells = cells;
        g->cap_cells = cap;
    }
    g->cells[g->n_cells++] = cell;
}

void text_output_grid_add(struct text_output_grid *g, const char *fmt, ...)
{
    char text[512], *cell;
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    text_output_grid_tame(text);
    cell = memory_alloc(strlen(text) + 1);
    memcpy(cell, text, strlen(text) + 1);
    push_cell(g, cell);
}

static const char *head_text(const char *head)
{
    return head[0] == '<' ? head + 1 : head;
}

static void measure(const struct text_output_grid *g, size_t *widths)
{
    for (uint32_t c = 0; c < g->n_columns; c++)
        widths[c] = strlen(head_text(g->heads[c]));
    for (size_t i = 0; i < g->n_cells; i++)
        if (strlen(g->cells[i]) > widths[i % g->n_columns])
            widths[i % g->n_columns] = strlen(g->cells[i]);
}

static void print_cell(const struct text_output_grid *g, uint32_t column, const char *text,
                       size_t width, FILE *out)
{
    const char *gap = column ? "  " : "";
    int last = column + 1 == g->n_columns;

    if (g->heads[column][0] != '<')
        fprintf(out, "%s%*s", gap, (int)width, text);
    else
        fprintf(out, "%s%-*s", gap, last ? 0 : (int)width, text);
    if (last)
        fputc('\n', out);
}

void text_output_grid_finish(struct text_output_grid *g, FILE *out)
{
    size_t widths[TEXT_OUTPUT_COLUMNS_MAX];

    assert(g->n_cells % g->n_columns == 0);
    measure(g, widths);
    for (uint32_t c = 0; c < g->n_columns; c++)
        print_cell(g, c, head_text(g->heads[c]), widths[c], out);
    for (size_t i = 0; i < g->n_cells; i++) {
        uint32_t c = (uint32_t)(i % g->n_columns);

        print_cell(g, c, g->cells[i], widths[c], out);
    }
    text_output_grid_drop(g);
}

void text_output_grid_drop(struct text_output_grid *g)
{
    for (size_t i = 0; i < g->n_cells; i++)
        free(g->cells[i]);
    free(g->cells);
    *g = (struct text_output_grid){ 0 };
}

struct text_output {
    FILE *out;
    const cJSON *root; /* borrowed */
    double clock_unix_ms;
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

/* Space for what the format_* functions write. */
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
    text_output_grid_tame(tame);
    fprintf(out, "%s%s%s", before, tame, after);
}

static void text_output_node(const struct text_output *s)
{
    const cJSON *r = s->root;
    const char *state = cJSON_IsTrue(child(r, "stopping")) ? "stopping"
                        : cJSON_IsTrue(child(r, "ready"))  ? "ready"
                        : child(r, "restoring")            ? "restoring"
                                                           : "starting";
    char cell[CELL_MAX];

    put(s->out, "psd ", text(r, "version"), "");
    put(s->out, " at ", text(r, "address"), "");
    fprintf(s->out, ", node %.0f of %.0f, pid %.0f, up %s: %s", number(r, "node"),
            number(r, "n_nodes"), number(r, "pid"),
            format_lasting(cell, s->clock_unix_ms - number(r, "started_unix_ms")), state);
    put(s->out, ", ", text(r, "health"), "\n");
    if (child(r, "restoring"))
        put(s->out, "restoring    ", text(child(r, "restoring"), "text"), "\n");
    if (text(r, "http_address")[0])
        put(s->out, "pages        http://", text(r, "http_address"), "/\n");
}

static void text_output_totals(const struct text_output *s)
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

static void text_output_checkpoints(const struct text_output *s)
{
    const cJSON *c = child(s->root, "checkpoints"), *busy = child(c, "under_way");
    char cell[CELL_MAX];

    fprintf(s->out, "checkpoints  %.0f done, %.0f failed", number(c, "done"),
            number(c, "failed"));
    if (number(c, "last_number") > 0)
        fprintf(s->out, "; the last is number %.0f", number(c, "last_number"));
    if (number(c, "last_unix_ms") > 0)
        fprintf(s->out, ", %s ago",
                format_lasting(cell, s->clock_unix_ms - number(c, "last_unix_ms")));
    if (text(c, "last_error")[0])
        put(s->out, "; it failed since: ", text(c, "last_error"), "");
    if (busy)
        fprintf(s->out, "; number %.0f is being written, since %s", number(busy, "number"),
                format_lasting(cell, s->clock_unix_ms - number(busy, "since_unix_ms")));
    fputc('\n', s->out);
}

static void text_output_disk(const struct text_output *s)
{
    const cJSON *d = child(s->root, "disk");
    char cell[CELL_MAX];

    if (!d)
        return;
    fprintf(s->out, "disk         checkpoints %s",
            format_bytes(cell, number(d, "checkpoint_bytes")));
    fprintf(s->out, ", write-ahead logs %s", format_bytes(cell, number(d, "log_bytes")));
    fprintf(s->out, ", archived %s", format_bytes(cell, number(d, "aside_bytes")));
    fprintf(s->out, ", %s free", format_bytes(cell, number(d, "free_bytes")));
    fprintf(s->out, " of %s", format_bytes(cell, number(d, "size_bytes")));
    if (number(d, "scrubbed_unix_ms") > 0)
        fprintf(s->out, "; read again %s ago: %.0f files damaged",
                format_lasting(cell, s->clock_unix_ms - number(d, "scrubbed_unix_ms")),
                number(d, "damaged_files"));
    if (text(d, "damage")[0])
        put(s->out, ": ", text(d, "damage"), "");
    fputc('\n', s->out);
}

static void text_output_shards(const struct text_output *s)
{
    static const char *const heads[] = { "SHARD",    "REPORT",      "ROWS",   "MEMORY",
                                         "VERSION",  "CONNECTIONS", "PULLS",  "P99",
                                         "PUSHES",   "P99",         "PARKED", "REFUSED",
                                         "MALFORMED" };
    char cell[CELL_MAX];
    struct text_output_grid g;
    const cJSON *shard;

    text_output_grid_init(&g, heads, COUNT_OF(heads));
    cJSON_ArrayForEach(shard, child(s->root, "shards"))
    {
        const cJSON *net = child(shard, "net"), *counters = child(shard, "counters");
        const cJSON *requests = child(shard, "requests");

        text_output_grid_add(&g, "%s", format_count(cell, number(shard, "shard")));
        if (cJSON_IsTrue(child(shard, "reported")))
            text_output_grid_add(&g, "%.1f s old", number(shard, "report_age_ms") / 1000);
        else
            text_output_grid_add(&g, "none");
        text_output_grid_add(&g, "%s", format_count(cell, number(shard, "rows")));
        text_output_grid_add(&g, "%s", format_bytes(cell, number(shard, "bytes")));
        text_output_grid_add(&g, "%s", format_count(cell, number(shard, "version")));
        text_output_grid_add(&g, "%s", format_count(cell, number(net, "connections")));
        text_output_grid_add(&g, "%s", format_count(cell, number(counters, "pulls")));
        text_output_grid_add(&g, "%s",
                             format_ns(cell, number(child(requests, "pull"), "p99_ns")));
        text_output_grid_add(&g, "%s", format_count(cell, number(counters, "pushes")));
        text_output_grid_add(&g, "%s",
                             format_ns(cell, number(child(requests, "push"), "p99_ns")));
        text_output_grid_add(&g, "%s", format_count(cell, number(net, "parked_pulls")));
        text_output_grid_add(&g, "%s", format_count(cell, number(net, "refused_requests")));
        text_output_grid_add(&g, "%s", format_count(cell, number(net, "malformed_frames")));
    }
    fputc('\n', s->out);
    text_output_grid_finish(&g, s->out);
}

static void text_output_status(const struct text_output *s)
{
    text_output_node(s);
    text_output_totals(s);
    text_output_checkpoints(s);
    text_output_disk(s);
    text_output_shards(s);
}

/* A limit of 0 is none. */
static void add_memory(struct text_output_grid *g, double n_bytes, double max)
{
    char held[CELL_MAX], limit[CELL_MAX];

    format_bytes(held, n_bytes);
    if (max > 0)
        text_output_grid_add(g, "%s of %s", held, format_bytes(limit, max));
    else
        text_output_grid_add(g, "%s", held);
}

static void text_output_tables(const struct text_output *s)
{
    static const char *const heads[] = { "<TABLE", "<KIND",    "DIM",          "<OPTIMIZER",
                                         "RATE",   "<MODE",    "<STORED",      "ROWS",
                                         "MEMORY", "OVERHEAD", "PUSHES",       "PULLED",
                                         "PUSHED", "REMOVED",  "NOT ADMITTED", "REFUSED" };
    char cell[CELL_MAX];
    struct text_output_grid g;
    const cJSON *t;

    if (cJSON_GetArraySize(child(s->root, "tables")) == 0) {
        fprintf(s->out, "no table yet: the first job that needs one makes it\n");
        return;
    }
    text_output_grid_init(&g, heads, COUNT_OF(heads));
    cJSON_ArrayForEach(t, child(s->root, "tables"))
    {
        text_output_grid_add(&g, "%s", text(t, "name"));
        text_output_grid_add(&g, "%s", text(t, "kind"));
        text_output_grid_add(&g, "%s", format_count(cell, number(t, "dim")));
        text_output_grid_add(&g, "%s", text(t, "optimizer"));
        text_output_grid_add(&g, "%g", number(t, "learning_rate"));
        text_output_grid_add(&g, "%s", text(t, "mode"));
        text_output_grid_add(&g, "%s", text(t, "storage"));
        text_output_grid_add(&g, "%s", format_count(cell, number(t, "rows")));
        add_memory(&g, number(t, "bytes"), number(t, "bytes_max"));
        text_output_grid_add(&g, "%.1f B", number(t, "overhead_bytes_per_row"));
        text_output_grid_add(&g, "%s", format_count(cell, number(t, "pushes")));
        text_output_grid_add(&g, "%s", format_count(cell, number(t, "rows_pulled")));
        text_output_grid_add(&g, "%s", format_count(cell, number(t, "rows_pushed")));
        text_output_grid_add(&g, "%s", format_count(cell, number(t, "rows_removed")));
        text_output_grid_add(&g, "%s", format_count(cell, number(t, "rows_unadmitted")));
        text_output_grid_add(&g, "%s", format_count(cell, number(t, "rows_refused")));
    }
    text_output_grid_finish(&g, s->out);
}

static double greatest_clock(const cJSON *workers)
{
    double max = 0;
    const cJSON *w;

    cJSON_ArrayForEach(w, workers) max = number(w, "clock") > max ? number(w, "clock") : max;
    return max;
}

/* One that is expected, or was given up before it came, was never heard of. */
static bool has_come(const cJSON *worker)
{
    return strcmp(text(worker, "state"), "expected") != 0 &&
           strcmp(text(worker, "state"), "lost") != 0;
}

static void text_output_job(const struct text_output *s, const cJSON *job)
{
    static const char *const heads[] = { "RANK",   "<STATE",   "CLOCK",
                                         "BEHIND", "HEARD OF", "<NAME" };
    const cJSON *workers = child(job, "workers"), *w, *n;
    double first = greatest_clock(workers);
    char cell[CELL_MAX];
    struct text_output_grid g;

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
    text_output_grid_init(&g, heads, COUNT_OF(heads));
    cJSON_ArrayForEach(w, workers)
    {
        text_output_grid_add(&g, "%s", format_count(cell, number(w, "rank")));
        text_output_grid_add(&g, "%s", text(w, "state"));
        text_output_grid_add(&g, "%s", format_count(cell, number(w, "clock")));
        text_output_grid_add(&g, "%s", format_count(cell, first - number(w, "clock")));
        if (has_come(w))
            text_output_grid_add(&g, "%s ago", format_lasting(cell, number(w, "silent_ms")));
        else
            text_output_grid_add(&g, "never");
        text_output_grid_add(&g, "%s", text(w, "name"));
    }
    text_output_grid_finish(&g, s->out);
}

static void text_output_workers(const struct text_output *s)
{
    const cJSON *jobs = child(s->root, "jobs"), *job;
    bool first = true;

    cJSON_ArrayForEach(job, jobs)
    {
        if (!first)
            fputc('\n', s->out);
        text_output_job(s, job);
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

static void text_output_why(const struct text_output *s)
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
                format_lasting(since, s->clock_unix_ms - number(w, "since_unix_ms")));
        if (number(w, "until_unix_ms") > 0)
            fprintf(s->out, ", for %s more at most\n",
                    format_lasting(until, number(w, "until_unix_ms") - s->clock_unix_ms));
        else
            fprintf(s->out, ", without a deadline\n");
    }
}

static void text_output_promote(const struct text_output *s)
{
    fprintf(s->out, "this psd is the primary now\n");
}

static void text_output_checkpoint(const struct text_output *s)
{
    double base = number(s->root, "base");
    char cell[CELL_MAX], kind[CELL_MAX] = "full";

    if (base > 0)
        snprintf(kind, sizeof kind, "a delta to %.0f", base);
    fprintf(s->out, "checkpoint %.0f is written: %s, %.0f rows in %s, %.3f s\n",
            number(s->root, "number"), kind, number(s->root, "rows"),
            format_bytes(cell, number(s->root, "bytes")), number(s->root, "ms") / 1000);
}

static void text_output_floats(const struct text_output *s, const char *name)
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

static void text_output_push(const struct text_output *s)
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

static void text_output_row(const struct text_output *s)
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
    text_output_push(s);
    text_output_floats(s, "weights");
    put(s->out, "optimizer    ", text(s->root, "optimizer"), "\n");
    text_output_floats(s, "state");
}

static const struct {
    const char *name, *must_have; /* a field without which it is another program's answer */
    void (*show)(const struct text_output *s);
} commands[] = {
    { "status", "totals", text_output_status },
    { "tables", "tables", text_output_tables },
    { "workers", "jobs", text_output_workers },
    { "why", "waits", text_output_why },
    { "checkpoint", "number", text_output_checkpoint },
    { "promote", "role", text_output_promote },
    { "row", "found", text_output_row },
};

bool text_output_answer(const char *command, const char *json, FILE *out)
{
    cJSON *root = cJSON_Parse(json);
    struct text_output s = { .out = out,
                             .root = root,
                             .clock_unix_ms = number(root, "now_unix_ms") };
    bool shown = false;

    for (size_t i = 0; i < COUNT_OF(commands); i++)
        if (strcmp(commands[i].name, command) == 0 && child(root, commands[i].must_have)) {
            commands[i].show(&s);
            shown = true;
        }
    cJSON_Delete(root);
    return shown;
}
