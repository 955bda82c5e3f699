/*
 * The writer of a log: drains blocks from the queue, writes them to segments, syncs, and reports the last
 * durable record. A state machine without a thread, with files and time as arguments:
 * wal_thread.h runs it, and so do tests and the simulation.
 *
 *     loop:  wal_writer_drain(w, queue)         under the queue's lock; moves pointers
 *            wal_writer_work(w, now_ms, ...)   writes and syncs what is due
 *            wal_writer_report(w, queue)         under the lock again
 *
 *     block:  waiting -> kept, unwritten -> kept, written -> released
 *                                     none: ^            ^ async, fsync: when it was synced
 *
 *     state    on                                           then
 *     OK       a write, sync, create or rotation that fails  FAILED
 *     FAILED   retry_ms later                                all that is kept is written to a new
 *                                                            segment, and synced: OK, else FAILED
 *
 * Invariants:
 *   1. All drained records behind `durable` (none: behind `written`) are kept, so a failure costs no record
 *      while the process lives.
 *   2. A file whose write or sync has failed is not touched again: after a failed sync the kernel
 *      may have dropped the pages and call them clean ("fsyncgate"). Its doubtful records are written to
 *      another file.
 *   3. `durable` only grows, and only by a sync that succeeded of a file whose name was synced.
 *   4. A segment is synced before the next one is begun (async, fsync).
 *   5. none: written records are not kept. wal_writer_sync() reopens their segments; if that fails,
 *      progress.doubtful is the last record that may be lost, and the next segment has a gap before it.
 */
#ifndef SERVER_WAL_WAL_WRITER_H
#define SERVER_WAL_WAL_WRITER_H

#include "server/wal/wal_queue.h"
#include "server/wal/wal_reader.h"
#include "server/wal/wal_segment.h"

struct wal_writer;

enum wal_zstd { WAL_ZSTD_OFF, WAL_ZSTD_WHERE_IT_PAYS };

struct wal_writer_config {
    const struct file_ops *files; /* borrowed */
    char dir[WAL_PATH_MAX - 64];  /* of this shard's log alone; made */
    char control[WAL_PATH_MAX];   /* wal_control.h; "": none is written */
    struct wal_identity identity;
    enum wal_durability durability;
    enum wal_zstd zstd;
    uint32_t interval_ms; /* async: a record is synced this long after it was taken; 0: 1000 */
    uint32_t retry_ms;    /* after a failure; 0: 1000 */
    uint64_t segment_bytes;            /* at this size the next segment begins; 0: 64 MiB */
    uint64_t (*clock_ns)(void *state); /* how long the disk takes; NULL: clock_mono_ns() */
    void *clock_state;                 /* borrowed */
};

/*
 * Opens the log behind a reader's end (clean, torn, with a gap, or stopped). Syncs the records before it, archives
 * unreachable segments (NAME.psl.unread), and begins a segment with the record after end->last. PS_ECORRUPT for a
 * corrupt log; -ENOMEM; statuses of the file system.
 */
int wal_writer_open(const struct wal_writer_config *config, const struct wal_end *end,
                    uint64_t unix_ms, struct wal_writer **ret, struct err *err) MUST_CHECK;

/* NULL is fine. Kept records are lost: call wal_writer_close() before. */
void wal_writer_free(struct wal_writer *w);

/* Drains the queue; wal_writer_work() must follow. */
void wal_writer_drain(struct wal_writer *w, struct wal_queue *q);

/* Returns the blocks that are not needed, and reports the progress. */
void wal_writer_report(struct wal_writer *w, struct wal_queue *q);

/* Does the work due at now_ms (monotonic), up to the end of a portion (wal_portion.h), so that memory is given back
 * before the rest is written. *ret_due_ms: the time of the next work if no records come; UINT64_MAX: never; 0: there
 * is a rest. */
void wal_writer_work(struct wal_writer *w, uint64_t now_ms, uint64_t unix_ms,
                     uint64_t *ret_due_ms);

/* With any durability: the next wal_writer_work() syncs all drained records, or a portion of them, and the following
 * calls sync the rest. After a failure, the retry does. For the end of a checkpoint's scan. */
void wal_writer_sync(struct wal_writer *w);

/* Records below `number` are not needed any more: if the segment that is being written has no others, the next
 * wal_writer_work() begins another, so that wal_writer_truncate() can remove it. */
void wal_writer_leave(struct wal_writer *w, uint64_t number);

/* Writes all drained records, syncs them (async, fsync), and marks the log as closed. On failure, progress->err has the
 * reason. */
int wal_writer_close(struct wal_writer *w, uint64_t now_ms, uint64_t unix_ms) MUST_CHECK;

/* Removes segments that have only records below `number`, the first record still needed. Segments that cannot be
 * removed stay for the next call; returns the first failure. */
int wal_writer_truncate(struct wal_writer *w, uint64_t number, struct err *err) MUST_CHECK;

const struct wal_progress *wal_writer_progress(const struct wal_writer *w);

#endif
