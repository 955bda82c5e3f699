#include "deploy/psctl/grid.h"

#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

void grid_init(struct grid *g, const char *const *heads, uint32_t n_columns)
{
    assert(n_columns > 0 && n_columns <= GRID_COLUMNS_MAX);
    *g = (struct grid){ .heads = heads, .n_columns = n_columns };
}

void grid_tame(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

static void push_cell(struct grid *g, char *cell)
{
    if (g->n_cells == g->cap_cells) {
        size_t cap = g->cap_cells ? g->cap_cells * 2 : 64;
        char **cells = mem_alloc(cap * sizeof *cells);

        if (g->n_cells)
            memcpy(cells, g->cells, g->n_cells * sizeof *cells);
        free(g->cells);
        g->cells = cells;
        g->cap_cells = cap;
    }
    g->cells[g->n_cells++] = cell;
}

void grid_add(struct grid *g, const char *fmt, ...)
{
    char text[512], *cell;
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    grid_tame(text);
    cell = mem_alloc(strlen(text) + 1);
    memcpy(cell, text, strlen(text) + 1);
    push_cell(g, cell);
}

static const char *head_text(const char *head)
{
    return head[0] == '<' ? head + 1 : head;
}

static void measure(const struct grid *g, size_t *widths)
{
    for (uint32_t c = 0; c < g->n_columns; c++)
        widths[c] = strlen(head_text(g->heads[c]));
    for (size_t i = 0; i < g->n_cells; i++)
        if (strlen(g->cells[i]) > widths[i % g->n_columns])
            widths[i % g->n_columns] = strlen(g->cells[i]);
}

static void print_cell(const struct grid *g, uint32_t column, const char *text, size_t width,
                       FILE *out)
{
    const char *gap = column ? "  " : "";
    int last = column + 1 == g->n_columns;

    if (g->heads[column][0] != '<')
        fprintf(out, "%s%*s", gap, (int)width, text);
    else
        fprintf(out, "%s%-*s", gap, last ? 0 : (int)width, text);
    if (last)
        fputc('\n', out);
}

void grid_finish(struct grid *g, FILE *out)
{
    size_t widths[GRID_COLUMNS_MAX];

    assert(g->n_cells % g->n_columns == 0);
    measure(g, widths);
    for (uint32_t c = 0; c < g->n_columns; c++)
        print_cell(g, c, head_text(g->heads[c]), widths[c], out);
    for (size_t i = 0; i < g->n_cells; i++) {
        uint32_t c = (uint32_t)(i % g->n_columns);

        print_cell(g, c, g->cells[i], widths[c], out);
    }
    grid_drop(g);
}

void grid_drop(struct grid *g)
{
    for (size_t i = 0; i < g->n_cells; i++)
        free(g->cells[i]);
    free(g->cells);
    *g = (struct grid){ 0 };
}
