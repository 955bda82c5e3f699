/* IEEE 754 binary16. */
#include "common/status.h"
#include "proto/codec.h"
#include "proto/codec_avx512.h"
#include "proto/codec_half.h"

#define EXPONENT 0x7c00u

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
        codec_bytes_put_u16(dst, i, (uint16_t)codec_half_to_fp16(codec_bytes_of_float(src[i])));
}

SIMD_INLINE int decode(const uint8_t *restrict src, uint32_t dim, uint32_t k,
                       float *restrict dst)
{
    (void)k;
    for (size_t i = 0; i < dim; i++)
        dst[i] = codec_bytes_to_float(codec_half_of_fp16(codec_bytes_get_u16(src, i)));
    return 0;
}

SIMD_INLINE int check(const uint8_t *restrict src, uint32_t dim, uint32_t k, uint32_t max)
{
    uint16_t bad = 0;

    (void)k;
    (void)max; /* above all that is finite here */
    for (size_t i = 0; i < dim; i++)
        bad |= (uint16_t)((codec_bytes_get_u16(src, i) & EXPONENT) == EXPONENT);
    return bad ? PS_ENAN : 0;
}

SIMD_TARGET_AVX512
static void encode_row_avx512(const float *restrict src, uint32_t dim, uint32_t k,
                              uint8_t *restrict dst)
{
    (void)k;
    for (uint32_t i = 0; i < dim; i += CODEC_AVX512_LANES)
        codec_avx512_put_u16(dst + 2 * (size_t)i,
                             codec_avx512_to_fp16(codec_avx512_get_f32(src + i, dim - i)),
                             dim - i);
}

SIMD_TARGET_AVX512
static int decode_row_avx512(const uint8_t *restrict src, uint32_t dim, uint32_t k,
                             float *restrict dst)
{
    (void)k;
    for (uint32_t i = 0; i < dim; i += CODEC_AVX512_LANES)
        codec_avx512_put_f32(
            dst + i, _mm512_cvtph_ps(codec_avx512_get_u16(src + 2 * (size_t)i, dim - i)),
            dim - i);
    return 0;
}

CODEC_BUILDS_BUT_AVX512(fp16, CODEC_FP16, false)
CODEC_CHECK(_avx512, SIMD_TARGET_AVX512)
CODEC_BUILD(fp16, _avx512, CODEC_FP16, false)
