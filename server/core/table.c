#include "server/core/table.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/memory.h"
#include "server/core/slab.h"

#define N_NUMBERS_MAX UINT32_MAX
#define SLAB_BYTES_FIRST ((size_t)16 << 10)

/*
 * Invariants:
 *   1. budget.used is all that the table holds; budget.parent is the shard's.
 *   2. A number below rows.n_things is in the index, or its row has ROW_FREE and stands in the list
 *      that begins at `free`.
 */
struct table {
    struct hash_index index;
    struct slab rows;
    uint64_t
        free; /* 1 + the number of the first free row; its key is the next such; 0: the end */
    uint64_t n_rows, n_removed;
    uint64_t n_changes; /* of the index, and tries */
    struct memory_budget budget;
};

int table_new(struct table **ret_table, uint32_t payload_bytes, uint64_t max_bytes,
              struct memory_budget *parent)
{
    struct memory_budget budget = { .parent = parent, .max = max_bytes };
    int status = memory_budget_acquire(&budget, sizeof(struct table));
    struct table *t;

    if (status)
        return status;
    t = memory_try_alloc(sizeof *t);
    if (!t) {
        memory_budget_release(&budget, sizeof *t);
        return -ENOMEM;
    }
    t->budget = budget;
    hash_index_init(&t->index, &t->budget);
    slab_init(&t->rows, (sizeof(struct row) + payload_bytes + 3) & ~(size_t)3, SLAB_BYTES_FIRST,
              &t->budget);
    *ret_table = t;
    return 0;
}

void table_free(struct table *t)
{
    if (!t)
        return;
    hash_index_deinit(&t->index);
    slab_deinit(&t->rows);
    memory_budget_release(&t->budget, sizeof *t);
    free(t);
}

uint64_t table_n_rows(const struct table *t)
{
    return t->n_rows;
}

uint64_t table_bytes(const struct table *t)
{
    return t->budget.used;
}

void table_facts(const struct table *t, struct table_facts *ret)
{
    *ret = (struct table_facts){ .n_rows = t->n_rows,
                                 .n_removed = t->n_removed,
                                 .row_bytes = t->rows.thing_bytes,
                                 .index_bytes = sizeof *t + t->index.budget.used,
                                 .slab_bytes = t->rows.budget.used,
                                 .n_slots = t->index.n_places,
                                 .n_splits = t->index.n_splits };
}

void table_find_batch(const struct table *t, const uint64_t *keys, uint32_t n_keys,
                      struct row **ret_rows)
{
    hash_index_find(&t->index, &t->rows, keys, n_keys, ret_rows);
}

void table_group_begin(const struct table *t, struct hash_index_group *g, const uint64_t *keys,
                       uint32_t n_keys, struct row **ret_rows)
{
    g->keys = keys;
    g->rows = ret_rows;
    g->n_keys = n_keys;
    g->n_changes = t->n_changes;
    if (t->index.n_segments)
        hash_index_prefetch_lines(&t->index, g);
}

void table_group_prefetch(const struct table *t, struct hash_index_group *g)
{
    if (g->n_changes == t->n_changes && t->index.n_segments)
        hash_index_prefetch_rows(&t->index, &t->rows, g);
}

void table_group_end(const struct table *t, struct hash_index_group *g)
{
    if (g->n_changes == t->n_changes && t->index.n_segments)
        hash_index_compare(&t->index, &t->rows, g);
    else
        table_find_batch(t, g->keys, g->n_keys, g->rows);
}

/* The last thing that can fail. */
static int take_number(struct table *t, uint64_t *ret_number)
{
    const struct row *row;

    if (t->free) {
        *ret_number = t->free - 1;
        row = slab_at(&t->rows, *ret_number);
        t->free = row->key;
        return 0;
    }
    return t->rows.n_things < N_NUMBERS_MAX ? slab_next(&t->rows, ret_number) : -ENOMEM;
}

int table_insert(struct table *t, uint64_t key, struct row **ret_row)
{
    uint64_t number;
    struct row *row;
    int status;

    t->n_changes++;
    status = hash_index_reserve(&t->index, &t->rows, key);
    if (!status)
        status = take_number(t, &number);
    if (status)
        return status;
    row = slab_at(&t->rows, number);
    row->key = key;
    row->stamp = 0;
    hash_index_put(&t->index, key, (uint32_t)number);
    t->n_rows++;
    *ret_row = row;
    return 0;
}

int table_upsert_batch(struct table *t, const uint64_t *keys, uint32_t n_keys,
                       struct row **ret_rows)
{
    int status = 0;

    for (uint32_t i = 0; i < n_keys && !status; i++) {
        ret_rows[i] = t->index.n_segments
                          ? hash_index_find_one(&t->index, &t->rows, keys[i], hash_mix(keys[i]))
                          : NULL;
        if (!ret_rows[i])
            status = table_insert(t, keys[i], &ret_rows[i]);
    }
    return status;
}

void table_expect(struct table *t, uint64_t n_rows)
{
    t->n_changes++;
    hash_index_expect(&t->index, &t->rows, n_rows);
}

uint32_t table_range(const struct table *t, uint64_t from, uint32_t n_max,
                     struct row **ret_rows, uint64_t *ret_last, uint64_t *cost)
{
    return hash_index_range(&t->index, &t->rows, from, n_max, ret_rows, ret_last, cost);
}

uint32_t table_near(const struct table *t, uint64_t key, struct row **ret_rows, uint32_t n_max)
{
    return hash_index_near(&t->index, &t->rows, key, ret_rows, n_max);
}

void table_remove(struct table *t, struct row *row)
{
    uint32_t number = hash_index_remove(&t->index, &t->rows, row);

    t->n_changes++;
    row->key = t->free;
    row->stamp = ROW_FREE;
    t->free = (uint64_t)number + 1;
    t->n_rows--;
    t->n_removed++;
}

void table_undo(struct table *t, struct row *row)
{
    table_remove(t, row);
    t->n_removed--;
}

bool table_ahead(struct table *t, uint64_t n_rows, void **ret_pages, size_t *ret_bytes)
{
    uint64_t n_segments = t->n_rows ? t->index.n_segments * n_rows / t->n_rows + 1 : 0;

    return slab_ahead(&t->rows, n_rows, ret_pages, ret_bytes) ||
           slab_ahead(&t->index.lines, n_segments, ret_pages, ret_bytes);
}

uint64_t table_n_numbers(const struct table *t)
{
    return t->rows.n_things;
}

uint32_t table_number(const struct table *t, const struct row *row)
{
    return hash_index_number(&t->index, &t->rows, row);
}

struct row *table_row(const struct table *t, uint64_t i)
{
    struct row *row;

    assert(i < t->rows.n_things);
    row = slab_at(&t->rows, i);
    return row_flags(row) & ROW_FREE ? NULL : row;
}
