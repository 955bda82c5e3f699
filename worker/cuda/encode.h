/*
 * What the encoders share: a row that is to travel, and bytes at any alignment.
 */
#ifndef WORKER_CUDA_ENCODE_H
#define WORKER_CUDA_ENCODE_H

#include "proto/codec_rules.h"
#include "worker/cuda/dev.h"
#include "worker/cuda/kernels.h"

static __forceinline__ __device__ void encode_put_u16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

static __forceinline__ __device__ void encode_put_f32(uint8_t *at, float value)
{
    const uint32_t bits = codec_bytes_of_float(value);

    encode_put_u16(at, bits);
    encode_put_u16(at + 2, bits >> 16);
}

/* A row: what is to be sent of it, and what is owed. */
struct encode_row {
    const float *values;
    float *residual; /* NULL: the codec has no feedback */

    __forceinline__ __device__ float want(uint32_t i) const
    {
        return residual ? values[i] + residual[i] : values[i];
    }

    __forceinline__ __device__ uint32_t magnitude(uint32_t i) const
    {
        return codec_bytes_of_float(want(i)) & 0x7fffffffu;
    }
};

static __forceinline__ __device__ struct encode_row
encode_row_at(const struct kernels_encode &e, size_t r)
{
    float *residual =
        e.residuals ? e.residuals + (e.owed_at ? e.owed_at[r] : r) * e.dim : nullptr;

    return { e.rows + r * e.dim, residual };
}

#endif
