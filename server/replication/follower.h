/*
 * What a standby's shard does with its primary's records: they become its rows, and records of its own log under the
 * same numbers.
 *
 *     follower_add()   records as a fetch's reply has them: they are received, in memory
 *     follower_run()   each is replayed, and then appended to the log; -EAGAIN: the log takes none now
 *     follower_stop()  what was received and not appended is forgotten: the end, or another primary
 *
 * Only whole events are appended. ROWS come before the push that caused them; they are replayed, and appended together
 * with that push. So the log never ends in rows of a push that has not come, wherever the primary ends.
 *
 * No loop, no files: the log is behind two functions.
 */
#ifndef SERVER_REPLICATION_FOLLOWER_H
#define SERVER_REPLICATION_FOLLOWER_H

#include <stdbool.h>

#include "common/bytes.h"
#include "proto/message_replication.h"
#include "server/core/replay.h"
#include "server/wal/wal_record.h"

struct follower_log {
    void *owner; /* borrowed */
    /* 0: a record of so many bytes may be appended; -EAGAIN: not now; -ENOMEM. */
    int (*reserve)(void *owner, size_t n_bytes);
    /* Copies the record, and returns its number: one more than the last one's. */
    uint64_t (*append)(void *owner, const struct wal_record *record);
};

/* Numbers of records. */
struct follower {
    struct shard *shard; /* borrowed; it is being replayed */
    struct follower_log log;
    uint64_t received; /* all up to this one are in memory, or in the log */
    uint64_t replayed; /* or rows of an event that is still to come */
    uint64_t applied;  /* in the log, and in the shard */
    uint64_t needs;    /* before this one is applied the shard is not exact (recover_shard.h) */
    struct bytes in;   /* owned: records behind `applied` */
    size_t ahead;      /* bytes of them that are replayed and not appended */
    uint64_t audit_at; /* the record at which `audit` is compared (audit.h); 0: none waits */
    uint32_t audit_bytes;
    uint8_t audit[MESSAGE_AUDIT_MAX];
    bool differs;     /* it has found a row that is not the primary's */
    uint64_t unknown; /* the last records that came have one of an unknown type; 0: none */
    uint32_t unknown_type;
};

/* The shard has all records up to `last`. */
void follower_init(struct follower *f, struct shard *shard, const struct follower_log *log,
                   uint64_t last, uint64_t needs);
void follower_deinit(struct follower *f);

/* n_records whole records from number `first` on. Those that were received before are skipped. f->unknown: a newer psd
 * has written that one, and only those before it are received, as what follows may rest on it. PS_EPROTO and a
 * sentence: they are no records, or some before them are missing; then nothing is added. -ENOMEM. */
int follower_add(struct follower *f, uint64_t first, uint32_t n_records, const uint8_t *records,
                 size_t n_bytes, struct err *err) MUST_CHECK;

/* An audit that came with the records; one waits at a time. PS_EPROTO: it is none. */
int follower_audit(struct follower *f, const uint8_t *bytes, uint32_t n_bytes) MUST_CHECK;

/* Until all that was received is replayed, or -EAGAIN. PS_ECORRUPT and a sentence: the shard is not what the primary's
 * was (f->differs: by an audit), and is of no use any more; -ENOMEM: the same. */
int follower_run(struct follower *f, uint64_t now_ms, struct err *err) ON_SHARD MUST_CHECK;

/* Also after a failure of follower_run(). */
void follower_stop(struct follower *f) ON_SHARD;

/* Bytes that were received and not replayed. */
static inline size_t follower_n_waiting(const struct follower *f)
{
    return bytes_len(&f->in) - f->ahead;
}

static inline bool follower_is_exact(const struct follower *f)
{
    return f->applied >= f->needs;
}

#endif
