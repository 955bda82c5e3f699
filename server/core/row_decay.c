#include "server/core/row_decay.h"

#include <math.h>

static float noted(const struct shard_table *table, const struct row *row)
{
    return row ? row->floats[table->payload_bytes / sizeof *row->floats - 1] : 0;
}

/* Of n steps. Where n is 1 it is rounded once. */
static float factor(const struct table_spec *spec, double n)
{
    if (n <= 0)
        return 1;
    return n == 1 ? (float)(1 - (double)spec->row_decay)
                  : (float)exp(n * log1p(-(double)spec->row_decay));
}

static void decay(const struct shard_table *table, const struct row *row, float *weights,
                  uint64_t t)
{
    const double n = (double)(float)t - (double)noted(table, row);
    const float by = factor(&table->spec, n);

    for (uint32_t i = 0; i < table->spec.dim; i++)
        weights[i] *= by;
}

void row_decay_apply(const struct shard_table *table, struct row *row, float *weights,
                     uint64_t t)
{
    decay(table, row, weights, t);
    row_decay_note(table, row, t);
}

void row_decay_show_at(const struct shard_table *table, const struct row *row, float *weights,
                       uint64_t t)
{
    if (row_decay_is_on(&table->spec))
        decay(table, row, weights, t);
}

void row_decay_show(const struct shard_table *table, const struct row *row, float *weights)
{
    row_decay_show_at(table, row, weights, table->n_pushes);
}
