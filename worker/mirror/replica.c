#include "worker/mirror/replica.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/mem.h"
#include "proto/keys.h"
#include "worker/mirror/replica_state.h"

#define JOB "replica"
#define KEYS_AT_A_TIME 64u

/* --- life, tables --- */

struct replica *replica_new(const struct replica_options *options)
{
    struct replica *r = mem_alloc(sizeof *r);

    assert(options->n_shards > 0 && options->n_turns > 0);
    r->options = *options;
    r->shards = mem_alloc(options->n_shards * sizeof *r->shards);
    r->bufs = mem_alloc(options->n_shards * sizeof *r->bufs);
    r->pulls = mem_alloc(options->n_shards * sizeof *r->pulls);
    r->encoder = encoder_new(options->n_shards);
    return r;
}

void replica_free(struct replica *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < r->options.n_shards; i++) {
        shard_free(r->shards[i].shard);
        buf_deinit(&r->bufs[i]);
    }
    encoder_free(r->encoder);
    gone_deinit(&r->gone);
    buf_deinit(&r->answer);
    free(r->shards);
    free(r->bufs);
    free(r->pulls);
    free(r);
}

/* Shard `i` of as many as the servers have, with one worker: this one. */
static int open_shard(struct replica *r, uint32_t i, struct err *err) ON_SHARD
{
    struct shard_config config = { .shard = i,
                                   .n_shards = r->options.n_shards,
                                   .lease_ms = UINT32_MAX,
                                   .join_ms = UINT32_MAX };
    struct roster_join join = {
        .job = JOB, .n_workers = 1, .incarnation = 1, .mode = SPEC_MODE_ASYNC, .name = JOB
    };
    struct worker *worker;

    r->shards[i].shard = shard_new(&config);
    return roster_join(shard_roster(r->shards[i].shard), &join, 0, &worker, err);
}

/* A single worker's pushes end in the same bits in every mode; asynchronous is without queues. */
static struct table_spec own_spec(const struct table_spec *spec)
{
    struct table_spec own = *spec;

    own.mode = SPEC_MODE_ASYNC;
    own.bound = 0;
    return own;
}

static int make_table(struct replica *r, uint32_t i, struct replica_table *t, struct err *err)
    ON_SHARD
{
    struct table_spec spec = own_spec(&t->spec);
    int status;

    if (!r->shards[i].shard) {
        status = open_shard(r, i, err);
        if (status)
            return status;
    }
    status = shard_table_ask(r->shards[i].shard, &spec, false, &t->id, err);
    if (!status)
        t->row_bytes = (uint32_t)sizeof(struct row) + REPLICA_INDEX_BYTES +
                       shard_table(r->shards[i].shard, t->id)->payload_bytes;
    return status;
}

static bool may_be_held(const struct spec_limits *limits)
{
    return limits->admit_touches < 2 && !limits->idle_clocks && !limits->ttl_s &&
           !limits->rare_touches && !limits->max_bytes;
}

int replica_add_table(struct replica *r, uint32_t table, const struct table_spec *spec,
                      struct err *err)
{
    struct replica_table *t = &r->tables[table];
    int status = 0;

    assert(table == r->n_tables && table < PS_TABLES_MAX);
    *t = (struct replica_table){ .spec = *spec, .id = REPLICA_NO_TABLE };
    for (uint32_t i = 0; i < r->options.n_shards && !status && may_be_held(&spec->limits); i++)
        status = make_table(r, i, t, err);
    if (status)
        return status;
    if (encoder_add_table(r->encoder, table, spec))
        return err_set(err, -ENOMEM, "no memory for table %s", spec->name);
    r->n_tables++;
    return 0;
}

bool replica_covers(const struct replica *r, uint32_t table)
{
    return table < r->n_tables && r->tables[table].id != REPLICA_NO_TABLE;
}

const struct table_spec *replica_spec(const struct replica *r, uint32_t table)
{
    return &r->tables[table].spec;
}

int replica_clear(struct replica *r, struct err *err)
{
    int status = 0;

    for (uint32_t i = 0; i < r->options.n_shards; i++) {
        shard_free(r->shards[i].shard);
        r->shards[i] = (struct replica_shard){ 0 };
        for (uint32_t t = 0; t < r->n_tables && !status; t++)
            if (replica_covers(r, t))
                status = make_table(r, i, &r->tables[t], err);
    }
    return status;
}

/* --- pushes --- */

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
    status = roster_find(shard_roster(s->shard), JOB, 0, 1, 0, &worker);
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
