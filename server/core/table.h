/*
 * One shard's slice of one table: key -> row.
 *
 *     directory   the skewed upper bits of the hash select a segment
 *     segments    of 1024 lines of 64 bytes (fewer in a small table)
 *                 line: [ 12 tags u8 | n_passed u32 | 12 row numbers u32 ]
 *     slabs       of rows, by row number, in order of first use; numbers of removed rows are reused
 *                 row:  [ key | stamp | weights, optimizer's state ]
 *
 * Lookups go in batches: all hashes, then all lines, then all rows, each prefetched before it is read. A
 * full segment splits in two. The skew makes segments fill one after another, so that no request pays for
 * the growth of a whole table (server/README.md, "Performance"). Rows never move: a row's pointer and number
 * are valid until it is removed.
 *
 * Segments and rows lie in huge pages. Memory is taken from the budget before it is held.
 */
#ifndef SERVER_CORE_TABLE_H
#define SERVER_CORE_TABLE_H

#include <stdbool.h>

#include "common/base.h"
#include "server/core/hash_index.h"
#include "server/core/memory_budget.h"
#include "server/core/row.h"

struct table;

struct table_facts {
    uint64_t n_rows, n_removed; /* there now; ever removed */
    uint64_t row_bytes;         /* of one row, its head included */
    uint64_t index_bytes;       /* directory, segments, and what keeps the books */
    uint64_t slab_bytes;        /* rows used or free to be used again, in whole pages */
    uint64_t n_slots;           /* of the index */
    uint64_t n_splits;          /* of segments, ever */
};

/* PS_OK, PS_EBUDGET or -ENOMEM with *ret_table untouched. The caller owns the table; `parent`
 * (may be NULL) is borrowed for its life; max_bytes is the table's own limit, 0: none. */
int table_new(struct table **ret_table, uint32_t payload_bytes, uint64_t max_bytes,
              struct memory_budget *parent) MUST_CHECK;

/* Frees the table and every row, and gives the budget back. NULL is fine. */
void table_free(struct table *t);

uint64_t table_n_rows(const struct table *t);

/* Memory held, as taken from the budget. */
uint64_t table_bytes(const struct table *t);

void table_facts(const struct table *t, struct table_facts *ret);

/* rows[i] = the row of keys[i], borrowed, or NULL. */
void table_find_batch(const struct table *t, const uint64_t *keys, uint32_t n_keys,
                      struct row **ret_rows);

/*
 * The same for up to HASH_INDEX_GROUP_MAX keys in three steps; the caller does other work while memory is
 * fetched. _begin prefetches the lines of the index, _prefetch the rows that these name, _end fills ret_rows.
 * The table may change in between; keys and ret_rows stay borrowed.
 */
void table_group_begin(const struct table *t, struct hash_index_group *g, const uint64_t *keys,
                       uint32_t n_keys, struct row **ret_rows);
void table_group_prefetch(const struct table *t, struct hash_index_group *g);
void table_group_end(const struct table *t, struct hash_index_group *g);

/* Inserts a row for `key`, which is absent: stamp 0, payload not set. PS_EBUDGET or -ENOMEM: the table is
 * unchanged. Never moves a row. */
int table_insert(struct table *t, uint64_t key, struct row **ret_row) MUST_CHECK;

/* rows[i] = the row of keys[i]; a new one, as from table_insert(), if the key is absent. A repeated key
 * finds the row of its first occurrence. PS_EBUDGET, -ENOMEM: some rows are inserted. */
int table_upsert_batch(struct table *t, const uint64_t *keys, uint32_t n_keys,
                       struct row **ret_rows) MUST_CHECK;

/* Grows the index of an empty table for about n_rows rows, as far as it can. */
void table_expect(struct table *t, uint64_t n_rows);

/* Up to n_max rows in the same part of the index as `key`: with one of them removed the index has a place
 * for `key`. Returns the number of rows. */
uint32_t table_near(const struct table *t, uint64_t key, struct row **ret_rows, uint32_t n_max);

/* Removes the row and frees its number. Its memory is kept for new rows. */
void table_remove(struct table *t, struct row *row);

/* The same for a row that was only a place kept for a push: it does not count as removed. */
void table_undo(struct table *t, struct row *row);

/* Memory of the rows or of the index that about n_rows new rows will touch first; each page is returned once. False:
 * there is none. The memory is not held yet, so under a budget there is none. For memory_populate(), from any thread
 * as long as the table lives: the first touch of a huge page clears it, a fraction of a millisecond to many (on
 * virtual machines). */
bool table_ahead(struct table *t, uint64_t n_rows, void **ret_pages, size_t *ret_bytes);

/* The next rows of a scan of the table, in the order of hash_index_order(): all from `from` on to *ret_last, which
 * is included; UINT64_MAX: the scan is over. At most n_max of them, 1 or more; there may be none. Looks at the rows of
 * one segment of the index, some 12,000, and does so again where few are wanted; *cost, in bytes of a slice, is what
 * that adds to. */
uint32_t table_range(const struct table *t, uint64_t from, uint32_t n_max,
                     struct row **ret_rows, uint64_t *ret_last, uint64_t *cost);

/* Row numbers are below this; some may be free. */
uint64_t table_n_numbers(const struct table *t);

/* The number of `row`, which is in the table. */
uint32_t table_number(const struct table *t, const struct row *row);

/* The row of that number, or NULL where none is. i < table_n_numbers(t). */
struct row *table_row(const struct table *t, uint64_t i);

#endif
