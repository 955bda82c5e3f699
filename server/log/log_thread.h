/*
 * A shard's log with a thread of its own that writes it: a lock around log_queue.h, and a loop
 * around log_writer.h. The shard's thread copies and goes on; it waits for the lock as long as the
 * writer moves pointers under it, never for a file.
 *
 * News come to the shard's loop through its mailbox, one mail at a time: more is durable (fsync; or what
 * log_thread_sync() asked for), the queue is FULL no more, the writer has failed or works again, there
 * is a gap. What they are is in log_thread_view().
 *
 *     before an event   log_thread_reserve(t, log_record_bytes(&record)); not 0: no event
 *     at the event      number = log_thread_append(t, &record, now_ms)
 *     its reply         once number <= view.acknowledged (at once, but for fsync)
 *     view.state FULL   reserve says -EAGAIN until it is OPEN: better no pushes are read. Whoever was told so hears
 *                       the news that it is full no more; the view may be newer than what reserve saw
 *     view.progress     .state FAILED: /healthz is red, with .err.text
 *     view.lost_first   not 0: there is a gap. /healthz is red; a checkpoint, at once (full or delta)
 *     a walk's end      log_thread_sync(t, through); a checkpoint once view.progress.durable has reached
 *                       it, and unless view.lost_last is above the walk's first record: then it is to
 *                       be dropped, and another begun
 *     it is safe        log_thread_mend(t, first); log_thread_cut(t, oldest kept checkpoint's first + 1)
 */
#ifndef SERVER_LOG_LOG_THREAD_H
#define SERVER_LOG_LOG_THREAD_H

#include "common/mailbox.h"
#include "common/thread_role.h"
#include "server/log/log_writer.h"

struct log_thread;

struct log_thread_config {
    struct log_writer_config writer;
    size_t block_bytes, max_bytes; /* log_queue.h */
    struct mailbox *mailbox;       /* borrowed: the shard loop's */
    void (*on_news)(void *owner);  /* on that loop */
    void *owner;                   /* borrowed */
};

struct log_view {
    uint64_t appended;     /* number of the last event */
    uint64_t acknowledged; /* replies of events up to this one may be sent */
    enum log_queue_state state;
    uint64_t held_bytes, n_dropped;
    uint64_t lost_first, lost_last; /* log_queue.h */
    struct log_progress progress;
    struct err cut_err; /* of the last cut */
};

/* Opens the log (log_writer_open()) and starts its thread. */
int log_thread_start(const struct log_thread_config *config, const struct log_end *end,
                     struct log_thread **ret, struct err *err) MUST_CHECK;

/* As log_queue_reserve() and log_queue_append(). */
int log_thread_reserve(struct log_thread *t, size_t n_bytes) ON_SHARD MUST_CHECK;
uint64_t log_thread_append(struct log_thread *t, const struct log_record *record,
                           uint64_t now_ms) ON_SHARD;

/* From any thread: a copy. */
void log_thread_view(struct log_thread *t, struct log_view *ret);

/* From any thread: segments below record `number` will be removed. */
void log_thread_cut(struct log_thread *t, uint64_t number);

/* From any thread. Whatever the durability, all records up to `number`, which is there, are synced soon:
 * view.progress.durable says when, and news come. Tried again while the writer fails. */
void log_thread_sync(struct log_thread *t, uint64_t number);

/* From any thread: as log_queue_mend(). */
void log_thread_mend(struct log_thread *t, uint64_t number);

/* From any thread: an operator has made room; a failed writer tries at once. */
void log_thread_retry(struct log_thread *t);

/* Writes and syncs what is there, ends the thread, frees. A failure: what was not acknowledged
 * is not in the log. No news come any more. The mailbox may be closed already, but not deinitialised;
 * if it is open, a last mail may stand in it until it runs. */
int log_thread_close(struct log_thread *t, struct err *err) MUST_CHECK;

#endif
