/*
 * One table describes a program's settings. The command line, the file, --help, --print-config, the sample file and the
 * man page are made from it, so they cannot disagree.
 *
 * Precedence, last wins: fallback, file (--config), command line. The file is INI (ini_file.h):
 * `name = value` lines, # and ; comments, and [section] heads for people: names are
 * unique without them. A list that is given again in one file, or on one command line, grows; its first mention there
 * replaces the earlier value. Items of the type SETTING_ITEMS grow from one input to the next, and have sections that
 * mean something: behind [field C1] stands `dim = 8` for the item C1:dim=8 of the setting `field`.
 */
#ifndef COMMON_SETTINGS_H
#define COMMON_SETTINGS_H

#include <stdbool.h>
#include <stdio.h>

#include "common/status.h"

#define SETTINGS_TEXT_MAX 1024u /* a value, with NUL */
#define SETTINGS_LIST_MAX 256u  /* values of a repeatable setting */
#define SETTINGS_ROWS_MAX 256u  /* of a table */

struct setting_list {
    uint32_t n;
    char *items[SETTINGS_LIST_MAX]; /* owned */
};

enum setting_type {
    SETTING_TEXT,   /* char[SETTINGS_TEXT_MAX] */
    SETTING_U32,    /* uint32_t */
    SETTING_U64,    /* uint64_t */
    SETTING_FLOAT,  /* float, finite */
    SETTING_BYTES,  /* uint64_t: 512K 64M 2G 1T, powers of 1024 */
    SETTING_MS,     /* uint64_t: 250ms 30s 5m 1h */
    SETTING_FLAG,   /* bool: yes no true false on off 1 0; --name alone, or --name=no */
    SETTING_CHOICE, /* int: the index in `arg`, "a|b|c" */
    SETTING_LIST,   /* struct setting_list: comma-separated, and may be given again */
    SETTING_ITEMS,  /* struct setting_list: one item with its commas, and may be given again */
};

struct setting {
    const char *section; /* head it stands under in --help and --print-config */
    const char *name;    /* --name, and `name = ...` in the file */
    enum setting_type type;
    const char *arg;      /* what stands behind it in --help: HOST:PORT; a choice's a|b|c */
    const char *fallback; /* as one would type it; "" for an empty text or list */
    const char *help;     /* one line, lower case, no full stop */
    size_t offset;        /* of the field, in the program's settings struct */
    uint64_t min, max;    /* of a number, size or time: the range, checked when max > 0 */
};

struct settings_table {
    const char *program; /* "psd" */
    const char *usage;   /* "psd [--dev] [--config FILE] [options]" */
    const char *about;   /* a paragraph for --help and the man page */
    const struct setting *rows;
    size_t n_rows;
};

/* Requests of the command line beside values. */
enum settings_action {
    SETTINGS_RUN,
    SETTINGS_HELP,
    SETTINGS_VERSION,
    SETTINGS_CHECK,
    SETTINGS_PRINT_CONFIG
};

/*
 * Fills *settings (zeroed by the caller) and *ret_action. argv[first..argc) are `--name value`
 * and `--name=value`, and the built-in --config FILE, --check, --print-config, --help and
 * --version, of which the last two end the reading. PS_ESETTING: err names the setting, what
 * was found and what was expected, for an unknown name the nearest known; no list is left to
 * free.
 */
int settings_load(const struct settings_table *table, int argc, char **argv, int first,
                  void *settings, enum settings_action *ret_action, struct err *err) MUST_CHECK;

/* Where the value of a setting is from. */
struct setting_origin {
    enum { SETTING_FROM_FALLBACK, SETTING_FROM_FILE, SETTING_FROM_COMMAND_LINE } source;
    const char *path; /* of the file: borrowed from argv; else NULL */
    unsigned line;    /* in the file, from 1; of a list its last */
};

/* The same, and origins[i] is that of row i; `origins` has table->n_rows of them. */
int settings_load_origins(const struct settings_table *table, int argc, char **argv, int first,
                          void *settings, enum settings_action *ret_action,
                          struct setting_origin *origins, struct err *err) MUST_CHECK;

/* One value, as a preset or a test would type it. */
int settings_set(const struct settings_table *table, void *settings, const char *name,
                 const char *text, struct err *err) MUST_CHECK;

/* True if the setting has the same value in both. */
bool settings_row_is_equal(const struct setting *row, const void *a, const void *b);

/* A setting that is no list: its value, from one to the other. */
void settings_row_copy(const struct setting *row, void *to, const void *from);

/* A value as one would type it, with commas between the items of a list. The caller's to free. */
char *settings_row_text(const struct setting *row, const void *settings);

/* A copy with lists of its own. *to is zeroed. */
void settings_copy(const struct settings_table *table, void *to, const void *from);

/* Frees the lists. */
void settings_free(const struct settings_table *table, void *settings);

void settings_print_help(const struct settings_table *table, FILE *out);

/* What --check says where it finds no fault: one line; more: what they come to, or "". */
void settings_print_checked(const struct settings_table *table, const char *more, FILE *out);

/* A settings file that gives exactly *settings, each with its help line as a comment. */
void settings_print_config(const struct settings_table *table, const void *settings, FILE *out);

#endif
