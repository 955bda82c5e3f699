/*
 * A shard's log and its writer thread: a lock around wal_queue.h, and a loop around wal_writer.h. The shard's
 * thread copies records; it waits for the lock while the writer moves pointers, never for a file.
 *
 * Notifications reach the shard's loop through its mailbox, one message at a time: more records are durable
 * (fsync, or wal_thread_sync()), the queue is no longer FULL, the writer has failed or works again, there is a
 * gap. wal_thread_view() has the details.
 *
 *     before an event   wal_thread_reserve(t, wal_record_bytes(&record)); if not 0, the event must not happen
 *     at the event      number = wal_thread_append(t, &record, now_ms)
 *     the next push     not before wal_thread_wait_ms(t, now_ms) is 0
 *     its reply         once number <= view.acknowledged (at once, but for fsync)
 *     view.state FULL   reserve returns -EAGAIN until it is OPEN: read no pushes. A notification follows each
 *                       -EAGAIN when FULL ends; the view may be newer than the state that reserve saw
 *     view.progress     .state FAILED: /healthz is red, with .err.text
 *     view.lost_first   not 0: there is a gap. /healthz is red; take a checkpoint at once (full or delta)
 *     a scan's end      wal_thread_sync(t, through); commit the checkpoint once view.progress.durable has
 *                       reached it. If view.lost_last is above the scan's first record, drop the scan and
 *                       begin another
 *     it is durable     wal_thread_close_gap(t, first); wal_thread_truncate(t, oldest kept checkpoint's first + 1)
 */
#ifndef SERVER_WAL_WAL_THREAD_H
#define SERVER_WAL_WAL_THREAD_H

#include "common/mailbox.h"
#include "common/thread_role.h"
#include "server/wal/wal_writer.h"

struct wal_thread;

struct wal_thread_config {
    struct wal_writer_config writer;
    size_t block_bytes, max_bytes;    /* wal_queue.h */
    struct mailbox *mailbox;          /* borrowed: the shard loop's */
    void (*on_progress)(void *owner); /* on that loop */
    void *owner;                      /* borrowed */
};

struct wal_thread_view {
    uint64_t appended;     /* number of the last event */
    uint64_t acknowledged; /* replies of events up to this one may be sent */
    uint64_t whole;        /* the disk has all up to this one */
    enum wal_queue_state state;
    uint64_t held_bytes, n_dropped;
    uint64_t lost_first, lost_last; /* wal_queue.h */
    struct wal_progress progress;
    struct err truncate_err; /* of the last truncation */
};

/* Opens the log (wal_writer_open()) and starts its thread. */
int wal_thread_start(const struct wal_thread_config *config, const struct wal_end *end,
                     struct wal_thread **ret, struct err *err) MUST_CHECK;

/* As wal_queue_reserve() and wal_queue_append(). Reserving takes the lock once a block: one lock per event. Both on one
 * thread. */
int wal_thread_reserve(struct wal_thread *t, size_t n_bytes) ON_SHARD MUST_CHECK;
uint64_t wal_thread_append(struct wal_thread *t, const struct wal_record *record,
                           uint64_t now_ms) ON_SHARD;

/* As wal_queue_wait_ms(), on the thread that appends; 0 also once the disk has caught up, before that time is over. */
uint64_t wal_thread_wait_ms(struct wal_thread *t, uint64_t now_ms) ON_SHARD;

/* As wal_queue_begin_segment(). */
void wal_thread_begin_segment(struct wal_thread *t) ON_SHARD;

/* From any thread: a copy. */
void wal_thread_view(struct wal_thread *t, struct wal_thread_view *ret);

/* From any thread: segments below record `number` will be removed. */
void wal_thread_truncate(struct wal_thread *t, uint64_t number);

/* From any thread. With any durability, syncs all records up to the existing record `number` soon; a notification
 * follows when view.progress.durable has it. Retried while the writer fails. */
void wal_thread_sync(struct wal_thread *t, uint64_t number);

/* From any thread: as wal_queue_close_gap(). */
void wal_thread_close_gap(struct wal_thread *t, uint64_t number);

/* Writes and syncs all records, ends the thread, frees. After a failure, unacknowledged records are not in the
 * log. No notifications follow. The mailbox may be closed already, but not deinitialised; if it is open, a last
 * message may stay in it until it runs. */
int wal_thread_close(struct wal_thread *t, struct err *err) MUST_CHECK;

#endif
