/*
 * The common header of files with kernels: CUDA, or with PS_EMU the tests' emulation of it, the few differences between
 * them, and the layout of threads over rows and columns.
 */
#ifndef WORKER_CUDA_CUDA_COMPAT_H
#define WORKER_CUDA_CUDA_COMPAT_H

#ifdef PS_EMU
#include "tests/emu/simt.h"
#else
#include <cuda_runtime.h>
#endif

#include "common/base.h"

/* Before a loop whose loads are to be under way together. */
#ifdef PS_EMU
#define CUDA_COMPAT_UNROLL_4
#define CUDA_COMPAT_UNROLL_8
#define CUDA_COMPAT_UNROLL_16
#define CUDA_COMPAT_UNROLL_ALL
#else
#define CUDA_COMPAT_UNROLL_4 _Pragma("unroll 4")
#define CUDA_COMPAT_UNROLL_8 _Pragma("unroll 8")
#define CUDA_COMPAT_UNROLL_16 _Pragma("unroll 16")
#define CUDA_COMPAT_UNROLL_ALL _Pragma("unroll")
#endif

enum { CUDA_COMPAT_WARP = 32, CUDA_COMPAT_THREADS = 256 };
#define CUDA_COMPAT_ALL_LANES 0xffffffffu

/* Of a launch. An empty grid is no launch. */
struct cuda_compat_shape {
    struct dim3 grid, block;
    size_t n_shared; /* bytes of shared memory, cuda_compat_shared() */
};

#ifdef PS_EMU
template <typename... P, typename... A>
static cudaError_t cuda_compat_launch(void (*kernel)(P...),
                                      const struct cuda_compat_shape &shape,
                                      cudaStream_t stream, A... args)
{
    if (!shape.grid.x || !shape.grid.y)
        return cudaSuccess;
    return emu_launch(kernel, shape.grid, shape.block, shape.n_shared, stream, P(args)...);
}

template <typename T> static T *cuda_compat_shared(void)
{
    return (T *)emu_shared();
}
#else
template <typename... P, typename... A>
static cudaError_t cuda_compat_launch(void (*kernel)(P...),
                                      const struct cuda_compat_shape &shape,
                                      cudaStream_t stream, A... args)
{
    cudaLaunchConfig_t config = {};

    if (!shape.grid.x || !shape.grid.y)
        return cudaSuccess;
    config.gridDim = shape.grid;
    config.blockDim = shape.block;
    config.dynamicSmemBytes = shape.n_shared;
    config.stream = stream;
    return cudaLaunchKernelEx(&config, kernel, P(args)...);
}

/* A block's shared memory; it is not initialised. */
template <typename T> static __device__ T *cuda_compat_shared(void)
{
    extern __shared__ __align__(32) unsigned char dev_shared_bytes[];

    return (T *)dev_shared_bytes;
}
#endif

static inline __host__ __device__ uint32_t cuda_compat_ceil_div(size_t n, uint32_t by)
{
    return (uint32_t)((n + by - 1) / by);
}

/* A thread for each of n. */
static inline struct cuda_compat_shape cuda_compat_flat(size_t n)
{
    return { dim3(cuda_compat_ceil_div(n, CUDA_COMPAT_THREADS)), dim3(CUDA_COMPAT_THREADS), 0 };
}

static __forceinline__ __device__ size_t cuda_compat_index(void)
{
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

/* A thread for each row and column: neighbours take neighbouring columns, and of few columns more
 * rows. */
static inline struct cuda_compat_shape cuda_compat_grid(size_t n_rows, uint32_t n_columns)
{
    uint32_t wide = 1;

    while (wide < n_columns && wide < CUDA_COMPAT_THREADS)
        wide *= 2;
    return { dim3(n_columns ? cuda_compat_ceil_div(n_rows, CUDA_COMPAT_THREADS / wide) : 0,
                  cuda_compat_ceil_div(n_columns, wide)),
             dim3(wide, CUDA_COMPAT_THREADS / wide), 0 };
}

static __forceinline__ __device__ size_t cuda_compat_row(void)
{
    return (size_t)blockIdx.x * blockDim.y + threadIdx.y;
}

static __forceinline__ __device__ uint32_t cuda_compat_column(void)
{
    return blockIdx.y * blockDim.x + threadIdx.x;
}

/* A warp for each row. */
static inline struct cuda_compat_shape cuda_compat_warps(size_t n_rows)
{
    return { dim3(cuda_compat_ceil_div(n_rows, CUDA_COMPAT_THREADS / CUDA_COMPAT_WARP)),
             dim3(CUDA_COMPAT_WARP, CUDA_COMPAT_THREADS / CUDA_COMPAT_WARP), 0 };
}

/* N floats that are loaded and stored at once; N is 1 or 4. */
template <int N> struct alignas(4 * N) cuda_compat_floats {
    float at[N];
};

template <int N>
static __forceinline__ __device__ struct cuda_compat_floats<N> dev_load(const float *x) {
    return *(const struct cuda_compat_floats<N> *)x;
}

template <int N>
static __forceinline__ __device__ void dev_store(float *x,
                                                 const struct cuda_compat_floats<N> &v)
{
    *(struct cuda_compat_floats<N> *)x = v;
}

/* True if rows `ld` floats apart can be read by fours. NULL can. */
static inline bool dev_by_fours(const void *x, size_t ld)
{
    return (uintptr_t)x % 16 == 0 && (!x || ld % 4 == 0);
}

#endif
