/*
 * Bits of a float to and from bf16 and fp16 (IEEE 754 binary16) by integer arithmetic, without a
 * branch, so that loops of them vectorise. Halves come and go as the lower 16 bits of a u32.
 *
 * fp16: the exponent's bias is 15 here and 127 in fp32: 112 apart.
 */
#ifndef PROTO_CODEC_HALF_H
#define PROTO_CODEC_HALF_H

#include "common/simd.h"
#include "proto/codec.h"

#define CODEC_HALF_REBIAS (112u << 23)
#define CODEC_HALF_NORMAL_MIN (113u << 23) /* 2^-14 */
#define CODEC_HALF_INFINITY 0x7f800000u    /* fp32's */

/* The choice between two results as vectors make it: `chosen` is all ones or zero. */
SIMD_INLINE uint32_t codec_half_choose(uint32_t chosen, uint32_t a, uint32_t b)
{
    return (a & chosen) | (b & ~chosen);
}

SIMD_INLINE uint32_t codec_half_mask(int condition)
{
    return 0u - (uint32_t)condition;
}

/* Rounded to nearest, ties to even. A NaN stays a NaN: rounding could carry it away. */
SIMD_INLINE uint32_t codec_half_to_bf16(uint32_t bits)
{
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, quiet = bits >> 16 | 0x40u;

    return codec_half_choose(codec_half_mask((bits & 0x7fffffffu) > CODEC_HALF_INFINITY), quiet,
                             rounded);
}

/* Rounded to nearest, ties to even; from 65520 on, infinity. */
SIMD_INLINE uint32_t codec_half_to_fp16(uint32_t bits)
{
    const uint32_t overflow_min = 0x477ff000u; /* 65520: halfway from 65504 to 65536 */
    uint32_t sign = (bits >> 16) & 0x8000u, abs = bits & 0x7fffffffu;
    uint32_t is_small = codec_half_mask(abs < CODEC_HALF_NORMAL_MIN);
    uint32_t normal = (abs - CODEC_HALF_REBIAS + 0xfffu + ((abs >> 13) & 1u)) >> 13;
    /* A float at 0.5 counts in steps of 2^-24, as subnormals of fp16 do: the addition rounds
     * |x| to one. */
    float tiny = codec_bytes_to_float(abs & is_small) + 0.5f;
    uint32_t subnormal = codec_bytes_of_float(tiny) - 0x3f000000u;
    uint32_t half = codec_half_choose(is_small, subnormal, normal);

    half = codec_half_choose(codec_half_mask(abs >= overflow_min), 0x7c00u, half);
    half = codec_half_choose(codec_half_mask(abs > CODEC_HALF_INFINITY),
                             0x7e00u | ((abs >> 13) & 0x3ffu), half);
    return sign | half;
}

/* Exact; a NaN becomes a quiet one. */
SIMD_INLINE uint32_t codec_half_of_fp16(uint32_t half)
{
    uint32_t sign = (half & 0x8000u) << 16, abs = half & 0x7fffu;
    uint32_t subnormal = codec_bytes_of_float((float)(int32_t)abs * 0x1p-24f);
    uint32_t bits = codec_half_choose(codec_half_mask(abs < 0x400u), subnormal,
                                      (abs << 13) + CODEC_HALF_REBIAS);
    uint32_t quiet = codec_half_mask(abs > 0x7c00u) & 0x400000u;

    return sign | quiet |
           codec_half_choose(codec_half_mask(abs >= 0x7c00u), (abs << 13) | CODEC_HALF_INFINITY,
                             bits);
}

#endif
