/*
 * Expires rows by the rules of their table: not pushed to for some clocks or some time, or too rarely
 * (table_spec.h, struct table_spec_limits). Runs a small slice at a time, between events.
 *
 * A pass goes over a table's row numbers once. It begins when the version ages (version_age.h) have moved,
 * or when the rule of rare rows is due:
 *
 *     a row's first visit by that rule    its touches are set to 0
 *     each later visit                    it is removed if it has fewer than rare_touches; else 0 again
 *
 * The next such pass begins rare_clocks clocks after the end of the last one, so each row has had at least
 * that many clocks.
 *
 * After a restart all ages begin anew: no row expires before a whole span has passed.
 */
#ifndef SERVER_CORE_EXPIRE_H
#define SERVER_CORE_EXPIRE_H

#include "server/core/shard_internal.h"

#define EXPIRE_ROWS 8192u /* row numbers that one call examines, over all tables */

/* Push number `version`, of clock `clock` of run `run` of its job (membership.h), is about to change rows
 * of this table. Called once for each section of gradients, and for each table of a lock-step clock, in the
 * order of versions. */
void expire_note_push(struct shard_entry *entry, uint64_t run, uint64_t clock,
                      uint64_t version);

/* Runs one slice. Pinned rows stay, and rows that no push has changed yet. */
void expire_sweep(struct shard *s, uint64_t now_ms);

#endif
