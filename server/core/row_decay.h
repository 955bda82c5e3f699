/*
 * Decay of whole tables, L2 without a gradient. With X = table_spec.row_decay, step t of a table (shard_table.n_pushes)
 * does to each of its rows, those without a gradient too,
 *
 *     w <- w * (1 - X)          then the optimizer's step, if a push names the row
 *
 * It is done lazily: behind its optimizer's state a row has the step up to which it has decayed. A gradient makes up
 * for the steps since then before the optimizer's step, w <- w * (1 - X)^n, and readers see the row as if it had. A
 * key without a row has decayed from its initial weights since step 0, so a row that is made starts there. A row that
 * is set has the decay of the steps behind. X is no learning rate and knows no schedule, so (1 - X)^n is right
 * whatever steps there were, but for the rounding of floats: n may be any number, up to the 24 bits of the float that
 * keeps the step.
 */
#ifndef SERVER_CORE_ROW_DECAY_H
#define SERVER_CORE_ROW_DECAY_H

#include "server/core/shard.h"

/* True if rows of such a table decay; they then have one float more. */
static inline bool row_decay_is_on(const struct table_spec *spec)
{
    return spec->row_decay > 0;
}

/* The row has decayed up to step t; 0: as it began. */
static inline void row_decay_note(const struct shard_table *table, struct row *row, uint64_t t)
{
    if (row_decay_is_on(&table->spec))
        row->floats[table->payload_bytes / sizeof *row->floats - 1] = (float)t;
}

/* weights, those of the row, decay up to step t, and the row notes it. */
void row_decay_apply(const struct shard_table *table, struct row *row, float *weights,
                     uint64_t t);

/* The same, and the row stays as it is. */
void row_decay_show_at(const struct shard_table *table, const struct row *row, float *weights,
                       uint64_t t);

/* weights, those of the row, or the initial ones if there is none (NULL), become those of now. */
void row_decay_show(const struct shard_table *table, const struct row *row, float *weights);

#endif
