#include "tests/bench/psbench_pool.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "proto/codec_catalog.h"
#include "proto/key_codec.h"
#include "tests/bench/psbench_handshake.h"
#include "tests/bench/psbench_keys.h"
#include "tests/bench/psbench_zipf.h"

#define POOL_KEYS_MAX (UINT64_C(32) << 20) /* where every row is in it once */
#define DRAWN_KEYS_MAX (UINT64_C(4) << 20) /* where sets are random, and so many for a row */
#define DRAWN_EACH 4u
#define SETS_MIN 8u
#define DRAWS_MAX 64u /* then a steep law has no more different rows to give: uniform ones */

/* What the sets of one shard are made of. */
struct source {
    const struct psbench_settings *settings;
    uint32_t shard, n_shards;
    uint64_t *all; /* owned: every key of the shard, once; NULL: sets are drawn */
    uint64_t n_all, n_taken;
    struct psbench_zipf zipf, uniform;
};

static bool is_every_row_once(const struct psbench_settings *s)
{
    return s->load == PSBENCH_GROW || (s->zipf == 0 && s->rows <= POOL_KEYS_MAX);
}

/* At least one set of unique keys, without drawing for ever. */
static int check_rows(const struct source *src, struct err *err)
{
    const struct psbench_settings *s = src->settings;
    uint64_t want = s->keys_per_request * (s->load == PSBENCH_GROW ? UINT64_C(1) : UINT64_C(2));
    uint64_t *keys = memory_alloc(want * sizeof *keys), row = 1;
    uint32_t n =
        psbench_keys_next(&row, s->rows, 1, src->shard, src->n_shards, keys, (uint32_t)want);

    free(keys);
    if (n == want)
        return 0;
    return err_set(err, -EINVAL,
                   "rows: %llu are too few for requests of %u keys on each of %u shards",
                   (unsigned long long)s->rows, s->keys_per_request, src->n_shards);
}

static int source_init(struct source *src, struct err *err)
{
    const struct psbench_settings *s = src->settings;
    uint64_t row = 1, seed = hash_mix2(s->seed, src->shard);
    int status = check_rows(src, err);

    if (status)
        return status;
    psbench_zipf_init(&src->zipf, s->rows, (double)s->zipf, seed);
    psbench_zipf_init(&src->uniform, s->rows, 0, seed);
    if (!is_every_row_once(s))
        return 0;
    src->all = s->rows < UINT32_MAX ? memory_try_alloc(s->rows * sizeof *src->all) : NULL;
    if (!src->all)
        return err_set(err, -ENOMEM, "rows: no memory for the keys of %llu",
                       (unsigned long long)s->rows);
    src->n_all = psbench_keys_next(&row, s->rows, 1, src->shard, src->n_shards, src->all,
                                   (uint32_t)s->rows);
    if (s->load != PSBENCH_GROW)
        psbench_keys_shuffle(src->all, src->n_all, seed);
    return 0;
}

static uint32_t n_sets_of(const struct source *src)
{
    const struct psbench_settings *s = src->settings;
    uint64_t n_keys =
        s->rows < DRAWN_KEYS_MAX / DRAWN_EACH ? s->rows * DRAWN_EACH : DRAWN_KEYS_MAX;
    uint32_t n;

    if (src->all)
        return (uint32_t)(src->n_all / s->keys_per_request);
    n = (uint32_t)(n_keys / s->keys_per_request);
    return n < SETS_MIN ? SETS_MIN : n;
}

/* A set of unique keys, sorted. */
static void make_set(struct source *src, uint64_t *keys, uint64_t *scratch)
{
    uint32_t want = src->settings->keys_per_request, n = 0, n_draws;
    struct psbench_zipf *law = &src->zipf;
    uint64_t key;

    if (src->all) {
        memcpy(keys, src->all + src->n_taken, want * sizeof *keys);
        src->n_taken += want;
        psbench_keys_sort(keys, want, scratch);
        return;
    }
    for (n_draws = 0; n < want; n_draws++) {
        if (n_draws == DRAWS_MAX)
            law = &src->uniform;
        while (n < want) {
            key = hash_mix(psbench_zipf_draw(law));
            if (placement_shard(key, 0, src->n_shards) == src->shard)
                keys[n++] = key;
        }
        psbench_keys_sort(keys, n, scratch);
        n = psbench_keys_unique(keys, n);
    }
}

static void make_values(struct psbench_pool *p, const struct psbench_settings *s)
{
    const struct codec *codec = codec_by_id((uint32_t)s->codec);
    uint32_t k = psbench_handshake_k(s), i, j;
    size_t row_bytes = codec->row_bytes(s->dim, k);
    float *row = memory_alloc(s->dim * sizeof *row);

    p->value_bytes = row_bytes * s->keys_per_request;
    p->values = memory_alloc(p->value_bytes);
    for (i = 0; i < s->keys_per_request; i++) {
        for (j = 0; j < s->dim; j++)
            row[j] = (hash_unit(hash_mix2(s->seed + i, j)) - 0.5f) * 1e-3f;
        codec->encode(row, s->dim, k, p->values + i * row_bytes);
    }
    free(row);
}

static int make_sets(struct psbench_pool *p, struct source *src, struct err *err)
{
    uint64_t *keys = memory_alloc(2 * (size_t)p->n_keys * sizeof *keys);
    int status = 0;
    uint8_t *dst;
    uint32_t i;
    size_t n;

    for (i = 0; i < p->n_sets && !status; i++) {
        make_set(src, keys, keys + p->n_keys);
        dst = bytes_reserve(&p->bytes, (size_t)p->n_keys * KEY_CODEC_BYTES_MAX);
        if (!dst) {
            status = err_set(err, -ENOMEM, "no memory for the requests");
            break;
        }
        n = key_codec_encode(keys, p->n_keys, dst);
        bytes_commit(&p->bytes, n);
        p->starts[i + 1] = p->starts[i] + n;
    }
    free(keys);
    return status;
}

static int pool_init(struct psbench_pool *p, const struct psbench_settings *s, uint32_t shard,
                     uint32_t n_shards, struct err *err)
{
    struct source src = { .settings = s, .shard = shard, .n_shards = n_shards };
    int status = source_init(&src, err);

    if (!status) {
        p->n_keys = s->keys_per_request;
        p->n_sets = n_sets_of(&src);
        p->starts = memory_alloc(((size_t)p->n_sets + 1) * sizeof *p->starts);
        status = make_sets(p, &src, err);
    }
    if (!status)
        make_values(p, s);
    free(src.all);
    return status;
}

int psbench_pools_init(struct psbench_pools *p, const struct psbench_settings *s,
                       uint32_t n_shards, struct err *err)
{
    uint32_t i;
    int status;

    if (p->items)
        return p->n == n_shards
                   ? 0
                   : err_set(err, -EINVAL, "the cluster had %u shards, now %u", p->n, n_shards);
    p->n = n_shards;
    p->items = memory_alloc(n_shards * sizeof *p->items);
    for (i = 0; i < n_shards && (s->local || i < s->connections); i++) {
        status = pool_init(&p->items[i], s, i, n_shards, err);
        if (status)
            return status;
    }
    return 0;
}

void psbench_pools_deinit(struct psbench_pools *p)
{
    for (uint32_t i = 0; i < p->n; i++) {
        bytes_deinit(&p->items[i].bytes);
        free(p->items[i].starts);
        free(p->items[i].values);
    }
    free(p->items);
    *p = (struct psbench_pools){ 0 };
}

const uint8_t *psbench_pool_set(const struct psbench_pool *p, uint32_t i, size_t *ret_bytes)
{
    *ret_bytes = p->starts[i + 1] - p->starts[i];
    return bytes_front(&p->bytes) + p->starts[i];
}

uint64_t *psbench_pool_decode(const struct psbench_pool *p)
{
    uint64_t *keys = memory_try_alloc((size_t)p->n_sets * p->n_keys * sizeof *keys);
    size_t n_bytes;
    uint32_t i;
    int status;

    for (i = 0; keys && i < p->n_sets; i++) {
        const uint8_t *bytes = psbench_pool_set(p, i, &n_bytes);

        status = key_codec_decode(bytes, n_bytes, p->n_keys, keys + (size_t)i * p->n_keys);
        assert(!status);
    }
    return keys;
}
