#include "common/status.h"
#include "proto/codec.h"

#define MAGNITUDE 0x7fffffffu

static size_t row_bytes(uint32_t dim, uint32_t k)
{
    (void)k;
    return 4 * (size_t)dim;
}

SIMD_INLINE void encode(const float *restrict src, uint32_t dim, uint32_t k,
                        uint8_t *restrict dst)
{
    memcpy(dst, src, row_bytes(dim, k));
}

SIMD_INLINE int decode(const uint8_t *restrict src, uint32_t dim, uint32_t k,
                       float *restrict dst)
{
    memcpy(dst, src, row_bytes(dim, k));
    return 0;
}

SIMD_INLINE int check(const uint8_t *restrict src, uint32_t dim, uint32_t k, uint32_t max)
{
    uint32_t bad = 0;

    (void)k;
    for (size_t i = 0; i < dim; i++)
        bad |= (uint32_t)((codec_bytes_get_u32(src, i) & MAGNITUDE) > max);
    return bad ? PS_ENAN : 0;
}

CODEC_BUILDS(fp32, CODEC_FP32, false)
