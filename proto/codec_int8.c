/* scale f32, then q int8[dim]: x = q * scale. All arithmetic in fp32. */
#include <float.h>
#include <math.h>

#include "common/status.h"
#include "proto/codec.h"
#include "proto/codec_avx512.h"
#include "proto/codec_scalar.h"

static size_t row_bytes(uint32_t dim, uint32_t k)
{
    (void)k;
    return 4 + (size_t)dim;
}

/* dst: q[dim]. */
SIMD_INLINE void quantize(const float *restrict src, uint32_t dim, float scale,
                          uint8_t *restrict dst)
{
    if (scale == 0) { /* a row of zeros, or one so small that its scale is */
        memset(dst, 0, dim);
        return;
    }
    for (size_t i = 0; i < dim; i++)
        dst[i] = codec_scalar_int8_q(src[i], scale);
}

SIMD_INLINE void encode(const float *restrict src, uint32_t dim, uint32_t k,
                        uint8_t *restrict dst)
{
    uint32_t max = 0;
    float scale;

    (void)k;
    for (size_t i = 0; i < dim; i++) {
        uint32_t magnitude = codec_bytes_magnitude(src, i);

        max = magnitude > max ? magnitude : max;
    }
    scale = codec_scalar_int8_scale(max);
    codec_bytes_put_f32(dst, 0, scale);
    quantize(src, dim, scale, dst + 4);
}

SIMD_INLINE int decode(const uint8_t *restrict src, uint32_t dim, uint32_t k,
                       float *restrict dst)
{
    float scale = codec_bytes_get_f32(src, 0);
    uint32_t n_bad = 0;

    (void)k;
    src += 4;
    for (size_t i = 0; i < dim; i++) {
        n_bad += src[i] == 0x80; /* -128, which encode() never writes */
        dst[i] = (float)(int8_t)src[i] * scale;
    }
    return n_bad ? PS_ECODEC : 0;
}

/* The largest |q|: all of a row's floats are finite if that one times the scale is. */
SIMD_INLINE uint32_t largest(const uint8_t *q, uint32_t dim)
{
    uint32_t max = 0;

    for (size_t i = 0; i < dim; i++) {
        uint32_t magnitude = (uint32_t)((int8_t)q[i] < 0 ? -(int8_t)q[i] : (int8_t)q[i]);

        max = magnitude > max ? magnitude : max;
    }
    return max;
}

SIMD_INLINE int check_scale(const uint8_t *src, uint32_t dim, uint32_t max)
{
    const float scale = codec_bytes_get_f32(src, 0), limit = codec_bytes_to_float(max);

    if (fabsf(scale * CODEC_SCALAR_Q_MAX) <= limit)
        return 0;
    /* An infinite scale makes even q = 0 a NaN. */
    return isfinite(scale) && fabsf((float)largest(src + 4, dim) * scale) <= limit ? 0
                                                                                   : PS_ENAN;
}

SIMD_INLINE int check(const uint8_t *restrict src, uint32_t dim, uint32_t k, uint32_t max)
{
    uint8_t bad = 0;

    (void)k;
    for (size_t i = 0; i < dim; i++)
        bad |= (uint8_t)(src[4 + i] == 0x80);
    return bad ? PS_ECODEC : check_scale(src, dim, max);
}

SIMD_AVX512_INLINE uint32_t max_magnitude_avx512(const float *src, uint32_t dim)
{
    __m512i max = _mm512_setzero_si512();

    for (uint32_t i = 0; i < dim; i += CODEC_AVX512_LANES)
        max = _mm512_max_epu32(max,
                               codec_avx512_magnitude(codec_avx512_get_f32(src + i, dim - i)));
    return _mm512_reduce_max_epu32(max);
}

/* A row's scale, when it and 1 / scale are normal and no float is NaN or infinite: |x| / scale is
 * 127 and some ulps at most, and no q needs to be held within 127. */
struct scale {
    __m512 scale, inverse;
};

/* How far x / scale is from its q. Multiplies, where quantize() divides: x * (1 / scale) is
 * within 127 * 3 * 2^-24 < 2^-15 of x / scale. */
SIMD_AVX512_INLINE __m512 rest_avx512(__m512 product)
{
    return _mm512_abs_ps(_mm512_reduce_ps(product, _MM_FROUND_TO_NEAREST_INT));
}

/* Further than that from the middle between two integers, product and quotient have one q. */
SIMD_AVX512_INLINE bool is_clear_avx512(__m512 rest)
{
    return _mm512_cmp_ps_mask(rest, _mm512_set1_ps(0.5f - 0x1p-15f), _CMP_GT_OQ) == 0;
}

/* The last of a row; n is what is left of it. */
SIMD_AVX512_INLINE void quantize_avx512(const float *src, uint32_t n, struct scale s,
                                        uint8_t *dst)
{
    const __m512 x = codec_avx512_get_f32(src, n);
    __m512 quotient = _mm512_mul_ps(x, s.inverse);

    if (!is_clear_avx512(rest_avx512(quotient)))
        quotient = _mm512_div_ps(x, s.scale);
    codec_avx512_put_u8(dst, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(quotient)), n);
}

SIMD_AVX512_INLINE void quantize_64_avx512(const float *src, struct scale s, uint8_t *dst)
{
    /* Packing works on each quarter of a vector by itself. */
    const __m512i order =
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512 a = _mm512_mul_ps(_mm512_loadu_ps(src), s.inverse);
    __m512 b = _mm512_mul_ps(_mm512_loadu_ps(src + 16), s.inverse);
    __m512 c = _mm512_mul_ps(_mm512_loadu_ps(src + 32), s.inverse);
    __m512 d = _mm512_mul_ps(_mm512_loadu_ps(src + 48), s.inverse);
    __m512 rest = _mm512_max_ps(_mm512_max_ps(rest_avx512(a), rest_avx512(b)),
                                _mm512_max_ps(rest_avx512(c), rest_avx512(d)));
    __m512i ab, cd;

    if (!is_clear_avx512(rest)) {
        for (uint32_t i = 0; i < 64; i += CODEC_AVX512_LANES)
            quantize_avx512(src + i, CODEC_AVX512_LANES, s, dst + i);
        return;
    }
    ab = _mm512_packs_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
    cd = _mm512_packs_epi32(_mm512_cvtps_epi32(c), _mm512_cvtps_epi32(d));
    _mm512_storeu_si512(dst, _mm512_permutexvar_epi32(order, _mm512_packs_epi16(ab, cd)));
}

SIMD_TARGET_AVX512
static void encode_row_avx512(const float *restrict src, uint32_t dim, uint32_t k,
                              uint8_t *restrict dst)
{
    const uint32_t max = max_magnitude_avx512(src, dim);
    const float scale = codec_scalar_int8_scale(max);
    const struct scale s = { _mm512_set1_ps(scale), _mm512_set1_ps(1 / scale) };
    uint32_t i = 0;

    (void)k;
    codec_bytes_put_f32(dst, 0, scale);
    dst += 4;
    if (!(scale >= FLT_MIN && max < CODEC_SCALAR_INFINITY)) {
        quantize(src, dim, scale, dst);
        return;
    }
    for (; dim - i >= 64; i += 64)
        quantize_64_avx512(src + i, s, dst + i);
    for (; i < dim; i += CODEC_AVX512_LANES)
        quantize_avx512(src + i, dim - i, s, dst + i);
}

SIMD_TARGET_AVX512
static int decode_row_avx512(const uint8_t *restrict src, uint32_t dim, uint32_t k,
                             float *restrict dst)
{
    const __m512 scale = _mm512_set1_ps(codec_bytes_get_f32(src, 0));
    uint32_t bad = 0;

    (void)k;
    src += 4;
    for (uint32_t i = 0; i < dim; i += CODEC_AVX512_LANES) {
        __m128i q = codec_avx512_get_u8(src + i, dim - i);

        bad |= _mm_cmpeq_epi8_mask(q, _mm_set1_epi8(INT8_MIN));
        codec_avx512_put_f32(dst + i,
                             _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)), scale),
                             dim - i);
    }
    return bad ? PS_ECODEC : 0;
}

SIMD_TARGET_AVX512
static int check_row_avx512(const uint8_t *restrict src, uint32_t dim, uint32_t k, uint32_t max)
{
    const __m512i least = _mm512_set1_epi8(INT8_MIN);
    uint64_t bad = 0;

    (void)k;
    src += 4;
    for (uint32_t i = 0; i < dim; i += 64) {
        uint64_t mask = dim - i >= 64 ? UINT64_MAX : (UINT64_C(1) << (dim - i)) - 1;

        bad |= _mm512_cmpeq_epi8_mask(_mm512_maskz_loadu_epi8(mask, src + i), least);
    }
    return bad ? PS_ECODEC : check_scale(src - 4, dim, max);
}

CODEC_BUILDS_BUT_AVX512(int8, CODEC_INT8, false)
CODEC_BUILD(int8, _avx512, CODEC_INT8, false)
