/*
 * The rows that a push is about to change: found, and made where they are not there yet.
 *
 * Growing one table may remove rows of this and others to make room (shard_grow.h), but none
 * that is pinned: so all rows that a push has found are pinned before it grows.
 */
#ifndef SERVER_CORE_SHARD_ROWS_H
#define SERVER_CORE_SHARD_ROWS_H

#include "server/core/shard_state.h"

/* Fills b->rows[from .. from + n); returns how many are not there. What the push under way has
 * still to change of them is changed first. */
uint32_t shard_rows_find(struct shard *s, struct shard_rows *b, uint32_t from, uint32_t n);

/* Those of the range that are there. */
void shard_rows_pin(struct shard_rows *b, uint32_t from, uint32_t n);

/* Asks for a row for each key of the range that has none; what is made is pinned and marked.
 * -ENOMEM: shard_rows_undo(). */
int shard_rows_grow(struct shard *s, struct shard_rows *b, uint32_t from, uint32_t n)
    MUST_CHECK;

/* The pins go, but those of the push under way stay. */
void shard_rows_unpin(const struct shard *s, struct shard_rows *b);

/* The pins go, and what was made: all is as it was. */
void shard_rows_undo(struct shard *s, struct shard_rows *b);

#endif
