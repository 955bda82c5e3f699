/* What is done to each element by itself. */
#include <math.h>

#include "common/hash.h"
#include "proto/codec_half.h"
#include "worker/cuda/cuda_compat.h"
#include "worker/cuda/kernels.h"

/* Written so that a NaN stays one. */
static __forceinline__ __device__ float act_of(float v, float least)
{
    return least > v ? least : v;
}

static float least_of(enum device_act act)
{
    return act == DEVICE_RELU ? 0.0f : -INFINITY;
}

template <int N>
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    bias(uint32_t n, uint32_t width, const float *b, float least, float *y, uint32_t ldy)
{
    const size_t s = cuda_compat_row();
    const uint32_t o = cuda_compat_column() * N;
    struct cuda_compat_floats<N> v, by;

    if (s >= n || o >= width)
        return;
    v = dev_load<N>(y + s * ldy + o);
    by = dev_load<N>(b + o);
    for (uint32_t k = 0; k < N; k++)
        v.at[k] = act_of(v.at[k] + by.at[k], least);
    dev_store(y + s * ldy + o, v);
}

cudaError_t kernels_bias(cudaStream_t stream, uint32_t n, uint32_t width, const float *b,
                         enum device_act act, float *y, uint32_t ldy)
{
    if (dev_by_fours(y, ldy) && dev_by_fours(b, width))
        return cuda_compat_launch(bias<4>, cuda_compat_grid(n, width / 4), stream, n, width, b,
                                  least_of(act), y, ldy);
    return cuda_compat_launch(bias<1>, cuda_compat_grid(n, width), stream, n, width, b,
                              least_of(act), y, ldy);
}

/* sum = a + b through the mask; b or mask.y may be NULL. */
template <int N>
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    add(uint32_t n, uint32_t width, const float *a, uint32_t lda, const float *b, uint32_t ldb,
        struct relu_mask mask, float *sum)
{
    const size_t s = cuda_compat_row();
    const uint32_t o = cuda_compat_column() * N;
    struct cuda_compat_floats<N> v, more;

    if (s >= n || o >= width)
        return;
    v = dev_load<N>(a + s * lda + o);
    if (b) {
        more = dev_load<N>(b + s * ldb + o);
        for (uint32_t k = 0; k < N; k++)
            v.at[k] += more.at[k];
    }
    if (mask.y) {
        more = dev_load<N>(mask.y + s * mask.ldy + o);
        for (uint32_t k = 0; k < N; k++)
            v.at[k] = more.at[k] > 0.0f ? v.at[k] * mask.scale : 0.0f;
    }
    dev_store(sum + s * width + o, v);
}

cudaError_t kernels_add_rows(cudaStream_t stream, uint32_t n, uint32_t width, const float *a,
                             uint32_t lda, const float *b, uint32_t ldb,
                             const struct relu_mask *mask, float *sum)
{
    const struct relu_mask none = {}, through = mask ? *mask : none;

    if (dev_by_fours(a, lda) && dev_by_fours(b, ldb) && dev_by_fours(through.y, through.ldy) &&
        dev_by_fours(sum, width))
        return cuda_compat_launch(add<4>, cuda_compat_grid(n, width / 4), stream, n, width, a,
                                  lda, b, ldb, through, sum);
    return cuda_compat_launch(add<1>, cuda_compat_grid(n, width), stream, n, width, a, lda, b,
                              ldb, through, sum);
}

cudaError_t kernels_mask(cudaStream_t stream, uint32_t n, uint32_t width,
                         const struct relu_mask *mask, float *d)
{
    return kernels_add_rows(stream, n, width, d, width, NULL, 0, mask, d);
}

/* Numbers o .. o + N - 1 of a row; those behind `width`, which may not be there, are 0. */
template <int N>
static __forceinline__ __device__ struct cuda_compat_floats<N>
load_some(const float *row, uint32_t o, uint32_t width) {
    struct cuda_compat_floats<N> v = {
    };

    if (o + N <= width)
        return dev_load<N>(row + o);
    for (uint32_t k = 0; k < N; k++)
        if (o + k < width)
            v.at[k] = row[o + k];
    return v;
}

template <int N>
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    pad(uint32_t n, uint32_t width, const float *x, uint32_t ldx, float *y, uint32_t ldy)
{
    const size_t s = cuda_compat_row();
    const uint32_t o = cuda_compat_column() * N;

    if (s < n && o < ldy)
        dev_store(y + s * ldy + o, load_some<N>(x + s * ldx, o, width));
}

cudaError_t kernels_pad(cudaStream_t stream, uint32_t n, uint32_t width, const float *x,
                        uint32_t ldx, float *y, uint32_t ldy)
{
    if (dev_by_fours(x, ldx) && dev_by_fours(y, ldy))
        return cuda_compat_launch(pad<4>, cuda_compat_grid(n, ldy / 4), stream, n, width, x,
                                  ldx, y, ldy);
    return cuda_compat_launch(pad<1>, cuda_compat_grid(n, ldy), stream, n, width, x, ldx, y,
                              ldy);
}

enum {
    SIDE = 32,
    SIDE_THREADS = 8
}; /* of a square of floats; of the threads that take it, as many rows */

/* A block takes a square of y: rows of x come and rows of y leave in one piece each. One float a row is spare, so
 * that a column of the square lies in all banks of the shared memory. */
static __global__ void __launch_bounds__(SIDE *SIDE_THREADS)
    transpose(uint32_t n, uint32_t width, const float *x, float *y, uint32_t n_rows,
              uint32_t ld)
{
    float *square = cuda_compat_shared<float>();
    const uint32_t row = blockIdx.y * SIDE, column = blockIdx.x * SIDE;

    for (uint32_t i = threadIdx.y; i < SIDE; i += SIDE_THREADS) {
        const uint32_t s = column + i, o = row + threadIdx.x;

        square[i * (SIDE + 1) + threadIdx.x] =
            s < n && o < width ? x[(size_t)s * width + o] : 0.0f;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.y; i < SIDE; i += SIDE_THREADS)
        if (row + i < n_rows && column + threadIdx.x < ld)
            y[(size_t)(row + i) * ld + column + threadIdx.x] =
                square[threadIdx.x * (SIDE + 1) + i];
}

cudaError_t kernels_transpose(cudaStream_t stream, uint32_t n, uint32_t width, const float *x,
                              float *y, uint32_t n_rows, uint32_t ld)
{
    const struct cuda_compat_shape shape = {
        dim3(cuda_compat_ceil_div(ld, SIDE), cuda_compat_ceil_div(n_rows, SIDE)),
        dim3(SIDE, SIDE_THREADS), SIDE * (SIDE + 1) * sizeof(float)
    };

    return cuda_compat_launch(transpose, shape, stream, n, width, x, y, n_rows, ld);
}

/* N halves that are stored at once. */
template <int N> struct alignas(2 * N) halves {
    uint16_t at[N];
};

template <int N>
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    to_bf16(uint32_t n, uint32_t width, const float *x, uint32_t ldx, uint16_t *y, uint32_t ldy)
{
    const size_t s = cuda_compat_row();
    const uint32_t o = cuda_compat_column() * N;
    struct cuda_compat_floats<N> v;
    struct halves<N> h;

    if (s >= n || o >= ldy)
        return;
    v = load_some<N>(x + s * ldx, o, width);
    for (uint32_t k = 0; k < N; k++)
        h.at[k] = (uint16_t)codec_half_to_bf16(codec_bytes_of_float(v.at[k]));
    *(struct halves<N> *)(y + s * ldy + o) = h;
}

cudaError_t kernels_to_bf16(cudaStream_t stream, uint32_t n, uint32_t width, const float *x,
                            uint32_t ldx, uint16_t *y, uint32_t ldy)
{
    if (dev_by_fours(x, ldx) && dev_by_fours(y, ldy))
        return cuda_compat_launch(to_bf16<4>, cuda_compat_grid(n, ldy / 4), stream, n, width, x,
                                  ldx, y, ldy);
    return cuda_compat_launch(to_bf16<1>, cuda_compat_grid(n, ldy), stream, n, width, x, ldx, y,
                              ldy);
}

/* The bound is hash_unit() >= p in integers. */
template <int N>
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    drop(size_t n, uint64_t least, float scale, const uint64_t *key_at, float *y)
{
    const uint64_t key = *key_at;
    const size_t i = cuda_compat_index() * N;
    struct cuda_compat_floats<N> v;

    if (i >= n)
        return;
    v = dev_load<N>(y + i);
    for (uint32_t k = 0; k < N; k++)
        v.at[k] *= hash_mix2(key, i + (uint64_t)k) >> 40 >= least ? scale : 0.0f;
    dev_store(y + i, v);
}

cudaError_t kernels_dropout(cudaStream_t stream, const struct dropout *d, float *y)
{
    const size_t n = (size_t)d->n * d->width;
    const uint64_t least = (uint64_t)ceilf(d->p * 0x1p24f);

    if (dev_by_fours(y, n))
        return cuda_compat_launch(drop<4>, cuda_compat_flat(n / 4), stream, n, least, d->scale,
                                  d->key, y);
    return cuda_compat_launch(drop<1>, cuda_compat_flat(n), stream, n, least, d->scale, d->key,
                              y);
}

template <int N>
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    copy(uint32_t n, uint32_t width, const float *x, uint32_t ldx, float *y, uint32_t ldy)
{
    const size_t s = cuda_compat_row();
    const uint32_t o = cuda_compat_column() * N;

    if (s < n && o < width)
        dev_store(y + s * ldy + o, dev_load<N>(x + s * ldx + o));
}

cudaError_t kernels_copy_rows(cudaStream_t stream, uint32_t n, uint32_t width, const float *x,
                              uint32_t ldx, float *y, uint32_t ldy)
{
    if (dev_by_fours(x, ldx) && dev_by_fours(y, ldy) && width % 4 == 0)
        return cuda_compat_launch(copy<4>, cuda_compat_grid(n, width / 4), stream, n, width, x,
                                  ldx, y, ldy);
    return cuda_compat_launch(copy<1>, cuda_compat_grid(n, width), stream, n, width, x, ldx, y,
                              ldy);
}

/* A thread for each float of y; those of a number read it from the same line. */
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    make_hats(struct number_hats h, uint32_t width, const float *x, float *y)
{
    const size_t s = cuda_compat_row();
    const uint32_t o = cuda_compat_column(), i = o / width, part = o - i * width;
    float number, held, to;

    if (s >= h.n || i >= h.n_numbers)
        return;
    number = x[s * h.n_numbers + i];
    held = fminf(fmaxf(number, h.first), h.first + (float)h.n_hats - 1.0f);
    if (isnan(number))
        to = part == 1 ? 1.0f : 0.0f;
    else if (part < 2)
        to = part ? 0.0f : number;
    else
        to = fmaxf(0.0f, 1.0f - fabsf(held - (h.first + (float)(part - 2))));
    y[s * h.ldy + o] = to;
}

cudaError_t kernels_number_hats(cudaStream_t stream, const struct number_hats *h,
                                const float *x, float *y)
{
    const uint32_t width = number_hats_width(h->n_hats);

    return cuda_compat_launch(make_hats, cuda_compat_grid(h->n, h->n_numbers * width), stream,
                              *h, width, x, y);
}

template <int N>
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    axpy(size_t n, float a, const float *x, float *y)
{
    const size_t i = cuda_compat_index() * N;
    struct cuda_compat_floats<N> v, more;

    if (i >= n)
        return;
    v = dev_load<N>(y + i);
    more = dev_load<N>(x + i);
    for (uint32_t k = 0; k < N; k++)
        v.at[k] += a * more.at[k];
    dev_store(y + i, v);
}

cudaError_t kernels_axpy(cudaStream_t stream, size_t n, float a, const float *x, float *y)
{
    if (dev_by_fours(x, n) && dev_by_fours(y, n))
        return cuda_compat_launch(axpy<4>, cuda_compat_flat(n / 4), stream, n, a, x, y);
    return cuda_compat_launch(axpy<1>, cuda_compat_flat(n), stream, n, a, x, y);
}

template <int N>
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    cross(struct cross_shape shape, const float *x0, const float *u, const float *x, float *y)
{
    const size_t s = cuda_compat_row();
    const uint32_t o = cuda_compat_column() * N;
    const size_t at = s * shape.ld + o;
    struct cuda_compat_floats<N> v, by, more;

    if (s >= shape.n || o >= shape.width)
        return;
    v = dev_load<N>(x0 + at);
    by = dev_load<N>(u + s * shape.width + o);
    more = dev_load<N>(x + at);
    for (uint32_t k = 0; k < N; k++)
        v.at[k] = v.at[k] * by.at[k] + more.at[k];
    dev_store(y + at, v);
}

/* All rows of all arrays begin where four floats are loaded at once. */
static bool cross_by_fours(const struct cross_shape *s, const float *x0, const float *u,
                           const float *x, const float *y)
{
    return dev_by_fours(x0, s->ld) && dev_by_fours(u, s->width) && dev_by_fours(x, s->ld) &&
           dev_by_fours(y, s->ld);
}

cudaError_t kernels_cross_forward(cudaStream_t stream, const struct cross_shape *s,
                                  const float *x0, const float *u, const float *x, float *y)
{
    if (cross_by_fours(s, x0, u, x, y))
        return cuda_compat_launch(cross<4>, cuda_compat_grid(s->n, s->width / 4), stream, *s,
                                  x0, u, x, y);
    return cuda_compat_launch(cross<1>, cuda_compat_grid(s->n, s->width), stream, *s, x0, u, x,
                              y);
}

/* more may be dx0: each element is read before the same thread writes it. */
template <int N>
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    cross_back(struct cross_shape shape, const float *x0, const float *u, const float *dy,
               const float *more, float *du, float *dx0)
{
    const size_t s = cuda_compat_row();
    const uint32_t o = cuda_compat_column() * N;
    const size_t at = s * shape.ld + o;
    struct cuda_compat_floats<N> d, v, sum;

    if (s >= shape.n || o >= shape.width)
        return;
    d = dev_load<N>(dy + at);
    v = dev_load<N>(x0 + at);
    for (uint32_t k = 0; k < N; k++)
        v.at[k] = d.at[k] * v.at[k];
    sum = dev_load<N>(u + s * shape.width + o);
    for (uint32_t k = 0; k < N; k++)
        sum.at[k] = d.at[k] * sum.at[k];
    dev_store(du + s * shape.width + o, v);
    if (more) {
        v = dev_load<N>(more + at);
        for (uint32_t k = 0; k < N; k++)
            sum.at[k] += v.at[k];
    }
    dev_store(dx0 + at, sum);
}

cudaError_t kernels_cross_backward(cudaStream_t stream, const struct cross_shape *s,
                                   const float *x0, const float *u, const float *dy,
                                   const float *more, float *du, float *dx0)
{
    if (cross_by_fours(s, x0, u, dy, dx0) && dev_by_fours(more, s->ld) &&
        dev_by_fours(du, s->width))
        return cuda_compat_launch(cross_back<4>, cuda_compat_grid(s->n, s->width / 4), stream,
                                  *s, x0, u, dy, more, du, dx0);
    return cuda_compat_launch(cross_back<1>, cuda_compat_grid(s->n, s->width), stream, *s, x0,
                              u, dy, more, du, dx0);
}
