#include <string.h>

#include "proto/codec.h"

static size_t row_bytes(uint32_t dim, uint32_t k)
{
    (void)k;
    return 4 * (size_t)dim;
}

static void encode(const float *restrict src, uint32_t dim, uint32_t k, uint8_t *restrict dst)
{
    memcpy(dst, src, row_bytes(dim, k));
}

static int decode(const uint8_t *restrict src, uint32_t dim, uint32_t k, float *restrict dst)
{
    memcpy(dst, src, row_bytes(dim, k));
    return 0;
}

const struct codec codec_fp32 = { "fp32", CODEC_FP32, false, row_bytes, encode, decode };
