/* fp32 products with AVX-512: eight rows of A, a number broadcast from each, times 48
 * columns of B. 24 sums, three registers of B and one of A: what hides the latency of a
 * multiply-add twice over. */
#include "worker/compute/cpu_tiles_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "worker/compute/cpu_tiles_turn.h"

#define FMA_TARGET __attribute__((target("avx512f")))
#define FMA_INLINE FMA_TARGET static inline __attribute__((always_inline))

enum {
    ROWS = 8,
    PANELS = 3, /* of B, at a time */
    TILES = 4   /* of each of them that stay in the first-level cache while A's rows go by */
};

FMA_INLINE __m512i load_words(const struct cpu_tiles_source *s, uint32_t row, uint32_t col)
{
    const uint32_t n = row < s->n_rows && col < s->n_cols ? s->n_cols - col : 0;
    const __mmask16 lanes = (__mmask16)(n < 16 ? (1u << n) - 1 : 0xffff);

    return n ? _mm512_maskz_loadu_epi32(lanes, s->src + row * s->ld + col)
             : _mm512_setzero_si512();
}

FMA_TARGET void cpu_tiles_fma_rows(const struct cpu_tiles_source *s, enum cpu_tiles_turn turn,
                                   uint16_t *tiles)
{
    const uint32_t n_k = (s->n_cols + CPU_TILES_DEPTH - 1) / CPU_TILES_DEPTH * CPU_TILES_DEPTH;

    (void)turn;
    for (uint32_t k = 0; k < n_k; k += 16, tiles += CPU_TILES_FP32 / 2) {
        __m512i t[16];

        if (s->n_rows >= 16 && k + 16 <= s->n_cols) {
            CPU_TILES_UNROLL
            for (uint32_t r = 0; r < 16; r++)
                t[r] = _mm512_loadu_si512(s->src + r * s->ld + k);
        } else {
            for (uint32_t r = 0; r < 16; r++)
                t[r] = load_words(s, r, k);
        }
        cpu_tiles_turn_over(t);
        CPU_TILES_UNROLL
        for (size_t i = 0; i < 16; i++)
            _mm512_storeu_si512(tiles + i * 32, t[i]);
    }
}

FMA_TARGET void cpu_tiles_fma_pairs(const struct cpu_tiles_source *s, enum cpu_tiles_turn turn,
                                    uint16_t *tiles, size_t stride)
{
    (void)turn;
    for (uint32_t col = 0; col < s->n_cols; col += 16, tiles += stride)
        if (s->n_rows >= CPU_TILES_DEPTH && col + 16 <= s->n_cols)
            for (size_t k = 0; k < CPU_TILES_DEPTH; k++)
                _mm512_storeu_si512(tiles + k * 32,
                                    _mm512_loadu_si512(s->src + k * s->ld + col));
        else
            for (uint32_t k = 0; k < CPU_TILES_DEPTH; k++)
                _mm512_storeu_si512(tiles + (size_t)k * 32, load_words(s, k, col));
}

/* c [8][16 width] += the products of n_k numbers of k. Strides are in floats. */
FMA_INLINE void block(const float *a, const float *b, size_t b_stride, int width, uint32_t n_k,
                      enum cpu_tiles_start start, float *c, size_t ldc)
{
    __m512 sum[ROWS][PANELS];

    CPU_TILES_UNROLL
    for (int r = 0; r < ROWS; r++)
        for (int w = 0; w < width; w++)
            sum[r][w] = start == CPU_TILES_ADD ? _mm512_loadu_ps(c + (size_t)r * ldc + 16 * w)
                                               : _mm512_setzero_ps();
    for (uint32_t k = 0; k < n_k; k++, a += 16, b += 16) {
        __m512 v[PANELS];

        for (int w = 0; w < width; w++)
            v[w] = _mm512_loadu_ps(b + (size_t)w * b_stride);
        CPU_TILES_UNROLL
        for (int r = 0; r < ROWS; r++) {
            const __m512 x = _mm512_set1_ps(a[r]);

            for (int w = 0; w < width; w++)
                sum[r][w] = _mm512_fmadd_ps(x, v[w], sum[r][w]);
        }
    }
    CPU_TILES_UNROLL
    for (int r = 0; r < ROWS; r++)
        for (int w = 0; w < width; w++)
            _mm512_storeu_ps(c + (size_t)r * ldc + 16 * w, sum[r][w]);
}

/* Up to three panels of B, from tile k on. */
FMA_INLINE void columns(const struct cpu_tiles_panels *a, const float *b, size_t b_stride,
                        int width, uint32_t k, uint32_t n_k, enum cpu_tiles_start start,
                        float *c, size_t ldc)
{
    for (uint32_t i = 0; i < 16 * a->n; i += ROWS, c += ROWS * ldc) {
        const uint16_t *x = a->tiles + i / 16 * a->stride + (size_t)k * CPU_TILES_FP32;

        block((const float *)(const void *)x + i % 16, b, b_stride, width,
              n_k * CPU_TILES_DEPTH, start, c, ldc);
    }
}

FMA_TARGET void cpu_tiles_fma_multiply(const struct cpu_tiles_panels *a,
                                       const struct cpu_tiles_panels *b, uint32_t n_k,
                                       enum cpu_tiles_start start, float *c, size_t ldc)
{
    const size_t stride = b->stride / 2;

    for (uint32_t k = 0; k < n_k; k += TILES, start = CPU_TILES_ADD)
        for (uint32_t j = 0; j < b->n; j += PANELS) {
            const uint16_t *tiles = b->tiles + j * b->stride + (size_t)k * CPU_TILES_FP32;
            const float *y = (const float *)(const void *)tiles;
            const uint32_t n = n_k - k < TILES ? n_k - k : TILES;
            float *at = c + 16 * (size_t)j;

            if (b->n - j >= 3)
                columns(a, y, stride, 3, k, n, start, at, ldc);
            else if (b->n - j == 2)
                columns(a, y, stride, 2, k, n, start, at, ldc);
            else
                columns(a, y, stride, 1, k, n, start, at, ldc);
        }
}

#else
typedef int cpu_tiles_fma_is_for_x86_64;
#endif
