/*
 * The settings file's form: INI, by inih, made strict.
 *
 *     # a comment: the whole line, also with ;
 *     [section]                 the head of the entries behind it
 *     name = value              blanks around name and value do not count
 *     name = " a\tb "           in quotes: blanks count; \" \\ \t \n \r \xHH as in C
 *
 * A line holds at most 4000 bytes. A value reaches to the end of its line: no comment follows a
 * value, and no value continues on the next line.
 */
#ifndef COMMON_INI_FILE_H
#define COMMON_INI_FILE_H

#include <stdio.h>

#include "common/status.h"

struct ini_file_entry {
    const char *path;    /* borrowed, like all here, for the call */
    unsigned line;       /* from 1 */
    const char *section; /* the head above it; "" without one */
    const char *name;    /* not empty */
    const char *value;   /* unquoted; may be empty */
};

/* Calls `each` for every entry in order; stops at the first status that is not 0 and passes it
 * up. PS_ESETTING with a sentence when the file cannot be read or a line makes no sense. Not
 * for two threads at once: inih's limits belong to the process. */
int ini_file_read(const char *path,
                  int (*each)(void *arg, const struct ini_file_entry *entry, struct err *err),
                  void *arg, struct err *err) MUST_CHECK;

/* `name = value`, quoted where reading it back needs that. */
void ini_file_write(FILE *out, const char *name, const char *value);

#endif
