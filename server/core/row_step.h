/* One row changes: a step of its table's optimizer. Nothing here can fail. */
#ifndef SERVER_CORE_ROW_STEP_H
#define SERVER_CORE_ROW_STEP_H

#include "server/core/row_decay.h"
#include "server/core/shard_internal.h"

static inline float *row_step_state(const struct shard_entry *entry, struct row *row)
{
    return row->floats + entry->table.weights_bytes / sizeof *row->floats;
}

/* Of weights that are not stored as fp32. */
void row_step_half(struct shard *s, const struct shard_entry *entry, struct row *row,
                   const optimizer_gradient *gradient, const struct optimizer_step *step);

static inline void row_step_plain(struct shard *s, const struct shard_entry *entry,
                                  struct row *row, const optimizer_gradient *gradient,
                                  const struct optimizer_step *step, uint64_t version)
{
    const struct table_spec *spec = &entry->table.spec;

    if (spec->storage == TABLE_SPEC_FP32) {
        if (row_decay_is_on(spec))
            row_decay_apply(&entry->table, row, row->floats, step->t);
        entry->optim->step(row->floats, row_step_state(entry, row), gradient, spec->dim, step);
    } else
        row_step_half(s, entry, row, gradient, step);
    row_touch(row, version);
}

/* Scales the gradient down to the table's clip_norm before. row NULL: the key got no row. */
void row_step(struct shard *s, const struct shard_entry *entry, struct row *row,
              float *gradient, const struct optimizer_step *step, uint64_t version);

#endif
