/*
 * AUDIT: does a standby have its primary's rows? The primary reads some of them between two events, and says with the
 * next FETCH's reply what they are at its newest record. The standby compares its own once it has replayed just that
 * record: a row that differs then will never be right again.
 *
 *     audit     u64 number of the record, then up to AUDIT_ROWS_MAX rows
 *     a row     u32 table, u32 crc32c of the payload, u64 key, u64 version
 *
 * All integers are little-endian. The rows are those behind a cursor that goes through all tables again and again, so
 * each row is compared some time. Nothing of it is in the log: an older psd skips the field, and replay knows no audit.
 */
#ifndef SERVER_REPLICATION_AUDIT_H
#define SERVER_REPLICATION_AUDIT_H

#include "proto/message_replication.h"
#include "server/core/shard.h"

#define AUDIT_EVERY_MS 100u
#define AUDIT_ROW_BYTES 24u
#define AUDIT_ROWS_MAX ((MESSAGE_AUDIT_MAX - 8u) / AUDIT_ROW_BYTES)

/* What is looked at next; zeroed: all. */
struct audit_cursor {
    uint32_t table;
    uint64_t row; /* its number (table.h) */
};

/* The next rows, as of record `number`, the shard's newest. Returns the bytes; 0: a push is between its slices, or
 * there are no rows there. */
size_t audit_take(struct shard *s, uint64_t number, struct audit_cursor *cursor,
                  uint8_t dst[static MESSAGE_AUDIT_MAX]) ON_SHARD;

/* The number of its record; 0: these bytes are no audit. */
uint64_t audit_number(const uint8_t *bytes, size_t n_bytes);

/* The shard is at the audit's record. PS_ECORRUPT and a sentence: a row differs. */
int audit_compare(struct shard *s, const uint8_t *bytes, size_t n_bytes, struct err *err)
    ON_SHARD MUST_CHECK;

#endif
