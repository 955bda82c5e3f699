#include "common/svg.h"

#include <math.h>

#include "common/markup.h"

const struct svg_range svg_range_empty = { .min = 1, .max = 0 };

void svg_range_add(struct svg_range *r, double value)
{
    if (!isfinite(value))
        return;
    if (svg_range_is_empty(r))
        *r = (struct svg_range){ value, value };
    r->min = value < r->min ? value : r->min;
    r->max = value > r->max ? value : r->max;
}

bool svg_range_is_empty(const struct svg_range *r)
{
    return r->max < r->min;
}

static double nice_step(const struct svg_range *r, double n)
{
    const double raw = (r->max - r->min) / n, power = pow(10, floor(log10(raw))),
                 times = raw / power;

    return power * (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10);
}

double svg_range_round(struct svg_range *r, double n)
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

double svg_x(const struct svg_frame *f, double value)
{
    return f->left + (value - f->x.min) / (f->x.max - f->x.min) * f->width;
}

double svg_y(const struct svg_frame *f, double value)
{
    return f->top + (f->y.max - value) / (f->y.max - f->y.min) * f->height;
}

void svg_put_text(FILE *out, double x, double y, const char *anchor, const char *text)
{
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    markup_put(out, text);
    fputs("</text>\n", out);
}

void svg_number(char dst[static SVG_NUMBER_MAX], double value)
{
    static const struct {
        double unit;
        const char *name;
    } units[] = { { 1e12, "T" }, { 1e9, "G" }, { 1e6, "M" }, { 1e3, "k" } };
    const double size = fabs(value);

    for (size_t i = 0; i < COUNT_OF(units) && size < 1e15; i++)
        if (size >= units[i].unit) {
            snprintf(dst, SVG_NUMBER_MAX, "%.4g %s", value / units[i].unit, units[i].name);
            return;
        }
    snprintf(dst, SVG_NUMBER_MAX, "%.6g", size < 1e-12 ? 0 : value);
}

static int n_steps(const struct svg_range *r, double step)
{
    return (int)((r->max - r->min) / step + 0.5);
}

void svg_put_y_axis(FILE *out, const struct svg_frame *f, double step)
{
    char cell[SVG_NUMBER_MAX];

    for (int i = 0; i <= n_steps(&f->y, step); i++) {
        const double y = f->y.min + i * step;

        fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>\n", f->left, svg_y(f, y),
                f->left + f->width);
        svg_number(cell, fabs(y) < step * 1e-6 ? 0 : y);
        svg_put_text(out, f->left - 8, svg_y(f, y) + 4, "end", cell);
    }
    fprintf(out, "<path class=\"axis\" d=\"M%.1f %.1fV%.1fH%.1f\"/>\n", f->left, f->top,
            f->top + f->height, f->left + f->width);
}

void svg_put_x_tick(FILE *out, const struct svg_frame *f, double x, const char *text)
{
    fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fV%.1f\"/>\n", svg_x(f, x), f->top,
            f->top + f->height);
    svg_put_text(out, svg_x(f, x), f->top + f->height + 16, "middle", text);
}

void svg_put_axes(FILE *out, const struct svg_frame *f, double x_step, double y_step)
{
    char cell[SVG_NUMBER_MAX];

    for (int i = 0; i <= n_steps(&f->x, x_step); i++) {
        const double x = f->x.min + i * x_step;

        svg_number(cell, fabs(x) < x_step * 1e-6 ? 0 : x);
        svg_put_x_tick(out, f, x, cell);
    }
    svg_put_y_axis(out, f, y_step);
}

void svg_put_line(FILE *out, const struct svg_frame *f, const double *x, const double *y,
                  size_t n, const char *class)
{
    fprintf(out, "<polyline class=\"%s\" points=\"", class);
    for (size_t i = 0; i < n; i++)
        if (isfinite(x[i]) && isfinite(y[i]))
            fprintf(out, "%.1f,%.1f ", svg_x(f, x[i]), svg_y(f, y[i]));
    fputs("\"/>\n", out);
}

void svg_put_dot(FILE *out, const struct svg_frame *f, double x, double y, const char *class,
                 const char *title)
{
    fprintf(out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"><title>", class,
            svg_x(f, x), svg_y(f, y));
    markup_put(out, title);
    fputs("</title></circle>\n", out);
}
