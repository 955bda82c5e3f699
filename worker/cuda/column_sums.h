/*
 * Sums of columns over samples, in a fixed order: blocks of device_block() samples, each as COLUMN_SUMS_DEEP sums side
 * by side, sample i in sum i % COLUMN_SUMS_DEEP, then those ascending; then the blocks in the same way.
 *
 * The terms and the use of the sums are values of two small structs:
 *
 *     struct term     { typedef ... sum, value;
 *                       value load(size_t sample, uint32_t column) const;
 *                       void add(sum &to, value, size_t sample, uint32_t column) const; }
 *     struct finish   { void put(uint32_t column, const sum &total) const; }
 *
 * A sum is added to another with +=. A thread loads COLUMN_SUMS_TOGETHER values before it adds the first: one after the
 * other, each load would wait for the memory.
 */
#ifndef WORKER_CUDA_COLUMN_SUMS_H
#define WORKER_CUDA_COLUMN_SUMS_H

#include "worker/compute/device.h"
#include "worker/cuda/cuda_compat.h"

enum { COLUMN_SUMS_WIDE = 32, COLUMN_SUMS_DEEP = 8, COLUMN_SUMS_TOGETHER = 8 };

/* Two sums that are made together. */
struct column_sums_pair {
    double a, b;

    __device__ void operator+=(const struct column_sums_pair &more)
    {
        a += more.a;
        b += more.b;
    }
};

/* The sums of this block's threads of one column; threads of row 0 have the total. */
template <typename Sum> static __forceinline__ __device__ Sum column_sums_fold(const Sum &mine)
{
    Sum *sums = cuda_compat_shared<Sum>(), total = mine;

    sums[threadIdx.y * COLUMN_SUMS_WIDE + threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.y == 0)
        for (uint32_t i = 1; i < COLUMN_SUMS_DEEP; i++)
            total += sums[i * COLUMN_SUMS_WIDE + threadIdx.x];
    return total;
}

/* Values first, first + COLUMN_SUMS_DEEP ... before `end` of a column, ascending. */
template <typename Term>
static __forceinline__ __device__ void column_sums_add(const Term &term, uint32_t first,
                                                       uint32_t end, uint32_t o,
                                                       typename Term::sum &sum)
{
    typename Term::value v[COLUMN_SUMS_TOGETHER] = {};

    for (uint32_t s = first; s < end; s += COLUMN_SUMS_DEEP * COLUMN_SUMS_TOGETHER) {
        CUDA_COMPAT_UNROLL_8
        for (uint32_t k = 0; k < COLUMN_SUMS_TOGETHER; k++)
            if (s + k * COLUMN_SUMS_DEEP < end)
                v[k] = term.load(s + k * COLUMN_SUMS_DEEP, o);
        CUDA_COMPAT_UNROLL_8
        for (uint32_t k = 0; k < COLUMN_SUMS_TOGETHER; k++)
            if (s + k * COLUMN_SUMS_DEEP < end)
                term.add(sum, v[k], s + k * COLUMN_SUMS_DEEP, o);
    }
}

/* The sums of blocks, as terms of the whole. */
template <typename Sum> struct column_sums_parts {
    typedef Sum sum, value;
    const Sum *parts;
    uint32_t width;

    __device__ Sum load(size_t i, uint32_t o) const
    {
        return parts[i * width + o];
    }

    __device__ void add(Sum &to, const Sum &part, size_t i, uint32_t o) const
    {
        (void)i, (void)o;
        to += part;
    }
};

template <typename Term>
static __global__ void __launch_bounds__(COLUMN_SUMS_WIDE *COLUMN_SUMS_DEEP)
    column_sums_part(Term term, uint32_t n, uint32_t block, uint32_t width,
                     typename Term::sum *parts)
{
    const uint32_t o = blockIdx.y * COLUMN_SUMS_WIDE + threadIdx.x, first = blockIdx.x * block,
                   end = first + block < n ? first + block : n;
    typename Term::sum sum = {};

    if (o < width)
        column_sums_add(term, first + threadIdx.y, end, o, sum);
    sum = column_sums_fold(sum);
    if (threadIdx.y == 0 && o < width)
        parts[(size_t)blockIdx.x * width + o] = sum;
}

template <typename Finish, typename Sum>
static __global__ void __launch_bounds__(COLUMN_SUMS_WIDE *COLUMN_SUMS_DEEP)
    column_sums_total(Finish finish, uint32_t n_parts, uint32_t width, const Sum *parts)
{
    const uint32_t o = blockIdx.y * COLUMN_SUMS_WIDE + threadIdx.x;
    Sum sum = {};

    if (o < width)
        column_sums_add(column_sums_parts<Sum>{ parts, width }, threadIdx.y, n_parts, o, sum);
    sum = column_sums_fold(sum);
    if (threadIdx.y == 0 && o < width)
        finish.put(o, sum);
}

/* parts: as many sums as column_sums_n_parts_max() * width. */
template <typename Term, typename Finish>
static cudaError_t column_sums_sum(cudaStream_t stream, const Term &term, const Finish &finish,
                                   uint32_t n, uint32_t width, void *parts)
{
    typedef typename Term::sum sum;
    const uint32_t block = device_block(n), n_parts = cuda_compat_ceil_div(n, block),
                   n_columns = cuda_compat_ceil_div(width, COLUMN_SUMS_WIDE);
    const dim3 threads(COLUMN_SUMS_WIDE, COLUMN_SUMS_DEEP);
    const size_t n_shared = COLUMN_SUMS_WIDE * COLUMN_SUMS_DEEP * sizeof(sum);
    const struct cuda_compat_shape by_part = { dim3(n_parts, n_columns), threads, n_shared };
    const struct cuda_compat_shape of_all = { dim3(1, n_columns), threads, n_shared };
    cudaError_t error = cuda_compat_launch(column_sums_part<Term>, by_part, stream, term, n,
                                           block, width, (sum *)parts);

    return error ? error
                 : cuda_compat_launch(column_sums_total<Finish, sum>, of_all, stream, finish,
                                      n_parts, width, (const sum *)parts);
}

/* Of any number of samples up to n there are no more parts. */
static inline uint32_t column_sums_n_parts_max(uint32_t n)
{
    return n > 2048 ? cuda_compat_ceil_div(n, 256) : 8;
}

#endif
