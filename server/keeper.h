/*
 * Takes checkpoints: the main thread's part, which asks every shard for its file and then says
 * that all are whole.
 *
 *     state        where it runs     leaves it by
 *     IDLE         -                 a wish
 *     NUMBERING    libuv's pool      the number of the new one
 *     WRITING      shard threads     the last shard's answer, its file and its log being safe; a
 *                                    failed part fails the whole
 *     COMMITTING   libuv's pool      the manifest in place, old ones removed
 *     RELEASING    shard threads     every shard knows; logs are cut
 *
 * Most hold only what has changed since the one before (deltas).
 *
 * One at a time: wishes that come while one is under way share the next one, so that what was
 * acknowledged before a wish is in it. One that does not move for as long as its limit is told to have
 * failed; it goes on all the same, and counts as done, too, if it ends well. What a failed one has
 * written goes at once: the disk may be full.
 */
#ifndef SERVER_KEEPER_H
#define SERVER_KEEPER_H

#include "common/mailbox.h"
#include "server/shard_thread.h"
#include "server/store/checkpoint.h"

#define KEEPER_LIMIT_MS (UINT64_C(10) * 60 * 1000) /* without a byte that moves */

struct keeper;

struct keeper_config {
    uv_loop_t *loop;               /* borrowed: the main thread's, */
    struct mailbox *mailbox;       /* borrowed: and its mailbox */
    const struct file_ops *files;  /* borrowed */
    const char *data_dir;          /* borrowed */
    struct part_identity identity; /* of the node's first shard */
    uint32_t n_nodes, keep;
    uint32_t n_deltas_max; /* in a row */
    uint64_t limit_ms;     /* 0: KEEPER_LIMIT_MS */
    uint32_t n_shards;
    struct shard_thread *const *shards; /* borrowed */
};

/* How the last one ended, and how many there were. */
struct keeper_record {
    uint64_t n_done, n_failed;
    uint64_t number, unix_ms, n_rows, n_bytes; /* of the last that succeeded */
    uint64_t base, took_ms; /* the same: what it is a delta to (0: full), how long it took */
    struct err error;       /* status 0 when the last one succeeded */
    uint64_t busy_since_unix_ms; /* 0: nothing is under way */
    uint64_t busy_number;        /* of the one under way; 0: it has none yet */
    uint64_t
        until_unix_ms; /* when it will be told to have failed, unless it moves; 0: it has been */
};

typedef void (*keeper_on_done)(void *arg, const struct keeper_record *record);

struct keeper *keeper_new(const struct keeper_config *config) ON_MAIN;

/* Nothing may be under way. NULL is fine. */
void keeper_free(struct keeper *k) ON_MAIN;

/* `done` is called once, later, from the loop. */
void keeper_wish(struct keeper *k, keeper_on_done done, void *arg) ON_MAIN;

/* Drops the wishes of `arg`: their `done` is not called. */
void keeper_forget(struct keeper *k, const void *arg) ON_MAIN;

/* A few times a second while the node serves: ends the patience of those who wait for a
 * checkpoint that takes too long. `now_ms`: monotonic, as below. */
void keeper_tick(struct keeper *k, uint64_t now_ms) ON_MAIN;

/* Before the first wish: what the next checkpoint stands on. */
struct keeper_start {
    uint64_t epoch; /* of the logs (server/durable/epochs.h) */
    bool
        begins_epoch; /* the first checkpoint has its number, for which checkpoint_next() was asked; it is written
                       * as fast as it can be, and removes nothing */
    /* Else the checkpoint that the shards were loaded from, the n_deltas'th behind a full one: the
     * next may be a delta to it. 0: none. */
    uint64_t number;
    uint32_t n_deltas;
};
void keeper_begin(struct keeper *k, const struct keeper_start *from) ON_MAIN;

bool keeper_is_idle(const struct keeper *k) ON_MAIN;

/* Is nothing under way, and has nothing been since `since_ms` and for every_ms? */
bool keeper_is_due(const struct keeper *k, uint64_t since_ms, uint64_t every_ms,
                   uint64_t now_ms) ON_MAIN;

const struct keeper_record *keeper_record(const struct keeper *k) ON_MAIN;

/* One line in the log, of one that did not fail. */
void keeper_tell(const struct keeper_record *record);

#endif
