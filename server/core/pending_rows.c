#include "server/core/pending_rows.h"

#include <assert.h>

void pending_rows_begin(struct pending_rows *b)
{
    b->n_done = 0;
    b->next = b->entry->changing;
    b->entry->changing = b;
}

void pending_rows_end(struct pending_rows *b)
{
    struct pending_rows **at = &b->entry->changing;

    while (*at != b) {
        assert(*at);
        at = &(*at)->next;
    }
    *at = b->next;
}

uint32_t pending_rows_bound_keys(const uint64_t *keys, uint32_t n_keys, uint32_t at,
                                 uint64_t key)
{
    uint32_t stride = 1, end;

    while (stride < n_keys - at && keys[at + stride] < key)
        stride *= 2;
    end = stride < n_keys - at ? at + stride : n_keys;
    at += stride / 2;
    while (at < end) {
        uint32_t middle = at + (end - at) / 2;

        if (keys[middle] < key)
            at = middle + 1;
        else
            end = middle;
    }
    return at;
}

uint32_t pending_rows_bound(const struct pending_rows *b, uint32_t at, uint64_t key)
{
    return pending_rows_bound_keys(b->keys, b->n_keys, at, key);
}

bool pending_rows_await(const struct shard_entry *entry, uint64_t key)
{
    for (const struct pending_rows *b = entry->changing; b; b = b->next) {
        uint32_t at = pending_rows_bound(b, b->n_done, key);

        if (at < b->n_keys && b->keys[at] == key &&
            !(b->marks && pending_rows_mark_is_set(b, at)))
            return true;
    }
    return false;
}
