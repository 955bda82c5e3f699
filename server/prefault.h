/*
 * Prefault: touches memory that growing tables will need next. The first touch of a huge page makes the
 * kernel find and clear 2 MiB, and a virtual machine's host may have to find them first: from a fraction of
 * a millisecond to many. A thread of libuv's pool pays for this, so the shard's thread does not.
 *
 * Distance: PREFAULT_TICKS times the growth between two ticks, at least three huge pages, at most
 * PREFAULT_BYTES_MAX. Under a budget, which counts used memory, nothing is touched. A table that does not
 * grow costs nothing.
 */
#ifndef SERVER_PREFAULT_H
#define SERVER_PREFAULT_H

#include <uv.h>

#include "server/core/shard.h"

#define PREFAULT_TICKS 4u
#define PREFAULT_BYTES_MAX (UINT64_C(16) << 20)

struct prefault_table {
    uint64_t n_numbers; /* at the last tick */
    uint64_t n_wanted;  /* rows ahead */
};

struct prefault {
    uv_loop_t *loop; /* borrowed, like the shard */
    struct shard *shard;
    uv_work_t work;
    void *
        pages; /* being touched; of a table, which may be dropped meanwhile: memory_populate() changes no byte */
    size_t n_bytes;
    enum { PREFAULT_IDLE, PREFAULT_BUSY, PREFAULT_STOPPED } state;
    struct prefault_table *tables; /* owned: n_tables, by id */
    uint32_t n_tables;
};

void prefault_init(struct prefault *a, uv_loop_t *loop, struct shard *shard);

/* To be called a few times a second. */
void prefault_tick(struct prefault *a) ON_SHARD;

/* Begins no new work; the loop ends after the work under way. */
void prefault_stop(struct prefault *a);

/* After the loop. */
void prefault_deinit(struct prefault *a);

#endif
