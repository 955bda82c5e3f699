#include "server/core/shard_again.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "server/core/shard_tell.h"

void shard_again_start(struct shard *s)
{
    s->again = mem_alloc(sizeof *s->again);
}

void shard_again_stop(struct shard *s)
{
    if (s->again)
        buf_deinit(&s->again->waiting);
    free(s->again);
    s->again = NULL;
}

static struct row *find(const struct shard_entry *entry, uint64_t key)
{
    struct row *row;

    table_find_batch(entry->table.rows, &key, 1, &row);
    return row;
}

/* To a row as it was when this was told, at most of that version; a newer one was made, or changed,
 * since. What is left of a push that is already applied was made by it. */
static void apply(struct shard *s, const struct shard_again_key *k, uint64_t version)
{
    struct shard_entry *entry = s->tables[k->table_id];
    struct row *row = find(entry, k->key);

    if (!row || row_version(row) > version ||
        (k->op == SHARD_ROWS_LEFT && row_version(row) != version))
        return;
    if (k->op == SHARD_ROWS_TOUCHES)
        shard_tell_touches(s, entry, row, k->touches, row_flags(row));
    else
        shard_tell_gone(s, entry, row);
}

static int wait_for_push(struct shard_again *again, const struct shard_again_key *key)
{
    uint8_t *dst = buf_reserve(&again->waiting, sizeof *key);

    if (!dst)
        return -ENOMEM;
    memcpy(dst, key, sizeof *key);
    buf_commit(&again->waiting, sizeof *key);
    return 0;
}

int shard_again_tell(struct shard *s, const struct shard_event *event)
{
    int status = 0;

    if (event->rows.table_id >= s->n_tables || event->rows.op >= SHARD_ROWS_OP_END ||
        event->version > s->version + 1 ||
        (event->rows.op == SHARD_ROWS_TOUCHES && !event->rows.touches))
        return PS_ECORRUPT;
    for (uint32_t i = 0; i < event->rows.n_keys && !status; i++) {
        const struct shard_again_key key = {
            .table_id = event->rows.table_id,
            .op = (uint8_t)event->rows.op,
            .touches = event->rows.touches ? event->rows.touches[i] : 0,
            .key = event->rows.keys[i],
        };

        if (event->version <= s->version)
            apply(s, &key, event->version);
        else
            status = wait_for_push(s->again, &key);
    }
    return status;
}

static struct shard_again_key *waiting(const struct shard_again *again, size_t *ret_n)
{
    *ret_n = buf_len(&again->waiting) / sizeof(struct shard_again_key);
    return (struct shard_again_key *)(void *)(again->waiting.bytes + again->waiting.start);
}

static int compare(const void *a, const void *b)
{
    const struct shard_again_key *x = a, *y = b;

    if (x->op != y->op)
        return x->op < y->op ? -1 : 1;
    if (x->table_id != y->table_id)
        return x->table_id < y->table_id ? -1 : 1;
    return x->key < y->key ? -1 : x->key > y->key;
}

void shard_again_begin(struct shard *s)
{
    size_t n;
    struct shard_again_key *keys = waiting(s->again, &n);

    for (size_t i = 0; i < n; i++)
        if (keys[i].op != SHARD_ROWS_LEFT)
            apply(s, &keys[i], s->version);
    if (n)
        qsort(keys, n, sizeof *keys, compare);
}

void shard_again_end(struct shard *s)
{
    buf_consume(&s->again->waiting, buf_len(&s->again->waiting));
    shard_trim(&s->again->waiting);
}

bool shard_again_is_left(const struct shard *s, const struct shard_entry *entry, uint64_t key)
{
    struct shard_again_key wanted = { .op = SHARD_ROWS_LEFT, .key = key };
    size_t n;
    const struct shard_again_key *keys = waiting(s->again, &n);

    if (n == 0)
        return false;
    while (s->tables[wanted.table_id] != entry)
        wanted.table_id++;
    return bsearch(&wanted, keys, n, sizeof *keys, compare) != NULL;
}
