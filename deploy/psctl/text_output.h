/* An answer of psd's (JSON) as something to read at a terminal. */
#ifndef DEPLOY_PSCTL_TEXT_OUTPUT_H
#define DEPLOY_PSCTL_TEXT_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>

#include "common/base.h"

/*
 * Cells that are printed as aligned columns. A head that begins with '<' makes its column
 * left-aligned; the last cell of a line is never padded.
 */
#define TEXT_OUTPUT_COLUMNS_MAX 16u

struct text_output_grid {
    const char *const *heads; /* borrowed */
    uint32_t n_columns;
    char **cells; /* owned, and each text in it; row by row */
    size_t n_cells, cap_cells;
};

void text_output_grid_init(struct text_output_grid *g, const char *const *heads,
                           uint32_t n_columns);

/* Prints the next cell. Unprintable bytes become '?': names come from peers, and a terminal obeys control
 * characters. */
void text_output_grid_add(struct text_output_grid *g, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Prints heads and rows, and frees the cells. */
void text_output_grid_finish(struct text_output_grid *g, FILE *out);

/* Frees the cells. */
void text_output_grid_drop(struct text_output_grid *g);

/* False when the text is not what psd answers to this command. */
bool text_output_answer(const char *command, const char *json, FILE *out);

#endif
