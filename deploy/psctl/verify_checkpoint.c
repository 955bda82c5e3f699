#include "deploy/psctl/verify_checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "proto/placement.h"
#include "server/checkpoint/checkpoint.h"
#include "server/core/replay.h"

#define TIME_MS 1u /* any time: nobody is served */

/* A file on its way past. */
struct file_check {
    uint64_t *salts, *key_ends; /* owned, of its tables; key_end 0: any key */
    uint8_t *state;             /* owned: membership and held pushes */
    size_t n_state, state_cap;
    struct err *err;
};

static void reset(struct file_check *l)
{
    free(l->salts);
    free(l->key_ends);
    free(l->state);
    l->salts = l->key_ends = NULL;
    l->state = NULL;
    l->n_state = l->state_cap = 0;
}

static int wrong(const struct file_check *l, const struct shard_file_reader *r,
                 const char *what, uint32_t table, uint64_t key)
{
    return err_set(l->err, PS_ECORRUPT, "table %s has key %" PRIu64 ", %s: %.110s",
                   r->tables[table].spec.name, key, what, r->path);
}

/* --- keys --- */

static int check_key(const struct file_check *l, const struct shard_file_reader *r,
                     uint32_t table, uint64_t key)
{
    const struct shard_file_identity *identity = &r->header.identity;

    if (l->key_ends[table] && key >= l->key_ends[table])
        return wrong(l, r, "a block that the array does not have", table, key);
    if (identity->n_shards &&
        placement_shard(key, l->salts[table], identity->n_shards) != identity->shard)
        return wrong(l, r, "which belongs to another shard", table, key);
    return 0;
}

static int check_rows(const struct file_check *l, const struct shard_file_reader *r,
                      const struct shard_file_reader_chunk *piece)
{
    int status = 0;

    for (uint32_t i = 0; i < piece->n_items && !status; i++) {
        uint64_t key, stamp;

        (void)shard_file_reader_row(piece, i, &key, &stamp);
        status = check_key(l, r, piece->table, key);
    }
    return status;
}

static int check_gone(const struct file_check *l, const struct shard_file_reader *r,
                      const struct shard_file_reader_chunk *piece)
{
    int status = 0;

    for (uint32_t i = 0; i < piece->n_items && !status; i++) {
        uint64_t key;

        memcpy(&key, piece->bytes + i * sizeof key, sizeof key);
        status = check_key(l, r, piece->table, key);
    }
    return status;
}

/* --- jobs and held pushes --- */

static int add_state(struct file_check *l, const struct shard_file_reader_chunk *piece)
{
    memcpy(l->state + l->n_state, piece->bytes, piece->n_bytes); /* the reader has counted */
    l->n_state += piece->n_bytes;
    return 0;
}

static int make_tables(const struct file_check *l, const struct shard_file_reader *r,
                       struct shard *shard) ON_SHARD
{
    int status = 0;

    replay_begin(shard);
    for (uint32_t i = 0; i < r->header.n_tables && !status; i++) {
        uint32_t id;

        status = r->tables[i].n_dropped
                     ? shard_skip_tables(shard, r->tables[i].n_dropped)
                     : shard_table_open(shard, &r->tables[i].spec, false, &id, l->err);
    }
    if (status)
        return status;
    status = replay_state(shard, l->state, l->n_state, TIME_MS);
    return status ? err_set(l->err, status, "its jobs or held pushes make no sense: %s: %.110s",
                            status_text(status), r->path)
                  : 0;
}

static int check_state(const struct file_check *l, const struct shard_file_reader *r)
{
    const struct shard_file_identity *identity = &r->header.identity;
    const struct shard_config config = { .shard = identity->shard,
                                         .n_shards = identity->n_shards,
                                         .lease_ms = TIME_MS,
                                         .join_ms = TIME_MS,
                                         .park_ms = TIME_MS };
    struct shard *shard;
    int status;

    if (identity->n_shards == 0)
        return 0;
    enter_shard();
    shard = shard_new(&config);
    status = make_tables(l, r, shard);
    shard_free(shard);
    return status;
}

/* --- what a chain shows --- */

static int on_file(void *owner, const struct shard_file_reader *r, uint32_t n_behind)
{
    struct file_check *l = owner;
    uint32_t n = r->header.n_tables;

    (void)n_behind;
    reset(l);
    l->salts = memory_alloc((n + 1) * sizeof *l->salts);
    l->key_ends = memory_alloc((n + 1) * sizeof *l->key_ends);
    l->state_cap = (size_t)r->header.state_bytes;
    l->state = memory_try_alloc(l->state_cap + 1);
    if (!l->state)
        return err_set(l->err, -ENOMEM,
                       "no memory for the %zu bytes of jobs and held pushes of %.110s",
                       l->state_cap, r->path);
    for (uint32_t i = 0; i < n; i++) {
        const struct table_spec *spec = &r->tables[i].spec;

        l->salts[i] = table_spec_salt(spec);
        l->key_ends[i] = spec->kind == TABLE_SPEC_DENSE ? table_spec_n_blocks(spec) : 0;
    }
    return l->state_cap ? 0 : check_state(l, r);
}

/* The state is checked when its last byte is there: it stands before all rows. */
static int on_piece(void *owner, const struct shard_file_reader *r,
                    const struct shard_file_reader_chunk *piece)
{
    struct file_check *l = owner;

    if (piece->what == SHARD_FILE_ROWS)
        return check_rows(l, r, piece);
    if (piece->what == SHARD_FILE_GONE)
        return check_gone(l, r, piece);
    add_state(l, piece);
    return l->n_state == l->state_cap ? check_state(l, r) : 0;
}

int verify_checkpoint_all(const struct file_ops *files, const struct checkpoint *c,
                          enum verify_checkpoint_extent extent, struct err *err)
{
    struct file_check l = { .err = err };
    const struct checkpoint_visitor visitor = { .owner = &l,
                                                .on_file = on_file,
                                                .on_piece = on_piece };
    int status = 0;

    for (uint32_t i = 0; i < c->links[0].n_files && !status; i++)
        status = extent == VERIFY_CHAIN
                     ? checkpoint_chain_read(files, c, i, &visitor, NULL, err)
                     : checkpoint_chain_read_link(files, c, i, 0, &visitor, NULL, err);
    reset(&l);
    return status;
}
