#include "deploy/psctl/arrays.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "server/core/optim_catalog.h"
#include "server/core/weights.h"

/* --- parts of tensors --- */

static size_t key_part(void *owner, uint64_t i, uint8_t *dst)
{
    const struct arrays_source *s = owner;

    memcpy(dst, &s->arrays->items[i].key, sizeof s->arrays->items[i].key);
    return sizeof s->arrays->items[i].key;
}

/* Weights and state of a row, as floats. */
static const float *load_row(const struct arrays *a, uint64_t i)
{
    const struct shard_table *t = a->table;
    const struct row *row = a->items[i].row;

    weights_load(t->spec.storage, row->floats, t->spec.dim, a->floats);
    memcpy(a->floats + t->spec.dim, (const uint8_t *)row->floats + t->weights_bytes,
           a->n_state * sizeof(float));
    return a->floats;
}

static size_t row_part(void *owner, uint64_t i, uint8_t *dst)
{
    const struct arrays_source *s = owner;

    memcpy(dst, load_row(s->arrays, i) + s->first, s->n_floats * sizeof(float));
    return s->n_floats * sizeof(float);
}

/* The last block's tail is padding. */
static size_t block_part(void *owner, uint64_t i, uint8_t *dst)
{
    const struct arrays_source *s = owner;
    const struct table_spec *spec = &s->arrays->table->spec;
    uint64_t left = spec->n_floats - i * spec->dim;
    size_t n = left < spec->dim ? (size_t)left : spec->dim;

    memcpy(dst, load_row(s->arrays, i) + s->first, n * sizeof(float));
    return n * sizeof(float);
}

/* --- tensors --- */

static struct tensor *add(struct arrays *a, const char *tail, enum tensor_type type)
{
    struct tensor *t = &a->tensors[a->n_tensors];
    struct arrays_source *s = &a->sources[a->n_tensors++];

    *s = (struct arrays_source){ .arrays = a };
    *t = (struct tensor){ .type = type, .owner = s, .n_parts = a->n_items };
    snprintf(t->name, sizeof t->name, "%s%s", a->table->spec.name, tail);
    return t;
}

static void add_keys(struct arrays *a)
{
    struct tensor *t = add(a, ".keys", TENSOR_I64);

    t->n_dims = 1;
    t->dims[0] = a->n_items;
    t->part = key_part;
    t->part_bytes = sizeof(int64_t);
}

/* Floats `first` to first + n_floats of each row. */
static void add_floats(struct arrays *a, const char *tail, uint32_t first, uint32_t n_floats)
{
    const struct table_spec *spec = &a->table->spec;
    struct tensor *t = add(a, tail, TENSOR_F32);
    struct arrays_source *s = t->owner;
    bool is_dense = spec->kind == SPEC_DENSE, is_whole = n_floats == spec->dim;

    s->first = first;
    s->n_floats = n_floats;
    t->part = is_dense && is_whole ? block_part : row_part;
    t->part_bytes = n_floats * sizeof(float);
    t->n_dims = is_dense || !is_whole ? 1 : 2;
    t->dims[0] = is_dense && is_whole ? spec->n_floats : a->n_items;
    t->dims[1] = n_floats;
}

static void add_state(struct arrays *a)
{
    static const char *const names[][2] = {
        [SPEC_SGD] = { NULL, NULL },
        [SPEC_MOMENTUM] = { ".state.b", NULL },
        [SPEC_ADAGRAD] = { ".state.s", NULL },
        [SPEC_ROWWISE_ADAGRAD] = { ".state.s", NULL },
        [SPEC_ADAM] = { ".state.m", ".state.v" },
        [SPEC_FTRL] = { ".state.z", ".state.n" },
    };
    const struct table_spec *spec = &a->table->spec;
    uint32_t n = 0, first = spec->dim;

    while (n < 2 && names[spec->optim][n])
        n++;
    for (uint32_t i = 0; i < n; i++, first += a->n_state / n)
        add_floats(a, names[spec->optim][i], first, a->n_state / n);
}

/* --- rows --- */

static int by_key(const void *left, const void *right)
{
    int64_t a = ((const struct arrays_item *)left)->key;
    int64_t b = ((const struct arrays_item *)right)->key;

    return a < b ? -1 : a > b;
}

static int fill_blocks(struct shard *shard, uint32_t table_id) ON_SHARD
{
    const struct shard_table *t = shard_table(shard, table_id);
    uint64_t n = t->spec.kind == SPEC_DENSE ? spec_n_blocks(&t->spec) : 0;
    int status = 0;

    for (uint64_t key = 0; key < n && !status; key++) {
        struct row *row;

        table_find_batch(t->rows, &key, 1, &row);
        if (!row)
            status = shard_restore_row(shard, table_id, key, 0, NULL);
    }
    return status;
}

static int gather(struct arrays *a)
{
    const struct table *rows = a->table->rows;
    uint64_t n = table_n_numbers(rows);

    a->items = mem_try_alloc((table_n_rows(rows) + 1) * sizeof *a->items);
    if (!a->items)
        return -ENOMEM;
    for (uint64_t i = 0; i < n; i++) {
        const struct row *row = table_row(rows, i);

        if (row)
            a->items[a->n_items++] = (struct arrays_item){ (int64_t)row->key, row };
    }
    qsort(a->items, a->n_items, sizeof *a->items, by_key);
    return 0;
}

int arrays_init(struct arrays *a, struct shard *shard, uint32_t table_id,
                enum arrays_extent extent, struct err *err)
{
    const struct table_spec *spec;
    int status = fill_blocks(shard, table_id);

    *a = (struct arrays){ .table = shard_table(shard, table_id) };
    spec = &a->table->spec;
    if (!status)
        status = gather(a);
    if (status) {
        arrays_deinit(a);
        return err_set(err, status, "table %s: cannot be put in order: %s", spec->name,
                       status_text(status));
    }
    a->n_state = optim_find(spec->optim)->state_floats(spec->dim);
    a->floats = mem_alloc((spec->dim + a->n_state) * sizeof(float));
    if (spec->kind == SPEC_SPARSE)
        add_keys(a);
    add_floats(a, spec->kind == SPEC_SPARSE ? ".weight" : "", 0, spec->dim);
    if (extent == ARRAYS_WITH_STATE)
        add_state(a);
    return 0;
}

void arrays_deinit(struct arrays *a)
{
    free(a->items);
    free(a->floats);
    a->items = NULL;
    a->floats = NULL;
}
