/*
 * Rows encoded for the wire, byte for byte as proto/codec_*.c. A warp takes a row, lane l its floats l, l + 32 ...; of topk, which walks a row
 * many times, a block does.
 */
#include <math.h>

#include "proto/codec_half.h"
#include "worker/cuda/encode.h"
#include "worker/cuda/kernels.h"

/* ---- fp32, bf16, fp16: element by element */

template <int CODEC>
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS) floats(struct device_encode e)
{
    const size_t r = cuda_compat_row();
    const uint32_t i = cuda_compat_column();
    uint32_t bits;
    struct encode_row row;

    if (r >= *e.n || i >= e.dim)
        return;
    row = encode_row_at(e, r);
    bits = codec_bytes_of_float(row.want(i));
    if (row.residual)
        row.residual[i] = 0;
    if (CODEC == CODEC_FP32)
        encode_put_f32(e.bytes + 4 * (r * e.dim + i), codec_bytes_to_float(bits));
    else
        encode_put_u16(e.bytes + 2 * (r * e.dim + i), CODEC == CODEC_BF16
                                                          ? codec_half_to_bf16(bits)
                                                          : codec_half_to_fp16(bits));
}

template <int CODEC>
static cudaError_t launch_floats(cudaStream_t stream, const struct device_encode *e)
{
    return cuda_compat_launch(floats<CODEC>, cuda_compat_grid(e->n_max, e->dim), stream, *e);
}

/* ---- int8: scale, then q[dim] */

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS) int8(struct device_encode e)
{
    const size_t r = cuda_compat_row();
    uint8_t *bytes = e.bytes + r * (4 + (size_t)e.dim);
    uint32_t max = 0;
    struct encode_row row;
    float scale;

    if (r >= *e.n)
        return;
    row = encode_row_at(e, r);
    for (uint32_t i = threadIdx.x; i < e.dim; i += CUDA_COMPAT_WARP)
        max = row.magnitude(i) > max ? row.magnitude(i) : max;
    for (int by = CUDA_COMPAT_WARP / 2; by; by /= 2) {
        const uint32_t other = __shfl_xor_sync(CUDA_COMPAT_ALL_LANES, max, by);

        max = other > max ? other : max;
    }
    scale = codec_scalar_int8_scale(max);
    if (threadIdx.x == 0)
        encode_put_f32(bytes, scale);
    for (uint32_t i = threadIdx.x; i < e.dim; i += CUDA_COMPAT_WARP) {
        bytes[4 + i] = scale == 0 ? 0 : codec_scalar_int8_q(row.want(i), scale);
        if (row.residual)
            row.residual[i] = 0;
    }
}

/* ---- onebit: scales of blocks of 256, then signs */

static constexpr uint32_t LANES = CODEC_SCALAR_ONEBIT_LANES, BLOCK = CODEC_SCALAR_ONEBIT_BLOCK;

/* Half a warp takes a block: a lane is one of the codec's sums, and they are folded as the codec does it. */
static __forceinline__ __device__ float onebit_scale(const struct encode_row &row, uint32_t at,
                                                     uint32_t n)
{
    const uint32_t lane = threadIdx.x % LANES;
    double sum = 0;

    for (uint32_t i = lane; i < n; i += LANES)
        sum += (double)fabsf(row.want(at + i));
    for (uint32_t width = LANES / 2; width; width /= 2)
        sum += __shfl_down_sync(CUDA_COMPAT_ALL_LANES, sum, width, LANES);
    sum = __shfl_sync(CUDA_COMPAT_ALL_LANES, sum, (int)(threadIdx.x - lane));
    return codec_scalar_onebit_scale(sum, n);
}

/* Signs and what is lost of 16 floats from `at`, of which there are n (0 too). */
static __forceinline__ __device__ void onebit_signs(const struct encode_row &row, uint32_t at,
                                                    uint32_t n, float scale, uint8_t *signs)
{
    const uint32_t lane = threadIdx.x % LANES;
    const float want = lane < n ? row.want(at + lane) : -1;
    const uint32_t both = __ballot_sync(CUDA_COMPAT_ALL_LANES, want >= 0);
    const uint32_t mine = both >> (threadIdx.x - lane) & 0xffffu;

    if (lane < n && row.residual)
        row.residual[at + lane] =
            codec_scalar_residual(want, codec_scalar_onebit_got(scale, want >= 0));
    if (lane < (n + 7) / 8)
        signs[at / 8 + lane] = (uint8_t)(mine >> (8 * lane));
}

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS) onebit(struct device_encode e)
{
    const size_t r = cuda_compat_row();
    const uint32_t n_blocks = cuda_compat_ceil_div(e.dim, BLOCK);
    uint8_t *bytes = e.bytes + r * (4 * (size_t)n_blocks + cuda_compat_ceil_div(e.dim, 8));
    struct encode_row row;

    if (r >= *e.n)
        return;
    row = encode_row_at(e, r);
    if (__ballot_sync(CUDA_COMPAT_ALL_LANES,
                      !row.is_finite(threadIdx.x, e.dim, CUDA_COMPAT_WARP)))
        row.poison();
    /* All lanes go round as often, so that they meet; a half beyond the row has n = 0. */
    for (uint32_t b = threadIdx.x / LANES; b - threadIdx.x / LANES < n_blocks; b += 2) {
        const uint32_t at = b * BLOCK, left = at < e.dim ? e.dim - at : 0,
                       n = left < BLOCK ? left : BLOCK;
        const float scale = onebit_scale(row, at, n);

        if (n && threadIdx.x % LANES == 0)
            encode_put_f32(bytes + 4 * (size_t)b, scale);
        for (uint32_t i = 0; i < BLOCK; i += LANES) {
            const uint32_t here = i < n ? n - i : 0;

            onebit_signs(row, at + i, here < LANES ? here : LANES, scale,
                         bytes + 4 * (size_t)n_blocks);
        }
    }
}

cudaError_t kernels_encode(cudaStream_t stream, const struct device_encode *e)
{
    switch (e->codec) {
    case CODEC_FP32:
        return launch_floats<CODEC_FP32>(stream, e);
    case CODEC_BF16:
        return launch_floats<CODEC_BF16>(stream, e);
    case CODEC_FP16:
        return launch_floats<CODEC_FP16>(stream, e);
    case CODEC_INT8:
        return cuda_compat_launch(int8, cuda_compat_warps(e->n_max), stream, *e);
    case CODEC_ONEBIT:
        return cuda_compat_launch(onebit, cuda_compat_warps(e->n_max), stream, *e);
    case CODEC_TOPK:
        return kernels_encode_topk(stream, e);
    case CODEC_ID_END:
        break;
    }
    return cudaErrorInvalidValue;
}
