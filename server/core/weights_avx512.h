/* The kernels of weights.c with intrinsics: SIMD_AVX512 only. Each is one there, 16 floats at a
 * time. */
#ifndef SERVER_CORE_WEIGHTS_AVX512_H
#define SERVER_CORE_WEIGHTS_AVX512_H

#include "common/hash.h"
#include "proto/codec_avx512.h"

/* random_bits() of i to i + 15. */
SIMD_AVX512_INLINE __m512i weights_avx512_random(uint64_t mixed, uint32_t i)
{
    const __m512i lane =
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i steps = _mm512_mullo_epi32(lane, _mm512_set1_epi32((int32_t)0x9e3779b9u));
    __m512i r = _mm512_add_epi32(
        steps, _mm512_set1_epi32((int32_t)((uint32_t)mixed + i * 0x9e3779b9u)));

    r = _mm512_mullo_epi32(_mm512_xor_si512(r, _mm512_srli_epi32(r, 16)),
                           _mm512_set1_epi32(0x7feb352d));
    r = _mm512_xor_si512(r, _mm512_set1_epi32((int32_t)(mixed >> 32)));
    r = _mm512_mullo_epi32(_mm512_xor_si512(r, _mm512_srli_epi32(r, 15)),
                           _mm512_set1_epi32((int32_t)0x846ca68bu));
    return _mm512_xor_si512(r, _mm512_srli_epi32(r, 16));
}

/* finite() */
SIMD_AVX512_INLINE __m256i weights_avx512_finite(__m256i half, int infinity)
{
    const __m256i abs = _mm256_and_si256(half, _mm256_set1_epi16(0x7fff));
    const __mmask16 is = _mm256_cmpeq_epi16_mask(abs, _mm256_set1_epi16((int16_t)infinity));

    return _mm256_mask_sub_epi16(half, is, half, _mm256_set1_epi16(1));
}

SIMD_AVX512_INLINE __m256i weights_avx512_bf16_random(__m512 x, __m512i r)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    __m512i sum = _mm512_add_epi32(bits, _mm512_and_si512(r, _mm512_set1_epi32(0xffff)));

    sum = _mm512_mask_or_epi32(sum, is_nan, bits, _mm512_set1_epi32(0x400000));
    return weights_avx512_finite(_mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16)), 0x7f80);
}

SIMD_AVX512_INLINE __m256i weights_avx512_fp16_random(__m512 x, __m512i r)
{
    const __m512i abs = codec_avx512_magnitude(x);
    const __mmask16 is_small = _mm512_cmplt_epu32_mask(abs, _mm512_set1_epi32(113 << 23));
    const __m512 steps = _mm512_mul_ps(_mm512_castsi512_ps(abs), _mm512_set1_ps(0x1p24f));
    __m512i whole = _mm512_cvttps_epi32(steps);
    const __m512i rest = _mm512_cvttps_epi32(_mm512_mul_ps(
        _mm512_sub_ps(steps, _mm512_cvtepi32_ps(whole)), _mm512_set1_ps(0x1p31f)));
    const __m512i r31 = _mm512_and_si512(r, _mm512_set1_epi32(0x7fffffff));
    __m512i half = _mm512_sub_epi32(abs, _mm512_set1_epi32(112 << 23));

    half = _mm512_add_epi32(half, _mm512_and_si512(r, _mm512_set1_epi32(0x1fff)));
    half = _mm512_srli_epi32(half, 13);
    whole = _mm512_mask_add_epi32(whole, _mm512_cmplt_epi32_mask(r31, rest), whole,
                                  _mm512_set1_epi32(1));
    half = _mm512_mask_mov_epi32(half, is_small, whole);
    half = _mm512_min_epu32(half, _mm512_set1_epi32(0x7bff));
    half = _mm512_mask_mov_epi32(half, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                                 _mm512_set1_epi32(0x7e00));
    return _mm512_cvtepi32_epi16(
        _mm512_or_si512(half, _mm512_and_si512(_mm512_srli_epi32(_mm512_castps_si512(x), 16),
                                               _mm512_set1_epi32(0x8000))));
}

#endif
