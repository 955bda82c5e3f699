/* Rows as the wire had them, bit for bit as proto/codec_*.c decode them. */
#include "proto/codec_half.h"
#include "worker/cuda/cuda_compat.h"
#include "worker/cuda/kernels.h"

/* N numbers of a row as they were sent, loaded at once; N is 1 or 4. */
template <typename T, int N> struct alignas(sizeof(T) * N) sent {
    T at[N];
};

template <int CODEC> static __forceinline__ __device__ float value_of(uint32_t bits)
{
    if (CODEC == CODEC_BF16)
        bits <<= 16;
    if (CODEC == CODEC_FP16)
        bits = codec_half_of_fp16(bits);
    return codec_bytes_to_float(bits);
}

template <int CODEC, typename T, int N>
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS) decode(struct row_decode d)
{
    const size_t i = cuda_compat_row();
    const uint32_t column = cuda_compat_column() * N;
    struct cuda_compat_floats<N> v;
    struct sent<T, N> s;

    if (i >= d.n || column >= d.dim)
        return;
    s = *(const struct sent<T, N> *)((const T *)d.bytes + i * d.dim + column);
    for (int k = 0; k < N; k++)
        v.at[k] = value_of<CODEC>(s.at[k]);
    dev_store(d.rows + (size_t)d.to[i] * d.dim + column, v);
}

template <int CODEC, typename T>
static cudaError_t launch(cudaStream_t stream, const struct row_decode *d)
{
    const bool by_fours = d->dim % 4 == 0 && (uintptr_t)d->bytes % (4 * sizeof(T)) == 0 &&
                          dev_by_fours(d->rows, d->dim);

    if (by_fours)
        return cuda_compat_launch(decode<CODEC, T, 4>, cuda_compat_grid(d->n, d->dim / 4),
                                  stream, *d);
    return cuda_compat_launch(decode<CODEC, T, 1>, cuda_compat_grid(d->n, d->dim), stream, *d);
}

cudaError_t kernels_decode_rows(cudaStream_t stream, const struct row_decode *d)
{
    if (d->codec == CODEC_FP32)
        return launch<CODEC_FP32, uint32_t>(stream, d);
    if (d->codec == CODEC_BF16)
        return launch<CODEC_BF16, uint16_t>(stream, d);
    return launch<CODEC_FP16, uint16_t>(stream, d);
}
