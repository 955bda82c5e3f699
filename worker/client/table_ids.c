#include "worker/client/table_ids.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/memory.h"

void table_ids_deinit(struct table_ids *t)
{
    free(t->items);
}

int table_ids_reserve(struct table_ids *t)
{
    uint32_t cap = t->cap ? t->cap * 2 : 8;
    struct requested_table *items;

    if (t->n < t->cap)
        return 0;
    items = memory_try_realloc(t->items, cap * sizeof *items);
    if (!items)
        return -ENOMEM;
    t->items = items;
    t->cap = cap;
    return 0;
}

struct requested_table *table_ids_add(struct table_ids *t, const struct table_request *request)
{
    assert(t->n < PS_TABLES_MAX && t->n < t->cap);
    t->items[t->n] = (struct requested_table){ .request = *request };
    t->shard_ids[t->n] = 0;
    return &t->items[t->n++];
}

void table_ids_reset(struct table_ids *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        t->items[i].known = false;
        t->items[i].request_id = 0;
    }
}

bool table_ids_all_known(const struct table_ids *t)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (!t->items[i].known)
            return false;
    return true;
}

struct requested_table *table_ids_find(struct table_ids *t, uint64_t request_id)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->items[i].request_id == request_id)
            return &t->items[i];
    return NULL;
}

void table_ids_set(struct table_ids *t, struct requested_table *item, uint32_t shard_id)
{
    t->shard_ids[item - t->items] = shard_id;
    item->known = true;
    item->ever_known = true;
}
