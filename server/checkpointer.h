/*
 * Takes checkpoints: the main thread's part. It requests a file from every shard and commits the
 * manifest when all are complete.
 *
 *     state        where it runs     leaves it by
 *     IDLE         -                 a request
 *     NUMBERING    libuv's pool      the number of the new checkpoint
 *     WRITING      shard threads     the last shard's reply, its file and its log being durable; one
 *                                    failed file fails the checkpoint
 *     COMMITTING   libuv's pool      the manifest in place, old checkpoints removed
 *     RELEASING    shard threads     every shard has been notified; logs are truncated
 *
 * Most hold only what has changed since the one before (deltas).
 *
 * One at a time: requests that come meanwhile share the next checkpoint, so that everything that was
 * acknowledged before a request is in it. If no byte moves for limit_ms, the requests are answered
 * with a failure; the checkpoint goes on, and counts as done, too, if it succeeds. The files of a
 * failed one are removed at once: the disk may be full.
 */
#ifndef SERVER_CHECKPOINTER_H
#define SERVER_CHECKPOINTER_H

#include "common/mailbox.h"
#include "server/checkpoint/checkpoint.h"
#include "server/settings.h"
#include "server/shard_thread.h"

#define CHECKPOINTER_LIMIT_MS (UINT64_C(10) * 60 * 1000) /* without a byte that moves */

struct checkpointer;

struct checkpointer_config {
    uv_loop_t *loop;                     /* borrowed: the main thread's, */
    struct mailbox *mailbox;             /* borrowed: and its mailbox */
    const struct file_ops *files;        /* borrowed */
    const char *data_dir;                /* borrowed */
    struct shard_file_identity identity; /* of the node's first shard */
    uint32_t n_nodes, keep;
    uint32_t n_deltas_max; /* in a row */
    uint64_t limit_ms;     /* 0: CHECKPOINTER_LIMIT_MS */
    uint32_t n_shards;
    struct shard_thread *const *shards; /* borrowed */
};

/* The result of the last one, and how many there were. */
struct checkpointer_record {
    uint64_t n_done, n_failed;
    uint64_t number, unix_ms, n_rows, n_bytes; /* of the last that succeeded */
    uint64_t base, took_ms;      /* the same: the base of a delta (0: full), the duration */
    struct err error;            /* status 0 when the last one succeeded */
    uint64_t busy_since_unix_ms; /* 0: no checkpoint runs */
    uint64_t busy_number;        /* of the one that runs; 0: it has none yet */
    uint64_t until_unix_ms;      /* when it will count as late, unless it moves; 0: it does */
    uint64_t every_ms;           /* of the trigger; 0: none, or not asked yet */
    uint64_t log_max_bytes;      /* of the trigger, as the disk allows; 0: not asked yet */
};

typedef void (*checkpointer_on_done)(void *arg, const struct checkpointer_record *record);

struct checkpointer *checkpointer_new(const struct checkpointer_config *config) ON_MAIN;

/* The newest that is there before any is taken, for the record. Reads its manifest. */
void checkpointer_find_last(struct checkpointer *k) ON_MAIN;

/* Before the shards end: the checkpoint that runs goes no step further, no other begins, and no request is answered any
 * more. NULL is fine. */
void checkpointer_stop(struct checkpointer *k) ON_MAIN;

/* None may run, unless it was stopped and the loop has ended. NULL is fine. */
void checkpointer_free(struct checkpointer *k) ON_MAIN;

/* `done` is called once, later, from the loop. */
void checkpointer_request(struct checkpointer *k, checkpointer_on_done done, void *arg) ON_MAIN;

/* Drops the requests of `arg`: their `done` is not called. */
void checkpointer_cancel(struct checkpointer *k, const void *arg) ON_MAIN;

/* A few times a second while the node serves: answers the requests for a checkpoint that is late.
 * `now_ms`: monotonic, as below. */
void checkpointer_tick(struct checkpointer *k, uint64_t now_ms) ON_MAIN;

/* Before the first request: the base of the next checkpoint. */
struct checkpointer_start {
    uint64_t epoch; /* of the logs (server/recovery/timeline.h) */
    /* The first checkpoint has the epoch's number, which checkpoint_next() gave; it is written as fast as it can be,
     * and removes nothing. */
    bool begins_epoch;
    /* Else the checkpoint that the shards were loaded from, the n_deltas'th behind a full one: the
     * next may be a delta to it. 0: none. */
    uint64_t number;
    uint32_t n_deltas;
};
void checkpointer_begin(struct checkpointer *k, const struct checkpointer_start *from) ON_MAIN;

/* True if no checkpoint runs, and none has since `since_ms` and for every_ms. */
bool checkpointer_is_due(const struct checkpointer *k, uint64_t since_ms, uint64_t every_ms,
                         uint64_t now_ms) ON_MAIN;

const struct checkpointer_record *checkpointer_record(const struct checkpointer *k) ON_MAIN;

/* One line in the log, of one that did not fail. */
void checkpointer_log(const struct checkpointer_record *record);

/*
 * The reasons for a checkpoint without a request: the time, the length of the logs, or records that a log lacks.
 *
 * Logs are kept from the oldest of `keep` checkpoints on, so they take up to keep + 1 times log-max. On a disk with
 * less space than twice that, a checkpoint comes earlier: the logs take half of the space, and the other half is left
 * for the checkpoints, without which no log can be removed.
 */
struct checkpointer_trigger {
    const struct settings *settings; /* borrowed */
    uint64_t since_ms;               /* monotonic: when the node began to serve */
    uint64_t found_bytes;            /* of logs that the start has read behind its checkpoint */
    uint64_t log_bytes;   /* those written when the last checkpoint that succeeded was due, */
    uint64_t tried_bytes; /* and when the last one was */
    uint64_t n_done;      /* checkpoints that had succeeded then */
    uint64_t
        tried_ms; /* when one was due as a log was long, or had a gap; 0: one has succeeded since */
    uint64_t
        space_bytes; /* what is free on the disk, and what logs and checkpoints have; 0: not known */
    bool is_short; /* of space: a line of the log has said so */
};

/* True if no checkpoint runs, and the next one is due. */
bool checkpointer_is_triggered(struct checkpointer *k, struct checkpointer_trigger *t,
                               uint64_t now_ms) ON_MAIN;

#endif
