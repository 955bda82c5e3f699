#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "common/conf.h"
#include "common/number.h"
#include "common/settings.h"

#define WIDTH 80
#define LEFT_MAX 34 /* a longer --name ARG has its help on the next line */

/* What every program's --help ends with. */
static const struct {
    const char *left, *help;
} builtins[] = {
    { "--config FILE", "read settings from FILE; what stands on the command line wins" },
    { "--check", "read all settings, say what is wrong with them, and stop" },
    { "--print-config", "write the settings as a file that --config reads, and stop" },
    { "--help", "write this, and stop" },
    { "--version", "write the version, and stop" },
};

/* Words in lines of at most WIDTH; the first begins in column `column`, the others in column
 * `indent`. */
static void print_wrapped(FILE *out, const char *text, size_t column, size_t indent)
{
    size_t n;
    bool is_first = true;

    for (text += strspn(text, " "); *text; text += strspn(text, " ")) {
        n = strcspn(text, " \n");
        if (!is_first && column + 1 + n > WIDTH) {
            fprintf(out, "\n%*s", (int)indent, "");
            column = indent;
        } else if (!is_first) {
            fputc(' ', out);
            column++;
        }
        fwrite(text, 1, n, out);
        column += n;
        text += n;
        is_first = false;
        if (*text == '\n') {
            fprintf(out, "\n%*s", (int)indent, "");
            column = indent;
            is_first = true;
            text++;
        }
    }
    fputc('\n', out);
}

/* Is this row the first of its section? A section's rows need not stand together. */
static bool opens_section(const struct settings_table *table, size_t row)
{
    size_t i;

    for (i = 0; i < row; i++)
        if (strcmp(table->rows[i].section, table->rows[row].section) == 0)
            return false;
    return true;
}

static bool has_section(const struct setting *row, const struct setting *head)
{
    return strcmp(row->section, head->section) == 0;
}

static void write_left(const struct setting *row, char *dst, size_t n_bytes)
{
    if (row->type == SETTING_FLAG || !row->arg)
        snprintf(dst, n_bytes, "--%s", row->name);
    else
        snprintf(dst, n_bytes, "--%s %s", row->name, row->arg);
}

/* How wide the left column is: the longest --name ARG that is not too long. */
static size_t left_width(const struct settings_table *table)
{
    char left[256];
    size_t i, n, width = strlen("--print-config");

    for (i = 0; i < table->n_rows; i++) {
        write_left(&table->rows[i], left, sizeof left);
        n = strlen(left);
        if (n > width && n <= LEFT_MAX)
            width = n;
    }
    return width;
}

static void print_option(FILE *out, const char *left, const char *help, size_t width)
{
    size_t indent = width + 4;

    if (strlen(left) <= width)
        fprintf(out, "  %-*s  ", (int)width, left);
    else
        fprintf(out, "  %s\n%*s", left, (int)indent, "");
    print_wrapped(out, help, indent, indent);
}

/* What the help line ends with: the fallback, and how to switch a flag off that
 * is on without a word. */
static void write_fallback(const struct setting *row, char *dst, size_t n_bytes)
{
    *dst = '\0';
    if (!row->fallback || !row->fallback[0])
        return;
    if (row->type != SETTING_FLAG)
        snprintf(dst, n_bytes, " [%s]", row->fallback);
    else if (!strchr("n0", row->fallback[0]) && strcmp(row->fallback, "off") != 0 &&
             strcmp(row->fallback, "false") != 0)
        snprintf(dst, n_bytes, " [yes; --%s=no]", row->name);
}

static void print_row(FILE *out, const struct setting *row, size_t width)
{
    char left[256], fallback[256], help[512];

    write_left(row, left, sizeof left);
    write_fallback(row, fallback, sizeof fallback);
    snprintf(help, sizeof help, "%s%s", row->help, fallback);
    print_option(out, left, help, width);
}

void settings_print_help(const struct settings_table *table, FILE *out)
{
    size_t i, j, width = left_width(table);

    fprintf(out, "usage: %s\n\n", table->usage);
    print_wrapped(out, table->about, 0, 0);
    for (i = 0; i < table->n_rows; i++) {
        if (!opens_section(table, i))
            continue;
        fprintf(out, "\n%s:\n", table->rows[i].section);
        for (j = i; j < table->n_rows; j++)
            if (has_section(&table->rows[j], &table->rows[i]))
                print_row(out, &table->rows[j], width);
    }
    fputs("\nalways:\n", out);
    for (i = 0; i < COUNT_OF(builtins); i++)
        print_option(out, builtins[i].left, builtins[i].help, width);
}

/* The name of choice number i, or "" when there is none. */
static void write_choice(const char *choices, int i, char *dst, size_t n_bytes)
{
    for (; i > 0 && *choices; i--) {
        choices += strcspn(choices, "|");
        choices += *choices == '|';
    }
    snprintf(dst, n_bytes, "%.*s", (int)strcspn(choices, "|"), choices);
}

static void write_value(const struct setting *row, const void *field, char *dst, size_t n_bytes)
{
    char number[NUMBER_TEXT_MAX];

    switch (row->type) {
    case SETTING_TEXT:
        snprintf(dst, n_bytes, "%s", (const char *)field);
        return;
    case SETTING_U32:
        snprintf(number, sizeof number, "%" PRIu32, *(const uint32_t *)field);
        break;
    case SETTING_U64:
        snprintf(number, sizeof number, "%" PRIu64, *(const uint64_t *)field);
        break;
    case SETTING_FLOAT:
        number_write_float(*(const float *)field, number);
        break;
    case SETTING_BYTES:
        number_write_bytes(*(const uint64_t *)field, number);
        break;
    case SETTING_MS:
        number_write_ms(*(const uint64_t *)field, number);
        break;
    case SETTING_FLAG:
        snprintf(number, sizeof number, "%s", *(const bool *)field ? "yes" : "no");
        break;
    case SETTING_CHOICE:
        write_choice(row->arg, *(const int *)field, dst, n_bytes);
        return;
    case SETTING_LIST: /* has a line for each item */
        number[0] = '\0';
        break;
    }
    snprintf(dst, n_bytes, "%s", number);
}

/* A list has a line for each item, for a line has an end; an empty one has one with nothing. */
static void print_value(FILE *out, const struct setting *row, const void *settings)
{
    const void *field = (const char *)settings + row->offset;
    const struct setting_list *list = field;
    char text[SETTINGS_TEXT_MAX];
    uint32_t i;

    if (row->type == SETTING_LIST && list->n > 0) {
        for (i = 0; i < list->n; i++)
            conf_write(out, row->name, list->items[i]);
        return;
    }
    write_value(row, field, text, sizeof text);
    conf_write(out, row->name, text);
}

void settings_print_config(const struct settings_table *table, const void *settings, FILE *out)
{
    size_t i, j;

    fprintf(out,
            "# Settings of %s: %s --config FILE reads them. Options on the command line win.\n",
            table->program, table->program);
    for (i = 0; i < table->n_rows; i++) {
        if (!opens_section(table, i))
            continue;
        fprintf(out, "\n[%s]\n", table->rows[i].section);
        for (j = i; j < table->n_rows; j++)
            if (has_section(&table->rows[j], &table->rows[i])) {
                fprintf(out, "# %s%s%s\n", table->rows[j].help,
                        table->rows[j].type == SETTING_CHOICE ? ": " : "",
                        table->rows[j].type == SETTING_CHOICE ? table->rows[j].arg : "");
                print_value(out, &table->rows[j], settings);
            }
    }
}
