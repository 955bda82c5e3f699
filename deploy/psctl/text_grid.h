/*
 * Cells that are printed as aligned columns. A head may begin with '<', which aligns its column to the left, and then
 * with a digit, which lets the column go if the terminal is too narrow for all: the greatest digit first, of equals the
 * rightmost. If that is not enough, the widest left-aligned columns are cut.
 */
#ifndef DEPLOY_PSCTL_TEXT_GRID_H
#define DEPLOY_PSCTL_TEXT_GRID_H

#include <stdbool.h>
#include <stdio.h>

#include "deploy/psctl/terminal.h"

#define TEXT_GRID_COLUMNS_MAX 18u

struct text_grid_cell {
    char *text; /* owned */
    enum terminal_style style;
};

struct text_grid {
    const char *const *heads; /* borrowed */
    uint32_t n_columns;
    struct text_grid_cell *cells; /* owned; row by row */
    size_t n_cells, cap_cells;
    size_t marked; /* a row that is shown reversed; TEXT_GRID_NO_ROW: none */
};

#define TEXT_GRID_NO_ROW SIZE_MAX

void text_grid_init(struct text_grid *g, const char *const *heads, uint32_t n_columns);

/* The next cell. Unprintable bytes become '?': names come from peers, and a terminal obeys control characters. */
void text_grid_add(struct text_grid *g, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* The style of the last cell. */
void text_grid_paint(struct text_grid *g, enum terminal_style style);

/* Prints heads and rows, and frees the cells. Returns how many columns did not fit. */
uint32_t text_grid_finish(struct text_grid *g, const struct terminal *terminal, FILE *out);

/* Frees the cells. */
void text_grid_drop(struct text_grid *g);

/* Replaces what a terminal would obey, in place. */
void text_grid_tame(char *text);

#endif
