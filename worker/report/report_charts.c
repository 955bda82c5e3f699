#include "worker/report/report_charts.h"

#include <math.h>

#include "common/markup.h"
#include "common/svg.h"

#define WIDTH 430.0
#define HEIGHT 240.0
#define LEFT 56.0
#define RIGHT 16.0
#define TOP 12.0
#define BOTTOM 44.0     /* below the frame */
#define START_PARTS 40u /* the start of a curve is one of so many parts */
#define SMOOTHING 24.0  /* a smoothed point knows of about this part of all */

struct series {
    const double *x, *y;
    uint32_t n;
    const char *class, *label;
    bool has_dots;
};

struct figure {
    const char *title, *x_label, *what; /* what: of a dot's value */
    struct series series[3];
    uint32_t n;
};

static struct svg_frame make_frame(void)
{
    return (struct svg_frame){ .x = svg_range_empty,
                               .y = svg_range_empty,
                               .left = LEFT,
                               .top = TOP,
                               .width = WIDTH - LEFT - RIGHT,
                               .height = HEIGHT - TOP - BOTTOM };
}

static void begin_figure(const char *title, FILE *out)
{
    fputs("<figure class=\"card\"><figcaption><b>", out);
    markup_put(out, title);
    fputs("</b>", out);
}

static void put_legend(const char *class, const char *label, FILE *out)
{
    fprintf(out, " <span class=\"key %s\">", class);
    markup_put(out, label);
    fputs("</span>", out);
}

static void begin_svg(const char *title, FILE *out)
{
    fprintf(out, "</figcaption>\n<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"",
            WIDTH, HEIGHT);
    markup_put(out, title);
    fputs("\">\n", out);
}

static void end_figure(const char *x_label, FILE *out)
{
    svg_put_text(out, LEFT + (WIDTH - LEFT - RIGHT) / 2, HEIGHT - 8, "middle", x_label);
    fputs("</svg></figure>\n", out);
}

static void put_dots(const struct svg_frame *f, const struct series *s, const char *what,
                     FILE *out)
{
    char title[128], samples[SVG_NUMBER_MAX];

    for (uint32_t i = 0; i < s->n; i++) {
        if (!isfinite(s->y[i]))
            continue;
        svg_number(samples, s->x[i]);
        snprintf(title, sizeof title, "%s %.5g after %s samples", what, s->y[i], samples);
        svg_put_dot(out, f, s->x[i], s->y[i], s->class, title);
    }
}

static bool has_values(const struct series *s)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (isfinite(s->y[i]))
            return true;
    return false;
}

static void put_figure(const struct figure *figure, FILE *out)
{
    struct svg_frame f = make_frame();
    double x_step, y_step;

    svg_range_add(&f.x, 0);
    for (uint32_t i = 0; i < figure->n; i++)
        for (uint32_t j = 0; j < figure->series[i].n; j++) {
            svg_range_add(&f.x, figure->series[i].x[j]);
            svg_range_add(&f.y, figure->series[i].y[j]);
        }
    if (svg_range_is_empty(&f.y))
        return;
    begin_figure(figure->title, out);
    for (uint32_t i = 0; i < figure->n; i++)
        if (figure->series[i].label && has_values(&figure->series[i]))
            put_legend(figure->series[i].class, figure->series[i].label, out);
    begin_svg(figure->title, out);
    x_step = svg_range_round(&f.x, 5);
    y_step = svg_range_round(&f.y, 5);
    svg_put_axes(out, &f, x_step, y_step);
    for (uint32_t i = 0; i < figure->n; i++) {
        const struct series *s = &figure->series[i];

        svg_put_line(out, &f, s->x, s->y, s->n, s->class);
        if (s->has_dots)
            put_dots(&f, s, figure->what, out);
    }
    end_figure(figure->x_label, out);
}

/* An exponential mean that begins without a bias. */
static void smooth(const double *y, uint32_t n, double *ret)
{
    const double keep = 1 - 1 / (1 + n / SMOOTHING);
    double sum = 0, weight = 0;

    for (uint32_t i = 0; i < n; i++) {
        sum = keep * sum + (1 - keep) * y[i];
        weight = keep * weight + (1 - keep);
        ret[i] = sum / weight;
    }
}

/* The first steps may be far above all others, which would then be one flat line: they are drawn at the upper end. */
static void clip_start(const double *y, uint32_t n, double *ret)
{
    const uint32_t n_start = n / START_PARTS;
    double greatest = -INFINITY;

    for (uint32_t i = n_start; i < n; i++)
        greatest = fmax(greatest, y[i]);
    for (uint32_t i = 0; i < n; i++)
        ret[i] = i < n_start ? fmin(y[i], greatest) : y[i];
}

static void put_loss(const struct training_history *h, FILE *out)
{
    double smoothed[TRAINING_HISTORY_POINTS], clipped[TRAINING_HISTORY_POINTS];
    const struct figure figure = {
        .title = "Loss",
        .x_label = "samples trained on",
        .what = "log-loss",
        .series = { { h->samples, clipped, h->n, "a raw", NULL, false },
                    { h->samples, smoothed, h->n, "a", "training, smoothed", false },
                    { h->valid_samples, h->logloss, h->n_validations, "b",
                      "validation log-loss", true } },
        .n = 3,
    };

    clip_start(h->loss, h->n, clipped);
    smooth(clipped, h->n, smoothed);
    put_figure(&figure, out);
}

void report_charts_put_history(const struct training_history *h, FILE *out)
{
    const struct figure auc = {
        .title = "Validation AUC",
        .x_label = "samples trained on",
        .what = "AUC",
        .series = { { h->valid_samples, h->auc, h->n_validations, "b", NULL, true } },
        .n = 1,
    };

    put_loss(h, out);
    put_figure(&auc, out);
}

void report_charts_put_speed(const struct training_history *h, FILE *out)
{
    double rates[TRAINING_HISTORY_POINTS], smoothed[TRAINING_HISTORY_POINTS];
    const struct figure figure = {
        .title = "Samples per second",
        .x_label = "samples trained on",
        .series = { { h->samples, smoothed, h->n, "c", "this worker, smoothed", false } },
        .n = 1,
    };

    training_history_rates(h, rates);
    smooth(rates, h->n, smoothed);
    put_figure(&figure, out);
}

static void put_bin(const struct svg_frame *f, const struct calibration_bin *bin, FILE *out)
{
    const double x = svg_x(f, bin->predicted);
    char title[160];

    fprintf(out, "<path class=\"b whisker\" d=\"M%.1f %.1fV%.1f\"/>\n", x,
            svg_y(f, bin->observed_low), svg_y(f, bin->observed_high));
    snprintf(title, sizeof title, "predicted %.4g, observed %.4g: %llu of %llu rows positive",
             bin->predicted, bin->observed, (unsigned long long)bin->n_positive,
             (unsigned long long)bin->n);
    svg_put_dot(out, f, bin->predicted, bin->observed, "b", title);
}

void report_charts_put_calibration(const struct calibration *c, const char *label, FILE *out)
{
    struct svg_frame f = make_frame();
    double ends[2], step;

    svg_range_add(&f.x, 0);
    for (uint32_t i = 0; i < c->n; i++) {
        svg_range_add(&f.x, c->bins[i].predicted);
        svg_range_add(&f.x, c->bins[i].observed_high);
    }
    step = svg_range_round(&f.x, 5);
    f.y = f.x;
    ends[0] = f.x.min;
    ends[1] = f.x.max;
    begin_figure(label[0] ? label : "Predicted and observed", out);
    put_legend("b", "a tenth of the rows, and 95 % interval", out);
    put_legend("ideal", "perfect", out);
    begin_svg("calibration", out);
    svg_put_axes(out, &f, step, step);
    svg_put_line(out, &f, ends, ends, 2, "ideal");
    for (uint32_t i = 0; i < c->n; i++)
        put_bin(&f, &c->bins[i], out);
    end_figure("mean predicted probability; upwards: share of positives", out);
}
