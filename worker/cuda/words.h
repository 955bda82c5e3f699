/*
 * Numbers of tensor cores in words of 32 bits, one of TF32 or two of bf16, and their product, which takes both in the
 * same words:
 *
 *     D [16 x 8] += A [16 x 8 words] B [8 words x 8]      lane = 4 g + q
 *
 *     a[r]    row g + 8 (r & 1), word q + 4 (r >> 1)      rows of A: words of k
 *     b[r]    column g, word q + 4 r
 *     d[e]    row g + 8 (e >> 1), column 2 q + (e & 1)    fp32
 *
 * (PTX ISA, mma.m16n8k8 with .tf32 and mma.m16n8k16 with .bf16. It is volatile: no lane may leave it out whose sums go
 * nowhere.)
 */
#ifndef WORKER_CUDA_WORDS_H
#define WORKER_CUDA_WORDS_H

#include "proto/codec_half.h"
#include "worker/compute/device_bf16.h"
#include "worker/cuda/cuda_compat.h"

/* N words that are loaded and stored at once, 16 bytes at a time. */
template <int N> struct alignas(N < 4 ? 4 * N : 16) words {
    uint32_t at[N];
};

static __forceinline__ __device__ float bf16_float(bf16 x)
{
    return codec_bytes_to_float((uint32_t)x << 16);
}

/* The word of two numbers, rounded to nearest even, `low` in front. */
static __forceinline__ __device__ uint32_t bf16_pair(float low, float high)
{
#ifdef PS_EMU
    return codec_half_to_bf16(codec_bytes_of_float(low)) |
           codec_half_to_bf16(codec_bytes_of_float(high)) << 16;
#else
    uint32_t pair;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#endif
}

static __forceinline__ __device__ bf16 bf16_of(float x)
{
    return (bf16)bf16_pair(x, 0);
}

/* N numbers, N even: as floats, and back. */
template <int N>
static __forceinline__ __device__ void bf16_load(const bf16 *from, float (&to)[N])
{
    const struct words<N / 2> v = *(const struct words<N / 2> *)from;

    for (int i = 0; i < N; i++)
        to[i] = codec_bytes_to_float(i % 2 ? v.at[i / 2] & 0xffff0000u : v.at[i / 2] << 16);
}

template <int N>
static __forceinline__ __device__ struct words<N / 2> bf16_pack(const float (&from)[N]) {
    struct words<N / 2> v;

    for (int i = 0; i < N; i += 2)
        v.at[i / 2] = bf16_pair(from[i], from[i + 1]);
    return v;
}

template <int N>
static __forceinline__ __device__ void bf16_store(bf16 *to, const float (&from)[N])
{
    *(struct words<N / 2> *)to = bf16_pack(from);
}

/* For what nobody reads soon: caches keep what is read instead. */
static __forceinline__ __device__ void words_store_once(void *to, const struct words<4> &v)
{
#ifdef PS_EMU
    *(struct words<4> *)to = v;
#else
    __stcs((uint4 *)to, make_uint4(v.at[0], v.at[1], v.at[2], v.at[3]));
#endif
}

static __forceinline__ __device__ void words_store_once(void *to, const struct words<2> &v)
{
#ifdef PS_EMU
    *(struct words<2> *)to = v;
#else
    __stcs((uint2 *)to, make_uint2(v.at[0], v.at[1]));
#endif
}

/* The product by this instruction, of the arguments d, a, b0 and b1. */
#ifdef PS_EMU
#define WORDS_MMA(instruction, is_bf16) emu_mma(d, a, b0, b1, is_bf16)
#else
#define WORDS_MMA(instruction, is_bf16)                                               \
    asm volatile(instruction " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
#endif

struct tf32_words {
    typedef float number;
    enum { PER_WORD = 1 };

    static __forceinline__ __device__ uint32_t round(uint32_t word)
    {
#ifdef PS_EMU
        return emu_mma_round(word);
#else
        uint32_t rounded;

        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(codec_bytes_to_float(word)));
        return rounded;
#endif
    }

    static __forceinline__ __device__ void multiply(float (&d)[4], const uint32_t (&a)[4],
                                                    uint32_t b0, uint32_t b1)
    {
        WORDS_MMA("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", false);
    }

    /* The word of two numbers, of which there is room for one. */
    static __forceinline__ __device__ uint32_t word(float first, float second)
    {
        (void)second;
        return codec_bytes_of_float(first);
    }

    template <int N>
    static __forceinline__ __device__ void load(const float *from, float (&to)[N])
    {
        const struct words<N> v = *(const struct words<N> *)from;

        for (int i = 0; i < N; i++)
            to[i] = codec_bytes_to_float(v.at[i]);
    }

    template <int N>
    static __forceinline__ __device__ struct words<N> pack(const float (&from)[N]) {
        struct words<N> v;

        for (int i = 0; i < N; i++)
            v.at[i] = codec_bytes_of_float(from[i]);
        return v;
    }

    template <int N>
    static __forceinline__ __device__ void store(float *to, const float (&from)[N])
    {
        *(struct words<N> *)to = pack(from);
    }

    template <int N>
    static __forceinline__ __device__ void store_once(float *to, const float (&from)[N])
    {
        words_store_once(to, pack(from));
    }

    static __forceinline__ __device__ float to_float(float x)
    {
        return x;
    }

    static __forceinline__ __device__ float of_float(float x)
    {
        return x;
    }
};

struct bf16_words {
    typedef bf16 number;
    enum { PER_WORD = 2 };

    static __forceinline__ __device__ uint32_t round(uint32_t word)
    {
        return word;
    }

    static __forceinline__ __device__ void multiply(float (&d)[4], const uint32_t (&a)[4],
                                                    uint32_t b0, uint32_t b1)
    {
        WORDS_MMA("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", true);
    }

    static __forceinline__ __device__ uint32_t word(float first, float second)
    {
        return bf16_pair(first, second);
    }

    template <int N>
    static __forceinline__ __device__ void load(const bf16 *from, float (&to)[N])
    {
        bf16_load(from, to);
    }

    template <int N>
    static __forceinline__ __device__ void store(bf16 *to, const float (&from)[N])
    {
        *(struct words<N / 2> *)to = bf16_pack(from);
    }

    template <int N>
    static __forceinline__ __device__ void store_once(bf16 *to, const float (&from)[N])
    {
        words_store_once(to, bf16_pack(from));
    }

    static __forceinline__ __device__ float to_float(bf16 x)
    {
        return bf16_float(x);
    }

    static __forceinline__ __device__ bf16 of_float(float x)
    {
        return bf16_of(x);
    }
};

#endif
