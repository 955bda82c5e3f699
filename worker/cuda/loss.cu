/* Sigmoid and binary cross-entropy in the fused form, which neither overflows nor saturates; in double, one value a
 * sample. */
#include <math.h>

#include "worker/cuda/columns.h"
#include "worker/cuda/kernels.h"

/* 1 / (1 + exp(-z)), of e = exp(-|z|) */
static __forceinline__ __device__ double sigmoid(double z, double e)
{
    return z < 0 ? e / (1 + e) : 1 / (1 + e);
}

static __global__ void __launch_bounds__(DEV_THREADS) prob(uint32_t n, const float *z, float *p)
{
    const size_t s = dev_index();

    if (s < n)
        p[s] = (float)sigmoid((double)z[s], exp(-fabs((double)z[s])));
}

cudaError_t kernels_prob(cudaStream_t stream, uint32_t n, const float *z, float *p)
{
    return dev_launch(prob, dev_flat(n), stream, n, z, p);
}

/* The block's sum; in thread 0. */
static __forceinline__ __device__ double sum_of_block(double mine)
{
    double *sums = dev_shared<double>();

    for (int by = DEV_WARP / 2; by; by /= 2)
        mine += __shfl_down_sync(DEV_ALL_LANES, mine, (unsigned)by);
    if (threadIdx.x % DEV_WARP == 0)
        sums[threadIdx.x / DEV_WARP] = mine;
    __syncthreads();
    if (threadIdx.x == 0)
        for (uint32_t i = 1; i < blockDim.x / DEV_WARP; i++)
            mine += sums[i];
    return mine;
}

static __global__ void __launch_bounds__(DEV_THREADS)
    loss(uint32_t n, const float *z_of, const float *y_of, float *dz, double *parts)
{
    const size_t s = dev_index();
    double mine = 0;

    if (s < n) {
        const double z = (double)z_of[s], y = (double)y_of[s], e = exp(-fabs(z));

        mine = (z > 0 ? z : 0) - z * y + log1p(e);
        dz[s] = (float)((sigmoid(z, e) - y) / n);
    }
    mine = sum_of_block(mine);
    if (threadIdx.x == 0)
        parts[blockIdx.x] = mine;
}

static __global__ void __launch_bounds__(DEV_THREADS)
    mean(uint32_t n, uint32_t n_parts, const double *parts, double *ret)
{
    double mine = 0;

    for (uint32_t i = threadIdx.x; i < n_parts; i += DEV_THREADS)
        mine += parts[i];
    mine = sum_of_block(mine);
    if (threadIdx.x == 0)
        *ret = n ? mine / n : 0;
}

cudaError_t kernels_loss(cudaStream_t stream, uint32_t n, const float *z, const float *y,
                         float *dz, double *ret, void *scratch)
{
    struct dev_shape shape = dev_flat(n), one = dev_flat(1);
    const uint32_t n_parts = shape.grid.x;
    double *parts = (double *)scratch;
    cudaError_t error;

    shape.n_shared = one.n_shared = DEV_THREADS / DEV_WARP * sizeof(double);
    error = dev_launch(loss, shape, stream, n, z, y, dz, parts);
    return error ? error
                 : dev_launch(mean, one, stream, n, n_parts, (const double *)parts, ret);
}
