#include "worker/client/deal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "proto/route.h"

void deal_init(struct deal *d, uint32_t n_shards)
{
    *d = (struct deal){ .n_shards = n_shards };
}

void deal_deinit(struct deal *d)
{
    free(d->order);
    free(d->starts);
    *d = (struct deal){ .n_shards = d->n_shards };
}

int deal_begin(struct deal *d, uint32_t n_sections, uint64_t n_keys)
{
    uint64_t n_starts = (uint64_t)n_sections * (d->n_shards + 1);
    void *grown;

    d->n_sections = 0;
    d->n_dealt = 0;
    if (n_keys > d->cap_order) {
        grown = mem_try_realloc(d->order, n_keys * sizeof *d->order);
        if (!grown)
            return -ENOMEM;
        d->order = grown;
        d->cap_order = n_keys;
    }
    if (n_starts > d->cap_starts) {
        grown = mem_try_realloc(d->starts, n_starts * sizeof *d->starts);
        if (!grown)
            return -ENOMEM;
        d->starts = grown;
        d->cap_starts = n_starts;
    }
    return 0;
}

/* starts[s + 1] counts shard s's keys; then sums turn counts into beginnings. */
static void count_keys(const struct deal *d, uint64_t *starts, const uint64_t *keys,
                       uint32_t n_keys, uint64_t salt)
{
    uint32_t i;

    memset(starts, 0, (d->n_shards + 1) * sizeof *starts);
    for (i = 0; i < n_keys; i++)
        starts[route_shard(keys[i], salt, d->n_shards) + 1]++;
    starts[0] = d->n_dealt;
    for (i = 0; i < d->n_shards; i++)
        starts[i + 1] += starts[i];
}

void deal_add(struct deal *d, const uint64_t *keys, uint32_t n_keys, uint64_t salt)
{
    uint64_t *starts = d->starts + (size_t)d->n_sections * (d->n_shards + 1);
    uint32_t i;

    assert((uint64_t)(d->n_sections + 1) * (d->n_shards + 1) <= d->cap_starts);
    assert(d->n_dealt + n_keys <= d->cap_order);
    count_keys(d, starts, keys, n_keys, salt);
    for (i = 0; i < n_keys; i++)
        d->order[starts[route_shard(keys[i], salt, d->n_shards)]++] = i;
    /* Each beginning has moved to the next shard's: move them back. */
    memmove(starts + 1, starts, d->n_shards * sizeof *starts);
    starts[0] = d->n_dealt;
    d->n_dealt += n_keys;
    d->n_sections++;
}

struct deal_group deal_group(const struct deal *d, uint32_t section, uint32_t shard)
{
    const uint64_t *starts = d->starts + (size_t)section * (d->n_shards + 1) + shard;

    assert(section < d->n_sections && shard < d->n_shards);
    return (struct deal_group){ d->order + starts[0], (uint32_t)(starts[1] - starts[0]) };
}
