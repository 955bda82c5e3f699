/* One step of an optimizer on rows that are kept on the device, with the bits of the CPU's. A warp takes a row, lane l
 * its floats l, l + 32 ... */
#include "proto/codec_half.h"
#include "proto/codec_scalar.h"
#include "worker/cuda/cuda_compat.h"
#include "worker/cuda/kernels.h"

static __forceinline__ __device__ uint32_t get_u16(const uint8_t *at)
{
    if ((uintptr_t)at % 2 == 0)
        return *(const uint16_t *)at;
    return at[0] | (uint32_t)at[1] << 8;
}

static __forceinline__ __device__ float get_f32(const uint8_t *at)
{
    if ((uintptr_t)at % 4 == 0)
        return *(const float *)at;
    return codec_bytes_to_float(get_u16(at) | get_u16(at + 2) << 16);
}

static __forceinline__ __device__ size_t row_bytes_of(const struct row_update &u)
{
    switch (u.codec) {
    case CODEC_FP32:
        return 4 * (size_t)u.dim;
    case CODEC_INT8:
        return 4 + (size_t)u.dim;
    case CODEC_ONEBIT:
        return 4 * (size_t)((u.dim + CODEC_SCALAR_ONEBIT_BLOCK - 1) /
                            CODEC_SCALAR_ONEBIT_BLOCK) +
               (u.dim + 7) / 8;
    case CODEC_TOPK:
        return 6 * (size_t)u.k;
    default: /* bf16, fp16 */
        return 2 * (size_t)u.dim;
    }
}

/* Indices ascend. */
static __forceinline__ __device__ float topk_at(const uint8_t *row, uint32_t k, uint32_t i)
{
    uint32_t first = 0, end = k;

    while (first < end) {
        const uint32_t middle = (first + end) / 2;

        if (get_u16(row + 2 * (size_t)middle) < i)
            first = middle + 1;
        else
            end = middle;
    }
    if (first == k || get_u16(row + 2 * (size_t)first) != i)
        return 0;
    return get_f32(row + 2 * (size_t)k + 4 * (size_t)first);
}

static __forceinline__ __device__ float onebit_at(const uint8_t *row, uint32_t dim, uint32_t i)
{
    const uint32_t n_blocks = (dim + CODEC_SCALAR_ONEBIT_BLOCK - 1) / CODEC_SCALAR_ONEBIT_BLOCK;
    const uint32_t sign = row[4 * (size_t)n_blocks + i / 8] >> (i % 8) & 1u;

    return codec_scalar_onebit_got(get_f32(row + 4 * (size_t)(i / CODEC_SCALAR_ONEBIT_BLOCK)),
                                   sign);
}

/* Float i of a row, decoded. */
static __forceinline__ __device__ float decoded(const struct row_update &u, const uint8_t *row,
                                                uint32_t i)
{
    switch (u.codec) {
    case CODEC_FP32:
        return get_f32(row + 4 * (size_t)i);
    case CODEC_BF16:
        return codec_bytes_to_float(get_u16(row + 2 * (size_t)i) << 16);
    case CODEC_FP16:
        return codec_bytes_to_float(codec_half_of_fp16(get_u16(row + 2 * (size_t)i)));
    case CODEC_INT8:
        return (float)(int8_t)row[4 + (size_t)i] * get_f32(row);
    case CODEC_ONEBIT:
        return onebit_at(row, u.dim, i);
    default:
        return topk_at(row, u.k, i);
    }
}

/* A row's gradient, with weight decay; its place. */
struct update_row {
    const uint8_t *bytes;
    float *w, *states;
    float weight_decay;

    __forceinline__ __device__ float gradient(const struct row_update &u, uint32_t i) const
    {
        return decoded(u, bytes, i) + weight_decay * w[i];
    }
};

/* Sixteen lanes as the CPU has them: the upper half of a warp hands its squares down, which come next in the lane. */
static __forceinline__ __device__ float sum_of_squares(const struct row_update &u,
                                                       const struct update_row &row)
{
    float sum = 0;

    for (uint32_t first = 0; first < u.dim; first += CUDA_COMPAT_WARP) {
        const uint32_t i = first + threadIdx.x;
        const float g = i < u.dim ? row.gradient(u, i) : 0, square = g * g;

        sum += square;
        sum += __shfl_down_sync(CUDA_COMPAT_ALL_LANES, square, ROW_UPDATE_LANES);
    }
    for (uint32_t half = ROW_UPDATE_LANES / 2; half; half /= 2)
        sum += __shfl_down_sync(CUDA_COMPAT_ALL_LANES, sum, half);
    return __shfl_sync(CUDA_COMPAT_ALL_LANES, sum, 0);
}

/* The rate of a whole row. All lanes have read its state before one writes it. */
static __forceinline__ __device__ float rowwise_rate(const struct row_update &u,
                                                     const struct update_row &row,
                                                     const struct row_update_factors &f)
{
    const float s = row.states[0] + sum_of_squares(u, row) / (float)u.dim;

    __syncwarp();
    if (threadIdx.x == 0)
        row.states[0] = s;
    return f.rate / (sqrtf(s) + f.epsilon);
}

template <int RULE>
static __forceinline__ __device__ void step(const struct row_update &u,
                                            const struct update_row &row,
                                            const struct row_update_factors &f, uint32_t i)
{
    const float g = row.gradient(u, i);
    float *w = row.w + i, *s = row.states + i;

    if (RULE == ROW_UPDATE_SGD || RULE == ROW_UPDATE_ROWWISE) {
        *w -= f.rate * g;
    } else if (RULE == ROW_UPDATE_MOMENTUM) {
        const float b = f.beta1 * *s + g;

        *s = b;
        *w -= f.rate * (f.rest1 * g + f.rest2 * b);
    } else if (RULE == ROW_UPDATE_ADAGRAD) {
        const float sum = *s + g * g;

        *s = sum;
        *w -= f.rate * (g / (sqrtf(sum) + f.epsilon));
    } else {
        const float m = f.beta1 * *s + f.rest1 * g, v = f.beta2 * s[u.dim] + f.rest2 * (g * g);

        *s = m;
        s[u.dim] = v;
        *w -= f.rate * (m / (sqrtf(v) * f.root_scale + f.epsilon));
    }
}

template <int RULE>
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS) update(struct row_update u)
{
    const size_t r = cuda_compat_row();
    struct row_update_factors f = *u.factors;
    struct update_row row;
    uint32_t place;

    if (r >= *u.n)
        return;
    place = u.places[r];
    if (place == DEVICE_NONE)
        return;
    row = { u.bytes + r * row_bytes_of(u), u.kept + (size_t)place * u.dim,
            u.states + (size_t)place * u.n_states, f.weight_decay };
    if (RULE == ROW_UPDATE_ROWWISE)
        f.rate = rowwise_rate(u, row, f);
    for (uint32_t i = threadIdx.x; i < u.dim; i += CUDA_COMPAT_WARP)
        step<RULE>(u, row, f, i);
}

template <int RULE> static cudaError_t launch(cudaStream_t stream, const struct row_update *u)
{
    return cuda_compat_launch(update<RULE>, cuda_compat_warps(u->n_max), stream, *u);
}

cudaError_t kernels_update_rows(cudaStream_t stream, const struct row_update *u)
{
    switch (u->rule) {
    case ROW_UPDATE_SGD:
        return launch<ROW_UPDATE_SGD>(stream, u);
    case ROW_UPDATE_MOMENTUM:
        return launch<ROW_UPDATE_MOMENTUM>(stream, u);
    case ROW_UPDATE_ADAGRAD:
        return launch<ROW_UPDATE_ADAGRAD>(stream, u);
    case ROW_UPDATE_ROWWISE:
        return launch<ROW_UPDATE_ROWWISE>(stream, u);
    case ROW_UPDATE_ADAM:
        return launch<ROW_UPDATE_ADAM>(stream, u);
    }
    return cudaErrorInvalidValue;
}
