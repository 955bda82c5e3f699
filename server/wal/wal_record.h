/*
 * A record: one event of a shard as bytes, for replay on top of a checkpoint.
 *
 *     offset  bytes  field
 *          0      4  crc32c    of bytes 4 .. 40 + n_bytes; set by wal_record_seal()
 *          4      4  n_bytes   of the payload, without the zeros that pad it
 *          8      8  number    1, 2, 3 ... of this shard's log, without a gap
 *         16      8  version   the shard's version behind the event; of ROWS, the version of the push
 *                              that caused it, so it need not ascend from record to record
 *         24      8  unix_ms   time of day; not used by replay
 *         32      4  type      WAL_RECORD_LIST
 *         36      4  zero
 *         40      -  payload, then zeros up to a multiple of 8
 *
 * Payloads, by type:
 *
 *     1 push      worker, i32 status, u64 seq, u64 clock, u32 n_samples, u32 tick, u32 n_sections; per section
 *                 u32 table_id, op, codec, k, n_keys, key_bytes, value_bytes; then keys and values of each section, as
 *                 received (proto/README.md). A refused push (status not 0) has no sections
 *     2 table     u32 id, u32 format (2), a table record (server/checkpoint/shard_file.h) with n_pushes and n_rows 0
 *     3 join      text job, text name, u32 rank, u32 n_workers, u64 incarnation, u32 mode, u32 bound, u64 clock,
 *                 u64 last_acked, u64 now_ms (the shard's time), u32 n_backups if not 0
 *     4 gone      worker, u32 state: 2 left, 3 dead, 4 lost
 *     5 advance   worker, u64 clock
 *     6 combine   u64 run, u64 clock
 *     7 rows      u32 table_id, u32 op (0 removed, 1 left out, 2 touches), u32 n_keys, u32 zero, n_keys u64; op 2:
 *                 n_keys u8 touches
 *     8 drop      u32 id: the table is dropped; its number is not given again
 *     9 spec      as a table's record: what the table's specification is from now on
 *    10 learned   worker, u64 unix_ms, u64 samples, u32 steps, f32 loss, f32 samples_per_s, 6 u16 busy,
 *                 u32 n_validations, f32 auc, f32 logloss, u32 has_one_class (proto/learning.h)
 *
 * text is u32 length with NUL, the characters, NUL, zeros up to a multiple of 4. worker is text job, u32 rank,
 * u64 incarnation.
 *
 * All integers are little-endian. A record's bytes begin at a multiple of 8.
 */
#ifndef SERVER_WAL_WAL_RECORD_H
#define SERVER_WAL_WAL_RECORD_H

#include "common/status.h"
#include "server/checkpoint/shard_file.h"
#include "server/core/membership.h"
#include "server/core/shard_events.h"

#define WAL_RECORD_HEADER_BYTES 40u
#define WAL_RECORD_BYTES_MAX (UINT64_C(1) << 30) /* header, payload and padding of one record */

/* The event, the number of its record's type in a file, its name. */
#define WAL_RECORD_LIST(X)               \
    X(SHARD_EVENT_PUSH, 1, "push")       \
    X(SHARD_EVENT_TABLE, 2, "table")     \
    X(SHARD_EVENT_JOIN, 3, "join")       \
    X(SHARD_EVENT_GONE, 4, "gone")       \
    X(SHARD_EVENT_ADVANCE, 5, "advance") \
    X(SHARD_EVENT_COMBINE, 6, "combine") \
    X(SHARD_EVENT_ROWS, 7, "rows")       \
    X(SHARD_EVENT_DROP, 8, "drop")       \
    X(SHARD_EVENT_SPEC, 9, "spec")       \
    X(SHARD_EVENT_LEARNED, 10, "learned")

struct wal_record {
    uint64_t number; /* wal_queue_append() gives it */
    uint64_t unix_ms;
    struct shard_event event; /* of a refused push the sections are left out */
};

/* Storage for the structs that a decoded event points to. */
struct wal_record_storage {
    struct push push;
    struct shard_file_table table;
    struct membership_join join;
    struct learning_report learned;
};

/* Static storage; "unknown" for what is none. */
const char *wal_record_name(enum shard_event_type type);

/* A record's type, as its header has it: does this build decode it? */
bool wal_record_knows(uint32_t type);

/* Header, payload and padding: a multiple of 8. */
size_t wal_record_bytes(const struct wal_record *record);

/* dst: wal_record_bytes(record), aligned to 8. All but the crc. */
void wal_record_encode(uint8_t *dst, const struct wal_record *record);

/* Sets the record's crc, and continues *crc, the crc of the bytes before it, over the record; no byte of a long
 * record is read twice. Returns the record's bytes, as wal_record_bytes(). For trusted bytes. */
size_t wal_record_seal(uint8_t *bytes, uint32_t *crc);

/*
 * Decodes the record at `src`, aligned to 8, of which n_bytes are there. It points into src and *storage. Returns
 * NULL, or its error in a few words (static storage, or `reason`); *ret_bytes: the offset of the next record.
 */
const char *wal_record_decode(const uint8_t *src, size_t n_bytes,
                              struct wal_record_storage *storage, struct wal_record *ret,
                              size_t *ret_bytes, struct err *reason);

#endif
