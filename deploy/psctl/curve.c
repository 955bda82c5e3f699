#include "deploy/psctl/curve.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/number.h"
#include "common/svg.h"
#include "deploy/psctl/field.h"

/* NaN: not known. */
static double value_of(const cJSON *point, const char *name)
{
    const cJSON *item = field_child(point, name);

    return cJSON_IsNumber(item) ? item->valuedouble : (double)NAN;
}

/* ---- CSV ---- */

static void put_csv_value(const cJSON *point, const char *name, const char *format, FILE *out)
{
    const double value = value_of(point, name);

    fputc(',', out);
    if (isfinite(value))
        fprintf(out, format, value);
}

void curve_put_csv(const cJSON *points, FILE *out)
{
    const cJSON *p;

    fputs("unix_ms,clock,samples,samples_per_s,loss,auc,logloss\n", out);
    cJSON_ArrayForEach(p, points)
    {
        fprintf(out, "%.0f", field_number(p, "ms"));
        put_csv_value(p, "clock", "%.0f", out);
        put_csv_value(p, "samples", "%.0f", out);
        put_csv_value(p, "samples_per_s", "%.9g", out);
        put_csv_value(p, "loss", "%.9g", out);
        put_csv_value(p, "auc", "%.9g", out);
        put_csv_value(p, "logloss", "%.9g", out);
        fputc('\n', out);
    }
}

/* ---- ranges of values ---- */

static void widen(struct svg_range *r, const cJSON *points, const char *name)
{
    const cJSON *p;

    cJSON_ArrayForEach(p, points)
    {
        svg_range_add(r, name ? value_of(p, name) : (double)NAN);
    }
}

static struct svg_range range_of(const cJSON *points, const char *a, const char *b)
{
    struct svg_range r = svg_range_empty;

    widen(&r, points, a);
    widen(&r, points, b);
    return r;
}

/* ---- SVG ---- */

#define WIDTH 760.0
#define LEFT 84.0
#define RIGHT 24.0
#define PANEL 190.0
#define TOP 48.0     /* of the first panel's frame */
#define BETWEEN 58.0 /* of a panel's frame to the next */

struct panel {
    const char *title;
    struct {
        const char *field, *label, *style;
        bool has_dots; /* of few values: each is seen */
    } series[2];
};

static const struct panel panels[] = {
    { "loss (log-loss, lower is better)",
      { { "loss", "training, mean of each point", "a", false },
        { "logloss", "validation", "b", true } } },
    { "validation AUC (higher is better)", { { "auc", "validation", "b", true }, { 0 } } },
    { "samples per second", { { "samples_per_s", "all workers", "a", false }, { 0 } } },
};

/* The values of a field, by samples; *ret_x and *ret_y are the caller's to free. */
static size_t values_of(const cJSON *points, const char *field, double **ret_x, double **ret_y)
{
    const size_t n_max = (size_t)cJSON_GetArraySize(points);
    const cJSON *p;
    size_t n = 0;

    *ret_x = memory_alloc((n_max + 1) * sizeof **ret_x);
    *ret_y = memory_alloc((n_max + 1) * sizeof **ret_y);
    cJSON_ArrayForEach(p, points)
    {
        (*ret_x)[n] = field_number(p, "samples");
        (*ret_y)[n++] = value_of(p, field);
    }
    return n;
}

static void put_dots(FILE *out, const struct svg_frame *f, const double *x, const double *y,
                     size_t n, const char *style)
{
    char title[64];

    for (size_t i = 0; i < n; i++) {
        if (!isfinite(y[i]))
            continue;
        snprintf(title, sizeof title, "%.6g at %.0f samples", y[i], x[i]);
        svg_put_dot(out, f, x[i], y[i], style, title);
    }
}

static void put_series(FILE *out, const struct svg_frame *f, const cJSON *points,
                       const char *field, const char *style, bool has_dots)
{
    double *x, *y;
    const size_t n = values_of(points, field, &x, &y);

    svg_put_line(out, f, x, y, n, style);
    if (has_dots)
        put_dots(out, f, x, y, n, style);
    free(x);
    free(y);
}

static bool has_values(const cJSON *points, const struct panel *panel)
{
    const struct svg_range r = range_of(points, panel->series[0].field, panel->series[1].field);

    return !svg_range_is_empty(&r);
}

static void put_panel(FILE *out, const cJSON *points, const struct panel *panel,
                      struct svg_frame *f)
{
    double x_step = svg_range_round(&f->x, 7), y_step, legend = WIDTH - RIGHT;

    f->y = range_of(points, panel->series[0].field, panel->series[1].field);
    y_step = svg_range_round(&f->y, 5);
    svg_put_text(out, LEFT, f->top - 10, "start", panel->title);
    svg_put_axes(out, f, x_step, y_step);
    for (size_t i = 0; i < COUNT_OF(panel->series) && panel->series[i].field; i++) {
        const struct svg_range r = range_of(points, panel->series[i].field, NULL);

        if (svg_range_is_empty(&r))
            continue;
        put_series(out, f, points, panel->series[i].field, panel->series[i].style,
                   panel->series[i].has_dots);
        svg_put_text(out, legend, f->top - 10, "end", panel->series[i].label);
        legend -= 8.0 * (double)strlen(panel->series[i].label);
        fprintf(out, "<path class=\"%s\" d=\"M%.1f %.1fh18\"/>\n", panel->series[i].style,
                legend, f->top - 14);
        legend -= 14;
    }
}

static const char style[] =
    "<style>\n"
    "svg { color-scheme: light dark; background: #fff; --ink: #222; --grid: #ddd;\n"
    "      --a: #1f5fbf; --b: #b5410c; }\n"
    "@media (prefers-color-scheme: dark) {\n"
    "  svg { background: #14171a; --ink: #ddd; --grid: #333a40; --a: #78a9ff; --b: #ff9a62; }\n"
    "}\n"
    "text { fill: var(--ink); font: 12px system-ui, sans-serif; }\n"
    ".grid { stroke: var(--grid); } .axis { stroke: var(--ink); fill: none; }\n"
    ".a { stroke: var(--a); fill: none; stroke-width: 1.6; }\n"
    ".b { stroke: var(--b); fill: none; stroke-width: 1.6; stroke-dasharray: 5 3; }\n"
    "circle.b { fill: var(--b); stroke-dasharray: none; }\n"
    "</style>\n";

void curve_put_svg(const cJSON *points, const char *job, FILE *out)
{
    struct svg_frame f = { .x = range_of(points, "samples", NULL),
                           .left = LEFT,
                           .top = TOP,
                           .width = WIDTH - LEFT - RIGHT,
                           .height = PANEL };
    uint32_t n_panels = 0;
    double height;
    char title[256];

    for (size_t i = 0; i < COUNT_OF(panels); i++)
        n_panels += has_values(points, &panels[i]);
    height = TOP + n_panels * (PANEL + BETWEEN) + 4;
    snprintf(title, sizeof title, "job %s: %d point%s", job, cJSON_GetArraySize(points),
             NUMBER_PLURAL(cJSON_GetArraySize(points)));
    fprintf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
        "height=\"%.0f\" role=\"img\" aria-label=\"training curve\">\n%s",
        WIDTH, height, WIDTH, height, style);
    svg_put_text(out, LEFT, 18, "start", title);
    for (size_t i = 0; i < COUNT_OF(panels); i++) {
        if (!has_values(points, &panels[i]))
            continue;
        put_panel(out, points, &panels[i], &f);
        f.top += PANEL + BETWEEN;
    }
    svg_put_text(out, (WIDTH + LEFT - RIGHT) / 2, height - 10, "middle", "samples trained on");
    fputs("</svg>\n", out);
}

/* ---- text ---- */

#define COLUMNS 60
#define LINES 7

/* Each column has the mean loss of its samples; one without a point has none. */
static uint32_t fill_columns(const cJSON *points, const struct svg_range *x,
                             double means[static COLUMNS])
{
    uint32_t counts[COLUMNS] = { 0 }, n = 0;
    const cJSON *p;

    cJSON_ArrayForEach(p, points)
    {
        const double loss = value_of(p, "loss"),
                     at = (field_number(p, "samples") - x->min) / (x->max - x->min);
        const int column = (int)(at * (COLUMNS - 1) + 0.5);

        if (!isfinite(loss) || column < 0 || column >= COLUMNS)
            continue;
        means[column] =
            counts[column]++ ? means[column] + (loss - means[column]) / counts[column] : loss;
        n++;
    }
    for (uint32_t i = 0; i < COLUMNS; i++)
        if (!counts[i])
            means[i] = (double)NAN;
    return n;
}

void curve_put_text(const cJSON *points, FILE *out)
{
    const struct svg_range x = range_of(points, "samples", NULL);
    struct svg_range y = range_of(points, "loss", NULL);
    char cells[2][FIELD_CELL_MAX];
    double means[COLUMNS];

    if (!(x.max > x.min) || fill_columns(points, &x, means) < 2)
        return;
    (void)svg_range_round(&y, LINES);
    fputs("\nloss\n", out);
    for (int line = LINES - 1; line >= 0; line--) {
        fprintf(out, "%8.4g |", y.min + (y.max - y.min) * line / (LINES - 1));
        for (uint32_t i = 0; i < COLUMNS; i++) {
            const double at = (means[i] - y.min) / (y.max - y.min) * (LINES - 1);

            fputc(isfinite(at) && (int)(at + 0.5) == line ? '*' : ' ', out);
        }
        fputc('\n', out);
    }
    fprintf(out, "%8s +", "");
    for (uint32_t i = 0; i < COLUMNS; i++)
        fputc('-', out);
    fprintf(out, "\n%8s  %s to %s samples\n", "", field_format_short(cells[0], x.min),
            field_format_short(cells[1], x.max));
}
