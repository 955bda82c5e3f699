/*
 * What the shard's thread sees of its log: a bounded line of blocks that wait to be written.
 *
 *     reserve -> append -> [ block | block | open block ]  --take-->  writer  --tell-->  spare
 *
 * Appending is a copy into memory. Nothing here does I/O, waits or locks; log_thread.h puts a lock
 * around it, and a simulation calls it as it is.
 *
 *     state     meaning                                  reserve          append
 *     OPEN      there is room                            makes room       is kept
 *     FULL      max_bytes wait: the disk is slower       -EAGAIN: the     is kept: what was reserved
 *                                                        event waits      before, ends, rows
 *     DROPS     none, async: FULL, and the disk fails    0                is dropped and counted;
 *                                                                         /healthz is red
 *
 * FULL is left at half of max_bytes; under none and async also below max_bytes once the disk fails, as it may
 * never come to half. Under fsync, FULL stays FULL while the disk fails: what is not acknowledged is not lost. From DROPS only a success of the writer leads on.
 *
 * Events that nobody asks room for (shard_journal.h: GONE, REACH, ROWS) are kept while there is any
 * memory; a small block is held ready for the moment when there is none. Beyond that, and beyond twice
 * max_bytes, such a record is dropped, in any state.
 *
 * A dropped record is a gap: what stands behind it cannot be replayed from before it. `lost` says so
 * until a checkpoint of a later state is safe (log_queue_mend()). Under fsync nothing behind a gap is
 * acknowledged before that, however durable it is: a restart would not find it. So a gap has to be
 * answered with a checkpoint at once; replies wait for it, and no worker is told a lie.
 */
#ifndef SERVER_LOG_LOG_QUEUE_H
#define SERVER_LOG_LOG_QUEUE_H

#include "server/log/log_block.h"

enum log_durability {
    LOG_NONE,  /* written, never synced: outlives the process, not the machine */
    LOG_ASYNC, /* synced within an interval */
    LOG_FSYNC  /* acknowledged after it was synced */
};

enum log_queue_state { LOG_QUEUE_OPEN, LOG_QUEUE_FULL, LOG_QUEUE_DROPS };

enum log_writer_state { LOG_WRITER_OK, LOG_WRITER_FAILED };

/* What the writer has done, as it last told. */
struct log_progress {
    uint64_t written, durable; /* all records up to these numbers, but for gaps */
    /* none: records up to this one were written, not durable, and then a sync failed: they may be
     * lost, and are a gap. 0: there was no such failure. */
    uint64_t doubtful;
    enum log_writer_state state;
    struct err err; /* the failure; status 0 while OK */
    uint64_t failed_since_ms;
    uint64_t n_failures;                                             /* so far */
    uint64_t n_syncs, n_writes, n_segments, raw_bytes, stored_bytes; /* so far */
};

struct log_queue {
    enum log_durability durability;
    size_t block_bytes, max_bytes;

    struct log_block *first, **last; /* owned: waiting; the last one is open */
    struct log_block *open;          /* NULL: none, the next append takes `next` */
    struct log_block *next;          /* owned, empty: what reserve() has promised */
    struct log_block *small; /* owned, empty: for who does not ask, when memory is out */
    struct log_block *spare; /* owned, empty */
    size_t spare_bytes;
    size_t held_bytes; /* of all blocks that hold records, here and with the writer */

    uint64_t next_number;
    uint64_t kept_last; /* the last record that was not dropped */
    bool gap_next;      /* the next record has lost ones before it */
    enum log_queue_state state;
    uint64_t n_dropped;             /* so far */
    uint64_t lost_first, lost_last; /* of the gaps that no checkpoint has mended; 0: none */
    struct log_progress progress;
};

struct log_queue_config {
    enum log_durability durability;
    uint64_t next_number; /* of the next record */
    size_t block_bytes;   /* a block is given up for the next one at this size; 0: 1 MiB */
    size_t max_bytes;     /* memory of what waits; 0: 64 MiB. One append may pass it */
};

void log_queue_init(struct log_queue *q, const struct log_queue_config *config);
void log_queue_deinit(struct log_queue *q);

/* Makes room for the next record of an event that is asked for (shard_event_is_asked_for()), of
 * n_bytes (log_record_bytes()) or less; those of other events may come before it. To be asked before the
 * event happens, which must not after -EAGAIN (FULL: it waits, until that is left) or -ENOMEM. */
int log_queue_reserve(struct log_queue *q, size_t n_bytes) MUST_CHECK;

/* Copies the record; its number is given here, and returned. now_ms: monotonic, the writer's clock. */
uint64_t log_queue_append(struct log_queue *q, const struct log_record *record,
                          uint64_t now_ms);

/* Replies of events up to this number may be sent. */
uint64_t log_queue_acknowledged(const struct log_queue *q);

/* A checkpoint of the state behind record `number` (or of a walk that began there) is safe: gaps up to
 * there are none any more. */
void log_queue_mend(struct log_queue *q, uint64_t number);

/* For the writer: the blocks that have records, oldest first, or NULL. Takes them. */
struct log_block *log_queue_take(struct log_queue *q);

/* For the writer: blocks that it needs no more, and what it has done. Returns those that are of no
 * use here either: the writer's to free, when nobody waits for it. */
struct log_block *log_queue_give_back(struct log_queue *q, struct log_block *first,
                                      const struct log_progress *progress) MUST_CHECK;

#endif
