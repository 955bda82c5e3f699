/*
 * The columns of a file while settings are being read: what each is called, and which list of
 * columns claimed it. A list is text, of positions ("0,3-7"), names ("age,C14") or both, or "*"
 * for every column that no other list claims.
 */
#ifndef WORKER_DATA_COLUMNS_H
#define WORKER_DATA_COLUMNS_H

#include <stdbool.h>

#include "common/status.h"

#define COLUMNS_MAX 1024u
#define COLUMNS_NAME_MAX 64u

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
    bool preset;            /* claims so far came from a preset: `ignored` may take them back */
    enum columns_kind rest; /* what "*" stands for, if any list had it */
    char (*names)[COLUMNS_NAME_MAX]; /* owned, [n] */
    enum columns_kind kinds[COLUMNS_MAX];
};

/* n columns without a name; PS_ESETTING for none or more than COLUMNS_MAX, -ENOMEM. */
int columns_init(struct columns *c, uint32_t n, struct err *err) MUST_CHECK;
void columns_deinit(struct columns *c);

/* PS_ESETTING when longer than COLUMNS_NAME_MAX - 1. */
int columns_set_name(struct columns *c, uint32_t i, const char *name, size_t len,
                     struct err *err) MUST_CHECK;

/* Parts of a comma-separated text, spaces around each left out: the next one from *cursor on,
 * which moves; NULL behind the last. */
const char *columns_next_item(const char **cursor, size_t *ret_len);

/* PS_ESETTING for a column that is not there (the sentence says which are) or that another list
 * has claimed. `setting` is the list's name. */
int columns_claim(struct columns *c, const char *setting, const char *list,
                  enum columns_kind kind, struct err *err) MUST_CHECK;

/* After all lists: gives the unclaimed columns to "*", or ignores them. */
void columns_claim_rest(struct columns *c);

#endif
