/*
 * Changes rows: one step of the optimizer, or an assignment. Nothing here can fail.
 *
 * A push in slices, or a lock-step clock, takes effect before all of its rows have changed (shard.h). Code that reads
 * or changes rows calls push_apply_first() on them, so that no row is read unchanged.
 */
#ifndef SERVER_CORE_PUSH_APPLY_H
#define SERVER_CORE_PUSH_APPLY_H

#include "server/core/shard_internal.h"

/* The next n rows of the section, found or made. Its bytes have been checked. */
void push_apply_rows(struct shard *s, struct push_op *op, struct push_section *section,
                     uint32_t n);

/* True while one that has taken effect has still to change rows. There are never two. */
bool push_apply_is_under_way(const struct shard *s);

/* The latest version of which every row has been made: that of the shard, but for what is under way. */
uint64_t push_apply_version(const struct shard *s);

/* Those of these ascending keys that it has still to change. */
void push_apply_first(struct shard *s, const struct shard_entry *entry, const uint64_t *keys,
                      uint32_t n_keys);

/* All that a push which has taken effect has still to change. */
void push_apply_all(struct shard *s, struct push_op *op);

#endif
