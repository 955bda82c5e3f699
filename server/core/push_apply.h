/*
 * Changes rows: one step of the optimizer, or an assignment. Nothing here can fail.
 *
 * A push in slices takes effect before all of its rows have changed (shard.h). Code that reads or changes rows calls
 * push_apply_first() on them, so that no row is read unchanged.
 */
#ifndef SERVER_CORE_PUSH_APPLY_H
#define SERVER_CORE_PUSH_APPLY_H

#include "server/core/shard_internal.h"

/* Scales the gradient down to the table's clip_norm, then one step of the optimizer. NULL: the
 * key got no row. */
void push_apply_step(struct shard *s, const struct shard_entry *entry, struct row *row,
                     float *gradient, const struct optimizer_step *step, uint64_t version);

/* The next n rows of the section, found or made. Its bytes have been checked. */
void push_apply_rows(struct shard *s, struct push_op *op, struct push_section *section,
                     uint32_t n);

/* Those of these ascending keys that the large push under way has still to change. */
void push_apply_first(struct shard *s, const struct shard_entry *entry, const uint64_t *keys,
                      uint32_t n_keys);

/* All that a push which has taken effect has still to change. */
void push_apply_all(struct shard *s, struct push_op *op);

#endif
