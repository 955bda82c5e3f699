#include "server/wal/wal_queue.h"

#include <assert.h>
#include <errno.h>

#define BLOCK_BYTES ((size_t)1 << 20)
#define MAX_BYTES ((size_t)64 << 20)
#define SMALL_BYTES ((size_t)16 << 10)
#define SWEEP_MS 2000u
#define POOL_FIT 4u /* times as long as wanted, a block is still taken */

void wal_queue_init(struct wal_queue *q, const struct wal_queue_config *config)
{
    *q = (struct wal_queue){ .durability = config->durability,
                             .next_number = config->next_number,
                             .block_bytes =
                                 config->block_bytes ? config->block_bytes : BLOCK_BYTES,
                             .max_bytes = config->max_bytes ? config->max_bytes : MAX_BYTES };
    assert(q->next_number > 0);
    wal_pace_init(&q->pace, q->max_bytes);
    q->kept_last = q->progress.written = q->progress.durable = q->next_number - 1;
    q->last = &q->first;
}

void wal_queue_deinit(struct wal_queue *q)
{
    wal_block_free(q->first);
    wal_block_free(q->next);
    wal_block_free(q->small);
    wal_block_free(q->pool);
    wal_block_free(q->surplus);
    *q = (struct wal_queue){ 0 };
}

/* --- blocks that are empty --- */

/* Out of the pool; it is the caller's. */
static struct wal_block *take_block(struct wal_queue *q, struct wal_block **at)
{
    struct wal_block *block = *at;

    *at = block->next;
    block->next = NULL;
    q->pool_bytes -= block->cap_bytes;
    if (q->pool_bytes < q->pool_least_bytes)
        q->pool_least_bytes = q->pool_bytes;
    return block;
}

/* Keeps it for later, as long as no more is kept and held than may wait: fresh memory costs several times the copy, and
 * the shard waits for it. A very long one would be held for few records. False: it is the caller's to free. */
static bool pool_block(struct wal_queue *q, struct wal_block *block)
{
    wal_block_clear(block);
    if (block->cap_bytes > q->max_bytes / 2 ||
        q->held_bytes + q->pool_bytes + block->cap_bytes > q->max_bytes)
        return false;
    block->next = q->pool;
    q->pool = block;
    q->pool_bytes += block->cap_bytes;
    return true;
}

/* The pool's newest is the writer's to free. */
static void drop_block(struct wal_queue *q)
{
    struct wal_block *block = take_block(q, &q->pool);

    block->next = q->surplus;
    q->surplus = block;
}

/* Now and then: beyond half of what may wait, what was not needed since the last time is dropped. */
static void sweep_pool(struct wal_queue *q)
{
    size_t unused_bytes = q->pool_least_bytes;

    if (q->appended_ms - q->swept_ms < SWEEP_MS)
        return;
    while (q->pool && q->pool->cap_bytes <= unused_bytes && q->pool_bytes > q->max_bytes / 2) {
        unused_bytes -= q->pool->cap_bytes;
        drop_block(q);
    }
    q->pool_least_bytes = q->pool_bytes;
    q->swept_ms = q->appended_ms;
}

/* Of a fresh block. Pushes of equally many rows differ a little in length, so lengths are rounded up: a block made for
 * one then fits the next. */
static size_t fresh_bytes(const struct wal_queue *q, size_t n_bytes)
{
    const size_t step = q->block_bytes < 4 ? 1 : q->block_bytes / 4;
    size_t rounded = (n_bytes + step - 1) / step * step;

    if (n_bytes <= q->block_bytes)
        return q->block_bytes;
    return n_bytes <= WAL_RECORD_BYTES_MAX && rounded > WAL_RECORD_BYTES_MAX
               ? WAL_RECORD_BYTES_MAX
               : rounded;
}

/* The shortest that is long enough, and not many times as long, as a block counts whole; or a fresh one, in place of
 * those that do not do. */
static struct wal_block *acquire_block(struct wal_queue *q, size_t n_bytes)
{
    const size_t n_fresh = fresh_bytes(q, n_bytes);
    struct wal_block **best = NULL;

    for (struct wal_block **at = &q->pool; *at; at = &(*at)->next)
        if ((*at)->cap_bytes >= n_bytes && (*at)->cap_bytes / POOL_FIT <= n_fresh &&
            (!best || (*at)->cap_bytes < (*best)->cap_bytes))
            best = at;
    if (best)
        return take_block(q, best);
    while (q->pool && q->held_bytes + q->pool_bytes + n_fresh > q->max_bytes)
        drop_block(q);
    return wal_block_new(n_fresh);
}

/* --- appending --- */

/* What this moment asks for: see the table in the header. */
static void update_state(struct wal_queue *q)
{
    bool failing = q->progress.state == WAL_WRITER_FAILED && q->durability != WAL_FSYNC;

    if (q->state == WAL_QUEUE_DROPS && failing)
        return;
    if (q->state == WAL_QUEUE_DROPS)
        q->state = WAL_QUEUE_FULL;
    if (q->held_bytes >= q->max_bytes)
        q->state = failing ? WAL_QUEUE_DROPS : WAL_QUEUE_FULL;
    else if (failing || q->held_bytes <= q->max_bytes / 2)
        q->state = WAL_QUEUE_OPEN;
}

/* Records without a reservation need space, too: reserve() keeps a small block ready for them, and fails without
 * one. */
static int keep_small_ready(struct wal_queue *q)
{
    if (!q->small)
        q->small = wal_block_new(SMALL_BYTES);
    return q->small ? 0 : -ENOMEM;
}

/* Of the three only the state is another thread's to change. From FULL it changes before that is reported; to FULL a
 * moment late is as if the reservation had been made a moment earlier. */
bool wal_queue_has_reserved(const struct wal_queue *q, size_t n_bytes)
{
    return q->next && q->next->cap_bytes >= n_bytes && q->small && q->state != WAL_QUEUE_FULL;
}

int wal_queue_reserve(struct wal_queue *q, size_t n_bytes)
{
    struct wal_block *block;

    if (q->state == WAL_QUEUE_FULL)
        return -EAGAIN;
    if (n_bytes > WAL_RECORD_BYTES_MAX || keep_small_ready(q) != 0)
        return -ENOMEM;
    if (q->next && q->next->cap_bytes >= n_bytes)
        return 0;
    block = acquire_block(q, n_bytes);
    if (!block)
        return -ENOMEM;
    if (q->next && !pool_block(q, q->next))
        wal_block_free(q->next);
    q->next = block;
    return 0;
}

/* A block for n_bytes that nobody has asked room for; NULL: there is none. */
static struct wal_block *acquire_unreserved(struct wal_queue *q, size_t n_bytes)
{
    struct wal_block *block = NULL;

    if (q->held_bytes < 2 * q->max_bytes)
        block = acquire_block(q, n_bytes);
    if (!block && q->small && q->small->cap_bytes >= n_bytes) {
        block = q->small;
        q->small = NULL;
    }
    return block;
}

/* The block that has room for the record, or NULL. What was reserved stays so for whoever did. */
static struct wal_block *open_block(struct wal_queue *q, const struct wal_record *record,
                                    size_t n_bytes, uint64_t now_ms)
{
    struct wal_block *block;

    if (q->open && !q->gap_next && !q->segment_next &&
        q->open->cap_bytes - q->open->n_bytes >= n_bytes)
        return q->open;
    if (shard_event_is_asked_for(record->event.type)) {
        assert(q->next && q->next->cap_bytes >= n_bytes); /* wal_queue_reserve() */
        block = q->next;
        q->next = NULL;
    } else {
        block = acquire_unreserved(q, n_bytes);
    }
    if (!block)
        return NULL;
    block->since_ms = now_ms;
    block->gap = q->gap_next;
    block->begins_segment = q->segment_next;
    q->gap_next = q->segment_next = false;
    q->open = block;
    *q->last = block;
    q->last = &block->next;
    q->held_bytes += block->cap_bytes;
    update_state(q);
    return block;
}

static void add_gap(struct wal_queue *q, uint64_t first, uint64_t last)
{
    if (!q->lost_first || first < q->lost_first)
        q->lost_first = first;
    if (last > q->lost_last)
        q->lost_last = last;
}

static void drop(struct wal_queue *q, uint64_t number)
{
    q->n_dropped++;
    q->gap_next = true;
    add_gap(q, number, number);
}

/* The block has space for it. */
static void add(struct wal_block *block, const struct wal_record *record, size_t n_bytes)
{
    wal_record_encode(wal_block_records(block) + block->n_bytes, record);
    if (!block->n_bytes)
        block->first = record->number;
    block->last = record->number;
    if (record->event.type != SHARD_EVENT_ROWS)
        block->version = record->event.version;
    block->n_bytes += n_bytes;
}

uint64_t wal_queue_append(struct wal_queue *q, const struct wal_record *record, uint64_t now_ms)
{
    struct wal_record numbered = *record;
    struct wal_block *block = NULL;
    size_t n_bytes = wal_record_bytes(record);

    numbered.number = q->next_number++;
    q->appended_ms = now_ms;
    if (q->state != WAL_QUEUE_DROPS)
        block = open_block(q, record, n_bytes, now_ms);
    if (!block) {
        drop(q, numbered.number);
        return numbered.number;
    }
    add(block, &numbered, n_bytes);
    q->kept_last = numbered.number;
    if (q->progress.state == WAL_WRITER_OK)
        wal_pace_append(&q->pace, now_ms, n_bytes, q->held_bytes);
    return numbered.number;
}

uint64_t wal_queue_wait_ms(const struct wal_queue *q, uint64_t now_ms)
{
    return wal_pace_wait_ms(&q->pace, now_ms);
}

void wal_queue_begin_segment(struct wal_queue *q)
{
    q->segment_next = true;
}

uint64_t wal_queue_whole(const struct wal_queue *q)
{
    return q->lost_first && q->lost_first <= q->progress.durable ? q->lost_first - 1
                                                                 : q->progress.durable;
}

uint64_t wal_queue_acknowledged(const struct wal_queue *q)
{
    return q->durability == WAL_FSYNC ? wal_queue_whole(q) : q->next_number - 1;
}

void wal_queue_close_gap(struct wal_queue *q, uint64_t number)
{
    if (number >= q->lost_last)
        q->lost_first = q->lost_last = 0;
    else if (number >= q->lost_first)
        q->lost_first = number + 1;
}

/* --- the writer's side --- */

struct wal_block *wal_queue_drain(struct wal_queue *q)
{
    struct wal_block *first = q->first;

    q->first = NULL;
    q->last = &q->first;
    q->open = NULL;
    return first;
}

static void note_progress(struct wal_queue *q, const struct wal_progress *progress)
{
    if (progress->doubtful > q->progress.doubtful)
        add_gap(q, progress->durable + 1, progress->doubtful);
    q->progress = *progress;
    q->pace.bytes_per_s = progress->raw_bytes_per_s;
    /* Behind the last one that was kept all have been dropped: nobody is to wait for these. */
    if (progress->durable >= q->kept_last)
        q->progress.durable = q->next_number - 1;
}

struct wal_block *wal_queue_recycle(struct wal_queue *q, struct wal_block *first,
                                    const struct wal_progress *progress)
{
    struct wal_block *surplus;

    while (first) {
        struct wal_block *next = first->next;

        q->held_bytes -= first->cap_bytes;
        if (!pool_block(q, first)) {
            first->next = q->surplus;
            q->surplus = first;
        }
        first = next;
    }
    sweep_pool(q);
    surplus = q->surplus;
    q->surplus = NULL;
    note_progress(q, progress);
    update_state(q);
    return surplus;
}
