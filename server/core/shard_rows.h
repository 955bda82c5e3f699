/*
 * The rows that pushes are about to change: a push has taken effect before its last row has
 * changed, and until then nobody may take such a row away (shard_grow.h, shard_sweep.h) or see
 * it as it was (shard_change.h).
 */
#ifndef SERVER_CORE_SHARD_ROWS_H
#define SERVER_CORE_SHARD_ROWS_H

#include "server/core/shard_state.h"

/* From here to the end b's keys are awaited by its table, those from b->n_done on that are not marked. */
void shard_rows_begin(struct shard_rows *b);
void shard_rows_end(struct shard_rows *b);

/* Has a push still to change the row of that key? */
bool shard_rows_await(const struct shard_entry *entry, uint64_t key);

/* The first of b->keys[at .. n_keys) that is not below `key`. Gallops: what is asked for in a
 * row ascends. */
uint32_t shard_rows_bound(const struct shard_rows *b, uint32_t at, uint64_t key);

#endif
