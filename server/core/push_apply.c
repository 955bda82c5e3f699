#include "server/core/push_apply.h"

#include <assert.h>
#include <string.h>

#include "server/core/combine.h"
#include "server/core/delay.h"
#include "server/core/pending_rows.h"
#include "server/core/row_admission.h"
#include "server/core/row_step.h"
#include "server/core/section_check.h"
#include "server/core/weights.h"

/* Rows asked for before their turn: about what a miss takes. */
#define AHEAD 6u

/* Of one row; behind that the hardware has seen where it goes. */
#define PREFETCH_BYTES_MAX 1024u

/* The state begins as that of the weights that the row now has; t: steps of the table so far. */
static void assign(struct shard *s, const struct shard_entry *entry, struct row *row,
                   const float *weights, uint64_t t, uint64_t version)
{
    const struct table_spec *spec = &entry->table.spec;

    if (!row)
        return;
    weights_set(spec->storage, weights, spec->dim, row->floats);
    if (spec->storage != TABLE_SPEC_FP32) {
        weights_load(spec->storage, row->floats, spec->dim, s->values);
        weights = s->values;
    }
    entry->optim->init(weights, row_step_state(entry, row), spec->dim, &spec->params);
    row_decay_note(&entry->table, row, t);
    row_touch(row, version);
}

/* The state stands behind the weights, at any address. */
static void assign_state(const struct shard_entry *entry, struct row *row, const float *weights,
                         const uint8_t *state, uint64_t version)
{
    const struct table_spec *spec = &entry->table.spec;

    if (!row)
        return;
    weights_set(spec->storage, weights, spec->dim, row->floats);
    memcpy(row_step_state(entry, row), state,
           entry->table.payload_bytes - entry->table.weights_bytes);
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

static const uint8_t *values_of(const struct push_section *section, uint32_t place)
{
    return section->in.sent->values + place * section->in.row_bytes;
}

/* Rows of a section, not always one behind the other. */
struct chunk {
    uint32_t n, end;                  /* n places, below `end` */
    uint32_t places[SHARD_CHUNK_MAX]; /* in the section */
    uint64_t keys[SHARD_CHUNK_MAX];
    struct row *rows[SHARD_CHUNK_MAX];
    struct hash_index_group group;
};

static void add_place(struct chunk *c, const struct pending_rows *b, uint32_t place)
{
    c->places[c->n] = place;
    c->keys[c->n++] = b->keys[place];
}

/* Does a gradient stand in the message as it is wanted? */
static bool is_plain(const struct push_section *section)
{
    return section->in.codec->id == CODEC_FP32 && section->in.sent->op == SECTION_GRADIENT &&
           !(section->in.entry->table.spec.clip_norm > 0.0f);
}

/* The gradient in s->gradient becomes that of the row's weights; those that it is of stand at `then`. */
static void compensate(struct shard *s, const struct push_section *section,
                       const struct row *row, const uint8_t *then)
{
    const struct shard_table *table = &section->in.entry->table;
    const struct table_spec *spec = &table->spec;
    const float *weights = row->floats;

    if (spec->storage != TABLE_SPEC_FP32 || row_decay_is_on(spec)) {
        weights_load(spec->storage, row->floats, spec->dim, s->values);
        row_decay_show_at(table, row, s->values, section->step.t - 1);
        weights = s->values;
    }
    delay_compensate(section_delay_of(section->in.sent->steps), weights,
                     (const optimizer_gradient *)then, spec->dim, s->gradient);
}

static void change_row(struct shard *s, struct push_section *section, const uint8_t *src,
                       struct row *row, uint64_t version)
{
    const struct shard_entry *entry = section->in.entry;
    int status;

    if (is_plain(section)) {
        row_step_plain(s, entry, row, (const optimizer_gradient *)src, &section->step, version);
        return;
    }
    status =
        section->in.codec->decode(src, entry->table.spec.dim, section->in.sent->k, s->gradient);
    assert(!status); /* it was checked */
    if (section->in.sent->op == SECTION_GRADIENT_AT)
        compensate(s, section, row, src + section_check_gradient_bytes(&section->in));
    if (section_op_is_gradient(section->in.sent->op))
        row_step(s, entry, row, s->gradient, &section->step, version);
    else if (section->in.sent->op == SECTION_ASSIGN)
        assign(s, entry, row, s->gradient, section->step.t, version);
    else
        assign_state(entry, row, s->gradient, src + entry->table.spec.dim * sizeof(float),
                     version);
}

/* Rows that have been asked for are found or made, and changed while they are near. */
static void change_chunk(struct shard *s, struct push_op *op, struct push_section *section,
                         struct chunk *c)
{
    struct shard_entry *entry = section->in.entry;
    size_t n_bytes = sizeof(struct row) + entry->table.payload_bytes;
    size_t value_bytes = section->in.row_bytes;
    uint64_t n_refused = s->counters.rows_refused;

    if (n_bytes > PREFETCH_BYTES_MAX)
        n_bytes = PREFETCH_BYTES_MAX;
    if (value_bytes > PREFETCH_BYTES_MAX)
        value_bytes = PREFETCH_BYTES_MAX;
    table_group_end(entry->table.rows, &c->group);
    row_admission_rows(s, entry, section->in.sent->op, op->version, c->keys, c->n, c->rows);
    op->result.rows_refused += s->counters.rows_refused - n_refused;
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->n - i > AHEAD && c->rows[i + AHEAD]) {
            prefetch_row(c->rows[i + AHEAD], n_bytes);
            prefetch_values(values_of(section, c->places[i + AHEAD]), value_bytes);
        }
        if (c->rows[i])
            change_row(s, section, values_of(section, c->places[i]), c->rows[i], op->version);
    }
}

/* Rows [from, end) but those that have been changed before their turn. */
static void begin_chunk(const struct push_section *section, struct chunk *c, uint32_t from,
                        uint32_t end)
{
    const struct pending_rows *b = &section->rows;

    c->n = 0;
    c->end = end;
    for (uint32_t i = from; i < end; i++)
        if (!b->marks || !pending_rows_mark_is_set(b, i))
            add_place(c, b, i);
    table_group_begin(b->entry->table.rows, &c->group, c->keys, c->n, c->rows);
}

void push_apply_rows(struct shard *s, struct push_op *op, struct push_section *section,
                     uint32_t n)
{
    struct pending_rows *b = &section->rows;
    uint32_t at = b->n_done, end = at + n, size = b->entry->chunk_rows;
    uint32_t n_chunks = n / size + (n % size != 0);
    struct chunk chunks[3];

    for (uint32_t i = at; op != &s->large && push_apply_is_under_way(s) && i < end; i += size)
        push_apply_first(s, b->entry, b->keys + i, end - i < size ? end - i : size);
    /* In step k chunk k asks for its lines, the one before for its rows, and the one before that,
     * for which memory has had all that time, changes. */
    for (uint32_t k = 0; k < n_chunks + 2; k++) {
        if (k < n_chunks) {
            uint32_t next = end - at < size ? end : at + size;

            begin_chunk(section, &chunks[k % 3], at, next);
            at = next;
        }
        if (k >= 1 && k - 1 < n_chunks)
            table_group_prefetch(b->entry->table.rows, &chunks[(k - 1) % 3].group);
        if (k >= 2) {
            change_chunk(s, op, section, &chunks[(k - 2) % 3]);
            b->n_done = chunks[(k - 2) % 3].end;
        }
    }
}

/* Which section of the push is of this table and does not wait; n_sections if none is. */
static uint32_t section_of(const struct push_op *op, const struct shard_entry *entry)
{
    uint32_t i = 0;

    while (i < op->push->n_sections &&
           (op->sections[i].in.entry != entry || op->sections[i].waits))
        i++;
    return i;
}

bool push_apply_is_under_way(const struct shard *s)
{
    return s->large.phase == PUSH_APPLY || s->large_clock->phase == COMBINE_APPLY;
}

uint64_t push_apply_version(const struct shard *s)
{
    uint64_t version = s->version;

    if (s->large.phase == PUSH_APPLY && s->large.version <= version && s->large.version > 0)
        version = s->large.version - 1;
    if (s->large_clock->phase == COMBINE_APPLY && s->large_clock->version <= version &&
        s->large_clock->version > 0)
        version = s->large_clock->version - 1;
    return version;
}

static void change_first(struct shard *s, struct push_section *section, const uint64_t *keys,
                         uint32_t n_keys)
{
    struct pending_rows *b = &section->rows;
    struct chunk c;

    c.n = 0;
    for (uint32_t i = 0, at = b->n_done; i < n_keys; i++) {
        at = pending_rows_bound(b, at, keys[i]);
        if (at == b->n_keys)
            break;
        if (b->keys[at] == keys[i] && !pending_rows_mark_is_set(b, at))
            add_place(&c, b, at);
    }
    table_group_begin(b->entry->table.rows, &c.group, c.keys, c.n, c.rows);
    table_group_prefetch(b->entry->table.rows, &c.group);
    change_chunk(s, &s->large, section, &c);
    for (uint32_t i = 0; i < c.n; i++)
        pending_rows_mark_set(b, c.places[i]);
}

void push_apply_first(struct shard *s, const struct shard_entry *entry, const uint64_t *keys,
                      uint32_t n_keys)
{
    uint32_t i;

    assert(n_keys <= SHARD_CHUNK_MAX);
    if (s->large_clock->phase == COMBINE_APPLY)
        combine_rows_first(s, s->large_clock, entry, keys, n_keys);
    if (s->large.phase != PUSH_APPLY)
        return;
    i = section_of(&s->large, entry);
    if (i < s->large.push->n_sections)
        change_first(s, &s->large.sections[i], keys, n_keys);
}

void push_apply_all(struct shard *s, struct push_op *op)
{
    for (uint32_t i = 0; i < op->push->n_sections; i++) {
        struct push_section *section = &op->sections[i];

        if (!section->waits)
            push_apply_rows(s, op, section, section->rows.n_keys - section->rows.n_done);
    }
}
