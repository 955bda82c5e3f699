/*
 * The builds of a codec, common/simd.h. A codec's file has its encode(), decode() and check() as
 * SIMD_INLINE functions and ends with CODEC_BUILDS: codec_X is the plain build, the definition;
 * codec_X_avx2 and codec_X_avx512 are the others. codec_catalog.c knows them all.
 */
#ifndef PROTO_CODEC_BUILDS_H
#define PROTO_CODEC_BUILDS_H

#include "common/simd.h"
#include "proto/codec.h"

#define CODEC_BUILDS(codec_name, number, with_feedback)        \
    CODEC_BUILDS_BUT_AVX512(codec_name, number, with_feedback) \
    CODEC_ENCODE(_avx512, SIMD_TARGET_AVX512)                  \
    CODEC_DECODE(_avx512, SIMD_TARGET_AVX512)                  \
    CODEC_CHECK(_avx512, SIMD_TARGET_AVX512)                   \
    CODEC_BUILD(codec_name, _avx512, number, with_feedback)

/* For a codec that has some encode_row_avx512() and so on of its own. */
#define CODEC_BUILDS_BUT_AVX512(codec_name, number, with_feedback) \
    CODEC_ENCODE(, SIMD_TARGET_PLAIN)                              \
    CODEC_DECODE(, SIMD_TARGET_PLAIN)                              \
    CODEC_CHECK(, SIMD_TARGET_PLAIN)                               \
    CODEC_BUILD(codec_name, , number, with_feedback)               \
    CODEC_ENCODE(_avx2, SIMD_TARGET_AVX2)                          \
    CODEC_DECODE(_avx2, SIMD_TARGET_AVX2)                          \
    CODEC_CHECK(_avx2, SIMD_TARGET_AVX2)                           \
    CODEC_BUILD(codec_name, _avx2, number, with_feedback)

#define CODEC_ENCODE(suffix, target)                                                           \
    target static void encode_row##suffix(const float *restrict src, uint32_t dim, uint32_t k, \
                                          uint8_t *restrict dst)                               \
    {                                                                                          \
        encode(src, dim, k, dst);                                                              \
    }

#define CODEC_DECODE(suffix, target)                                                \
    target static int decode_row##suffix(const uint8_t *restrict src, uint32_t dim, \
                                         uint32_t k, float *restrict dst)           \
    {                                                                               \
        return decode(src, dim, k, dst);                                            \
    }

#define CODEC_CHECK(suffix, target)                                                            \
    target static int check_row##suffix(const uint8_t *restrict src, uint32_t dim, uint32_t k) \
    {                                                                                          \
        return check(src, dim, k);                                                             \
    }

#define CODEC_BUILD(codec_name, suffix, number, with_feedback) \
    const struct codec codec_##codec_name##suffix = {          \
        #codec_name,        number,                            \
        with_feedback,      row_bytes,                         \
        encode_row##suffix, decode_row##suffix,                \
        check_row##suffix,                                     \
    };

/* What codec.h declares of each, for the other builds. */
extern const struct codec codec_fp32_avx2, codec_fp32_avx512, codec_bf16_avx2,
    codec_bf16_avx512, codec_fp16_avx2, codec_fp16_avx512, codec_int8_avx2, codec_int8_avx512,
    codec_onebit_avx2, codec_onebit_avx512, codec_topk_avx2, codec_topk_avx512;

#endif
