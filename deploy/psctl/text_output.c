#include "deploy/psctl/text_output.h"

#include <string.h>

#include "common/number.h"
#include "deploy/psctl/field.h"
#include "deploy/psctl/fold.h"
#include "deploy/psctl/terminal.h"
#include "deploy/psctl/text_grid.h"

struct text_output {
    FILE *out;
    struct terminal terminal;
    bool is_wide;
    const cJSON *root; /* borrowed */
    double clock_unix_ms;
    uint32_t n_hidden; /* columns that did not fit */
};

#define OLD_REPORT_MS 2000 /* a shard's; psd makes several a second */

static void finish_grid(struct text_output *s, struct text_grid *g)
{
    uint32_t n = text_grid_finish(g, &s->terminal, s->out);

    s->n_hidden = n > s->n_hidden ? n : s->n_hidden;
}

/* Prints a text in a style. */
static void put_styled(struct text_output *s, enum terminal_style style, const char *value)
{
    fputs(terminal_begin(&s->terminal, style), s->out);
    field_put(s->out, "", value, "");
    fputs(terminal_end(&s->terminal, style), s->out);
}

static void put_count(FILE *out, const char *before, double n, const char *noun)
{
    fprintf(out, "%s%.0f %s%s", before, n, noun, NUMBER_PLURAL(n));
}

/* Of a node that has, or had, another member. */
static void put_replication(struct text_output *s, const cJSON *r)
{
    bool is_primary = strcmp(field_text(r, "role"), "primary") == 0;
    char cell[FIELD_CELL_MAX];

    if (!field_text(r, "peer")[0])
        return;
    field_put(s->out, is_primary ? "standby      " : "standby of   ", field_text(r, "peer"),
              ": ");
    put_styled(s, field_is_true(r, "in_sync") ? TERMINAL_GREEN : TERMINAL_YELLOW,
               field_text(r, "state"));
    if (strcmp(field_text(r, "state"), "no standby") != 0)
        fprintf(s->out, ", %.0f record%s and %.0f ms behind",
                field_number(r, "standby_lag_records"),
                NUMBER_PLURAL(field_number(r, "standby_lag_records")),
                field_number(r, "standby_lag_ms"));
    if (field_number(r, "gone_unix_ms") > 0)
        fprintf(s->out, ", %s for %s",
                strcmp(field_text(r, "state"), "no standby") == 0 ? "gone" : "silent",
                field_format_lasting(cell, s->clock_unix_ms - field_number(r, "gone_unix_ms")));
    fprintf(s->out, ", term %.0f\n", field_number(r, "term"));
}

static void put_coordination(struct text_output *s, const cJSON *c)
{
    if (!c)
        return;
    field_put(s->out, "coordination ", field_text(c, "service"), ": ");
    if (field_is_true(c, "away"))
        put_styled(s, TERMINAL_RED, "it does not answer, and no standby takes over");
    else
        put_styled(s, TERMINAL_GREEN, "it answers");
    fputc('\n', s->out);
}

static bool is_standby(const cJSON *node)
{
    return strcmp(field_text(field_child(node, "replication"), "role"), "standby") == 0;
}

static void text_output_node(struct text_output *s)
{
    const cJSON *r = s->root;
    const char *state = field_is_true(r, "stopping")  ? "stopping"
                        : field_is_true(r, "ready")   ? "ready"
                        : field_child(r, "restoring") ? "restoring"
                        : is_standby(r)               ? "standby"
                                                      : "starting";
    char cell[FIELD_CELL_MAX];

    field_put(s->out, "psd ", field_text(r, "version"), "");
    field_put(s->out, " at ", field_text(r, "address"), "");
    fprintf(s->out, ", node %.0f of %.0f, pid %.0f, up %s: ", field_number(r, "node"),
            field_number(r, "n_nodes"), field_number(r, "pid"),
            field_format_lasting(cell, s->clock_unix_ms - field_number(r, "started_unix_ms")));
    put_styled(s, field_is_true(r, "ready") ? TERMINAL_GREEN : TERMINAL_YELLOW, state);
    fputs(", ", s->out);
    put_styled(s, field_is_true(r, "healthy") ? TERMINAL_GREEN : TERMINAL_RED,
               field_text(r, "health"));
    fputc('\n', s->out);
    if (field_child(r, "restoring"))
        field_put(s->out, "restoring    ", field_text(field_child(r, "restoring"), "text"),
                  "\n");
    if (field_text(r, "http_address")[0])
        field_put(s->out,
                  field_child(r, "tls") ? "pages        https://" : "pages        http://",
                  field_text(r, "http_address"), "/\n");
    put_replication(s, field_child(r, "replication"));
    put_coordination(s, field_child(r, "coordination"));
}

static void text_output_totals(struct text_output *s)
{
    const cJSON *t = field_child(s->root, "totals"), *net = field_child(t, "net"),
                *counters = field_child(t, "counters");
    char cell[FIELD_CELL_MAX], max[FIELD_CELL_MAX];
    double limit = field_number(s->root, "memory_max_bytes"),
           n_waits = field_number(t, "n_waits"),
           n_violations = field_number(t, "staleness_violations"),
           n_nan = field_number(counters, "nan_pushes");

    fprintf(s->out, "rows         %.0f in %s of %s; the process holds ",
            field_number(t, "rows"), field_format_bytes(cell, field_number(t, "bytes")),
            limit > 0 ? field_format_bytes(max, limit) : "no limit");
    fprintf(s->out, "%s\n", field_format_bytes(cell, field_number(s->root, "rss_bytes")));
    fprintf(s->out,
            "workers      %.0f live, %.0f wait%s (psctl why), %.0f staleness violation%s\n",
            field_number(t, "live_workers"), n_waits, NUMBER_PLURAL(n_waits), n_violations,
            NUMBER_PLURAL(n_violations));
    put_count(s->out, "refused      ", field_number(net, "refused_requests"), "request");
    put_count(s->out, ", ", field_number(net, "refused_greetings"), "greeting");
    put_count(s->out, ", ", field_number(net, "malformed_frames"), "malformed frame");
    put_count(s->out, ", ", field_number(net, "slow_peers"), "slow peer");
    fprintf(s->out, ", %.0f push%s with NaN", n_nan, n_nan == 1 ? "" : "es");
    put_count(s->out, ", ", field_number(counters, "rows_refused"), "new row");
    fputc('\n', s->out);
}

static void text_output_checkpoints(struct text_output *s)
{
    const cJSON *c = field_child(s->root, "checkpoints"), *busy = field_child(c, "under_way");
    char cell[FIELD_CELL_MAX];

    fprintf(s->out, "checkpoints  %.0f done, %.0f failed", field_number(c, "done"),
            field_number(c, "failed"));
    if (field_number(c, "last_number") > 0)
        fprintf(s->out, "; the last is number %.0f", field_number(c, "last_number"));
    if (field_number(c, "last_unix_ms") > 0)
        fprintf(s->out, ", %s ago",
                field_format_lasting(cell, s->clock_unix_ms - field_number(c, "last_unix_ms")));
    if (field_text(c, "last_error")[0])
        field_put(s->out, "; it failed since: ", field_text(c, "last_error"), "");
    if (busy)
        fprintf(
            s->out, "; number %.0f is being written, since %s", field_number(busy, "number"),
            field_format_lasting(cell, s->clock_unix_ms - field_number(busy, "since_unix_ms")));
    fputc('\n', s->out);
}

static void text_output_disk(struct text_output *s)
{
    const cJSON *d = field_child(s->root, "disk");
    char cell[FIELD_CELL_MAX];

    if (!d)
        return;
    fprintf(s->out, "disk         checkpoints %s",
            field_format_bytes(cell, field_number(d, "checkpoint_bytes")));
    fprintf(s->out, ", write-ahead logs %s",
            field_format_bytes(cell, field_number(d, "log_bytes")));
    fprintf(s->out, ", archived %s", field_format_bytes(cell, field_number(d, "aside_bytes")));
    fprintf(s->out, ", %s free", field_format_bytes(cell, field_number(d, "free_bytes")));
    fprintf(s->out, " of %s", field_format_bytes(cell, field_number(d, "size_bytes")));
    if (field_number(d, "scrubbed_unix_ms") > 0)
        fprintf(
            s->out, "; read again %s ago: %.0f file%s damaged",
            field_format_lasting(cell, s->clock_unix_ms - field_number(d, "scrubbed_unix_ms")),
            field_number(d, "damaged_files"), NUMBER_PLURAL(field_number(d, "damaged_files")));
    if (field_text(d, "damage")[0])
        field_put(s->out, ": ", field_text(d, "damage"), "");
    fputc('\n', s->out);
}

static void add_shard(struct text_grid *g, double node, const cJSON *shard)
{
    const cJSON *net = field_child(shard, "net"), *counters = field_child(shard, "counters");
    const cJSON *requests = field_child(shard, "requests");
    double age_ms = field_number(shard, "report_age_ms");
    char cell[FIELD_CELL_MAX];

    text_grid_add(g, "%s", field_format_count(cell, field_number(shard, "shard")));
    if (node >= 0)
        text_grid_add(g, "%s", field_format_count(cell, node));
    if (field_is_true(shard, "reported"))
        text_grid_add(g, "%.1f s old", age_ms / 1000);
    else
        text_grid_add(g, "none");
    if (age_ms > OLD_REPORT_MS)
        text_grid_paint(g, TERMINAL_RED);
    text_grid_add(g, "%s", field_format_count(cell, field_number(shard, "rows")));
    text_grid_add(g, "%s", field_format_bytes(cell, field_number(shard, "bytes")));
    text_grid_add(g, "%s", field_format_count(cell, field_number(shard, "version")));
    text_grid_add(g, "%s", field_format_count(cell, field_number(net, "connections")));
    text_grid_add(g, "%s", field_format_count(cell, field_number(counters, "pulls")));
    text_grid_add(g, "%s",
                  field_format_ns(cell, field_number(field_child(requests, "pull"), "p99_ns")));
    text_grid_add(g, "%s", field_format_count(cell, field_number(counters, "pushes")));
    text_grid_add(g, "%s",
                  field_format_ns(cell, field_number(field_child(requests, "push"), "p99_ns")));
    text_grid_add(g, "%s", field_format_count(cell, field_number(net, "parked_pulls")));
    text_grid_add(g, "%s", field_format_count(cell, field_number(net, "refused_requests")));
    text_grid_add(g, "%s", field_format_count(cell, field_number(net, "malformed_frames")));
}

static const char *const shard_heads[] = { "SHARD",     "REPORT",       "ROWS",   "MEMORY",
                                           "2VERSION",  "4CONNECTIONS", "PULLS",  "P99",
                                           "PUSHES",    "P99",          "PARKED", "5REFUSED",
                                           "6MALFORMED" };

static void text_output_shards(struct text_output *s)
{
    struct text_grid g;
    const cJSON *shard;

    text_grid_init(&g, shard_heads, COUNT_OF(shard_heads));
    cJSON_ArrayForEach(shard, field_child(s->root, "shards")) add_shard(&g, -1, shard);
    fputc('\n', s->out);
    finish_grid(s, &g);
}

static void text_output_status(struct text_output *s)
{
    text_output_node(s);
    text_output_totals(s);
    text_output_checkpoints(s);
    text_output_disk(s);
    text_output_shards(s);
}

/* One node's lines; nothing of one that has not answered. */
static void put_member(struct text_output *s, const cJSON *node)
{
    s->root = node;
    s->clock_unix_ms = field_number(node, "now_unix_ms");
    text_output_node(s);
    text_output_totals(s);
    text_output_checkpoints(s);
    text_output_disk(s);
    fputc('\n', s->out);
}

static bool has_answered(const cJSON *node)
{
    return field_child(node, "totals") != NULL;
}

static void put_cluster(struct text_output *s, const cJSON *nodes)
{
    uint32_t n_ready = 0, n_answered = 0;
    double rows = 0, bytes = 0;
    char cell[FIELD_CELL_MAX];
    const cJSON *node;

    cJSON_ArrayForEach(node, nodes)
    {
        n_ready += field_is_true(node, "ready");
        n_answered += has_answered(node);
        rows += field_number(field_child(node, "totals"), "rows");
        bytes += field_number(field_child(node, "totals"), "bytes");
    }
    put_count(s->out, "cluster of ", cJSON_GetArraySize(nodes), "node");
    fprintf(s->out, ": %u answer%s, %u %s ready", n_answered, n_answered == 1 ? "s" : "",
            n_ready, n_ready == 1 ? "is" : "are");
    put_count(s->out, "; ", rows, "row");
    fprintf(s->out, " in %s\n\n", field_format_bytes(cell, bytes));
}

/* Of several nodes: their lines, and then all their shards. */
static void text_output_nodes(struct text_output *s)
{
    const char *heads[COUNT_OF(shard_heads) + 1] = { shard_heads[0], "NODE" };
    const cJSON *nodes = field_child(s->root, "nodes"), *node, *shard;
    struct text_grid g;

    memcpy(&heads[2], &shard_heads[1], sizeof shard_heads - sizeof *shard_heads);
    text_grid_init(&g, heads, COUNT_OF(heads));
    put_cluster(s, nodes);
    cJSON_ArrayForEach(node, nodes)
    {
        if (!has_answered(node))
            continue;
        put_member(s, node);
        cJSON_ArrayForEach(shard, field_child(node, "shards"))
            add_shard(&g, field_number(node, "node"), shard);
    }
    finish_grid(s, &g);
}

/* A limit of 0 is none. */
static void add_memory(struct text_grid *g, double n_bytes, double max)
{
    char held[FIELD_CELL_MAX], limit[FIELD_CELL_MAX];

    field_format_bytes(held, n_bytes);
    if (max > 0)
        text_grid_add(g, "%s of %s", held, field_format_bytes(limit, max));
    else
        text_grid_add(g, "%s", held);
}

/* How many bytes of the name stand before its tables' own: "criteo/" of criteo/emb; 0: none. */
static size_t prefix_of(const cJSON *table)
{
    const char *name = field_text(table, "name"), *slash = strchr(name, '/');

    return slash ? (size_t)(slash + 1 - name) : 0;
}

static bool is_dense_of(const cJSON *table, const char *prefix, size_t n)
{
    return strcmp(field_text(table, "kind"), "dense") == 0 && prefix_of(table) == n &&
           strncmp(field_text(table, "name"), prefix, n) == 0;
}

/* The dense tables of a job, as one. */
struct dense_group {
    uint32_t n;
    bool is_first; /* the table in question stands first among them */
    cJSON *sum;    /* NULL: fewer than two */
};

static void add_to_sum(cJSON *sum, const cJSON *table)
{
    static const char *const numbers[] = { "rows",        "bytes",        "rows_pulled",
                                           "rows_pushed", "rows_removed", "rows_unadmitted",
                                           "rows_refused" };
    static const char *const texts[] = { "optimizer", "mode", "storage" };

    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        cJSON *item = cJSON_GetObjectItemCaseSensitive(sum, numbers[i]);

        cJSON_SetNumberValue(item,
                             field_number(sum, numbers[i]) + field_number(table, numbers[i]));
    }
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        if (field_child(sum, texts[i]) &&
            strcmp(field_text(sum, texts[i]), field_text(table, texts[i])) != 0)
            cJSON_ReplaceItemInObjectCaseSensitive(sum, texts[i], cJSON_CreateString("mixed"));
    if (field_number(table, "pushes") > field_number(sum, "pushes"))
        cJSON_SetNumberValue(cJSON_GetObjectItemCaseSensitive(sum, "pushes"),
                             field_number(table, "pushes"));
    if (field_number(table, "learning_rate") != field_number(sum, "learning_rate"))
        cJSON_SetNumberValue(cJSON_GetObjectItemCaseSensitive(sum, "learning_rate"), 0);
}

static struct dense_group find_group(const cJSON *tables, const cJSON *table)
{
    struct dense_group group = { 0 };
    const char *prefix = field_text(table, "name");
    size_t n = prefix_of(table);
    char name[200];
    const cJSON *t;

    if (!n || !is_dense_of(table, prefix, n))
        return group;
    cJSON_ArrayForEach(t, tables)
    {
        if (!is_dense_of(t, prefix, n))
            continue;
        group.is_first = group.is_first || (group.n == 0 && t == table);
        if (group.n++ == 0 && group.is_first)
            group.sum = cJSON_Duplicate(t, true);
        else if (group.sum)
            add_to_sum(group.sum, t);
        else
            return group; /* the first has its line for all */
    }
    if (group.n < 2) {
        cJSON_Delete(group.sum);
        group.sum = NULL;
        return group;
    }
    snprintf(name, sizeof name, "%.*s (%u dense)", (int)(n - 1), prefix, group.n);
    cJSON_ReplaceItemInObjectCaseSensitive(group.sum, "name", cJSON_CreateString(name));
    return group;
}

static void add_table(struct text_grid *g, const cJSON *t, bool is_group)
{
    double rate = field_number(t, "learning_rate"), refused = field_number(t, "rows_refused");
    char cell[FIELD_CELL_MAX];

    text_grid_add(g, "%s", field_text(t, "name"));
    text_grid_add(g, "%s", field_text(t, "kind"));
    text_grid_add(g, "%s", is_group ? "-" : field_format_count(cell, field_number(t, "dim")));
    text_grid_add(g, "%s", field_text(t, "optimizer"));
    if (is_group && rate == 0)
        text_grid_add(g, "-");
    else
        text_grid_add(g, "%g", rate);
    text_grid_add(g, "%s", field_text(t, "mode"));
    text_grid_add(g, "%s", field_text(t, "storage"));
    text_grid_add(g, "%s", field_format_count(cell, field_number(t, "rows")));
    add_memory(g, field_number(t, "bytes"), field_number(t, "bytes_max"));
    text_grid_add(g, "%.1f B", field_number(t, "overhead_bytes_per_row"));
    text_grid_add(g, "%s", field_format_count(cell, field_number(t, "pushes")));
    text_grid_add(g, "%s", field_format_count(cell, field_number(t, "rows_pulled")));
    text_grid_add(g, "%s", field_format_count(cell, field_number(t, "rows_pushed")));
    text_grid_add(g, "%s", field_format_count(cell, field_number(t, "rows_removed")));
    text_grid_add(g, "%s", field_format_count(cell, field_number(t, "rows_unadmitted")));
    text_grid_add(g, "%s", field_format_count(cell, refused));
    text_grid_paint(g, refused > 0 ? TERMINAL_RED : TERMINAL_PLAIN);
}

static void text_output_tables(struct text_output *s)
{
    static const char *const heads[] = { "<TABLE",  "<KIND",     "DIM",           "<2OPTIMIZER",
                                         "3RATE",   "<5MODE",    "<6STORED",      "ROWS",
                                         "MEMORY",  "7OVERHEAD", "PUSHES",        "1PULLED",
                                         "1PUSHED", "4REMOVED",  "8NOT ADMITTED", "4REFUSED" };
    const cJSON *tables = field_child(s->root, "tables"), *t;
    struct text_grid g;

    if (cJSON_GetArraySize(tables) == 0) {
        fprintf(s->out, "no table yet: the first job that needs one makes it\n");
        return;
    }
    text_grid_init(&g, heads, COUNT_OF(heads));
    cJSON_ArrayForEach(t, tables)
    {
        struct dense_group group = { 0 };

        if (!s->is_wide)
            group = find_group(tables, t);
        if (group.sum)
            add_table(&g, group.sum, true);
        else if (group.n == 0 || group.is_first)
            add_table(&g, t, false);
        cJSON_Delete(group.sum);
    }
    finish_grid(s, &g);
}

static double greatest_clock(const cJSON *workers)
{
    double max = 0;
    const cJSON *w;

    cJSON_ArrayForEach(w, workers) max =
        field_number(w, "clock") > max ? field_number(w, "clock") : max;
    return max;
}

/* One that is expected, or was given up before it came, was never heard of. */
static bool has_come(const cJSON *worker)
{
    return strcmp(field_text(worker, "state"), "expected") != 0 &&
           strcmp(field_text(worker, "state"), "lost") != 0;
}

static enum terminal_style style_of(const char *state)
{
    if (strcmp(state, "live") == 0)
        return TERMINAL_GREEN;
    if (strcmp(state, "suspected") == 0 || strcmp(state, "expected") == 0)
        return TERMINAL_YELLOW;
    return strcmp(state, "left") == 0 ? TERMINAL_PLAIN : TERMINAL_RED;
}

static void text_output_job(struct text_output *s, const cJSON *job)
{
    static const char *const heads[] = { "RANK",      "<STATE", "CLOCK",     "BEHIND",
                                         "SAMPLES/S", "LOSS",   "1HEARD OF", "<2NAME" };
    const cJSON *workers = field_child(job, "workers"), *w, *n;
    double first = greatest_clock(workers);
    char cell[FIELD_CELL_MAX];
    struct text_grid g;

    field_put(s->out, "job ", field_text(job, "name"), "");
    field_put(s->out, ": ", field_text(job, "mode"), "");
    if (strcmp(field_text(job, "mode"), "ssp") == 0)
        fprintf(s->out, " with bound %.0f", field_number(job, "bound"));
    fprintf(s->out, ", min clock %.0f", field_number(job, "min_clock"));
    put_count(s->out, ", ", field_number(job, "deaths"), "death");
    fprintf(s->out, ", %.0f fenced", field_number(job, "fenced"));
    put_count(s->out, ", ", field_number(job, "staleness_violations"), "staleness violation");
    fputc('\n', s->out);
    fprintf(s->out, "staleness of pulls, clocks:");
    cJSON_ArrayForEach(n, field_child(job, "staleness"))
        fprintf(s->out, " %s: %.0f ", n->string, n->valuedouble);
    fprintf(s->out, " max %.0f\n", field_number(job, "staleness_max"));
    text_grid_init(&g, heads, COUNT_OF(heads));
    cJSON_ArrayForEach(w, workers)
    {
        text_grid_add(&g, "%s", field_format_count(cell, field_number(w, "rank")));
        text_grid_add(&g, "%s", field_text(w, "state"));
        text_grid_paint(&g, style_of(field_text(w, "state")));
        text_grid_add(&g, "%s", field_format_count(cell, field_number(w, "clock")));
        text_grid_add(&g, "%s", field_format_count(cell, first - field_number(w, "clock")));
        text_grid_add(&g, "%s", field_format_maybe(cell, w, "samples_per_s", 0));
        text_grid_add(&g, "%s", field_format_maybe(cell, w, "loss", 4));
        if (has_come(w))
            text_grid_add(&g, "%s ago",
                          field_format_lasting(cell, field_number(w, "silent_ms")));
        else
            text_grid_add(&g, "never");
        text_grid_add(&g, "%s", field_text(w, "name"));
    }
    finish_grid(s, &g);
}

static void text_output_workers(struct text_output *s)
{
    const cJSON *jobs = field_child(s->root, "jobs"), *job;
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
    return strcmp(field_text(a, "what"), field_text(b, "what")) == 0 &&
           strcmp(field_text(a, "who"), field_text(b, "who")) == 0 &&
           strcmp(field_text(a, "why"), field_text(b, "why")) == 0;
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

static void text_output_why(struct text_output *s)
{
    const cJSON *w, *waits = field_child(s->root, "waits");
    char since[FIELD_CELL_MAX], until[FIELD_CELL_MAX];

    if (cJSON_GetArraySize(waits) == 0)
        fprintf(s->out, "nothing waits\n");
    cJSON_ArrayForEach(w, waits)
    {
        uint32_t n = count_wait(waits, w);

        if (n == 0)
            continue;
        put_styled(s, TERMINAL_YELLOW, field_text(w, "what"));
        fputs(": ", s->out);
        field_put(s->out, "", field_text(w, "who"), "");
        if (n > 1)
            fprintf(s->out, ", on %u shards", n);
        field_put(s->out, "; ", field_text(w, "why"), "; ");
        fprintf(
            s->out, "since %s",
            field_format_lasting(since, s->clock_unix_ms - field_number(w, "since_unix_ms")));
        if (field_number(w, "until_unix_ms") > 0)
            fprintf(s->out, ", for %s more at most\n",
                    field_format_lasting(until,
                                         field_number(w, "until_unix_ms") - s->clock_unix_ms));
        else
            fprintf(s->out, ", without a deadline\n");
    }
}

static void text_output_promote(struct text_output *s)
{
    fprintf(s->out, "this psd is the primary now\n");
}

static void text_output_switch(struct text_output *s)
{
    fprintf(s->out, "%s is the primary now; pushes waited for %.0f ms\n",
            field_text(s->root, "primary"), field_number(s->root, "took_ms"));
}

static void text_output_checkpoint(struct text_output *s)
{
    double base = field_number(s->root, "base");
    char cell[FIELD_CELL_MAX], kind[FIELD_CELL_MAX] = "full";

    if (base > 0)
        snprintf(kind, sizeof kind, "a delta to %.0f", base);
    fprintf(s->out, "checkpoint %.0f is written: %s, %.0f row%s in %s, %.3f s\n",
            field_number(s->root, "number"), kind, field_number(s->root, "rows"),
            NUMBER_PLURAL(field_number(s->root, "rows")),
            field_format_bytes(cell, field_number(s->root, "bytes")),
            field_number(s->root, "ms") / 1000);
}

static void text_output_floats(struct text_output *s, const char *name)
{
    const cJSON *x;

    if (cJSON_GetArraySize(field_child(s->root, name)) == 0)
        return;
    fprintf(s->out, "%-12s", name);
    cJSON_ArrayForEach(x, field_child(s->root, name))
    {
        if (cJSON_IsString(x))
            field_put(s->out, " ", x->valuestring, "");
        else
            fprintf(s->out, " %.9g", x->valuedouble);
    }
    fputc('\n', s->out);
}

static void text_output_push(struct text_output *s)
{
    const cJSON *push = field_child(s->root, "pushed_by");

    fprintf(s->out, "pushed by    ");
    if (field_number(s->root, "version") == 0) {
        fprintf(s->out, "nobody yet\n");
        return;
    }
    if (!push) {
        fprintf(s->out, "not among the last 65,536 pushes of its shard\n");
        return;
    }
    if (field_text(push, "job")[0])
        field_put(s->out, "job ", field_text(push, "job"), "");
    else
        fprintf(s->out, "a job that is gone");
    fprintf(s->out, ", clock %.0f", field_number(push, "clock"));
    if (field_is_true(push, "combined")) {
        fprintf(s->out, " of lock step, all its workers together\n");
        return;
    }
    fprintf(s->out, ": rank %.0f", field_number(push, "rank"));
    field_put(s->out, ", incarnation ", field_text(push, "incarnation"), "");
    fprintf(s->out, ", push number %.0f\n", field_number(push, "seq"));
}

static void text_output_row(struct text_output *s)
{
    field_put(s->out, "row ", field_text(s->root, "key"), "");
    field_put(s->out, " of ", field_text(s->root, "table"), "");
    fprintf(s->out, ", on shard %.0f of node %.0f", field_number(s->root, "shard"),
            field_number(s->root, "node"));
    if (!field_is_true(s->root, "found")) {
        fprintf(s->out, ": there is none; a pull reads its initial weights\n");
        return;
    }
    fprintf(s->out, "\nversion      %.0f, %.0f touches\n", field_number(s->root, "version"),
            field_number(s->root, "touches"));
    text_output_push(s);
    text_output_floats(s, "weights");
    field_put(s->out, "optimizer    ", field_text(s->root, "optimizer"), "\n");
    text_output_floats(s, "state");
}

/* Workers of a job that are in this state; "": all that are expected to go on. */
static uint32_t count_workers(const cJSON *job, const char *state)
{
    const cJSON *w;
    uint32_t n = 0;

    cJSON_ArrayForEach(w, field_child(job, "workers")) n +=
        strcmp(field_text(w, "state"), state) == 0;
    return n;
}

static void add_job(struct text_grid *g, const cJSON *job)
{
    uint32_t n_live = count_workers(job, "live");
    double first = greatest_clock(field_child(job, "workers")),
           deaths = field_number(job, "deaths"),
           violations = field_number(job, "staleness_violations");
    char cell[FIELD_CELL_MAX];

    text_grid_add(g, "%s", field_text(job, "name"));
    if (strcmp(field_text(job, "mode"), "ssp") == 0)
        text_grid_add(g, "ssp %.0f", field_number(job, "bound"));
    else
        text_grid_add(g, "%s", field_text(job, "mode"));
    text_grid_add(g, "%u of %.0f", n_live, field_number(job, "n_workers"));
    text_grid_add(g, "%s", field_format_count(cell, field_number(job, "min_clock")));
    text_grid_add(g, "%s", field_format_count(cell, first));
    text_grid_add(g, "%s", field_format_maybe(cell, job, "samples_per_s", 0));
    text_grid_add(g, "%s", field_format_maybe(cell, job, "loss", 4));
    text_grid_add(g, "%s", field_format_maybe(cell, job, "auc", 4));
    text_grid_add(g, "%s", field_format_count(cell, field_number(job, "staleness_p99")));
    text_grid_add(g, "%s", field_format_count(cell, field_number(job, "staleness_max")));
    text_grid_add(g, "%s", field_format_lasting(cell, field_number(job, "parked_ms")));
    text_grid_add(g, "%s", field_format_count(cell, deaths));
    text_grid_paint(g, deaths > 0 ? TERMINAL_YELLOW : TERMINAL_PLAIN);
    text_grid_add(g, "%s", field_format_count(cell, field_number(job, "fenced")));
    text_grid_add(g, "%s", field_format_count(cell, field_number(job, "lost_pushes")));
    text_grid_add(g, "%s", field_format_count(cell, violations));
    text_grid_paint(g, violations > 0 ? TERMINAL_RED : TERMINAL_PLAIN);
}

static void text_output_jobs(struct text_output *s)
{
    static const char *const heads[] = { "<JOB",       "<MODE",      "LIVE",       "MIN CLOCK",
                                         "1MAX CLOCK", "SAMPLES/S",  "LOSS",       "AUC",
                                         "2P99 STALE", "2MAX STALE", "1WAITED",    "DEATHS",
                                         "3FENCED",    "3LOST",      "2VIOLATIONS" };
    const cJSON *jobs = field_child(s->root, "jobs"), *job;
    struct text_grid g;

    if (cJSON_GetArraySize(jobs) == 0) {
        fprintf(s->out, "no job has come\n");
        return;
    }
    text_grid_init(&g, heads, COUNT_OF(heads));
    cJSON_ArrayForEach(job, jobs) add_job(&g, job);
    finish_grid(s, &g);
}

static const struct {
    const char *name, *must_have; /* a field without which it is another program's answer */
    void (*show)(struct text_output *s);
} commands[] = {
    { "status", "totals", text_output_status },
    { "status", "nodes", text_output_nodes },
    { "tables", "tables", text_output_tables },
    { "workers", "jobs", text_output_workers },
    { "jobs", "jobs", text_output_jobs },
    { "why", "waits", text_output_why },
    { "checkpoint", "number", text_output_checkpoint },
    { "promote", "role", text_output_promote },
    { "switch", "primary", text_output_switch },
    { "row", "found", text_output_row },
};

struct text_output_view text_output_on_stdout(bool is_wide)
{
    return (struct text_output_view){ .out = stdout,
                                      .terminal = terminal_of(stdout, is_wide),
                                      .is_wide = is_wide };
}

/* False: not what psd answers to this command. */
static bool print_answer(const char *command, const cJSON *root,
                         const struct text_output_view *view)
{
    struct text_output s = { .out = view->out,
                             .terminal = view->terminal,
                             .is_wide = view->is_wide,
                             .root = root,
                             .clock_unix_ms = field_number(root, "now_unix_ms") };

    for (size_t i = 0; i < COUNT_OF(commands); i++) {
        if (strcmp(commands[i].name, command) != 0 || !field_child(root, commands[i].must_have))
            continue;
        commands[i].show(&s);
        if (s.n_hidden) {
            fprintf(s.out, "%s%u column%s more: -o wide%s\n",
                    terminal_begin(&s.terminal, TERMINAL_DIM), s.n_hidden,
                    NUMBER_PLURAL(s.n_hidden), terminal_end(&s.terminal, TERMINAL_DIM));
        }
        return true;
    }
    return false;
}

bool text_output_answer(const char *command, const cJSON *root,
                        const struct text_output_view *view)
{
    struct text_output_view whole = *view;
    struct fold fold;
    bool is_answer;

    whole.out = fold_open(&fold);
    is_answer = print_answer(command, root, &whole);
    fold_close(&fold, &view->terminal, view->out);
    return is_answer;
}
