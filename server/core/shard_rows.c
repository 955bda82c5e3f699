#include "server/core/shard_rows.h"

#include "server/core/shard_change.h"
#include "server/core/shard_grow.h"

uint32_t shard_rows_find(struct shard *s, struct shard_rows *b, uint32_t from, uint32_t n)
{
    uint32_t n_absent = 0;

    shard_change_first(s, b->entry, b->keys + from, n);
    table_find_batch(b->entry->table.rows, b->keys + from, n, b->rows + from);
    for (uint32_t i = from; i < from + n; i++)
        n_absent += b->rows[i] == NULL;
    return n_absent;
}

void shard_rows_pin(struct shard_rows *b, uint32_t from, uint32_t n)
{
    for (uint32_t i = from; i < from + n; i++)
        if (b->rows[i])
            b->rows[i]->stamp |= ROW_PINNED;
}

/* Admission is for keys that are learned, and not for what somebody sets. */
static int grow(struct shard *s, struct shard_rows *b, uint32_t i)
{
    if (b->op == SECTION_ASSIGN)
        return shard_grow_assigned(s, b->entry, b->keys[i], &b->rows[i]);
    return shard_grow(s, b->entry, b->keys[i], &b->rows[i]);
}

int shard_rows_grow(struct shard *s, struct shard_rows *b, uint32_t from, uint32_t n)
{
    for (uint32_t i = from; i < from + n; i++) {
        int status;

        if (b->rows[i])
            continue;
        /* Another push may have made it since it was looked for. */
        table_find_batch(b->entry->table.rows, &b->keys[i], 1, &b->rows[i]);
        if (!b->rows[i]) {
            status = grow(s, b, i);
            if (status)
                return status;
            if (!b->rows[i])
                continue;
            shard_mark_set(b, i);
        }
        b->rows[i]->stamp |= ROW_PINNED;
    }
    return 0;
}

static void unpin(const struct shard *s, const struct shard_rows *b, uint32_t i)
{
    if (!shard_change_awaits(s, b->entry, b->rows[i]))
        b->rows[i]->stamp &= ~(uint64_t)ROW_PINNED;
}

void shard_rows_unpin(const struct shard *s, struct shard_rows *b)
{
    for (uint32_t i = 0; i < b->n_keys; i++)
        if (b->rows[i])
            unpin(s, b, i);
}

void shard_rows_undo(struct shard *s, struct shard_rows *b)
{
    for (uint32_t i = 0; i < b->n_keys; i++) {
        if (!b->rows[i])
            continue;
        unpin(s, b, i);
        if (shard_mark_is_set(b, i))
            shard_grow_undo(s, b->entry, b->rows[i]);
        b->rows[i] = NULL;
    }
}
