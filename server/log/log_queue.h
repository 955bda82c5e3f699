/*
 * What the shard's thread sees of its log: a bounded line of blocks that wait to be written.
 *
 *     reserve -> append -> [ block | block | open block ]  --take-->  writer  --tell-->  spare
 *
 * Appending is a copy into memory. Nothing here does I/O, waits or locks; log_thread.h puts a lock
 * around it, and a simulation calls it as it is.
 *
 *     state     meaning                                  appends          the shard
 *     OPEN      there is room                            are kept         goes on
 *     FULL      max_bytes wait: the disk is slower       are kept         is to read no pushes until
 *                                                                         OPEN
 *     DROPS     none, async: FULL, and the disk fails    are dropped and  goes on; /healthz is red
 *                                                        counted
 *
 * FULL is left at half of max_bytes. Under fsync, FULL stays FULL while the disk fails: what is
 * not acknowledged is not lost. From DROPS only a success of the writer leads on; the log then has
 * a gap, and is of use again from the next checkpoint on.
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
    uint64_t written, durable; /* all records up to these numbers */
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
    struct log_block *spare;         /* owned, empty */
    size_t spare_bytes;
    size_t held_bytes; /* of all blocks that hold records, here and with the writer */

    uint64_t next_number;
    bool gap_next; /* the next record has lost ones before it */
    enum log_queue_state state;
    uint64_t n_dropped, dropped_last; /* so far; the number of the last one */
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

/* Makes room, so that the next appends, n_bytes (log_record_bytes()) together, cannot fail.
 * -ENOMEM: to be asked before the event happens, which then must not. */
int log_queue_reserve(struct log_queue *q, size_t n_bytes) MUST_CHECK;

/* Copies the record (its number is given here, and returned) into what was reserved. now_ms:
 * monotonic, the writer's clock. */
uint64_t log_queue_append(struct log_queue *q, const struct log_record *record,
                          uint64_t now_ms);

/* Replies of events up to this number may be sent. */
uint64_t log_queue_acknowledged(const struct log_queue *q);

/* For the writer: the blocks that have records, oldest first, or NULL. Takes them. */
struct log_block *log_queue_take(struct log_queue *q);

/* For the writer: blocks that it needs no more, and what it has done. Returns those that are of no
 * use here either: the writer's to free, when nobody waits for it. */
struct log_block *log_queue_give_back(struct log_queue *q, struct log_block *first,
                                      const struct log_progress *progress) MUST_CHECK;

#endif
