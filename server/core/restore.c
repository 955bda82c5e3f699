#include "server/core/restore.h"

#include <string.h>

#include "proto/placement.h"
#include "server/core/row_admission.h"
#include "server/core/shard_internal.h"

#define ROW_HEAD_BYTES 16u /* key, stamp */

/* Keys on their way through a lookup, and where each one's row stands in the checkpoint. */
struct batch {
    uint64_t keys[HASH_INDEX_GROUP_MAX];
    const uint8_t *at[HASH_INDEX_GROUP_MAX];
    struct row *rows[HASH_INDEX_GROUP_MAX];
    uint32_t n_keys;
    struct hash_index_group group;
};

static int check_key(const struct shard *s, const struct shard_entry *entry, uint64_t key,
                     bool *ret_ours)
{
    if (entry->key_end && key >= entry->key_end)
        return PS_ECORRUPT;
    *ret_ours = placement_shard(key, entry->salt, s->config.n_shards) == s->config.shard;
    return 0;
}

/* payload NULL: as a row begins. */
static void set(struct shard *s, struct shard_entry *entry, struct row *row, uint64_t stamp,
                const void *payload)
{
    row->stamp = stamp & ~UINT64_C(0xff); /* no flags */
    if (payload)
        memcpy(row->floats, payload, entry->table.payload_bytes);
    else
        row_admission_begin(s, entry, row->key, row);
}

int restore_row(struct shard *s, uint32_t table_id, uint64_t key, uint64_t stamp,
                const void *payload)
{
    struct shard_entry *entry = shard_entry_at(s, table_id);
    struct row *row;
    bool ours = false;
    int status = entry ? check_key(s, entry, key, &ours) : PS_ENOTABLE;

    if (status || !ours)
        return status;
    status = row_admission_restored(s, entry, &key, 1, &row);
    if (!status)
        set(s, entry, row, stamp, payload);
    return status;
}

/* From *at on, up to `end`, the keys that are this shard's, as many as there is space for: their places
 * in the index are asked for. */
static int gather(const struct shard *s, const struct shard_entry *entry, const uint8_t **at,
                  const uint8_t *end, size_t item_bytes, struct batch *b)
{
    int status = 0;

    b->n_keys = 0;
    for (; *at < end && b->n_keys < HASH_INDEX_GROUP_MAX && !status; *at += item_bytes) {
        bool ours = false;

        memcpy(&b->keys[b->n_keys], *at, sizeof b->keys[0]);
        b->at[b->n_keys] = *at;
        status = check_key(s, entry, b->keys[b->n_keys], &ours);
        b->n_keys += ours;
    }
    table_group_begin(entry->table.rows, &b->group, b->keys, b->n_keys, b->rows);
    return status;
}

static int put_batch(struct shard *s, struct shard_entry *entry, struct batch *b) ON_SHARD
{
    int status = row_admission_restored(s, entry, b->keys, b->n_keys, b->rows);

    for (uint32_t i = 0; i < b->n_keys && !status; i++) {
        uint64_t stamp;

        memcpy(&stamp, b->at[i] + 8, sizeof stamp);
        set(s, entry, b->rows[i], stamp, b->at[i] + ROW_HEAD_BYTES);
    }
    return status;
}

int restore_rows(struct shard *s, uint32_t table_id, const uint8_t *rows, uint32_t n_rows,
                 uint32_t *ret_n_ours)
{
    struct shard_entry *entry = shard_entry_at(s, table_id);
    struct batch batches[2];
    const uint8_t *at = rows, *end;
    size_t row_bytes;
    int status;

    if (!entry)
        return PS_ENOTABLE;
    row_bytes = ROW_HEAD_BYTES + entry->table.payload_bytes;
    end = rows + n_rows * row_bytes;
    *ret_n_ours = 0;
    status = gather(s, entry, &at, end, row_bytes, &batches[0]);
    for (uint32_t i = 0; batches[i].n_keys && !status; i = 1 - i) {
        status = gather(s, entry, &at, end, row_bytes, &batches[1 - i]);
        if (!status)
            status = put_batch(s, entry, &batches[i]);
        *ret_n_ours += batches[i].n_keys;
    }
    return status;
}

int restore_gone(struct shard *s, uint32_t table_id, const uint8_t *keys, uint32_t n_keys,
                 uint32_t *ret_n_ours)
{
    struct shard_entry *entry = shard_entry_at(s, table_id);
    const uint8_t *at = keys, *end = keys + n_keys * sizeof(uint64_t);
    struct batch b;
    int status = entry ? 0 : PS_ENOTABLE;

    *ret_n_ours = 0;
    while (at < end && !status) {
        status = gather(s, entry, &at, end, sizeof(uint64_t), &b);
        for (uint32_t i = 0; i < b.n_keys && !status; i++) {
            struct row *row;

            table_find_batch(entry->table.rows, &b.keys[i], 1, &row);
            if (row)
                table_remove(entry->table.rows, row);
        }
        *ret_n_ours += b.n_keys;
    }
    return status;
}

void restore_expect(struct shard *s, uint32_t table_id, uint64_t n_rows)
{
    table_expect(s->tables[table_id]->table.rows, n_rows);
}

void restore_counts(struct shard *s, uint32_t table_id, uint64_t n_pushes, uint64_t version)
{
    struct shard_entry *entry = shard_entry_at(s, table_id);

    if (entry && n_pushes > entry->table.n_pushes)
        entry->table.n_pushes = n_pushes;
    restore_version(s, version);
}

void restore_version(struct shard *s, uint64_t version)
{
    if (version > s->version)
        s->version = version;
}
