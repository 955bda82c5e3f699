/*
 * One event of a shard, as bytes: what has to be done again so that checkpoint + log = the shard.
 * README.md beside this file has the byte table, and which event needs which record.
 *
 *     offset  bytes  field
 *          0      4  crc32c    of bytes 4 .. 40 + n_bytes; set by log_record_seal()
 *          4      4  n_bytes   of the payload, without the zeros that pad it
 *          8      8  number    1, 2, 3 ... of this shard's log, without a gap
 *         16      8  version   the event's: the shard's behind it, or of rows that of the push whose
 *                              doing it is; so it need not ascend from record to record
 *         24      8  unix_ms   when; nothing is replayed by it
 *         32      4  type      LOG_RECORD_LIST
 *         36      4  zero
 *         40      -  payload, then zeros up to a multiple of 8
 *
 * All integers are little-endian. A record's bytes begin at a multiple of 8.
 */
#ifndef SERVER_LOG_LOG_RECORD_H
#define SERVER_LOG_LOG_RECORD_H

#include "common/status.h"
#include "server/core/roster.h"
#include "server/core/shard_journal.h"
#include "server/store/part.h"

#define LOG_RECORD_HEADER_BYTES 40u
#define LOG_RECORD_BYTES_MAX (UINT64_C(1) << 30) /* header, payload and padding of one record */

/* The event, the number of its record's type in a file, its name. */
#define LOG_RECORD_LIST(X)               \
    X(SHARD_EVENT_PUSH, 1, "push")       \
    X(SHARD_EVENT_TABLE, 2, "table")     \
    X(SHARD_EVENT_JOIN, 3, "join")       \
    X(SHARD_EVENT_GONE, 4, "gone")       \
    X(SHARD_EVENT_REACH, 5, "reach")     \
    X(SHARD_EVENT_COMBINE, 6, "combine") \
    X(SHARD_EVENT_ROWS, 7, "rows")

struct log_record {
    uint64_t number; /* log_queue_append() gives it */
    uint64_t unix_ms;
    struct shard_event event; /* of a refused push the sections are left out */
};

/* Where a decoded record keeps what its event points to and does not stand in the bytes as such. */
struct log_record_room {
    struct push push;
    struct part_table table;
    struct roster_join join;
};

/* Static storage; "unknown" for what is none. */
const char *log_record_name(enum shard_event_type type);

/* Header, payload and padding: a multiple of 8. */
size_t log_record_bytes(const struct log_record *record);

/* dst: log_record_bytes(record), aligned to 8. All but the crc. */
void log_record_encode(uint8_t *dst, const struct log_record *record);

/* Sets the crc; returns the record's bytes, as log_record_bytes(). For bytes of our own. */
size_t log_record_seal(uint8_t *bytes);

/*
 * The record that begins at `src`, aligned to 8, of which n_bytes are there. What it points to
 * stays in src and in *room. NULL, or what is wrong with it in a few words (static storage, or
 * `reason`); *ret_bytes: where the next one begins.
 */
const char *log_record_decode(const uint8_t *src, size_t n_bytes, struct log_record_room *room,
                              struct log_record *ret, size_t *ret_bytes, struct err *reason);

#endif
