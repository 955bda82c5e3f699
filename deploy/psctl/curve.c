#include "deploy/psctl/curve.h"

#include <math.h>
#include <string.h>

#include "common/number.h"
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

struct range {
    double min, max; /* max < min: no value */
};

static void widen(struct range *r, const cJSON *points, const char *name)
{
    const cJSON *p;

    cJSON_ArrayForEach(p, points)
    {
        const double value = name ? value_of(p, name) : (double)NAN;

        if (!isfinite(value))
            continue;
        r->min = value < r->min ? value : r->min;
        r->max = value > r->max ? value : r->max;
    }
}

static struct range range_of(const cJSON *points, const char *a, const char *b)
{
    struct range r = { .min = INFINITY, .max = -INFINITY };

    widen(&r, points, a);
    widen(&r, points, b);
    return r;
}

/* 1, 2 or 5 times a power of ten, of which about n fit in the range. */
static double nice_step(const struct range *r, double n)
{
    const double raw = (r->max - r->min) / n, power = pow(10, floor(log10(raw))),
                 times = raw / power;

    return power * (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10);
}

/* Whole steps around the values: those of which all are the same have a range, too. */
static double round_range(struct range *r, double n)
{
    double step;

    if (!(r->max - r->min > fabs(r->max) * 1e-9)) {
        const double half = fabs(r->max) > 0 ? fabs(r->max) / 10 : 1;

        r->min -= half;
        r->max += half;
    }
    step = nice_step(r, n);
    r->min = floor(r->min / step + 1e-9) * step;
    r->max = ceil(r->max / step - 1e-9) * step;
    return step;
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

/* Where values stand in the picture. */
struct frame {
    struct range x, y;
    double top;
};

static double x_of(const struct frame *f, double value)
{
    return LEFT + (value - f->x.min) / (f->x.max - f->x.min) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct frame *f, double value)
{
    return f->top + (f->y.max - value) / (f->y.max - f->y.min) * PANEL;
}

static void put_text(FILE *out, double x, double y, const char *anchor, const char *text)
{
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    for (; *text; text++) {
        if (*text == '<' || *text == '>' || *text == '&')
            fprintf(out, "&#%d;", *text);
        else
            fputc(*text >= ' ' && *text < 127 ? *text : '?', out);
    }
    fputs("</text>\n", out);
}

static const char *tick_text(char dst[static FIELD_CELL_MAX], double value)
{
    if (fabs(value) >= 1000)
        return field_format_short(dst, value);
    snprintf(dst, FIELD_CELL_MAX, "%.6g", fabs(value) < 1e-12 ? 0 : value);
    return dst;
}

static void put_axes(FILE *out, const struct frame *f, double x_step, double y_step)
{
    const double bottom = f->top + PANEL;
    char cell[FIELD_CELL_MAX];

    for (int i = 0; i <= (int)((f->y.max - f->y.min) / y_step + 0.5); i++) {
        const double y = f->y.min + i * y_step;

        fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>\n", LEFT, y_of(f, y),
                WIDTH - RIGHT);
        put_text(out, LEFT - 8, y_of(f, y) + 4, "end", tick_text(cell, y));
    }
    for (int i = 0; i <= (int)((f->x.max - f->x.min) / x_step + 0.5); i++) {
        const double x = f->x.min + i * x_step;

        fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>\n", x_of(f, x), f->top,
                bottom);
        put_text(out, x_of(f, x), bottom + 16, "middle", tick_text(cell, x));
    }
    fprintf(out, "<path class=\"axis\" d=\"M%.1f %.1fV%.1fH%.1f\"/>\n", LEFT, f->top, bottom,
            WIDTH - RIGHT);
}

static void put_line(FILE *out, const struct frame *f, const cJSON *points, const char *field,
                     const char *style)
{
    const cJSON *p;

    fprintf(out, "<polyline class=\"%s\" points=\"", style);
    cJSON_ArrayForEach(p, points)
    {
        const double value = value_of(p, field);

        if (isfinite(value))
            fprintf(out, "%.1f,%.1f ", x_of(f, field_number(p, "samples")), y_of(f, value));
    }
    fputs("\"/>\n", out);
}

static void put_dots(FILE *out, const struct frame *f, const cJSON *points, const char *field,
                     const char *style)
{
    const cJSON *p;

    cJSON_ArrayForEach(p, points)
    {
        const double value = value_of(p, field);

        if (isfinite(value))
            fprintf(out,
                    "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"><title>%.6g at %.0f "
                    "samples</title></circle>\n",
                    style, x_of(f, field_number(p, "samples")), y_of(f, value), value,
                    field_number(p, "samples"));
    }
}

static bool has_values(const cJSON *points, const struct panel *panel)
{
    const struct range r = range_of(points, panel->series[0].field, panel->series[1].field);

    return r.max >= r.min;
}

static void put_panel(FILE *out, const cJSON *points, const struct panel *panel,
                      struct frame *f)
{
    double x_step = round_range(&f->x, 7), y_step, legend = WIDTH - RIGHT;

    f->y = range_of(points, panel->series[0].field, panel->series[1].field);
    y_step = round_range(&f->y, 5);
    put_text(out, LEFT, f->top - 10, "start", panel->title);
    put_axes(out, f, x_step, y_step);
    for (size_t i = 0; i < COUNT_OF(panel->series) && panel->series[i].field; i++) {
        const struct range r = range_of(points, panel->series[i].field, NULL);

        if (r.max < r.min)
            continue;
        put_line(out, f, points, panel->series[i].field, panel->series[i].style);
        if (panel->series[i].has_dots)
            put_dots(out, f, points, panel->series[i].field, panel->series[i].style);
        put_text(out, legend, f->top - 10, "end", panel->series[i].label);
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
    struct frame f = { .x = range_of(points, "samples", NULL), .top = TOP };
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
    put_text(out, LEFT, 18, "start", title);
    for (size_t i = 0; i < COUNT_OF(panels); i++) {
        if (!has_values(points, &panels[i]))
            continue;
        put_panel(out, points, &panels[i], &f);
        f.top += PANEL + BETWEEN;
    }
    put_text(out, (WIDTH + LEFT - RIGHT) / 2, height - 10, "middle", "samples trained on");
    fputs("</svg>\n", out);
}

/* ---- text ---- */

#define COLUMNS 60
#define LINES 7

/* Each column has the mean loss of its samples; one without a point has none. */
static uint32_t fill_columns(const cJSON *points, const struct range *x,
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
    const struct range x = range_of(points, "samples", NULL);
    struct range y = range_of(points, "loss", NULL);
    char cells[2][FIELD_CELL_MAX];
    double means[COLUMNS];

    if (!(x.max > x.min) || fill_columns(points, &x, means) < 2)
        return;
    (void)round_range(&y, LINES);
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
