#include "server/core/shard_change.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/hash.h"
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
                      const float *gradient, const struct optim_step *step)
{
    const struct table_spec *spec = &entry->table.spec;
    uint64_t noise = hash_mix2(hash_mix2(spec->seed, row->key), step->t);

    weights_load(spec->storage, row->floats, spec->dim, s->values);
    entry->optim->step(s->values, state_of(entry, row), gradient, spec->dim, step);
    weights_store(spec->storage, s->values, spec->dim, noise, row->floats);
}

void shard_change_step(struct shard *s, const struct shard_entry *entry, struct row *row,
                       float *gradient, const struct optim_step *step, uint64_t version)
{
    const struct table_spec *spec = &entry->table.spec;

    if (!row)
        return;
    if (spec->clip_norm > 0.0f)
        clip(gradient, spec->dim, spec->clip_norm);
    if (spec->storage == SPEC_FP32)
        entry->optim->step(row->floats, state_of(entry, row), gradient, spec->dim, step);
    else
        step_half(s, entry, row, gradient, step);
    row_touch(row, version);
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

/* Row i, whose bytes are at src. */
static void change(struct shard *s, struct shard_part *part, uint32_t i, const uint8_t *src,
                   uint64_t version)
{
    const struct shard_entry *entry = part->rows.entry;
    struct row *row = part->rows.rows[i];
    int status = part->codec->decode(src, entry->table.spec.dim, part->section->k, s->gradient);

    assert(!status); /* it was checked */
    if (part->section->op == SECTION_GRADIENT)
        shard_change_step(s, entry, row, s->gradient, &part->step, version);
    else
        assign(s, entry, row, s->gradient, version);
}

void shard_change_part(struct shard *s, const struct shard_run *run, struct shard_part *part,
                       uint32_t from, uint32_t n)
{
    const struct shard_rows *b = &part->rows;
    const uint8_t *src = part->section->values + from * part->row_bytes;
    size_t n_bytes = sizeof(struct row) + b->entry->table.payload_bytes;

    if (n_bytes > PREFETCH_BYTES_MAX)
        n_bytes = PREFETCH_BYTES_MAX;
    for (uint32_t i = from; i < from + n; i++, src += part->row_bytes) {
        if (b->n_keys - i > AHEAD && b->rows[i + AHEAD])
            prefetch_row(b->rows[i + AHEAD], n_bytes);
        if (!b->rows[i] || shard_mark_is_set(b, i))
            continue;
        change(s, part, i, src, run->version);
        if (run == &s->large)
            b->rows[i]->stamp &= ~(uint64_t)ROW_PINNED;
    }
}

/* Which part of a push that is past its check is of this table; n_sections if none is. */
static uint32_t part_of(const struct shard_run *run, const struct shard_entry *entry)
{
    uint32_t i = 0;

    while (i < run->push->n_sections &&
           (run->parts[i].rows.entry != entry || run->parts[i].waits))
        i++;
    return i;
}

/* The first of keys[at .. n) that is not below `key`. Gallops: what is asked for ascends. */
static uint32_t lower_bound(const uint64_t *keys, uint32_t at, uint32_t n, uint64_t key)
{
    uint32_t stride = 1, end;

    while (stride < n - at && keys[at + stride] < key)
        stride *= 2;
    end = stride < n - at ? at + stride : n;
    at += stride / 2;
    while (at < end) {
        uint32_t middle = at + (end - at) / 2;

        if (keys[middle] < key)
            at = middle + 1;
        else
            end = middle;
    }
    return at;
}

static void change_first(struct shard *s, struct shard_part *part, const uint64_t *keys,
                         uint32_t n_keys)
{
    struct shard_rows *b = &part->rows;

    for (uint32_t i = 0, at = part->n_done; i < n_keys; i++) {
        at = lower_bound(b->keys, at, b->n_keys, keys[i]);
        if (at == b->n_keys)
            return;
        if (b->keys[at] != keys[i] || shard_mark_is_set(b, at))
            continue;
        shard_change_part(s, &s->large, part, at, 1);
        shard_mark_set(b, at);
    }
}

void shard_change_first(struct shard *s, const struct shard_entry *entry, const uint64_t *keys,
                        uint32_t n_keys)
{
    uint32_t i;

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
            shard_change_part(s, run, part, part->n_done, part->rows.n_keys - part->n_done);
        part->n_done = part->rows.n_keys;
    }
}

bool shard_change_awaits(const struct shard *s, const struct shard_entry *entry,
                         const struct row *row)
{
    const struct shard_run *run = &s->large;
    const struct shard_rows *b;
    uint32_t i, at;

    if (run->phase < SHARD_FIND || run->phase > SHARD_APPLY)
        return false;
    i = part_of(run, entry);
    if (i == run->push->n_sections)
        return false;
    b = &run->parts[i].rows;
    at = lower_bound(b->keys, 0, b->n_keys, row->key);
    if (at == b->n_keys || b->rows[at] != row)
        return false;
    return run->phase != SHARD_APPLY ||
           (at >= run->parts[i].n_done && !shard_mark_is_set(b, at));
}
