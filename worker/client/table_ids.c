#include "worker/client/table_ids.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

void table_ids_deinit(struct table_ids *t)
{
    free(t->items);
}

struct requested_table *table_ids_add(struct table_ids *t, const struct table_request *request)
{
    struct requested_table *items;

    assert(t->n < PS_TABLES_MAX);
    if (t->n == t->cap) {
        t->cap = t->cap ? t->cap * 2 : 8;
        items = memory_alloc(t->cap * sizeof *items);
        if (t->n)
            memcpy(items, t->items, t->n * sizeof *items);
        free(t->items);
        t->items = items;
    }
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
