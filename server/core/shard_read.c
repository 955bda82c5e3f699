/*
 * shard_pull_more() of shard.h: rows are read, and encoded where the answer will leave from.
 *
 * A chunk of keys is found while the one before it has still to be encoded, and each of its rows
 * is asked for when one of those is done: so what finding has asked for is on its way for as long
 * as a chunk takes, and near when its turn comes.
 */
#include <string.h>

#include "server/core/init.h"
#include "server/core/shard_change.h"
#include "server/core/shard_section.h"
#include "server/core/weights.h"

/* Rows of the answer. */
#define AHEAD 8u

/* Of a call of shard_pull_know(); a few hundred microseconds. */
#define KNOW_KEYS 32768u

/* Of one row; behind that the hardware has seen where it goes. */
#define PREFETCH_BYTES_MAX 1024u

/* A section, and what its rows are read with. row_bytes: as encoded, or stored. */
struct view {
    const struct shard_entry *entry;
    const struct section *section;
    const struct codec *codec;
    size_t row_bytes;
    bool copies; /* rows are stored as they travel */
};

struct chunk {
    uint32_t n;
    uint64_t keys[SHARD_CHUNK_MAX];
    struct row *rows[SHARD_CHUNK_MAX];
};

static bool travels_as_stored(enum spec_storage storage, enum codec_id codec)
{
    return (storage == SPEC_FP32 && codec == CODEC_FP32) ||
           (storage == SPEC_BF16 && codec == CODEC_BF16) ||
           (storage == SPEC_FP16 && codec == CODEC_FP16);
}

static void put_bytes(struct shard_pull_run *run, const void *src, size_t n_bytes)
{
    memcpy(run->dst, src, n_bytes);
    run->dst += n_bytes;
    run->value_bytes[run->section] += n_bytes;
}

static uint8_t state_flags(const struct shard *s, const struct shard_entry *entry)
{
    uint8_t limited = s->budget.max || entry->budget.max ? SECTION_STATE_LIMITED : 0;
    uint8_t empty = table_n_rows(entry->table.rows) ? 0 : SECTION_STATE_EMPTY;

    return limited | empty;
}

/* What stands before the rows, if they come with their state (section.h). */
static void open_section(const struct shard *s, struct shard_pull_run *run,
                         const struct shard_entry *entry)
{
    const struct section *section = &run->pull->sections[run->section];
    uint8_t flags = state_flags(s, entry);
    size_t n_bytes = section_state_bytes(section->n_keys) - SECTION_STATE_HEAD_BYTES;

    run->n_read = 0;
    run->value_bytes[run->section] = 0;
    if (!section->state)
        return;
    put_bytes(run, &entry->table.n_pushes, sizeof entry->table.n_pushes);
    put_bytes(run, &flags, sizeof flags);
    run->present = run->dst;
    memset(run->dst, 0, n_bytes);
    run->dst += n_bytes;
    run->value_bytes[run->section] += n_bytes;
}

static int view_section(const struct shard *s, struct shard_pull_run *run, struct view *ret,
                        struct err *err)
{
    const struct section *section = &run->pull->sections[run->section];
    struct shard_entry *entry;
    int status = shard_section_table(s, section, &entry, err);

    if (status)
        return status;
    *ret = (struct view){ .entry = entry, .section = section };
    status = shard_section_codec(entry, section, &ret->codec, &ret->row_bytes, err);
    if (status)
        return status;
    ret->copies = travels_as_stored(entry->table.spec.storage, ret->codec->id);
    if (run->is_open)
        return 0;
    run->is_open = true;
    open_section(s, run, entry);
    return shard_section_open(entry, section, &run->keys, err);
}

static void take_known(struct shard_pull_run *run, struct chunk *ret)
{
    memcpy(ret->keys, run->known, ret->n * sizeof *run->known);
    run->known += ret->n;
    run->keys.n_left -= ret->n;
}

/* The order of keys and whose they are is held here, not in the plan: so a pull's keys are read
 * once. */
static int fetch(struct shard *s, struct shard_pull_run *run, const struct view *v,
                 struct chunk *ret, struct err *err)
{
    uint32_t n = shard_chunk(v->entry);
    uint64_t wrong_key;
    int status;

    ret->n = n < run->keys.n_left ? n : run->keys.n_left;
    if (run->known) {
        take_known(run, ret);
    } else {
        status = shard_section_keys(s, v->entry, v->section, &run->keys, ret->n, ret->keys,
                                    &wrong_key, err);
        if (status)
            return status;
    }
    shard_change_first(s, v->entry, ret->keys, ret->n);
    table_find_batch(v->entry->table.rows, ret->keys, ret->n, ret->rows);
    return 0;
}

/* A row's weights as they are stored, or would be if it were there. */
static const void *payload_of(struct shard *s, const struct view *v, uint64_t key,
                              const struct row *row)
{
    const struct table_spec *spec = &v->entry->table.spec;

    if (row)
        return row->floats;
    init_row(spec, key, s->values);
    if (spec->storage == SPEC_FP32)
        return s->values;
    weights_set(spec->storage, s->values, spec->dim, s->gradient);
    return s->gradient;
}

static void encode(struct shard *s, const struct view *v, const void *payload, uint8_t *dst)
{
    const struct table_spec *spec = &v->entry->table.spec;
    const float *weights = payload;

    if (v->copies) {
        memcpy(dst, payload, v->row_bytes);
        return;
    }
    if (spec->storage != SPEC_FP32) {
        weights_load(spec->storage, payload, spec->dim, s->values);
        weights = s->values;
    }
    v->codec->encode(weights, spec->dim, v->section->k, dst);
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
static void prefetch_room(const uint8_t *dst, size_t n_bytes)
{
    for (size_t at = 0; at < n_bytes; at += 64)
        __builtin_prefetch(dst + at, 1);
}

static void emit(struct shard *s, struct shard_pull_run *run, const struct view *v,
                 const struct chunk *c, const struct chunk *next)
{
    size_t n_bytes = sizeof(struct row) + v->entry->table.weights_bytes;
    size_t room_bytes = v->row_bytes;

    if (n_bytes > PREFETCH_BYTES_MAX)
        n_bytes = PREFETCH_BYTES_MAX;
    if (room_bytes > PREFETCH_BYTES_MAX)
        room_bytes = PREFETCH_BYTES_MAX;
    for (uint32_t i = 0; i < c->n; i++, run->dst += v->row_bytes) {
        prefetch_room(run->dst + AHEAD * v->row_bytes, room_bytes);
        if (i < next->n && next->rows[i])
            prefetch_row(next->rows[i], n_bytes);
        encode(s, v, payload_of(s, v, c->keys[i], c->rows[i]), run->dst);
    }
    run->value_bytes[run->section] += c->n * v->row_bytes;
}

/* The rows that are there, whole. */
static void emit_state(struct shard_pull_run *run, const struct view *v, const struct chunk *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t at = run->n_read + i;

        if (!c->rows[i])
            continue;
        run->present[at / 8] = (uint8_t)(run->present[at / 8] | 1u << at % 8);
        put_bytes(run, c->rows[i]->floats, v->row_bytes);
    }
}

/* Of one section, for about *n_bytes of rows. */
static int read_section(struct shard *s, struct shard_pull_run *run, const struct view *v,
                        uint64_t *n_bytes, struct err *err)
{
    const uint32_t cost = shard_row_cost(v->entry);
    struct chunk chunks[2];
    uint32_t at = 0;
    int status = fetch(s, run, v, &chunks[0], err);

    while (!status && chunks[at].n) {
        struct chunk *next = &chunks[1 - at];
        uint64_t used = (uint64_t)chunks[at].n * cost;

        *n_bytes -= used < *n_bytes ? used : *n_bytes;
        next->n = 0;
        if (*n_bytes && run->keys.n_left)
            status = fetch(s, run, v, next, err);
        if (!status && v->section->state)
            emit_state(run, v, &chunks[at]);
        else if (!status)
            emit(s, run, v, &chunks[at], next);
        run->n_read += chunks[at].n;
        at = 1 - at;
    }
    return status;
}

int shard_pull_more(struct shard *s, struct shard_pull_run *run, struct err *err)
{
    uint64_t n_bytes = SHARD_SLICE_BYTES;

    while (!run->done && n_bytes) {
        struct view v;
        int status = view_section(s, run, &v, err);

        if (!status)
            status = read_section(s, run, &v, &n_bytes, err);
        if (status)
            return status;
        if (run->keys.n_left)
            continue;
        run->is_open = false;
        run->section++;
        run->done = run->section == run->pull->n_sections;
    }
    return 0;
}

/* n keys at most; how many in *n. */
static int know_some(struct shard *s, struct shard_pull_run *run, uint64_t *keys, uint32_t *n,
                     struct err *err)
{
    const struct section *section = &run->pull->sections[run->section];
    struct shard_entry *entry;
    uint64_t wrong_key;
    int status = shard_section_table(s, section, &entry, err);

    if (!status && !run->is_open)
        status = shard_section_open(entry, section, &run->keys, err);
    if (status)
        return status;
    run->is_open = true;
    if (*n > run->keys.n_left)
        *n = run->keys.n_left;
    return shard_section_keys(s, entry, section, &run->keys, *n, keys, &wrong_key, err);
}

int shard_pull_know(struct shard *s, struct shard_pull_run *run, uint64_t *keys,
                    struct err *err)
{
    uint32_t n_left = KNOW_KEYS, n;
    int status;

    for (; n_left && run->section < run->pull->n_sections; n_left -= n) {
        n = n_left;
        status = know_some(s, run, keys + run->n_known, &n, err);
        if (status)
            return status;
        run->n_known += n;
        if (run->keys.n_left)
            continue;
        run->is_open = false;
        run->section++;
    }
    if (run->section == run->pull->n_sections) {
        run->section = 0;
        run->known = keys;
    }
    return 0;
}
