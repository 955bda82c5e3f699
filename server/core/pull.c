/*
 * Pulls (shard.h): sized, parked until the clocks allow, read and encoded in slices.
 *
 * A chunk of keys is found while the one before it has still to be encoded, and a row of it is
 * prefetched for each row that is encoded. So a prefetch has the time of a chunk, and the row is near
 * when its turn comes.
 */
#include <inttypes.h>
#include <string.h>

#include "server/core/bsp.h"
#include "server/core/push_apply.h"
#include "server/core/row_decay.h"
#include "server/core/row_init.h"
#include "server/core/scan.h"
#include "server/core/section_check.h"
#include "server/core/sync_point.h"
#include "server/core/weights.h"

#define NO_BOUND UINT64_MAX

/* Rows of the answer. */
#define AHEAD 8u

/* Of a call of shard_pull_decode_keys(); a few hundred microseconds. */
#define KNOW_KEYS 32768u

/* Of a row that is compared with the client's and encoded, against one that is copied. */
#define DELTA_COST 8u

/* Of one row; behind that the hardware has seen where it goes. */
#define PREFETCH_BYTES_MAX 1024u

/* --- readiness --- */

/* Of a section's answer. */
static size_t bytes_beside_rows(const struct section *sent)
{
    if (sent->state)
        return section_state_bytes(sent->n_keys);
    if (sent->delta.asked)
        return section_delta_bytes(sent->n_keys);
    return sent->present ? section_present_bytes(sent->n_keys) : 0;
}

static int check_delta(const struct shard_section *section, struct err *err)
{
    return section->codec->feedback
               ? err_set(err, PS_ECODEC, "table %s: rows that are whole do not come as %s",
                         section->entry->table.spec.name, section->codec->name)
               : 0;
}

int shard_pull_plan(struct shard *s, const struct pull *pull, size_t max_bytes,
                    size_t *ret_value_bytes, struct err *err)
{
    const uint32_t n_scans = scan_n_sections(pull);
    size_t head_bytes, total = 0;
    int status = 0;

    for (uint32_t i = 0; i < pull->n_sections; i++) {
        const struct section *sent = &pull->sections[i];
        struct shard_section section;

        if ((status = section_check_table(s, sent, &section, err)) != 0 ||
            (status = section_check_codec(s, &section, err)) != 0 ||
            (status = section_check_count(&section, err)) != 0)
            return status;
        if (sent->scan_bytes) {
            status = scan_plan(&section, n_scans, max_bytes - total, &ret_value_bytes[i], err);
            if (status)
                return status;
            total += ret_value_bytes[i];
            continue;
        }
        if (sent->delta.asked && (status = check_delta(&section, err)) != 0)
            return status;
        head_bytes = bytes_beside_rows(sent);
        if (head_bytes > max_bytes - total ||
            sent->n_keys > (max_bytes - total - head_bytes) / section.row_bytes)
            return err_set(
                err, PS_ETOOBIG,
                "table %s: %" PRIu32 " rows of %zu bytes do not fit in an answer of %zu bytes",
                section.entry->table.spec.name, sent->n_keys, section.row_bytes, max_bytes);
        ret_value_bytes[i] = head_bytes + sent->n_keys * section.row_bytes;
        total += ret_value_bytes[i];
    }
    return 0;
}

/* How many clocks a worker of the job may be ahead of min clock when it reads this table. */
static uint64_t table_bound(const struct shard_entry *entry, const struct job *job)
{
    switch (shard_mode_of(entry, job)) {
    case TABLE_SPEC_MODE_BSP:
        return 0;
    case TABLE_SPEC_MODE_SSP:
        return entry->table.spec.mode == TABLE_SPEC_MODE_SSP ? entry->table.spec.bound
                                                             : job->bound;
    case TABLE_SPEC_MODE_JOB:
    case TABLE_SPEC_MODE_ASYNC:
    case TABLE_SPEC_MODE_END:
        break;
    }
    return NO_BOUND;
}

/* The strictest of the tables asked for. */
static uint64_t bound_of(const struct shard *s, const struct job *job, const struct pull *pull)
{
    uint64_t strictest = NO_BOUND;

    for (uint32_t i = 0; i < pull->n_sections; i++) {
        const struct shard_entry *entry = shard_entry_at(s, pull->sections[i].table_id);
        /* NULL: the plan has refused it. */
        uint64_t bound = entry ? table_bound(entry, job) : NO_BOUND;

        if (bound < strictest)
            strictest = bound;
    }
    return strictest;
}

static bool has_lockstep(const struct shard *s, const struct job *job, const struct pull *pull)
{
    for (uint32_t i = 0; i < pull->n_sections; i++) {
        const struct shard_entry *entry = shard_entry_at(s, pull->sections[i].table_id);

        if (entry && shard_mode_of(entry, job) == TABLE_SPEC_MODE_BSP)
            return true;
    }
    return false;
}

uint64_t shard_pull_needs(const struct shard *s, const struct job *job, const struct pull *pull,
                          bool *ret_is_sync_point)
{
    uint64_t bound = bound_of(s, job, pull),
             sync_point = sync_point_before(s, job, pull->clock);
    uint64_t needs = pull->clock > bound ? pull->clock - bound : 0;

    *ret_is_sync_point = sync_point > needs;
    return *ret_is_sync_point ? sync_point : needs;
}

bool shard_pull_ready(struct shard *s, const struct worker *worker, const struct pull *pull)
{
    bool is_sync_point;

    if (!worker)
        return true;
    if (job_min_clock(worker->job) < shard_pull_needs(s, worker->job, pull, &is_sync_point))
        return false;
    return !has_lockstep(s, worker->job, pull) || !bsp_is_behind(s, worker->job);
}

/* --- reading --- */

struct chunk {
    uint32_t n;
    uint64_t keys[SHARD_CHUNK_MAX];
    struct row *rows[SHARD_CHUNK_MAX];
};

static bool is_sent_as_stored(enum table_spec_storage storage, enum codec_id codec)
{
    return (storage == TABLE_SPEC_FP32 && codec == CODEC_FP32) ||
           (storage == TABLE_SPEC_BF16 && codec == CODEC_BF16) ||
           (storage == TABLE_SPEC_FP16 && codec == CODEC_FP16);
}

static void put_bytes(struct shard_pull_op *op, const void *src, size_t n_bytes)
{
    memcpy(op->dst, src, n_bytes);
    op->dst += n_bytes;
    op->value_bytes[op->at] += n_bytes;
}

static uint8_t state_flags(const struct shard *s, const struct shard_entry *entry)
{
    uint8_t limited = s->budget.max || entry->budget.max ? SECTION_STATE_LIMITED : 0;
    uint8_t empty = table_n_rows(entry->table.rows) ? 0 : SECTION_STATE_EMPTY;

    return limited | empty;
}

/* What stands before the rows, if they come with their state (section.h). */
static void put_state_head(const struct shard *s, struct shard_pull_op *op)
{
    const struct section *sent = op->section.sent;
    const struct shard_entry *entry = op->section.entry;
    uint8_t flags = state_flags(s, entry);
    size_t n_bytes = section_state_bytes(sent->n_keys) - SECTION_STATE_HEAD_BYTES;

    put_bytes(op, &entry->table.n_pushes, sizeof entry->table.n_pushes);
    put_bytes(op, &flags, sizeof flags);
    op->present = op->dst;
    memset(op->dst, 0, n_bytes);
    op->dst += n_bytes;
    op->value_bytes[op->at] += n_bytes;
}

/* Which keys have a row stands behind the values. */
static void open_present(struct shard_pull_op *op)
{
    const struct section *sent = op->section.sent;

    op->present = op->dst + sent->n_keys * op->section.row_bytes;
    memset(op->present, 0, section_present_bytes(sent->n_keys));
}

static void close_present(struct shard_pull_op *op)
{
    const size_t n_bytes = section_present_bytes(op->section.sent->n_keys);

    if (!op->present || op->section.sent->state)
        return;
    op->dst += n_bytes;
    op->value_bytes[op->at] += n_bytes;
}

/* Rows as differences from those that the client has. */
static int open_delta(struct shard_pull_op *op, struct err *err)
{
    const struct shard_section *section = &op->section;
    const struct section *sent = section->sent;
    const char *name = section->entry->table.spec.name;
    struct delta_rows *rows = &op->bare;
    int status;

    if (!op->deltas)
        return err_set(err, PS_EPROTO, "table %s: nobody knows here what the client has", name);
    status = pull_deltas_find(op->deltas, sent->table_id, &section->entry->table.spec, &rows);
    if (status)
        return err_set(err, status, "table %s: no memory for its differences", name);
    delta_writer_open(&op->delta, rows, section->codec, &sent->delta, sent->n_keys,
                      pull_deltas_next_number(op->deltas), op->dst);
    return 0;
}

static void close_delta(struct shard *s, struct shard_pull_op *op)
{
    const size_t whole_bytes = op->section.sent->n_keys * op->section.row_bytes;
    uint8_t *end = delta_writer_close(&op->delta);

    op->value_bytes[op->at] = (size_t)(end - op->dst);
    op->dst = end;
    for (uint32_t mode = 0; mode <= SECTION_DELTA_FULL; mode++)
        s->counters.delta_rows[mode] += op->delta.counts.rows[mode];
    s->counters.delta_anew += op->delta.is_anew;
    if (op->value_bytes[op->at] < whole_bytes)
        s->counters.delta_bytes_saved += whole_bytes - op->value_bytes[op->at];
}

static int open_section(const struct shard *s, struct shard_pull_op *op, struct err *err)
{
    const struct section *sent = &op->pull->sections[op->at];
    struct shard_section *section = &op->section;
    int status;

    if (op->is_open)
        return 0;
    if ((status = section_check_table(s, sent, section, err)) != 0 ||
        (status = section_check_codec(s, section, err)) != 0)
        return status;
    op->is_open = true;
    op->copies = is_sent_as_stored(section->entry->table.spec.storage, section->codec->id);
    op->n_read = 0;
    op->value_bytes[op->at] = 0;
    op->present = NULL;
    if (sent->state && !sent->scan_bytes)
        put_state_head(s, op);
    else if (sent->present && !sent->scan_bytes)
        open_present(op);
    else if (sent->delta.asked && (status = open_delta(op, err)) != 0)
        return status;
    return section_check_open(section, err);
}

static void copy_known(struct shard_pull_op *op, struct chunk *ret)
{
    memcpy(ret->keys, op->known, ret->n * sizeof *op->known);
    op->known += ret->n;
    op->section.keys.n_left -= ret->n;
}

/* The order of keys and whose they are is held here, not in the plan: so a pull's keys are read
 * once. */
static int fetch(struct shard *s, struct shard_pull_op *op, struct chunk *ret, struct err *err)
{
    const struct shard_entry *entry = op->section.entry;
    uint32_t n = entry->chunk_rows, n_left = op->section.keys.n_left;
    uint64_t wrong_key;
    int status;

    ret->n = n < n_left ? n : n_left;
    if (op->known) {
        copy_known(op, ret);
    } else {
        status = section_check_keys(s, &op->section, ret->n, ret->keys, &wrong_key, err);
        if (status)
            return status;
    }
    push_apply_first(s, entry, ret->keys, ret->n);
    table_find_batch(entry->table.rows, ret->keys, ret->n, ret->rows);
    return 0;
}

/* A row's weights as they would be stored if it were there and had decayed. */
static const void *made_payload(struct shard *s, const struct shard_table *table, uint64_t key,
                                const struct row *row)
{
    const struct table_spec *spec = &table->spec;

    if (row)
        weights_load(spec->storage, row->floats, spec->dim, s->values);
    else
        row_init_row(spec, key, s->values);
    row_decay_show(table, row, s->values);
    if (spec->storage == TABLE_SPEC_FP32)
        return s->values;
    weights_set(spec->storage, s->values, spec->dim, s->gradient);
    return s->gradient;
}

/* A row's weights as they are stored, or would be. as_stored: rows of its table do not decay. */
static inline const void *payload_of(struct shard *s, const struct shard_table *table,
                                     bool as_stored, uint64_t key, const struct row *row)
{
    return row && as_stored ? row->floats : made_payload(s, table, key, row);
}

static void encode(struct shard *s, const struct shard_pull_op *op, const void *payload,
                   uint8_t *dst)
{
    const struct shard_section *section = &op->section;
    const struct table_spec *spec = &section->entry->table.spec;
    const float *weights = payload;

    if (op->copies) {
        memcpy(dst, payload, section->row_bytes);
        return;
    }
    if (spec->storage != TABLE_SPEC_FP32) {
        weights_load(spec->storage, payload, spec->dim, s->values);
        weights = s->values;
    }
    section->codec->encode(weights, spec->dim, section->sent->k, dst);
}

/* Nearer than finding it has brought it; all but the first line, which that has read. */
static void prefetch_row(const struct row *row, size_t n_bytes)
{
    const char *bytes = (const char *)row;

    for (size_t at = 64; at < n_bytes; at += 64)
        __builtin_prefetch(bytes + at, 0);
    __builtin_prefetch(bytes + n_bytes - 1, 0);
}

/* Of where a row is going to be written; hardware looks ahead no further than a page. */
static void prefetch_space(const uint8_t *dst, size_t n_bytes)
{
    for (size_t at = 0; at < n_bytes; at += 64)
        __builtin_prefetch(dst + at, 1);
}

static void mark_present(struct shard_pull_op *op, const struct chunk *c)
{
    for (uint32_t i = 0, at = op->n_read; i < c->n; i++, at++)
        if (c->rows[i])
            op->present[at / 8] = (uint8_t)(op->present[at / 8] | 1u << at % 8);
}

static void emit(struct shard *s, struct shard_pull_op *op, const struct chunk *c,
                 const struct chunk *next)
{
    const struct shard_table *table = &op->section.entry->table;
    const bool as_stored = !row_decay_is_on(&table->spec);
    size_t n_bytes = sizeof(struct row) + op->section.entry->table.weights_bytes;
    size_t row_bytes = op->section.row_bytes, space_bytes = row_bytes;

    if (n_bytes > PREFETCH_BYTES_MAX)
        n_bytes = PREFETCH_BYTES_MAX;
    if (space_bytes > PREFETCH_BYTES_MAX)
        space_bytes = PREFETCH_BYTES_MAX;
    for (uint32_t i = 0; i < c->n; i++, op->dst += row_bytes) {
        prefetch_space(op->dst + AHEAD * row_bytes, space_bytes);
        if (i < next->n && next->rows[i])
            prefetch_row(next->rows[i], n_bytes);
        encode(s, op, payload_of(s, table, as_stored, c->keys[i], c->rows[i]), op->dst);
    }
    if (op->present)
        mark_present(op, c);
    op->value_bytes[op->at] += c->n * row_bytes;
}

/* The rows that are there, whole. */
static void emit_state(struct shard_pull_op *op, const struct chunk *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t at = op->n_read + i;

        if (!c->rows[i])
            continue;
        op->present[at / 8] = (uint8_t)(op->present[at / 8] | 1u << at % 8);
        put_bytes(op, c->rows[i]->floats, op->section.row_bytes);
    }
}

static void emit_delta(struct shard *s, struct shard_pull_op *op, const struct chunk *c)
{
    const struct shard_table *table = &op->section.entry->table;
    const struct table_spec *spec = &table->spec;
    const bool as_stored = !row_decay_is_on(spec);
    struct row *have[SHARD_CHUNK_MAX];

    delta_writer_find(&op->delta, c->keys, c->n, have);
    for (uint32_t i = 0; i < c->n; i++) {
        const void *payload = payload_of(s, table, as_stored, c->keys[i], c->rows[i]);
        const float *weights = payload;

        if (spec->storage != TABLE_SPEC_FP32) {
            weights_load(spec->storage, payload, spec->dim, s->values);
            weights = s->values;
        }
        delta_writer_put(&op->delta, c->keys[i], have[i], weights);
    }
}

/* Of a row, in bytes of a slice. */
static uint64_t read_cost(const struct shard_entry *entry, const struct section *sent)
{
    return (uint64_t)entry->row_cost *
           (sent->delta.asked ? DELTA_COST : shard_codec_cost(sent->codec));
}

/* Of one section, for about *n_bytes of rows. */
static int read_section(struct shard *s, struct shard_pull_op *op, uint64_t *n_bytes,
                        struct err *err)
{
    const uint64_t cost = read_cost(op->section.entry, op->section.sent);
    struct chunk chunks[2];
    uint32_t at = 0;
    int status = fetch(s, op, &chunks[0], err);

    while (!status && chunks[at].n) {
        struct chunk *next = &chunks[1 - at];
        uint64_t used = chunks[at].n * cost;

        *n_bytes -= used < *n_bytes ? used : *n_bytes;
        next->n = 0;
        if (*n_bytes && op->section.keys.n_left)
            status = fetch(s, op, next, err);
        if (!status && op->section.sent->state)
            emit_state(op, &chunks[at]);
        else if (!status && op->section.sent->delta.asked)
            emit_delta(s, op, &chunks[at]);
        else if (!status)
            emit(s, op, &chunks[at], next);
        op->n_read += chunks[at].n;
        at = 1 - at;
    }
    return status;
}

static int read_scan(struct shard *s, struct shard_pull_op *op, uint64_t *n_bytes,
                     struct err *err)
{
    uint64_t used;
    size_t n_written;
    int status = scan_slice(s, &op->section, op->n_scans, op->dst, &n_written, &used, err);

    if (status)
        return status;
    *n_bytes -= used < *n_bytes ? used : *n_bytes;
    op->dst += n_written;
    op->value_bytes[op->at] += n_written;
    return 0;
}

int shard_pull_more(struct shard *s, struct shard_pull_op *op, struct err *err)
{
    uint64_t n_bytes = s->slice_bytes;

    while (!op->done && n_bytes) {
        int status;

        /* In a slice of its own: what it costs is not known before. */
        if (op->pull->sections[op->at].scan_bytes && n_bytes < s->slice_bytes)
            break;
        status = open_section(s, op, err);
        if (!status && op->section.sent->scan_bytes)
            status = read_scan(s, op, &n_bytes, err);
        else if (!status)
            status = read_section(s, op, &n_bytes, err);
        if (status)
            return status;
        if (op->section.keys.n_left)
            continue;
        close_present(op);
        if (op->section.sent->delta.asked)
            close_delta(s, op);
        op->is_open = false;
        op->at++;
        op->done = op->at == op->pull->n_sections;
    }
    return 0;
}

/* n keys at most; how many in *n. */
static int know_some(struct shard *s, struct shard_pull_op *op, uint64_t *keys, uint32_t *n,
                     struct err *err)
{
    const struct section *sent = &op->pull->sections[op->at];
    struct shard_section *section = &op->section;
    uint64_t wrong_key;
    int status = 0;

    if (!op->is_open)
        status = section_check_table(s, sent, section, err);
    if (!status && !op->is_open)
        status = section_check_open(section, err);
    if (status)
        return status;
    op->is_open = true;
    if (*n > op->section.keys.n_left)
        *n = op->section.keys.n_left;
    return section_check_keys(s, section, *n, keys, &wrong_key, err);
}

int shard_pull_decode_keys(struct shard *s, struct shard_pull_op *op, uint64_t *keys,
                           struct err *err)
{
    uint32_t n_left = KNOW_KEYS, n;
    int status;

    for (; n_left && op->at < op->pull->n_sections; n_left -= n) {
        n = n_left;
        status = know_some(s, op, keys + op->n_known, &n, err);
        if (status)
            return status;
        op->n_known += n;
        if (op->section.keys.n_left)
            continue;
        op->is_open = false;
        op->at++;
    }
    if (op->at == op->pull->n_sections) {
        op->at = 0;
        op->known = keys;
    }
    return 0;
}

/* --- begin and end --- */

/* What was really given is measured here, and not by what shard_pull_ready() let through. */
static void count_staleness(const struct shard *s, const struct worker *worker,
                            const struct pull *pull, uint64_t min_clock)
{
    uint64_t ahead = pull->clock > min_clock ? pull->clock - min_clock : 0;

    histogram_record(&worker->job->staleness, ahead);
    if (ahead > bound_of(s, worker->job, pull))
        worker->job->staleness_violations++;
}

static void count_sections(struct shard *s, const struct shard_pull_op *op)
{
    s->counters.pulls++;
    for (uint32_t i = 0; i < op->pull->n_sections; i++) {
        const struct section *section = &op->pull->sections[i];

        s->tables[section->table_id]->table.rows_pulled += section->n_keys;
        s->counters.rows_pulled += section->n_keys;
        s->counters.value_bytes_out[section->codec] += op->value_bytes[i];
    }
}

void shard_pull_begin(struct shard *s, const struct worker *worker, const struct pull *pull,
                      uint8_t *dst, struct shard_pull_op *ret)
{
    ret->pull = pull;
    ret->min_clock = worker ? job_min_clock(worker->job) : 0;
    ret->version = s->version;
    ret->dst = dst;
    ret->at = 0;
    ret->is_open = false;
    ret->known = NULL;
    ret->n_known = 0;
    ret->deltas = NULL;
    ret->n_scans = scan_n_sections(pull);
    ret->done = pull->n_sections == 0;
}

void shard_pull_end(struct shard *s, struct worker *worker, const struct shard_pull_op *op)
{
    count_sections(s, op);
    if (worker)
        count_staleness(s, worker, op->pull, op->min_clock);
}

uint64_t shard_pull_cost(const struct shard *s, const struct pull *pull)
{
    uint64_t n_bytes = 0;

    for (uint32_t i = 0; i < pull->n_sections; i++) {
        const struct section *section = &pull->sections[i];
        const struct shard_entry *entry = shard_entry_at(s, section->table_id);

        if (entry && section->scan_bytes)
            n_bytes += SHARD_SLICE_BYTES + 1; /* a slice of its own */
        else if (entry)
            n_bytes += section->n_keys * read_cost(entry, section);
    }
    return n_bytes;
}

bool shard_pull_is_large(const struct shard *s, const struct pull *pull)
{
    return shard_pull_cost(s, pull) > s->slice_bytes;
}

/* Rows are read until they cost a slice, and to the end of the last chunk. */
size_t shard_pull_slice_bytes(const struct shard *s, const struct pull *pull)
{
    uint64_t cost_max = 0, n_bytes = 0;

    for (uint32_t i = 0; i < pull->n_sections; i++) {
        const struct shard_entry *entry = shard_entry_at(s, pull->sections[i].table_id);
        uint64_t cost = (uint64_t)entry->chunk_rows * entry->row_cost;

        if (cost > cost_max)
            cost_max = cost;
    }
    for (uint32_t i = 0; i < pull->n_sections; i++) {
        const struct section *section = &pull->sections[i];
        const struct shard_entry *entry = shard_entry_at(s, section->table_id);
        size_t row_bytes =
            codec_by_id((uint32_t)section->codec)->row_bytes(entry->table.spec.dim, section->k);
        uint64_t most = ((SHARD_SLICE_BYTES + cost_max) / entry->row_cost + 1) * row_bytes;

        if (most > n_bytes)
            n_bytes = most;
    }
    return n_bytes;
}

int shard_pull(struct shard *s, struct worker *worker, const struct pull *pull, uint8_t *dst,
               uint64_t *ret_min_clock, uint64_t *ret_version, struct err *err)
{
    struct shard_pull_op op;
    int status = 0;

    shard_pull_begin(s, worker, pull, dst, &op);
    while (!op.done && !status)
        status = shard_pull_more(s, &op, err);
    if (status)
        return status;
    *ret_min_clock = op.min_clock;
    *ret_version = op.version;
    shard_pull_end(s, worker, &op);
    return 0;
}
