/*
 * Builds of one kernel for several widths of vectors, and the choice of the build that this processor runs.
 *
 * A kernel is plain C, written once as a SIMD_INLINE function. Each build is a small function with a SIMD_TARGET_* that
 * calls it, and the compiler makes the vectors. Where it makes poor ones, the SIMD_AVX512 build has intrinsics, with
 * the plain C beside them. All builds give the same bits (tests compare them with SIMD_PLAIN). A look-up in a catalog
 * returns the build for this processor.
 */
#ifndef COMMON_SIMD_H
#define COMMON_SIMD_H

#include <stdbool.h>

#include "common/base.h"

enum simd { SIMD_PLAIN, SIMD_AVX2, SIMD_AVX512, SIMD_END };

#define SIMD_INLINE HOST_DEVICE static inline __attribute__((always_inline))

#define SIMD_TARGET_PLAIN
#define SIMD_TARGET_AVX2 __attribute__((target("avx2")))
#define SIMD_TARGET_AVX512 __attribute__((target("avx2,avx512f,avx512bw,avx512dq,avx512vl")))

/* A part of an SIMD_AVX512 build that is written with intrinsics. */
#define SIMD_AVX512_INLINE SIMD_TARGET_AVX512 SIMD_INLINE

static inline bool simd_runs(enum simd build)
{
    bool avx2 = __builtin_cpu_supports("avx2");

    switch (build) {
    case SIMD_PLAIN:
        return true;
    case SIMD_AVX2:
        return avx2;
    case SIMD_AVX512:
        return avx2 && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl");
    case SIMD_END:
        break;
    }
    return false;
}

/* The widest that this processor runs. */
static inline enum simd simd_best(void)
{
    if (simd_runs(SIMD_AVX512))
        return SIMD_AVX512;
    return simd_runs(SIMD_AVX2) ? SIMD_AVX2 : SIMD_PLAIN;
}

#endif
