/*
 * A shard's write-ahead log on its loop. Every event that changes the shard is recorded, the log's own thread writes
 * the records, and replies wait for them as --durability demands (reply_queue.h).
 *
 *     shard_wal_open()     once the shard is as it was (restore.c)
 *     ...                  events, notifications of the writer
 *     shard_wal_close()    writes what is there
 *
 * A standby's log takes its primary's records as they are, under the same numbers, and no events:
 *
 *     shard_wal_open()     with `follows`
 *     ...                  shard_wal_reserve_copy(), shard_wal_copy()
 *     shard_wal_lead()     the shard is the primary's from here on: its events are recorded
 */
#ifndef SERVER_SHARD_WAL_H
#define SERVER_SHARD_WAL_H

#include "server/requests/fetch_handler.h"
#include "server/requests/reply_queue.h"
#include "server/wal/wal_thread.h"

struct shard_wal;

struct shard_wal_config {
    struct shard *shard;         /* borrowed */
    struct reply_queue *replies; /* borrowed */
    struct mailbox *mailbox;     /* borrowed: the shard loop's */
    uv_timer_t *
        timer; /* borrowed, of that loop, for this alone: spreads pushes (wal_pace.h); NULL: nothing does */
    const struct wal_writer_config *writer;
    size_t queue_max_bytes; /* wal_queue.h; 0: its own */
    void (*on_space)(
        void *owner); /* the log took no events, or no pushes, and takes them again */
    void (*on_progress)(void *owner); /* each news of the writer; NULL: nobody asks */
    void *owner;                      /* borrowed */
    bool follows;                     /* records come from a primary, until shard_wal_lead() */
};

/* Opens the log behind *end, and subscribes to the shard's events. Statuses of wal_thread_start(). */
int shard_wal_open(const struct shard_wal_config *config, const struct wal_end *end,
                   struct shard_wal **ret, struct err *err) ON_SHARD MUST_CHECK;

/* 0: shard_wal_copy() may follow, of a record of so many bytes. -EAGAIN: the disk fails, or is behind by as much as may
 * wait; on_progress comes before it is different. -ENOMEM. */
int shard_wal_reserve_copy(struct shard_wal *l, size_t n_bytes) ON_SHARD MUST_CHECK;

/* Appends a primary's record, and returns its number: one more than the last one's. */
uint64_t shard_wal_copy(struct shard_wal *l, const struct wal_record *record) ON_SHARD;

void shard_wal_lead(struct shard_wal *l) ON_SHARD;

/* The disk has the records up to this one, but for those that the log has lost. */
uint64_t shard_wal_durable(const struct shard_wal *l) ON_SHARD;

/* The disk has all records up to this one: a restart comes back with them. */
uint64_t shard_wal_whole(const struct shard_wal *l) ON_SHARD;

/* The disk's failure, as a sentence; "" while it works. */
const char *shard_wal_failure(const struct shard_wal *l) ON_SHARD;

/* The number of the last record: all that the shard is, is in records up to it. */
uint64_t shard_wal_last(const struct shard_wal *l) ON_SHARD;

/* The next event's record begins a segment: a checkpoint's scan begins. */
void shard_wal_begin_segment(struct shard_wal *l) ON_SHARD;

/* Soon, whatever --durability says, all records up to `number` are on the disk. */
void shard_wal_sync(struct shard_wal *l, uint64_t number) ON_SHARD;

/* Checks that the log from record `first` + 1 through `through` is whole and on the disk, as a checkpoint needs it. 0:
 * it is; -EAGAIN: not yet; else it will not be, with a sentence. */
int shard_wal_await(struct shard_wal *l, uint64_t first, uint64_t through, struct err *err)
    ON_SHARD MUST_CHECK;

/* A checkpoint whose scan began behind record `first` is safe, and recovery needs no record below
 * `needed`. */
void shard_wal_checkpointed(struct shard_wal *l, uint64_t first, uint64_t needed) ON_SHARD;

/* The standby's part gets each record from now on; NULL: nobody does. It is borrowed. */
void shard_wal_ship(struct shard_wal *l, struct fetch_handler *fetches) ON_SHARD;

/* No segment with this record or a later one is removed; UINT64_MAX: any may be. */
void shard_wal_pin(struct shard_wal *l, uint64_t number) ON_SHARD;

/* True while pushes wait for the log's disk, or for a standby that catches up; fills *ret except its name (who). False:
 * both keep up, or the disk's speed is not known yet. */
bool shard_wal_is_bound(struct shard_wal *l, struct stats_wait *ret) ON_SHARD;

void shard_wal_report(struct shard_wal *l, struct stats_log *ret, char ret_error[static 200])
    ON_SHARD;

/* Unsubscribes from the shard's events. Fails if records that are not durable could not be written. */
int shard_wal_close(struct shard_wal *l, struct err *err) ON_SHARD MUST_CHECK;

#endif
