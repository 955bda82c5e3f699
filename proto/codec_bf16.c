/* The upper half of an fp32, rounded to nearest, ties to even. */
#include "proto/codec.h"
#include "proto/codec_bytes.h"

static size_t row_bytes(uint32_t dim, uint32_t k)
{
    (void)k;
    return 2 * (size_t)dim;
}

static uint16_t from_bits(uint32_t bits)
{
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u; /* rounding could carry a NaN into infinity or 0 */

    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

static void encode(const float *restrict src, uint32_t dim, uint32_t k, uint8_t *restrict dst)
{
    (void)k;
    for (size_t i = 0; i < dim; i++)
        codec_bytes_put_u16(dst, i, from_bits(codec_bytes_of_float(src[i])));
}

static int decode(const uint8_t *restrict src, uint32_t dim, uint32_t k, float *restrict dst)
{
    (void)k;
    for (size_t i = 0; i < dim; i++)
        dst[i] = codec_bytes_to_float((uint32_t)codec_bytes_get_u16(src, i) << 16);
    return 0;
}

const struct codec codec_bf16 = { "bf16", CODEC_BF16, false, row_bytes, encode, decode };
