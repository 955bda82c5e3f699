/*
 * Rows are changed: one step of the optimizer, or an assignment. Nothing here can fail.
 *
 * A push that goes on in slices has taken effect before all of its rows have changed (shard.h).
 * Who reads or changes rows calls shard_change_first() on them: so nobody sees one too early.
 */
#ifndef SERVER_CORE_SHARD_CHANGE_H
#define SERVER_CORE_SHARD_CHANGE_H

#include "server/core/shard_state.h"

/* Scales the gradient down to the table's clip_norm, then one step of the optimizer. NULL: the
 * key got no row. */
void shard_change_step(struct shard *s, const struct shard_entry *entry, struct row *row,
                       float *gradient, const struct optim_step *step, uint64_t version);

/* The next n rows of the part, found or made. Its bytes have been checked. */
void shard_change_rows(struct shard *s, struct shard_run *run, struct shard_part *part,
                       uint32_t n);

/* Those of these ascending keys that the large push under way has still to change. */
void shard_change_first(struct shard *s, const struct shard_entry *entry, const uint64_t *keys,
                        uint32_t n_keys);

/* All that a push which has taken effect has still to change. */
void shard_change_all(struct shard *s, struct shard_run *run);

#endif
