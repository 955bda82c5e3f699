/*
 * The side of a log that touches files: takes blocks from the queue, writes them to segments,
 * syncs, and says up to which record all is on the disk. A state machine on one thread, with files
 * and time as arguments: log_thread.h runs it, a simulation can.
 *
 *     loop:  log_writer_take(w, queue)         under the queue's lock; moves pointers
 *            log_writer_work(w, now_ms, ...)   writes and syncs what is due
 *            log_writer_tell(w, queue)         under the lock again
 *
 *     block:  waiting -> kept, unwritten -> kept, written -> released, told
 *                                     none: ^            ^ async, fsync: when it was synced
 *
 *     state    on                                           then
 *     OK       a write, sync, create or rotation that fails  FAILED
 *     FAILED   retry_ms later, log_writer_retry()            all that is kept is written to a new
 *                                                            segment, and synced: OK, else FAILED
 *
 * Invariants:
 *   1. Kept are all records behind `durable` (none: behind `written`) that have been taken, so a
 *      failure costs no record while the process lives.
 *   2. A file whose write or sync has failed is not touched again: after a failed sync the kernel
 *      may have dropped the pages and call them clean ("fsyncgate"). What it may not hold is
 *      written to another file.
 *   3. `durable` only grows, and only by a sync that succeeded of a file whose name was synced.
 *   4. A segment is synced before the next one is begun (async, fsync).
 *   5. none: what was written is kept no more. log_writer_sync() opens the segments again that hold it;
 *      where that fails, progress.doubtful says what may be lost, and the next segment has a gap before
 *      it.
 */
#ifndef SERVER_LOG_LOG_WRITER_H
#define SERVER_LOG_LOG_WRITER_H

#include "server/log/log_queue.h"
#include "server/log/log_reader.h"
#include "server/log/log_segment.h"

struct log_writer;

enum log_zstd { LOG_ZSTD_OFF, LOG_ZSTD_WHERE_IT_PAYS };

struct log_writer_config {
    const struct file_ops *files; /* borrowed */
    char dir[LOG_PATH_MAX - 64];  /* of this shard's log alone; made */
    struct log_identity identity;
    enum log_durability durability;
    enum log_zstd zstd;
    uint32_t interval_ms; /* async: a record is synced this long after it was taken; 0: 1000 */
    uint32_t retry_ms;    /* after a failure; 0: 1000 */
    uint64_t
        segment_bytes; /* a segment that has as many is the last one's predecessor; 0: 64 MiB */
};

/*
 * Opens the log behind what a reader has found in it (clean, torn, with a gap, or stopped): syncs that,
 * sets aside (NAME.psl.unread) segments that no reader will reach any more, and begins a segment with
 * the record after end->last. PS_ECORRUPT for a damaged log; -ENOMEM; what files answer.
 */
int log_writer_open(const struct log_writer_config *config, const struct log_end *end,
                    uint64_t unix_ms, struct log_writer **ret, struct err *err) MUST_CHECK;

/* NULL is fine. Kept records are gone with it: log_writer_close() before. */
void log_writer_free(struct log_writer *w);

/* Takes what the queue has: to be followed by log_writer_work(). */
void log_writer_take(struct log_writer *w, struct log_queue *q);

/* Gives back the blocks that are not needed, and tells the progress. */
void log_writer_tell(struct log_writer *w, struct log_queue *q);

/* Does what is due at now_ms (monotonic). *ret_due_ms: when there will be more to do, if nothing
 * comes; UINT64_MAX: never. */
void log_writer_work(struct log_writer *w, uint64_t now_ms, uint64_t unix_ms,
                     uint64_t *ret_due_ms);

/* Whatever the durability: the next log_writer_work() syncs all that was taken; where that fails, the one
 * that tries again. For the end of a checkpoint's walk. */
void log_writer_sync(struct log_writer *w);

/* The next log_writer_work() tries again, whatever the time. */
void log_writer_retry(struct log_writer *w);

/* Writes all that was taken, syncs it (async, fsync), and says in the file that it was closed.
 * Failure: as progress->err. */
int log_writer_close(struct log_writer *w, uint64_t now_ms, uint64_t unix_ms) MUST_CHECK;

/* Removes segments that hold only records below `number`, the first that is still needed. What
 * cannot be removed stays for the next time: the first failure is told. */
int log_writer_cut(struct log_writer *w, uint64_t number, struct err *err) MUST_CHECK;

const struct log_progress *log_writer_progress(const struct log_writer *w);

#endif
