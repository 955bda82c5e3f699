/* scale f32[ceil(dim / 256)], then ceil(dim / 8) bytes of signs, LSB first: x = scale of its
 * block, or minus it. */
#include <math.h>

#include "common/status.h"
#include "proto/codec.h"
#include "proto/codec_bytes.h"

#define BLOCK 256u
#define N_LANES 8u

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
static float mean_magnitude(const float *src, uint32_t n)
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
    return (float)(lane[0] / n);
}

/* The signs of n <= 8 floats. Of a bit the mask, not a shift: that is what vectors can do. */
static uint8_t pack(const float *src, uint32_t n)
{
    static const uint32_t bit[8] = { 1, 2, 4, 8, 16, 32, 64, 128 };
    uint32_t bits = 0;

    for (uint32_t j = 0; j < n; j++)
        bits |= src[j] >= 0 ? bit[j] : 0;
    return (uint8_t)bits;
}

static void unpack(uint32_t bits, float scale, uint32_t n, float *dst)
{
    static const uint32_t bit[8] = { 1, 2, 4, 8, 16, 32, 64, 128 };
    uint32_t magnitude = codec_bytes_of_float(scale);

    for (uint32_t j = 0; j < n; j++)
        dst[j] = codec_bytes_to_float(magnitude ^ ((uint32_t)((bits & bit[j]) == 0) << 31));
}

static void encode(const float *restrict src, uint32_t dim, uint32_t k, uint8_t *restrict dst)
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

static int decode(const uint8_t *restrict src, uint32_t dim, uint32_t k, float *restrict dst)
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

const struct codec codec_onebit = { "onebit", CODEC_ONEBIT, true, row_bytes, encode, decode };
