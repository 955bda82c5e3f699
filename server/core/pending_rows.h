/*
 * The rows that pushes and clocks in slices have still to change. One takes effect before its last row has changed.
 * Until then no such row may be removed (row_admission.h, expire.h) or be read unchanged (push_apply.h).
 */
#ifndef SERVER_CORE_PENDING_ROWS_H
#define SERVER_CORE_PENDING_ROWS_H

#include "server/core/shard_internal.h"

/* From here to the end b's keys are awaited by its table, those from b->n_done on that are not marked. */
void pending_rows_begin(struct pending_rows *b);
void pending_rows_end(struct pending_rows *b);

/* True if a push has still to change the row of that key. */
bool pending_rows_await(const struct shard_entry *entry, uint64_t key);

/* The first of keys[at .. n_keys), which ascend, that is not below `key`. Gallops, because the keys of a call ascend,
 * too. */
uint32_t pending_rows_bound_keys(const uint64_t *keys, uint32_t n_keys, uint32_t at,
                                 uint64_t key);

/* The same of b->keys. */
uint32_t pending_rows_bound(const struct pending_rows *b, uint32_t at, uint64_t key);

#endif
