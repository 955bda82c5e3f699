/*
 * The optimizers that look at a row as a whole: at its norm, or with one accumulator for all of its weights.
 *
 * On a dense table a row is a block, the padding of the last one included. So the unit of CAME, which its paper calls a
 * matrix, is a row of an embedding or a block laid out as one, and that of LAMB and LARS, which their papers call a
 * layer, likewise. Their dense tables may be one block of up to TABLE_SPEC_LAYER_MAX floats, which one shard has whole,
 * and are then the papers' unit itself.
 */
#ifndef SERVER_CORE_OPTIMIZER_ROW_H
#define SERVER_CORE_OPTIMIZER_ROW_H

#include "server/core/optimizer_type.h"

/* By enum simd. */
extern const struct optimizer *const optimizer_row_adagrad[SIMD_END];
extern const struct optimizer *const optimizer_row_lamb[SIMD_END];
extern const struct optimizer *const optimizer_row_lars[SIMD_END];
extern const struct optimizer *const optimizer_row_sm3[SIMD_END];
extern const struct optimizer *const optimizer_row_came[SIMD_END];
extern const struct optimizer *const optimizer_row_sm3_matrix[SIMD_END];

#endif
