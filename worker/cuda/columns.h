/*
 * Sums of columns over samples, in a fixed order: blocks of compute_block() samples, each as COLUMNS_DEEP sums side by side,
 * sample i in sum i % COLUMNS_DEEP, then those ascending; then the blocks in the same way.
 *
 * What is summed, and what becomes of it, are values of two small structs:
 *
 *     struct term     { typedef ... sum;  void add(sum &to, size_t sample, uint32_t column) const; }
 *     struct finish   { void put(uint32_t column, const sum &total) const; }
 *
 * A sum is added to another with +=.
 */
#ifndef WORKER_CUDA_COLUMNS_H
#define WORKER_CUDA_COLUMNS_H

#include "worker/compute/compute.h"
#include "worker/cuda/dev.h"

enum { COLUMNS_WIDE = 32, COLUMNS_DEEP = 8 };

/* Two sums that are made together. */
struct columns_pair {
    double a, b;

    __device__ void operator+=(const struct columns_pair &more)
    {
        a += more.a;
        b += more.b;
    }
};

/* The sums of this block's threads of one column; threads of row 0 have the total. */
template <typename Sum> static __forceinline__ __device__ Sum columns_fold(const Sum &mine)
{
    Sum *sums = dev_shared<Sum>(), total = mine;

    sums[threadIdx.y * COLUMNS_WIDE + threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.y == 0)
        for (uint32_t i = 1; i < COLUMNS_DEEP; i++)
            total += sums[i * COLUMNS_WIDE + threadIdx.x];
    return total;
}

template <typename Term>
static __global__ void __launch_bounds__(COLUMNS_WIDE *COLUMNS_DEEP)
    columns_part(Term term, uint32_t n, uint32_t block, uint32_t width,
                 typename Term::sum *parts)
{
    const uint32_t o = blockIdx.y * COLUMNS_WIDE + threadIdx.x, first = blockIdx.x * block,
                   end = first + block < n ? first + block : n;
    typename Term::sum sum = {};

    if (o < width) {
        DEV_UNROLL_4
        for (uint32_t s = first + threadIdx.y; s < end; s += COLUMNS_DEEP)
            term.add(sum, s, o);
    }
    sum = columns_fold(sum);
    if (threadIdx.y == 0 && o < width)
        parts[(size_t)blockIdx.x * width + o] = sum;
}

template <typename Finish, typename Sum>
static __global__ void __launch_bounds__(COLUMNS_WIDE *COLUMNS_DEEP)
    columns_total(Finish finish, uint32_t n_parts, uint32_t width, const Sum *parts)
{
    const uint32_t o = blockIdx.y * COLUMNS_WIDE + threadIdx.x;
    Sum sum = {};

    if (o < width) {
        DEV_UNROLL_4
        for (uint32_t i = threadIdx.y; i < n_parts; i += COLUMNS_DEEP)
            sum += parts[(size_t)i * width + o];
    }
    sum = columns_fold(sum);
    if (threadIdx.y == 0 && o < width)
        finish.put(o, sum);
}

/* parts: as many sums as columns_n_parts() * width. */
template <typename Term, typename Finish>
static cudaError_t columns_sum(cudaStream_t stream, const Term &term, const Finish &finish,
                               uint32_t n, uint32_t width, void *parts)
{
    typedef typename Term::sum sum;
    const uint32_t block = compute_block(n), n_parts = dev_ceil_div(n, block),
                   n_columns = dev_ceil_div(width, COLUMNS_WIDE);
    const dim3 threads(COLUMNS_WIDE, COLUMNS_DEEP);
    const size_t n_shared = COLUMNS_WIDE * COLUMNS_DEEP * sizeof(sum);
    const struct dev_shape by_part = { dim3(n_parts, n_columns), threads, n_shared };
    const struct dev_shape of_all = { dim3(1, n_columns), threads, n_shared };
    cudaError_t error =
        dev_launch(columns_part<Term>, by_part, stream, term, n, block, width, (sum *)parts);

    return error ? error
                 : dev_launch(columns_total<Finish, sum>, of_all, stream, finish, n_parts,
                              width, (const sum *)parts);
}

/* Of any number of samples up to n there are no more parts. */
static inline uint32_t columns_n_parts_max(uint32_t n)
{
    return n > 2048 ? dev_ceil_div(n, 256) : 8;
}

#endif
