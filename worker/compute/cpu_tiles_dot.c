/* Products with AVX512-BF16: eight rows of A, a pair of k broadcast from each, times 32
 * columns of B. */
#include "worker/compute/cpu_tiles_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#define DOT_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define DOT_INLINE DOT_TARGET static inline __attribute__((always_inline))

enum { ROWS = 8 };

DOT_INLINE __m512i pair_of(const uint16_t *a)
{
    int32_t pair;

    memcpy(&pair, a, sizeof pair);
    return _mm512_set1_epi32(pair);
}

/* c [8][16 width] of one or two panels of B. */
DOT_INLINE void block(const uint16_t *a, const uint16_t *b, size_t b_stride, int width,
                      uint32_t n_k, enum cpu_tiles_start start, float *c, size_t ldc)
{
    __m512 sum[ROWS][2];

    CPU_TILES_UNROLL
    for (int r = 0; r < ROWS; r++)
        for (int w = 0; w < width; w++)
            sum[r][w] = start == CPU_TILES_ADD ? _mm512_loadu_ps(c + (size_t)r * ldc + 16 * w)
                                               : _mm512_setzero_ps();
    for (uint32_t k = 0; k < n_k; k++, a += CPU_TILES_BF16 - 32, b += CPU_TILES_BF16 - 512)
        for (uint32_t p = 0; p < 16; p++, a += 2, b += 32) {
            __m512i v[2];

            for (int w = 0; w < width; w++)
                v[w] = _mm512_loadu_si512(b + (size_t)w * b_stride);
            CPU_TILES_UNROLL
            for (int r = 0; r < ROWS; r++)
                for (int w = 0; w < width; w++)
                    sum[r][w] = _mm512_dpbf16_ps(
                        sum[r][w], (__m512bh)pair_of(a + (size_t)r * 32), (__m512bh)v[w]);
        }
    CPU_TILES_UNROLL
    for (int r = 0; r < ROWS; r++)
        for (int w = 0; w < width; w++)
            _mm512_storeu_ps(c + (size_t)r * ldc + 16 * w, sum[r][w]);
}

DOT_TARGET void cpu_tiles_dot_multiply(const struct cpu_tiles_panels *a,
                                       const struct cpu_tiles_panels *b, uint32_t n_k,
                                       enum cpu_tiles_start start, float *c, size_t ldc)
{
    for (uint32_t j = 0; j < b->n; j += 2)
        for (uint32_t i = 0; i < 16 * a->n; i += ROWS) {
            const uint16_t *x = a->tiles + i / 16 * a->stride + (size_t)(i % 16) * 32;
            const uint16_t *y = b->tiles + j * b->stride;
            float *at = c + i * ldc + 16 * (size_t)j;

            if (j + 1 < b->n)
                block(x, y, b->stride, 2, n_k, start, at, ldc);
            else
                block(x, y, b->stride, 1, n_k, start, at, ldc);
        }
}

#else
typedef int cpu_tiles_dot_is_for_x86_64;
#endif
