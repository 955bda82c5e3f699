#include "worker/mirror/kept.h"

#include <string.h>

#define BATCH 64u

int kept_init(struct kept *k, uint32_t dim, uint32_t bound)
{
    *k = (struct kept){ .dim = dim, .bound = bound };
    if (!bound)
        return 0;
    return table_new(&k->rows, dim * (uint32_t)sizeof(float), 0, NULL);
}

void kept_deinit(struct kept *k)
{
    table_free(k->rows);
    *k = (struct kept){ 0 };
}

static bool is_good(const struct kept *k, const struct row *row, uint64_t clock)
{
    return row && row_version(row) + k->bound >= clock;
}

uint32_t kept_read(const struct kept *k, uint64_t clock, const uint64_t *keys, uint32_t n,
                   float *dst, uint32_t *ret_missing)
{
    struct row *rows[BATCH];
    uint32_t n_missing = 0;

    for (uint32_t from = 0; from < n; from += BATCH) {
        uint32_t n_batch = n - from < BATCH ? n - from : BATCH;

        table_find_batch(k->rows, keys + from, n_batch, rows);
        for (uint32_t i = 0; i < n_batch; i++) {
            if (is_good(k, rows[i], clock))
                memcpy(dst + (size_t)(from + i) * k->dim, rows[i]->floats,
                       k->dim * sizeof *dst);
            else
                ret_missing[n_missing++] = from + i;
        }
    }
    return n_missing;
}

void kept_put(struct kept *k, uint64_t key, uint64_t min_clock, const float *row,
              uint64_t max_bytes)
{
    struct row *at;

    table_find_batch(k->rows, &key, 1, &at);
    if (!at && (table_bytes(k->rows) >= max_bytes || table_insert(k->rows, key, &at)))
        return;
    at->stamp = row_stamp(min_clock, 0, 0);
    memcpy(at->floats, row, k->dim * sizeof *row);
}

static void remove_before(struct kept *k, uint64_t min_clock)
{
    for (uint64_t i = 0; i < table_n_numbers(k->rows); i++) {
        struct row *row = table_row(k->rows, i);

        if (row && row_version(row) < min_clock)
            table_remove(k->rows, row);
    }
}

void kept_sweep(struct kept *k, uint64_t clock)
{
    if (!k->rows || clock < k->swept + k->bound)
        return;
    k->swept = clock;
    if (clock > k->bound)
        remove_before(k, clock - k->bound);
}

void kept_clear(struct kept *k)
{
    if (k->rows)
        remove_before(k, UINT64_MAX);
}
