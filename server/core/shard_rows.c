#include "server/core/shard_rows.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "server/core/init.h"

/* Rows asked for before their turn: about what a step takes to hide a miss. */
#define AHEAD 4u

/* Of one row; behind that the hardware has seen where it goes. */
#define PREFETCH_BYTES_MAX 1024u

/* The most new rows, at most n_want, that keep all tables within the budget. */
static uint64_t n_rows_allowed(const struct shard *s, const struct table *t, uint64_t n_want)
{
    uint64_t others, low = 0, high = n_want, max = s->config.memory_max_bytes;

    if (!max || !n_want)
        return n_want;
    others = shard_tables_bytes(s) - table_bytes(t);
    if (others + table_bytes_after(t, n_want) <= max)
        return n_want;
    /* The answer is in [low, high], as table_bytes_after() never falls. */
    while (low < high) {
        uint64_t middle = low + (high - low + 1) / 2;

        if (others + table_bytes_after(t, middle) <= max)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

int shard_rows_prepare(const struct shard *s, struct shard_rows *b)
{
    struct table *t = b->entry->table.rows;
    uint64_t n_absent = 0;

    table_find_batch(t, b->keys, b->n_keys, b->rows);
    for (uint32_t i = 0; i < b->n_keys; i++)
        n_absent += b->rows[i] == NULL;
    b->n_new = n_rows_allowed(s, t, n_absent);
    return b->n_new ? table_reserve(t, b->n_new) : 0;
}

static struct row *make_row(struct shard *s, struct shard_entry *entry, uint64_t key)
{
    const struct table_spec *spec = &entry->table.spec;
    struct row *row;
    bool is_new;
    int status = table_upsert(entry->table.rows, key, &row, &is_new);

    assert(!status && is_new); /* shard_rows_prepare() has made room, and did not find it */
    init_row(spec, key, row->floats);
    entry->optim->init(row->floats, row->floats + spec->dim, spec->dim, &spec->params);
    s->counters.rows_new++;
    return row;
}

static void prefetch_row(const struct row *row, uint32_t n_floats)
{
    const char *bytes = (const char *)row;
    size_t n_bytes = sizeof *row + n_floats * sizeof *row->floats;

    for (size_t at = 0; at < n_bytes && at < PREFETCH_BYTES_MAX; at += 64)
        __builtin_prefetch(bytes + at, 1);
}

/* Row i, made when it is not there; NULL when it has no place in the budget. */
static struct row *take(struct shard *s, struct shard_rows *b, uint32_t i)
{
    if (i + AHEAD < b->n_keys && b->rows[i + AHEAD])
        prefetch_row(b->rows[i + AHEAD], b->entry->table.row_floats);
    if (b->rows[i])
        return b->rows[i];
    if (!b->n_new) {
        b->entry->table.rows_refused++;
        s->counters.rows_refused++;
        return NULL;
    }
    b->n_new--;
    b->rows[i] = make_row(s, b->entry, b->keys[i]);
    return b->rows[i];
}

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

static void stamp(const struct shard *s, struct row *row, uint64_t clock)
{
    row->version = s->version;
    row->last_clock = clock;
}

void shard_rows_step(struct shard *s, struct shard_rows *b, uint32_t i, float *gradient,
                     const struct optim_step *step, uint64_t clock)
{
    const struct table_spec *spec = &b->entry->table.spec;
    struct row *row = take(s, b, i);

    if (!row)
        return;
    if (spec->clip_norm > 0.0f)
        clip(gradient, spec->dim, spec->clip_norm);
    b->entry->optim->step(row->floats, row->floats + spec->dim, gradient, spec->dim, step);
    stamp(s, row, clock);
}

void shard_rows_assign(struct shard *s, struct shard_rows *b, uint32_t i, const float *weights,
                       uint64_t clock)
{
    const struct table_spec *spec = &b->entry->table.spec;
    struct row *row = take(s, b, i);

    if (!row)
        return;
    memcpy(row->floats, weights, spec->dim * sizeof *weights);
    b->entry->optim->init(row->floats, row->floats + spec->dim, spec->dim, &spec->params);
    stamp(s, row, clock);
}
