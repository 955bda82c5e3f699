/*
 * Reads a shard's log from a record on, to its end, and says what the end is. Every byte is held
 * against its checksum; whatever the files hold, nothing but these answers comes of it.
 *
 *     verdict       meaning                                                   what to do
 *     LOG_CLEAN     the last record is the last byte                          go on
 *     LOG_TORN      bytes that are no block, none of them known durable:      go on
 *                   what a crash leaves
 *     LOG_GAP       the writer dropped records (a failing disk, none, async)  go on, tell what is lost
 *     LOG_DAMAGED   records that were durable, or lie before such, cannot     stop: a person decides
 *                   be read, or files are missing
 *     LOG_STOPPED   the caller wanted no more (log_reader_stop())             go on: what is behind is
 *                                                                             set aside
 *
 * How torn and damaged are told apart: every block and segment says up to which record all was on
 * the disk when it was written. A bad block whose first record is at or below such a number,
 * found anywhere behind it, held what was promised: damage. A bad block in front of none is a
 * write that did not come to its end. Damage to the very last group, in front of nothing, cannot
 * be told from that; a log that was closed ends in a block that says so.
 */
#ifndef SERVER_LOG_LOG_READER_H
#define SERVER_LOG_LOG_READER_H

#include <stdbool.h>

#include "server/log/log_record.h"
#include "server/log/log_segment.h"

struct log_reader;

enum log_verdict { LOG_CLEAN, LOG_TORN, LOG_GAP, LOG_DAMAGED, LOG_STOPPED };

struct log_end {
    enum log_verdict verdict;
    uint64_t last;    /* the last record that was read; from - 1: none */
    uint64_t reached; /* the last one that is there: below `last` where the log ends before
                                `from`, as it may when a checkpoint is newer than the log */
    uint64_t version; /* the shard's, behind that one; 0: none is known */
    uint64_t durable; /* the greatest number that the log says was durable */
    char path[LOG_PATH_MAX]; /* where it ends; "": there is no segment */
    uint64_t offset;
    uint32_t n_unread; /* segments behind, which no reader reaches */
    bool is_cut;       /* damaged: the log begins behind the first record that was wanted */
    char text[256];    /* a sentence, unless clean or stopped */
};

/* dir: of one shard's log; an absent one is an empty log. identity: whose log it must be
 * (PS_ECLUSTER), or NULL for anybody's. `from` is 1 or more: the first record that is wanted. A
 * log that begins behind it is LOG_DAMAGED. -ENOMEM; what files answer. */
int log_reader_open(const struct file_ops *files, const char *dir,
                    const struct log_identity *identity, uint64_t from, struct log_reader **ret,
                    struct err *err) MUST_CHECK;

/* *ret: the next record, borrowed until the next call, or NULL at the end. A failure is about this
 * process or device (-ENOMEM, -EIO), not about what the files hold. */
int log_reader_next(struct log_reader *r, const struct log_record **ret, struct err *err)
    MUST_CHECK;

/* The log counts up to record `last`, whatever is behind: one of those that log_reader_next() gave, or the
 * one before the first. Behind `last` it has given one record, or only rows. Also at the end. */
void log_reader_stop(struct log_reader *r, uint64_t last);

/* Where the block with the record that was given last begins: "byte N of PATH". */
void log_reader_where(const struct log_reader *r, char *dst, size_t dst_bytes);

/* After log_reader_next() has given NULL, or log_reader_stop(). */
const struct log_end *log_reader_end(const struct log_reader *r);

/* Whose log it is, as its first segment says; NULL: there is none. */
const struct log_identity *log_reader_identity(const struct log_reader *r);

/* NULL is fine. */
void log_reader_free(struct log_reader *r);

const char *log_verdict_name(enum log_verdict verdict);

#endif
