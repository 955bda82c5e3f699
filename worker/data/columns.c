#include "worker/data/columns.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

int columns_init(struct columns *c, uint32_t n, struct err *err)
{
    *c = (struct columns){ 0 };
    if (n == 0 || n > COLUMNS_MAX)
        return err_set(err, PS_ESETTING, "a line has %u columns; 1 to %u can be read", n,
                       COLUMNS_MAX);
    c->names = memory_try_alloc(n * sizeof *c->names);
    if (!c->names)
        return err_set(err, -ENOMEM, "no memory for the names of %u columns", n);
    c->n = n;
    return 0;
}

void columns_deinit(struct columns *c)
{
    free(c->names);
    *c = (struct columns){ 0 };
}

int columns_set_name(struct columns *c, uint32_t i, const char *name, size_t len,
                     struct err *err)
{
    if (len >= COLUMNS_NAME_MAX)
        return err_set(err, PS_ESETTING,
                       "the name of column %u, '%.32s...', is longer than %u bytes", i, name,
                       COLUMNS_NAME_MAX - 1);
    memcpy(c->names[i], name, len);
    c->names[i][len] = '\0';
    c->named = true;
    return 0;
}

const char *columns_next_item(const char **cursor, size_t *ret_len)
{
    const char *begin = *cursor, *end;

    if (!begin)
        return NULL;
    end = strchr(begin, ',');
    *cursor = end ? end + 1 : NULL;
    if (!end)
        end = begin + strlen(begin);
    while (begin < end && *begin == ' ')
        begin++;
    while (end > begin && end[-1] == ' ')
        end--;
    *ret_len = (size_t)(end - begin);
    return begin;
}

bool columns_parse_range(const char *item, size_t len, uint64_t *ret_first, uint64_t *ret_last)
{
    uint64_t value[2] = { 0, 0 };
    unsigned n = 0;

    for (size_t i = 0; i < len; i++) {
        if (item[i] == '-' && n == 0 && i > 0 && i + 1 < len)
            n = 1;
        else if (item[i] >= '0' && item[i] <= '9' && value[n] < 1000000)
            value[n] = value[n] * 10 + (uint64_t)(item[i] - '0');
        else
            return false;
    }
    *ret_first = value[0];
    *ret_last = n ? value[1] : value[0];
    return len > 0;
}

/* The names that are there, as many as fit a sentence. */
static const char *list_names(const struct columns *c, char buffer[160])
{
    size_t at = 0;

    buffer[0] = '\0';
    for (uint32_t i = 0; i < c->n; i++) {
        size_t len = strlen(c->names[i]);

        if (at + len + 2 > 160 - sizeof ", ...") {
            memcpy(buffer + at, ", ...", sizeof ", ...");
            break;
        }
        at += (size_t)sprintf(buffer + at, "%s%s", i ? ", " : "", c->names[i]);
    }
    return buffer;
}

int columns_find_name(const struct columns *c, const char *setting, const char *item,
                      size_t len, uint32_t *ret, struct err *err)
{
    char buffer[160];
    uint32_t n = 0;

    for (uint32_t i = 0; i < c->n; i++)
        if (strlen(c->names[i]) == len && memcmp(c->names[i], item, len) == 0 && n++ == 0)
            *ret = i;
    if (n == 1)
        return 0;
    if (n > 1)
        return err_set(err, PS_ESETTING, "%s: %u columns are called '%.*s'", setting, n,
                       (int)len, item);
    if (!c->named)
        return err_set(
            err, PS_ESETTING,
            "%s: '%.*s' is a name, but the columns have none: give positions, or header "
            "= yes, or names with columns = ...",
            setting, (int)len, item);
    return err_set(err, PS_ESETTING, "%s: no column is called '%.*s'; there are %s", setting,
                   (int)(len < 32 ? len : 32), item, list_names(c, buffer));
}

static const char *kind_text(enum columns_kind kind)
{
    switch (kind) {
    case COLUMNS_LABEL:
        return "the label";
    case COLUMNS_NUMERIC:
        return "numeric";
    case COLUMNS_CATEGORICAL:
        return "categorical";
    case COLUMNS_BUCKET:
        return "bucketised";
    case COLUMNS_IGNORED:
        return "ignored";
    case COLUMNS_UNCLAIMED:
        break;
    }
    return "unclaimed";
}

static int claim(struct columns *c, const char *setting, uint32_t i, enum columns_kind kind,
                 struct err *err)
{
    enum columns_kind held = c->kinds[i];
    bool moves = (kind == COLUMNS_BUCKET && held == COLUMNS_NUMERIC) ||
                 (kind == COLUMNS_IGNORED && c->preset && held != COLUMNS_LABEL);

    if (held != COLUMNS_UNCLAIMED && !moves)
        return err_set(err, PS_ESETTING, "%s: column %u%s%s is %s already", setting, i,
                       c->names[i][0] ? " " : "", c->names[i], kind_text(held));
    c->kinds[i] = kind;
    return 0;
}

static int claim_range(struct columns *c, const char *setting, uint64_t first, uint64_t last,
                       enum columns_kind kind, struct err *err)
{
    int status = 0;

    if (first > last)
        return err_set(err, PS_ESETTING, "%s: the range %u-%u runs backwards", setting,
                       (unsigned)first, (unsigned)last);
    if (last >= c->n)
        return err_set(err, PS_ESETTING, "%s: no column %u; there are %u, 0 to %u", setting,
                       (unsigned)last, c->n, c->n - 1);
    for (uint64_t i = first; i <= last && !status; i++)
        status = claim(c, setting, (uint32_t)i, kind, err);
    return status;
}

static int claim_rest_later(struct columns *c, const char *setting, enum columns_kind kind,
                            struct err *err)
{
    if (c->rest != COLUMNS_UNCLAIMED)
        return err_set(err, PS_ESETTING, "%s: the other columns ('*') are %s already", setting,
                       kind_text(c->rest));
    c->rest = kind;
    return 0;
}

bool columns_has_name(const struct columns *c, const char *item, size_t len)
{
    for (uint32_t i = 0; c->named && i < c->n; i++)
        if (strlen(c->names[i]) == len && memcmp(c->names[i], item, len) == 0)
            return true;
    return false;
}

int columns_claim(struct columns *c, const char *setting, const char *list,
                  enum columns_kind kind, struct err *err)
{
    const char *cursor = list[0] ? list : NULL, *item;
    uint64_t first, last;
    uint32_t at = 0;
    size_t len = 0;
    int status = 0;

    while (!status && (item = columns_next_item(&cursor, &len)) != NULL) {
        if (len == 0)
            status = err_set(err, PS_ESETTING, "%s: an empty item in '%.100s'", setting, list);
        else if (len == 1 && *item == '*')
            status = claim_rest_later(c, setting, kind, err);
        else if (!columns_has_name(c, item, len) &&
                 columns_parse_range(item, len, &first, &last))
            status = claim_range(c, setting, first, last, kind, err);
        else if ((status = columns_find_name(c, setting, item, len, &at, err)) == 0)
            status = claim(c, setting, at, kind, err);
    }
    return status;
}

void columns_claim_rest(struct columns *c)
{
    enum columns_kind rest = c->rest == COLUMNS_UNCLAIMED ? COLUMNS_IGNORED : c->rest;

    for (uint32_t i = 0; i < c->n; i++)
        if (c->kinds[i] == COLUMNS_UNCLAIMED)
            c->kinds[i] = rest;
}
