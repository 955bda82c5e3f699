/*
 * Takes checkpoints: the main thread's part, which asks every shard for its file and then says
 * that all are whole.
 *
 *     state        where it runs     leaves it by
 *     IDLE         -                 a wish
 *     NUMBERING    libuv's pool      the number of the new one
 *     WRITING      shard threads     the last shard's answer; a failed part fails the whole
 *     COMMITTING   libuv's pool      the manifest in place, old ones removed
 *
 * A wish that comes while one is under way gets the next one: what was acknowledged before the
 * wish is in it.
 */
#ifndef SERVER_KEEPER_H
#define SERVER_KEEPER_H

#include "common/mailbox.h"
#include "server/shard_thread.h"
#include "server/store/checkpoint.h"

struct keeper;

struct keeper_config {
    uv_loop_t *loop;              /* borrowed: the main thread's, */
    struct mailbox *mailbox;      /* borrowed: and its mailbox */
    const struct file_ops *files; /* borrowed */
    const char *data_dir;         /* borrowed */
    uint32_t node, n_nodes, keep;
    uint32_t n_shards;
    struct shard_thread *const *shards; /* borrowed */
};

/* How the last one ended, and how many there were. */
struct keeper_record {
    uint64_t n_done, n_failed;
    uint64_t number, unix_ms, n_rows, n_bytes; /* of the last that succeeded */
    struct err error;                          /* status 0 when the last one succeeded */
    uint64_t busy_since_unix_ms;               /* 0: nothing is under way */
};

typedef void (*keeper_on_done)(void *arg, const struct keeper_record *record);

struct keeper *keeper_new(const struct keeper_config *config) ON_MAIN;

/* Nothing may be under way. NULL is fine. */
void keeper_free(struct keeper *k) ON_MAIN;

/* `done` is called once, later, from the loop. */
void keeper_wish(struct keeper *k, keeper_on_done done, void *arg) ON_MAIN;

/* Drops the wishes of `arg`: their `done` is not called. */
void keeper_forget(struct keeper *k, const void *arg) ON_MAIN;

const struct keeper_record *keeper_record(const struct keeper *k) ON_MAIN;

#endif
