/*
 * The columns of a click log: the name of each, and the list that claims it. schema.c makes a plan of them.
 */
#ifndef WORKER_DATA_COLUMNS_H
#define WORKER_DATA_COLUMNS_H

#include <stdbool.h>

#include "common/status.h"
#include "worker/data/line_parser.h"

#define COLUMNS_MAX LINE_PARSER_COLUMNS_MAX
#define COLUMNS_NAME_MAX 64u /* bytes of a column's name, with NUL */

enum columns_kind {
    COLUMNS_UNCLAIMED,
    COLUMNS_LABEL,
    COLUMNS_NUMERIC,
    COLUMNS_CATEGORICAL,
    COLUMNS_BUCKET,
    COLUMNS_IGNORED,
};

struct columns {
    uint32_t n;
    bool named;             /* else all names are "" */
    bool preset;            /* a preset made the claims so far: `ignored` may override them */
    enum columns_kind rest; /* the kind of "*", if a list has it */
    char (*names)[COLUMNS_NAME_MAX]; /* owned, [n] */
    enum columns_kind kinds[COLUMNS_MAX];
};

/* n columns without a name; PS_ESETTING for none or more than COLUMNS_MAX, -ENOMEM. */
int columns_init(struct columns *c, uint32_t n, struct err *err) MUST_CHECK;

void columns_deinit(struct columns *c);

/* PS_ESETTING when longer than COLUMNS_NAME_MAX - 1. */
int columns_set_name(struct columns *c, uint32_t i, const char *name, size_t len,
                     struct err *err) MUST_CHECK;

/* The next item of a comma-separated text, without the spaces around it; moves *cursor. NULL after the
 * last one. */
const char *columns_next_item(const char **cursor, size_t *ret_len);

/* "3" or "3-7". */
bool columns_parse_range(const char *item, size_t len, uint64_t *ret_first, uint64_t *ret_last);

int columns_find_name(const struct columns *c, const char *setting, const char *item,
                      size_t len, uint32_t *ret, struct err *err) MUST_CHECK;

/* A column whose name looks like a position is found by name. */
bool columns_has_name(const struct columns *c, const char *item, size_t len);

/* A list is positions ("0,3-7"), names ("age,C14") or both, or "*". PS_ESETTING for a column that is not
 * there (the sentence lists those that are) or that another list has claimed. `setting` is the list's
 * name. */
int columns_claim(struct columns *c, const char *setting, const char *list,
                  enum columns_kind kind, struct err *err) MUST_CHECK;

/* After all lists: gives the unclaimed columns to "*", or ignores them. */
void columns_claim_rest(struct columns *c);

#endif
