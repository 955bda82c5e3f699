/*
 * Rows that go by themselves, by the rules of their table: not pushed to for so many clocks or
 * so long, or too seldom (spec.h, struct spec_limits). A small slice at a time, between events.
 *
 * A pass walks a table's row numbers once. One begins when the horizons (horizon.h) have moved,
 * or when the rule of rare rows wants one:
 *
 *     a row's first visit by that rule    its touches are set to 0
 *     each later one                      it goes if it has fewer than rare_touches; else 0 again
 *
 * and from the end of one such pass to the beginning of the next rare_clocks clocks go by, so
 * each row has had that many, and those that the pass itself took.
 *
 * After a restart all begins anew: nothing goes before a whole span has passed.
 */
#ifndef SERVER_CORE_SHARD_SWEEP_H
#define SERVER_CORE_SHARD_SWEEP_H

#include "server/core/shard_state.h"

#define SHARD_SWEEP_ROWS 8192u /* row numbers looked at in one call, over all tables */

/* Push number `version`, of clock `clock` of run `run` of its job (roster.h), is about to change
 * rows of this table. Once for each section of gradients, and for each table of a lock-step
 * clock, in the order of versions. */
void shard_sweep_note_push(struct shard_entry *entry, uint64_t run, uint64_t clock,
                           uint64_t version);

/* One slice. Pinned rows stay, and those that no push has changed yet. */
void shard_sweep(struct shard *s, uint64_t now_ms);

#endif
