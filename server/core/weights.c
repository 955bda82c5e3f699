#include "server/core/weights.h"

#include "common/hash.h"
#include "proto/codec_avx512.h"
#include "proto/codec_half.h"

#define BF16_INFINITY 0x7f80u
#define FP16_INFINITY 0x7c00u
#define FP16_NAN 0x7e00u

SIMD_INLINE uint32_t random_bits(uint64_t mixed, uint32_t i)
{
    uint32_t r = (uint32_t)mixed + i * 0x9e3779b9u;

    r = ((r ^ r >> 16) * 0x7feb352du) ^ (uint32_t)(mixed >> 32);
    r = (r ^ r >> 15) * 0x846ca68bu;
    return r ^ r >> 16;
}

/* Infinity, which is what all too large becomes, is brought down to what stands below it. */
SIMD_INLINE uint32_t finite(uint32_t half, uint32_t infinity)
{
    return half - ((half & 0x7fffu) == infinity);
}

/* bf16 and its subnormals are fp32's, cut off: random bits below the cut carry into it with the
 * right probability. */
SIMD_INLINE uint32_t bf16_random(uint32_t bits, uint32_t r)
{
    uint32_t is_nan = codec_half_mask((bits & 0x7fffffffu) > CODEC_HALF_INFINITY);
    uint32_t half = (bits + (r & 0xffffu)) >> 16;

    return finite(codec_half_choose(is_nan, bits >> 16 | 0x40u, half), BF16_INFINITY);
}

/* Below 2^-14 fp16 counts in steps of 2^-24: |x| * 2^24 is exact, and so is what it has behind
 * the point. */
SIMD_INLINE uint32_t fp16_small(uint32_t abs, uint32_t r)
{
    float steps = codec_bytes_to_float(abs) * 0x1p24f;
    int32_t whole = (int32_t)steps;
    int32_t rest = (int32_t)((steps - (float)whole) * 0x1p31f);

    return (uint32_t)(whole + ((int32_t)(r & 0x7fffffffu) < rest));
}

SIMD_INLINE uint32_t fp16_random(uint32_t bits, uint32_t r)
{
    uint32_t abs = bits & 0x7fffffffu;
    uint32_t is_small = codec_half_mask(abs < CODEC_HALF_NORMAL_MIN);
    uint32_t normal = (abs - CODEC_HALF_REBIAS + (r & 0x1fffu)) >> 13;
    uint32_t half = codec_half_choose(is_small, fp16_small(abs & is_small, r), normal);

    half = half < FP16_INFINITY ? half : FP16_INFINITY - 1;
    half = codec_half_choose(codec_half_mask(abs > CODEC_HALF_INFINITY), FP16_NAN, half);
    return (bits >> 16 & 0x8000u) | half;
}

SIMD_INLINE void fp32_load(const uint8_t *restrict src, uint32_t dim, float *restrict dst)
{
    memcpy(dst, src, 4 * (size_t)dim);
}

SIMD_INLINE void fp32_store(const float *restrict src, uint32_t dim, uint64_t noise,
                            uint8_t *restrict dst)
{
    (void)noise;
    memcpy(dst, src, 4 * (size_t)dim);
}

SIMD_INLINE void fp32_set(const float *restrict src, uint32_t dim, uint8_t *restrict dst)
{
    memcpy(dst, src, 4 * (size_t)dim);
}

SIMD_INLINE void bf16_load(const uint8_t *restrict src, uint32_t dim, float *restrict dst)
{
    for (uint32_t i = 0; i < dim; i++)
        dst[i] = codec_bytes_to_float((uint32_t)codec_bytes_get_u16(src, i) << 16);
}

SIMD_INLINE void bf16_store(const float *restrict src, uint32_t dim, uint64_t noise,
                            uint8_t *restrict dst)
{
    const uint64_t mixed = hash_mix(noise);

    for (uint32_t i = 0; i < dim; i++)
        codec_bytes_put_u16(
            dst, i, (uint16_t)bf16_random(codec_bytes_of_float(src[i]), random_bits(mixed, i)));
}

SIMD_INLINE void bf16_set(const float *restrict src, uint32_t dim, uint8_t *restrict dst)
{
    for (uint32_t i = 0; i < dim; i++)
        codec_bytes_put_u16(
            dst, i,
            (uint16_t)finite(codec_half_to_bf16(codec_bytes_of_float(src[i])), BF16_INFINITY));
    if (dim % 2)
        codec_bytes_put_u16(dst, dim, 0);
}

SIMD_INLINE void fp16_load(const uint8_t *restrict src, uint32_t dim, float *restrict dst)
{
    for (uint32_t i = 0; i < dim; i++)
        dst[i] = codec_bytes_to_float(codec_half_of_fp16(codec_bytes_get_u16(src, i)));
}

SIMD_INLINE void fp16_store(const float *restrict src, uint32_t dim, uint64_t noise,
                            uint8_t *restrict dst)
{
    const uint64_t mixed = hash_mix(noise);

    for (uint32_t i = 0; i < dim; i++)
        codec_bytes_put_u16(
            dst, i, (uint16_t)fp16_random(codec_bytes_of_float(src[i]), random_bits(mixed, i)));
}

SIMD_INLINE void fp16_set(const float *restrict src, uint32_t dim, uint8_t *restrict dst)
{
    for (uint32_t i = 0; i < dim; i++)
        codec_bytes_put_u16(
            dst, i,
            (uint16_t)finite(codec_half_to_fp16(codec_bytes_of_float(src[i])), FP16_INFINITY));
    if (dim % 2)
        codec_bytes_put_u16(dst, dim, 0);
}

#define LOAD(storage, suffix, target)                                                    \
    target static void storage##_load##suffix(const uint8_t *restrict src, uint32_t dim, \
                                              float *restrict dst)                       \
    {                                                                                    \
        storage##_load(src, dim, dst);                                                   \
    }

#define STORE(storage, suffix, target)                                                  \
    target static void storage##_store##suffix(const float *restrict src, uint32_t dim, \
                                               uint64_t noise, uint8_t *restrict dst)   \
    {                                                                                   \
        storage##_store(src, dim, noise, dst);                                          \
    }

#define SET(storage, suffix, target)                                                  \
    target static void storage##_set##suffix(const float *restrict src, uint32_t dim, \
                                             uint8_t *restrict dst)                   \
    {                                                                                 \
        storage##_set(src, dim, dst);                                                 \
    }

#define BUILD(storage, suffix, target) \
    LOAD(storage, suffix, target) STORE(storage, suffix, target) SET(storage, suffix, target)

#define OPS(storage, suffix)                                                   \
    {                                                                          \
        storage##_load##suffix, storage##_store##suffix, storage##_set##suffix \
    }

#define ALL_OPS(storage)                                                        \
    {                                                                           \
        [SIMD_PLAIN] = OPS(storage, _plain), [SIMD_AVX2] = OPS(storage, _avx2), \
        [SIMD_AVX512] = OPS(storage, _avx512),                                  \
    }

BUILD(fp32, _plain, SIMD_TARGET_PLAIN)
BUILD(fp32, _avx2, SIMD_TARGET_AVX2)
BUILD(bf16, _plain, SIMD_TARGET_PLAIN)
BUILD(bf16, _avx2, SIMD_TARGET_AVX2)
BUILD(fp16, _plain, SIMD_TARGET_PLAIN)
BUILD(fp16, _avx2, SIMD_TARGET_AVX2)
BUILD(fp32, _avx512, SIMD_TARGET_AVX512)
LOAD(bf16, _avx512, SIMD_TARGET_AVX512)

/* --- AVX-512: each kernel is one of the above, 16 floats at a time --- */

/* random_bits() of i to i + 15. */
SIMD_AVX512_INLINE __m512i random_x16(uint64_t mixed, uint32_t i)
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
SIMD_AVX512_INLINE __m256i finite_x16(__m256i half, int infinity)
{
    const __m256i abs = _mm256_and_si256(half, _mm256_set1_epi16(0x7fff));
    const __mmask16 is = _mm256_cmpeq_epi16_mask(abs, _mm256_set1_epi16((int16_t)infinity));

    return _mm256_mask_sub_epi16(half, is, half, _mm256_set1_epi16(1));
}

SIMD_AVX512_INLINE __m256i bf16_random_x16(__m512 x, __m512i r)
{
    const __m512i bits = _mm512_castps_si512(x);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    __m512i sum = _mm512_add_epi32(bits, _mm512_and_si512(r, _mm512_set1_epi32(0xffff)));

    sum = _mm512_mask_or_epi32(sum, is_nan, bits, _mm512_set1_epi32(0x400000));
    return finite_x16(_mm512_cvtepi32_epi16(_mm512_srli_epi32(sum, 16)), 0x7f80);
}

SIMD_AVX512_INLINE __m256i fp16_random_x16(__m512 x, __m512i r)
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

SIMD_TARGET_AVX512
static void bf16_store_avx512(const float *restrict src, uint32_t dim, uint64_t noise,
                              uint8_t *restrict dst)
{
    const uint64_t mixed = hash_mix(noise);

    for (uint32_t i = 0; i < dim; i += CODEC_AVX512_LANES)
        codec_avx512_put_u16(
            dst + 2 * (size_t)i,
            bf16_random_x16(codec_avx512_get_f32(src + i, dim - i), random_x16(mixed, i)),
            dim - i);
}

SIMD_TARGET_AVX512
static void bf16_set_avx512(const float *restrict src, uint32_t dim, uint8_t *restrict dst)
{
    for (uint32_t i = 0; i < dim; i += CODEC_AVX512_LANES) {
        __m256i half = codec_avx512_to_bf16(codec_avx512_get_f32(src + i, dim - i));

        codec_avx512_put_u16(dst + 2 * (size_t)i, finite_x16(half, BF16_INFINITY), dim - i);
    }
    if (dim % 2)
        codec_bytes_put_u16(dst, dim, 0);
}

SIMD_TARGET_AVX512
static void fp16_load_avx512(const uint8_t *restrict src, uint32_t dim, float *restrict dst)
{
    for (uint32_t i = 0; i < dim; i += CODEC_AVX512_LANES)
        codec_avx512_put_f32(
            dst + i, _mm512_cvtph_ps(codec_avx512_get_u16(src + 2 * (size_t)i, dim - i)),
            dim - i);
}

SIMD_TARGET_AVX512
static void fp16_store_avx512(const float *restrict src, uint32_t dim, uint64_t noise,
                              uint8_t *restrict dst)
{
    const uint64_t mixed = hash_mix(noise);

    for (uint32_t i = 0; i < dim; i += CODEC_AVX512_LANES)
        codec_avx512_put_u16(
            dst + 2 * (size_t)i,
            fp16_random_x16(codec_avx512_get_f32(src + i, dim - i), random_x16(mixed, i)),
            dim - i);
}

SIMD_TARGET_AVX512
static void fp16_set_avx512(const float *restrict src, uint32_t dim, uint8_t *restrict dst)
{
    for (uint32_t i = 0; i < dim; i += CODEC_AVX512_LANES) {
        __m256i half = codec_avx512_to_fp16(codec_avx512_get_f32(src + i, dim - i));

        codec_avx512_put_u16(dst + 2 * (size_t)i, finite_x16(half, FP16_INFINITY), dim - i);
    }
    if (dim % 2)
        codec_bytes_put_u16(dst, dim, 0);
}

static const struct weights_ops ops[TABLE_SPEC_STORAGE_END][SIMD_END] = {
    [TABLE_SPEC_FP32] = ALL_OPS(fp32),
    [TABLE_SPEC_BF16] = ALL_OPS(bf16),
    [TABLE_SPEC_FP16] = ALL_OPS(fp16),
};

const struct weights_ops *weights_ops(enum table_spec_storage storage, enum simd build)
{
    return &ops[storage][build];
}

uint32_t weights_bytes(enum table_spec_storage storage, uint32_t dim)
{
    return storage == TABLE_SPEC_FP32 ? 4 * dim : (2 * dim + 3) & ~3u;
}

void weights_load(enum table_spec_storage storage, const void *src, uint32_t dim, float *dst)
{
    ops[storage][simd_best()].load(src, dim, dst);
}

void weights_store(enum table_spec_storage storage, const float *src, uint32_t dim,
                   uint64_t noise, void *dst)
{
    ops[storage][simd_best()].store(src, dim, noise, dst);
}

void weights_set(enum table_spec_storage storage, const float *src, uint32_t dim, void *dst)
{
    ops[storage][simd_best()].set(src, dim, dst);
}
