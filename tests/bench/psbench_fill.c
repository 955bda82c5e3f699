#include "tests/bench/psbench_fill.h"

#include <stdlib.h>

#include "common/memory.h"
#include "proto/codec_catalog.h"
#include "proto/key_codec.h"
#include "tests/bench/psbench_keys.h"

#define FILL_KEYS 4096u

struct psbench_fill {
    uint64_t next_row, last_row, step;
    uint32_t shard, n_shards;
    size_t row_bytes;
    uint64_t keys[FILL_KEYS], scratch[FILL_KEYS];
    uint8_t key_bytes[FILL_KEYS * KEY_CODEC_BYTES_MAX];
    uint8_t *values; /* owned: int8, the smallest that says zero exactly */
};

struct psbench_fill *psbench_fill_new(const struct psbench_settings *s, uint32_t shard,
                                      uint32_t n_shards, uint32_t rank, uint32_t n_ranks)
{
    struct psbench_fill *f = memory_alloc(sizeof *f);

    f->next_row = rank + 1;
    f->last_row = s->rows;
    f->step = n_ranks;
    f->shard = shard;
    f->n_shards = n_shards;
    f->row_bytes = codec_by_id(CODEC_INT8)->row_bytes(s->dim, 0);
    f->values = memory_alloc(FILL_KEYS * f->row_bytes);
    return f;
}

void psbench_fill_free(struct psbench_fill *f)
{
    if (!f)
        return;
    free(f->values);
    free(f);
}

bool psbench_fill_next(struct psbench_fill *f, struct section *ret)
{
    uint32_t n = psbench_keys_next(&f->next_row, f->last_row, f->step, f->shard, f->n_shards,
                                   f->keys, FILL_KEYS);

    if (!n)
        return false;
    psbench_keys_sort(f->keys, n, f->scratch);
    *ret = (struct section){
        .table_id = ret->table_id,
        .op = SECTION_GRADIENT,
        .codec = CODEC_INT8,
        .n_keys = n,
        .keys = f->key_bytes,
        .key_bytes = key_codec_encode(f->keys, n, f->key_bytes),
        .values = f->values,
        .value_bytes = n * f->row_bytes,
    };
    return true;
}
