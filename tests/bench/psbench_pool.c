#include "tests/bench/psbench_pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/mem.h"
#include "proto/codec_catalog.h"
#include "proto/keys.h"
#include "proto/route.h"
#include "tests/bench/psbench_zipf.h"

#define KEYS_MAX (4u << 20) /* of all sets */
#define SETS_MAX 1024u
#define SETS_MIN 8u

static int compare_keys(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static uint32_t sort_unique(uint64_t *keys, uint32_t n)
{
    uint32_t i, n_unique = 0;

    qsort(keys, n, sizeof *keys, compare_keys);
    for (i = 0; i < n; i++)
        if (!n_unique || keys[i] != keys[n_unique - 1])
            keys[n_unique++] = keys[i];
    return n_unique;
}

static uint64_t rows_of_shard(uint64_t rows, uint32_t shard, uint32_t n_shards, uint64_t enough)
{
    uint64_t i, n = 0;

    for (i = 1; i <= rows && n < enough; i++)
        n += route_shard(hash_mix(i), 0, n_shards) == shard;
    return n;
}

/* As many unique keys of the shard as a request has. */
static void draw_set(struct psbench_zipf *z, uint64_t *keys, uint32_t want, uint32_t shard,
                     uint32_t n_shards)
{
    uint32_t n = 0;
    uint64_t key;

    while (n < want) {
        while (n < want) {
            key = hash_mix(psbench_zipf_draw(z));
            if (route_shard(key, 0, n_shards) == shard)
                keys[n++] = key;
        }
        n = sort_unique(keys, n);
    }
}

static void make_values(struct psbench_pool *p, const struct psbench_settings *s)
{
    const struct codec *codec = codec_by_id((uint32_t)s->codec);
    uint32_t k = s->dim >= 10 ? s->dim / 10 : 1, i, j;
    size_t row_bytes = codec->row_bytes(s->dim, k);
    float *row = mem_alloc(s->dim * sizeof *row);

    p->value_bytes = row_bytes * s->keys_per_request;
    p->values = mem_alloc(p->value_bytes);
    for (i = 0; i < s->keys_per_request; i++) {
        for (j = 0; j < s->dim; j++)
            row[j] = (hash_unit(hash_mix2(s->seed + i, j)) - 0.5f) * 1e-3f;
        codec->encode(row, s->dim, k, p->values + i * row_bytes);
    }
    free(row);
}

int psbench_pool_init(struct psbench_pool *p, const struct psbench_settings *s, uint32_t shard,
                      uint32_t n_shards, struct err *err)
{
    uint32_t n_keys = s->keys_per_request, i;
    struct psbench_zipf z;
    uint64_t *keys;
    uint8_t *dst;
    size_t n;

    *p = (struct psbench_pool){ .n_sets = KEYS_MAX / n_keys };
    if (rows_of_shard(s->rows, shard, n_shards, 2 * (uint64_t)n_keys) < 2 * (uint64_t)n_keys)
        return err_set(err, -EINVAL,
                       "rows: %llu are too few for requests of %u keys on each of %u shards",
                       (unsigned long long)s->rows, n_keys, n_shards);
    p->n_sets = p->n_sets > SETS_MAX ? SETS_MAX : p->n_sets < SETS_MIN ? SETS_MIN : p->n_sets;
    p->starts = mem_alloc((p->n_sets + 1) * sizeof *p->starts);
    keys = mem_alloc(n_keys * sizeof *keys);
    psbench_zipf_init(&z, s->rows, (double)s->zipf, hash_mix2(s->seed, shard));
    for (i = 0; i < p->n_sets; i++) {
        draw_set(&z, keys, n_keys, shard, n_shards);
        dst = buf_reserve(&p->bytes, (size_t)n_keys * KEYS_BYTES_MAX);
        if (!dst) {
            free(keys);
            return err_set(err, -ENOMEM, "no memory for the requests");
        }
        n = keys_encode(keys, n_keys, dst);
        buf_commit(&p->bytes, n);
        p->starts[i + 1] = p->starts[i] + n;
    }
    free(keys);
    make_values(p, s);
    return 0;
}

void psbench_pool_deinit(struct psbench_pool *p)
{
    buf_deinit(&p->bytes);
    free(p->starts);
    free(p->values);
    *p = (struct psbench_pool){ 0 };
}
