/*
 * A value codec: the encoding of one row of floats on the wire. codec_*.c are the codecs, codec_catalog.c, above them,
 * finds one.
 *
 * Each row is encoded alone and has a fixed size, so the bytes of a row do not depend on the partition of rows into
 * shards. codec_X below is plain C and the definition; codec_catalog.h
 * finds the build for this processor, which gives the same bits. No
 * -ffast-math: subnormals and NaN matter.
 *
 *     id name     bytes of a row of dim floats           loss
 *     0  fp32     4 dim                                  nothing
 *     1  bf16     2 dim                                  rounded to nearest, ties to even
 *     2  fp16     2 dim                                  the same; overflow to infinity
 *     3  int8     4 + dim                                rounded to steps of max|x| / 127
 *     4  onebit   4 ceil(dim / 256) + ceil(dim / 8)      all but signs and means
 *     5  topk     6 k                                    all but the k largest by |x|
 *
 *     int8     scale f32 = max|x| / 127 (a NaN is 7fc00000), then q[dim] = clamp(rint(x / scale))
 *     onebit   scale f32 = mean|x| of each block of 256 (the last may be shorter; added up in
 *              double, in 16 lanes that are then folded in halves; any NaN is 7fc00000), then the
 *              signs of the whole row, LSB first, 1 = x >= 0
 *     topk     index u16[k] ascending, then value f32[k]; of equal |x| the lower index is
 *              kept, and all others become 0
 *
 * onebit: Seide et al., Interspeech 2014 (here with one scale); topk: Aji and Heafield, EMNLP
 * 2017. int8's rounding: golden vectors codec_int8 (divide, never multiply by 1/scale).
 */
#ifndef PROTO_CODEC_H
#define PROTO_CODEC_H

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "common/base.h"
#include "common/simd.h"

enum codec_id {
    CODEC_FP32,
    CODEC_BF16,
    CODEC_FP16,
    CODEC_INT8,
    CODEC_ONEBIT,
    CODEC_TOPK,
    CODEC_ID_END
};

/* Rows as a codec has written them, one behind the other. */
struct codec_rows {
    const uint8_t *bytes;
    uint32_t n;
};

/* ---- bytes of a codec ---- */

/*
 * Floats and small integers as they lie in a codec's bytes, at any alignment. memcpy of a fixed
 * size is a plain load or store to the compiler, and loops of them vectorise.
 */
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the wire is little-endian, and so are its loads");

HOST_DEVICE static inline uint32_t codec_bytes_of_float(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

HOST_DEVICE static inline float codec_bytes_to_float(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

HOST_DEVICE static inline void codec_bytes_put_u16(uint8_t *dst, size_t i, uint16_t value)
{
    memcpy(dst + 2 * i, &value, sizeof value);
}

HOST_DEVICE static inline uint16_t codec_bytes_get_u16(const uint8_t *src, size_t i)
{
    uint16_t value;

    memcpy(&value, src + 2 * i, sizeof value);
    return value;
}

HOST_DEVICE static inline uint32_t codec_bytes_get_u32(const uint8_t *src, size_t i)
{
    uint32_t value;

    memcpy(&value, src + 4 * i, sizeof value);
    return value;
}

HOST_DEVICE static inline void codec_bytes_put_f32(uint8_t *dst, size_t i, float value)
{
    memcpy(dst + 4 * i, &value, sizeof value);
}

HOST_DEVICE static inline float codec_bytes_get_f32(const uint8_t *src, size_t i)
{
    float value;

    memcpy(&value, src + 4 * i, sizeof value);
    return value;
}

/* The order of |x|, also of infinities and NaN (above all others), as integers: their maximum needs no test for NaN. */
HOST_DEVICE static inline uint32_t codec_bytes_magnitude(const float *src, size_t i)
{
    uint32_t bits;

    memcpy(&bits, src + i, sizeof bits);
    return bits & 0x7fffffffu;
}

/* Magnitudes: of the largest finite float, and the one (65536) that is above all of fp16. */
#define CODEC_FINITE 0x7f7fffffu
#define CODEC_MAX_LEAST 0x47800000u

/* CUDA code, which is C++, reads the part above. */
#ifndef __cplusplus

/* ---- a codec ---- */

struct codec {
    const char *name;
    enum codec_id id;
    bool feedback; /* what is lost is kept by the sender and added to the row's next push */

    /* k is the number of values that topk keeps, 1..dim; the other codecs ignore it. */
    size_t (*row_bytes)(uint32_t dim, uint32_t k);

    /* src: dim floats; dst: row_bytes(dim, k). Finite input gives finite output, except that
     * fp16 and bf16 overflow to infinity. NaN and infinity give bytes whose row decodes to some
     * NaN or infinity. */
    void (*encode)(const float *restrict src, uint32_t dim, uint32_t k, uint8_t *restrict dst);

    /* PS_ECODEC when the bytes cannot have come from encode() (topk: indices not ascending or
     * not below dim; int8: a q of -128; onebit: bits beyond the row); else dim floats. Whether
     * those are finite is check()'s to say. */
    int (*decode)(const uint8_t *restrict src, uint32_t dim, uint32_t k, float *restrict dst);

    /* The status that decode() would return for these bytes, or PS_ENAN if a float of the row would be NaN, infinite,
     * or of a magnitude (codec_bytes_magnitude()) above `max`; without decoding them. max: CODEC_FINITE, or less, and
     * at least CODEC_MAX_LEAST. */
    int (*check)(const uint8_t *restrict src, uint32_t dim, uint32_t k, uint32_t max);
};

extern const struct codec codec_fp32, codec_bf16, codec_fp16, codec_int8, codec_onebit,
    codec_topk;

/* ---- its builds ---- */

/*
 * The builds of a codec, common/simd.h. A codec's file has its encode(), decode() and check() as
 * SIMD_INLINE functions and ends with CODEC_BUILDS: codec_X is the plain build, the definition;
 * codec_X_avx2 and codec_X_avx512 are the others. codec_catalog.c knows them all.
 */
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
    target static int check_row##suffix(const uint8_t *restrict src, uint32_t dim, uint32_t k, \
                                        uint32_t max)                                          \
    {                                                                                          \
        return check(src, dim, k, max);                                                        \
    }

#define CODEC_BUILD(codec_name, suffix, number, with_feedback) \
    const struct codec codec_##codec_name##suffix = {          \
        #codec_name,        number,                            \
        with_feedback,      row_bytes,                         \
        encode_row##suffix, decode_row##suffix,                \
        check_row##suffix,                                     \
    };

/* The declarations of codec.h for each of the other builds. */
extern const struct codec codec_fp32_avx2, codec_fp32_avx512, codec_bf16_avx2,
    codec_bf16_avx512, codec_fp16_avx2, codec_fp16_avx512, codec_int8_avx2, codec_int8_avx512,
    codec_onebit_avx2, codec_onebit_avx512, codec_topk_avx2, codec_topk_avx512;

#endif

#endif
