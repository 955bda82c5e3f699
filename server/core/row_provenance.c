#include "server/core/row_provenance.h"

#include <errno.h>
#include <string.h>

#include "proto/placement.h"
#include "server/core/push_apply.h"
#include "server/core/shard_internal.h"

static struct row_provenance_push *place(struct shard *s, uint64_t version)
{
    return &s->pushes[version % ROW_PROVENANCE_PUSHES];
}

void row_provenance_note(struct shard *s, const struct worker *worker, const struct push *push)
{
    *place(s, s->version) = (struct row_provenance_push){ .version = s->version,
                                                          .run = worker->job->run,
                                                          .clock = push->clock,
                                                          .incarnation = worker->incarnation,
                                                          .seq = push->seq,
                                                          .rank = worker->rank };
}

void row_provenance_note_clock(struct shard *s, uint64_t run, uint64_t clock)
{
    *place(s, s->version) = (struct row_provenance_push){
        .version = s->version, .run = run, .clock = clock, .is_combined = true
    };
}

static const char *find_job(const struct shard *s, uint64_t run)
{
    for (uint32_t i = 0; i < membership_n_jobs(s->membership); i++)
        if (membership_job(s->membership, i)->run == run)
            return membership_job(s->membership, i)->name;
    return NULL;
}

static const struct shard_entry *find_table(const struct shard *s, const char *name)
{
    for (uint32_t id = 0; id < s->n_tables; id++)
        if (s->tables[id] && strcmp(s->tables[id]->table.spec.name, name) == 0)
            return s->tables[id];
    return NULL;
}

int row_provenance_find(struct shard *s, const char *table, uint64_t key,
                        struct row_provenance *ret)
{
    const struct shard_entry *entry = find_table(s, table);
    struct row *row;

    if (!entry)
        return PS_ENOTABLE;
    if (entry->key_end && key >= entry->key_end)
        return -ERANGE;
    *ret = (struct row_provenance){ .owner =
                                        placement_shard(key, entry->salt, s->config.n_shards) };
    if (ret->owner != s->config.shard)
        return 0;
    push_apply_first(s, entry, &key, 1);
    table_find_batch(entry->table.rows, &key, 1, &row);
    ret->table = &entry->table;
    ret->row = row;
    if (!row || row_version(row) == 0 ||
        place(s, row_version(row))->version != row_version(row))
        return 0;
    ret->push = place(s, row_version(row));
    ret->job = find_job(s, ret->push->run);
    return 0;
}
