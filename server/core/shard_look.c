#include "server/core/shard_look.h"

#include <errno.h>
#include <string.h>

#include "proto/route.h"
#include "server/core/shard_change.h"
#include "server/core/shard_state.h"

static struct shard_look_push *place(struct shard *s, uint64_t version)
{
    return &s->pushes[version % SHARD_LOOK_PUSHES];
}

void shard_look_note(struct shard *s, const struct worker *worker, const struct push *push)
{
    *place(s, s->version) = (struct shard_look_push){ .version = s->version,
                                                      .run = worker->job->run,
                                                      .clock = push->clock,
                                                      .incarnation = worker->incarnation,
                                                      .seq = push->seq,
                                                      .rank = worker->rank };
}

void shard_look_note_clock(struct shard *s, uint64_t run, uint64_t clock)
{
    *place(s, s->version) = (struct shard_look_push){
        .version = s->version, .run = run, .clock = clock, .is_combined = true
    };
}

static const char *find_job(const struct shard *s, uint64_t run)
{
    for (uint32_t i = 0; i < roster_n_jobs(s->roster); i++)
        if (roster_job(s->roster, i)->run == run)
            return roster_job(s->roster, i)->name;
    return NULL;
}

static const struct shard_entry *find_table(const struct shard *s, const char *name)
{
    for (uint32_t id = 0; id < s->n_tables; id++)
        if (strcmp(s->tables[id]->table.spec.name, name) == 0)
            return s->tables[id];
    return NULL;
}

int shard_look(struct shard *s, const char *table, uint64_t key, struct shard_look *ret)
{
    const struct shard_entry *entry = find_table(s, table);
    struct row *row;

    if (!entry)
        return PS_ENOTABLE;
    if (entry->key_end && key >= entry->key_end)
        return -ERANGE;
    *ret = (struct shard_look){ .owner = route_shard(key, entry->salt, s->config.n_shards) };
    if (ret->owner != s->config.shard)
        return 0;
    shard_change_first(s, entry, &key, 1);
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
