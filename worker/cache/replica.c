/*
 * From top to bottom: the filter of evicted keys, tables, rows that arrive, rows that are
 * read, pushes.
 */
#include "worker/cache/replica.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/hash.h"
#include "common/memory.h"
#include "proto/codec_catalog.h"
#include "proto/key_codec.h"
#include "proto/placement.h"
#include "server/core/restore.h"
#include "server/core/shard.h"
#include "server/core/table.h"
#include "server/core/table_admin.h"
#include "worker/cache/device_rows.h"
#include "worker/cache/eviction.h"
#include "worker/client/push_encoder.h"
#include "worker/client/request.h"

#define NO_TABLE UINT32_MAX
#define JOB "replica"  /* of the only worker */
#define BATCH 256u     /* keys that are looked up together */
#define PUSH_BATCH 64u /* likewise, of a push */
/* Touches of a row of the copy. A push makes rows with fewer, which tells them apart. */
#define TOUCHES 2u
/* Of a row, beside its own bytes: its place in the index, half filled. */
#define INDEX_BYTES 11u
#define FILTER_BITS (UINT64_C(1) << 24) /* with 1 million keys: wrong of 1 in 70 */
#define FILTER_HASHES 2u

/* Which keys were evicted: a Bloom filter of fixed size (Bloom, CACM 1970). Sometimes true of a key
 * that was not, never false of one that was. */
struct evicted_filter {
    uint8_t *bits; /* owned; NULL: none was evicted */
    bool is_full;  /* there is no memory for bits: any may have been evicted */
};

/* One table of one shard. */
struct shard_table_state {
    struct eviction eviction;
    bool counted;  /* the server has sent its step count */
    bool complete; /* every row of the server is here, or was evicted */
};

/* The copy of one of the servers' shards. */
struct shard_copy {
    struct shard *shard;                            /* owned; NULL: no table is covered yet */
    struct shard_table_state tables[PS_TABLES_MAX]; /* by the shard's number */
    uint64_t seq;
    uint64_t n_bytes; /* of rows that may be evicted */
    uint64_t n_begun
        [PS_TABLES_MAX]; /* by the store's number: steps of the device whose push was here */
};

struct copied_table {
    struct table_spec spec;
    uint32_t id; /* in every shard; NO_TABLE: not covered */
    uint32_t row_bytes;
    struct device_rows *device; /* owned; NULL: the rows are here */
    struct replica *replica;    /* borrowed: whose it is */
    uint64_t n_begun;           /* steps of the device */
    uint32_t
        n_unknown; /* keys of the last one's push that were neither there nor pulled for it */
    int device_status; /* of its push: PS_ESEQ if the shards are not at one step */
};

/* A thread that reads rows. */
struct row_reader {
    struct bytes answer; /* owned */
    struct pull pull;
};

struct replica {
    struct replica_options options;
    struct shard_copy *shards; /* owned, n_shards */
    struct copied_table tables[PS_TABLES_MAX];
    uint32_t n_tables;
    struct push_encoder *encoder; /* owned: of replica_read() */
    struct evicted_filter evicted;
    struct request_set pulls; /* owned, as all below: scratch of replica_read() */
    struct partition partition;
    struct row_reader *readers; /* of each thread */
    struct err *failures;       /* of each shard */
    struct push push;           /* scratch */
    bool is_ahead;              /* replica_ask_ahead() */
};

/* ---- the filter of evicted keys ---- */

/* None was evicted; holds no memory. */
static void clear_evicted(struct evicted_filter *f)
{
    free(f->bits);
    *f = (struct evicted_filter){ 0 };
}

static void add_evicted(struct evicted_filter *f, uint64_t key)
{
    if (!f->bits)
        f->bits = memory_try_alloc(FILTER_BITS / 8);
    f->is_full = f->is_full || !f->bits;
    for (uint32_t i = 0; f->bits && i < FILTER_HASHES; i++) {
        uint64_t at = hash_mix2(key, i) % FILTER_BITS;

        f->bits[at / 8] = (uint8_t)(f->bits[at / 8] | 1u << at % 8);
    }
}

static bool is_evicted(const struct evicted_filter *f, uint64_t key)
{
    bool has = f->bits != NULL;

    for (uint32_t i = 0; has && i < FILTER_HASHES; i++) {
        uint64_t at = hash_mix2(key, i) % FILTER_BITS;

        has = f->bits[at / 8] >> at % 8 & 1;
    }
    return has || f->is_full;
}

void replica_note_evicted(struct replica *r, uint32_t table, uint64_t key)
{
    add_evicted(&r->evicted, key ^ table_spec_salt(&r->tables[table].spec));
}

/* ---- life, tables ---- */

static uint32_t n_readers(const struct replica *r)
{
    return r->options.threads.n ? r->options.threads.n : 1;
}

struct replica *replica_new(const struct replica_options *options)
{
    struct replica *r = memory_alloc(sizeof *r);

    assert(options->n_shards > 0 && options->n_turns > 0);
    r->options = *options;
    r->shards = memory_alloc(options->n_shards * sizeof *r->shards);
    request_set_init(&r->pulls, options->n_shards, 0);
    partition_init(&r->partition, options->n_shards);
    r->readers = memory_alloc(n_readers(r) * sizeof *r->readers);
    r->failures = memory_alloc(options->n_shards * sizeof *r->failures);
    r->encoder = memory_need(push_encoder_new(options->n_shards));
    return r;
}

void replica_free(struct replica *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < r->options.n_shards; i++)
        shard_free(r->shards[i].shard);
    for (uint32_t i = 0; i < r->n_tables; i++)
        device_rows_free(r->tables[i].device);
    push_encoder_free(r->encoder);
    clear_evicted(&r->evicted);
    for (uint32_t i = 0; i < n_readers(r); i++)
        bytes_deinit(&r->readers[i].answer);
    free(r->readers);
    free(r->failures);
    request_set_deinit(&r->pulls);
    partition_deinit(&r->partition);
    free(r->shards);
    free(r);
}

/* Shard `i` of as many as the servers have, with one worker: this one. */
static int open_shard(struct replica *r, uint32_t i, struct err *err) ON_SHARD
{
    struct shard_config config = { .shard = i,
                                   .n_shards = r->options.n_shards,
                                   .lease_ms = UINT32_MAX,
                                   .join_ms = UINT32_MAX };
    struct membership_join join = {
        .job = JOB, .n_workers = 1, .incarnation = 1, .mode = TABLE_SPEC_MODE_ASYNC, .name = JOB
    };
    struct worker *worker;

    r->shards[i].shard = shard_new(&config);
    return membership_join(shard_membership(r->shards[i].shard), &join, 0, &worker, err);
}

/* A single worker's pushes end in the same bits in every mode; asynchronous is without queues. */
static struct table_spec own_spec(const struct table_spec *spec)
{
    struct table_spec own = *spec;

    own.mode = TABLE_SPEC_MODE_ASYNC;
    own.bound = 0;
    return own;
}

static int make_table(struct replica *r, uint32_t i, struct copied_table *t, struct err *err)
    ON_SHARD
{
    struct table_spec spec = own_spec(&t->spec);
    int status;

    if (!r->shards[i].shard) {
        status = open_shard(r, i, err);
        if (status)
            return status;
    }
    status = shard_table_open(r->shards[i].shard, &spec, false, &t->id, err);
    if (!status)
        t->row_bytes = (uint32_t)sizeof(struct row) + INDEX_BYTES +
                       shard_table(r->shards[i].shard, t->id)->payload_bytes;
    return status;
}

/* The decay of a key without a row is the server's from weights that are not rounded yet: here the row is made at once,
 * and rounded if its storage is of 16 bits. */
static bool can_cover(const struct table_spec *spec)
{
    const struct table_spec_limits *limits = &spec->limits;

    return limits->admit_touches < 2 && !limits->idle_clocks && !limits->ttl_s &&
           !limits->rare_touches && !limits->max_bytes &&
           (spec->row_decay == 0 || spec->storage == TABLE_SPEC_FP32);
}

int replica_add_table(struct replica *r, uint32_t table, const struct table_spec *spec,
                      struct err *err)
{
    struct copied_table *t = &r->tables[table];
    int status = 0;

    assert(table == r->n_tables && table < PS_TABLES_MAX);
    *t = (struct copied_table){ .spec = *spec, .id = NO_TABLE, .replica = r };
    for (uint32_t i = 0; i < r->options.n_shards && !status && can_cover(spec); i++)
        status = make_table(r, i, t, err);
    if (status)
        return status;
    if (push_encoder_add_table(r->encoder, table, spec))
        return err_set(err, -ENOMEM, "no memory for table %s", spec->name);
    r->n_tables++;
    return 0;
}

bool replica_covers(const struct replica *r, uint32_t table)
{
    return table < r->n_tables && r->tables[table].id != NO_TABLE;
}

const struct table_spec *replica_spec(const struct replica *r, uint32_t table)
{
    return &r->tables[table].spec;
}

static void note_lost(void *table, uint64_t key)
{
    struct copied_table *t = table;

    add_evicted(&t->replica->evicted, key ^ table_spec_salt(&t->spec));
}

bool replica_move_to_device(struct replica *r, uint32_t table, uint32_t n_places)
{
    struct copied_table *t = &r->tables[table];
    struct device_rows_options options = { .n_places = n_places,
                                           .dim = t->spec.dim,
                                           .n_states = table_spec_state_floats(&t->spec),
                                           .lost = note_lost,
                                           .arg = t };

    if (!replica_covers(r, table) || !device_rows_suits(&t->spec))
        return false;
    t->device = device_rows_new(&options);
    return t->device != NULL;
}

bool replica_is_on_device(const struct replica *r, uint32_t table)
{
    return table < r->n_tables && r->tables[table].device;
}

int replica_clear(struct replica *r, struct err *err)
{
    int status = 0;

    clear_evicted(&r->evicted);
    for (uint32_t i = 0; i < r->options.n_shards; i++) {
        shard_free(r->shards[i].shard);
        r->shards[i] = (struct shard_copy){ 0 };
        for (uint32_t t = 0; t < r->n_tables && !status; t++)
            if (replica_covers(r, t))
                status = make_table(r, i, &r->tables[t], err);
    }
    for (uint32_t t = 0; t < r->n_tables && !status; t++) {
        r->tables[t].n_begun = 0;
        if (r->tables[t].device && device_rows_clear(r->tables[t].device))
            status = err_set(err, -ENOMEM, "no memory for an index of the device's rows");
    }
    return status;
}

/* ---- turns ---- */

/* The push of the table's last step on the device has been here. */
static bool has_pushed(const struct replica *r, uint32_t table)
{
    bool has = true;

    for (uint32_t i = 0; i < r->options.n_shards; i++)
        has = has && r->shards[i].n_begun[table] == r->tables[table].n_begun;
    return has;
}

bool replica_begin_interval(struct replica *r)
{
    bool is_whole = true;

    r->is_ahead = false;
    for (uint32_t i = 0; i < r->options.n_shards; i++)
        if (r->shards[i].shard)
            restore_counts(r->shards[i].shard, 0, 0, shard_version(r->shards[i].shard) + 1);
    for (uint32_t t = 0; t < r->n_tables; t++)
        if (r->tables[t].device)
            is_whole =
                device_rows_begin_turn(r->tables[t].device) && has_pushed(r, t) && is_whole;
    return is_whole;
}

void replica_ask_ahead(struct replica *r)
{
    r->is_ahead = true;
}

/* Rows of this version and above stay. */
static uint64_t keep_from(const struct replica *r, const struct shard_copy *s) ON_SHARD
{
    uint64_t now = shard_version(s->shard), kept_turns = r->options.n_turns - 1;

    return now > kept_turns ? now - kept_turns : 1;
}

static void touch(struct shard_copy *s, struct row *row) ON_SHARD
{
    row->stamp = row_stamp(shard_version(s->shard), TOUCHES, 0);
}

uint64_t replica_n_pushes(const struct replica *r, uint32_t shard, uint32_t table)
{
    return shard_table(r->shards[shard].shard, r->tables[table].id)->n_pushes;
}

/* ---- rows arrive ---- */

static void evict_rows(struct replica *r, struct shard_copy *s, uint32_t table) ON_SHARD
{
    const struct copied_table *t = &r->tables[table];
    struct table *rows = shard_table(s->shard, t->id)->rows;
    uint64_t max = r->options.max_bytes / r->options.n_shards;
    struct row *row;

    while (s->n_bytes + t->row_bytes > max) {
        row = eviction_find(&s->tables[t->id].eviction, rows, keep_from(r, s));
        if (!row)
            return;
        replica_note_evicted(r, table, row->key);
        table_remove(rows, row);
        s->n_bytes -= t->row_bytes;
    }
}

/* payload NULL: as a row begins, which the shard knows. */
static int insert_on_device(struct replica *r, struct shard_copy *s, uint32_t table,
                            uint64_t key, const void *payload) ON_SHARD
{
    const struct copied_table *t = &r->tables[table];
    struct table *rows = shard_table(s->shard, t->id)->rows;
    struct row *row;
    int status;

    if (payload)
        return device_rows_insert(t->device, key, payload, r->is_ahead);
    status = restore_row(s->shard, t->id, key, row_stamp(1, TOUCHES, 0), NULL);
    if (status)
        return -ENOMEM;
    table_find_batch(rows, &key, 1, &row);
    status = device_rows_insert(t->device, key, row->floats, r->is_ahead);
    table_remove(rows, row);
    return status;
}

static int insert_row(struct replica *r, struct shard_copy *s, uint32_t table, uint64_t key,
                      const void *payload) ON_SHARD
{
    const struct copied_table *t = &r->tables[table];
    uint64_t n_rows = table_n_rows(shard_table(s->shard, t->id)->rows);
    int status;

    if (t->device)
        return insert_on_device(r, s, table, key, payload);
    if (t->spec.kind == TABLE_SPEC_SPARSE) {
        evict_rows(r, s, table);
        n_rows = table_n_rows(shard_table(s->shard, t->id)->rows);
    }
    status = restore_row(s->shard, t->id, key, row_stamp(shard_version(s->shard), TOUCHES, 0),
                         payload);
    if (!status && t->spec.kind == TABLE_SPEC_SPARSE &&
        table_n_rows(shard_table(s->shard, t->id)->rows) != n_rows)
        s->n_bytes += t->row_bytes;
    return status == PS_EBUDGET ? -ENOMEM : status;
}

/* ---- which rows are here ---- */

/* rows[i] of those of the keys that are this shard's. */
static void find_of_shard(const struct shard_copy *s, uint32_t id, uint32_t shard,
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

/* n <= BATCH. Returns how many are missing. */
static uint32_t find_missing(struct replica *r, const struct copied_table *t,
                             const uint64_t *keys, uint32_t n, uint64_t *ret_keys) ON_SHARD
{
    uint64_t salt = table_spec_salt(&t->spec);
    uint32_t owners[BATCH], n_missing = 0;
    struct row *rows[BATCH];

    for (uint32_t i = 0; i < n; i++)
        owners[i] = placement_shard(keys[i], salt, r->options.n_shards);
    for (uint32_t shard = 0; shard < r->options.n_shards; shard++)
        find_of_shard(&r->shards[shard], t->id, shard, owners, keys, n, rows);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t key = keys[i];

        if (rows[i])
            touch(&r->shards[owners[i]], rows[i]);
        else
            ret_keys[n_missing++] = key;
    }
    return n_missing;
}

/* A row that the server cannot have is made here, as the server would make it: no pull needed. */
static bool starts_locally(struct replica *r, uint32_t table, uint64_t key) ON_SHARD
{
    const struct copied_table *t = &r->tables[table];
    struct shard_copy *s =
        &r->shards[placement_shard(key, table_spec_salt(&t->spec), r->options.n_shards)];

    return s->tables[t->id].complete && !replica_was_evicted(r, table, key) &&
           insert_row(r, s, table, key, NULL) == 0;
}

uint32_t replica_missing(struct replica *r, uint32_t table, const uint64_t *keys, uint32_t n,
                         uint64_t *ret_keys)
{
    uint32_t n_absent = 0, n_missing = 0;

    if (r->tables[table].device)
        n_absent = device_rows_missing(r->tables[table].device, keys, n, ret_keys);
    for (uint32_t from = 0; from < n && !r->tables[table].device; from += BATCH)
        n_absent += find_missing(r, &r->tables[table], keys + from,
                                 n - from < BATCH ? n - from : BATCH, ret_keys + n_absent);
    for (uint32_t i = 0; i < n_absent; i++)
        if (!starts_locally(r, table, ret_keys[i]))
            ret_keys[n_missing++] = ret_keys[i];
    return n_missing;
}

/* One shard's answer. */
struct reply_stream {
    uint64_t n_pushes;
    const uint8_t *present, *rows;
};

static bool is_present(const struct reply_stream *a, uint32_t i)
{
    return a->present[i / 8] >> i % 8 & 1;
}

static int split_answer(const uint8_t *values, size_t value_bytes, uint32_t n,
                        uint32_t payload_bytes, struct reply_stream *ret, uint8_t *ret_flags)
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

/* The server's step count: compared, or, the first time, noted. */
static int check_count(struct shard_copy *s, uint32_t id, uint64_t n_pushes, uint64_t when_sent,
                       uint8_t flags) ON_SHARD
{
    struct shard_table_state *t = &s->tables[id];
    uint64_t since = shard_table(s->shard, id)->n_pushes - when_sent;

    if (t->counted)
        return n_pushes == when_sent ? 0 : PS_ESEQ;
    t->counted = true;
    t->complete = flags & SECTION_STATE_EMPTY;
    restore_counts(s->shard, id, n_pushes + since, 0);
    return 0;
}

int replica_receive(struct replica *r, const struct ps_pull_section *section, uint64_t n_pushes,
                    uint32_t shard, const uint32_t *numbers, uint32_t n, const uint8_t *values,
                    size_t value_bytes, uint8_t *ret_flags)
{
    struct shard_copy *s = &r->shards[shard];
    uint32_t id = r->tables[section->table].id;
    uint32_t payload_bytes = shard_table(s->shard, id)->payload_bytes;
    struct reply_stream a;
    int status = split_answer(values, value_bytes, n, payload_bytes, &a, ret_flags);

    if (!status)
        status = check_count(s, id, a.n_pushes, n_pushes, *ret_flags);
    for (uint32_t i = 0; i < n && !status; i++) {
        bool present = is_present(&a, i);

        status = insert_row(r, s, section->table, section->keys[numbers[i]],
                            present ? a.rows : NULL);
        a.rows += present ? payload_bytes : 0;
    }
    return status;
}

/* ---- rows are read ---- */

/* As a server would answer: encoded in the codec that was asked for, and decoded again. */
static int read_shard(struct replica *r, struct row_reader *reader, uint32_t shard,
                      const uint32_t *table_ids, const struct ps_pull_section *sections,
                      uint32_t n, struct err *err) ON_SHARD
{
    struct shard *s = r->shards[shard].shard;
    struct pull *pull = &reader->pull;
    size_t value_bytes[SECTIONS_MAX], total = 0;
    const uint8_t *values[SECTIONS_MAX];
    uint64_t min_clock, version;
    uint8_t *answer;
    int status;

    request_pull(r->pulls.requests[shard], table_ids, 0, pull);
    status = shard_pull_plan(s, pull, SIZE_MAX, value_bytes, err);
    if (status)
        return status;
    for (uint32_t i = 0; i < n; i++)
        total += value_bytes[i];
    bytes_consume(&reader->answer, bytes_len(&reader->answer));
    answer = bytes_reserve(&reader->answer, total + 1);
    if (!answer)
        return err_set(err, -ENOMEM, "no memory for %zu bytes of rows", total);
    status = shard_pull(s, NULL, pull, answer, &min_clock, &version, err);
    if (status)
        return status;
    for (uint32_t i = 0; i < n; i++) {
        values[i] = answer;
        answer += value_bytes[i];
    }
    status =
        push_encoder_pulled(r->encoder, sections, n, &r->partition, shard, values, value_bytes);
    return status ? err_set(err, status, "rows cannot be read: %s", status_text(status)) : 0;
}

/* Rows of all shards. */
struct read_job {
    struct replica *r; /* borrowed, as the sections */
    const struct ps_pull_section *sections;
    uint32_t n;
    uint32_t table_ids[PS_TABLES_MAX];
};

/* Shards are apart, and so are the rows that they fill. */
static void run_read(void *arg, uint32_t shard, uint32_t thread)
{
    const struct read_job *job = arg;
    struct err *err = &job->r->failures[shard];

    enter_shard();
    err->status = read_shard(job->r, &job->r->readers[thread], shard, job->table_ids,
                             job->sections, job->n, err);
}

/* The first shard's failure. */
static int read_shards(struct read_job *job, const struct task_threads *threads,
                       struct err *err)
{
    const uint32_t n_shards = job->r->options.n_shards;

    task_threads_run(threads, n_shards, run_read, job);
    for (uint32_t i = 0; i < n_shards; i++)
        if (job->r->failures[i].status) {
            *err = job->r->failures[i];
            return err->status;
        }
    return 0;
}

static int read_by(struct replica *r, const struct task_threads *threads,
                   const struct ps_pull_section *sections, uint32_t n, struct err *err) ON_SHARD
{
    struct read_job job = { .r = r, .sections = sections, .n = n };
    int status = request_set_acquire(&r->pulls, n);

    if (!status)
        status = push_encoder_pull(r->encoder, sections, n, &r->partition, r->pulls.requests);
    if (status)
        err_set(err, status, "a pull cannot be encoded: %s", status_text(status));
    for (uint32_t i = 0; i < r->n_tables; i++)
        job.table_ids[i] = r->tables[i].id;
    if (!status)
        status = read_shards(&job, threads, err);
    request_set_release(&r->pulls);
    return status;
}

/* But for the device's. */
int replica_read(struct replica *r, const struct ps_pull_section *sections, uint32_t n,
                 struct err *err)
{
    struct ps_pull_section here[SECTIONS_MAX];
    uint32_t n_here = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (r->tables[sections[i].table].device)
            device_rows_read(r->tables[sections[i].table].device, &sections[i]);
        else
            here[n_here++] = sections[i];
    }
    return n_here ? read_by(r, &r->options.threads, here, n_here, err) : 0;
}

int replica_read_alone(struct replica *r, const struct ps_pull_section *sections, uint32_t n,
                       struct err *err)
{
    return read_by(r, &(struct task_threads){ 0 }, sections, n, err);
}

bool replica_was_evicted(const struct replica *r, uint32_t table, uint64_t key)
{
    return is_evicted(&r->evicted, key ^ table_spec_salt(&r->tables[table].spec));
}

uint64_t replica_n_rows(const struct replica *r)
{
    uint64_t n_rows = 0;

    for (uint32_t i = 0; i < r->options.n_shards; i++)
        for (uint32_t t = 0; r->shards[i].shard && t < shard_n_tables(r->shards[i].shard); t++)
            n_rows += table_n_rows(shard_table(r->shards[i].shard, t)->rows);
    return n_rows;
}

uint64_t replica_n_device_rows(const struct replica *r)
{
    uint64_t n_rows = 0;

    for (uint32_t t = 0; t < r->n_tables; t++)
        n_rows += r->tables[t].device ? device_rows_n_rows(r->tables[t].device) : 0;
    return n_rows;
}

/* ---- pushes ---- */

/* Of a shard's copy, and of one that begins anew. */
static void set_rate(struct replica *r, uint32_t shard, const struct section *section) ON_SHARD
{
    struct copied_table *t = &r->tables[section->table_id];
    struct table_spec spec;
    int status;

    t->spec.params.learning_rate = section_rate_of(section->steps);
    if (!r->shards[shard].shard || !replica_covers(r, section->table_id))
        return;
    spec = own_spec(&t->spec);
    status = table_admin_set_spec(r->shards[shard].shard, t->id, &spec, NULL);
    assert(!status); /* the layout is the same */
    (void)status;
}

/* The step counts, and no row. */
static void make_empty(struct section *section)
{
    section->n_keys = 0;
    section->keys = section->values = NULL;
    section->key_bytes = section->value_bytes = 0;
    section->keys_at = section->n_finite = 0;
}

/* The sections whose tables are covered, with the numbers of the tables here. */
static void select_sections(struct replica *r, uint32_t shard, const struct request *push)
    ON_SHARD
{
    struct push *own = &r->push;

    own->clock = push->clock;
    own->n_samples = push->n_samples;
    own->tick = push->tick;
    own->n_sections = 0;
    for (uint32_t i = 0; i < push->n_sections; i++) {
        if (push->sections[i].op == SECTION_RATE)
            set_rate(r, shard, &push->sections[i]);
        if (push->sections[i].op == SECTION_RATE ||
            !replica_covers(r, push->sections[i].table_id))
            continue;
        own->sections[own->n_sections] = push->sections[i];
        own->sections[own->n_sections].table_id = r->tables[push->sections[i].table_id].id;
        if (r->tables[push->sections[i].table_id].device)
            make_empty(&own->sections[own->n_sections]);
        own->n_sections++;
    }
}

/* All behind the step's request: floats, and nothing between them. */
#define FACTORS_AT offsetof(struct device_rows_step, rate)
_Static_assert(sizeof(struct device_rows_step) - FACTORS_AT == 8 * sizeof(float),
               "what rows share is compared as bytes");

static bool has_same_factors(const struct device_rows_step *a, const struct device_rows_step *b)
{
    return memcmp((const uint8_t *)a + FACTORS_AT, (const uint8_t *)b + FACTORS_AT,
                  sizeof *a - FACTORS_AT) == 0;
}

/* The shards that have told their step count are to be at the same step: it is one for all rows. */
void replica_begin_update(struct replica *r, struct device_rows_step *step)
{
    struct copied_table *t = &r->tables[step->table];
    struct device_rows_step first;
    bool has_first = false;

    t->n_begun++;
    t->device_status = 0;
    t->n_unknown = device_rows_update(t->device, step->keys, step->n, step->places);
    for (uint32_t i = 0; i < r->options.n_shards; i++) {
        const struct shard_table *own = shard_table(r->shards[i].shard, t->id);

        if (has_first && !r->shards[i].tables[t->id].counted)
            continue;
        device_rows_fill_step(step, &own->spec, own->n_pushes + 1);
        if (!has_first || !r->shards[i].tables[t->id].counted)
            first = *step;
        else if (!has_same_factors(&first, step))
            t->device_status = PS_ESEQ;
        has_first = has_first || r->shards[i].tables[t->id].counted;
    }
    *step = first;
}

/* Of the device's tables: is this the push of the step that the device has begun, and can no answer under way be of
 * before it? */
static int check_device(struct replica *r, struct shard_copy *s, const struct request *push,
                        uint64_t *ret_left_out)
{
    int status = 0;

    for (uint32_t i = 0; i < push->n_sections; i++) {
        struct copied_table *t = &r->tables[push->sections[i].table_id];
        uint64_t *n_begun = &s->n_begun[push->sections[i].table_id];

        if (!t->device || push->sections[i].op == SECTION_RATE)
            continue;
        if (push->sections[i].op != SECTION_GRADIENT || *n_begun + 1 != t->n_begun)
            status = -EAGAIN;
        else if (!status)
            status = t->device_status;
        *n_begun = t->n_begun;
        *ret_left_out += t->n_unknown;
        device_rows_pushed(t->device);
    }
    return status;
}

/* A server's version counts a push once for what is applied when it comes, and once for what waits
 * for its clock (server/core). */
static uint64_t count_versions(const struct replica *r, const struct request *push)
{
    bool waits = false, applies = false;

    for (uint32_t i = 0; i < push->n_sections; i++) {
        enum table_spec_mode mode = r->tables[push->sections[i].table_id].spec.mode;

        if (mode == TABLE_SPEC_MODE_JOB)
            mode = r->options.mode;
        if (mode == TABLE_SPEC_MODE_BSP && section_op_is_gradient(push->sections[i].op))
            waits = true;
        else
            applies = true;
    }
    return (uint64_t)waits + applies;
}

/* Removes the rows that the push has made: the server's rows of these keys are not known here. */
static uint64_t remove_new(struct replica *r, struct shard *s, const struct section *section)
    ON_SHARD
{
    const struct shard_table *table = shard_table(s, section->table_id);
    struct table *rows = table->rows;
    struct row *found[PUSH_BATCH];
    uint64_t keys[PUSH_BATCH], n_dropped = 0;
    struct key_codec_reader reader;
    int status =
        key_codec_reader_init(&reader, section->keys, section->key_bytes, section->n_keys);

    while (!status && reader.n_left) {
        uint32_t n = reader.n_left < PUSH_BATCH ? reader.n_left : PUSH_BATCH;

        status = key_codec_reader_next(&reader, n, keys);
        table_find_batch(rows, keys, n, found);
        for (uint32_t i = 0; i < n; i++)
            if (found[i] && row_touches(found[i]) < TOUCHES) {
                table_remove(rows, found[i]);
                add_evicted(&r->evicted, keys[i] ^ table_spec_salt(&table->spec));
                n_dropped++;
            }
    }
    assert(!status); /* our own bytes */
    return n_dropped;
}

int replica_push(struct replica *r, uint32_t shard, const struct request *push,
                 uint64_t *ret_n_versions, uint64_t *ret_left_out)
{
    struct shard_copy *s = &r->shards[shard];
    struct shard_push_result result;
    struct worker *worker;
    uint64_t n_new;
    int device_status, status;

    *ret_n_versions = count_versions(r, push);
    *ret_left_out = 0;
    select_sections(r, shard, push);
    if (!s->shard || !r->push.n_sections)
        return 0;
    device_status = check_device(r, s, push, ret_left_out);
    n_new = shard_counters(s->shard)->rows_new;
    status = membership_find(shard_membership(s->shard), JOB, 0, 1, 0, &worker);
    assert(!status); /* it never leaves */
    r->push.seq = ++s->seq;
    status = shard_push(s->shard, worker, &r->push, 0, &result);
    if (status)
        return status;
    for (uint32_t i = 0; i < r->push.n_sections && shard_counters(s->shard)->rows_new != n_new;
         i++)
        *ret_left_out += remove_new(r, s->shard, &r->push.sections[i]);
    return device_status;
}
