/*
 * Cells that are printed as aligned columns. A head that begins with '<' makes its column
 * left-aligned; the last cell of a line is never padded.
 */
#ifndef DEPLOY_PSCTL_GRID_H
#define DEPLOY_PSCTL_GRID_H

#include <stdio.h>

#include "common/base.h"

#define GRID_COLUMNS_MAX 16u

struct grid {
    const char *const *heads; /* borrowed */
    uint32_t n_columns;
    char **cells; /* owned, and each text in it; row by row */
    size_t n_cells, cap_cells;
};

void grid_init(struct grid *g, const char *const *heads, uint32_t n_columns);

/* The next cell. What is no printable text becomes '?': names come from peers, and a terminal
 * obeys control characters. */
void grid_add(struct grid *g, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Prints heads and rows, and frees the cells. */
void grid_finish(struct grid *g, FILE *out);

/* Frees the cells. */
void grid_drop(struct grid *g);

/* Replaces what a terminal would obey, in place. */
void grid_tame(char *text);

#endif
