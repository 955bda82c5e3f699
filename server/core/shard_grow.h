/*
 * A key that has no row is pushed to: does it get one? Asked once for each absent key of a push.
 * In between stand the admission filter, the budgets, and who makes room when they are full
 * (spec.h, struct spec_limits).
 *
 * Who makes room, in the table that needs it: a hand walks the row numbers and takes rows of the
 * oldest (or rarest) sixteenth, as a sample of the rows says where that ends; each new row pays
 * for a few of its steps. Where the hand meets none for long, the oldest of a new sample goes.
 * Where not a row but the index wants the memory, it is the oldest of the rows beside the key.
 *
 * So what goes depends on the rows that a shard has, and not on its keys alone: under a budget
 * two shards and one do not end in the same weights.
 */
#ifndef SERVER_CORE_SHARD_GROW_H
#define SERVER_CORE_SHARD_GROW_H

#include "server/core/shard_state.h"

/* Sets entry->budget and entry->turnover by its specification, before it has a table. */
void shard_grow_init(struct shard *s, struct shard_entry *entry);

/* Gives back what shard_grow_rows() has made beside rows. */
void shard_grow_deinit(struct shard_entry *entry);

/* Where rows[i] is NULL, a row for keys[i] is asked for, for push number `version`: a new one has
 * its weights and state as they begin, and stamp 0. It stays NULL where the key is not admitted
 * yet, or there is no place for it in the budget or in memory; which of these is counted.
 * Other rows may go to make room, but none that that push has changed, or that any push has
 * still to change (shard_rows.h). While a journal is replayed all of that is as it was then, and
 * rows[i] becomes NULL, too, where it is not older than `version`. A key that is set (SECTION_ASSIGN) and not learnt is not asked
 * how often it came. */
void shard_grow_rows(struct shard *s, struct shard_entry *entry, enum section_op op,
                     uint64_t version, const uint64_t *keys, uint32_t n, struct row **rows);

/* The payload of a new row: its weights and state as they begin. */
void shard_grow_begin(struct shard *s, const struct shard_entry *entry, uint64_t key,
                      struct row *row);

/* rows[i] = the row of keys[i], or a new one for a checkpoint's: its payload is not set, nobody makes room,
 * nothing is counted. A
 * table that filled its budget may need a little more when it is built in another order, so 1/32
 * more than the budgets is allowed. PS_EBUDGET, -ENOMEM. */
int shard_grow_restored(struct shard *s, struct shard_entry *entry, const uint64_t *keys,
                        uint32_t n, struct row **ret_rows) MUST_CHECK;

#endif
