#include "worker/cache/read_ahead.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/memory.h"

void read_ahead_deinit(struct read_ahead *a)
{
    free(a->keys);
    free(a->rows);
    a->keys = NULL;
    a->rows = NULL;
    a->n = 0;
    a->cap_keys = a->n_keys = 0;
}

static int reserve(struct read_ahead *a, uint64_t n_keys)
{
    const uint64_t cap_keys = n_keys + n_keys / 2;

    if (n_keys <= a->cap_keys)
        return 0;
    read_ahead_deinit(a);
    a->keys = memory_try_alloc(2 * cap_keys * sizeof *a->keys);
    a->rows = memory_try_alloc(2 * cap_keys * sizeof *a->rows);
    if (!a->keys || !a->rows) {
        read_ahead_deinit(a);
        return -ENOMEM;
    }
    a->cap_keys = cap_keys;
    return 0;
}

int read_ahead_begin(struct read_ahead *a, const struct ps_pull_section *sections, uint32_t n)
{
    uint64_t n_keys = 0;

    assert(n <= SECTIONS_MAX);
    a->n = 0;
    for (uint32_t i = 0; i < n; i++)
        n_keys += sections[i].n_keys;
    if (reserve(a, n_keys))
        return -ENOMEM;
    a->n_keys = n_keys;
    n_keys = 0;
    for (; a->n < n; a->n++) {
        a->sections[a->n] = (struct read_ahead_section){ .asked = sections[a->n],
                                                         .first = n_keys,
                                                         .n_left = sections[a->n].n_keys };
        n_keys += sections[a->n].n_keys;
    }
    return 0;
}

/* Keys that are still to come. */
struct key_list {
    const uint64_t *keys;
    uint32_t n;
};

/* Of the table's only section, or none; returns how many it has. */
static uint32_t find_keys(struct read_ahead_keys in, uint32_t table, struct key_list *ret)
{
    uint32_t n = 0;

    *ret = (struct key_list){ 0 };
    for (uint32_t i = 0; i < in.n; i++) {
        if (in.sections[i].table != table)
            continue;
        *ret = (struct key_list){ in.sections[i].keys, in.sections[i].n_keys };
        n++;
    }
    return n;
}

/* Passes those before this key. */
static bool has_next(struct key_list *list, uint64_t key)
{
    while (list->n && *list->keys < key) {
        list->keys++;
        list->n--;
    }
    return list->n && *list->keys == key;
}

struct ps_pull_section read_ahead_split(struct read_ahead *a, uint32_t i,
                                        struct read_ahead_keys current,
                                        struct read_ahead_keys missing)
{
    struct read_ahead_section *s = &a->sections[i];
    uint64_t *keys = a->keys + s->first;
    uint32_t *rows = a->rows + s->first;
    struct ps_pull_section now = s->asked;
    struct key_list changed, absent;

    now.n_keys = 0;
    now.keys = keys + a->n_keys;
    now.rows = rows + a->n_keys;
    if (find_keys(current, now.table, &changed) > 1 ||
        find_keys(missing, now.table, &absent) > 1)
        return now;
    s->n_left = 0;
    for (uint32_t row = 0; row < s->asked.n_keys; row++) {
        const uint64_t key = s->asked.keys[row];
        const bool is_changed = has_next(&changed, key), is_absent = has_next(&absent, key);
        const uint64_t at = is_changed || is_absent ? s->n_left++ : a->n_keys + now.n_keys++;

        keys[at] = key;
        rows[at] = row;
    }
    return now;
}

static bool is_same(const struct ps_pull_section *a, const struct ps_pull_section *b)
{
    return a->table == b->table && a->codec == b->codec && a->n_keys == b->n_keys &&
           a->keys == b->keys && a->dst == b->dst;
}

uint32_t read_ahead_take(const struct read_ahead *a, struct ps_pull_section *section)
{
    const struct read_ahead_section *s = a->sections, *end = s + a->n;
    uint32_t n_read;

    while (s < end && !is_same(&s->asked, section))
        s++;
    n_read = s < end ? section->n_keys - s->n_left : 0;
    if (!n_read)
        return 0;
    section->keys = a->keys + s->first;
    section->rows = a->rows + s->first;
    section->n_keys = s->n_left;
    return n_read;
}

bool read_ahead_is_push_of(struct read_ahead_keys current, const struct ps_push_section *push)
{
    for (uint32_t i = 0; i < current.n; i++) {
        const struct ps_pull_section *pulled = &current.sections[i];

        if (pulled->table == push->table && push->keys >= pulled->keys &&
            push->keys + push->n_keys <= pulled->keys + pulled->n_keys)
            return true;
    }
    return !push->n_keys;
}
