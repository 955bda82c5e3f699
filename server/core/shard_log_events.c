#include "server/core/shard_log_events.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

static struct shard_event push_event(const struct shard *s, const struct worker *worker,
                                     const struct push *push, int status)
{
    return (struct shard_event){
        .type = SHARD_EVENT_PUSH,
        .version = s->version,
        .push = { { worker->job->name, worker->rank, worker->incarnation }, push, status }
    };
}

int shard_log_events_reserve(const struct shard *s, const struct worker *worker,
                             const struct push *push, int status)
{
    struct shard_event event = push_event(s, worker, push, status);

    return shard_events_reserve(s->events, &event);
}

void shard_log_events_push(struct shard *s, const struct worker *worker,
                           const struct push *push, int status)
{
    struct shard_event event = push_event(s, worker, push, status);

    shard_events_record(s->events, &event);
}

/* --- rows --- */

static void record_rows(const struct shard *s, const struct shard_entry *entry,
                        enum shard_rows_op op, uint64_t version, uint32_t n_keys,
                        const uint64_t *keys, const uint8_t *touches)
{
    struct shard_event event = {
        .type = SHARD_EVENT_ROWS,
        .version = version,
        .rows = { .op = op, .n_keys = n_keys, .keys = keys, .touches = touches }
    };

    if (n_keys == 0)
        return;
    event.rows.table_id = entry->id;
    shard_events_record(s->events, &event);
}

void shard_log_events_rows(struct shard *s)
{
    struct shard_row_events *t = &s->row_events;

    record_rows(s, t->entry, SHARD_ROWS_TOUCHES, s->version, t->n_aged, t->aged, t->touches);
    record_rows(s, t->entry, SHARD_ROWS_GONE, s->version, t->n_gone, t->gone, NULL);
    t->n_aged = t->n_gone = 0;
}

/* Makes space for one more of that table. */
static struct shard_row_events *gather(struct shard *s, const struct shard_entry *entry)
{
    struct shard_row_events *t = &s->row_events;

    if (t->entry != entry || t->n_gone == SHARD_EVENT_ROWS_MAX ||
        t->n_aged == SHARD_EVENT_ROWS_MAX)
        shard_log_events_rows(s);
    t->entry = entry;
    return t;
}

/* Without a place for it the next checkpoint is a full one. */
static void note_gone(struct shard *s, struct shard_entry *entry, uint64_t key)
{
    uint8_t *dst =
        s->base.n_gone < SHARD_GONE_MAX ? bytes_reserve(&entry->gone, sizeof key) : NULL;

    if (!dst) {
        s->base.counts = s->base.is_there = false;
        return;
    }
    memcpy(dst, &key, sizeof key);
    bytes_commit(&entry->gone, sizeof key);
    s->base.n_gone++;
}

void shard_log_events_gone(struct shard *s, struct shard_entry *entry, struct row *row)
{
    if (s->events) {
        struct shard_row_events *t = gather(s, entry);

        t->gone[t->n_gone++] = row->key;
    }
    if (s->base.counts)
        note_gone(s, entry, row->key);
    table_remove(entry->table.rows, row);
}

void shard_log_events_touches(struct shard *s, const struct shard_entry *entry, struct row *row,
                              uint32_t touches, uint32_t flags)
{
    if (s->events && touches != row_touches(row)) {
        struct shard_row_events *t = gather(s, entry);

        t->touches[t->n_aged] = (uint8_t)touches;
        t->aged[t->n_aged++] = row->key;
    }
    if (touches != row_touches(row))
        flags |= ROW_AGED;
    row->stamp = row_stamp(row_version(row), touches, flags);
}

void shard_log_events_left(struct shard *s, const struct shard_entry *entry, uint64_t version,
                           const uint64_t *keys, uint32_t n, struct row *const *rows)
{
    uint64_t left[SHARD_EVENT_ROWS_MAX];
    uint32_t n_left = 0;

    if (!s->events)
        return;
    assert(n <= SHARD_EVENT_ROWS_MAX);
    for (uint32_t i = 0; i < n; i++)
        if (!rows[i])
            left[n_left++] = keys[i];
    record_rows(s, entry, SHARD_ROWS_LEFT, version, n_left, left, NULL);
}

void shard_log_events_reset(struct shard *s)
{
    for (uint32_t i = 0; i < s->n_tables; i++)
        if (s->tables[i])
            bytes_deinit(&s->tables[i]->gone);
    s->base.n_gone = 0;
    s->base.counts = true;
}
