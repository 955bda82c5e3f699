#include "common/settings.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/ini_file.h"
#include "common/memory.h"
#include "common/number.h"
#include "common/suggest.h"

/* One place that values come from: the fallbacks, a file, the command line. */
struct settings_input {
    const struct settings_table *table;
    void *settings;
    char before[128];             /* the name in sentences: "--", "psd.conf:12: " or nothing */
    bool seen[SETTINGS_ROWS_MAX]; /* rows that this source has set */
    struct setting_origin *origins; /* borrowed, of each row, or NULL */
    struct setting_origin here;     /* of the next value */
    struct err *err;
};

/* Options that every program has. */
enum builtin {
    BUILTIN_NONE,
    BUILTIN_HELP,
    BUILTIN_VERSION,
    BUILTIN_CHECK,
    BUILTIN_PRINT_CONFIG,
    BUILTIN_CONFIG
};

static const char *const builtin_names[] = {
    [BUILTIN_NONE] = "",
    [BUILTIN_HELP] = "help",
    [BUILTIN_VERSION] = "version",
    [BUILTIN_CHECK] = "check",
    [BUILTIN_PRINT_CONFIG] = "print-config",
    [BUILTIN_CONFIG] = "config",
};

static const enum settings_action builtin_actions[] = {
    [BUILTIN_HELP] = SETTINGS_HELP,   [BUILTIN_VERSION] = SETTINGS_VERSION,
    [BUILTIN_CHECK] = SETTINGS_CHECK, [BUILTIN_PRINT_CONFIG] = SETTINGS_PRINT_CONFIG,
    [BUILTIN_CONFIG] = SETTINGS_RUN,
};

/* The command line is walked once for each: --help needs no valid file, and a flag comes after
 * every file. */
enum pass { PASS_ACTIONS, PASS_FILES, PASS_FLAGS, N_PASSES };

struct option {
    enum builtin builtin;
    const struct setting *row; /* NULL for a built-in one */
    const char *value;
};

struct load {
    struct settings_input line; /* the command line as an input */
    int argc, first;
    char **argv;
    enum settings_action *action;
};

/* "text", cut and without control characters, fit for a sentence. */
struct shown {
    char text[72];
};

static struct shown show(const char *text)
{
    struct shown s;
    char *at;

    snprintf(s.text, sizeof s.text, strlen(text) > 60 ? "\"%.57s...\"" : "\"%s\"", text);
    for (at = s.text; *at; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7f)
            *at = '?';
    return s;
}

/* --batch: "abc" is not a whole number from 1 to 1000000 */
static int refuse(const struct settings_input *from, const struct setting *row,
                  const char *text, const char *why)
{
    return err_set(from->err, PS_ESETTING, "%s%s: %s %s", from->before, row->name,
                   show(text).text, why);
}

static void *field_of(void *settings, const struct setting *row)
{
    return (char *)settings + row->offset;
}

static const struct setting *find_row(const struct settings_table *table, const char *name)
{
    size_t i;

    for (i = 0; i < table->n_rows; i++)
        if (strcmp(table->rows[i].name, name) == 0)
            return &table->rows[i];
    return NULL;
}

static int refuse_number(const struct settings_input *from, const struct setting *row,
                         const char *text)
{
    char why[160], least[NUMBER_TEXT_MAX] = "", most[NUMBER_TEXT_MAX] = "";

    if (row->type == SETTING_BYTES) {
        number_write_bytes(row->min, least);
        number_write_bytes(row->max, most);
        snprintf(why, sizeof why, "is not a size such as 512K, 64M or 2G");
    } else if (row->type == SETTING_MS) {
        number_write_ms(row->min, least);
        number_write_ms(row->max, most);
        snprintf(why, sizeof why, "is not a time such as 250ms, 30s, 5m or 1h");
    } else {
        snprintf(least, sizeof least, "%" PRIu64, row->min);
        snprintf(most, sizeof most, "%" PRIu64, row->max);
        snprintf(why, sizeof why,
                 row->type == SETTING_FLOAT ? "is not a decimal number"
                                            : "is not a whole number");
    }
    if (row->max > 0)
        snprintf(why + strlen(why), sizeof why - strlen(why), " from %s to %s", least, most);
    else if (row->type == SETTING_U32)
        snprintf(why + strlen(why), sizeof why - strlen(why), " from 0 to %" PRIu32,
                 UINT32_MAX);
    return refuse(from, row, text, why);
}

static bool out_of_range(const struct setting *row, uint64_t n)
{
    return (row->type == SETTING_U32 && n > UINT32_MAX) ||
           (row->max > 0 && (n < row->min || n > row->max));
}

static int set_whole(const struct settings_input *from, const struct setting *row,
                     const char *text)
{
    void *field = field_of(from->settings, row);
    uint64_t n = 0;
    int status;

    if (row->type == SETTING_BYTES)
        status = number_read_bytes(text, &n);
    else if (row->type == SETTING_MS)
        status = number_read_ms(text, &n);
    else
        status = number_read_u64(text, &n);
    if (status < 0 || out_of_range(row, n))
        return refuse_number(from, row, text);
    if (row->type == SETTING_U32)
        *(uint32_t *)field = (uint32_t)n;
    else
        *(uint64_t *)field = n;
    return 0;
}

static int set_float(const struct settings_input *from, const struct setting *row,
                     const char *text)
{
    float x;

    if (number_read_float(text, &x) < 0 ||
        (row->max > 0 && (x < (float)row->min || x > (float)row->max)))
        return refuse_number(from, row, text);
    *(float *)field_of(from->settings, row) = x;
    return 0;
}

static int set_text(const struct settings_input *from, const struct setting *row,
                    const char *text)
{
    size_t n = strlen(text);

    if (n >= SETTINGS_TEXT_MAX)
        return refuse(from, row, text, "is longer than 1023 bytes");
    memcpy(field_of(from->settings, row), text, n + 1);
    return 0;
}

static bool read_flag(const char *text, bool *ret)
{
    static const char *const words[][2] = {
        { "no", "yes" }, { "false", "true" }, { "off", "on" }, { "0", "1" }
    };

    for (size_t i = 0; i < COUNT_OF(words); i++)
        for (int on = 0; on <= 1; on++)
            if (strcasecmp(text, words[i][on]) == 0) {
                *ret = on;
                return true;
            }
    return false;
}

static int set_flag(const struct settings_input *from, const struct setting *row,
                    const char *text)
{
    return read_flag(text, field_of(from->settings, row))
               ? 0
               : refuse(from, row, text, "is neither yes nor no");
}

static int set_choice(const struct settings_input *from, const struct setting *row,
                      const char *text)
{
    const char *choice = row->arg;
    size_t n, n_text = strlen(text);
    char why[200];
    int i;

    for (i = 0;; i++) {
        n = strcspn(choice, "|");
        if (n == n_text && memcmp(choice, text, n) == 0) {
            *(int *)field_of(from->settings, row) = i;
            return 0;
        }
        if (!choice[n])
            break;
        choice += n + 1;
    }
    snprintf(why, sizeof why, "is not one of %s", row->arg);
    return refuse(from, row, text, why);
}

static void list_free(struct setting_list *list)
{
    uint32_t i;

    for (i = 0; i < list->n; i++)
        free(list->items[i]);
    *list = (struct setting_list){ 0 };
}

static int list_add(struct setting_list *list, const char *item, size_t n_bytes)
{
    char *copy = memory_try_alloc(n_bytes + 1);

    if (!copy)
        return -ENOMEM;
    memcpy(copy, item, n_bytes);
    list->items[list->n++] = copy;
    return 0;
}

/* Adds the comma-separated items of `text`. What is wrong, or NULL. *list holds items in either
 * case. */
static const char *list_split(struct setting_list *list, const char *text)
{
    size_t n, n_item;

    for (; *text; text += n) {
        text += strspn(text, " \t");
        n = n_item = strcspn(text, ",");
        while (n_item > 0 && (text[n_item - 1] == ' ' || text[n_item - 1] == '\t'))
            n_item--;
        if (n_item == 0)
            return "has an empty item";
        if (n_item >= SETTINGS_TEXT_MAX)
            return "has an item of more than 1023 bytes";
        if (list->n == SETTINGS_LIST_MAX)
            return "has more than 256 items";
        if (list_add(list, text, n_item) < 0)
            return "does not fit into memory";
        if (text[n] == ',' && !text[++n])
            return "ends in a comma";
    }
    return NULL;
}

static int set_list(const struct settings_input *from, const struct setting *row,
                    const char *text)
{
    struct setting_list *list = field_of(from->settings, row), added = { 0 };
    const char *wrong = list_split(&added, text);
    uint32_t n_kept = from->seen[row - from->table->rows] ? list->n : 0;

    if (!wrong && n_kept + added.n > SETTINGS_LIST_MAX)
        wrong = "is one too many: there may be 256";
    if (wrong) {
        list_free(&added);
        return refuse(from, row, text, wrong);
    }
    if (n_kept == 0)
        list_free(list);
    memcpy(list->items + n_kept, added.items, added.n * sizeof added.items[0]);
    list->n = n_kept + added.n;
    return 0;
}

static int set_items(const struct settings_input *from, const struct setting *row,
                     const char *text)
{
    struct setting_list *list = field_of(from->settings, row);

    if (!text[0])
        return 0;
    if (strlen(text) >= SETTINGS_TEXT_MAX)
        return refuse(from, row, text, "is longer than 1023 bytes");
    if (list->n == SETTINGS_LIST_MAX)
        return refuse(from, row, text, "is one too many: there may be 256");
    return list_add(list, text, strlen(text))
               ? refuse(from, row, text, "does not fit into memory")
               : 0;
}

static bool is_list(const struct setting *row)
{
    return row->type == SETTING_LIST || row->type == SETTING_ITEMS;
}

static int set_row(struct settings_input *from, const struct setting *row, const char *text)
{
    static int (*const setters[])(const struct settings_input *, const struct setting *,
                                  const char *) = {
        [SETTING_TEXT] = set_text,   [SETTING_U32] = set_whole,     [SETTING_U64] = set_whole,
        [SETTING_FLOAT] = set_float, [SETTING_BYTES] = set_whole,   [SETTING_MS] = set_whole,
        [SETTING_FLAG] = set_flag,   [SETTING_CHOICE] = set_choice, [SETTING_LIST] = set_list,
        [SETTING_ITEMS] = set_items,
    };
    int status = setters[row->type](from, row, text);

    if (status == 0) {
        from->seen[row - from->table->rows] = true;
        if (from->origins)
            from->origins[row - from->table->rows] = from->here;
    }
    return status;
}

static void source_init(struct settings_input *from, const struct settings_table *table,
                        void *settings, struct err *err)
{
    assert(table->n_rows <= SETTINGS_ROWS_MAX);
    *from = (struct settings_input){ .table = table, .settings = settings, .err = err };
}

/* A fallback that its own row refuses is a mistake in the program. */
static void set_fallbacks(const struct settings_table *table, void *settings)
{
    struct settings_input from;
    struct err err = { 0 };
    size_t i;

    source_init(&from, table, settings, &err);
    for (i = 0; i < table->n_rows; i++)
        if (table->rows[i].fallback &&
            set_row(&from, &table->rows[i], table->rows[i].fallback) < 0) {
            fprintf(stderr, "%s: the fallback of %s\n", table->program, err.text);
            abort();
        }
}

static int refuse_name(const struct settings_input *from, const char *what, const char *dashes,
                       const char *name, bool with_builtins)
{
    struct suggest near;
    size_t i;

    suggest_init(&near, name);
    for (i = 0; i < from->table->n_rows; i++)
        suggest_offer(&near, from->table->rows[i].name);
    for (i = BUILTIN_HELP; with_builtins && i < COUNT_OF(builtin_names); i++)
        suggest_offer(&near, builtin_names[i]);
    if (!near.name)
        return err_set(from->err, PS_ESETTING, "%s \"%s%.60s\"; --help lists what there is",
                       what, dashes, name);
    return err_set(from->err, PS_ESETTING, "%s \"%s%.60s\"; did you mean \"%s%s\"?", what,
                   dashes, name, dashes, near.name);
}

/* The items that sections like this one say: "field C1" those of the setting `field`, and *ret_item is "C1". */
static const struct setting *find_items(const struct settings_table *table, const char *section,
                                        const char **ret_item)
{
    char name[64];
    const size_t n = strcspn(section, " ");
    const struct setting *row;

    snprintf(name, sizeof name, "%.*s", (int)n, section);
    row = section[n] ? find_row(table, name) : NULL;
    *ret_item = section + n + strspn(section + n, " ");
    return row && row->type == SETTING_ITEMS ? row : NULL;
}

static int set_item(struct settings_input *from, const struct setting *row, const char *item,
                    const struct ini_file_entry *entry)
{
    char text[SETTINGS_TEXT_MAX];

    if ((size_t)snprintf(text, sizeof text, "%s:%s=%s", item, entry->name, entry->value) >=
        sizeof text)
        return refuse(from, row, entry->value, "is longer than 1023 bytes with its name");
    return set_row(from, row, text);
}

static int on_entry(void *arg, const struct ini_file_entry *entry, struct err *err)
{
    struct settings_input *from = arg;
    const struct setting *row = find_row(from->table, entry->name), *items;
    const char *item;
    char what[160];

    from->err = err;
    from->here.line = entry->line;
    snprintf(from->before, sizeof from->before, "%.100s:%u: ", entry->path, entry->line);
    items = find_items(from->table, entry->section, &item);
    if (items)
        return set_item(from, items, item, entry);
    if (row)
        return set_row(from, row, entry->value);
    snprintf(what, sizeof what, "%sunknown setting", from->before);
    return refuse_name(from, what, "", entry->name, false);
}

static int load_file(const struct settings_input *line, const char *path)
{
    struct settings_input file;

    source_init(&file, line->table, line->settings, line->err);
    file.origins = line->origins;
    file.here = (struct setting_origin){ .source = SETTING_FROM_FILE, .path = path };
    return ini_file_read(path, on_entry, &file, line->err);
}

/* What `name` (n_name bytes of it, behind the --) is. */
static int find_option(const struct load *l, const char *name, size_t n_name,
                       struct option *ret_option)
{
    struct option option = { 0 };
    char copy[64];
    size_t i;

    snprintf(copy, sizeof copy, "%.*s", (int)(n_name < sizeof copy ? n_name : sizeof copy),
             name);
    option.row = find_row(l->line.table, copy);
    for (i = BUILTIN_HELP; i < COUNT_OF(builtin_names); i++)
        if (strcmp(copy, builtin_names[i]) == 0)
            option.builtin = (enum builtin)i;
    if (!option.row && option.builtin == BUILTIN_NONE)
        return refuse_name(&l->line, "unknown option", "--", copy, true);
    *ret_option = option;
    return 0;
}

/* "--header yes" says the same as "header = yes" in a file. No program takes a word behind its options. */
static bool is_flag_word(const struct load *l, int i)
{
    bool unused;

    return i < l->argc && read_flag(l->argv[i], &unused);
}

/* The option at argv[*i], which then stands behind it. */
static int next_option(const struct load *l, int *i, struct option *ret_option)
{
    const char *given = l->argv[(*i)++], *text = strcmp(given, "-h") == 0 ? "--help" : given,
               *equals = strchr(text, '=');
    struct err *err = l->line.err;
    int status;

    if (strncmp(text, "--", 2) != 0 || !text[2])
        return err_set(err, PS_ESETTING,
                       "%s is not an option; options begin with -- and are listed by --help",
                       show(text).text);
    status = find_option(l, text + 2, equals ? (size_t)(equals - text - 2) : strlen(text + 2),
                         ret_option);
    if (status < 0)
        return status;
    ret_option->value = equals ? equals + 1 : NULL;
    if (ret_option->row ? ret_option->row->type == SETTING_FLAG
                        : ret_option->builtin != BUILTIN_CONFIG) {
        if (ret_option->builtin != BUILTIN_NONE && equals)
            return err_set(err, PS_ESETTING, "--%s takes no value",
                           builtin_names[ret_option->builtin]);
        if (!equals)
            ret_option->value =
                ret_option->row && is_flag_word(l, *i) ? l->argv[(*i)++] : "yes";
        return 0;
    }
    if (!equals && *i < l->argc && strncmp(l->argv[*i], "--", 2) != 0)
        ret_option->value = l->argv[(*i)++];
    if (!ret_option->value)
        return err_set(err, PS_ESETTING, "%s: the value is missing; expected %s", text,
                       ret_option->row && ret_option->row->arg ? ret_option->row->arg
                                                               : "a FILE");
    return 0;
}

static int take_option(struct load *l, enum pass pass, const struct option *option)
{
    enum settings_action action = builtin_actions[option->builtin];

    if (option->row)
        return pass == PASS_FLAGS ? set_row(&l->line, option->row, option->value) : 0;
    if (option->builtin == BUILTIN_CONFIG)
        return pass == PASS_FILES ? load_file(&l->line, option->value) : 0;
    *l->action = action;
    return 0;
}

/* The first --help or --version ends the reading: what follows may be wrong. */
static bool wants_no_values(enum settings_action action)
{
    return action == SETTINGS_HELP || action == SETTINGS_VERSION;
}

static int read_options(struct load *l, enum pass pass)
{
    struct option option = { 0 };
    int i = l->first, status = 0;

    while (i < l->argc && status == 0 && !wants_no_values(*l->action)) {
        status = next_option(l, &i, &option);
        if (status == 0)
            status = take_option(l, pass, &option);
    }
    return status;
}

int settings_load(const struct settings_table *table, int argc, char **argv, int first,
                  void *settings, enum settings_action *ret_action, struct err *err)
{
    return settings_load_origins(table, argc, argv, first, settings, ret_action, NULL, err);
}

int settings_load_origins(const struct settings_table *table, int argc, char **argv, int first,
                          void *settings, enum settings_action *ret_action,
                          struct setting_origin *origins, struct err *err)
{
    enum settings_action action = SETTINGS_RUN;
    struct load l = { .argc = argc, .argv = argv, .first = first, .action = &action };
    int pass, status = 0;

    source_init(&l.line, table, settings, err);
    strcpy(l.line.before, "--");
    l.line.origins = origins;
    l.line.here.source = SETTING_FROM_COMMAND_LINE;
    for (size_t i = 0; origins && i < table->n_rows; i++)
        origins[i] = (struct setting_origin){ .source = SETTING_FROM_FALLBACK };
    set_fallbacks(table, settings);
    for (pass = 0; pass < N_PASSES && status == 0; pass++)
        status = read_options(&l, (enum pass)pass);
    if (status < 0) {
        settings_free(table, settings);
        return status;
    }
    *ret_action = action;
    return 0;
}

int settings_set(const struct settings_table *table, void *settings, const char *name,
                 const char *text, struct err *err)
{
    const struct setting *row = find_row(table, name);
    struct settings_input from;

    source_init(&from, table, settings, err);
    return row ? set_row(&from, row, text)
               : refuse_name(&from, "unknown setting", "", name, false);
}

void settings_free(const struct settings_table *table, void *settings)
{
    size_t i;

    for (i = 0; i < table->n_rows; i++)
        if (is_list(&table->rows[i]))
            list_free(field_of(settings, &table->rows[i]));
}

/* ---- printing ---- */

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

static bool list_is_equal(const struct setting_list *a, const struct setting_list *b)
{
    if (a->n != b->n)
        return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (strcmp(a->items[i], b->items[i]) != 0)
            return false;
    return true;
}

/* Of all types but the list. */
static size_t row_bytes(const struct setting *row)
{
    static const size_t n_bytes[] = {
        [SETTING_TEXT] = SETTINGS_TEXT_MAX, [SETTING_U32] = sizeof(uint32_t),
        [SETTING_U64] = sizeof(uint64_t),   [SETTING_FLOAT] = sizeof(float),
        [SETTING_BYTES] = sizeof(uint64_t), [SETTING_MS] = sizeof(uint64_t),
        [SETTING_FLAG] = sizeof(bool),      [SETTING_CHOICE] = sizeof(int),
    };

    assert(!is_list(row));
    return n_bytes[row->type];
}

bool settings_row_is_equal(const struct setting *row, const void *a, const void *b)
{
    const void *left = (const char *)a + row->offset, *right = (const char *)b + row->offset;

    if (row->type == SETTING_TEXT)
        return strcmp(left, right) == 0;
    if (is_list(row))
        return list_is_equal(left, right);
    return memcmp(left, right, row_bytes(row)) == 0;
}

void settings_row_copy(const struct setting *row, void *to, const void *from)
{
    memcpy((char *)to + row->offset, (const char *)from + row->offset, row_bytes(row));
}

void settings_copy(const struct settings_table *table, void *to, const void *from)
{
    for (size_t i = 0; i < table->n_rows; i++) {
        const struct setting *row = &table->rows[i];
        const struct setting_list *list = (const void *)((const char *)from + row->offset);
        struct setting_list *copy = field_of(to, row);

        if (!is_list(row)) {
            settings_row_copy(row, to, from);
            continue;
        }
        for (uint32_t j = 0; j < list->n; j++) {
            size_t n_bytes = strlen(list->items[j]) + 1;

            copy->items[j] = memcpy(memory_alloc(n_bytes), list->items[j], n_bytes);
        }
        copy->n = list->n;
    }
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
    case SETTING_LIST:
    case SETTING_ITEMS: /* has a line for each item */
        number[0] = '\0';
        break;
    }
    snprintf(dst, n_bytes, "%s", number);
}

static char *join(const struct setting_list *list)
{
    size_t n_bytes = 1, n = 0;
    char *text;

    for (uint32_t i = 0; i < list->n; i++)
        n_bytes += strlen(list->items[i]) + 1;
    text = memory_alloc(n_bytes);
    text[0] = '\0';
    for (uint32_t i = 0; i < list->n; i++)
        n += (size_t)snprintf(text + n, n_bytes - n, "%s%s", i ? "," : "", list->items[i]);
    return text;
}

char *settings_row_text(const struct setting *row, const void *settings)
{
    const void *field = (const char *)settings + row->offset;
    char *text;

    if (is_list(row))
        return join(field);
    text = memory_alloc(SETTINGS_TEXT_MAX);
    write_value(row, field, text, SETTINGS_TEXT_MAX);
    return text;
}

/* A list has a line for each item, for a line has an end; an empty one has one with nothing. */
static void print_value(FILE *out, const struct setting *row, const void *settings)
{
    const void *field = (const char *)settings + row->offset;
    const struct setting_list *list = field;
    char text[SETTINGS_TEXT_MAX];
    uint32_t i;

    if (is_list(row) && list->n > 0) {
        for (i = 0; i < list->n; i++)
            ini_file_write(out, row->name, list->items[i]);
        return;
    }
    write_value(row, field, text, sizeof text);
    ini_file_write(out, row->name, text);
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

void settings_print_checked(const struct settings_table *table, const char *more, FILE *out)
{
    fprintf(out, "%s: the settings are fine%s%s\n", table->program, more[0] ? ": " : "", more);
}
