#include "server/core/shard_change.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/hash.h"
#include "server/core/shard_grow.h"
#include "server/core/shard_rows.h"
#include "server/core/weights.h"

/* Rows asked for before their turn: about what a miss takes. */
#define AHEAD 6u

/* Of one row; behind that the hardware has seen where it goes. */
#define PREFETCH_BYTES_MAX 1024u

/* In double: the squares of finite floats cannot overflow there. */
static void clip(float *gradient, uint32_t dim, float clip_norm)
{
    double squares = 0.0, norm;
    float factor;

    for (uint32_t i = 0; i < dim; i++)
        squares += (double)gradient[i] * (double)gradient[i];
    norm = sqrt(squares);
    if (norm <= (double)clip_norm)
        return;
    factor = (float)((double)clip_norm / norm);
    for (uint32_t i = 0; i < dim; i++)
        gradient[i] *= factor;
}

static float *state_of(const struct shard_entry *entry, struct row *row)
{
    return row->floats + entry->table.weights_bytes / sizeof *row->floats;
}

/* The noise of rounding is a function of what is changed, and not of when or where. */
static void step_half(struct shard *s, const struct shard_entry *entry, struct row *row,
                      const optim_gradient *gradient, const struct optim_step *step)
{
    const struct table_spec *spec = &entry->table.spec;
    uint64_t noise = hash_mix2(hash_mix2(spec->seed, row->key), step->t);

    weights_load(spec->storage, row->floats, spec->dim, s->values);
    entry->optim->step(s->values, state_of(entry, row), gradient, spec->dim, step);
    weights_store(spec->storage, s->values, spec->dim, noise, row->floats);
}

static void step_row(struct shard *s, const struct shard_entry *entry, struct row *row,
                     const optim_gradient *gradient, const struct optim_step *step,
                     uint64_t version)
{
    const struct table_spec *spec = &entry->table.spec;

    if (spec->storage == SPEC_FP32)
        entry->optim->step(row->floats, state_of(entry, row), gradient, spec->dim, step);
    else
        step_half(s, entry, row, gradient, step);
    row_touch(row, version);
}

void shard_change_step(struct shard *s, const struct shard_entry *entry, struct row *row,
                       float *gradient, const struct optim_step *step, uint64_t version)
{
    const struct table_spec *spec = &entry->table.spec;

    if (!row)
        return;
    if (spec->clip_norm > 0.0f)
        clip(gradient, spec->dim, spec->clip_norm);
    step_row(s, entry, row, gradient, step, version);
}

/* The state begins as that of the weights that the row now has. */
static void assign(struct shard *s, const struct shard_entry *entry, struct row *row,
                   const float *weights, uint64_t version)
{
    const struct table_spec *spec = &entry->table.spec;

    if (!row)
        return;
    weights_set(spec->storage, weights, spec->dim, row->floats);
    if (spec->storage != SPEC_FP32) {
        weights_load(spec->storage, row->floats, spec->dim, s->values);
        weights = s->values;
    }
    entry->optim->init(weights, state_of(entry, row), spec->dim, &spec->params);
    row_touch(row, version);
}

static void prefetch_row(const struct row *row, size_t n_bytes)
{
    const char *bytes = (const char *)row;

    for (size_t at = 0; at < n_bytes; at += 64)
        __builtin_prefetch(bytes + at, 1);
    __builtin_prefetch(bytes + n_bytes - 1, 1);
}

/* Of megabytes that have been received; they stand in order, but hardware stops at each page. */
static void prefetch_values(const uint8_t *bytes, size_t n_bytes)
{
    for (size_t at = 0; at < n_bytes; at += 64)
        __builtin_prefetch(bytes + at);
}

static const uint8_t *values_of(const struct shard_part *part, uint32_t place)
{
    return part->section->values + place * part->row_bytes;
}

/* Rows of a part, not always one behind the other. */
struct chunk {
    uint32_t n, end;                  /* n places, below `end` */
    uint32_t places[SHARD_CHUNK_MAX]; /* in the part */
    uint64_t keys[SHARD_CHUNK_MAX];
    struct row *rows[SHARD_CHUNK_MAX];
    struct table_group group;
};

static void add_place(struct chunk *c, const struct shard_rows *b, uint32_t place)
{
    c->places[c->n] = place;
    c->keys[c->n++] = b->keys[place];
}

/* Does a gradient stand in the message as it is wanted? */
static bool is_plain(const struct shard_part *part)
{
    return part->codec->id == CODEC_FP32 && part->section->op == SECTION_GRADIENT &&
           !(part->rows.entry->table.spec.clip_norm > 0.0f);
}

static void change_row(struct shard *s, struct shard_part *part, const uint8_t *src,
                       struct row *row, uint64_t version)
{
    const struct shard_entry *entry = part->rows.entry;
    int status;

    if (is_plain(part)) {
        step_row(s, entry, row, (const optim_gradient *)src, &part->step, version);
        return;
    }
    status = part->codec->decode(src, entry->table.spec.dim, part->section->k, s->gradient);
    assert(!status); /* it was checked */
    if (part->section->op == SECTION_GRADIENT)
        shard_change_step(s, entry, row, s->gradient, &part->step, version);
    else
        assign(s, entry, row, s->gradient, version);
}

/* Rows that have been asked for are found or made, and changed while they are near. */
static void change_chunk(struct shard *s, struct shard_run *run, struct shard_part *part,
                         struct chunk *c)
{
    struct shard_entry *entry = part->rows.entry;
    size_t n_bytes = sizeof(struct row) + entry->table.payload_bytes;
    size_t value_bytes = part->row_bytes;
    uint64_t n_refused = s->counters.rows_refused;

    if (n_bytes > PREFETCH_BYTES_MAX)
        n_bytes = PREFETCH_BYTES_MAX;
    if (value_bytes > PREFETCH_BYTES_MAX)
        value_bytes = PREFETCH_BYTES_MAX;
    table_group_end(entry->table.rows, &c->group);
    shard_grow_rows(s, entry, part->section->op, run->version, c->keys, c->n, c->rows);
    run->result.rows_refused += s->counters.rows_refused - n_refused;
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->n - i > AHEAD && c->rows[i + AHEAD]) {
            prefetch_row(c->rows[i + AHEAD], n_bytes);
            prefetch_values(values_of(part, c->places[i + AHEAD]), value_bytes);
        }
        if (c->rows[i])
            change_row(s, part, values_of(part, c->places[i]), c->rows[i], run->version);
    }
}

/* Rows [from, end) but those that have been changed before their turn. */
static void begin_chunk(const struct shard_part *part, struct chunk *c, uint32_t from,
                        uint32_t end)
{
    const struct shard_rows *b = &part->rows;

    c->n = 0;
    c->end = end;
    for (uint32_t i = from; i < end; i++)
        if (!b->marks || !shard_mark_is_set(b, i))
            add_place(c, b, i);
    table_group_begin(b->entry->table.rows, &c->group, c->keys, c->n, c->rows);
}

void shard_change_rows(struct shard *s, struct shard_run *run, struct shard_part *part,
                       uint32_t n)
{
    struct shard_rows *b = &part->rows;
    uint32_t at = b->n_done, end = at + n, size = shard_chunk(b->entry);
    uint32_t n_chunks = n / size + (n % size != 0);
    struct chunk chunks[3];

    for (uint32_t i = at; run != &s->large && i < end; i += size)
        shard_change_first(s, b->entry, b->keys + i, end - i < size ? end - i : size);
    /* In step k chunk k asks for its lines, the one before for its rows, and the one before that,
     * for which memory has had all that time, changes. */
    for (uint32_t k = 0; k < n_chunks + 2; k++) {
        if (k < n_chunks) {
            uint32_t next = end - at < size ? end : at + size;

            begin_chunk(part, &chunks[k % 3], at, next);
            at = next;
        }
        if (k >= 1 && k - 1 < n_chunks)
            table_group_ask(b->entry->table.rows, &chunks[(k - 1) % 3].group);
        if (k >= 2) {
            change_chunk(s, run, part, &chunks[(k - 2) % 3]);
            b->n_done = chunks[(k - 2) % 3].end;
        }
    }
}

/* Which part of the push is of this table and does not wait; n_sections if none is. */
static uint32_t part_of(const struct shard_run *run, const struct shard_entry *entry)
{
    uint32_t i = 0;

    while (i < run->push->n_sections &&
           (run->parts[i].rows.entry != entry || run->parts[i].waits))
        i++;
    return i;
}

static void change_first(struct shard *s, struct shard_part *part, const uint64_t *keys,
                         uint32_t n_keys)
{
    struct shard_rows *b = &part->rows;
    struct chunk c;

    c.n = 0;
    for (uint32_t i = 0, at = b->n_done; i < n_keys; i++) {
        at = shard_rows_bound(b, at, keys[i]);
        if (at == b->n_keys)
            break;
        if (b->keys[at] == keys[i] && !shard_mark_is_set(b, at))
            add_place(&c, b, at);
    }
    table_group_begin(b->entry->table.rows, &c.group, c.keys, c.n, c.rows);
    table_group_ask(b->entry->table.rows, &c.group);
    change_chunk(s, &s->large, part, &c);
    for (uint32_t i = 0; i < c.n; i++)
        shard_mark_set(b, c.places[i]);
}

void shard_change_first(struct shard *s, const struct shard_entry *entry, const uint64_t *keys,
                        uint32_t n_keys)
{
    uint32_t i;

    assert(n_keys <= SHARD_CHUNK_MAX);
    if (s->large.phase != SHARD_APPLY)
        return;
    i = part_of(&s->large, entry);
    if (i < s->large.push->n_sections)
        change_first(s, &s->large.parts[i], keys, n_keys);
}

void shard_change_all(struct shard *s, struct shard_run *run)
{
    for (uint32_t i = 0; i < run->push->n_sections; i++) {
        struct shard_part *part = &run->parts[i];

        if (!part->waits)
            shard_change_rows(s, run, part, part->rows.n_keys - part->rows.n_done);
    }
}
