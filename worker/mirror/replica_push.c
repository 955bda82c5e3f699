/* Pushes on a replica (replica.h). */
#include <assert.h>

#include "proto/keys.h"
#include "worker/mirror/replica_state.h"

#define KEYS_AT_A_TIME 64u

/* The push as far as its tables are covered, with the shard's numbers of them. */
static void translate(struct replica *r, const struct push *push)
{
    struct push *own = &r->push;

    own->clock = push->clock;
    own->n_samples = push->n_samples;
    own->tick = push->tick;
    own->n_sections = 0;
    for (uint32_t i = 0; i < push->n_sections; i++) {
        if (!replica_covers(r, push->sections[i].table_id))
            continue;
        own->sections[own->n_sections] = push->sections[i];
        own->sections[own->n_sections++].table_id = r->tables[push->sections[i].table_id].id;
    }
}

/* A server's version counts a push once for what is applied when it comes, and once for what waits
 * for its clock (server/core/shard_verdict.c, shard_combine.c). */
static uint64_t count_versions(const struct replica *r, const struct push *push)
{
    bool waits = false, applies = false;

    for (uint32_t i = 0; i < push->n_sections; i++) {
        enum spec_mode mode = r->tables[push->sections[i].table_id].spec.mode;

        if (mode == SPEC_MODE_JOB)
            mode = r->options.mode;
        if (mode == SPEC_MODE_BSP && push->sections[i].op == SECTION_GRADIENT)
            waits = true;
        else
            applies = true;
    }
    return (uint64_t)waits + applies;
}

/* The rows that the push has made: they are not as the server's, of which nothing is known. */
static uint64_t drop_new(struct replica *r, struct shard *s, const struct section *section)
    ON_SHARD
{
    const struct shard_table *table = shard_table(s, section->table_id);
    struct table *rows = table->rows;
    struct row *found[KEYS_AT_A_TIME];
    uint64_t keys[KEYS_AT_A_TIME], n_dropped = 0;
    struct keys_reader reader;
    int status = keys_reader_init(&reader, section->keys, section->key_bytes, section->n_keys);

    while (!status && reader.n_left) {
        uint32_t n = reader.n_left < KEYS_AT_A_TIME ? reader.n_left : KEYS_AT_A_TIME;

        status = keys_reader_next(&reader, n, keys);
        table_find_batch(rows, keys, n, found);
        for (uint32_t i = 0; i < n; i++)
            if (found[i] && row_touches(found[i]) < REPLICA_TOUCHES) {
                table_remove(rows, found[i]);
                replica_note_gone(r, &table->spec, keys[i]);
                n_dropped++;
            }
    }
    assert(!status); /* our own bytes */
    return n_dropped;
}

int replica_push(struct replica *r, uint32_t shard, const struct push *push,
                 uint64_t *ret_n_versions, uint64_t *ret_left_out)
{
    struct replica_shard *s = &r->shards[shard];
    struct shard_push_result result;
    struct worker *worker;
    uint64_t n_new;
    int status;

    *ret_n_versions = count_versions(r, push);
    *ret_left_out = 0;
    translate(r, push);
    if (!s->shard || !r->push.n_sections)
        return 0;
    n_new = shard_counters(s->shard)->rows_new;
    status = roster_find(shard_roster(s->shard), REPLICA_JOB, 0, 1, 0, &worker);
    assert(!status); /* it never leaves */
    r->push.seq = ++s->seq;
    status = shard_push(s->shard, worker, &r->push, 0, &result);
    if (status)
        return status;
    for (uint32_t i = 0; i < r->push.n_sections && shard_counters(s->shard)->rows_new != n_new;
         i++)
        *ret_left_out += drop_new(r, s->shard, &r->push.sections[i]);
    return 0;
}
