#include "worker/client/partition.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "proto/placement.h"

void partition_init(struct partition *p, uint32_t n_shards)
{
    *p = (struct partition){ .n_shards = n_shards };
}

void partition_deinit(struct partition *p)
{
    free(p->memory);
    partition_init(p, p->n_shards);
}

int partition_start(struct partition *p, uint32_t n_sections, uint64_t n_keys)
{
    const uint64_t n_starts = (uint64_t)n_sections * (p->n_shards + 1);
    const size_t n_bytes =
        n_starts * sizeof *p->starts + n_keys * (sizeof *p->keys + sizeof *p->order);
    void *grown;

    p->n_sections = 0;
    p->n_keys = 0;
    if (n_bytes > p->cap_bytes) {
        grown = memory_try_realloc(p->memory, n_bytes);
        if (!grown)
            return -ENOMEM;
        p->memory = grown;
        p->cap_bytes = n_bytes;
    }
    p->starts = p->memory;
    p->keys = p->starts + n_starts;
    p->order = (uint32_t *)(p->keys + n_keys);
    return 0;
}

/* All keys are the only shard's. */
static void add_whole(struct partition *p, uint64_t *starts, const uint64_t *keys,
                      uint32_t n_keys)
{
    uint32_t *order = p->order + p->n_keys;

    starts[0] = p->n_keys;
    starts[1] = p->n_keys + n_keys;
    if (n_keys)
        memcpy(p->keys + p->n_keys, keys, n_keys * sizeof *keys);
    for (uint32_t i = 0; i < n_keys; i++)
        order[i] = i;
}

/* starts[s + 1] counts shard s's keys; sums turn counts into starts. */
static void add_by_shard(struct partition *p, uint64_t *starts, const uint64_t *keys,
                         uint32_t n_keys, uint64_t salt)
{
    uint32_t i;

    memset(starts, 0, (p->n_shards + 1) * sizeof *starts);
    for (i = 0; i < n_keys; i++)
        starts[placement_shard(keys[i], salt, p->n_shards) + 1]++;
    starts[0] = p->n_keys;
    for (i = 0; i < p->n_shards; i++)
        starts[i + 1] += starts[i];
    for (i = 0; i < n_keys; i++) {
        uint64_t at = starts[placement_shard(keys[i], salt, p->n_shards)]++;

        p->keys[at] = keys[i];
        p->order[at] = i;
    }
    /* Each start has moved to the next shard's: move them back. */
    memmove(starts + 1, starts, p->n_shards * sizeof *starts);
    starts[0] = p->n_keys;
}

void partition_add(struct partition *p, const uint64_t *keys, uint32_t n_keys, uint64_t salt)
{
    uint64_t *starts = p->starts + (size_t)p->n_sections * (p->n_shards + 1);

    if (p->n_shards == 1)
        add_whole(p, starts, keys, n_keys);
    else
        add_by_shard(p, starts, keys, n_keys, salt);
    p->n_keys += n_keys;
    p->n_sections++;
}

struct partition_group partition_group(const struct partition *p, uint32_t section,
                                       uint32_t shard)
{
    const uint64_t *starts = p->starts + (size_t)section * (p->n_shards + 1) + shard;

    assert(section < p->n_sections && shard < p->n_shards);
    return (struct partition_group){ p->keys + starts[0], p->order + starts[0],
                                     (uint32_t)(starts[1] - starts[0]) };
}
