/* The rows of a replica: which are held, how they come, how they are read. */
#include <errno.h>
#include <string.h>

#include "proto/codec_catalog.h"
#include "proto/route.h"
#include "worker/mirror/replica_state.h"

void replica_turn(struct replica *r)
{
    for (uint32_t i = 0; i < r->options.n_shards; i++)
        if (r->shards[i].shard)
            shard_restore_counts(r->shards[i].shard, 0, 0,
                                 shard_version(r->shards[i].shard) + 1);
}

/* Rows of this version and above stay. */
static uint64_t keep_from(const struct replica *r, const struct replica_shard *s) ON_SHARD
{
    uint64_t now = shard_version(s->shard), spared = r->options.n_turns - 1;

    return now > spared ? now - spared : 1;
}

static void want(struct replica_shard *s, struct row *row) ON_SHARD
{
    row->stamp = row_stamp(shard_version(s->shard), REPLICA_TOUCHES, 0);
}

uint64_t replica_n_pushes(const struct replica *r, uint32_t shard, uint32_t table)
{
    return shard_table(r->shards[shard].shard, r->tables[table].id)->n_pushes;
}

/* --- rows come --- */

static void make_room(struct replica *r, struct replica_shard *s, uint32_t table) ON_SHARD
{
    const struct replica_table *t = &r->tables[table];
    struct table *rows = shard_table(s->shard, t->id)->rows;
    uint64_t max = r->options.max_bytes / r->options.n_shards;
    struct row *row;

    while (s->n_bytes + t->row_bytes > max) {
        row = room_victim(&s->parts[t->id].room, rows, keep_from(r, s));
        if (!row)
            return;
        replica_note_gone(r, &t->spec, row->key);
        table_remove(rows, row);
        s->n_bytes -= t->row_bytes;
    }
}

static int hold(struct replica *r, struct replica_shard *s, uint32_t table, uint64_t key,
                const void *payload) ON_SHARD
{
    const struct replica_table *t = &r->tables[table];
    uint64_t n_rows = table_n_rows(shard_table(s->shard, t->id)->rows);
    int status;

    if (t->spec.kind == SPEC_SPARSE) {
        make_room(r, s, table);
        n_rows = table_n_rows(shard_table(s->shard, t->id)->rows);
    }
    status = shard_restore_row(s->shard, t->id, key,
                               row_stamp(shard_version(s->shard), REPLICA_TOUCHES, 0), payload);
    if (!status && t->spec.kind == SPEC_SPARSE &&
        table_n_rows(shard_table(s->shard, t->id)->rows) != n_rows)
        s->n_bytes += t->row_bytes;
    return status == PS_EBUDGET ? -ENOMEM : status;
}

/* --- which are held --- */

/* Keys that are looked up together. */
#define BATCH 256u

/* rows[i] of those of the keys that are this shard's. */
static void find_of_shard(const struct replica_shard *s, uint32_t id, uint32_t shard,
                          const uint32_t *owners, const uint64_t *keys, uint32_t n,
                          struct row **rows) ON_SHARD
{
    uint64_t own_keys[BATCH];
    uint32_t own[BATCH], n_own = 0;
    struct row *found[BATCH];

    for (uint32_t i = 0; i < n; i++) {
        own[n_own] = i;
        own_keys[n_own] = keys[i];
        n_own += owners[i] == shard;
    }
    if (!n_own)
        return;
    table_find_batch(shard_table(s->shard, id)->rows, own_keys, n_own, found);
    for (uint32_t i = 0; i < n_own; i++)
        rows[own[i]] = found[i];
}

/* n <= BATCH. Returns how many are not held. */
static uint32_t not_held(struct replica *r, const struct replica_table *t, const uint64_t *keys,
                         uint32_t n, uint64_t *ret_keys) ON_SHARD
{
    uint64_t salt = spec_salt(&t->spec);
    uint32_t owners[BATCH], n_missing = 0;
    struct row *rows[BATCH];

    for (uint32_t i = 0; i < n; i++)
        owners[i] = route_shard(keys[i], salt, r->options.n_shards);
    for (uint32_t shard = 0; shard < r->options.n_shards; shard++)
        find_of_shard(&r->shards[shard], t->id, shard, owners, keys, n, rows);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t key = keys[i];

        if (rows[i])
            want(&r->shards[owners[i]], rows[i]);
        else
            ret_keys[n_missing++] = key;
    }
    return n_missing;
}

/* A row that the server cannot have begins here as it will there; no need to ask. */
static bool begins_here(struct replica *r, uint32_t table, uint64_t key) ON_SHARD
{
    const struct replica_table *t = &r->tables[table];
    struct replica_shard *s =
        &r->shards[route_shard(key, spec_salt(&t->spec), r->options.n_shards)];

    return s->parts[t->id].complete && !replica_had(r, table, key) &&
           hold(r, s, table, key, NULL) == 0;
}

uint32_t replica_missing(struct replica *r, uint32_t table, const uint64_t *keys, uint32_t n,
                         uint64_t *ret_keys)
{
    uint32_t n_absent = 0, n_missing = 0;

    for (uint32_t from = 0; from < n; from += BATCH)
        n_absent += not_held(r, &r->tables[table], keys + from,
                             n - from < BATCH ? n - from : BATCH, ret_keys + n_absent);
    for (uint32_t i = 0; i < n_absent; i++)
        if (!begins_here(r, table, ret_keys[i]))
            ret_keys[n_missing++] = ret_keys[i];
    return n_missing;
}

/* What one shard has sent, cut up. */
struct answer {
    uint64_t n_pushes;
    const uint8_t *present, *rows;
};

static bool is_present(const struct answer *a, uint32_t i)
{
    return a->present[i / 8] >> i % 8 & 1;
}

static int cut(const uint8_t *values, size_t value_bytes, uint32_t n, uint32_t payload_bytes,
               struct answer *ret, uint8_t *ret_flags)
{
    size_t head_bytes = section_state_bytes(n), n_present = 0;

    if (value_bytes < head_bytes)
        return PS_ECOUNT;
    memcpy(&ret->n_pushes, values, sizeof ret->n_pushes);
    *ret_flags = values[sizeof ret->n_pushes];
    ret->present = values + SECTION_STATE_HEAD_BYTES;
    ret->rows = values + head_bytes;
    for (uint32_t i = 0; i < n; i++)
        n_present += is_present(ret, i);
    return value_bytes - head_bytes == n_present * payload_bytes ? 0 : PS_ECOUNT;
}

/* Where the count stands: known, or learnt. */
static int settle_count(struct replica_shard *s, uint32_t id, uint64_t told, uint64_t when_sent,
                        uint8_t flags) ON_SHARD
{
    struct replica_part *part = &s->parts[id];
    uint64_t since = shard_table(s->shard, id)->n_pushes - when_sent;

    if (part->counted)
        return told == when_sent ? 0 : PS_ESEQ;
    part->counted = true;
    part->complete = flags & SECTION_STATE_EMPTY;
    shard_restore_counts(s->shard, id, told + since, 0);
    return 0;
}

int replica_take(struct replica *r, const struct ps_pull_section *section, uint64_t n_pushes,
                 uint32_t shard, const uint32_t *numbers, uint32_t n, const uint8_t *values,
                 size_t value_bytes, uint8_t *ret_flags)
{
    struct replica_shard *s = &r->shards[shard];
    uint32_t id = r->tables[section->table].id;
    uint32_t payload_bytes = shard_table(s->shard, id)->payload_bytes;
    struct answer a;
    int status = cut(values, value_bytes, n, payload_bytes, &a, ret_flags);

    if (!status)
        status = settle_count(s, id, a.n_pushes, n_pushes, *ret_flags);
    for (uint32_t i = 0; i < n && !status; i++) {
        bool present = is_present(&a, i);

        status = hold(r, s, section->table, section->keys[numbers[i]], present ? a.rows : NULL);
        a.rows += present ? payload_bytes : 0;
    }
    return status;
}

/* --- rows are read --- */

/* As a server would answer: encoded in the codec that was asked for, and decoded again. */
static int read_shard(struct replica *r, uint32_t shard, const struct ps_pull_section *sections,
                      uint32_t n, struct err *err) ON_SHARD
{
    struct shard *s = r->shards[shard].shard;
    struct pull *pull = &r->pulls[shard];
    size_t value_bytes[SECTIONS_MAX], total = 0;
    const uint8_t *values[SECTIONS_MAX];
    uint64_t min_clock, version;
    uint8_t *answer;
    int status;

    for (uint32_t i = 0; i < n; i++)
        pull->sections[i].table_id = r->tables[sections[i].table].id;
    status = shard_pull_plan(s, pull, SIZE_MAX, value_bytes, err);
    if (status)
        return status;
    for (uint32_t i = 0; i < n; i++)
        total += value_bytes[i];
    buf_consume(&r->answer, buf_len(&r->answer));
    answer = buf_reserve(&r->answer, total + 1);
    if (!answer)
        return err_set(err, -ENOMEM, "no memory for %zu bytes of rows", total);
    status = shard_pull(s, NULL, pull, answer, &min_clock, &version, err);
    if (status)
        return status;
    for (uint32_t i = 0; i < n; i++) {
        values[i] = answer;
        answer += value_bytes[i];
    }
    status = encoder_pulled(r->encoder, sections, n, shard, values, value_bytes);
    return status ? err_set(err, status, "rows cannot be read: %s", status_text(status)) : 0;
}

int replica_read(struct replica *r, const struct ps_pull_section *sections, uint32_t n,
                 struct err *err)
{
    int status;

    for (uint32_t i = 0; i < r->options.n_shards; i++)
        buf_consume(&r->bufs[i], buf_len(&r->bufs[i]));
    status = encoder_pull(r->encoder, sections, n, r->bufs, r->pulls);
    if (status)
        return err_set(err, status, "a pull cannot be encoded: %s", status_text(status));
    for (uint32_t i = 0; i < r->options.n_shards && !status; i++)
        status = read_shard(r, i, sections, n, err);
    return status;
}

bool replica_had(const struct replica *r, uint32_t table, uint64_t key)
{
    return gone_has(&r->gone, key ^ spec_salt(&r->tables[table].spec));
}

uint64_t replica_n_rows(const struct replica *r)
{
    uint64_t n_rows = 0;

    for (uint32_t i = 0; i < r->options.n_shards; i++)
        for (uint32_t t = 0; r->shards[i].shard && t < shard_n_tables(r->shards[i].shard); t++)
            n_rows += table_n_rows(shard_table(r->shards[i].shard, t)->rows);
    return n_rows;
}

uint64_t replica_bytes(const struct replica *r)
{
    uint64_t n_bytes = 0;

    for (uint32_t i = 0; i < r->options.n_shards; i++)
        n_bytes += r->shards[i].n_bytes;
    return n_bytes;
}
