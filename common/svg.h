/*
 * Charts as SVG: ranges of values with round ends, a frame in which they stand, its axes, lines and dots. Colours and
 * fonts are the page's, by the classes grid, axis, and those that the caller names.
 *
 *     left
 *     +----------------- width ---------+ top
 *     |  y.max                          |
 *     |                                 | height
 *     |  y.min, x.min             x.max |
 *     +---------------------------------+
 */
#ifndef COMMON_SVG_H
#define COMMON_SVG_H

#include <stdbool.h>
#include <stdio.h>

#include "common/base.h"

struct svg_range {
    double min, max; /* max < min: no value */
};

extern const struct svg_range svg_range_empty;

/* What is no finite number is left out. */
void svg_range_add(struct svg_range *r, double value);
bool svg_range_is_empty(const struct svg_range *r);

/* Whole steps around the values, about n of them: 1, 2 or 5 times a power of ten. Equal values have a range, too.
 * Returns the step. */
double svg_range_round(struct svg_range *r, double n);

struct svg_frame {
    struct svg_range x, y;
    double left, top, width, height;
};

double svg_x(const struct svg_frame *f, double value);
double svg_y(const struct svg_frame *f, double value);

/* anchor: start, middle or end. The text is escaped. */
void svg_put_text(FILE *out, double x, double y, const char *anchor, const char *text);

/* Lines and numbers at each step, of ranges that are rounded to them. */
void svg_put_axes(FILE *out, const struct svg_frame *f, double x_step, double y_step);
/* Of these the y-axis alone; and a line of the x-axis, with a text below it. */
void svg_put_y_axis(FILE *out, const struct svg_frame *f, double step);
void svg_put_x_tick(FILE *out, const struct svg_frame *f, double x, const char *text);

/* Points whose values are not finite are left out. */
void svg_put_line(FILE *out, const struct svg_frame *f, const double *x, const double *y,
                  size_t n, const char *class);

/* A dot, and a sentence for whoever points at it. */
void svg_put_dot(FILE *out, const struct svg_frame *f, double x, double y, const char *class,
                 const char *title);

#define SVG_NUMBER_MAX 32u

/* As axes have it: 12 k, 3.4 M, 0.25. */
void svg_number(char dst[static SVG_NUMBER_MAX], double value);

#endif
