#include "server/log/log_queue.h"

#include <assert.h>
#include <errno.h>

#define BLOCK_BYTES ((size_t)1 << 20)
#define MAX_BYTES ((size_t)64 << 20)

void log_queue_init(struct log_queue *q, const struct log_queue_config *config)
{
    *q = (struct log_queue){ .durability = config->durability,
                             .next_number = config->next_number,
                             .block_bytes =
                                 config->block_bytes ? config->block_bytes : BLOCK_BYTES,
                             .max_bytes = config->max_bytes ? config->max_bytes : MAX_BYTES };
    assert(q->next_number > 0);
    q->progress.written = q->progress.durable = q->next_number - 1;
    q->last = &q->first;
}

void log_queue_deinit(struct log_queue *q)
{
    log_block_free(q->first);
    log_block_free(q->next);
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
    else if (q->held_bytes <= q->max_bytes / 2)
        q->state = LOG_QUEUE_OPEN;
}

int log_queue_reserve(struct log_queue *q, size_t n_bytes)
{
    struct log_block *block;

    if (n_bytes > LOG_RECORD_BYTES_MAX)
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

/* The block that has room for n_bytes. */
static struct log_block *open_block(struct log_queue *q, size_t n_bytes, uint64_t now_ms)
{
    if (q->open && !q->gap_next && q->open->cap_bytes - q->open->n_bytes >= n_bytes)
        return q->open;
    assert(q->next && q->next->cap_bytes >= n_bytes); /* log_queue_reserve() */
    q->open = q->next;
    q->next = NULL;
    q->open->since_ms = now_ms;
    q->open->gap = q->gap_next;
    q->gap_next = false;
    *q->last = q->open;
    q->last = &q->open->next;
    q->held_bytes += q->open->cap_bytes;
    return q->open;
}

uint64_t log_queue_append(struct log_queue *q, const struct log_record *record, uint64_t now_ms)
{
    struct log_record numbered = *record;
    size_t n_bytes;

    numbered.number = q->next_number++;
    if (q->state == LOG_QUEUE_DROPS) {
        q->n_dropped++;
        q->dropped_last = numbered.number;
        q->gap_next = true;
        return numbered.number;
    }
    n_bytes = log_record_bytes(record);
    log_block_add(open_block(q, n_bytes, now_ms), &numbered, n_bytes);
    judge_state(q);
    return numbered.number;
}

uint64_t log_queue_acknowledged(const struct log_queue *q)
{
    return q->durability == LOG_FSYNC ? q->progress.durable : q->next_number - 1;
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
    q->progress = *progress;
    judge_state(q);
    return surplus;
}
