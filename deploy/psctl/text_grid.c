#include "deploy/psctl/text_grid.h"

#include <assert.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

#define GAP 2u /* between columns */
#define SHORT_WIDTH_MIN 8u

/* How the columns are shown. */
struct layout {
    size_t widths[TEXT_GRID_COLUMNS_MAX];
    bool is_hidden[TEXT_GRID_COLUMNS_MAX];
};

struct head {
    const char *text;
    bool is_left;
    int rank; /* 0: always shown */
};

static struct head head_of(const struct text_grid *g, uint32_t column)
{
    struct head head = { .text = g->heads[column] };

    head.is_left = head.text[0] == '<';
    head.text += head.is_left;
    if (head.text[0] >= '1' && head.text[0] <= '9')
        head.rank = *head.text++ - '0';
    return head;
}

void text_grid_init(struct text_grid *g, const char *const *heads, uint32_t n_columns)
{
    assert(n_columns > 0 && n_columns <= TEXT_GRID_COLUMNS_MAX);
    *g = (struct text_grid){ .heads = heads,
                             .n_columns = n_columns,
                             .marked = TEXT_GRID_NO_ROW };
}

void text_grid_tame(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

static void push_cell(struct text_grid *g, char *text)
{
    if (g->n_cells == g->cap_cells) {
        size_t cap = g->cap_cells ? g->cap_cells * 2 : 64;
        struct text_grid_cell *cells = memory_alloc(cap * sizeof *cells);

        if (g->n_cells)
            memcpy(cells, g->cells, g->n_cells * sizeof *cells);
        free(g->cells);
        g->cells = cells;
        g->cap_cells = cap;
    }
    g->cells[g->n_cells++] = (struct text_grid_cell){ .text = text };
}

void text_grid_add(struct text_grid *g, const char *fmt, ...)
{
    char text[512], *cell;
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    text_grid_tame(text);
    cell = memory_alloc(strlen(text) + 1);
    memcpy(cell, text, strlen(text) + 1);
    push_cell(g, cell);
}

void text_grid_paint(struct text_grid *g, enum terminal_style style)
{
    g->cells[g->n_cells - 1].style = style;
}

/* --- layout --- */

/* Characters of UTF-8. */
static size_t width_of(const char *text)
{
    size_t n = 0;

    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static size_t total_width(const struct text_grid *g, const struct layout *l)
{
    size_t n = 0;

    for (uint32_t c = 0; c < g->n_columns; c++)
        if (!l->is_hidden[c])
            n += l->widths[c] + (n ? GAP : 0);
    return n;
}

/* False: all columns that are left have to stay. */
static bool hide_one(const struct text_grid *g, struct layout *l)
{
    uint32_t at = g->n_columns;
    int most = 0;

    for (uint32_t c = 0; c < g->n_columns; c++)
        if (!l->is_hidden[c] && head_of(g, c).rank && head_of(g, c).rank >= most) {
            most = head_of(g, c).rank;
            at = c;
        }
    if (at == g->n_columns)
        return false;
    l->is_hidden[at] = true;
    return true;
}

/* False: nothing is left that could be shortened. */
static bool shorten_one(const struct text_grid *g, struct layout *l)
{
    uint32_t at = g->n_columns;
    size_t most = SHORT_WIDTH_MIN;

    for (uint32_t c = 0; c < g->n_columns; c++)
        if (!l->is_hidden[c] && head_of(g, c).is_left && l->widths[c] > most) {
            most = l->widths[c];
            at = c;
        }
    if (at == g->n_columns)
        return false;
    l->widths[at]--;
    return true;
}

static uint32_t lay_out(const struct text_grid *g, uint32_t width, struct layout *ret)
{
    uint32_t n_hidden = 0;

    *ret = (struct layout){ 0 };
    for (uint32_t c = 0; c < g->n_columns; c++)
        ret->widths[c] = strlen(head_of(g, c).text);
    for (size_t i = 0; i < g->n_cells; i++) {
        size_t n = width_of(g->cells[i].text);

        if (n > ret->widths[i % g->n_columns])
            ret->widths[i % g->n_columns] = n;
    }
    while (width && total_width(g, ret) > width && hide_one(g, ret))
        n_hidden++;
    while (width && total_width(g, ret) > width && shorten_one(g, ret))
        ;
    return n_hidden;
}

/* --- printing --- */

/* The bytes of the first n characters. */
static size_t bytes_of(const char *text, size_t n)
{
    size_t i = 0;

    for (; text[i]; i++)
        if (((unsigned char)text[i] & 0xc0) != 0x80 && n-- == 0)
            break;
    return i;
}

static void print_blanks(size_t n, FILE *out)
{
    fprintf(out, "%*s", (int)n, "");
}

static void print_cell(const struct text_grid *g, const struct layout *l, uint32_t column,
                       const char *text, bool is_last, FILE *out)
{
    size_t width = l->widths[column], n = width_of(text), pad = n < width ? width - n : 0;

    if (!head_of(g, column).is_left)
        print_blanks(pad, out);
    if (n > width)
        fprintf(out, "%.*s..", (int)bytes_of(text, width - 2), text);
    else
        fputs(text, out);
    if (head_of(g, column).is_left && !is_last)
        print_blanks(pad, out);
}

/* cells NULL: the heads. */
static void print_row(const struct text_grid *g, const struct layout *l,
                      const struct text_grid_cell *cells, bool is_marked,
                      const struct terminal *terminal, FILE *out)
{
    enum terminal_style line = is_marked ? TERMINAL_REVERSE
                               : cells   ? TERMINAL_PLAIN
                                         : TERMINAL_BOLD;
    uint32_t last = g->n_columns - 1;
    bool is_first = true;

    while (last && l->is_hidden[last])
        last--;
    fputs(terminal_begin(terminal, line), out);
    for (uint32_t c = 0; c <= last; c++) {
        enum terminal_style style = cells && !is_marked ? cells[c].style : TERMINAL_PLAIN;

        if (l->is_hidden[c])
            continue;
        print_blanks(is_first ? 0 : GAP, out);
        fputs(terminal_begin(terminal, style), out);
        print_cell(g, l, c, cells ? cells[c].text : head_of(g, c).text, c == last, out);
        fputs(terminal_end(terminal, style), out);
        is_first = false;
    }
    fputs(terminal_end(terminal, line), out);
    fputc('\n', out);
}

uint32_t text_grid_finish(struct text_grid *g, const struct terminal *terminal, FILE *out)
{
    struct layout layout;
    uint32_t n_hidden;

    assert(g->n_cells % g->n_columns == 0);
    n_hidden = lay_out(g, terminal->width, &layout);
    print_row(g, &layout, NULL, false, terminal, out);
    for (size_t i = 0; i < g->n_cells; i += g->n_columns)
        print_row(g, &layout, &g->cells[i], i / g->n_columns == g->marked, terminal, out);
    text_grid_drop(g);
    return n_hidden;
}

void text_grid_drop(struct text_grid *g)
{
    for (size_t i = 0; i < g->n_cells; i++)
        free(g->cells[i].text);
    free(g->cells);
    *g = (struct text_grid){ 0 };
}
