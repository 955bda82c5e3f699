#include "worker/client/names.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "worker/client/ps_types.h"

void names_deinit(struct names *names)
{
    free(names->items);
    free(names->shard_ids);
    *names = (struct names){ 0 };
}

static void grow(struct names *names)
{
    struct names more = { .n = names->n, .cap = names->cap ? names->cap * 2 : 8 };

    more.items = mem_alloc(more.cap * sizeof *more.items);
    more.shard_ids = mem_alloc(more.cap * sizeof *more.shard_ids);
    if (names->n) {
        memcpy(more.items, names->items, names->n * sizeof *more.items);
        memcpy(more.shard_ids, names->shard_ids, names->n * sizeof *more.shard_ids);
    }
    names_deinit(names);
    *names = more;
}

void names_add(struct names *names, const struct table_request *request)
{
    assert(names->n < PS_TABLES_MAX);
    if (names->n == names->cap)
        grow(names);
    names->items[names->n] = (struct name){ .request = *request };
    names->shard_ids[names->n++] = 0;
}

void names_drop_last(struct names *names)
{
    assert(names->n > 0);
    names->n--;
}

void names_forget(struct names *names)
{
    uint32_t i;

    for (i = 0; i < names->n; i++) {
        names->items[i].known = false;
        names->items[i].request_id = 0;
    }
}

uint32_t names_unknown(const struct names *names)
{
    uint32_t i, n = 0;

    for (i = 0; i < names->n; i++)
        n += !names->items[i].known;
    return n;
}

struct name *names_find(struct names *names, uint64_t request_id)
{
    uint32_t i;

    for (i = 0; i < names->n; i++)
        if (names->items[i].request_id == request_id)
            return &names->items[i];
    return NULL;
}

void names_know(struct names *names, struct name *item, uint32_t shard_id)
{
    names->shard_ids[item - names->items] = shard_id;
    item->known = true;
    item->ever_known = true;
}
