/* Rows and counts of a checkpoint, on their way back into a shard that has its tables (shard_table_restore()). */
#ifndef SERVER_CORE_RESTORE_H
#define SERVER_CORE_RESTORE_H

#include "server/core/shard.h"

/* Restores a row from a checkpoint; stamp as row_stamp(), payload: payload_bytes of the table, NULL: initial weights.
 * Keys of other shards: 0, nothing done. PS_ENOTABLE; PS_ECORRUPT (a block that the dense table does not have);
 * PS_EBUDGET: no silent loss; -ENOMEM. */
int restore_row(struct shard *s, uint32_t table_id, uint64_t key, uint64_t stamp,
                const void *payload) ON_SHARD MUST_CHECK;

/* Restores many rows, in the format of a scan: key u64, stamp u64, payload. restore_gone() removes rows by keys u64.
 * *ret_n_ours: rows or keys of this shard; others are skipped. */
int restore_rows(struct shard *s, uint32_t table_id, const uint8_t *rows, uint32_t n_rows,
                 uint32_t *ret_n_ours) ON_SHARD MUST_CHECK;
int restore_gone(struct shard *s, uint32_t table_id, const uint8_t *keys, uint32_t n_keys,
                 uint32_t *ret_n_ours) ON_SHARD MUST_CHECK;

/* Sizes an empty table for about n_rows rows to be restored. */
void restore_expect(struct shard *s, uint32_t table_id, uint64_t n_rows) ON_SHARD;

/* Sets counts; a count never decreases. */
void restore_counts(struct shard *s, uint32_t table_id, uint64_t n_pushes, uint64_t version)
    ON_SHARD;
void restore_version(struct shard *s, uint64_t version) ON_SHARD;

#endif
