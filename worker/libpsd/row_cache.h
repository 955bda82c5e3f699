/*
 * Rows that a reader has pulled, for as long as they may be used again: none is handed out that was asked for longer
 * ago than max_age_ns. A row that does not exist on the servers is kept like another one.
 *
 * Everything is in one block of max_bytes: this struct, the index, the rows. The key's hash chooses one of up to 64
 * shards. A shard has a mutex for those who put rows, an index, and two rings of entries:
 *
 *     index   buckets of 8 slots, one cache line each; the key's bucket is searched whole
 *     slot    tag 16 | uses 2 | kind 2 | lap 12 | offset 32        where the entry lies, in units of 16 bytes
 *             tag 16 | ---- 2 | GHOST 2 | hash 12 | number 32      a key that was evicted, as number `number`
 *     entry   key u64 | presence 2, codec 3, table 8, time sent 44 | float [dim] | up to 16 bytes
 *
 * Entries are put at a ring's head, and evicted at its tail: S3-FIFO (Yang, Zhang, Qiu, Yue, Vinayak: "FIFO queues are
 * all you need for cache eviction", SOSP 2023). A new key begins in the small ring, a tenth of the memory. One that was
 * used again before it comes to the tail, or that comes back soon after it was evicted there, moves to the main ring,
 * where each use, up to 3, saves it once. An entry that is too old is evicted at any tail.
 *
 * Reading takes no lock. A ring's tail is a number that only grows: its laps and its offset. Who puts a row first takes
 * away what points to the oldest entries, then moves the tail past them, then writes over them. Who reads copies an
 * entry, and then looks whether the tail has passed it meanwhile; that is a miss. Words are read and written as
 * atomics, so that this order holds.
 */
#ifndef WORKER_LIBPSD_ROW_CACHE_H
#define WORKER_LIBPSD_ROW_CACHE_H

#include <stdbool.h>

#include "common/base.h"
#include "proto/codec.h"

#define ROW_CACHE_BYTES_MIN (UINT64_C(1) << 20)
#define ROW_CACHE_BATCH 64u

struct row_cache;

/* Times are of any clock that does not go back, in ns; from now_ns up to 2^60 ns later. NULL: no memory. */
struct row_cache *row_cache_new(uint64_t max_bytes, uint64_t max_age_ns, uint64_t now_ns)
    MUST_CHECK;
void row_cache_free(struct row_cache *cache);

/* Before the first row is put: divides the memory between index and rows of about row_floats. Calls behind the first
 * one do nothing. Until then every key is missing. Any thread. */
void row_cache_start(struct row_cache *cache, uint32_t row_floats);
bool row_cache_is_started(const struct row_cache *cache);

/* Rows of one table. `present` may be NULL: bit i % 8 of byte i / 8 is that of keys[i]. */
struct row_cache_rows {
    uint32_t table, dim; /* table: up to 255 */
    enum codec_id codec; /* in which they travel */
    uint32_t n;
    const uint64_t *keys; /* [n] */
    float *rows;          /* [n][dim] */
    uint8_t *present;     /* NULL: not asked for, or not known */
};

/* Copies those of keys[from .. from + n), n up to ROW_CACHE_BATCH, that are here and not too old at now_ns; sets or
 * clears their bits of `present`. A row that has travelled as CODEC_FP32 will do for every codec, another one for its
 * own. Returns bit i for each keys[from + i] that is missing. Lowers *oldest_ns to the time sent of the oldest row that
 * was copied. Any thread, at any time. */
uint64_t row_cache_read(struct row_cache *cache, const struct row_cache_rows *ask,
                        uint32_t from, uint32_t n, uint64_t now_ns, uint64_t *oldest_ns);

/* Rows that have come. sent_ns: before they were asked for. A row that is here, was sent later and can do all that this
 * one can, stays. What finds no place is left out. Any thread. */
void row_cache_put(struct row_cache *cache, const struct row_cache_rows *rows, uint64_t sent_ns,
                   uint64_t now_ns);

/* Counts a call's keys; oldest_age_ns: of the oldest that was found. Any thread. */
void row_cache_count(struct row_cache *cache, uint64_t n_hits, uint64_t n_misses,
                     uint64_t oldest_age_ns);

struct row_cache_stats {
    uint64_t n_hits, n_misses, oldest_age_ns; /* row_cache_count() */
    uint64_t n_put, n_evicted;                /* evicted: before they were too old */
    uint64_t n_left_out;                      /* too long, or another thread put rows beside */
    uint64_t n_rows;                          /* now, with those too old that still lie there */
    uint64_t n_bytes, max_bytes; /* in use: of entries, their remains, index and headers */
};

void row_cache_stats(struct row_cache *cache, struct row_cache_stats *ret);
uint64_t row_cache_max_age(const struct row_cache *cache);

#endif
