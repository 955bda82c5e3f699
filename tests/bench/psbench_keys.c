#include "tests/bench/psbench_keys.h"

#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

uint32_t psbench_keys_next(uint64_t *row, uint64_t last, uint64_t step, uint32_t shard,
                           uint32_t n_shards, uint64_t *ret_keys, uint32_t max)
{
    uint32_t n = 0;
    uint64_t key;

    for (; *row <= last && n < max; *row += step) {
        key = hash_mix(*row);
        if (placement_shard(key, 0, n_shards) == shard)
            ret_keys[n++] = key;
    }
    return n;
}

/* Which of n equal parts of the key space. */
static uint32_t part_of(uint64_t key, uint32_t n)
{
    return (uint32_t)((key >> 32) * n >> 32);
}

static void sort_insertion(uint64_t *keys, uint32_t n_keys)
{
    uint32_t i, j;
    uint64_t key;

    for (i = 1; i < n_keys; i++) {
        key = keys[i];
        for (j = i; j > 0 && keys[j - 1] > key; j--)
            keys[j] = keys[j - 1];
        keys[j] = key;
    }
}

/* One key a part, on average: then each key is close to its place. */
void psbench_keys_sort(uint64_t *keys, uint32_t n_keys, uint64_t *scratch)
{
    uint32_t *ends = memory_alloc(((size_t)n_keys + 1) * sizeof *ends), i, n = 0, count;

    for (i = 0; i < n_keys; i++)
        ends[part_of(keys[i], n_keys)]++;
    for (i = 0; i < n_keys; i++) {
        count = ends[i];
        ends[i] = n;
        n += count;
    }
    for (i = 0; i < n_keys; i++)
        scratch[ends[part_of(keys[i], n_keys)]++] = keys[i];
    memcpy(keys, scratch, n_keys * sizeof *keys);
    sort_insertion(keys, n_keys);
    free(ends);
}

uint32_t psbench_keys_unique(uint64_t *keys, uint32_t n_keys)
{
    uint32_t i, n = 0;

    for (i = 0; i < n_keys; i++)
        if (!n || keys[i] != keys[n - 1])
            keys[n++] = keys[i];
    return n;
}

void psbench_keys_shuffle(uint64_t *keys, uint64_t n_keys, uint64_t seed)
{
    uint64_t i, j, key;

    for (i = n_keys; i > 1; i--) {
        j = (hash_mix2(seed, i) >> 32) * i >> 32;
        key = keys[i - 1];
        keys[i - 1] = keys[j];
        keys[j] = key;
    }
}
