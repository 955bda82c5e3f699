/*
 * Memory that growing tables will want next, touched before they do. The first touch of a huge page
 * makes the kernel find and clear 2 MiB, and a virtual machine's host may have to find them first:
 * from a fraction of a millisecond to many. So a thread of libuv's pool does it, and the
 * shard's thread finds the page there.
 *
 * How far ahead: AHEAD_TICKS times as much as the table grew between two ticks, at least three huge
 * pages, at most AHEAD_BYTES_MAX; under a budget, which counts what is used, not at all. A table that
 * does not grow costs nothing.
 */
#ifndef SERVER_AHEAD_H
#define SERVER_AHEAD_H

#include <uv.h>

#include "server/core/shard.h"

#define AHEAD_TICKS 4u
#define AHEAD_BYTES_MAX (UINT64_C(16) << 20)

struct ahead {
    uv_loop_t *loop; /* borrowed, like the shard */
    struct shard *shard;
    uv_work_t work;
    void *pages; /* being touched; borrowed from a table, which outlives the loop */
    size_t n_bytes;
    enum { AHEAD_IDLE, AHEAD_BUSY, AHEAD_STOPPED } state;
    uint64_t n_numbers[SHARD_N_TABLES_MAX]; /* of each table, at the last tick */
    uint64_t n_wanted[SHARD_N_TABLES_MAX];  /* rows ahead */
};

void ahead_init(struct ahead *a, uv_loop_t *loop, struct shard *shard);

/* A few times a second. */
void ahead_tick(struct ahead *a) ON_SHARD;

/* Nothing new is begun; the loop ends once what is under way has. */
void ahead_stop(struct ahead *a);

#endif
