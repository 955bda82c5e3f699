/* Sixteen registers of sixteen words turned over: sixteen times four shuffles. AVX-512. */
#ifndef WORKER_COMPUTE_CPU_TILES_TURN_H
#define WORKER_COMPUTE_CPU_TILES_TURN_H

#include <immintrin.h>

#include "worker/compute/cpu_tiles_kernels.h"

/* Lane k of vector r becomes lane r of vector k, of 16 x 16 words. */
__attribute__((target("avx512f"), always_inline)) static inline void
cpu_tiles_turn_over(__m512i t[16])
{
    __m512i u[16];

    CPU_TILES_UNROLL
    for (int i = 0; i < 16; i += 2) {
        u[i] = _mm512_unpacklo_epi32(t[i], t[i + 1]);
        u[i + 1] = _mm512_unpackhi_epi32(t[i], t[i + 1]);
    }
    CPU_TILES_UNROLL
    for (int i = 0; i < 16; i += 4) {
        t[i] = _mm512_unpacklo_epi64(u[i], u[i + 2]);
        t[i + 1] = _mm512_unpackhi_epi64(u[i], u[i + 2]);
        t[i + 2] = _mm512_unpacklo_epi64(u[i + 1], u[i + 3]);
        t[i + 3] = _mm512_unpackhi_epi64(u[i + 1], u[i + 3]);
    }
    CPU_TILES_UNROLL
    for (int i = 0; i < 4; i++) {
        u[i] = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88);
        u[i + 4] = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd);
        u[i + 8] = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);
        u[i + 12] = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
    }
    CPU_TILES_UNROLL
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(u[i], u[i + 8], 0x88);
        t[i + 8] = _mm512_shuffle_i32x4(u[i], u[i + 8], 0xdd);
        t[i + 4] = _mm512_shuffle_i32x4(u[i + 4], u[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(u[i + 4], u[i + 12], 0xdd);
    }
}

#endif
