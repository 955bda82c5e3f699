/*
 * What the encoders share: a row to be encoded, and bytes at any alignment.
 */
#ifndef WORKER_CUDA_ENCODE_H
#define WORKER_CUDA_ENCODE_H

#include "proto/codec_scalar.h"
#include "worker/cuda/cuda_compat.h"
#include "worker/cuda/kernels.h"

static __forceinline__ __device__ void encode_put_u16(uint8_t *at, uint32_t value)
{
    if ((uintptr_t)at % 2 == 0) {
        *(uint16_t *)at = (uint16_t)value;
        return;
    }
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

static __forceinline__ __device__ void encode_put_f32(uint8_t *at, float value)
{
    const uint32_t bits = codec_bytes_of_float(value);

    if ((uintptr_t)at % 4 == 0) {
        *(uint32_t *)at = bits;
        return;
    }
    encode_put_u16(at, bits);
    encode_put_u16(at + 2, bits >> 16);
}

/* A row: what is to be sent of it, and what is residual. */
struct encode_row {
    const float *values; /* NULL: `instead`, all over */
    float instead;
    float *residual; /* NULL: nothing is added or kept */

    /* A NaN stays as it is: which one an addition makes is the device's choice. */
    __forceinline__ __device__ float want(uint32_t i) const
    {
        const float value = values ? values[i] : instead;

        return residual && value == value ? value + residual[i] : value;
    }

    __forceinline__ __device__ uint32_t magnitude(uint32_t i) const
    {
        return codec_bytes_of_float(want(i)) & 0x7fffffffu;
    }

    /* Of n floats, those that this thread takes: `first`, and so many further on. */
    __forceinline__ __device__ bool is_finite(uint32_t first, uint32_t n, uint32_t by) const
    {
        bool finite = true;

        for (uint32_t i = first; values && i < n; i += by)
            finite = finite && values[i] - values[i] == 0;
        return finite;
    }

    /* As a row that is not finite goes: NaN all over, and what is residual stays. */
    __forceinline__ __device__ void poison(void)
    {
        values = nullptr;
        instead = codec_bytes_to_float(0x7fc00000u);
        residual = nullptr;
    }
};

static __forceinline__ __device__ struct encode_row encode_row_at(const struct device_encode &e,
                                                                  size_t r)
{
    const uint32_t from = e.from ? e.from[r] : (uint32_t)r,
                   at = e.residual_at ? e.residual_at[r] : (uint32_t)r;

    return { from == DEVICE_NONE ? nullptr : e.rows + (size_t)from * e.dim, 0,
             !e.residual || at == DEVICE_NONE ? nullptr : e.residual + (size_t)at * e.dim };
}

#endif
