/* Sums of the values of the threads before one, by warps of a block of CUDA_COMPAT_THREADS threads in a row. */
#ifndef WORKER_CUDA_SCAN_H
#define WORKER_CUDA_SCAN_H

#include "worker/cuda/cuda_compat.h"

enum { SCAN_WARPS = CUDA_COMPAT_THREADS / CUDA_COMPAT_WARP };

static __forceinline__ __device__ uint32_t scan_lane(void)
{
    return threadIdx.x % CUDA_COMPAT_WARP;
}

/* Of the lanes below. */
static __forceinline__ __device__ uint32_t scan_warp(uint32_t value, uint32_t *ret_sum)
{
    uint32_t sum = value, other;

    for (uint32_t by = 1; by < CUDA_COMPAT_WARP; by *= 2) {
        other = __shfl_sync(CUDA_COMPAT_ALL_LANES, sum, (int)(scan_lane() - by) & 31);
        sum += scan_lane() >= by ? other : 0;
    }
    *ret_sum = __shfl_sync(CUDA_COMPAT_ALL_LANES, sum, CUDA_COMPAT_WARP - 1);
    return sum - value;
}

/* Of the block's threads; `sums`: [SCAN_WARPS] of shared memory, in which the warps' sums stand then. */
static __forceinline__ __device__ uint32_t scan_block(uint32_t value, uint32_t *sums)
{
    const uint32_t warp = threadIdx.x / CUDA_COMPAT_WARP;
    uint32_t sum, before = scan_warp(value, &sum);

    if (scan_lane() == 0)
        sums[warp] = sum;
    __syncthreads();
    for (uint32_t w = 0; w < warp; w++)
        before += sums[w];
    return before;
}

/* By one warp: each of n numbers becomes the sum of those before it. Returns the sum of all. */
static __forceinline__ __device__ uint32_t scan_row(uint32_t n, uint32_t *numbers)
{
    uint32_t before = 0, sum;

    for (uint32_t first = 0; first < n; first += CUDA_COMPAT_WARP) {
        const uint32_t i = first + scan_lane(), below = scan_warp(i < n ? numbers[i] : 0, &sum);

        if (i < n)
            numbers[i] = before + below;
        before += sum;
    }
    return before;
}

#endif
