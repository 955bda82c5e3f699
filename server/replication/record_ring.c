#include "server/replication/record_ring.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"

#define CHUNK_BYTES ((size_t)1 << 20)
#define POOLED_MAX 4u

/* Records that lie together. */
struct record_chunk {
    struct record_chunk *next;
    uint64_t first, last; /* records; last < first: none */
    size_t n_bytes, cap_bytes;
    /* Where the last reader stopped: most go on from there. */
    uint64_t read_next;
    size_t read_at;
    _Alignas(8) uint8_t bytes[];
};

void record_ring_init(struct record_ring *r, size_t max_bytes, uint64_t last)
{
    *r = (struct record_ring){ .max_bytes = max_bytes ? max_bytes : RECORD_RING_BYTES_DEFAULT,
                               .first = last + 1,
                               .last = last };
}

static void drop_oldest(struct record_ring *r)
{
    struct record_chunk *chunk = r->oldest;

    r->oldest = chunk->next;
    if (!r->oldest)
        r->newest = NULL;
    r->held_bytes -= chunk->cap_bytes;
    r->first = chunk->last + 1;
    if (chunk->cap_bytes != CHUNK_BYTES || r->n_pooled == POOLED_MAX) {
        free(chunk);
        return;
    }
    chunk->next = r->pooled;
    r->pooled = chunk;
    r->n_pooled++;
}

static struct record_chunk *take_pooled(struct record_ring *r)
{
    struct record_chunk *chunk = r->pooled;

    r->pooled = chunk->next;
    r->n_pooled--;
    return chunk;
}

void record_ring_deinit(struct record_ring *r)
{
    while (r->oldest)
        drop_oldest(r);
    while (r->pooled)
        free(take_pooled(r));
    *r = (struct record_ring){ 0 };
}

/* Space for one more record; NULL: no memory. */
static struct record_chunk *space_for(struct record_ring *r, size_t n_bytes)
{
    struct record_chunk *chunk = r->newest;
    size_t cap_bytes = n_bytes > CHUNK_BYTES ? n_bytes : CHUNK_BYTES;

    if (chunk && chunk->cap_bytes - chunk->n_bytes >= n_bytes)
        return chunk;
    chunk = cap_bytes == CHUNK_BYTES && r->pooled ? take_pooled(r)
                                                  : memory_try_large(sizeof *chunk + cap_bytes);
    if (!chunk)
        return NULL;
    *chunk = (struct record_chunk){
        .first = r->last + 1, .last = r->last, .cap_bytes = cap_bytes, .read_next = r->last + 1
    };
    if (r->newest)
        r->newest->next = chunk;
    else
        r->oldest = chunk;
    r->newest = chunk;
    r->held_bytes += cap_bytes;
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
    uint32_t unused = 0;

    assert(record->number == r->last + 1);
    if (!chunk) {
        while (r->oldest)
            drop_oldest(r);
        r->last = record->number;
        r->first = record->number + 1;
        return;
    }
    wal_record_encode(chunk->bytes + chunk->n_bytes, record);
    (void)wal_record_seal(chunk->bytes + chunk->n_bytes, &unused);
    chunk->n_bytes += n_bytes;
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

struct record_ring_part record_ring_read(struct record_ring *r, uint64_t number,
                                         size_t max_bytes)
{
    struct record_ring_part part = { 0 };
    struct record_chunk *chunk = r->oldest;

    assert(record_ring_has(r, number));
    while (chunk->last < number)
        chunk = chunk->next;
    if (number < chunk->read_next) {
        chunk->read_next = chunk->first;
        chunk->read_at = 0;
    }
    for (; chunk->read_next < number; chunk->read_next++)
        chunk->read_at += bytes_of(chunk->bytes + chunk->read_at);
    part.records = chunk->bytes + chunk->read_at;
    while (chunk->read_next <= chunk->last) {
        const size_t n_bytes = bytes_of(chunk->bytes + chunk->read_at);

        if (part.n_records && part.n_bytes + n_bytes > max_bytes)
            break;
        part.n_bytes += n_bytes;
        part.n_records++;
        chunk->read_at += n_bytes;
        chunk->read_next++;
    }
    return part;
}
