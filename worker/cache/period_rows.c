#include "worker/cache/period_rows.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/memory.h"

enum { HAS_WEIGHTS = 1, HAS_SUM = 2 };

#define LEAST_ROWS 256u

struct period_rows_order {
    uint64_t key;
    uint32_t row;
};

void period_rows_init(struct period_rows *r, uint32_t dim)
{
    *r = (struct period_rows){ .dim = dim };
}

void period_rows_deinit(struct period_rows *r)
{
    free(r->keys);
    free(r->has);
    free(r->weights);
    free(r->sums);
    free(r->index);
    free(r->order);
    free(r->out_keys);
    free(r->out);
}

/* The place of the key, or the free one where it would stand. */
static uint32_t place_of(const struct period_rows *r, uint64_t key)
{
    const uint32_t mask = r->index_cap - 1;
    uint32_t at = (uint32_t)hash_mix(key) & mask;

    while (r->index[at] && r->keys[r->index[at] - 1] != key)
        at = (at + 1) & mask;
    return at;
}

static bool has_all(const struct period_rows *r)
{
    return r->keys && r->has && r->weights && r->sums && r->index && r->order && r->out_keys &&
           r->out;
}

/* All in memory for `cap`, or nothing has changed. */
static int grow(struct period_rows *r, uint32_t cap)
{
    const size_t floats = (size_t)cap * r->dim, row_bytes = r->dim * sizeof(float);
    struct period_rows more = { .dim = r->dim, .n = r->n, .cap = cap, .index_cap = 2 * cap };

    more.keys = memory_try_alloc(cap * sizeof *more.keys);
    more.has = memory_try_alloc(cap * sizeof *more.has);
    more.weights = memory_try_alloc(floats * sizeof *more.weights);
    more.sums = memory_try_alloc(floats * sizeof *more.sums);
    more.index = memory_try_alloc(more.index_cap * sizeof *more.index);
    more.order = memory_try_alloc(cap * sizeof *more.order);
    more.out_keys = memory_try_alloc(cap * sizeof *more.out_keys);
    more.out = memory_try_alloc(floats * sizeof *more.out);
    if (!has_all(&more)) {
        period_rows_deinit(&more);
        return -ENOMEM;
    }
    if (r->n) {
        memcpy(more.keys, r->keys, r->n * sizeof *r->keys);
        memcpy(more.has, r->has, r->n * sizeof *r->has);
        memcpy(more.weights, r->weights, r->n * row_bytes);
        memcpy(more.sums, r->sums, r->n * row_bytes);
    }
    for (uint32_t i = 0; i < more.n; i++)
        more.index[place_of(&more, more.keys[i])] = i + 1;
    period_rows_deinit(r);
    *r = more;
    return 0;
}

/* For n rows more, should all be new. The capacity is a power of 2. */
static int reserve(struct period_rows *r, uint32_t n)
{
    const uint64_t want = (uint64_t)r->n + n;
    uint64_t cap = r->cap ? r->cap : LEAST_ROWS;

    if (want <= r->cap)
        return 0;
    while (cap < want)
        cap *= 2;
    return cap <= UINT32_MAX / 4 ? grow(r, (uint32_t)cap) : -ENOMEM;
}

/* There is space for it. */
static uint32_t find_or_make(struct period_rows *r, uint64_t key)
{
    const uint32_t at = place_of(r, key);

    if (!r->index[at]) {
        r->keys[r->n] = key;
        r->has[r->n] = 0;
        r->index[at] = ++r->n;
    }
    return r->index[at] - 1;
}

uint32_t period_rows_read(const struct period_rows *r, uint32_t n, const uint64_t *keys,
                          float *dst, uint32_t *ret_missing)
{
    uint32_t n_missing = 0;

    for (uint32_t i = 0; i < n; i++) {
        const uint32_t row = r->index_cap ? r->index[place_of(r, keys[i])] : 0;

        if (row && r->has[row - 1] & HAS_WEIGHTS)
            memcpy(dst + (size_t)i * r->dim, r->weights + (size_t)(row - 1) * r->dim,
                   r->dim * sizeof *dst);
        else
            ret_missing[n_missing++] = i;
    }
    return n_missing;
}

void period_rows_keep(struct period_rows *r, uint64_t key, const float *weights)
{
    uint32_t row;

    if (reserve(r, 1))
        return;
    row = find_or_make(r, key);
    memcpy(r->weights + (size_t)row * r->dim, weights, r->dim * sizeof *weights);
    r->has[row] |= HAS_WEIGHTS;
}

int period_rows_add(struct period_rows *r, uint32_t n, const uint64_t *keys,
                    const float *gradients)
{
    const int status = reserve(r, n);

    if (status)
        return status;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t row = find_or_make(r, keys[i]);
        const float *g = gradients + (size_t)i * r->dim;
        float *sum = r->sums + (size_t)row * r->dim;

        if (!(r->has[row] & HAS_SUM))
            memset(sum, 0, r->dim * sizeof *sum);
        r->has[row] |= HAS_SUM;
        for (uint32_t k = 0; k < r->dim; k++)
            sum[k] += g[k];
    }
    return 0;
}

static int by_key(const void *a, const void *b)
{
    const struct period_rows_order *x = a, *y = b;

    return x->key < y->key ? -1 : x->key > y->key;
}

uint32_t period_rows_sums(struct period_rows *r, const uint64_t **ret_keys,
                          const float **ret_sums)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->n; i++)
        if (r->has[i] & HAS_SUM)
            r->order[n++] = (struct period_rows_order){ r->keys[i], i };
    if (n)
        qsort(r->order, n, sizeof *r->order, by_key);
    for (uint32_t i = 0; i < n; i++) {
        r->out_keys[i] = r->order[i].key;
        memcpy(r->out + (size_t)i * r->dim, r->sums + (size_t)r->order[i].row * r->dim,
               r->dim * sizeof *r->out);
    }
    *ret_keys = r->out_keys;
    *ret_sums = r->out;
    return n;
}

void period_rows_clear(struct period_rows *r)
{
    r->n = 0;
    if (r->index_cap)
        memset(r->index, 0, r->index_cap * sizeof *r->index);
}
