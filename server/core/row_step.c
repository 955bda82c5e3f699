#include "server/core/row_step.h"

#include <math.h>

#include "common/hash.h"
#include "server/core/weights.h"

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

/* The noise of rounding is a function of what is changed, and not of when or where. */
void row_step_half(struct shard *s, const struct shard_entry *entry, struct row *row,
                   const optimizer_gradient *gradient, const struct optimizer_step *step)
{
    const struct table_spec *spec = &entry->table.spec;
    uint64_t noise = hash_mix2(hash_mix2(spec->seed, row->key), step->t);

    weights_load(spec->storage, row->floats, spec->dim, s->values);
    if (row_decay_is_on(spec))
        row_decay_apply(&entry->table, row, s->values, step->t);
    entry->optim->step(s->values, row_step_state(entry, row), gradient, spec->dim, step);
    weights_store(spec->storage, s->values, spec->dim, noise, row->floats);
}

void row_step(struct shard *s, const struct shard_entry *entry, struct row *row,
              float *gradient, const struct optimizer_step *step, uint64_t version)
{
    const struct table_spec *spec = &entry->table.spec;

    if (!row)
        return;
    if (spec->clip_norm > 0.0f)
        clip(gradient, spec->dim, spec->clip_norm);
    row_step_plain(s, entry, row, gradient, step, version);
}
