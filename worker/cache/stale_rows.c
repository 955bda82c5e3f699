#include "worker/cache/stale_rows.h"

#include <string.h>

#define BATCH 64u

/* Behind a row's floats. */
struct tail {
    uint64_t version;
    uint32_t place;
} __attribute__((packed, aligned(4)));

static struct tail *tail_of(const struct stale_rows *k, struct row *row)
{
    return (struct tail *)(void *)(row->floats + k->dim);
}

int stale_rows_init(struct stale_rows *k, uint32_t dim, uint32_t bound,
                    struct memory_budget *budget)
{
    int status;

    *k = (struct stale_rows){ .dim = dim, .bound = bound };
    if (!bound)
        return 0;
    status =
        table_new(&k->rows, (uint32_t)(dim * sizeof(float) + sizeof(struct tail)), 0, budget);
    return status == PS_EBUDGET ? 0 : status;
}

void stale_rows_deinit(struct stale_rows *k)
{
    table_free(k->rows);
    *k = (struct stale_rows){ 0 };
}

static bool is_good(const struct stale_rows *k, const struct row *row, uint64_t clock)
{
    return row && row_version(row) + k->bound >= clock;
}

/* Row number i of those that are asked for. */
static void read_row(const struct stale_rows *k, struct row *row,
                     const struct stale_rows_ask *ask, uint32_t i)
{
    memcpy(ask->dst + (size_t)i * k->dim, row->floats, k->dim * sizeof *ask->dst);
    if (!ask->versions)
        return;
    ask->versions[i] = tail_of(k, row)->version;
    ask->places[i] = tail_of(k, row)->place;
}

uint32_t stale_rows_read(const struct stale_rows *k, uint64_t clock,
                         const struct stale_rows_ask *ask, uint32_t *ret_missing,
                         uint64_t *lowest)
{
    struct row *rows[BATCH];
    uint32_t n_missing = 0;

    for (uint32_t from = 0; from < ask->n; from += BATCH) {
        uint32_t n_batch = ask->n - from < BATCH ? ask->n - from : BATCH;

        table_find_batch(k->rows, ask->keys + from, n_batch, rows);
        for (uint32_t i = 0; i < n_batch; i++) {
            if (!is_good(k, rows[i], clock)) {
                ret_missing[n_missing++] = from + i;
                continue;
            }
            read_row(k, rows[i], ask, from + i);
            if (row_version(rows[i]) < *lowest)
                *lowest = row_version(rows[i]);
        }
    }
    return n_missing;
}

bool stale_rows_put(struct stale_rows *k, uint64_t key, struct stale_rows_origin origin,
                    const float *row, uint32_t *ret_place)
{
    struct row *at;

    table_find_batch(k->rows, &key, 1, &at);
    if (!at) {
        if (table_insert(k->rows, key, &at))
            return false;
        tail_of(k, at)->place = table_number(k->rows, at);
    }
    at->stamp = row_stamp(origin.min_clock, 0, 0);
    memcpy(at->floats, row, k->dim * sizeof *row);
    tail_of(k, at)->version = origin.version;
    *ret_place = tail_of(k, at)->place;
    return true;
}

static void remove_before(struct stale_rows *k, uint64_t min_clock)
{
    for (uint64_t i = 0; i < table_n_numbers(k->rows); i++) {
        struct row *row = table_row(k->rows, i);

        if (row && row_version(row) < min_clock)
            table_remove(k->rows, row);
    }
}

void stale_rows_sweep(struct stale_rows *k, uint64_t clock)
{
    if (!k->rows || clock < k->swept + k->bound)
        return;
    k->swept = clock;
    if (clock > k->bound)
        remove_before(k, clock - k->bound);
}

void stale_rows_clear(struct stale_rows *k)
{
    if (k->rows)
        remove_before(k, UINT64_MAX);
}
