/* The upper half of an fp32, rounded to nearest, ties to even. */
#include "common/status.h"
#include "proto/codec.h"
#include "proto/codec_avx512.h"
#include "proto/codec_half.h"

#define MAGNITUDE 0x7fffu

static size_t row_bytes(uint32_t dim, uint32_t k)
{
    (void)k;
    return 2 * (size_t)dim;
}

SIMD_INLINE void encode(const float *restrict src, uint32_t dim, uint32_t k,
                        uint8_t *restrict dst)
{
    (void)k;
    for (size_t i = 0; i < dim; i++)
        codec_bytes_put_u16(dst, i, (uint16_t)codec_half_to_bf16(codec_bytes_of_float(src[i])));
}

SIMD_INLINE int decode(const uint8_t *restrict src, uint32_t dim, uint32_t k,
                       float *restrict dst)
{
    (void)k;
    for (size_t i = 0; i < dim; i++)
        dst[i] = codec_bytes_to_float((uint32_t)codec_bytes_get_u16(src, i) << 16);
    return 0;
}

SIMD_INLINE int check(const uint8_t *restrict src, uint32_t dim, uint32_t k, uint32_t max)
{
    const uint16_t half_max = (uint16_t)(max >> 16);
    uint16_t bad = 0;

    (void)k;
    for (size_t i = 0; i < dim; i++)
        bad |= (uint16_t)((codec_bytes_get_u16(src, i) & MAGNITUDE) > half_max);
    return bad ? PS_ENAN : 0;
}

SIMD_TARGET_AVX512
static void encode_row_avx512(const float *restrict src, uint32_t dim, uint32_t k,
                              uint8_t *restrict dst)
{
    (void)k;
    for (uint32_t i = 0; i < dim; i += CODEC_AVX512_LANES)
        codec_avx512_put_u16(dst + 2 * (size_t)i,
                             codec_avx512_to_bf16(codec_avx512_get_f32(src + i, dim - i)),
                             dim - i);
}

CODEC_BUILDS_BUT_AVX512(bf16, CODEC_BF16, false)
CODEC_DECODE(_avx512, SIMD_TARGET_AVX512)
CODEC_CHECK(_avx512, SIMD_TARGET_AVX512)
CODEC_BUILD(bf16, _avx512, CODEC_BF16, false)
