#include "worker/report/row_sample.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/memory.h"

struct row_sample_row {
    uint32_t n_keys;
    uint64_t keys[]; /* then float labels[], numerics[]; uint32_t keys_of_field[] */
};

static float *labels_of(struct row_sample_row *row)
{
    return (float *)(row->keys + row->n_keys);
}

static float *numerics_of(const struct row_sample *s, struct row_sample_row *row)
{
    return labels_of(row) + s->n_labels;
}

static uint32_t *counts_of(const struct row_sample *s, struct row_sample_row *row)
{
    return (uint32_t *)(numerics_of(s, row) + s->n_numeric);
}

int row_sample_init(struct row_sample *s, uint32_t n_max, uint64_t seed)
{
    *s = (struct row_sample){ .n_max = n_max, .seed = seed };
    s->rows = memory_try_alloc(n_max * sizeof *s->rows);
    return s->rows ? 0 : -ENOMEM;
}

void row_sample_deinit(struct row_sample *s)
{
    for (uint32_t i = 0; i < s->n; i++)
        free(s->rows[i]);
    free((void *)s->rows);
    *s = (struct row_sample){ 0 };
}

/* Where the next row goes; n_max: nowhere. */
static uint32_t draw_place(const struct row_sample *s)
{
    uint64_t at;

    if (s->n_seen < s->n_max)
        return s->n;
    at = hash_mix2(s->seed, s->n_seen) % (s->n_seen + 1);
    return at < s->n_max && at < s->n ? (uint32_t)at : s->n_max;
}

static struct row_sample_row *copy_row(const struct row_sample *s, const struct batch *b,
                                       uint32_t i)
{
    const uint32_t *starts = b->starts + (size_t)i * b->n_fields;
    const uint32_t n_keys = starts[b->n_fields] - starts[0];
    struct row_sample_row *row = memory_try_alloc(sizeof *row + n_keys * sizeof *row->keys +
                                                  (b->n_labels + b->n_numeric) * sizeof(float) +
                                                  b->n_fields * sizeof(uint32_t));

    if (!row)
        return NULL;
    row->n_keys = n_keys;
    memcpy(row->keys, b->keys + starts[0], n_keys * sizeof *row->keys);
    memcpy(labels_of(row), b->label + (size_t)i * b->n_labels, b->n_labels * sizeof(float));
    if (b->n_numeric)
        memcpy(numerics_of(s, row), b->numeric + (size_t)i * b->n_numeric,
               b->n_numeric * sizeof(float));
    for (uint32_t f = 0; f < b->n_fields; f++)
        counts_of(s, row)[f] = starts[f + 1] - starts[f];
    return row;
}

int row_sample_add(struct row_sample *s, const struct batch *batch)
{
    s->n_labels = batch->n_labels;
    s->n_numeric = batch->n_numeric;
    s->n_fields = batch->n_fields;
    for (uint32_t i = 0; i < batch->n; i++, s->n_seen++) {
        const uint32_t at = draw_place(s);
        struct row_sample_row *row = at < s->n_max ? copy_row(s, batch, i) : NULL;

        if (at == s->n_max)
            continue;
        if (!row)
            return -ENOMEM;
        if (at < s->n)
            free(s->rows[at]);
        else
            s->n++;
        s->rows[at] = row;
    }
    return 0;
}

/* The bag of a field: its first key in the row, and their number. */
static uint32_t find_bag(const struct row_sample *s, struct row_sample_row *row, uint32_t field,
                         const uint64_t **ret_keys)
{
    const uint32_t *counts = counts_of(s, row);

    *ret_keys = row->keys;
    for (uint32_t f = 0; f < field; f++)
        *ret_keys += counts[f];
    return counts[field];
}

static int add_bags(const struct row_sample *s, uint32_t i, const struct row_sample_swap *swap,
                    struct batch *b)
{
    uint32_t *starts = b->starts + (size_t)b->n * b->n_fields;

    for (uint32_t f = 0; f < s->n_fields; f++) {
        const bool is_swapped = swap && !swap->is_numeric && swap->column == f;
        const uint64_t *keys;
        const uint32_t n = find_bag(s, s->rows[is_swapped ? swap->from[i] : i], f, &keys);

        if (batch_reserve_keys(b, n))
            return -ENOMEM;
        memcpy(b->keys + b->n_keys, keys, n * sizeof *keys);
        b->n_keys += n;
        starts[f + 1] = b->n_keys;
    }
    return 0;
}

int row_sample_fill(const struct row_sample *s, uint32_t first, uint32_t n,
                    const struct row_sample_swap *swap, struct batch *batch)
{
    batch_clear(batch);
    for (uint32_t i = first; i < first + n; i++, batch->n++) {
        float *numeric = batch->numeric + (size_t)batch->n * s->n_numeric;

        memcpy(batch->label + (size_t)batch->n * s->n_labels, labels_of(s->rows[i]),
               s->n_labels * sizeof(float));
        if (s->n_numeric)
            memcpy(numeric, numerics_of(s, s->rows[i]), s->n_numeric * sizeof *numeric);
        if (swap && swap->is_numeric)
            numeric[swap->column] = numerics_of(s, s->rows[swap->from[i]])[swap->column];
        if (add_bags(s, i, swap, batch))
            return -ENOMEM;
    }
    return 0;
}
