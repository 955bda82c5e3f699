/*
 * A row's weights as they are stored: fp32, bf16 or fp16, and the optimizer's state (always
 * f32) behind them.
 *
 *     payload   [ weights: dim * 4 or dim * 2 bytes, up to a multiple of 4 | state f32 ... ]
 *
 * Optimizers and codecs know fp32 alone: a half row is loaded, stepped and stored. Storing
 * rounds stochastically, so that steps smaller than the format's are right on average
 * (Gupta et al., ICML 2015): x goes to the neighbour above with the probability of its distance
 * from the one below. The randomness is a hash of (noise, i), a pure function: the same push
 * leaves the same bits on every shard, in every replay, in every build:
 *
 *     m = hash_mix(noise),  r = m mod 2^32 + i * 0x9e3779b9          all in 32 bits from here on
 *     r = (r ^ r >> 16) * 0x7feb352d ^ m / 2^32,  r = (r ^ r >> 15) * 0x846ca68b,  r ^= r >> 16
 *
 * (the multipliers and shifts: Wellons' lowbias32). bf16 takes the lower 16 bits of r: exact
 * probabilities. fp16 takes 13, also exact, and below 2^-14 31: exact to 2^-31.
 */
#ifndef SERVER_CORE_WEIGHTS_H
#define SERVER_CORE_WEIGHTS_H

#include "common/simd.h"
#include "proto/table_spec.h"

/* Bytes of the weights part of a payload. */
uint32_t weights_bytes(enum table_spec_storage storage, uint32_t dim);

/* dst: dim floats. src aligned to 4. */
void weights_load(enum table_spec_storage storage, const void *src, uint32_t dim, float *dst);

/* src: dim floats. fp32: a copy, noise unused. A value that rounds beyond the format's largest
 * becomes that largest: no finite float becomes infinite, and in a half, infinity does not stay
 * either. NaN stays NaN. */
void weights_store(enum table_spec_storage storage, const float *src, uint32_t dim,
                   uint64_t noise, void *dst);

/* Rounds to nearest, ties to even, as init and ASSIGN do; values that the format holds exactly are kept. Too large: as
 * above. Bytes between the weights and the state become 0. */
void weights_set(enum table_spec_storage storage, const float *src, uint32_t dim, void *dst);

/* The three above for one storage, in one build: all builds give the same bits. */
struct weights_ops {
    void (*load)(const uint8_t *restrict src, uint32_t dim, float *restrict dst);
    void (*store)(const float *restrict src, uint32_t dim, uint64_t noise,
                  uint8_t *restrict dst);
    void (*set)(const float *restrict src, uint32_t dim, uint8_t *restrict dst);
};

/* For callers with many rows of one storage, or comparing builds; simd_runs(build). */
const struct weights_ops *weights_ops(enum table_spec_storage storage, enum simd build);

#endif
