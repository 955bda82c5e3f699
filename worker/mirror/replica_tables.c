/* A replica's life and its tables (replica.h). */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/mem.h"
#include "worker/mirror/replica_state.h"

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
    struct roster_join join = { .job = REPLICA_JOB,
                                .n_workers = 1,
                                .incarnation = 1,
                                .mode = SPEC_MODE_ASYNC,
                                .name = REPLICA_JOB };
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
