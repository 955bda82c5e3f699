/*
 * Memory for rows that are being loaded, touched before they come. Of the time that a start takes the kernel
 * has half: it clears every page that is touched for the first time (server/ahead.h). While a shard is
 * loaded its loop does not run, so here a thread of its own stays a little ahead.
 *
 *     load_ahead_begin -> load_ahead_go_on ... -> load_ahead_end
 *
 * All are the shard's thread's. A thread that cannot be had costs nothing but time.
 */
#ifndef SERVER_LOAD_AHEAD_H
#define SERVER_LOAD_AHEAD_H

#include <uv.h>

#include "server/core/shard.h"

#define LOAD_AHEAD_PARTS 8u
#define LOAD_AHEAD_BYTES (UINT64_C(32) << 20) /* of rows, at most */

struct load_ahead {
    enum { LOAD_AHEAD_OFF, LOAD_AHEAD_ON, LOAD_AHEAD_ENDS } state;
    uv_thread_t thread;
    uv_mutex_t lock;
    uv_cond_t changed;
    struct load_ahead_part {
        void *pages; /* borrowed from a table, which outlives the thread */
        size_t n_bytes;
    } parts[LOAD_AHEAD_PARTS]; /* number i stands at i % LOAD_AHEAD_PARTS */
    uint64_t n_given, n_taken;
};

void load_ahead_begin(struct load_ahead *a) ON_SHARD;

/* Between two chunks of rows. Does nothing where it has not begun. */
void load_ahead_go_on(struct load_ahead *a, struct shard *shard) ON_SHARD;

/* Waits for the part that is being touched. Fine where it has not begun. */
void load_ahead_end(struct load_ahead *a) ON_SHARD;

#endif
