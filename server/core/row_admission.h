/*
 * Admission: decides for each absent key of a push if the key gets a row. It applies the admission filter
 * and the budgets, and evicts rows when a budget is full (table_spec.h, struct table_spec_limits).
 *
 * Eviction works in the table that needs memory. A hand moves over the row numbers and evicts rows of the
 * oldest (or rarest) sixteenth, whose limit comes from a sample of the rows; each new row pays for a few
 * of its steps. If the hand finds no such row for long, the oldest row of a new sample is evicted. If the
 * index needs the memory, the oldest row beside the key is evicted.
 *
 * So evictions depend on the rows of a shard, not on its keys alone: under a budget, two shards and one
 * shard do not end in the same weights.
 */
#ifndef SERVER_CORE_ROW_ADMISSION_H
#define SERVER_CORE_ROW_ADMISSION_H

#include "server/core/shard_internal.h"

/* Sets entry->budget and entry->turnover by its specification, before its table is created. */
void row_admission_init(struct shard *s, struct shard_entry *entry);

/* Frees the memory of row_admission_rows(), except for rows. */
void row_admission_deinit(struct shard_entry *entry);

/* If rows[i] is NULL, requests a row for keys[i], for push number `version`. A new row has its initial weights and
 * state, and stamp 0. rows[i] stays NULL if the key is not admitted yet, or if the budget or memory has no space; the
 * cause is counted. Other rows may be evicted, but no row that this push has changed or that any push has still to
 * change (pending_rows.h).
 *
 * While the log is replayed the recorded decisions apply, and rows[i] also becomes NULL if it is not older than
 * `version`. A key that is assigned (SECTION_ASSIGN, _STATE) skips the admission filter. */
void row_admission_rows(struct shard *s, struct shard_entry *entry, enum section_op op,
                        uint64_t version, const uint64_t *keys, uint32_t n, struct row **rows);

/* Writes the payload of a new row: its initial weights and state. */
void row_admission_begin(struct shard *s, const struct shard_entry *entry, uint64_t key,
                         struct row *row);

/* rows[i] = the row of keys[i], or a new one for a checkpoint's row: payload not set, no eviction, no
 * counts. Built in another order, or on another number of shards, the same rows may need more memory: 1/32 above the
 * shard's budget is allowed, and the table's own limit does not count (no new row fits until it is kept again).
 * PS_EBUDGET, -ENOMEM. */
int row_admission_restored(struct shard *s, struct shard_entry *entry, const uint64_t *keys,
                           uint32_t n, struct row **ret_rows) MUST_CHECK;

/* A dense table is complete or absent: before a push takes effect, every block that it brings has a row, or
 * the push is refused whole. (A layer without some blocks would never train, and nothing would show it.)
 *
 * Creates rows for the absent keys of the push's dense tables; for a held push, reserves memory for them.
 * PS_EBUDGET, -ENOMEM and a sentence in op->fault: none was created. During replay it does nothing: the log
 * holds the decision (replay_decisions.h). */
int row_admission_blocks(struct shard *s, struct push_op *op) MUST_CHECK;

#endif
