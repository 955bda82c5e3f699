/*
 * Reads a shard's log from a record to its end, and classifies the end. Every byte is checked
 * against its checksum; any file content leads to one of these results.
 *
 *     result        meaning                                                   what to do
 *     WAL_CLEAN     the last record is the last byte                          go on
 *     WAL_TORN      bytes that are no block, none of them known durable:      go on
 *                   what a crash leaves
 *     WAL_GAP       the writer dropped records (a failing disk, none, async)  go on, report the loss
 *     WAL_DAMAGED   records that were durable, or lie before such, cannot     stop: the operator decides
 *                   be read, or files are missing
 *     WAL_STOPPED   the caller wanted no more (wal_reader_stop())             go on: later segments are
 *                                                                             archived
 *
 * Torn or damaged: every block and segment has the number `durable`, up to which all records were on the disk
 * when it was written. A bad block is damage if a later block or segment has a `durable` at or above its first
 * record. Else it is an unfinished write. Damage to the very last block looks the same as an unfinished write;
 * a closed log ends in a block that marks the end.
 *
 * Records before the first one that is wanted are not read: the reader goes from block header to block header, and
 * where one of these is damaged it looks for the next. So damage there is neither seen nor in the way.
 *
 * A sector that cannot be read (-EIO) is damage like a wrong checksum, if file_ops can skip it. It is never taken for
 * an unfinished write: the log is WAL_DAMAGED there. Without the header of its segment no block can be checked.
 *
 * Where only a segment's header is damaged, its blocks still fit the crc that the header has, or should have: they are
 * read, and wal_end.header_text names the header.
 */
#ifndef SERVER_WAL_WAL_READER_H
#define SERVER_WAL_WAL_READER_H

#include <stdbool.h>

#include "server/wal/wal_record.h"
#include "server/wal/wal_segment.h"

struct wal_reader;

enum wal_verdict { WAL_CLEAN, WAL_TORN, WAL_GAP, WAL_DAMAGED, WAL_STOPPED };

struct wal_end {
    enum wal_verdict verdict;
    uint64_t last;         /* the last record that was read; from - 1: none */
    uint64_t last_present; /* the last one that is there: below `last` where the log ends before
                                `from`, as it may when a checkpoint is newer than the log */
    uint64_t
        last_read; /* the last one that could be read, also where wal_reader_stop() gave it up */
    uint64_t version;        /* the shard's, behind `last`; 0: none is known */
    uint64_t durable;        /* the greatest number that the log says was durable */
    char path[WAL_PATH_MAX]; /* where it ends; "": there is no segment */
    uint64_t offset;
    uint32_t n_unread; /* segments behind, which no reader reaches */
    bool is_truncated; /* damaged: the log begins behind the first record that was wanted */
    char text[256];    /* a sentence, unless clean or stopped */
    uint32_t
        n_headers; /* of segments that are damaged, but were read: their blocks are whole */
    char header_text[256]; /* a sentence of the last of these */
};

/* dir: of one shard's log; an absent one is an empty log. identity: the expected owner of the log (else PS_ECLUSTER),
 * or NULL for any. `from` is 1 or more: the first wanted record. A log that begins behind it is WAL_DAMAGED. -ENOMEM;
 * errors of files. */
int wal_reader_open(const struct file_ops *files, const char *dir,
                    const struct wal_identity *identity, uint64_t from, struct wal_reader **ret,
                    struct err *err) MUST_CHECK;

/* *ret: the next record, borrowed until the next call, or NULL at the end. A failure is about this
 * process or device (-ENOMEM, or -EIO without file_ops.skip), not about what the files hold. */
int wal_reader_next(struct wal_reader *r, const struct wal_record **ret, struct err *err)
    MUST_CHECK;

/* Ends the log at record `last`, one that wal_reader_next() returned, or the one before the first. Behind `last`
 * it has returned one record, or only ROWS. Also at the end. */
void wal_reader_stop(struct wal_reader *r, uint64_t last);

/* The position of the block of the last returned record: "byte N of PATH". */
void wal_reader_where(const struct wal_reader *r, char *dst, size_t dst_bytes);

/* After wal_reader_next() has returned NULL, or after wal_reader_stop(). */
const struct wal_end *wal_reader_end(const struct wal_reader *r);

/* Bytes of files that it has read or skipped so far. */
uint64_t wal_reader_n_file_bytes(const struct wal_reader *r);

/* The identity in the log's first segment; NULL: there is none. */
const struct wal_identity *wal_reader_identity(const struct wal_reader *r);

/* False: that header is damaged, and its identity may be, too. */
bool wal_reader_identity_is_sure(const struct wal_reader *r);

/* NULL is fine. */
void wal_reader_free(struct wal_reader *r);

const char *wal_reader_verdict_name(enum wal_verdict verdict);

#endif
