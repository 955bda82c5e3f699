#include "deploy/psctl/fold.h"

#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

/* Columns of n bytes: neither those of a colour, nor the second and later ones of a character. */
static uint32_t columns(const char *text, size_t n)
{
    uint32_t width = 0;

    for (size_t i = 0; i < n; i++)
        if (text[i] == '\x1b') {
            while (i < n && text[i] != 'm')
                i++;
        } else {
            width += ((unsigned char)text[i] & 0xc0) != 0x80;
        }
    return width;
}

static uint32_t indent_of(const char *line, size_t n)
{
    bool has_label = n > FOLD_LABEL && line[0] != ' ' && line[FOLD_LABEL - 1] == ' ' &&
                     line[FOLD_LABEL] != ' ' && !memchr(line, ':', FOLD_LABEL);

    return has_label ? FOLD_LABEL : FOLD_INDENT;
}

/* As many bytes of the line as go into `width` columns, one word at least, without the blank behind them. */
static size_t fitting(const char *line, size_t n, uint32_t width)
{
    size_t fit = 0;

    for (size_t i = 1; i <= n; i++)
        if (i == n || (line[i] == ' ' && line[i - 1] != ' ')) {
            if (fit && columns(line, i) > width)
                break;
            fit = i;
        }
    return fit;
}

static void print_line(const char *line, size_t n, uint32_t width, FILE *out)
{
    const uint32_t indent = indent_of(line, n);
    uint32_t left = width;

    while (n > 0 && columns(line, n) > left) {
        size_t fit = fitting(line, n, left);

        fprintf(out, "%.*s", (int)fit, line);
        for (; fit < n && line[fit] == ' ';)
            fit++;
        line += fit;
        n -= fit;
        if (n > 0)
            fprintf(out, "\n%*s", (int)indent, "");
        left = width - indent;
    }
    fprintf(out, "%.*s\n", (int)n, line);
}

void fold_print(const char *text, const struct terminal *terminal, FILE *out)
{
    if (terminal->width < 2 * FOLD_LABEL) { /* without an end, or too narrow for anything */
        fputs(text, out);
        return;
    }
    while (*text) {
        size_t n = strcspn(text, "\n");

        print_line(text, n, terminal->width, out);
        text += n + (text[n] == '\n');
    }
}

FILE *fold_open(struct fold *f)
{
    *f = (struct fold){ 0 };
    return f->stream = memory_need(open_memstream(&f->text, &f->n_bytes));
}

void fold_close(struct fold *f, const struct terminal *terminal, FILE *out)
{
    fclose(f->stream);
    fold_print(memory_need(f->text), terminal, out);
    free(f->text);
}
