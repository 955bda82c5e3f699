#include "deploy/psctl/top.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/memory.h"
#include "common/number.h"
#include "deploy/psctl/cluster_query.h"
#include "deploy/psctl/cluster_rates.h"
#include "deploy/psctl/cluster_report.h"
#include "deploy/psctl/data_dir.h"
#include "deploy/psctl/field.h"
#include "deploy/psctl/fold.h"
#include "deploy/psctl/text_grid.h"

#define TIMEOUT_MS 2000 /* keys wait for a node that does not answer */
#define BUSY_CPU 0.9
#define HEIGHT_MIN 5u

/* --- shards --- */

struct shard_line {
    const cJSON *node, *shard; /* borrowed */
    struct cluster_rates rates;
    double pull_ns, push_ns, bytes, lag;
};

static double p99_of(const cJSON *shard, const char *type)
{
    return field_number(field_child(field_child(shard, "requests"), type), "p99_ns");
}

static double value_of(const struct shard_line *l, enum top_sort sort)
{
    switch (sort) {
    case TOP_BY_ROWS:
        return l->rates.rows;
    case TOP_BY_LATENCY:
        return l->pull_ns > l->push_ns ? l->pull_ns : l->push_ns;
    case TOP_BY_MEMORY:
        return l->bytes;
    case TOP_BY_LAG:
        return l->lag;
    case TOP_BY_NUMBER:
        break;
    }
    return -field_number(l->shard, "shard");
}

/* The greatest first; few shards, and nearly in order from frame to frame. */
static void sort_lines(struct shard_line *lines, uint32_t n, enum top_sort sort)
{
    for (uint32_t i = 1; i < n; i++) {
        struct shard_line line = lines[i];
        uint32_t at = i;

        for (; at && value_of(&lines[at - 1], sort) < value_of(&line, sort); at--)
            lines[at] = lines[at - 1];
        lines[at] = line;
    }
}

static uint32_t count_shards(const cJSON *after)
{
    const cJSON *node;
    int n = 0;

    cJSON_ArrayForEach(node, field_child(after, "nodes")) n +=
        cJSON_GetArraySize(field_child(node, "shards"));
    return (uint32_t)n;
}

/* All of them. */
static uint32_t fill_lines(const cJSON *before, const cJSON *after, struct shard_line *lines)
{
    const cJSON *node, *shard;
    uint32_t n = 0;

    cJSON_ArrayForEach(node, field_child(after, "nodes"))
    {
        cJSON_ArrayForEach(shard, field_child(node, "shards"))
        {
            const cJSON *log = field_child(shard, "log");

            lines[n++] = (struct shard_line){
                .node = node,
                .shard = shard,
                .rates = cluster_rates_of(before, node, shard),
                .pull_ns = p99_of(shard, "pull"),
                .push_ns = p99_of(shard, "push"),
                .bytes = field_number(shard, "bytes"),
                .lag = field_number(log, "records") - field_number(log, "durable"),
            };
        }
    }
    return n;
}

static void add_rate(struct text_grid *g, const struct cluster_rates *r, double value)
{
    char cell[FIELD_CELL_MAX];

    text_grid_add(g, "%s", r->seconds > 0 ? field_format_short(cell, value) : "-");
}

static void add_line(struct text_grid *g, const struct shard_line *l)
{
    double parked = field_number(field_child(l->shard, "net"), "parked_pulls");
    char cell[FIELD_CELL_MAX];

    text_grid_add(g, "%.0f", field_number(l->shard, "shard"));
    text_grid_add(g, "%.0f", field_number(l->node, "node"));
    add_rate(g, &l->rates, l->rates.rows);
    add_rate(g, &l->rates, l->rates.pulls);
    add_rate(g, &l->rates, l->rates.pushes);
    text_grid_add(g, "%s", field_format_ns(cell, l->pull_ns));
    text_grid_add(g, "%s", field_format_ns(cell, l->push_ns));
    text_grid_add(g, "%s/s", field_format_bytes(cell, l->rates.bytes));
    text_grid_add(g, "%.0f %%", l->rates.cpu * 100);
    text_grid_paint(g, l->rates.cpu > BUSY_CPU ? TERMINAL_YELLOW : TERMINAL_PLAIN);
    text_grid_add(g, "%s", field_format_bytes(cell, l->bytes));
    text_grid_add(g, "%s", field_format_short(cell, l->lag));
    text_grid_add(g, "%.0f", parked);
}

static void print_shards(const cJSON *before, const cJSON *after, const struct top_view *view,
                         FILE *out)
{
    static const char *const heads[] = { "SHARD",     "NODE",     "ROWS/S",   "2PULLS/S",
                                         "2PUSHES/S", "P99 PULL", "P99 PUSH", "3BYTES/S",
                                         "CPU",       "MEMORY",   "LOG LAG",  "1PARKED" };
    uint32_t n = count_shards(after);
    struct shard_line *lines = memory_alloc((n + 1) * sizeof *lines);
    struct text_grid g;

    n = fill_lines(before, after, lines);
    sort_lines(lines, n, view->sort);
    text_grid_init(&g, heads, COUNT_OF(heads));
    for (uint32_t i = 0; i < n; i++)
        add_line(&g, &lines[i]);
    fputc('\n', out);
    text_grid_finish(&g, &view->terminal, out);
    free(lines);
}

/* --- jobs --- */

static double greatest_clock(const cJSON *job)
{
    const cJSON *w;
    double most = 0;

    cJSON_ArrayForEach(w, field_child(job, "workers"))
    {
        double clock = field_number(w, "clock");

        most = clock > most ? clock : most;
    }
    return most;
}

static uint32_t count_live(const cJSON *job)
{
    const cJSON *w;
    uint32_t n = 0;

    cJSON_ArrayForEach(w, field_child(job, "workers")) n +=
        strcmp(field_text(w, "state"), "live") == 0;
    return n;
}

static void add_per_s(struct text_grid *g, double grown, bool is_known, double seconds)
{
    if (is_known && seconds > 0)
        text_grid_add(g, "%.1f", grown > 0 ? grown / seconds : 0);
    else
        text_grid_add(g, "-");
}

/* Tables whose names begin with the job's. */
static bool is_of_job(const cJSON *table, const char *job)
{
    const size_t n = strlen(job);
    const char *name = field_text(table, "name");

    return strncmp(name, job, n) == 0 && name[n] == '/';
}

static double bytes_of(const cJSON *tables, const char *job)
{
    const cJSON *t;
    double bytes = 0;

    cJSON_ArrayForEach(t, tables) bytes += is_of_job(t, job) ? field_number(t, "bytes") : 0;
    return bytes;
}

/* A worker's rate is what it last said: of a job that a silent node holds up it may be of before. */
static bool stands_still(const cJSON *job, const cJSON *old)
{
    return old && greatest_clock(job) <= greatest_clock(old);
}

/* now: of the later reports, which are one there. */
static void drop_old_rates(const cJSON *after, const cJSON *then, cJSON *now)
{
    bool is_one_silent = false;
    const cJSON *node;
    cJSON *job, *w;

    cJSON_ArrayForEach(node, field_child(after, "nodes")) is_one_silent =
        is_one_silent || field_child(node, "error");
    if (!is_one_silent)
        return;
    cJSON_ArrayForEach(job, cJSON_GetObjectItemCaseSensitive(now, "jobs"))
    {
        const cJSON *old =
            field_find(field_child(then, "jobs"), "name", field_text(job, "name"));

        if (!stands_still(job, old))
            continue;
        cJSON_DeleteItemFromObjectCaseSensitive(job, "samples_per_s");
        cJSON_ArrayForEach(w, cJSON_GetObjectItemCaseSensitive(job, "workers"))
            cJSON_DeleteItemFromObjectCaseSensitive(w, "samples_per_s");
    }
}

static void add_job(struct text_grid *g, const cJSON *job, const cJSON *old,
                    const cJSON *tables, double seconds)
{
    char cell[FIELD_CELL_MAX];
    double clock = greatest_clock(job), least = field_number(job, "min_clock"),
           waited = field_number(job, "parked_ms") - field_number(old, "parked_ms"),
           deaths = field_number(job, "deaths");

    text_grid_add(g, "%s", field_text(job, "name"));
    if (strcmp(field_text(job, "mode"), "ssp") == 0)
        text_grid_add(g, "ssp %.0f", field_number(job, "bound"));
    else
        text_grid_add(g, "%s", field_text(job, "mode"));
    text_grid_add(g, "%u of %.0f", count_live(job), field_number(job, "n_workers"));
    text_grid_add(g, "%.0f", clock);
    add_per_s(g, clock - greatest_clock(old), old != NULL, seconds);
    text_grid_add(g, "%s", field_format_maybe(cell, job, "samples_per_s", 0));
    text_grid_add(g, "%s", field_format_maybe(cell, job, "loss", 4));
    text_grid_add(g, "%s", field_format_maybe(cell, job, "auc", 4));
    text_grid_add(g, "%.0f", clock > least ? clock - least : 0);
    text_grid_add(g, "%.0f", field_number(job, "staleness_p99"));
    text_grid_add(g, "%.0f", field_number(job, "staleness_max"));
    if (old && seconds > 0)
        text_grid_add(g, "%.0f %%", waited / 10 / seconds);
    else
        text_grid_add(g, "-");
    text_grid_add(g, "%s", field_format_bytes(cell, bytes_of(tables, field_text(job, "name"))));
    text_grid_add(g, "%.0f", deaths);
    text_grid_paint(g, deaths > 0 ? TERMINAL_YELLOW : TERMINAL_PLAIN);
}

static void print_jobs(const cJSON *before, const cJSON *after, double seconds,
                       const struct top_view *view, FILE *out)
{
    static const char *const heads[] = { "<JOB",      "<MODE",      "LIVE",       "2CLOCK",
                                         "1CLOCKS/S", "SAMPLES/S",  "LOSS",       "AUC",
                                         "BEHIND",    "2P99 STALE", "3MAX STALE", "1WAITED",
                                         "2MEMORY",   "2DEATHS" };
    const cJSON *jobs = field_child(after, "jobs"), *job;
    struct text_grid g;

    fputc('\n', out);
    if (!cJSON_GetArraySize(jobs)) {
        fputs("no job has come\n", out);
        return;
    }
    text_grid_init(&g, heads, COUNT_OF(heads));
    if (view->has_keys)
        g.marked = view->selected;
    cJSON_ArrayForEach(job, jobs) add_job(
        &g, job, field_find(field_child(before, "jobs"), "name", field_text(job, "name")),
        field_child(after, "tables"), seconds);
    text_grid_finish(&g, &view->terminal, out);
}

/* --- one job --- */

static const cJSON *worker_of(const cJSON *job, double rank)
{
    const cJSON *w;

    cJSON_ArrayForEach(w, field_child(job, "workers")) if (field_number(w, "rank") ==
                                                           rank) return w;
    return NULL;
}

static void print_workers(const cJSON *job, const cJSON *old, double seconds,
                          const struct top_view *view, FILE *out)
{
    static const char *const heads[] = { "RANK",      "<STATE",    "CLOCK",
                                         "1CLOCKS/S", "BEHIND",    "SAMPLES/S",
                                         "LOSS",      "1HEARD OF", "<2NAME" };
    double first = greatest_clock(job);
    char cell[FIELD_CELL_MAX];
    struct text_grid g;
    const cJSON *w;

    text_grid_init(&g, heads, COUNT_OF(heads));
    cJSON_ArrayForEach(w, field_child(job, "workers"))
    {
        const cJSON *was = worker_of(old, field_number(w, "rank"));
        bool is_live = strcmp(field_text(w, "state"), "live") == 0;

        text_grid_add(&g, "%.0f", field_number(w, "rank"));
        text_grid_add(&g, "%s", field_text(w, "state"));
        text_grid_paint(&g, is_live ? TERMINAL_GREEN : TERMINAL_YELLOW);
        text_grid_add(&g, "%.0f", field_number(w, "clock"));
        add_per_s(&g, field_number(w, "clock") - field_number(was, "clock"), was != NULL,
                  seconds);
        text_grid_add(&g, "%.0f", first - field_number(w, "clock"));
        text_grid_add(&g, "%s", field_format_maybe(cell, w, "samples_per_s", 0));
        text_grid_add(&g, "%s", field_format_maybe(cell, w, "loss", 4));
        text_grid_add(&g, "%s ago", field_format_lasting(cell, field_number(w, "silent_ms")));
        text_grid_add(&g, "%s", field_text(w, "name"));
    }
    fputc('\n', out);
    text_grid_finish(&g, &view->terminal, out);
}

static double rows_moved(const cJSON *table)
{
    return field_number(table, "rows_pulled") + field_number(table, "rows_pushed");
}

static void print_tables(const cJSON *before, const cJSON *after, const char *job,
                         double seconds, const struct top_view *view, FILE *out)
{
    static const char *const heads[] = { "<TABLE", "<KIND", "ROWS", "MEMORY", "ROWS/S" };
    char cell[FIELD_CELL_MAX];
    struct text_grid g;
    const cJSON *t;

    text_grid_init(&g, heads, COUNT_OF(heads));
    cJSON_ArrayForEach(t, field_child(after, "tables"))
    {
        const cJSON *was =
            field_find(field_child(before, "tables"), "name", field_text(t, "name"));

        if (!is_of_job(t, job))
            continue;
        text_grid_add(&g, "%s", field_text(t, "name"));
        text_grid_add(&g, "%s", field_text(t, "kind"));
        text_grid_add(&g, "%.0f", field_number(t, "rows"));
        text_grid_add(&g, "%s", field_format_bytes(cell, field_number(t, "bytes")));
        add_per_s(&g, rows_moved(t) - rows_moved(was), was != NULL, seconds);
    }
    fputc('\n', out);
    text_grid_finish(&g, &view->terminal, out);
}

static void print_job(const cJSON *before, const cJSON *after, double seconds,
                      const struct top_view *view, FILE *out)
{
    const cJSON *job = cJSON_GetArrayItem(field_child(after, "jobs"), (int)view->selected);
    const char *name = field_text(job, "name");
    const cJSON *old = field_find(field_child(before, "jobs"), "name", name);
    char cells[2][FIELD_CELL_MAX];

    field_put(out, "\njob ", name, "");
    fprintf(out, ": %s, min clock %.0f, loss %s, AUC %s (psctl job has its curve)\n",
            field_text(job, "mode"), field_number(job, "min_clock"),
            field_format_maybe(cells[0], job, "loss", 4),
            field_format_maybe(cells[1], job, "auc", 4));
    print_workers(job, old, seconds, view, out);
    print_tables(before, after, name, seconds, view, out);
}

/* --- a frame --- */

static void print_head(const cJSON *before, const cJSON *after, const cJSON *now,
                       const struct terminal *terminal, FILE *out)
{
    const int n_nodes = cJSON_GetArraySize(field_child(after, "nodes")),
              n_jobs = cJSON_GetArraySize(field_child(now, "jobs")),
              n_waits = cJSON_GetArraySize(field_child(now, "waits"));
    const uint32_t n_shards = count_shards(after);
    double rows_per_s = 0, bytes_per_s = 0, rows = 0, bytes = 0;
    const cJSON *node, *shard;
    char cells[4][FIELD_CELL_MAX], when[16] = "", text[400];
    time_t seconds = time(NULL);
    struct tm local;

    cJSON_ArrayForEach(node, field_child(after, "nodes"))
    {
        rows += field_number(field_child(node, "totals"), "rows");
        bytes += field_number(field_child(node, "totals"), "bytes");
        cJSON_ArrayForEach(shard, field_child(node, "shards"))
        {
            struct cluster_rates r = cluster_rates_of(before, node, shard);

            rows_per_s += r.rows;
            bytes_per_s += r.bytes;
        }
    }
    if (localtime_r(&seconds, &local))
        strftime(when, sizeof when, "%H:%M:%S", &local);
    snprintf(text, sizeof text,
             "%s  %d node%s, %u shard%s, %d job%s; %s rows/s, %s/s; %s rows in %s; %d wait%s\n",
             when, n_nodes, NUMBER_PLURAL(n_nodes), n_shards, NUMBER_PLURAL(n_shards), n_jobs,
             NUMBER_PLURAL(n_jobs), field_format_short(cells[0], rows_per_s),
             field_format_bytes(cells[1], bytes_per_s), field_format_short(cells[2], rows),
             field_format_bytes(cells[3], bytes), n_waits, NUMBER_PLURAL(n_waits));
    fold_print(text, terminal, out);
}

static void print_silent_nodes(const cJSON *after, const struct terminal *terminal, FILE *out)
{
    const cJSON *node;

    cJSON_ArrayForEach(node, field_child(after, "nodes"))
    {
        if (!field_child(node, "error"))
            continue;
        fprintf(out, "%snode %.0f does not answer: ", terminal_begin(terminal, TERMINAL_RED),
                field_number(node, "node"));
        field_put(out, "", field_text(node, "error"), "");
        fprintf(out, "%s\n", terminal_end(terminal, TERMINAL_RED));
    }
}

static double longest_seconds(const cJSON *before, const cJSON *after)
{
    const cJSON *node;
    double most = 0;

    cJSON_ArrayForEach(node, field_child(after, "nodes"))
    {
        double s = cluster_rates_seconds(before, node);

        most = s > most ? s : most;
    }
    return most;
}

uint32_t top_print(const cJSON *before, const cJSON *after, const struct top_view *view,
                   FILE *out)
{
    cJSON *old = cluster_report_merge(before), *now = cluster_report_merge(after);
    uint32_t n_jobs = (uint32_t)cJSON_GetArraySize(field_child(now, "jobs"));
    double seconds = longest_seconds(before, after);

    drop_old_rates(after, old, now);
    print_head(before, after, now, &view->terminal, out);
    print_silent_nodes(after, &view->terminal, out);
    if (view->is_open && view->selected < n_jobs) {
        print_job(old, now, seconds, view, out);
    } else {
        print_shards(before, after, view, out);
        print_jobs(old, now, seconds, view, out);
    }
    cJSON_Delete(old);
    cJSON_Delete(now);
    return n_jobs;
}

/* --- keys --- */

bool top_press(struct top_view *view, uint32_t n_jobs, const char *key)
{
    static const char sorts[] = "nrlmg"; /* by enum top_sort */
    const char *sort = key[0] && !key[1] ? strchr(sorts, key[0]) : NULL;

    if (sort)
        view->sort = (enum top_sort)(sort - sorts);
    else if (strcmp(key, "\033[A") == 0 || strcmp(key, "k") == 0)
        view->selected -= view->selected > 0;
    else if (strcmp(key, "\033[B") == 0 || strcmp(key, "j") == 0)
        view->selected += view->selected + 1 < n_jobs;
    else if (strcmp(key, "\n") == 0 || strcmp(key, "\r") == 0)
        view->is_open = view->selected < n_jobs && !view->is_open;
    else if (view->is_open && (strcmp(key, "\033") == 0 || strcmp(key, "q") == 0))
        view->is_open = false;
    else
        return strcmp(key, "q") != 0 && strcmp(key, "\003") != 0;
    return true;
}

/* --- the screen --- */

struct screen {
    struct termios before;
    int signals; /* signalfd of those that end top */
};

/* Before other threads are started, such as those that look names up: they block what this one does. */
static void block_signals(sigset_t *ret)
{
    sigemptyset(ret);
    sigaddset(ret, SIGTERM);
    sigaddset(ret, SIGINT);
    sigaddset(ret, SIGHUP);
    pthread_sigmask(SIG_BLOCK, ret, NULL);
}

static bool screen_open(struct screen *s, const sigset_t *set)
{
    struct termios raw;

    if (tcgetattr(STDIN_FILENO, &s->before) != 0)
        return false;
    s->signals = signalfd(-1, set, SFD_CLOEXEC);
    raw = s->before;
    raw.c_lflag &= (tcflag_t) ~(ICANON | ECHO | ISIG);
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    fputs("\033[?1049h\033[?25l", stdout); /* another screen, without a cursor */
    return s->signals >= 0;
}

static void screen_close(struct screen *s)
{
    fputs("\033[?25h\033[?1049l", stdout);
    fflush(stdout);
    tcsetattr(STDIN_FILENO, TCSANOW, &s->before);
    close(s->signals);
}

/* As many lines as fit, each to its end, and the last line of the screen: a wider one would move all the others up. */
static void screen_show(const char *text, const struct top_view *view)
{
    const struct terminal *t = &view->terminal;
    const char *keys = view->is_open ? "q, Esc: back"
                                     : "r rows/s, l latency, m memory, g log lag, n number; "
                                       "arrows, Enter: job; q: end";
    struct winsize size = { 0 };
    uint32_t height = 24, n = 0;

    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row >= HEIGHT_MIN)
        height = size.ws_row;
    fputs("\033[H", stdout);
    for (const char *end; n + 1 < height && (end = strchr(text, '\n')) != NULL;
         text = end + 1, n++)
        printf("%.*s\033[K\n", (int)(end - text), text);
    printf("\033[J\033[%u;1H%s%.*s%s", height, terminal_begin(t, TERMINAL_DIM),
           t->width ? (int)t->width : 80, keys, terminal_end(t, TERMINAL_DIM));
    fflush(stdout);
}

/* Keys that were pressed one behind the other; those of several bytes are ESC [ and a letter. */
static bool press_all(struct top_view *view, uint32_t n_jobs, const char *keys, size_t n)
{
    bool goes_on = true;

    for (size_t i = 0, len; i < n && goes_on; i += len) {
        char key[4] = "";

        len = n - i >= 3 && keys[i] == '\033' && keys[i + 1] == '[' ? 3 : 1;
        memcpy(key, &keys[i], len);
        goes_on = top_press(view, n_jobs, key);
    }
    return goes_on;
}

/* Waits for a key until the time is over. False: a key or a signal ends top. */
static bool wait_for_keys(struct screen *s, struct top_view *view, uint32_t n_jobs,
                          uint64_t until_ms, bool *ret_pressed)
{
    struct pollfd fds[] = { { .fd = STDIN_FILENO, .events = POLLIN },
                            { .fd = s->signals, .events = POLLIN } };
    uint64_t now_ms = clock_mono_ms();
    char keys[64];
    ssize_t n;

    *ret_pressed = false;
    if (now_ms >= until_ms || poll(fds, COUNT_OF(fds), (int)(until_ms - now_ms)) <= 0)
        return true;
    if (fds[1].revents)
        return false;
    n = read(STDIN_FILENO, keys, sizeof keys);
    *ret_pressed = n > 0;
    return n > 0 && press_all(view, n_jobs, keys, (size_t)n);
}

static uint32_t show(const cJSON *before, const cJSON *after, struct top_view *view)
{
    char *text = NULL;
    size_t n_bytes;
    FILE *out = open_memstream(&text, &n_bytes);
    uint32_t n_jobs;

    if (!out)
        abort(); /* only without memory */
    view->terminal = terminal_of(stdout, false);
    n_jobs = top_print(before, after, view, out);
    if (fclose(out) != 0)
        abort();
    screen_show(text, view);
    free(text);
    return n_jobs;
}

/* Until q, a signal, or --count frames. */
static void run_on_screen(struct cluster_query *q, const struct options *o, const sigset_t *set)
{
    cJSON *before = cluster_rates_ask(q), *after = cJSON_Duplicate(before, true);
    struct top_view view = { .sort = TOP_BY_NUMBER, .has_keys = true };
    struct screen screen = { .signals = -1 };
    uint32_t n_frames = 0, n_jobs;
    bool goes_on = screen_open(&screen, set), is_pressed;

    while (goes_on && (!o->count || n_frames <= o->count)) { /* the first has no rates yet */
        uint64_t until_ms = clock_mono_ms() + o->every_ms;

        do {
            n_jobs = show(before, after, &view);
            goes_on = wait_for_keys(&screen, &view, n_jobs, until_ms, &is_pressed);
        } while (goes_on && is_pressed);
        n_frames++;
        cJSON_Delete(before);
        before = after;
        after = cluster_rates_ask(q);
    }
    screen_close(&screen);
    cJSON_Delete(before);
    cJSON_Delete(after);
}

/* --- as JSON --- */

static void put_rate(cJSON *to, const char *name, bool is_known, double value)
{
    if (is_known)
        cJSON_AddNumberToObject(to, name, value);
    else
        cJSON_AddNullToObject(to, name);
}

static cJSON *shard_json(const struct shard_line *l)
{
    const struct cluster_rates *r = &l->rates;
    cJSON *to = cJSON_CreateObject();

    cJSON_AddNumberToObject(to, "shard", field_number(l->shard, "shard"));
    cJSON_AddNumberToObject(to, "node", field_number(l->node, "node"));
    put_rate(to, "rows_per_s", r->seconds > 0, r->rows);
    put_rate(to, "pulls_per_s", r->seconds > 0, r->pulls);
    put_rate(to, "pushes_per_s", r->seconds > 0, r->pushes);
    put_rate(to, "bytes_per_s", r->seconds > 0, r->bytes);
    put_rate(to, "cpu", r->seconds > 0, r->cpu);
    cJSON_AddNumberToObject(to, "pull_p99_ns", l->pull_ns);
    cJSON_AddNumberToObject(to, "push_p99_ns", l->push_ns);
    cJSON_AddNumberToObject(to, "bytes", l->bytes);
    cJSON_AddNumberToObject(to, "log_lag_records", l->lag);
    cJSON_AddNumberToObject(to, "parked_pulls",
                            field_number(field_child(l->shard, "net"), "parked_pulls"));
    return to;
}

/* null: no worker has said it, or psd does not know it. */
static void put_learning(cJSON *to, const cJSON *job, const char *name)
{
    put_rate(to, name, cJSON_IsNumber(field_child(job, name)), field_number(job, name));
}

static cJSON *job_json(const cJSON *job, const cJSON *old, const cJSON *tables, double seconds)
{
    cJSON *to = cJSON_CreateObject();
    double waited = field_number(job, "parked_ms") - field_number(old, "parked_ms");

    cJSON_AddStringToObject(to, "name", field_text(job, "name"));
    cJSON_AddStringToObject(to, "mode", field_text(job, "mode"));
    cJSON_AddNumberToObject(to, "live", count_live(job));
    cJSON_AddNumberToObject(to, "workers", field_number(job, "n_workers"));
    cJSON_AddNumberToObject(to, "min_clock", field_number(job, "min_clock"));
    cJSON_AddNumberToObject(to, "max_clock", greatest_clock(job));
    put_rate(to, "clocks_per_s", old && seconds > 0,
             (greatest_clock(job) - greatest_clock(old)) / seconds);
    put_learning(to, job, "samples_per_s");
    put_learning(to, job, "loss");
    put_learning(to, job, "auc");
    cJSON_AddNumberToObject(to, "staleness_p99", field_number(job, "staleness_p99"));
    cJSON_AddNumberToObject(to, "staleness_max", field_number(job, "staleness_max"));
    put_rate(to, "waited_share", old && seconds > 0, waited / 1000 / seconds);
    cJSON_AddNumberToObject(to, "deaths", field_number(job, "deaths"));
    cJSON_AddNumberToObject(to, "bytes", bytes_of(tables, field_text(job, "name")));
    return to;
}

cJSON *top_json(const cJSON *before, const cJSON *after)
{
    cJSON *root = cJSON_CreateObject(), *nodes = cJSON_AddArrayToObject(root, "nodes"),
          *shards = cJSON_AddArrayToObject(root, "shards"),
          *jobs = cJSON_AddArrayToObject(root, "jobs"), *now = cluster_report_merge(after),
          *then = cluster_report_merge(before);
    struct shard_line *lines = memory_alloc((count_shards(after) + 1) * sizeof *lines);
    uint32_t n = fill_lines(before, after, lines);
    const cJSON *node, *job;

    drop_old_rates(after, then, now);
    cJSON_ArrayForEach(node, field_child(after, "nodes"))
    {
        cJSON *to = cJSON_CreateObject();

        cJSON_AddNumberToObject(to, "node", field_number(node, "node"));
        if (field_child(node, "error"))
            cJSON_AddStringToObject(to, "error", field_text(node, "error"));
        cJSON_AddItemToArray(nodes, to);
    }
    for (uint32_t i = 0; i < n; i++)
        cJSON_AddItemToArray(shards, shard_json(&lines[i]));
    cJSON_ArrayForEach(job, field_child(now, "jobs")) cJSON_AddItemToArray(
        jobs,
        job_json(job, field_find(field_child(then, "jobs"), "name", field_text(job, "name")),
                 field_child(now, "tables"), longest_seconds(before, after)));
    cJSON_Delete(now);
    cJSON_Delete(then);
    free(lines);
    return root;
}

/* Frames one behind the other, for a file or a pipe. */
static int run_as_text(struct cluster_query *q, const struct options *o)
{
    struct top_view view = { .terminal = terminal_of(stdout, o->output == OPTIONS_WIDE) };
    cJSON *before = cluster_rates_ask(q), *after;
    int code = EXIT_ANSWERED;

    for (uint32_t i = 0; !o->count || i < o->count; i++) {
        cluster_rates_wait(o->every_ms);
        after = cluster_rates_ask(q);
        if (i && !o->json)
            putchar('\n');
        if (o->json)
            data_dir_print_json(top_json(before, after));
        else
            top_print(before, after, &view, stdout);
        code = cluster_query_print_failures(q) ? EXIT_FAILED : EXIT_ANSWERED;
        cJSON_Delete(before);
        before = after;
        if (fflush(stdout) != 0)
            break;
    }
    cJSON_Delete(before);
    return code;
}

int top_run(const struct options *o, const char *const *words, uint32_t n_words)
{
    struct options hasty = *o;
    struct cluster_query q;
    const char *term = getenv("TERM");
    bool is_screen = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && !o->json &&
                     !(term && strcmp(term, "dumb") == 0);
    int code = EXIT_FAILED;
    sigset_t set;

    (void)words;
    (void)n_words;
    if (is_screen)
        block_signals(&set);
    hasty.timeout_ms = o->timeout_ms ? o->timeout_ms : TIMEOUT_MS;
    if (cluster_query_open(&q, &hasty)) {
        code = EXIT_ANSWERED;
        if (is_screen)
            run_on_screen(&q, &hasty, &set);
        else
            code = run_as_text(&q, &hasty);
    }
    cluster_query_close(&q);
    return code;
}
