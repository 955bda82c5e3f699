/*
 * The log's queue on the shard's side: a bounded queue of blocks to be written.
 *
 *     reserve -> append -> [ block | block | open block ]  --drain-->  writer  --report-->  pool
 *
 * Appending is a copy into memory. Nothing here does I/O, waits or locks; wal_thread.h puts a lock
 * around it, and a simulation calls it as it is.
 *
 *     state     meaning                                  reserve          append
 *     OPEN      there is space                           reserves         is kept
 *     FULL      max_bytes wait: the disk stands still    -EAGAIN: the     is kept: what was reserved
 *                                                        event waits      before, ends, rows
 *     DROPS     none, async: FULL, and the disk fails    0                is dropped and counted;
 *                                                                         /healthz is red
 *
 * FULL ends at half of max_bytes; under none and async also below max_bytes once the disk fails, because half
 * may never be reached. Under fsync, FULL stays FULL while the disk fails, so no acknowledged record is lost.
 * DROPS ends only when the writer succeeds.
 *
 * Events without a reservation (shard_events.h: GONE, ADVANCE, ROWS) are kept while there is memory; a small
 * spare block serves when memory is out. Beyond that, and beyond twice max_bytes, such a record is dropped, in
 * any state.
 *
 * A dropped record is a gap: later records cannot be replayed from before it. `lost` reports the gap until a
 * checkpoint of a later state is durable (wal_queue_close_gap()). Under fsync no record behind a gap is
 * acknowledged before that, because a restart would not find it. So a gap needs a checkpoint at once; replies
 * wait for it.
 */
#ifndef SERVER_WAL_WAL_QUEUE_H
#define SERVER_WAL_WAL_QUEUE_H

#include "server/wal/wal_block.h"
#include "server/wal/wal_pace.h"

enum wal_durability {
    WAL_NONE,  /* written, never synced: outlives the process, not the machine */
    WAL_ASYNC, /* synced within an interval */
    WAL_FSYNC  /* acknowledged after it was synced */
};

enum wal_queue_state { WAL_QUEUE_OPEN, WAL_QUEUE_FULL, WAL_QUEUE_DROPS };

enum wal_writer_state { WAL_WRITER_OK, WAL_WRITER_FAILED };

/* The writer's progress, as last reported. */
struct wal_progress {
    uint64_t written, durable; /* all records up to these numbers, but for gaps */
    /* none: records up to this one were written, not durable, and then a sync failed: they may be
     * lost, and are a gap. 0: there was no such failure. */
    uint64_t doubtful;
    enum wal_writer_state state;
    struct err err; /* the failure; status 0 while OK */
    uint64_t failed_since_ms;
    uint64_t n_failures;                                             /* so far */
    uint64_t n_syncs, n_writes, n_segments, raw_bytes, stored_bytes; /* so far */
    /* The disk's speed, and in bytes of records before compression; 0: not known (wal_portion.h). */
    uint64_t disk_bytes_per_s, raw_bytes_per_s;
};

struct wal_queue {
    enum wal_durability durability;
    size_t block_bytes, max_bytes;

    struct wal_block *first, **last; /* owned: waiting; the last one is open */
    struct wal_block *open;          /* NULL: none, the next append takes `next` */
    /* These two only reserve and append touch, so the writer's lock is not needed for them. */
    struct wal_block *next; /* owned, empty: the block that reserve() has promised */
    struct wal_block
        *small; /* owned, empty: for records without a reservation, when memory is out */
    struct wal_block *pool;              /* owned, empty */
    struct wal_block *surplus;           /* owned, empty: the writer's to free */
    size_t pool_bytes, pool_least_bytes; /* now; since swept_ms */
    uint64_t appended_ms, swept_ms;      /* the last record's moment */
    size_t held_bytes; /* of all blocks that hold records, here and with the writer */

    uint64_t next_number;
    uint64_t kept_last;                 /* the last record that was not dropped */
    bool gap_next;                      /* the next record has lost ones before it */
    bool segment_next;                  /* and begins a segment */
    _Atomic enum wal_queue_state state; /* written under the lock, if there is one */
    uint64_t n_dropped;                 /* so far */
    uint64_t lost_first, lost_last;     /* of the gaps that no checkpoint has mended; 0: none */
    struct wal_progress progress;
    struct wal_pace
        pace; /* bytes_per_s: written under the lock; the rest only append touches */
};

struct wal_queue_config {
    enum wal_durability durability;
    uint64_t next_number; /* of the next record */
    size_t block_bytes;   /* a block is given up for the next one at this size; 0: 1 MiB */
    size_t max_bytes;     /* memory of waiting records; 0: 64 MiB. One append may pass it */
};

void wal_queue_init(struct wal_queue *q, const struct wal_queue_config *config);
void wal_queue_deinit(struct wal_queue *q);

/* Reserves space for the next record of an event that reserves (shard_event_is_asked_for()), of n_bytes
 * (wal_record_bytes()) or less; records of other events may come before it. Called before the event, which must
 * not happen after -EAGAIN (FULL: it waits until FULL ends) or -ENOMEM. */
int wal_queue_reserve(struct wal_queue *q, size_t n_bytes) MUST_CHECK;

/* True if wal_queue_reserve() would return 0 and change nothing, as an earlier reservation still stands. Needs no
 * lock on the thread that reserves and appends. */
bool wal_queue_has_reserved(const struct wal_queue *q, size_t n_bytes);

/* Copies the record, numbers it, and returns the number. now_ms: monotonic, the writer's clock. */
uint64_t wal_queue_append(struct wal_queue *q, const struct wal_record *record,
                          uint64_t now_ms);

/* So long after now_ms the next push may come, while the disk is slower than pushes (wal_pace.h); 0: at once. Nothing
 * refuses one that comes earlier. Needs no lock on the thread that appends. */
uint64_t wal_queue_wait_ms(const struct wal_queue *q, uint64_t now_ms);

/* The next record begins a segment. A checkpoint begins between two segments: all before it can then be removed, and
 * damage there is no damage to what is needed. */
void wal_queue_begin_segment(struct wal_queue *q);

/* Replies of events up to this number may be sent. */
uint64_t wal_queue_acknowledged(const struct wal_queue *q);

/* The disk has all records up to this number. */
uint64_t wal_queue_whole(const struct wal_queue *q);

/* A checkpoint of the state behind record `number` (or of a scan that began there) is durable: closes gaps up
 * to `number`. */
void wal_queue_close_gap(struct wal_queue *q, uint64_t number);

/* For the writer: takes the blocks that have records, oldest first; NULL: none. */
struct wal_block *wal_queue_drain(struct wal_queue *q);

/* For the writer: returns used blocks and reports progress. Returns the surplus blocks, which the writer frees
 * outside the lock. */
struct wal_block *wal_queue_recycle(struct wal_queue *q, struct wal_block *first,
                                    const struct wal_progress *progress) MUST_CHECK;

#endif
