/*
 * The lossy codecs' arithmetic on one float, in code that C and CUDA both compile, so that a device that encodes rows
 * itself makes the CPU's bytes. (bf16 and fp16: codec_half.h.)
 */
#ifndef PROTO_CODEC_SCALAR_H
#define PROTO_CODEC_SCALAR_H

#include <math.h>

#include "common/simd.h"
#include "proto/codec.h"

#define CODEC_SCALAR_Q_MAX 127.0f
#define CODEC_SCALAR_INFINITY 0x7f800000u

#define CODEC_SCALAR_ONEBIT_BLOCK 256u /* floats that share a scale */
#define CODEC_SCALAR_ONEBIT_LANES 16u  /* sums side by side: float i is added to lane i % 16 */

/* The processor or the compiler chooses the NaN that an operation makes: all become one. */
SIMD_INLINE float codec_scalar_one_nan(float x)
{
    return x == x ? x : codec_bytes_to_float(0x7fc00000u);
}

/* int8: the scale of a row whose largest |x| has these bits. */
SIMD_INLINE float codec_scalar_int8_scale(uint32_t max_magnitude)
{
    float scale =
        codec_scalar_one_nan(codec_bytes_to_float(max_magnitude) / CODEC_SCALAR_Q_MAX);

    /* Next to FLT_MAX the quotient may have been rounded up so far that 127 of it are
     * infinite. */
    if (max_magnitude < CODEC_SCALAR_INFINITY &&
        codec_bytes_of_float(scale * CODEC_SCALAR_Q_MAX) == CODEC_SCALAR_INFINITY)
        scale = codec_bytes_to_float(codec_bytes_of_float(scale) - 1);
    return scale;
}

/* int8: of a scale that is not 0. */
SIMD_INLINE uint8_t codec_scalar_int8_q(float x, float scale)
{
    float q = rintf(x / scale); /* not * (1 / scale): infinite for a subnormal */

    q = q > CODEC_SCALAR_Q_MAX ? CODEC_SCALAR_Q_MAX : q;
    q = q >= -CODEC_SCALAR_Q_MAX
            ? q
            : -CODEC_SCALAR_Q_MAX; /* and NaN becomes a number; the scale still tells */
    return (uint8_t)(int8_t)(int32_t)q;
}

/* onebit: the scale of a block of n floats whose |x| add up to this. */
SIMD_INLINE float codec_scalar_onebit_scale(double sum, uint32_t n)
{
    return codec_scalar_one_nan((float)(sum / n));
}

/* onebit: the decoded value of a float. */
SIMD_INLINE float codec_scalar_onebit_got(float scale, uint32_t is_plus)
{
    return codec_bytes_to_float(codec_bytes_of_float(scale) ^ ((uint32_t)(is_plus == 0) << 31));
}

/* The residual when `want` was to be sent and `got` was. */
SIMD_INLINE float codec_scalar_residual(float want, float got)
{
    const float lost = want - got;

    return lost - lost == 0 ? lost : 0;
}

#endif
