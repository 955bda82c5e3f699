/* scale f32, then q int8[dim]: x = q * scale. All arithmetic in fp32. */
#include <math.h>

#include "common/status.h"
#include "proto/codec.h"
#include "proto/codec_bytes.h"

#define Q_MAX 127.0f
#define INFINITY_BITS 0x7f800000u

static size_t row_bytes(uint32_t dim, uint32_t k)
{
    (void)k;
    return 4 + (size_t)dim;
}

static float scale_of(const float *src, uint32_t dim)
{
    uint32_t max = 0;
    float scale;

    for (size_t i = 0; i < dim; i++) {
        uint32_t magnitude = codec_bytes_magnitude(src, i);

        max = magnitude > max ? magnitude : max;
    }
    scale = codec_bytes_to_float(max) / Q_MAX;
    /* Next to FLT_MAX the quotient may have been rounded up so far that 127 of it are
     * infinite. */
    if (max < INFINITY_BITS && codec_bytes_of_float(scale * Q_MAX) == INFINITY_BITS)
        scale = codec_bytes_to_float(codec_bytes_of_float(scale) - 1);
    return scale;
}

static void encode(const float *restrict src, uint32_t dim, uint32_t k, uint8_t *restrict dst)
{
    float scale = scale_of(src, dim);

    (void)k;
    codec_bytes_put_f32(dst, 0, scale);
    dst += 4;
    if (scale == 0) { /* a row of zeros, or one so small that its scale is */
        memset(dst, 0, dim);
        return;
    }
    for (size_t i = 0; i < dim; i++) {
        float q = rintf(src[i] / scale); /* not * (1 / scale): infinite for a subnormal */

        q = q > Q_MAX ? Q_MAX : q;
        q = q >= -Q_MAX ? q : -Q_MAX; /* and NaN becomes a number; the scale still tells */
        dst[i] = (uint8_t)(int8_t)(int32_t)q;
    }
}

static int decode(const uint8_t *restrict src, uint32_t dim, uint32_t k, float *restrict dst)
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

const struct codec codec_int8 = { "int8", CODEC_INT8, false, row_bytes, encode, decode };
