#include "server/replication/record_ring.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

/* With the free bytes before its records: a buffer of the channels. A fetch asks for as many (shard_follower.h). */
#define CHUNK_BYTES ((size_t)1 << 20)

/* Records that lie together. */
struct record_chunk {
    struct record_chunk *next;
    uint64_t first, last; /* records; last < first: none */
    struct bytes records; /* owned; NULL: taken */
    uint32_t crc;         /* crc32c of all of them */
    size_t held_bytes;    /* as they count */
    /* Where the last reader stopped: most go on from there. */
    uint64_t read_next;
    size_t read_at;
};

void record_ring_init(struct record_ring *r, struct channel_pool *buffers, size_t max_bytes,
                      uint64_t last)
{
    *r = (struct record_ring){ .buffers = buffers,
                               .max_bytes = max_bytes ? max_bytes : RECORD_RING_BYTES_DEFAULT,
                               .first = last + 1,
                               .last = last };
}

static void drop_oldest(struct record_ring *r)
{
    struct record_chunk *chunk = r->oldest;

    r->oldest = chunk->next;
    if (!r->oldest)
        r->newest = NULL;
    r->held_bytes -= chunk->held_bytes;
    r->first = chunk->last + 1;
    if (chunk->records.bytes)
        channel_pool_release(r->buffers, &chunk->records);
    free(chunk);
}

void record_ring_deinit(struct record_ring *r)
{
    while (r->oldest)
        drop_oldest(r);
    *r = (struct record_ring){ 0 };
}

/* A chunk without records, for one of n_bytes at least; NULL: no memory. */
static struct record_chunk *new_chunk(struct record_ring *r, size_t n_bytes)
{
    struct record_chunk *chunk = memory_try_alloc(sizeof *chunk);

    if (!chunk)
        return NULL;
    n_bytes += RECORD_RING_BEFORE_BYTES;
    *chunk = (struct record_chunk){ .first = r->last + 1,
                                    .last = r->last,
                                    .held_bytes = n_bytes > CHUNK_BYTES ? n_bytes : CHUNK_BYTES,
                                    .read_next = r->last + 1 };
    if (channel_pool_acquire(r->buffers, chunk->held_bytes, &chunk->records) != 0) {
        free(chunk);
        return NULL;
    }
    chunk->records.start = chunk->records.end = RECORD_RING_BEFORE_BYTES;
    return chunk;
}

/* Space for one more record; NULL: no memory. */
static struct record_chunk *space_for(struct record_ring *r, size_t n_bytes)
{
    struct record_chunk *chunk = r->newest;

    if (chunk && chunk->records.bytes && chunk->held_bytes - chunk->records.end >= n_bytes)
        return chunk;
    chunk = new_chunk(r, n_bytes);
    if (!chunk)
        return NULL;
    if (r->newest)
        r->newest->next = chunk;
    else
        r->oldest = chunk;
    r->newest = chunk;
    r->held_bytes += chunk->held_bytes;
    return chunk;
}

static size_t limit_of(const struct record_ring *r)
{
    return r->keeps ? 2 * r->max_bytes : r->max_bytes;
}

void record_ring_append(struct record_ring *r, const struct wal_record *record)
{
    const size_t n_bytes = wal_record_bytes(record);
    struct record_chunk *chunk = space_for(r, n_bytes);
    uint8_t *dst;

    assert(record->number == r->last + 1);
    if (!chunk) {
        while (r->oldest)
            drop_oldest(r);
        r->last = record->number;
        r->first = record->number + 1;
        return;
    }
    dst = chunk->records.bytes + chunk->records.end;
    wal_record_encode(dst, record);
    (void)wal_record_seal(dst, &chunk->crc);
    bytes_commit(&chunk->records, n_bytes);
    r->last = chunk->last = record->number;
    while (r->held_bytes > limit_of(r) && r->oldest != r->newest)
        drop_oldest(r);
}

void record_ring_release(struct record_ring *r, uint64_t through)
{
    while (r->oldest && r->oldest->last <= through && r->oldest != r->newest)
        drop_oldest(r);
    /* The newest chunk begins anew once all of it may go. */
    if (r->oldest && r->oldest == r->newest && r->oldest->last <= through)
        drop_oldest(r);
}

/* The bytes of a whole record. */
static size_t bytes_of(const uint8_t *record)
{
    uint32_t n_bytes;

    memcpy(&n_bytes, record + 4, sizeof n_bytes);
    return (WAL_RECORD_HEADER_BYTES + (size_t)n_bytes + 7) & ~(size_t)7;
}

static struct record_chunk *chunk_of(struct record_ring *r, uint64_t number)
{
    struct record_chunk *chunk = r->oldest;

    assert(record_ring_has(r, number));
    while (chunk->last < number)
        chunk = chunk->next;
    return chunk;
}

struct record_ring_part record_ring_read(struct record_ring *r, uint64_t number,
                                         size_t max_bytes)
{
    struct record_chunk *chunk = chunk_of(r, number);
    const uint8_t *records = bytes_front(&chunk->records);
    struct record_ring_part part = { 0 };

    if (number < chunk->read_next) {
        chunk->read_next = chunk->first;
        chunk->read_at = 0;
    }
    for (; chunk->read_next < number; chunk->read_next++)
        chunk->read_at += bytes_of(records + chunk->read_at);
    part.records = records + chunk->read_at;
    while (chunk->read_next <= chunk->last) {
        const size_t n_bytes = bytes_of(records + chunk->read_at);

        if (part.n_records && part.n_bytes + n_bytes > max_bytes)
            break;
        part.n_bytes += n_bytes;
        part.n_records++;
        chunk->read_at += n_bytes;
        chunk->read_next++;
    }
    return part;
}

uint32_t record_ring_take(struct record_ring *r, uint64_t number, size_t max_bytes,
                          struct bytes *ret, uint32_t *ret_crc)
{
    struct record_chunk *chunk = chunk_of(r, number);
    const size_t n_bytes = bytes_len(&chunk->records);

    if (chunk->first != number || (n_bytes > max_bytes && chunk->first != chunk->last))
        return 0;
    *ret = chunk->records;
    *ret_crc = chunk->crc;
    r->held_bytes -= chunk->held_bytes - n_bytes;
    chunk->held_bytes = n_bytes;
    chunk->records = (struct bytes){ 0 };
    r->taken_through = chunk->last;
    return (uint32_t)(chunk->last - chunk->first + 1);
}
