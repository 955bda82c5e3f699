/*
 * One shard's slice of one table: key -> row.
 *
 * A row is a header and `row_floats` floats; what the floats mean (weights first, optimizer
 * state behind) is the caller's business. Rows are never moved and never removed, so a row
 * pointer and a row's number stay good for the table's life: that is what lets a checkpoint
 * walk the table in slices.
 *
 *     slots   open-addressed, linear probing, at most 3/4 full
 *             [ row number + 1 | 32 bits of the key's hash ]   0 = empty
 *     slabs   of rows, filled in order of first use; the first has 16 KiB, each doubles what
 *             there is, up to 8 MiB
 *             [ key | version | clock | floats ... ]
 *
 * An empty table holds neither. A table holds at most 3 * 2^30 rows.
 */
#ifndef SERVER_CORE_TABLE_H
#define SERVER_CORE_TABLE_H

#include <stdbool.h>

#include "common/base.h"

struct table;

struct row {
    uint64_t key;
    uint64_t version;    /* shard-wide number of the push that last changed it; 0: none */
    uint64_t last_clock; /* of that push */
    float floats[];      /* weights, then optimizer state */
};

/* PS_OK, or -ENOMEM with *ret_table untouched. The caller owns the table. */
int table_new(struct table **ret_table, uint32_t row_floats) MUST_CHECK;

/* Frees the table and every row. NULL is fine. */
void table_free(struct table *t);

uint64_t table_n_rows(const struct table *t);

/* Memory held: slots, slabs, bookkeeping. */
uint64_t table_bytes(const struct table *t);

/* What table_bytes() may become, at most, when n_new rows are added. */
uint64_t table_bytes_after(const struct table *t, uint64_t n_new);

/* rows[i] = the row of keys[i], borrowed, or NULL; prefetched in a pipeline. */
void table_find_batch(const struct table *t, const uint64_t *keys, uint32_t n_keys,
                      struct row **ret_rows);

/* Makes room for n_new more rows: as many new keys may then be upserted without a failure.
 * -ENOMEM leaves the rows as they were. */
int table_reserve(struct table *t, uint64_t n_new) MUST_CHECK;

/* The row of `key`, its floats unset (and version 0, last_clock 0) if *ret_is_new. -ENOMEM
 * leaves the table as it was. */
int table_upsert(struct table *t, uint64_t key, struct row **ret_row, bool *ret_is_new)
    MUST_CHECK;

/* Row number i < table_n_rows(t), in order of first use. */
struct row *table_row(const struct table *t, uint64_t i);

#endif
