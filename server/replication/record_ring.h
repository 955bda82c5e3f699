/*
 * The newest records of a shard's log in memory, for its standby: as bytes of a block of the log (wal_record.h), in
 * order, without a gap.
 *
 *     dropped | first ... last     record_ring_read() from any of these; what was dropped is in the log's segments
 *
 * Records lie in chunks, each in a buffer of the shard's channels. A chunk from its first record on is taken, not read
 * (record_ring_take()): its buffer becomes the frame that is sent, so a record is copied once for the standby. Each
 * record is sent once, so a chunk that was taken cannot be read any more. It counts until it is released.
 *
 * It holds max_bytes. One that keeps is full then: the shard takes no pushes, as with a full log. One that does not
 * drops its oldest records. Records that no push asks for (GONE, ROWS ...) come also to a full one, and drop the oldest
 * beyond twice max_bytes. Without memory it drops all.
 */
#ifndef SERVER_REPLICATION_RECORD_RING_H
#define SERVER_REPLICATION_RECORD_RING_H

#include <stdbool.h>

#include "proto/channel_loop.h"
#include "proto/message_replication.h"
#include "server/wal/wal_record.h"

#define RECORD_RING_BYTES_DEFAULT ((size_t)64 << 20)
#define RECORD_RING_BEFORE_BYTES MESSAGE_FETCH_REPLY_MAX

struct record_ring {
    struct channel_pool *buffers;         /* borrowed */
    struct record_chunk *oldest, *newest; /* owned */
    size_t max_bytes, held_bytes;
    uint64_t first, last;   /* first > last: it is empty */
    uint64_t taken_through; /* up to here none can be read */
    bool keeps;
};

/* The next record has number last + 1. */
void record_ring_init(struct record_ring *r, struct channel_pool *buffers, size_t max_bytes,
                      uint64_t last);
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
    return number >= r->first && number <= r->last && number > r->taken_through;
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

/* The whole chunk that begins with `number`, which is there, if it has no more than max_bytes: its records are alone in
 * *ret, behind RECORD_RING_BEFORE_BYTES free bytes. Returns their number, and *ret_crc, the crc32c of all. 0: no chunk
 * does, and nothing has changed. */
uint32_t record_ring_take(struct record_ring *r, uint64_t number, size_t max_bytes,
                          struct bytes *ret, uint32_t *ret_crc) MUST_CHECK;

#endif
