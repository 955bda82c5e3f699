/* scale f32[ceil(dim / 256)], then ceil(dim / 8) bytes of signs, LSB first: x = scale of its
 * block, or minus it. */
#include <math.h>

#include "common/status.h"
#include "proto/codec.h"
#include "proto/codec_avx512.h"
#include "proto/codec_scalar.h"

#define MAGNITUDE 0x7fffffffu
#define BLOCK CODEC_SCALAR_ONEBIT_BLOCK
#define N_LANES CODEC_SCALAR_ONEBIT_LANES

static uint32_t n_blocks(uint32_t dim)
{
    return (dim + BLOCK - 1) / BLOCK;
}

static size_t row_bytes(uint32_t dim, uint32_t k)
{
    (void)k;
    return 4 * (size_t)n_blocks(dim) + (dim + 7) / 8;
}

/* In double, in lanes whose order of adding is the same in every build, however wide its
 * vectors are. */
SIMD_INLINE float mean_magnitude(const float *src, uint32_t n)
{
    double lane[N_LANES] = { 0 };
    uint32_t i = 0;

    for (; i + N_LANES <= n; i += N_LANES)
        for (uint32_t j = 0; j < N_LANES; j++)
            lane[j] += (double)fabsf(src[i + j]);
    for (uint32_t j = 0; i < n; i++, j++)
        lane[j] += (double)fabsf(src[i]);
    for (uint32_t width = N_LANES / 2; width; width /= 2)
        for (uint32_t j = 0; j < width; j++)
            lane[j] += lane[j + width];
    return codec_scalar_onebit_scale(lane[0], n);
}

/* The signs of n <= 8 floats. Of a bit the mask, not a shift: that is what vectors can do. */
SIMD_INLINE uint8_t pack(const float *src, uint32_t n)
{
    static const uint32_t bit[8] = { 1, 2, 4, 8, 16, 32, 64, 128 };
    uint32_t bits = 0;

    for (uint32_t j = 0; j < n; j++)
        bits |= src[j] >= 0 ? bit[j] : 0;
    return (uint8_t)bits;
}

SIMD_INLINE void unpack(uint32_t bits, float scale, uint32_t n, float *dst)
{
    static const uint32_t bit[8] = { 1, 2, 4, 8, 16, 32, 64, 128 };

    for (uint32_t j = 0; j < n; j++)
        dst[j] = codec_scalar_onebit_got(scale, bits & bit[j]);
}

SIMD_INLINE void encode(const float *restrict src, uint32_t dim, uint32_t k,
                        uint8_t *restrict dst)
{
    uint8_t *signs = dst + 4 * (size_t)n_blocks(dim);
    uint32_t i = 0;

    (void)k;
    for (uint32_t b = 0; b < n_blocks(dim); b++) {
        uint32_t at = b * BLOCK;

        codec_bytes_put_f32(dst, b,
                            mean_magnitude(src + at, dim - at < BLOCK ? dim - at : BLOCK));
    }
    for (; i + 8 <= dim; i += 8)
        signs[i / 8] = pack(src + i, 8);
    if (i < dim)
        signs[i / 8] = pack(src + i, dim - i);
}

SIMD_INLINE int decode(const uint8_t *restrict src, uint32_t dim, uint32_t k,
                       float *restrict dst)
{
    const uint8_t *signs = src + 4 * (size_t)n_blocks(dim);
    uint32_t i = 0;

    (void)k;
    if (dim % 8 && signs[dim / 8] >> (dim % 8))
        return PS_ECODEC;        /* bits beyond the row */
    for (; i + 8 <= dim; i += 8) /* a block is a multiple of 8 */
        unpack(signs[i / 8], codec_bytes_get_f32(src, i / BLOCK), 8, dst + i);
    if (i < dim)
        unpack(signs[i / 8], codec_bytes_get_f32(src, i / BLOCK), dim - i, dst + i);
    return 0;
}

SIMD_INLINE int check(const uint8_t *restrict src, uint32_t dim, uint32_t k, uint32_t max)
{
    const uint8_t *signs = src + 4 * (size_t)n_blocks(dim);

    (void)k;
    if (dim % 8 && signs[dim / 8] >> (dim % 8))
        return PS_ECODEC;
    for (uint32_t b = 0; b < n_blocks(dim); b++)
        if ((codec_bytes_get_u32(src, b) & MAGNITUDE) > max)
            return PS_ENAN;
    return 0;
}

/* Eight lanes of mean_magnitude() in each of two vectors. Adding the 0 that a mask leaves
 * beyond the row changes none. */
SIMD_AVX512_INLINE float mean_magnitude_avx512(const float *src, uint32_t n)
{
    __m512d low = _mm512_setzero_pd(), high = low;
    __m256d half;
    __m128d quarter;

    for (uint32_t i = 0; i < n; i += N_LANES) {
        __m512 x = _mm512_abs_ps(codec_avx512_get_f32(src + i, n - i));

        low = _mm512_add_pd(low, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
        high = _mm512_add_pd(high, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
    }
    low = _mm512_add_pd(low, high);
    half = _mm256_add_pd(_mm512_castpd512_pd256(low), _mm512_extractf64x4_pd(low, 1));
    quarter = _mm_add_pd(_mm256_castpd256_pd128(half), _mm256_extractf128_pd(half, 1));
    return codec_scalar_onebit_scale(
        _mm_cvtsd_f64(quarter) + _mm_cvtsd_f64(_mm_unpackhi_pd(quarter, quarter)), n);
}

SIMD_AVX512_INLINE void put_signs_avx512(uint8_t *dst, uint32_t signs, uint32_t n)
{
    dst[0] = (uint8_t)signs;
    if (n > 8)
        dst[1] = (uint8_t)(signs >> 8);
}

SIMD_AVX512_INLINE __mmask16 get_signs_avx512(const uint8_t *src, uint32_t n)
{
    return (__mmask16)(src[0] | (n > 8 ? src[1] << 8 : 0));
}

SIMD_TARGET_AVX512
static void encode_row_avx512(const float *restrict src, uint32_t dim, uint32_t k,
                              uint8_t *restrict dst)
{
    uint8_t *signs = dst + 4 * (size_t)n_blocks(dim);

    (void)k;
    for (uint32_t at = 0; at < dim; at += BLOCK) {
        uint32_t n = dim - at < BLOCK ? dim - at : BLOCK;

        codec_bytes_put_f32(dst, at / BLOCK, mean_magnitude_avx512(src + at, n));
    }
    for (uint32_t i = 0; i < dim; i += CODEC_AVX512_LANES) {
        __mmask16 of_row = codec_avx512_mask(dim - i);
        __m512 x = codec_avx512_get_f32(src + i, dim - i);

        put_signs_avx512(signs + i / 8,
                         _mm512_mask_cmp_ps_mask(of_row, x, _mm512_setzero_ps(), _CMP_GE_OQ),
                         dim - i);
    }
}

SIMD_TARGET_AVX512
static int decode_row_avx512(const uint8_t *restrict src, uint32_t dim, uint32_t k,
                             float *restrict dst)
{
    const uint8_t *signs = src + 4 * (size_t)n_blocks(dim);
    const __m512i minus = _mm512_set1_epi32(INT32_MIN);

    (void)k;
    if (dim % 8 && signs[dim / 8] >> (dim % 8))
        return PS_ECODEC;
    for (uint32_t i = 0; i < dim; i += CODEC_AVX512_LANES) {
        uint32_t scale = codec_bytes_get_u32(src, i / BLOCK);
        __m512i plus = _mm512_set1_epi32((int32_t)scale);
        __mmask16 is_plus = get_signs_avx512(signs + i / 8, dim - i);

        plus = _mm512_mask_blend_epi32(is_plus, _mm512_xor_si512(plus, minus), plus);
        codec_avx512_put_f32(dst + i, _mm512_castsi512_ps(plus), dim - i);
    }
    return 0;
}

CODEC_BUILDS_BUT_AVX512(onebit, CODEC_ONEBIT, true)
CODEC_CHECK(_avx512, SIMD_TARGET_AVX512)
CODEC_BUILD(onebit, _avx512, CODEC_ONEBIT, true)
