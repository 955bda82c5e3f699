/*
 * The initial weights of a row: a pure function of (specification, key), the same on any shard at any time.
 *
 *     h(i)     = mix2(mix2(seed, key), i)
 *     uniform: (2 u(h) - 1) * scale;  normal: Box-Muller from h(2j), h(2j+1), times scale
 */
#ifndef SERVER_CORE_ROW_INIT_H
#define SERVER_CORE_ROW_INIT_H

#include "common/simd.h"
#include "proto/table_spec.h"

/* weights: spec->dim floats. */
void row_init_row(const struct table_spec *spec, uint64_t key, float *weights);

/* In one build, all of which give the same bits, for those who compare them; simd_runs(build). */
void row_init_row_build(const struct table_spec *spec, uint64_t key, enum simd build,
                        float *weights);

#endif
