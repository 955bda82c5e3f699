/* Sigmoid and binary cross-entropy in the fused form, which neither overflows nor saturates; in double, one value a
 * sample. */
#include <math.h>

#include "worker/cuda/column_sums.h"
#include "worker/cuda/kernels.h"

/* 1 / (1 + exp(-z)), of e = exp(-|z|) */
static __forceinline__ __device__ double sigmoid(double z, double e)
{
    return z < 0 ? e / (1 + e) : 1 / (1 + e);
}

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    prob(uint32_t n, const float *z, float *p)
{
    const size_t s = cuda_compat_index();

    if (s < n)
        p[s] = (float)sigmoid((double)z[s], exp(-fabs((double)z[s])));
}

cudaError_t kernels_prob(cudaStream_t stream, uint32_t n, const float *z, float *p)
{
    return cuda_compat_launch(prob, cuda_compat_flat(n), stream, n, z, p);
}

/* The block's sum; in thread 0. */
static __forceinline__ __device__ double sum_of_block(double mine)
{
    double *sums = cuda_compat_shared<double>();

    for (int by = CUDA_COMPAT_WARP / 2; by; by /= 2)
        mine += __shfl_down_sync(CUDA_COMPAT_ALL_LANES, mine, (unsigned)by);
    if (threadIdx.x % CUDA_COMPAT_WARP == 0)
        sums[threadIdx.x / CUDA_COMPAT_WARP] = mine;
    __syncthreads();
    if (threadIdx.x == 0)
        for (uint32_t i = 1; i < blockDim.x / CUDA_COMPAT_WARP; i++)
            mine += sums[i];
    return mine;
}

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    loss(struct cross_entropy of, const float *z_of, const float *y_of, float *dz,
         double *parts)
{
    const size_t s = cuda_compat_index();
    double mine = 0;

    if (s < of.n) {
        const double z = (double)z_of[s] + (double)of.offset, e = exp(-fabs(z)), l = log1p(e);
        const double y = (double)y_of[s] + (double)of.smoothing * (0.5 - (double)y_of[s]);
        const double more = (double)of.more * y;

        mine = (z > 0 ? z : 0) - z * y + l + more * ((z < 0 ? -z : 0) + l);
        dz[s] = (float)((sigmoid(z, e) - y - more * sigmoid(-z, e)) / of.n);
    }
    mine = sum_of_block(mine);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = mine;
}

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    mean(uint32_t n, uint32_t n_parts, const double *parts, double *ret)
{
    double mine = 0;

    for (uint32_t i = threadIdx.x; i < n_parts; i += CUDA_COMPAT_THREADS)
        mine += parts[i];
    mine = sum_of_block(mine);
    if (threadIdx.x == 0)
        *ret = n ? mine / n : 0;
}

cudaError_t kernels_loss(cudaStream_t stream, const struct cross_entropy *e, const float *z,
                         const float *y, float *dz, double *ret, void *scratch)
{
    const uint32_t n = e->n;
    struct cuda_compat_shape shape = cuda_compat_flat(n), one = cuda_compat_flat(1);
    const uint32_t n_parts = shape.grid.x;
    double *parts = (double *)scratch;
    cudaError_t error;

    shape.n_shared = one.n_shared = CUDA_COMPAT_THREADS / CUDA_COMPAT_WARP * sizeof(double);
    error = cuda_compat_launch(loss, shape, stream, *e, z, y, dz, parts);
    return error
               ? error
               : cuda_compat_launch(mean, one, stream, n, n_parts, (const double *)parts, ret);
}
