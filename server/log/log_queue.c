#include "server/log/log_queue.h"

#include <assert.h>
#include <errno.h>

#define BLOCK_BYTES ((size_t)1 << 20)
#define MAX_BYTES ((size_t)64 << 20)
#define SMALL_BYTES ((size_t)16 << 10)

void log_queue_init(struct log_queue *q, const struct log_queue_config *config)
{
    *q = (struct log_queue){ .durability = config->durability,
                             .next_number = config->next_number,
                             .block_bytes =
                                 config->block_bytes ? config->block_bytes : BLOCK_BYTES,
                             .max_bytes = config->max_bytes ? config->max_bytes : MAX_BYTES };
    assert(q->next_number > 0);
    q->kept_last = q->progress.written = q->progress.durable = q->next_number - 1;
    q->last = &q->first;
}

void log_queue_deinit(struct log_queue *q)
{
    log_block_free(q->first);
    log_block_free(q->next);
    log_block_free(q->small);
    log_block_free(q->spare);
    *q = (struct log_queue){ 0 };
}

/* --- blocks that are empty --- */

/* Keeps it for later, up to half of what may wait: fresh memory costs more than the copy. False:
 * it is the caller's to free. */
static bool keep_spare(struct log_queue *q, struct log_block *block)
{
    log_block_clear(block);
    if (q->spare_bytes + block->cap_bytes > q->max_bytes / 2)
        return false;
    block->next = q->spare;
    q->spare = block;
    q->spare_bytes += block->cap_bytes;
    return true;
}

static struct log_block *take_spare(struct log_queue *q, size_t n_bytes)
{
    struct log_block **at = &q->spare, *block;

    while (*at && (*at)->cap_bytes < n_bytes)
        at = &(*at)->next;
    block = *at;
    if (!block)
        return log_block_new(n_bytes > q->block_bytes ? n_bytes : q->block_bytes);
    *at = block->next;
    block->next = NULL;
    q->spare_bytes -= block->cap_bytes;
    return block;
}

/* --- appending --- */

/* What this moment asks for: see the table in the header. */
static void judge_state(struct log_queue *q)
{
    bool failing = q->progress.state == LOG_WRITER_FAILED && q->durability != LOG_FSYNC;

    if (q->state == LOG_QUEUE_DROPS && failing)
        return;
    if (q->state == LOG_QUEUE_DROPS)
        q->state = LOG_QUEUE_FULL;
    if (q->held_bytes >= q->max_bytes)
        q->state = failing ? LOG_QUEUE_DROPS : LOG_QUEUE_FULL;
    else if (failing || q->held_bytes <= q->max_bytes / 2)
        q->state = LOG_QUEUE_OPEN;
}

/* Who does not ask must find room, too: so whoever asks waits until there is some again. */
static int keep_small_ready(struct log_queue *q)
{
    if (!q->small)
        q->small = log_block_new(SMALL_BYTES);
    return q->small ? 0 : -ENOMEM;
}

int log_queue_reserve(struct log_queue *q, size_t n_bytes)
{
    struct log_block *block;

    if (q->state == LOG_QUEUE_FULL)
        return -EAGAIN;
    if (n_bytes > LOG_RECORD_BYTES_MAX || keep_small_ready(q) != 0)
        return -ENOMEM;
    if (q->next && q->next->cap_bytes >= n_bytes)
        return 0;
    block = take_spare(q, n_bytes);
    if (!block)
        return -ENOMEM;
    if (q->next && !keep_spare(q, q->next))
        log_block_free(q->next);
    q->next = block;
    return 0;
}

/* A block for n_bytes that nobody has asked room for; NULL: there is none. */
static struct log_block *take_unasked(struct log_queue *q, size_t n_bytes)
{
    struct log_block *block = NULL;

    if (q->held_bytes < 2 * q->max_bytes)
        block = take_spare(q, n_bytes);
    if (!block && q->small && q->small->cap_bytes >= n_bytes) {
        block = q->small;
        q->small = NULL;
    }
    return block;
}

/* The block that has room for the record, or NULL. What was reserved stays so for whoever did. */
static struct log_block *open_block(struct log_queue *q, const struct log_record *record,
                                    size_t n_bytes, uint64_t now_ms)
{
    struct log_block *block;

    if (q->open && !q->gap_next && q->open->cap_bytes - q->open->n_bytes >= n_bytes)
        return q->open;
    if (shard_event_is_asked_for(record->event.type)) {
        assert(q->next && q->next->cap_bytes >= n_bytes); /* log_queue_reserve() */
        block = q->next;
        q->next = NULL;
    } else {
        block = take_unasked(q, n_bytes);
    }
    if (!block)
        return NULL;
    block->since_ms = now_ms;
    block->gap = q->gap_next;
    q->gap_next = false;
    q->open = block;
    *q->last = block;
    q->last = &block->next;
    q->held_bytes += block->cap_bytes;
    return block;
}

static void lose(struct log_queue *q, uint64_t first, uint64_t last)
{
    if (!q->lost_first || first < q->lost_first)
        q->lost_first = first;
    if (last > q->lost_last)
        q->lost_last = last;
}

static void drop(struct log_queue *q, uint64_t number)
{
    q->n_dropped++;
    q->gap_next = true;
    lose(q, number, number);
}

uint64_t log_queue_append(struct log_queue *q, const struct log_record *record, uint64_t now_ms)
{
    struct log_record numbered = *record;
    struct log_block *block = NULL;
    size_t n_bytes = log_record_bytes(record);

    numbered.number = q->next_number++;
    if (q->state != LOG_QUEUE_DROPS)
        block = open_block(q, record, n_bytes, now_ms);
    if (!block) {
        drop(q, numbered.number);
        return numbered.number;
    }
    log_block_add(block, &numbered, n_bytes);
    q->kept_last = numbered.number;
    judge_state(q);
    return numbered.number;
}

uint64_t log_queue_acknowledged(const struct log_queue *q)
{
    if (q->durability != LOG_FSYNC)
        return q->next_number - 1;
    return q->lost_first && q->lost_first <= q->progress.durable ? q->lost_first - 1
                                                                 : q->progress.durable;
}

void log_queue_mend(struct log_queue *q, uint64_t number)
{
    if (number >= q->lost_last)
        q->lost_first = q->lost_last = 0;
    else if (number >= q->lost_first)
        q->lost_first = number + 1;
}

/* --- the writer's side --- */

struct log_block *log_queue_take(struct log_queue *q)
{
    struct log_block *first = q->first;

    q->first = NULL;
    q->last = &q->first;
    q->open = NULL;
    return first;
}

static void note_progress(struct log_queue *q, const struct log_progress *progress)
{
    if (progress->doubtful > q->progress.doubtful)
        lose(q, progress->durable + 1, progress->doubtful);
    q->progress = *progress;
    /* Behind the last one that was kept all have been dropped: nobody is to wait for these. */
    if (progress->durable >= q->kept_last)
        q->progress.durable = q->next_number - 1;
}

struct log_block *log_queue_give_back(struct log_queue *q, struct log_block *first,
                                      const struct log_progress *progress)
{
    struct log_block *surplus = NULL;

    while (first) {
        struct log_block *next = first->next;

        q->held_bytes -= first->cap_bytes;
        if (!keep_spare(q, first)) {
            first->next = surplus;
            surplus = first;
        }
        first = next;
    }
    note_progress(q, progress);
    judge_state(q);
    return surplus;
}
