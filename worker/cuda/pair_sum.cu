/*
 * The sum of all pairs' dot products of a sample's vectors: worker/compute/cpu_pair_sum.c has the identity. Half a warp
 * takes a sample, with element d in the sum of lane d % 16, as the CPU.
 */
#include "worker/cuda/cuda_compat.h"
#include "worker/cuda/kernels.h"

enum { LANES = 16 };

static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    forward(struct pair_sum p, const float *t, float *z)
{
    const size_t s = cuda_compat_row();
    const uint32_t lane = threadIdx.x;
    float total = 0, sum = 0;

    t += s * p.ld;
    if (s < p.n)
        for (uint32_t d = lane; d < p.dim; d += LANES) {
            float of_vectors = 0, of_squares = 0;

            for (uint32_t i = 0; i < p.n_vectors; i++) {
                const float v = t[(size_t)i * p.dim + d];

                of_vectors += v;
                of_squares += v * v;
            }
            total += of_vectors * of_vectors - of_squares;
        }
    for (int i = 0; i < LANES; i++)
        sum += __shfl_sync(CUDA_COMPAT_ALL_LANES, total, (int)((threadIdx.y * LANES) & 16) + i);
    if (s < p.n && !lane)
        z[s] += 0.5f * sum;
}

cudaError_t kernels_pair_sum_forward(cudaStream_t stream, const struct pair_sum *p,
                                     const float *t, float *z)
{
    return cuda_compat_launch(forward, cuda_compat_grid(p->n, LANES), stream, *p, t, z);
}

/* A thread for each element of a sample's vectors. */
static __global__ void __launch_bounds__(CUDA_COMPAT_THREADS)
    backward(struct pair_sum p, const float *t, const float *dz, const float *dx, float *dt)
{
    const size_t s = cuda_compat_row(), at = s * p.ld;
    const uint32_t d = cuda_compat_column();
    float sum = 0;

    if (s >= p.n || d >= p.dim)
        return;
    for (uint32_t i = 0; i < p.n_vectors; i++)
        sum += t[at + (size_t)i * p.dim + d];
    for (uint32_t i = 0; i < p.n_vectors; i++) {
        const size_t k = at + (size_t)i * p.dim + d;
        float v = dz[s] * (sum - t[k]);

        if (dx)
            v += dx[k];
        dt[k] = v;
    }
}

cudaError_t kernels_pair_sum_backward(cudaStream_t stream, const struct pair_sum *p,
                                      const float *t, const float *dz, const float *dx,
                                      float *dt)
{
    return cuda_compat_launch(backward, cuda_compat_grid(p->n, p->dim), stream, *p, t, dz, dx,
                              dt);
}
