/*
 * The rows that a push is about to change: found, room made, and then changed.
 * shard_rows_prepare() may fail and changes no row; what comes after it cannot fail.
 */
#ifndef SERVER_CORE_SHARD_ROWS_H
#define SERVER_CORE_SHARD_ROWS_H

#include "server/core/shard_state.h"

/* Finds b->keys, fills b->rows, and makes room for as many new rows as the memory budget allows
 * (b->n_new). -ENOMEM: no row has changed. */
int shard_rows_prepare(const struct shard *s, struct shard_rows *b) MUST_CHECK;

/* Scales the gradient down to the table's clip_norm, then one step of the optimizer on row i,
 * which is made first when it is not there, or left out and counted when it has no place in the
 * budget. */
void shard_rows_step(struct shard *s, struct shard_rows *b, uint32_t i, float *gradient,
                     const struct optim_step *step, uint64_t clock);

/* Row i's weights become these; its optimizer state starts anew. Absent rows as above. */
void shard_rows_assign(struct shard *s, struct shard_rows *b, uint32_t i, const float *weights,
                       uint64_t clock);

#endif
