/*
 * CUDA's device side on the CPU, for tests: a kernel is compiled by the host's compiler, and a block's threads
 * are fibers of one thread. What CUDA leaves open is made as unkind as may be:
 *
 *     order            each thread runs until its next barrier; which comes first, and which block, is
 *                      emu_order()'s: forward, backward, or drawn anew after each barrier
 *     shared memory    begins as NaN in every block
 *     barriers         abort with a sentence when a thread of the block, or a lane of the mask, has left or waits
 *                      elsewhere
 *     shuffles         abort when they read a lane outside the mask
 *     tensor cores     mma.sync (mma.h): what was not rounded to TF32 aborts
 *     launches         more threads or shared memory than there may be, or an empty grid, are refused as CUDA does
 *
 * The sanitizers are told of the fibers, and see kernels' memory as any other.
 */
#ifndef TESTS_EMU_SIMT_H
#define TESTS_EMU_SIMT_H

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <tuple>

#include "tests/emu/simt_order.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#ifndef __restrict__
#define __restrict__ __restrict
#endif

struct dim3 {
    unsigned x, y, z;

    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

/* What any device gives a block. */
enum { EMU_SHARED_MAX = 48 * 1024, EMU_THREADS_MAX = 1024 };

/* Of the thread that runs. */
extern __thread struct dim3 threadIdx, blockIdx, blockDim, gridDim;

void emu_barrier_block(void);
/* Publishes `value` to the lanes of the mask, which must all come; then emu_value() is what a lane
 * published. Returns the caller's lane. */
unsigned emu_barrier_warp(unsigned mask, uint64_t value);
uint64_t emu_value(unsigned mask, unsigned lane);
void *emu_shared(void);
void emu_abort(const char *why) __attribute__((noreturn));

/* A kernel and its arguments, until the stream comes to it. */
struct emu_call {
    virtual ~emu_call() {}
    virtual void run() const = 0;
};

/* Takes `call` over. */
cudaError_t emu_launch_call(struct dim3 grid, struct dim3 block, size_t n_shared,
                            cudaStream_t stream, struct emu_call *call);

template <typename... P> struct emu_call_of : emu_call {
    void (*kernel)(P...);
    std::tuple<P...> args;

    emu_call_of(void (*kernel_)(P...), P... args_) : kernel(kernel_), args(args_...) {}

    void run() const override
    {
        std::apply(kernel, args);
    }
};

template <typename... P>
cudaError_t emu_launch(void (*kernel)(P...), struct dim3 grid, struct dim3 block,
                       size_t n_shared, cudaStream_t stream, P... args)
{
    return emu_launch_call(grid, block, n_shared, stream,
                           new emu_call_of<P...>(kernel, args...));
}

static inline void __syncthreads(void)
{
    emu_barrier_block();
}

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    emu_barrier_warp(mask, 0);
}

template <typename T> T emu_exchange(unsigned mask, T value, unsigned lane, unsigned from)
{
    uint64_t bits = 0;

    static_assert(sizeof value <= sizeof bits, "shuffles take 8 bytes at most");
    memcpy(&bits, &value, sizeof value);
    emu_barrier_warp(mask, bits);
    bits = emu_value(mask, from > 31 ? lane : from);
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline unsigned emu_lane(void)
{
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31;
}

template <typename T> T __shfl_sync(unsigned mask, T value, int from)
{
    return emu_exchange(mask, value, emu_lane(), (unsigned)from & 31);
}

template <typename T> T __shfl_xor_sync(unsigned mask, T value, int bits)
{
    return emu_exchange(mask, value, emu_lane(), emu_lane() ^ (unsigned)bits);
}

/* `width` as CUDA's: segments of it; a lane that would read beyond its segment gets its own value. */
template <typename T> T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    const unsigned lane = emu_lane(), end = (lane | ((unsigned)width - 1)) + 1;

    return emu_exchange(mask, value, lane, lane + by < end ? lane + by : lane);
}

/* Likewise for lanes before the segment. */
template <typename T> T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    const unsigned lane = emu_lane(), first = lane & ~((unsigned)width - 1);

    return emu_exchange(mask, value, lane, lane >= first + by ? lane - by : lane);
}

static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    unsigned ballot = 0;

    emu_barrier_warp(mask, predicate != 0);
    for (unsigned lane = 0; lane < 32; lane++)
        if (mask >> lane & 1)
            ballot |= (unsigned)emu_value(mask, lane) << lane;
    return ballot;
}

static inline int __popc(unsigned bits)
{
    return __builtin_popcount(bits);
}

static inline unsigned atomicAdd(unsigned *at, unsigned value)
{
    const unsigned before = *at;

    *at += value;
    return before;
}

static inline float __fmul_rn(float a, float b)
{
    return a * b;
}

#include "tests/emu/mma.h"

#endif
