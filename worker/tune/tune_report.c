#include "worker/tune/tune_report.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/log_line.h"
#include "common/memory.h"
#include "common/number.h"
#include "common/svg.h"
#include "worker/atomic_file.h"

/* ---- which is best ---- */

double tune_report_loss(const struct tune *t, const struct trial_result *result)
{
    return t->given->best_by == BEST_BY_LOGLOSS ? result->logloss : 1 - result->auc;
}

/* Of its last rung. */
static const struct trial_result *last_of(const struct trial *trial)
{
    return &trial->results[trial->n_rungs - 1];
}

static bool is_better(const struct tune *t, const struct trial *a, const struct trial *b)
{
    if (a->n_rungs != b->n_rungs)
        return a->n_rungs > b->n_rungs;
    return a->n_rungs && tune_report_loss(t, last_of(a)) < tune_report_loss(t, last_of(b));
}

/* All trials, the best first; [t->n], the caller's to free. */
static uint32_t *order_trials(const struct tune *t)
{
    uint32_t *order = memory_alloc(t->n * sizeof *order);

    for (uint32_t i = 0; i < t->n; i++) {
        uint32_t at = i;

        for (; at > 0 && is_better(t, &t->trials[i], &t->trials[order[at - 1]]); at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    return order;
}

uint32_t tune_report_best(const struct tune *t)
{
    uint32_t best = t->n;

    for (uint32_t i = 0; i < t->n; i++)
        if (t->trials[i].n_rungs &&
            (best == t->n || is_better(t, &t->trials[i], &t->trials[best])))
            best = i;
    return best;
}

/* ---- what mattered ---- */

struct point {
    double place, loss;
};

static int by_place(const void *a, const void *b)
{
    const struct point *x = a, *y = b;

    return x->place < y->place ? -1 : x->place > y->place;
}

/* The first rung's trials whose value stands somewhere, in the order of their values. */
static uint32_t find_points(const struct tune *t, uint32_t setting, struct point *ret)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->n; i++) {
        const double place =
            search_space_place(&t->space.settings[setting], t->trials[i].values[setting]);

        if (t->trials[i].n_rungs && isfinite(place))
            ret[n++] = (struct point){ place, tune_report_loss(t, &t->trials[i].results[0]) };
    }
    qsort(ret, n, sizeof *ret, by_place);
    return n;
}

/* Where bin `bin`, which begins at `start`, ends. */
static uint32_t find_bin_end(const struct search_space_setting *setting,
                             const struct point *points, uint32_t n, uint32_t bin,
                             uint32_t start)
{
    const uint32_t n_bins = n / 3 < TUNE_REPORT_BINS ? n / 3 : TUNE_REPORT_BINS;
    uint32_t end = start + 1;

    if (setting->kind != SEARCH_SPACE_CHOICE && n_bins)
        end = bin + 1 < n_bins ? n * (bin + 1) / n_bins : n;
    if (end <= start)
        end = start + 1;
    while (end < n && !(points[end].place > points[end - 1].place))
        end++;
    return end < n ? end : n;
}

static double spread_of(const struct tune *t, uint32_t setting)
{
    struct point *points = memory_alloc(t->n * sizeof *points);
    const uint32_t n = find_points(t, setting, points);
    double least = INFINITY, most = -INFINITY;
    uint32_t n_bins = 0;

    for (uint32_t start = 0, end; start < n; start = end, n_bins++) {
        double mean = 0;

        end = find_bin_end(&t->space.settings[setting], points, n, n_bins, start);
        for (uint32_t i = start; i < end; i++)
            mean += points[i].loss / (end - start);
        least = fmin(least, mean);
        most = fmax(most, mean);
    }
    free(points);
    return n_bins > 1 ? most - least : (double)NAN;
}

static int by_spread(const void *a, const void *b)
{
    const struct tune_report_setting *x = a, *y = b;
    const double p = isfinite(x->spread) ? x->spread : -1,
                 q = isfinite(y->spread) ? y->spread : -1;

    if (p > q || p < q)
        return p > q ? -1 : 1;
    return x->setting < y->setting ? -1 : 1;
}

void tune_report_settings(const struct tune *t, struct tune_report_setting *ret)
{
    for (uint32_t i = 0; i < t->space.n; i++)
        ret[i] = (struct tune_report_setting){ i, spread_of(t, i) };
    qsort(ret, t->space.n, sizeof *ret, by_spread);
}

/* ---- the best command ---- */

/* As a shell's word. */
static void put_word(FILE *out, const char *word)
{
    const char *at = word;

    while (*at && (isalnum((unsigned char)*at) || strchr("-_./:=,@%+", *at)))
        at++;
    if (*word && !*at) {
        fputs(word, out);
        return;
    }
    fputc('\'', out);
    for (; *word; word++)
        if (*word == '\'')
            fputs("'\\''", out);
        else
            fputc(*word, out);
    fputc('\'', out);
}

/* A setting of tune, or one that the trial has another value of. */
static bool is_replaced(const struct tune *t, const char *name, size_t len, uint32_t trial)
{
    static const char *const own[] = {
        "trials", "search", "halving", "parallel", "svg", "json"
    };

    for (size_t i = 0; i < COUNT_OF(own); i++)
        if (strlen(own[i]) == len && strncmp(own[i], name, len) == 0)
            return true;
    for (uint32_t i = 0; i < t->space.n && trial; i++)
        if (strlen(t->space.settings[i].row->name) == len &&
            strncmp(t->space.settings[i].row->name, name, len) == 0)
            return true;
    return false;
}

static void put_given(const struct tune *t, uint32_t trial, FILE *out)
{
    for (char *const *word = t->words; *word; word++) {
        const char *name = strncmp(*word, "--", 2) == 0 ? *word + 2 : NULL;
        const size_t len = name ? strcspn(name, "=") : 0;

        if (name && is_replaced(t, name, len, trial)) {
            if (!name[len] && word[1] && strncmp(word[1], "--", 2) != 0)
                word++;
            continue;
        }
        fputc(' ', out);
        put_word(out, *word);
    }
}

/* The first trial has the settings as given. */
char *tune_report_command(const struct tune *t, uint32_t trial)
{
    char *text = NULL;
    size_t n;
    FILE *out = memory_need(open_memstream(&text, &n));

    fputs("psworker train", out);
    put_given(t, trial, out);
    for (uint32_t i = 0; i < t->space.n && trial; i++) {
        fprintf(out, " --%s ", t->space.settings[i].row->name);
        put_word(out, t->trials[trial].values[i]);
    }
    fclose(out);
    return memory_need(text);
}

/* ---- lines ---- */

static cJSON *settings_json(const struct tune *t, uint32_t trial)
{
    cJSON *settings = cJSON_CreateObject();

    for (uint32_t i = 0; i < t->space.n; i++)
        cJSON_AddStringToObject(settings, t->space.settings[i].row->name,
                                t->trials[trial].values[i]);
    return settings;
}

static void put_json(const struct tune *t, cJSON *line)
{
    char *text = memory_need(cJSON_PrintUnformatted(line));

    fprintf(t->json, "%s\n", text);
    fflush(t->json);
    cJSON_free(text);
    cJSON_Delete(line);
}

static cJSON *trial_json(const struct tune *t, const char *event, uint32_t trial)
{
    const struct trial *it = &t->trials[trial];
    cJSON *line = cJSON_CreateObject();

    cJSON_AddStringToObject(line, "event", event);
    cJSON_AddNumberToObject(line, "trial", trial + 1);
    cJSON_AddNumberToObject(line, "rungs", it->n_rungs);
    if (it->n_rungs) {
        cJSON_AddNumberToObject(line, "share", t->plan.share[it->n_rungs - 1]);
        cJSON_AddNumberToObject(line, "auc", last_of(it)->auc);
        cJSON_AddNumberToObject(line, "logloss", last_of(it)->logloss);
        cJSON_AddNumberToObject(line, "seconds", last_of(it)->seconds);
    }
    if (it->why[0])
        cJSON_AddStringToObject(line, "error", it->why);
    cJSON_AddItemToObject(line, "settings", settings_json(t, trial));
    return line;
}

/* "lr 0.01, dim 16" */
static void describe(const struct tune *t, uint32_t trial, char ret[static 400])
{
    size_t at = 0;

    ret[0] = 0;
    for (uint32_t i = 0; i < t->space.n && at < 400; i++)
        at += (size_t)snprintf(ret + at, 400 - at, "%s%s %s", i ? ", " : "",
                               t->space.settings[i].row->name, t->trials[trial].values[i]);
}

void tune_report_trial(const struct tune *t, uint32_t trial)
{
    const struct trial *it = &t->trials[trial];
    char settings[400];

    describe(t, trial, settings);
    if (it->why[0])
        log_line_warn("trial %u failed: %s (%s)", trial + 1, it->why, settings);
    else
        log_line_info("trial %u: AUC %.4f, log-loss %.4f, %.1f s (%s)", trial + 1,
                      last_of(it)->auc, last_of(it)->logloss, last_of(it)->seconds, settings);
    if (t->json)
        put_json(t, trial_json(t, "trial", trial));
}

/* ---- the end ---- */

/* ret: [t->space.n], of the columns of settings */
static void find_widths(const struct tune *t, int *ret)
{
    for (uint32_t i = 0; i < t->space.n; i++) {
        size_t width = strlen(t->space.settings[i].row->name);

        for (uint32_t j = 0; j < t->n; j++)
            if (strlen(t->trials[j].values[i]) > width)
                width = strlen(t->trials[j].values[i]);
        ret[i] = (int)width;
    }
}

static void print_trial(const struct tune *t, uint32_t trial, const int *widths)
{
    const struct trial *it = &t->trials[trial];

    printf("%5u", trial + 1);
    if (it->n_rungs)
        printf("  %6.3g%%  %6.4f  %8.4f  %7.1f", 100 * t->plan.share[it->n_rungs - 1],
               last_of(it)->auc, last_of(it)->logloss, last_of(it)->seconds);
    else
        printf("  %7s  %6s  %8s  %7s", it->why[0] ? "failed" : "-", "-", "-", "-");
    for (uint32_t i = 0; i < t->space.n; i++)
        printf("  %*s", widths[i], it->values[i]);
    putchar('\n');
}

static void print_table(const struct tune *t)
{
    uint32_t *order = order_trials(t);
    int widths[SEARCH_SPACE_MAX];

    find_widths(t, widths);
    printf("%5s  %7s  %6s  %8s  %7s", "trial", "rows", "AUC", "log-loss", "seconds");
    for (uint32_t i = 0; i < t->space.n; i++)
        printf("  %*s", widths[i], t->space.settings[i].row->name);
    putchar('\n');
    for (uint32_t i = 0; i < t->n; i++)
        print_trial(t, order[i], widths);
    free(order);
}

static void print_settings(const struct tune *t)
{
    struct tune_report_setting settings[SEARCH_SPACE_MAX];

    tune_report_settings(t, settings);
    printf("\nWhat mattered: by how much the mean %s of its best values is better than that of "
           "its worst,\non the first rung, with %.3g %% of the rows\n",
           t->given->best_by == BEST_BY_LOGLOSS ? "log-loss" : "AUC", 100 * t->plan.share[0]);
    for (uint32_t i = 0; i < t->space.n; i++)
        if (isfinite(settings[i].spread))
            printf("  %-20s  %.4f\n", t->space.settings[settings[i].setting].row->name,
                   settings[i].spread);
        else
            printf("  %-20s  too few trials\n",
                   t->space.settings[settings[i].setting].row->name);
}

static void put_end_json(const struct tune *t, uint32_t best, const char *command)
{
    struct tune_report_setting settings[SEARCH_SPACE_MAX];
    cJSON *line = best < t->n ? trial_json(t, "tune", best) : cJSON_CreateObject(), *mattered;

    if (best == t->n)
        cJSON_AddStringToObject(line, "event", "tune");
    cJSON_AddNumberToObject(line, "trials", t->n);
    cJSON_AddNumberToObject(line, "failed", t->n_failed);
    cJSON_AddBoolToObject(line, "stopped_early", t->is_stopped);
    mattered = cJSON_AddObjectToObject(line, "mattered");
    tune_report_settings(t, settings);
    for (uint32_t i = 0; i < t->space.n; i++)
        cJSON_AddNumberToObject(mattered, t->space.settings[settings[i].setting].row->name,
                                settings[i].spread);
    if (command)
        cJSON_AddStringToObject(line, "command", command);
    put_json(t, line);
}

void tune_report_end(const struct tune *t)
{
    const uint32_t best = tune_report_best(t);
    char *command = best < t->n ? tune_report_command(t, best) : NULL;

    if (t->json)
        put_end_json(t, best, command);
    if (t->json != stdout) {
        print_table(t);
        if (best < t->n)
            print_settings(t);
        printf("\n%u trial%s, %u failed%s\n", t->n, NUMBER_PLURAL(t->n), t->n_failed,
               t->is_stopped ? ", stopped by a signal" : "");
        if (command)
            printf("\nThe best is trial %u:\n%s\n", best + 1, command);
    }
    free(command);
}

/* ---- the picture ---- */

#define COLUMNS 2u
#define CELL_WIDTH 380.0
#define CELL_HEIGHT 230.0
#define LEFT 62.0
#define RIGHT 18.0
#define TOP 44.0 /* of all; below are cells */
#define CELL_TOP 28.0
#define CELL_BOTTOM 30.0

static const char style[] =
    "<style>\n"
    "svg { color-scheme: light dark; background: #fff; --ink: #222; --grid: #ddd; --a: "
    "#1f5fbf;\n"
    "  --b: #b5410c; }\n"
    "@media (prefers-color-scheme: dark) { svg { background: #14171a; --ink: #ddd;\n"
    "  --grid: #333a40; --a: #78a9ff; --b: #ff9a62; } }\n"
    "text { fill: var(--ink); font: 12px system-ui, sans-serif; } .grid { stroke: var(--grid); "
    "}\n"
    ".axis { stroke: var(--ink); fill: none; } circle { opacity: .75; }\n"
    ".early { fill: var(--grid); stroke: var(--ink); } .late { fill: var(--a); }\n"
    ".best { fill: var(--b); opacity: 1; stroke: var(--ink); }\n"
    "</style>\n";

static void put_x_axis(const struct search_space_setting *setting, struct svg_frame *f,
                       FILE *out)
{
    const double step = setting->kind == SEARCH_SPACE_EVEN ? svg_range_round(&f->x, 5) : 1;
    char text[SVG_NUMBER_MAX];

    if (setting->kind == SEARCH_SPACE_CHOICE) {
        f->x = (struct svg_range){ -0.5, setting->n_choices - 0.5 };
        for (uint32_t i = 0; i < setting->n_choices; i++)
            svg_put_x_tick(out, f, i, setting->choices[i]);
        return;
    }
    if (setting->kind == SEARCH_SPACE_LOG)
        f->x = (struct svg_range){ floor(f->x.min + 1e-9), ceil(f->x.max - 1e-9) };
    for (double x = f->x.min; x <= f->x.max + step / 2; x += step) {
        svg_number(text, setting->kind == SEARCH_SPACE_LOG ? pow(10, x) : x);
        svg_put_x_tick(out, f, x, text);
    }
}

static void put_trials(const struct tune *t, uint32_t setting, const struct svg_frame *f,
                       FILE *out)
{
    const uint32_t best = tune_report_best(t);
    uint32_t *order = order_trials(t);

    for (uint32_t i = t->n; i-- > 0;) { /* the best on top */
        const struct trial *it = &t->trials[order[i]];
        const double place =
            search_space_place(&t->space.settings[setting], it->values[setting]);
        char settings[400], title[520];

        if (!it->n_rungs || !isfinite(place))
            continue;
        describe(t, order[i], settings);
        snprintf(title, sizeof title, "trial %u: %.4f (%s)", order[i] + 1,
                 tune_report_loss(t, &it->results[0]), settings);
        svg_put_dot(out, f, place, tune_report_loss(t, &it->results[0]),
                    order[i] == best             ? "best"
                    : it->n_rungs == t->rung + 1 ? "late"
                                                 : "early",
                    title);
    }
    free(order);
}

/* Losses of the first rung, which all trials have been on. */
static struct svg_range find_losses(const struct tune *t)
{
    struct svg_range r = svg_range_empty;

    for (uint32_t i = 0; i < t->n; i++)
        if (t->trials[i].n_rungs)
            svg_range_add(&r, tune_report_loss(t, &t->trials[i].results[0]));
    return r;
}

/* The range that is searched, and the first trial's value, which may be outside. */
static struct svg_range find_places(const struct tune *t, uint32_t setting)
{
    const struct search_space_setting *of = &t->space.settings[setting];
    const bool is_log = of->kind == SEARCH_SPACE_LOG;
    struct svg_range r = { is_log ? log10(of->low) : of->low,
                           is_log ? log10(of->high) : of->high };

    for (uint32_t i = 0; i < t->n; i++)
        if (t->trials[i].n_rungs)
            svg_range_add(&r, search_space_place(of, t->trials[i].values[setting]));
    return r;
}

static void put_cell(const struct tune *t, const struct tune_report_setting *what, double left,
                     double top, FILE *out)
{
    const struct search_space_setting *setting = &t->space.settings[what->setting];
    struct svg_frame f = { .x = find_places(t, what->setting),
                           .y = find_losses(t),
                           .left = left + LEFT,
                           .top = top + CELL_TOP,
                           .width = CELL_WIDTH - LEFT - RIGHT,
                           .height = CELL_HEIGHT - CELL_TOP - CELL_BOTTOM };
    const double step = svg_range_round(&f.y, 5);
    char title[160];

    if (isfinite(what->spread))
        snprintf(title, sizeof title, "%s: %.4f", setting->row->name, what->spread);
    else
        snprintf(title, sizeof title, "%s", setting->row->name);
    svg_put_text(out, f.left, f.top - 9, "start", title);
    put_x_axis(setting, &f, out);
    svg_put_y_axis(out, &f, step);
    put_trials(t, what->setting, &f, out);
}

static void put_svg(const struct tune *t, FILE *out)
{
    struct tune_report_setting settings[SEARCH_SPACE_MAX];
    const uint32_t n_rows = (t->space.n + COLUMNS - 1) / COLUMNS,
                   n_columns = t->space.n < COLUMNS ? t->space.n : COLUMNS;
    const double width = n_columns * CELL_WIDTH, height = TOP + n_rows * CELL_HEIGHT;

    tune_report_settings(t, settings);
    fprintf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
        "height=\"%.0f\" role=\"img\" aria-label=\"loss over settings\">\n%s",
        width, height, width, height, style);
    svg_put_text(out, 12, 20, "start",
                 t->given->best_by == BEST_BY_LOGLOSS
                     ? "Log-loss (lower is better) of each trial, by setting"
                     : "1 - AUC (lower is better) of each trial, by setting");
    svg_put_text(
        out, 12, 37, "start",
        "and the spread of its means. Filled: went on to the last rung; red: the best");
    for (uint32_t i = 0; i < t->space.n; i++)
        put_cell(t, &settings[i], i % COLUMNS * CELL_WIDTH, TOP + i / COLUMNS * CELL_HEIGHT,
                 out);
    fputs("</svg>\n", out);
}

int tune_report_write_svg(const struct tune *t, struct err *err)
{
    char *text = NULL;
    size_t n_bytes;
    FILE *out = memory_need(open_memstream(&text, &n_bytes));
    struct err why;
    int status;

    put_svg(t, out);
    fclose(out);
    status = atomic_file_write(t->given->svg, memory_need(text), n_bytes, &why);
    free(text);
    return status ? err_set(err, status, "--svg: %.300s cannot be written: %s", t->given->svg,
                            strerror(-status))
                  : 0;
}
