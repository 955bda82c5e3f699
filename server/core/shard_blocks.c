#include "server/core/shard_blocks.h"

#include <errno.h>

#include "server/core/shard_grow.h"

/* What becomes of the rows of a push that has made some. */
enum fate { KEPT, UNDONE };

static uint32_t chunk_at(const struct shard_rows *b, uint32_t from)
{
    return b->n_keys - from < SHARD_CHUNK_MAX ? b->n_keys - from : SHARD_CHUNK_MAX;
}

static int make(struct shard *s, const struct shard_rows *b, uint64_t *n_made)
{
    struct row *rows[SHARD_CHUNK_MAX];
    int status = 0;

    for (uint32_t from = 0; from < b->n_keys; from += SHARD_CHUNK_MAX) {
        uint32_t n = chunk_at(b, from);

        table_find_batch(b->entry->table.rows, b->keys + from, n, rows);
        for (uint32_t i = 0; i < n; i++) {
            if (rows[i])
                continue;
            status = table_insert(b->entry->table.rows, b->keys[from + i], &rows[i]);
            if (status)
                return status;
            shard_grow_begin(s, b->entry, b->keys[from + i], rows[i]);
            rows[i]->stamp = row_stamp(0, 0, ROW_MAKING);
            ++*n_made;
        }
    }
    return 0;
}

/* The memory of what is undone stays the table's: whoever waits finds it there when its clock is
 * complete. */
static void end_making(struct shard *s, const struct shard_rows *b, enum fate fate)
{
    struct row *rows[SHARD_CHUNK_MAX];

    for (uint32_t from = 0; from < b->n_keys; from += SHARD_CHUNK_MAX) {
        uint32_t n = chunk_at(b, from);

        table_find_batch(b->entry->table.rows, b->keys + from, n, rows);
        for (uint32_t i = 0; i < n; i++) {
            if (!rows[i] || !(row_flags(rows[i]) & ROW_MAKING))
                continue;
            if (fate == UNDONE) {
                table_remove(b->entry->table.rows, rows[i]);
                continue;
            }
            rows[i]->stamp = row_stamp(0, 0, 0);
            s->counters.rows_new++;
        }
    }
}

static uint32_t count_absent(const struct shard_rows *b)
{
    struct row *rows[SHARD_CHUNK_MAX];
    uint32_t n_absent = 0;

    for (uint32_t from = 0; from < b->n_keys; from += SHARD_CHUNK_MAX) {
        uint32_t n = chunk_at(b, from);

        table_find_batch(b->entry->table.rows, b->keys + from, n, rows);
        for (uint32_t i = 0; i < n; i++)
            n_absent += !rows[i];
    }
    return n_absent;
}

static int say(const struct shard *s, struct shard_run *run, const struct shard_entry *entry,
               uint32_t n_absent, int status)
{
    const char *name = entry->table.spec.name;
    struct table_facts facts;

    run->fault.entry = entry;
    table_facts(entry->table.rows, &facts);
    if (status == -ENOMEM)
        return err_set(&run->fault.err, status,
                       "dense table %s: no memory for %u blocks of %llu bytes", name, n_absent,
                       (unsigned long long)facts.row_bytes);
    return err_set(
        &run->fault.err, status,
        "dense table %s: no room for %u blocks of %llu bytes: %llu of the %llu bytes "
        "that this shard may hold are taken (psd --memory-max, over all shards)",
        name, n_absent, (unsigned long long)facts.row_bytes, (unsigned long long)s->budget.used,
        (unsigned long long)s->budget.max);
}

int shard_blocks_make(struct shard *s, struct shard_run *run)
{
    const struct shard_rows *full = NULL;
    uint64_t n_made = 0;
    int status = 0;

    if (s->again)
        return 0;
    for (uint32_t i = 0; i < run->push->n_sections && !status; i++) {
        const struct shard_rows *b = &run->parts[i].rows;

        if (b->entry->key_end)
            status = make(s, b, &n_made);
        full = status ? b : NULL;
    }
    for (uint32_t i = 0; i < run->push->n_sections && n_made; i++)
        if (run->parts[i].rows.entry->key_end)
            end_making(s, &run->parts[i].rows, full || run->parts[i].waits ? UNDONE : KEPT);
    return full ? say(s, run, full->entry, count_absent(full), status) : 0;
}
