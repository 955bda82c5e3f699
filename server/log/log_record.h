/*
 * One event of a shard, as bytes: what has to be done again so that checkpoint + log = the shard.
 * README.md beside this file has the byte table, and which event needs which record.
 *
 *     offset  bytes  field
 *          0      4  crc32c    of bytes 4 .. 40 + n_bytes; set by log_record_seal()
 *          4      4  n_bytes   of the payload, without the zeros that pad it
 *          8      8  number    1, 2, 3 ... of this shard's log, without a gap
 *         16      8  version   the shard's, when the event had happened
 *         24      8  unix_ms   when; nothing is replayed by it
 *         32      4  type      enum log_record_type
 *         36      4  zero
 *         40      -  payload, then zeros up to a multiple of 8
 *
 * All integers are little-endian. A record's bytes begin at a multiple of 8.
 */
#ifndef SERVER_LOG_LOG_RECORD_H
#define SERVER_LOG_LOG_RECORD_H

#include <stdbool.h>

#include "common/status.h"
#include "proto/section.h"
#include "proto/spec.h"
#include "server/core/roster.h"
#include "server/store/part.h"

#define LOG_RECORD_HEADER_BYTES 40u
#define LOG_RECORD_BYTES_MAX (UINT64_C(1) << 30) /* header, payload and padding of one record */

#define LOG_RECORD_LIST(X)       \
    X(LOG_PUSH, 1, "push")       \
    X(LOG_TABLE, 2, "table")     \
    X(LOG_JOIN, 3, "join")       \
    X(LOG_GONE, 4, "gone")       \
    X(LOG_REACH, 5, "reach")     \
    X(LOG_COMBINE, 6, "combine") \
    X(LOG_ROWS, 7, "rows")

enum log_record_type {
#define X(name, value, text) name = value,
    LOG_RECORD_LIST(X)
#undef X
        LOG_RECORD_TYPE_END
};

enum log_rows_op {
    LOG_ROWS_GONE,    /* evicted, idle, expired, rare: the rows are removed */
    LOG_ROWS_LEFT,    /* keys that get no row from the next record, a push or a combine */
    LOG_ROWS_VISITED, /* by the rule of rare rows: their touches begin anew */
    LOG_ROWS_OP_END
};

struct log_worker {
    const char *job; /* borrowed; shorter than SPEC_NAME_MAX */
    uint32_t rank;
    uint64_t incarnation;
};

/* Judged: applied (status 0) or refused, and then without its sections. */
struct log_push {
    struct log_worker worker;
    int status;
    const struct push *push; /* borrowed, with all that its sections point to */
};

struct log_table {
    uint32_t id;                    /* the shard's number of it */
    const struct part_table *table; /* borrowed; n_pushes and n_rows are 0 */
};

/* Admitted. What roster_join() was asked; in the record, too, what it answered, so that a replay
 * need not judge again. */
struct log_join {
    struct roster_join join; /* strings are borrowed */
    uint64_t now_ms;         /* the shard's time */
};

struct log_gone {
    struct log_worker worker;
    enum worker_state state; /* WORKER_LEFT, WORKER_DEAD or WORKER_LOST */
};

struct log_reach {
    struct log_worker worker;
    uint64_t clock;
};

struct log_combine {
    const char *job; /* borrowed */
    uint64_t run, clock;
};

struct log_rows {
    uint32_t table_id;
    enum log_rows_op op;
    uint32_t n_keys;
    const uint64_t *keys; /* borrowed, in the order in which it happened */
};

struct log_record {
    uint64_t number; /* log_queue_append() gives it */
    uint64_t version, unix_ms;
    enum log_record_type type;
    union {
        struct log_push push;
        struct log_table table;
        struct log_join join;
        struct log_gone gone;
        struct log_reach reach;
        struct log_combine combine;
        struct log_rows rows;
    };
};

/* Where a decoded record keeps what does not stand in the bytes as such. */
struct log_record_room {
    struct push push;
    struct part_table table;
};

/* Static storage; "unknown" for what is no type. */
const char *log_record_name(unsigned type);

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
