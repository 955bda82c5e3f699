#include "worker/report/report_page.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/markup.h"
#include "common/memory.h"
#include "common/number.h"
#include "common/svg.h"
#include "worker/model/dlrm_config.h"

#define CELL_MAX 48u
#define COLUMNS_SHOWN 20u /* of importance; the others are folded */
#define ROWS_OF_HISTORY 24u

/* A figure, in its own units. */
#define WIDTH 430.0
#define HEIGHT 240.0
#define LEFT 56.0
#define RIGHT 16.0
#define TOP 12.0
#define BOTTOM 44.0     /* below the frame */
#define START_PARTS 40u /* the start of a curve is one of so many parts */
#define SMOOTHING 24.0  /* a smoothed point knows of about this part of all */

/* ---- cells ---- */

/* 1234567 as "1 234 567", with narrow blanks that do not break. */
static const char *count_text(char dst[static CELL_MAX], uint64_t n)
{
    char digits[CELL_MAX / 2];
    size_t n_digits = (size_t)snprintf(digits, sizeof digits, "%" PRIu64, n), at = 0;

    for (size_t i = 0; i < n_digits; i++) {
        if (i && (n_digits - i) % 3 == 0) {
            memcpy(dst + at, "\xe2\x80\xaf", 3);
            at += 3;
        }
        dst[at++] = digits[i];
    }
    dst[at] = 0;
    return dst;
}

static const char *number_text(char dst[static CELL_MAX], const char *format, double value)
{
    if (!isfinite(value))
        return "&ndash;";
        /* The format is a literal of this file. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(dst, CELL_MAX, format, value);
#pragma GCC diagnostic pop
    return dst;
}

static const char *bytes_text(char dst[static CELL_MAX], double n)
{
    static const char *const units[] = { "B", "kB", "MB", "GB", "TB" };
    size_t i = 0;

    for (; n >= 1000 && i + 1 < COUNT_OF(units); i++)
        n /= 1000;
    snprintf(dst, CELL_MAX, i && n < 100 ? "%.1f %s" : "%.0f %s", n, units[i]);
    return dst;
}

static const char *seconds_text(char dst[static CELL_MAX], double s)
{
    if (s < 120)
        snprintf(dst, CELL_MAX, s < 10 ? "%.2f s" : "%.1f s", s);
    else if (s < 7200)
        snprintf(dst, CELL_MAX, "%.0f min %02.0f s", floor(s / 60), floor(fmod(s, 60)));
    else
        snprintf(dst, CELL_MAX, "%.0f h %02.0f min", floor(s / 3600),
                 floor(fmod(s, 3600) / 60));
    return dst;
}

static void put_tile(FILE *out, const char *name, const char *value, const char *below)
{
    fprintf(out,
            "<div class=\"tile\"><div class=\"name\">%s</div><div class=\"value\">%s</div>"
            "<div class=\"below\">%s</div></div>\n",
            name, value, below);
}

static void put_text_cell(FILE *out, const char *class, const char *text)
{
    fprintf(out, "<td class=\"text %s\">", class);
    markup_put(out, text);
    fputs("</td>", out);
}

/* Of a share of the greatest in its table, 0 to 1. */
static void put_bar_cell(FILE *out, const char *class, double share)
{
    share = isfinite(share) && share > 0 ? share < 1 ? share : 1 : 0;
    fprintf(out, "<td class=\"bar\"><div class=\"%s\" style=\"width:%.1f%%\"></div></td>",
            class, 100 * share);
}

static void begin_section(FILE *out, const char *id, const char *title, const char *about)
{
    fprintf(out, "<section id=\"%s\"><h2>%s</h2>\n<p>%s</p>\n", id, title, about);
}

static void end_section(FILE *out)
{
    fputs("</section>\n", out);
}

/* ---- head ---- */

static const char style[] =
    "<style>\n"
    ":root { color-scheme: light dark; --page: #f5f6f8; --card: #fff; --ink: #1a1f26; --dim: "
    "#5a6472;\n"
    "  --line: #dfe3e8; --a: #2160c4; --b: #b84a0e; --c: #17794a; --bad: #b3261e; }\n"
    "@media (prefers-color-scheme: dark) { :root { --page: #0f1216; --card: #181c22; --ink: "
    "#e5e9ee;\n"
    "  --dim: #9aa5b3; --line: #2c333c; --a: #7cacff; --b: #ff9c66; --c: #5fcf97; --bad: "
    "#ff8a80; } }\n"
    "* { box-sizing: border-box; }\n"
    "body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, "
    "sans-serif; }\n"
    "main { max-width: 1180px; margin: 0 auto; padding: 28px 20px 48px; }\n"
    "h1 { font-size: 26px; line-height: 1.25; margin: 0; overflow-wrap: anywhere; "
    "letter-spacing: -.01em; }\n"
    "h2 { font-size: 19px; margin: 40px 0 2px; }\n"
    "p { margin: 2px 0 14px; max-width: 78ch; } p, .below, .name, figcaption, th, summary { "
    "color: var(--dim); }\n"
    ".card, .tile, .scroll, .note { background: var(--card); border: 1px solid var(--line); "
    "border-radius: 10px; }\n"
    ".tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(128px, 1fr)); gap: "
    "12px; margin: 20px 0 0; }\n"
    ".tile { padding: 11px 14px 10px; min-width: 0; } .name, .below { font-size: 13px; }\n"
    ".value { font-size: 23px; font-weight: 620; line-height: 1.3; font-variant-numeric: "
    "tabular-nums; white-space: nowrap; }\n"
    ".note { padding: 10px 14px; margin: 16px 0 0; border-left: 4px solid var(--b); "
    "overflow-wrap: anywhere; }\n"
    ".note.bad { border-left-color: var(--bad); }\n"
    ".grid2 { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(430px, 100%), "
    "1fr)); gap: 14px; align-items: start; }\n"
    ".stack { display: grid; gap: 14px; min-width: 0; }\n"
    "figure { margin: 0; padding: 12px 12px 6px; min-width: 0; } figcaption { font-size: "
    "13.5px; padding: 0 4px 6px; }\n"
    "figcaption b { color: var(--ink); margin-right: 8px; overflow-wrap: anywhere; } svg { "
    "display: block; width: 100%; height: auto; }\n"
    ".key { white-space: nowrap; margin-right: 10px; } .key::before { content: \"\"; display: "
    "inline-block; width: 18px;\n"
    "  border-top: 3px solid currentColor; vertical-align: middle; margin-right: 6px; }\n"
    ".key.a::before { color: var(--a); } .key.b::before { color: var(--b); } .key.c::before { "
    "color: var(--c); }\n"
    ".key.ideal::before { border-top: 2px dashed var(--dim); }\n"
    "text { fill: var(--dim); font: 12.5px system-ui, sans-serif; } .grid { stroke: "
    "var(--line); } .axis { stroke: var(--dim); fill: none; }\n"
    "polyline { fill: none; stroke-width: 2; stroke-linejoin: round; } .raw { opacity: .3; "
    "stroke-width: 1; }\n"
    ".a { stroke: var(--a); } .b { stroke: var(--b); } .c { stroke: var(--c); } .ideal { "
    "stroke: var(--dim); stroke-dasharray: 5 4; stroke-width: 1.2; }\n"
    "circle.b { fill: var(--b); } .whisker { stroke-width: 1.6; }\n"
    ".scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: "
    "14px; font-variant-numeric: tabular-nums; }\n"
    "caption { text-align: left; padding: 10px 14px 2px; font-weight: 600; } th { font-weight: "
    "500; white-space: nowrap; }\n"
    "th, td { text-align: right; padding: 5px 14px; border-top: 1px solid var(--line); } thead "
    "th { border-top: 0; }\n"
    "td { white-space: nowrap; } .text { text-align: left; white-space: normal; overflow-wrap: "
    "anywhere; }\n"
    "td.setting { white-space: nowrap; overflow-wrap: normal; } td.column { min-width: 9em; }\n"
    "td.bar { width: 34%; min-width: 70px; padding: 5px 0; } td.bar div { height: 11px; "
    "border-radius: 3px; background: var(--a); }\n"
    "td.bar div.c { background: var(--c); } tr.changed td { font-weight: 620; }\n"
    "details { margin-top: 12px; } summary { cursor: pointer; padding: 4px 0; } details "
    ".scroll { margin-top: 6px; }\n"
    "h3 { font-size: 15px; margin: 18px 0 6px; } footer { margin-top: 44px; font-size: 13px; "
    "color: var(--dim); }\n"
    "@media (max-width: 620px) { main { padding: 18px 12px 32px; } .optional { display: none; "
    "}\n"
    "  .tiles { grid-template-columns: 1fr 1fr; gap: 8px; } .value { font-size: 20px; } th, td "
    "{ padding: 5px 9px; } td.bar { width: 26%; min-width: 50px; } }\n"
    "@media print { body { background: #fff; } section { break-inside: avoid; } }\n"
    "</style>\n";

static void put_head(const struct report_page *p, FILE *out)
{
    const time_t when = (time_t)p->unix_s;
    struct tm utc;
    char date[64];

    gmtime_r(&when, &utc);
    strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S UTC", &utc);
    fputs("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
          "style-src 'unsafe-inline'\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
          out);
    markup_put(out, p->settings->job);
    fprintf(out,
            " &ndash; training report</title>\n%s</head><body><main>\n<header><h1>Training "
            "report: job ",
            style);
    markup_put(out, p->settings->job);
    fprintf(out, "</h1>\n<div class=\"below\">%s, %s, psworker " PS_VERSION,
            dlrm_config_kind_name((enum model_kind)p->settings->model), date);
    if (p->device) {
        fputs(", computed on ", out);
        markup_put(out, p->device);
    }
    fputs("</div></header>\n", out);
}

static void put_result_tiles(const struct metrics_result *r, FILE *out)
{
    char value[CELL_MAX], below[CELL_MAX], rows[CELL_MAX + 16];

    snprintf(rows, sizeof rows, "of %s rows", count_text(below, r->n));
    put_tile(out, "Validation AUC", number_text(value, "%.4f", r->auc), rows);
    put_tile(out, "Log-loss", number_text(value, "%.4f", r->logloss), "lower is better");
    put_tile(out, "Norm. entropy", number_text(value, "%.4f", r->ne), "1: the base rate");
    put_tile(out, "Calibration", number_text(value, "%.3f", r->calibration), "mean p / mean y");
}

static void put_tiles(const struct report_page *p, FILE *out)
{
    const struct progress_state *run = p->run;
    char value[CELL_MAX], below[CELL_MAX], text[CELL_MAX + 32];

    fputs("<div class=\"tiles\">\n", out);
    if (p->result)
        put_result_tiles(p->result, out);
    if (run) {
        snprintf(text, sizeof text, "in %s steps", count_text(below, run->step));
        put_tile(out, "Samples", count_text(value, run->samples), text);
        snprintf(text, sizeof text, "%.0f samples/s",
                 p->cost.train_s > 0 ? (double)run->samples / p->cost.train_s : 0);
        put_tile(out, "Training time", seconds_text(value, p->cost.train_s), text);
        if (!p->settings->local && run->samples)
            put_tile(out, "Bytes per sample",
                     number_text(value, "%.0f",
                                 (double)(run->store.bytes_in + run->store.bytes_out) /
                                     (double)run->samples),
                     "both directions");
    }
    if (p->cost.peak_bytes)
        put_tile(out, "Peak memory", bytes_text(value, (double)p->cost.peak_bytes),
                 "of this process");
    fputs("</div>\n", out);
}

static void put_note(FILE *out, const char *class, const char *before, const char *text)
{
    fprintf(out, "<div class=\"note %s\">%s", class, before);
    markup_put(out, text);
    fputs("</div>\n", out);
}

static void put_notes(const struct report_page *p, FILE *out)
{
    char text[320];

    if (p->failure)
        put_note(out, "bad", "<b>The run failed:</b> ", p->failure);
    if (p->stopped)
        put_note(out, "", "<b>Stopped early:</b> ", p->stopped);
    if (!p->run)
        return;
    if (p->run->bad.n) {
        snprintf(text, sizeof text, "%llu, the first of them %s",
                 (unsigned long long)p->run->bad.n, p->run->bad.first);
        put_note(out, "", "<b>Malformed rows were skipped:</b> ", text);
    }
    if (p->run->store.rows_refused) {
        snprintf(text, sizeof text, "%llu times: such keys did not learn",
                 (unsigned long long)p->run->store.rows_refused);
        put_note(out, "", "<b>New rows found no place in the servers' memory:</b> ", text);
    }
}

/* ---- figures ---- */

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

static void put_history_charts(const struct training_history *h, FILE *out)
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

static void put_speed_chart(const struct training_history *h, FILE *out)
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

static void put_calibration_chart(const struct calibration *c, const char *label, FILE *out)
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

/* ---- learning curves ---- */

static void put_validations(const struct training_history *h, FILE *out)
{
    char cells[3][CELL_MAX];

    fputs("<div class=\"scroll\"><table><caption>Validations</caption><thead><tr><th>epoch</th>"
          "<th>samples</th><th>AUC</th><th>log-loss</th></tr></thead><tbody>\n",
          out);
    for (uint32_t i = 0; i < h->n_validations; i++)
        fprintf(out, "<tr><td>%u</td><td>%s</td><td>%s</td><td>%s</td></tr>\n", h->epoch[i] + 1,
                count_text(cells[0], (uint64_t)h->valid_samples[i]),
                number_text(cells[1], "%.5f", h->auc[i]),
                number_text(cells[2], "%.5f", h->logloss[i]));
    fputs("</tbody></table></div>\n", out);
}

/* Means of neighbours, so that a table of any run can be read. */
static void put_losses(const struct training_history *h, FILE *out)
{
    const uint32_t each = (h->n + ROWS_OF_HISTORY - 1) / ROWS_OF_HISTORY;
    double rates[TRAINING_HISTORY_POINTS];
    char cells[4][CELL_MAX];

    training_history_rates(h, rates);
    fputs("<div class=\"scroll\"><table><caption>Training</caption><thead><tr><th>samples</th>"
          "<th>seconds</th><th>mean loss</th><th>samples/s</th></tr></thead><tbody>\n",
          out);
    for (uint32_t i = 0; i < h->n; i += each) {
        const uint32_t end = i + each < h->n ? i + each : h->n;
        double loss = 0, rate = 0;

        for (uint32_t j = i; j < end; j++) {
            loss += h->loss[j] / (end - i);
            rate += rates[j] / (end - i);
        }
        fprintf(out, "<tr><td>%s</td><td>%s</td><td>%s</td><td>%s</td></tr>\n",
                count_text(cells[0], (uint64_t)h->samples[end - 1]),
                number_text(cells[1], "%.2f", h->seconds[end - 1]),
                number_text(cells[2], "%.5f", loss), number_text(cells[3], "%.0f", rate));
    }
    fputs("</tbody></table></div>\n", out);
}

static void put_history(const struct report_page *p, FILE *out)
{
    const struct training_history *h = p->history;
    char about[160];

    if (!h->n && !h->n_validations)
        return;
    snprintf(about, sizeof about,
             "A point of the training loss is the mean of %" PRIu64
             " batch%s of this worker, made before the batch was learned from.",
             h->stride, h->stride == 1 ? "" : "es");
    begin_section(out, "curves", "Learning curves", about);
    fputs("<div class=\"grid2\">\n", out);
    put_history_charts(h, out);
    fputs("</div>\n<details><summary>The same as tables</summary><div class=\"grid2\">\n", out);
    if (h->n_validations)
        put_validations(h, out);
    put_losses(h, out);
    fputs("</div></details>\n", out);
    end_section(out);
}

/* ---- calibration ---- */

static void put_bins(const struct calibration *c, FILE *out)
{
    char cells[5][CELL_MAX];

    fputs("<div class=\"scroll\"><table><thead><tr><th>predictions</th><th>rows</th>"
          "<th class=\"optional\">positive</th><th>predicted</th><th>observed</th></tr></thead>"
          "<tbody>\n",
          out);
    for (uint32_t i = 0; i < c->n; i++) {
        const struct calibration_bin *b = &c->bins[i];

        fprintf(out,
                "<tr><td>%.3g &ndash; %.3g</td><td>%s</td><td class=\"optional\">%s</td>"
                "<td>%s</td><td>%s</td></tr>\n",
                b->low, b->high, count_text(cells[0], b->n),
                count_text(cells[1], b->n_positive),
                number_text(cells[2], "%.4f", b->predicted),
                number_text(cells[3], "%.4f", b->observed));
    }
    fputs("</tbody></table></div>\n", out);
}

static void put_calibration(const struct report_page *p, FILE *out)
{
    begin_section(out, "calibration", "Calibration",
                  "The validation rows in the order of their predictions, in tenths. A dot on "
                  "the dashed line says what it means: of the rows with this prediction, that "
                  "share was positive.");
    if (!p->calibrations || !p->calibrations[0].n)
        put_note(out, "", "Not measured: ",
                 p->why_not_calibrated && p->why_not_calibrated[0]
                     ? p->why_not_calibrated
                     : "there are no predictions");
    for (uint32_t i = 0; p->calibrations && i < p->n_labels; i++) {
        if (!p->calibrations[i].n)
            continue;
        fputs("<div class=\"grid2\">\n", out);
        put_calibration_chart(&p->calibrations[i], p->n_labels > 1 ? p->labels[i] : "", out);
        put_bins(&p->calibrations[i], out);
        fputs("</div>\n", out);
    }
    end_section(out);
}

/* ---- importance ---- */

static void put_columns(const struct importance *m, uint32_t first, uint32_t end, FILE *out)
{
    const double greatest = m->columns[0].auc_drop;

    fputs("<div class=\"scroll\"><table><thead><tr><th class=\"text\">column</th>"
          "<th class=\"text optional\">kind</th><th></th><th>AUC drop</th>"
          "<th class=\"optional\">least to most</th><th class=\"optional\">log-loss rise</th>"
          "</tr></thead><tbody>\n",
          out);
    for (uint32_t i = first; i < end; i++) {
        const struct importance_column *c = &m->columns[i];

        fputs("<tr>", out);
        put_text_cell(out, "column", c->name);
        fprintf(out, "<td class=\"text optional\">%s</td>",
                c->is_numeric ? "numeric" : "categorical");
        put_bar_cell(out, "a", greatest > 0 ? c->auc_drop / greatest : 0);
        fprintf(out,
                "<td>%+.5f</td><td class=\"optional\">%+.5f to %+.5f</td>"
                "<td class=\"optional\">%+.5f</td></tr>\n",
                c->auc_drop, c->auc_drop_min, c->auc_drop_max, c->logloss_rise);
    }
    fputs("</tbody></table></div>\n", out);
}

static void put_importance(const struct report_page *p, FILE *out)
{
    const struct importance *m = p->importance;
    char about[400], rows[CELL_MAX];

    if (!m || !m->n) {
        begin_section(out, "importance", "Importance of columns", "");
        put_note(out, "", "Not measured: ",
                 p->why_not_measured ? p->why_not_measured : "there is no model");
        end_section(out);
        return;
    }
    snprintf(
        about, sizeof about,
        "How far the AUC falls, from %.4f on a sample of %s validation rows, if a column's "
        "values are dealt out to other rows: the mean of %u permutations. Columns that say "
        "the same thing share what they are worth.",
        m->auc, count_text(rows, m->n_rows), IMPORTANCE_REPEATS);
    begin_section(out, "importance", "Importance of columns", about);
    put_columns(m, 0, m->n < COLUMNS_SHOWN ? m->n : COLUMNS_SHOWN, out);
    if (m->n > COLUMNS_SHOWN) {
        fprintf(out, "<details><summary>%u more columns</summary>", m->n - COLUMNS_SHOWN);
        put_columns(m, COLUMNS_SHOWN, m->n, out);
        fputs("</details>\n", out);
    }
    end_section(out);
}

/* ---- cost ---- */

static const char *const stage_texts[STAGE_TIMES_N] = {
    "read: parse rows and drop duplicate keys", "fetch: encode keys, decode rows",
    "servers: wait for their answers",          "compute: forward and backward",
    "deliver: encode and push gradients",       "network: frames, sends, receives"
};

static void put_seconds_row(FILE *out, const char *name, double seconds, double whole)
{
    char cell[CELL_MAX];

    fprintf(out, "<tr><td class=\"text\">%s</td>", name);
    put_bar_cell(out, "c", whole > 0 ? seconds / whole : 0);
    fprintf(out, "<td>%s</td><td>%.0f %%</td></tr>\n", seconds_text(cell, seconds),
            whole > 0 ? 100 * seconds / whole : 0);
}

static void put_seconds(const struct report_page *p, FILE *out)
{
    const struct report_page_cost *c = &p->cost;
    const double other = c->total_s - c->train_s - c->measure_s;

    fputs("<div class=\"scroll\"><table><caption>Seconds</caption><thead><tr>"
          "<th class=\"text\">part</th><th></th><th>busy</th><th>share</th></tr></thead>"
          "<tbody>\n",
          out);
    for (uint32_t i = 0; p->run && i < STAGE_TIMES_N; i++)
        put_seconds_row(out, stage_texts[i], (double)p->run->stages.ns[i] * 1e-9, c->train_s);
    fputs("</tbody><tbody>\n", out);
    put_seconds_row(out, "<b>training</b>, all parts of it", c->train_s, c->total_s);
    put_seconds_row(out, "<b>validation</b>, start and end", other > 0 ? other : 0, c->total_s);
    put_seconds_row(out, "<b>importance</b> of columns", c->measure_s, c->total_s);
    fputs("</tbody></table></div>\n", out);
}

static void put_bytes_row(FILE *out, const char *name, double pulled, double pushed)
{
    char cells[2][CELL_MAX];

    fprintf(out, "<tr><td class=\"text\">%s</td><td>%s</td><td>%s</td></tr>\n", name,
            bytes_text(cells[0], pulled), bytes_text(cells[1], pushed));
}

static void put_bytes(const struct report_page *p, FILE *out)
{
    const struct ps_stats *s = &p->run->store;
    char cell[CELL_MAX];

    fputs("<div class=\"scroll\"><table><caption>Bytes</caption><thead><tr>"
          "<th class=\"text\">values, by codec</th><th>pulled</th><th>pushed</th></tr></thead>"
          "<tbody>\n",
          out);
    for (uint32_t i = 0; i < p->cost.n_codecs; i++)
        if (p->cost.codecs[i].pulled || p->cost.codecs[i].pushed)
            put_bytes_row(out, p->cost.codecs[i].name, (double)p->cost.codecs[i].pulled,
                          (double)p->cost.codecs[i].pushed);
    put_bytes_row(out, "<b>on the wire</b>, keys and frames too", (double)s->bytes_in,
                  (double)s->bytes_out);
    fputs("</tbody></table></div>\n", out);
    if (s->rows_asked)
        fprintf(out,
                "<p>The row cache had %.1f %% of the rows asked for; %s of values were not "
                "sent.</p>\n",
                100 * (double)s->rows_cached / (double)s->rows_asked,
                bytes_text(cell, (double)s->bytes_saved));
}

static void put_cost(const struct report_page *p, FILE *out)
{
    begin_section(
        out, "cost", "Cost",
        "Parts of a step may work at the same time, so that shares need not add up to "
        "100 %; the greatest is the bottleneck.");
    fputs("<div class=\"grid2\">\n", out);
    put_seconds(p, out);
    fputs("<div class=\"stack\">\n", out);
    put_speed_chart(p->history, out);
    if (p->run && !p->settings->local)
        put_bytes(p, out);
    else
        fputs(
            "<p>The tables were in this process (--local): nothing went over a network.</p>\n",
            out);
    fputs("</div></div>\n", out);
    end_section(out);
}

/* ---- settings ---- */

static bool is_changed(const struct setting *row, const struct settings *s,
                       struct settings *scratch)
{
    struct err err;

    return settings_set(&settings_worker, scratch, row->name, row->fallback, &err) ||
           !settings_row_is_equal(row, s, scratch);
}

static void put_setting(const struct setting *row, const struct settings *s, FILE *out)
{
    char *text = settings_row_text(row, s);

    put_text_cell(out, "setting", row->name);
    put_text_cell(out, "", text);
    fputs("<td class=\"text optional\">", out);
    markup_put(out, row->help);
    fputs("</td></tr>\n", out);
    free(text);
}

/* Those that were given, or all. */
static void put_settings_table(const struct settings *s, bool all, FILE *out)
{
    struct settings *scratch = memory_alloc(sizeof *scratch);

    fputs(
        "<div class=\"scroll\"><table><thead><tr><th class=\"text\">setting</th>"
        "<th class=\"text\">value</th><th class=\"text optional\">what it is</th></tr></thead>"
        "<tbody>\n",
        out);
    for (size_t i = 0; i < settings_worker.n_rows; i++) {
        const struct setting *row = &settings_worker.rows[i];
        const bool changed = is_changed(row, s, scratch);

        if (!all && !changed)
            continue;
        fputs(all && changed ? "<tr class=\"changed\">" : "<tr>", out);
        put_setting(row, s, out);
    }
    fputs("</tbody></table></div>\n", out);
    settings_free(&settings_worker, scratch);
    free(scratch);
}

static void put_settings(const struct report_page *p, FILE *out)
{
    begin_section(out, "settings", "Settings",
                  "Those that differ from their defaults; all that were in force are below.");
    put_settings_table(p->settings, false, out);
    fprintf(out, "<details><summary>All %zu settings</summary>\n", settings_worker.n_rows);
    put_settings_table(p->settings, true, out);
    fputs("</details>\n", out);
    end_section(out);
}

void report_page_put(const struct report_page *p, FILE *out)
{
    put_head(p, out);
    put_tiles(p, out);
    put_notes(p, out);
    put_history(p, out);
    put_calibration(p, out);
    put_importance(p, out);
    put_cost(p, out);
    put_settings(p, out);
    fputs("<footer>Written by psworker train --report. This file needs no network and no "
          "script.</footer>\n</main></body></html>\n",
          out);
}
