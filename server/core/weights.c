#include "server/core/weights.h"

#include "common/hash.h"
#include "proto/codec_half.h"
#include "server/core/weights_avx512.h"

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

SIMD_TARGET_AVX512
static void bf16_store_avx512(const float *restrict src, uint32_t dim, uint64_t noise,
                              uint8_t *restrict dst)
{
    const uint64_t mixed = hash_mix(noise);

    for (uint32_t i = 0; i < dim; i += CODEC_AVX512_LANES)
        codec_avx512_put_u16(dst + 2 * (size_t)i,
                             weights_avx512_bf16_random(codec_avx512_get_f32(src + i, dim - i),
                                                        weights_avx512_random(mixed, i)),
                             dim - i);
}

SIMD_TARGET_AVX512
static void bf16_set_avx512(const float *restrict src, uint32_t dim, uint8_t *restrict dst)
{
    for (uint32_t i = 0; i < dim; i += CODEC_AVX512_LANES) {
        __m256i half = codec_avx512_to_bf16(codec_avx512_get_f32(src + i, dim - i));

        codec_avx512_put_u16(dst + 2 * (size_t)i, weights_avx512_finite(half, BF16_INFINITY),
                             dim - i);
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
        codec_avx512_put_u16(dst + 2 * (size_t)i,
                             weights_avx512_fp16_random(codec_avx512_get_f32(src + i, dim - i),
                                                        weights_avx512_random(mixed, i)),
                             dim - i);
}

SIMD_TARGET_AVX512
static void fp16_set_avx512(const float *restrict src, uint32_t dim, uint8_t *restrict dst)
{
    for (uint32_t i = 0; i < dim; i += CODEC_AVX512_LANES) {
        __m256i half = codec_avx512_to_fp16(codec_avx512_get_f32(src + i, dim - i));

        codec_avx512_put_u16(dst + 2 * (size_t)i, weights_avx512_finite(half, FP16_INFINITY),
                             dim - i);
    }
    if (dim % 2)
        codec_bytes_put_u16(dst, dim, 0);
}

static const struct weights_ops ops[SPEC_STORAGE_END][SIMD_END] = {
    [SPEC_FP32] = ALL_OPS(fp32),
    [SPEC_BF16] = ALL_OPS(bf16),
    [SPEC_FP16] = ALL_OPS(fp16),
};

const struct weights_ops *weights_ops(enum spec_storage storage, enum simd build)
{
    return &ops[storage][build];
}

uint32_t weights_bytes(enum spec_storage storage, uint32_t dim)
{
    return storage == SPEC_FP32 ? 4 * dim : (2 * dim + 3) & ~3u;
}

void weights_load(enum spec_storage storage, const void *src, uint32_t dim, float *dst)
{
    ops[storage][simd_best()].load(src, dim, dst);
}

void weights_store(enum spec_storage storage, const float *src, uint32_t dim, uint64_t noise,
                   void *dst)
{
    ops[storage][simd_best()].store(src, dim, noise, dst);
}

void weights_set(enum spec_storage storage, const float *src, uint32_t dim, void *dst)
{
    ops[storage][simd_best()].set(src, dim, dst);
}
