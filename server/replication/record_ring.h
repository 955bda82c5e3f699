/*
 * The newest records of a shard's log in memory, for its standby: as bytes of a block of the log (wal_record.h), in
 * order, without a gap.
 *
 *     dropped | first ... last     record_ring_read() from any of these; what was dropped is in the log's segments
 *
 * It holds max_bytes. One that keeps is full then: the shard takes no pushes, as with a full log. One that does not
 * drops its oldest records. Records that no push asks for (GONE, ROWS ...) come also to a full one, and drop the oldest
 * beyond twice max_bytes. Without memory it drops all.
 */
#ifndef SERVER_REPLICATION_RECORD_RING_H
#define SERVER_REPLICATION_RECORD_RING_H

#include <stdbool.h>

#include "server/wal/wal_record.h"

#define RECORD_RING_BYTES_DEFAULT ((size_t)64 << 20)

struct record_ring {
    struct record_chunk *oldest, *newest; /* owned */
    struct record_chunk
        *pooled; /* owned, empty, of one size: new memory costs as much as what it is for */
    uint32_t n_pooled;
    size_t max_bytes, held_bytes;
    uint64_t first, last; /* first > last: it is empty */
    bool keeps;
};

/* The next record has number last + 1. */
void record_ring_init(struct record_ring *r, size_t max_bytes, uint64_t last);
void record_ring_deinit(struct record_ring *r);

/* A copy of the record, whose number is last + 1. */
void record_ring_append(struct record_ring *r, const struct wal_record *record);

/* The standby has all up to `through`: they may go. */
void record_ring_release(struct record_ring *r, uint64_t through);

static inline bool record_ring_is_full(const struct record_ring *r)
{
    return r->keeps && r->held_bytes >= r->max_bytes;
}

static inline bool record_ring_has(const struct record_ring *r, uint64_t number)
{
    return number >= r->first && number <= r->last;
}

/* Records from `number` on, which is there: as many as lie together and fit, but one at least. Borrowed until the ring
 * changes. */
struct record_ring_part {
    const uint8_t *records;
    size_t n_bytes;
    uint32_t n_records;
};

struct record_ring_part record_ring_read(struct record_ring *r, uint64_t number,
                                         size_t max_bytes);

#endif
