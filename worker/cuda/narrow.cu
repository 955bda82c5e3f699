/*
 * Layers of few inputs, as that of the numeric columns: y is written once, and all else is little.
 *
 *     y    sums over inputs ascending, each product and sum rounded once (fmaf); + b
 *
 * A block takes SAMPLES samples and as many columns as it has threads in a row, N each. A thread keeps its columns of W
 * in registers.
 */
#include <math.h>

#include "worker/cuda/cuda_compat.h"
#include "worker/cuda/kernels.h"

enum {
    IN = KERNELS_NARROW_IN,
    SAMPLES = 128,
    THREADS = 128,
    TOGETHER = 16,
    W_LD = IN + 1 /* in shared memory: neighbours' columns in other banks */
};

/* Rows of `in` numbers, first .. first + n_rows - 1 of those before `end`, to rows of IN, zeros behind them. So many
 * loads of a thread are under way together. */
static __forceinline__ __device__ void stage(const float *from, uint32_t in, uint32_t ld,
                                             size_t first, size_t end, uint32_t n_rows,
                                             float *to, uint32_t to_ld)
{
    float v[TOGETHER];

    for (uint32_t begin = threadIdx.y * blockDim.x + threadIdx.x; begin < n_rows * IN;
         begin += TOGETHER * THREADS) {
        CUDA_COMPAT_UNROLL_16
        for (uint32_t t = 0; t < TOGETHER; t++) {
            const uint32_t i = begin + t * THREADS, row = i / IN, k = i % IN;

            v[t] = 0;
            if (row < n_rows && first + row < end && k < in)
                v[t] = from[(first + row) * ld + k];
        }
        CUDA_COMPAT_UNROLL_16
        for (uint32_t t = 0; t < TOGETHER; t++) {
            const uint32_t i = begin + t * THREADS, row = i / IN;

            if (row < n_rows)
                to[row * to_ld + i % IN] = v[t];
        }
    }
}

template <int N>
static __global__ void __launch_bounds__(THREADS)
    forward(struct linear l, float least, float *y, uint32_t ldy)
{
    float *x = cuda_compat_shared<float>(), *w = x + SAMPLES * IN, mine[N][IN], b[N];
    const uint32_t at = threadIdx.x * N, o = blockIdx.y * blockDim.x * N + at;
    const size_t first = (size_t)blockIdx.x * SAMPLES;

    stage(l.x, l.in, linear_ldx(&l), first, l.n, SAMPLES, x, IN);
    stage(l.w, l.in, l.in, o - at, l.out, blockDim.x * N, w, W_LD);
    __syncthreads();
    if (o >= l.out)
        return;
    for (uint32_t k = 0; k < N; k++) {
        b[k] = l.b[o + k];
        for (uint32_t i = 0; i < IN; i++)
            mine[k][i] = w[(at + k) * W_LD + i];
    }
    for (uint32_t s = threadIdx.y; s < SAMPLES && first + s < l.n; s += blockDim.y) {
        struct cuda_compat_floats<N> sum = {
        };

        for (uint32_t i = 0; i < IN; i += 4) {
            const struct cuda_compat_floats<4> v = dev_load<4>(x + s * IN + i);

            for (uint32_t k = 0; k < 4 * N; k++)
                sum.at[k / 4] = fmaf(v.at[k % 4], mine[k / 4][i + k % 4], sum.at[k / 4]);
        }
        for (uint32_t k = 0; k < N; k++) {
            const float total = sum.at[k] + b[k];

            sum.at[k] = least > total ? least : total; /* a NaN stays one */
        }
        dev_store(y + (first + s) * ldy + o, sum);
    }
}

template <int N>
static cudaError_t launch(cudaStream_t stream, const struct linear *l, enum device_act act,
                          float *y, uint32_t ldy)
{
    const float least = act == DEVICE_RELU ? 0.0f : -INFINITY;
    struct cuda_compat_shape shape = {};
    uint32_t wide = 1;

    while (wide * N < l->out && wide < THREADS)
        wide *= 2;
    shape.grid =
        dim3(cuda_compat_ceil_div(l->n, SAMPLES), cuda_compat_ceil_div(l->out, wide * N));
    shape.block = dim3(wide, THREADS / wide);
    shape.n_shared = (SAMPLES * IN + wide * N * W_LD) * sizeof(float);
    return cuda_compat_launch(forward<N>, shape, stream, *l, least, y, ldy);
}

cudaError_t kernels_narrow_forward(cudaStream_t stream, const struct linear *l,
                                   enum device_act act, float *y, uint32_t ldy)
{
    if (l->out % 4 == 0 && dev_by_fours(y, ldy))
        return launch<4>(stream, l, act, y, ldy);
    return launch<1>(stream, l, act, y, ldy);
}
