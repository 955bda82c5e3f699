#include "server/core/replay_decisions.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "server/core/shard_log_events.h"

void replay_decisions_start(struct shard *s)
{
    s->replay = memory_alloc(sizeof *s->replay);
}

void replay_decisions_stop(struct shard *s)
{
    if (s->replay)
        bytes_deinit(&s->replay->waiting);
    free(s->replay);
    s->replay = NULL;
}

static struct row *find(const struct shard_entry *entry, uint64_t key)
{
    struct row *row;

    table_find_batch(entry->table.rows, &key, 1, &row);
    return row;
}

/* To a row as it was when this was told, at most of that version; a newer one was made, or changed,
 * since. What is left of a push that is already applied was made by it. */
static void apply(struct shard *s, const struct replay_decisions_key *k, uint64_t version)
{
    struct shard_entry *entry = s->tables[k->table_id];
    struct row *row = find(entry, k->key);

    if (!row || row_version(row) > version ||
        (k->op == SHARD_ROWS_LEFT && row_version(row) != version))
        return;
    if (k->op == SHARD_ROWS_TOUCHES)
        shard_log_events_touches(s, entry, row, k->touches, row_flags(row));
    else
        shard_log_events_gone(s, entry, row);
}

static int wait_for_push(struct replay_decisions *decisions,
                         const struct replay_decisions_key *key)
{
    uint8_t *dst = bytes_reserve(&decisions->waiting, sizeof *key);

    if (!dst)
        return -ENOMEM;
    memcpy(dst, key, sizeof *key);
    bytes_commit(&decisions->waiting, sizeof *key);
    return 0;
}

int replay_decisions_receive(struct shard *s, const struct shard_event *event)
{
    int status = 0;

    if (!shard_entry_at(s, event->rows.table_id) || event->rows.op >= SHARD_ROWS_OP_END ||
        event->version > s->version + 1 ||
        (event->rows.op == SHARD_ROWS_TOUCHES && !event->rows.touches))
        return PS_ECORRUPT;
    for (uint32_t i = 0; i < event->rows.n_keys && !status; i++) {
        const struct replay_decisions_key key = {
            .table_id = event->rows.table_id,
            .op = (uint8_t)event->rows.op,
            .touches = event->rows.touches ? event->rows.touches[i] : 0,
            .key = event->rows.keys[i],
        };

        if (event->version <= s->version)
            apply(s, &key, event->version);
        else
            status = wait_for_push(s->replay, &key);
    }
    return status;
}

static struct replay_decisions_key *waiting(const struct replay_decisions *decisions,
                                            size_t *ret_n)
{
    *ret_n = bytes_len(&decisions->waiting) / sizeof(struct replay_decisions_key);
    return (struct replay_decisions_key *)(void *)(decisions->waiting.bytes +
                                                   decisions->waiting.start);
}

static int compare(const void *a, const void *b)
{
    const struct replay_decisions_key *x = a, *y = b;

    if (x->op != y->op)
        return x->op < y->op ? -1 : 1;
    if (x->table_id != y->table_id)
        return x->table_id < y->table_id ? -1 : 1;
    return x->key < y->key ? -1 : x->key > y->key;
}

void replay_decisions_begin(struct shard *s)
{
    size_t n;
    struct replay_decisions_key *keys = waiting(s->replay, &n);

    for (size_t i = 0; i < n; i++)
        if (keys[i].op != SHARD_ROWS_LEFT)
            apply(s, &keys[i], s->version);
    if (n)
        qsort(keys, n, sizeof *keys, compare);
}

void replay_decisions_end(struct shard *s)
{
    bytes_consume(&s->replay->waiting, bytes_len(&s->replay->waiting));
    shard_trim(&s->replay->waiting);
}

bool replay_decisions_is_left(const struct shard *s, const struct shard_entry *entry,
                              uint64_t key)
{
    struct replay_decisions_key wanted = { .op = SHARD_ROWS_LEFT, .key = key };
    size_t n;
    const struct replay_decisions_key *keys = waiting(s->replay, &n);

    if (n == 0)
        return false;
    wanted.table_id = entry->id;
    return bsearch(&wanted, keys, n, sizeof *keys, compare) != NULL;
}
