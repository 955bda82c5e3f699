/*
 * Functions that the AVX-512 builds of several kernels share. They work on 16 floats at a time; the last n <= 16 of a
 * row are loaded and stored under a mask. So nothing beyond a row is touched, and no row is too short for a vector. n
 * is the number of floats left in the row, 1 or more.
 */
#ifndef PROTO_CODEC_AVX512_H
#define PROTO_CODEC_AVX512_H

#include <immintrin.h>

#include "common/simd.h"

#define CODEC_AVX512_LANES 16u

SIMD_AVX512_INLINE __mmask16 codec_avx512_mask(uint32_t n)
{
    return (__mmask16)(n >= CODEC_AVX512_LANES ? 0xffffu : (1u << n) - 1);
}

/* Zeros beyond the row. */
SIMD_AVX512_INLINE __m512 codec_avx512_get_f32(const float *src, uint32_t n)
{
    return n >= CODEC_AVX512_LANES ? _mm512_loadu_ps(src)
                                   : _mm512_maskz_loadu_ps(codec_avx512_mask(n), src);
}

SIMD_AVX512_INLINE void codec_avx512_put_f32(float *dst, __m512 value, uint32_t n)
{
    if (n >= CODEC_AVX512_LANES)
        _mm512_storeu_ps(dst, value);
    else
        _mm512_mask_storeu_ps(dst, codec_avx512_mask(n), value);
}

SIMD_AVX512_INLINE __m256i codec_avx512_get_u16(const uint8_t *src, uint32_t n)
{
    return n >= CODEC_AVX512_LANES ? _mm256_loadu_si256((const __m256i_u *)src)
                                   : _mm256_maskz_loadu_epi16(codec_avx512_mask(n), src);
}

SIMD_AVX512_INLINE void codec_avx512_put_u16(uint8_t *dst, __m256i value, uint32_t n)
{
    if (n >= CODEC_AVX512_LANES)
        _mm256_storeu_si256((__m256i_u *)dst, value);
    else
        _mm256_mask_storeu_epi16(dst, codec_avx512_mask(n), value);
}

SIMD_AVX512_INLINE __m128i codec_avx512_get_u8(const uint8_t *src, uint32_t n)
{
    return n >= CODEC_AVX512_LANES ? _mm_loadu_si128((const __m128i_u *)src)
                                   : _mm_maskz_loadu_epi8(codec_avx512_mask(n), src);
}

SIMD_AVX512_INLINE void codec_avx512_put_u8(uint8_t *dst, __m128i value, uint32_t n)
{
    if (n >= CODEC_AVX512_LANES)
        _mm_storeu_si128((__m128i_u *)dst, value);
    else
        _mm_mask_storeu_epi8(dst, codec_avx512_mask(n), value);
}

/* The bits of |x|, whose order as integers is that of |x|. */
SIMD_AVX512_INLINE __m512i codec_avx512_magnitude(__m512 x)
{
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

/* codec_half_to_bf16(). */
SIMD_AVX512_INLINE __m256i codec_avx512_to_bf16(__m512 x)
{
    const __m512i bits = _mm512_castps_si512(x), upper = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);

    return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(_mm512_srli_epi32(up, 16), is_nan, upper,
                                                      _mm512_set1_epi32(0x40)));
}

/* codec_half_to_fp16(). */
SIMD_AVX512_INLINE __m256i codec_avx512_to_fp16(__m512 x)
{
    /* Without the z it is a macro in builds that do not optimise, and gcc warns of it. */
    return _mm512_maskz_cvtps_ph(0xffff, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#endif
