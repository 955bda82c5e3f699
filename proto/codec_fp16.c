/*
 * IEEE 754 binary16 by integer arithmetic, so that it needs no F16C and no branch. The
 * exponent's bias is 15 here and 127 in fp32: 112 apart.
 */
#include "proto/codec.h"
#include "proto/codec_bytes.h"

#define REBIAS (112u << 23)
#define NORMAL_MIN (113u << 23) /* 2^-14 */
#define INFINITY_BITS 0x7f800000u
#define OVERFLOW_MIN 0x477ff000u /* 65520: halfway between 65504 and what would be 65536 */

static size_t row_bytes(uint32_t dim, uint32_t k)
{
    (void)k;
    return 2 * (size_t)dim;
}

/* All ones where the condition holds: the choice between two results without a
 * branch, as vectors need it. */
static uint32_t mask(int condition)
{
    return 0u - (uint32_t)condition;
}

static uint32_t choose(uint32_t chosen, uint32_t a, uint32_t b)
{
    return (a & chosen) | (b & ~chosen);
}

static uint16_t from_bits(uint32_t bits)
{
    uint32_t sign = (bits >> 16) & 0x8000u, abs = bits & 0x7fffffffu;
    uint32_t is_small = mask(abs < NORMAL_MIN);
    uint32_t normal = (abs - REBIAS + 0xfffu + ((abs >> 13) & 1u)) >> 13;
    /* A float at 0.5 counts in steps of 2^-24, as subnormals of fp16 do: the
     * addition rounds |x| to one. */
    float tiny = codec_bytes_to_float(abs & is_small) + 0.5f;
    uint32_t subnormal = codec_bytes_of_float(tiny) - codec_bytes_of_float(0.5f);
    uint32_t half = choose(is_small, subnormal, normal);

    half = choose(mask(abs >= OVERFLOW_MIN), 0x7c00u, half);
    half = choose(mask(abs > INFINITY_BITS), 0x7e00u | ((abs >> 13) & 0x3ffu), half);
    return (uint16_t)(sign | half);
}

static uint32_t to_bits(uint32_t half)
{
    uint32_t sign = (half & 0x8000u) << 16, abs = half & 0x7fffu;
    uint32_t subnormal = codec_bytes_of_float((float)(int32_t)abs * 0x1p-24f);
    uint32_t bits = choose(mask(abs < 0x400u), subnormal, (abs << 13) + REBIAS);

    return sign | choose(mask(abs >= 0x7c00u), (abs << 13) | INFINITY_BITS, bits);
}

static void encode(const float *restrict src, uint32_t dim, uint32_t k, uint8_t *restrict dst)
{
    (void)k;
    for (size_t i = 0; i < dim; i++)
        codec_bytes_put_u16(dst, i, from_bits(codec_bytes_of_float(src[i])));
}

static int decode(const uint8_t *restrict src, uint32_t dim, uint32_t k, float *restrict dst)
{
    (void)k;
    for (size_t i = 0; i < dim; i++)
        dst[i] = codec_bytes_to_float(to_bits(codec_bytes_get_u16(src, i)));
    return 0;
}

const struct codec codec_fp16 = { "fp16", CODEC_FP16, false, row_bytes, encode, decode };
