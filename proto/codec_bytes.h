/*
 * Floats and small integers as they lie in a codec's bytes, at any alignment. memcpy of a fixed
 * size is a plain load or store to the compiler, and loops of them vectorise.
 */
#ifndef PROTO_CODEC_BYTES_H
#define PROTO_CODEC_BYTES_H

#include <assert.h>
#include <string.h>

#include "common/base.h"

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

/* The order of |x|, also of infinities and NaN (above all else), as integers: what a maximum
 * can be taken of without asking a NaN. */
HOST_DEVICE static inline uint32_t codec_bytes_magnitude(const float *src, size_t i)
{
    uint32_t bits;

    memcpy(&bits, src + i, sizeof bits);
    return bits & 0x7fffffffu;
}

#endif
