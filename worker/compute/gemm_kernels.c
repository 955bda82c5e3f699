/* GEMM kernels: their plain versions first, then packing and products with AVX-512, AVX512-BF16 and AMX, then the list
 * of them. A function with a target attribute runs only where runs_*() has said so. */
#include "worker/compute/gemm_kernels.h"

#include <float.h>
#include <math.h>
#include <string.h>

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- plain versions: the instructions' documented arithmetic, number by number ---- */

static uint16_t round_to_bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40); /* NaN, quiet */
    if ((u & 0x7f800000) == 0)
        return (uint16_t)(u >> 16 & 0x8000);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* 0 past the source's end. */
static uint16_t bf16_at(const struct gemm_kernels_source *s, uint32_t row, uint32_t col)
{
    return row < s->n_rows && col < s->n_cols ? round_to_bf16(s->src[row * s->ld + col]) : 0;
}

static size_t index_of(enum gemm_kernels_layout layout, uint32_t row, uint32_t word)
{
    return 2 * (layout == GEMM_KERNELS_TRANSPOSED ? (size_t)word * 16 + row
                                                  : (size_t)row * 16 + word);
}

static void plain_rows_bf16(const struct gemm_kernels_source *s,
                            enum gemm_kernels_layout layout, uint16_t *tiles)
{
    for (uint32_t k = 0; k < s->n_cols; k += GEMM_KERNELS_DEPTH, tiles += GEMM_KERNELS_BF16)
        for (uint32_t r = 0; r < 16; r++)
            for (uint32_t w = 0; w < 16; w++) {
                tiles[index_of(layout, r, w)] = bf16_at(s, r, k + 2 * w);
                tiles[index_of(layout, r, w) + 1] = bf16_at(s, r, k + 2 * w + 1);
            }
}

static void plain_pairs_bf16(const struct gemm_kernels_source *s,
                             enum gemm_kernels_layout layout, uint16_t *tiles, size_t stride)
{
    for (uint32_t col = 0; col < s->n_cols; col += 16, tiles += stride)
        for (uint32_t p = 0; p < 16; p++)
            for (uint32_t w = 0; w < 16; w++) {
                tiles[index_of(layout, p, w)] = bf16_at(s, 2 * p, col + w);
                tiles[index_of(layout, p, w) + 1] = bf16_at(s, 2 * p + 1, col + w);
            }
}

static float float_at(const struct gemm_kernels_source *s, uint32_t row, uint32_t col)
{
    return row < s->n_rows && col < s->n_cols ? s->src[row * s->ld + col] : 0;
}

/* A's tiles and B's look the same. */
static void plain_rows_fp32(const struct gemm_kernels_source *s,
                            enum gemm_kernels_layout layout, uint16_t *tiles)
{
    float *to = (float *)(void *)tiles;

    (void)layout;
    for (uint32_t k = 0; k < (s->n_cols + 31) / 32 * 32; k++)
        for (uint32_t r = 0; r < 16; r++)
            *to++ = float_at(s, r, k);
}

static void plain_pairs_fp32(const struct gemm_kernels_source *s,
                             enum gemm_kernels_layout layout, uint16_t *tiles, size_t stride)
{
    (void)layout;
    for (uint32_t col = 0; col < s->n_cols; col += 16, tiles += stride) {
        float *to = (float *)(void *)tiles;

        for (uint32_t k = 0; k < GEMM_KERNELS_DEPTH; k++)
            for (uint32_t w = 0; w < 16; w++)
                *to++ = float_at(s, k, col + w);
    }
}

static float widen(uint16_t h)
{
    const uint32_t u = (uint32_t)h << 16;
    float x;

    memcpy(&x, &u, sizeof x);
    return fabsf(x) < FLT_MIN ? copysignf(0, x) : x;
}

static float flush(float x)
{
    return fabsf(x) < FLT_MIN ? copysignf(0, x) : x;
}

/* sum + element k of a's row . element k of b's column, of one tile each */
static float add_product(float sum, const uint16_t *a, const uint16_t *b, uint32_t k)
{
    return flush(fmaf(widen(a[k]), widen(b[k / 2 * 32 + k % 2]), flush(sum)));
}

static float amx_tile(float c, const uint16_t *a, const uint16_t *b)
{
    float even = 0, odd = 0;

    for (uint32_t k = 0; k < GEMM_KERNELS_DEPTH; k += 2) {
        even = add_product(even, a, b, k);
        odd = add_product(odd, a, b, k + 1);
    }
    return flush(flush(c) + flush(even + odd));
}

static float dot_tile(float c, const uint16_t *a, const uint16_t *b)
{
    for (uint32_t k = 0; k < GEMM_KERNELS_DEPTH; k += 2) {
        c = add_product(c, a, b, k + 1);
        c = add_product(c, a, b, k);
    }
    return c;
}

static float fma_tile(float c, const uint16_t *a, const uint16_t *b)
{
    const float *x = (const float *)(const void *)a, *y = (const float *)(const void *)b;

    for (uint32_t k = 0; k < GEMM_KERNELS_DEPTH; k++)
        c = fmaf(x[16 * k], y[16 * k], c);
    return c;
}

/* How tiles lie in memory: from one to the next, from row to row of A, from column to column
 * of B. */
struct tile_strides {
    uint32_t tile, row, column;
    float (*sum)(float c, const uint16_t *a, const uint16_t *b); /* c and one tile of each */
};

static void multiply_plain(const struct gemm_kernels_panels *a,
                           const struct gemm_kernels_panels *b, uint32_t n_k,
                           enum gemm_kernels_start start, float *c, size_t ldc,
                           const struct tile_strides *strides)
{
    for (uint32_t i = 0; i < 16 * a->n; i++)
        for (uint32_t j = 0; j < 16 * b->n; j++) {
            const uint16_t *x = a->tiles + i / 16 * a->stride + (size_t)(i % 16) * strides->row;
            const uint16_t *y =
                b->tiles + j / 16 * b->stride + (size_t)(j % 16) * strides->column;
            float *sum = c + i * ldc + j;

            if (start == GEMM_KERNELS_SET)
                *sum = 0;
            for (size_t k = 0; k < n_k; k++)
                *sum = strides->sum(*sum, x + k * strides->tile, y + k * strides->tile);
        }
}

static void plain_fma(const struct gemm_kernels_panels *a, const struct gemm_kernels_panels *b,
                      uint32_t n_k, enum gemm_kernels_start start, float *c, size_t ldc)
{
    multiply_plain(a, b, n_k, start, c, ldc,
                   &(struct tile_strides){ GEMM_KERNELS_FP32, 2, 2, fma_tile });
}

static void plain_amx(const struct gemm_kernels_panels *a, const struct gemm_kernels_panels *b,
                      uint32_t n_k, enum gemm_kernels_start start, float *c, size_t ldc)
{
    multiply_plain(a, b, n_k, start, c, ldc,
                   &(struct tile_strides){ GEMM_KERNELS_BF16, 32, 2, amx_tile });
}

static void plain_dot(const struct gemm_kernels_panels *a, const struct gemm_kernels_panels *b,
                      uint32_t n_k, enum gemm_kernels_start start, float *c, size_t ldc)
{
    multiply_plain(a, b, n_k, start, c, ldc,
                   &(struct tile_strides){ GEMM_KERNELS_BF16, 32, 2, dot_tile });
}

/* ---- what the kernels share ---- */

/* In front of loops of a few turns over registers, which must not be addressed by a variable. */
#define UNROLL _Pragma("GCC unroll 16")

#define FMA_TARGET __attribute__((target("avx512f")))
#define FMA_INLINE FMA_TARGET static inline __attribute__((always_inline))
#define BF16_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define BF16_INLINE BF16_TARGET static inline __attribute__((always_inline))
#define AMX_TARGET __attribute__((target("avx512f,amx-tile,amx-bf16")))
#define AMX_INLINE AMX_TARGET static inline __attribute__((always_inline))

/* Sixteen times four shuffles: lane k of vector r becomes lane r of vector k, of 16 x 16 words. */
FMA_INLINE void transpose16(__m512i t[16])
{
    __m512i u[16];

    UNROLL
    for (int i = 0; i < 16; i += 2) {
        u[i] = _mm512_unpacklo_epi32(t[i], t[i + 1]);
        u[i + 1] = _mm512_unpackhi_epi32(t[i], t[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 16; i += 4) {
        t[i] = _mm512_unpacklo_epi64(u[i], u[i + 2]);
        t[i + 1] = _mm512_unpackhi_epi64(u[i], u[i + 2]);
        t[i + 2] = _mm512_unpacklo_epi64(u[i + 1], u[i + 3]);
        t[i + 3] = _mm512_unpackhi_epi64(u[i + 1], u[i + 3]);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        u[i] = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88);
        u[i + 4] = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd);
        u[i + 8] = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);
        u[i + 12] = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(u[i], u[i + 8], 0x88);
        t[i + 8] = _mm512_shuffle_i32x4(u[i], u[i + 8], 0xdd);
        t[i + 4] = _mm512_shuffle_i32x4(u[i + 4], u[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(u[i + 4], u[i + 12], 0xdd);
    }
}

/* ---- fp32: packing and products with AVX-512 ---- */

/* Eight rows of A, a number broadcast from each, times 48 columns of B. The 24 sums, three registers of B and one of A
 * hide the latency of a multiply-add twice over. */
enum {
    FMA_ROWS = 8,
    FMA_PANELS = 3, /* of B, at a time */
    FMA_TILES = 4 /* of each of them that stay in the first-level cache while A's rows go by */
};

FMA_INLINE __m512i load_words(const struct gemm_kernels_source *s, uint32_t row, uint32_t col)
{
    const uint32_t n = row < s->n_rows && col < s->n_cols ? s->n_cols - col : 0;
    const __mmask16 lanes = (__mmask16)(n < 16 ? (1u << n) - 1 : 0xffff);

    return n ? _mm512_maskz_loadu_epi32(lanes, s->src + row * s->ld + col)
             : _mm512_setzero_si512();
}

FMA_TARGET static void fma_rows(const struct gemm_kernels_source *s,
                                enum gemm_kernels_layout layout, uint16_t *tiles)
{
    const uint32_t n_k =
        (s->n_cols + GEMM_KERNELS_DEPTH - 1) / GEMM_KERNELS_DEPTH * GEMM_KERNELS_DEPTH;

    (void)layout;
    for (uint32_t k = 0; k < n_k; k += 16, tiles += GEMM_KERNELS_FP32 / 2) {
        __m512i t[16];

        if (s->n_rows >= 16 && k + 16 <= s->n_cols) {
            UNROLL
            for (uint32_t r = 0; r < 16; r++)
                t[r] = _mm512_loadu_si512(s->src + r * s->ld + k);
        } else {
            for (uint32_t r = 0; r < 16; r++)
                t[r] = load_words(s, r, k);
        }
        transpose16(t);
        UNROLL
        for (size_t i = 0; i < 16; i++)
            _mm512_storeu_si512(tiles + i * 32, t[i]);
    }
}

FMA_TARGET static void fma_pairs(const struct gemm_kernels_source *s,
                                 enum gemm_kernels_layout layout, uint16_t *tiles,
                                 size_t stride)
{
    (void)layout;
    for (uint32_t col = 0; col < s->n_cols; col += 16, tiles += stride)
        if (s->n_rows >= GEMM_KERNELS_DEPTH && col + 16 <= s->n_cols)
            for (size_t k = 0; k < GEMM_KERNELS_DEPTH; k++)
                _mm512_storeu_si512(tiles + k * 32,
                                    _mm512_loadu_si512(s->src + k * s->ld + col));
        else
            for (uint32_t k = 0; k < GEMM_KERNELS_DEPTH; k++)
                _mm512_storeu_si512(tiles + (size_t)k * 32, load_words(s, k, col));
}

/* c [8][16 width] += the products of n_k numbers of k. Strides are in floats. */
FMA_INLINE void fma_block(const float *a, const float *b, size_t b_stride, int width,
                          uint32_t n_k, enum gemm_kernels_start start, float *c, size_t ldc)
{
    __m512 sum[FMA_ROWS][FMA_PANELS];

    UNROLL
    for (int r = 0; r < FMA_ROWS; r++)
        for (int w = 0; w < width; w++)
            sum[r][w] = start == GEMM_KERNELS_ADD
                            ? _mm512_loadu_ps(c + (size_t)r * ldc + 16 * w)
                            : _mm512_setzero_ps();
    for (uint32_t k = 0; k < n_k; k++, a += 16, b += 16) {
        __m512 v[FMA_PANELS];

        for (int w = 0; w < width; w++)
            v[w] = _mm512_loadu_ps(b + (size_t)w * b_stride);
        UNROLL
        for (int r = 0; r < FMA_ROWS; r++) {
            const __m512 x = _mm512_set1_ps(a[r]);

            for (int w = 0; w < width; w++)
                sum[r][w] = _mm512_fmadd_ps(x, v[w], sum[r][w]);
        }
    }
    UNROLL
    for (int r = 0; r < FMA_ROWS; r++)
        for (int w = 0; w < width; w++)
            _mm512_storeu_ps(c + (size_t)r * ldc + 16 * w, sum[r][w]);
}

/* Up to three panels of B, from tile k on. */
FMA_INLINE void fma_columns(const struct gemm_kernels_panels *a, const float *b,
                            size_t b_stride, int width, uint32_t k, uint32_t n_k,
                            enum gemm_kernels_start start, float *c, size_t ldc)
{
    for (uint32_t i = 0; i < 16 * a->n; i += FMA_ROWS, c += FMA_ROWS * ldc) {
        const uint16_t *x = a->tiles + i / 16 * a->stride + (size_t)k * GEMM_KERNELS_FP32;

        fma_block((const float *)(const void *)x + i % 16, b, b_stride, width,
                  n_k * GEMM_KERNELS_DEPTH, start, c, ldc);
    }
}

FMA_TARGET static void fma_multiply(const struct gemm_kernels_panels *a,
                                    const struct gemm_kernels_panels *b, uint32_t n_k,
                                    enum gemm_kernels_start start, float *c, size_t ldc)
{
    const size_t stride = b->stride / 2;

    for (uint32_t k = 0; k < n_k; k += FMA_TILES, start = GEMM_KERNELS_ADD)
        for (uint32_t j = 0; j < b->n; j += FMA_PANELS) {
            const uint16_t *tiles = b->tiles + j * b->stride + (size_t)k * GEMM_KERNELS_FP32;
            const float *y = (const float *)(const void *)tiles;
            const uint32_t n = n_k - k < FMA_TILES ? n_k - k : FMA_TILES;
            float *at = c + 16 * (size_t)j;

            if (b->n - j >= 3)
                fma_columns(a, y, stride, 3, k, n, start, at, ldc);
            else if (b->n - j == 2)
                fma_columns(a, y, stride, 2, k, n, start, at, ldc);
            else
                fma_columns(a, y, stride, 1, k, n, start, at, ldc);
        }
}

/* ---- bf16: rounding and packing with AVX512-BF16, for both kernels below ---- */

BF16_INLINE void store_tile(__m512i t[16], enum gemm_kernels_layout layout, uint16_t *tile)
{
    if (layout == GEMM_KERNELS_TRANSPOSED)
        transpose16(t);
    UNROLL
    for (int i = 0; i < 16; i++)
        _mm512_storeu_si512(tile + (size_t)i * 32, t[i]);
}

BF16_INLINE __mmask16 first_lanes(uint32_t n)
{
    return (__mmask16)(n < 16 ? (1u << n) - 1 : 0xffff);
}

/* A row that there is not is read as nothing. */
BF16_INLINE __m512 load_floats(const struct gemm_kernels_source *s, uint32_t row, uint32_t col)
{
    const uint32_t n = row < s->n_rows && col < s->n_cols ? s->n_cols - col : 0;

    return n ? _mm512_maskz_loadu_ps(first_lanes(n), s->src + row * s->ld + col)
             : _mm512_setzero_ps();
}

BF16_INLINE __m512i round_pair(__m512 low, __m512 high)
{
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

BF16_INLINE bool is_whole(const struct gemm_kernels_source *s, uint32_t n_rows,
                          uint32_t end_col)
{
    return s->n_rows >= n_rows && end_col <= s->n_cols;
}

BF16_INLINE __m512 load_whole(const struct gemm_kernels_source *s, uint32_t row, uint32_t col)
{
    return _mm512_loadu_ps(s->src + row * s->ld + col);
}

BF16_TARGET static void bf16_rows(const struct gemm_kernels_source *s,
                                  enum gemm_kernels_layout layout, uint16_t *tiles)
{
    for (uint32_t k = 0; k < s->n_cols; k += GEMM_KERNELS_DEPTH, tiles += GEMM_KERNELS_BF16) {
        __m512i t[16];

        if (is_whole(s, 16, k + GEMM_KERNELS_DEPTH)) {
            UNROLL
            for (uint32_t r = 0; r < 16; r++)
                t[r] = round_pair(load_whole(s, r, k), load_whole(s, r, k + 16));
        } else {
            for (uint32_t r = 0; r < 16; r++)
                t[r] = round_pair(load_floats(s, r, k), load_floats(s, r, k + 16));
        }
        store_tile(t, layout, tiles);
    }
}

/* Low halves of sixteen words from the first half of the vector, high halves from the
 * second. */
BF16_INLINE __m512i interleave(__m512i v)
{
    const __m512i lanes =
        _mm512_set_epi32(0x001f000f, 0x001e000e, 0x001d000d, 0x001c000c, 0x001b000b, 0x001a000a,
                         0x00190009, 0x00180008, 0x00170007, 0x00160006, 0x00150005, 0x00140004,
                         0x00130003, 0x00120002, 0x00110001, 0x00100000);

    return _mm512_permutexvar_epi16(lanes, v);
}

BF16_TARGET static void bf16_pairs(const struct gemm_kernels_source *s,
                                   enum gemm_kernels_layout layout, uint16_t *tiles,
                                   size_t stride)
{
    for (uint32_t col = 0; col < s->n_cols; col += 16, tiles += stride) {
        __m512i t[16];

        if (is_whole(s, 32, col + 16)) {
            UNROLL
            for (uint32_t p = 0; p < 16; p++)
                t[p] = interleave(
                    round_pair(load_whole(s, 2 * p, col), load_whole(s, 2 * p + 1, col)));
        } else {
            for (uint32_t p = 0; p < 16; p++)
                t[p] = interleave(
                    round_pair(load_floats(s, 2 * p, col), load_floats(s, 2 * p + 1, col)));
        }
        store_tile(t, layout, tiles);
    }
}

/* ---- bf16: products with AVX512-BF16: eight rows of A, a pair of k broadcast from each, times 32 columns of B ---- */

enum { DOT_ROWS = 8 }; /* of A, at a time */

BF16_INLINE __m512i pair_of(const uint16_t *a)
{
    int32_t pair;

    memcpy(&pair, a, sizeof pair);
    return _mm512_set1_epi32(pair);
}

/* c [8][16 width] of one or two panels of B. */
BF16_INLINE void dot_block(const uint16_t *a, const uint16_t *b, size_t b_stride, int width,
                           uint32_t n_k, enum gemm_kernels_start start, float *c, size_t ldc)
{
    __m512 sum[DOT_ROWS][2];

    UNROLL
    for (int r = 0; r < DOT_ROWS; r++)
        for (int w = 0; w < width; w++)
            sum[r][w] = start == GEMM_KERNELS_ADD
                            ? _mm512_loadu_ps(c + (size_t)r * ldc + 16 * w)
                            : _mm512_setzero_ps();
    for (uint32_t k = 0; k < n_k;
         k++, a += GEMM_KERNELS_BF16 - 32, b += GEMM_KERNELS_BF16 - 512)
        for (uint32_t p = 0; p < 16; p++, a += 2, b += 32) {
            __m512i v[2];

            for (int w = 0; w < width; w++)
                v[w] = _mm512_loadu_si512(b + (size_t)w * b_stride);
            UNROLL
            for (int r = 0; r < DOT_ROWS; r++)
                for (int w = 0; w < width; w++)
                    sum[r][w] = _mm512_dpbf16_ps(
                        sum[r][w], (__m512bh)pair_of(a + (size_t)r * 32), (__m512bh)v[w]);
        }
    UNROLL
    for (int r = 0; r < DOT_ROWS; r++)
        for (int w = 0; w < width; w++)
            _mm512_storeu_ps(c + (size_t)r * ldc + 16 * w, sum[r][w]);
}

BF16_TARGET static void dot_multiply(const struct gemm_kernels_panels *a,
                                     const struct gemm_kernels_panels *b, uint32_t n_k,
                                     enum gemm_kernels_start start, float *c, size_t ldc)
{
    for (uint32_t j = 0; j < b->n; j += 2)
        for (uint32_t i = 0; i < 16 * a->n; i += DOT_ROWS) {
            const uint16_t *x = a->tiles + i / 16 * a->stride + (size_t)(i % 16) * 32;
            const uint16_t *y = b->tiles + j * b->stride;
            float *at = c + i * ldc + 16 * (size_t)j;

            if (j + 1 < b->n)
                dot_block(x, y, b->stride, 2, n_k, start, at, ldc);
            else
                dot_block(x, y, b->stride, 1, n_k, start, at, ldc);
        }
}

/* ---- bf16: products with the tile unit (Intel AMX): two panels of A times two of B, four tiles of sums ---- */

/* What ldtilecfg reads: eight tiles of sixteen rows of 64 bytes. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static const struct tile_config whole_tiles = {
    .palette = 1,
    .row_bytes = { 64, 64, 64, 64, 64, 64, 64, 64 },
    .rows = { 16, 16, 16, 16, 16, 16, 16, 16 },
};

/* The tile instructions are opaque to gcc, which may move stores of arrays past them. */
#define MEMORY_FENCE() __asm__ volatile("" ::: "memory")

/* Sums: tiles 0 to 3, of A's panel i and B's panel j at 2 i + j. */
AMX_INLINE void amx_block_2x2(const uint16_t *a, size_t a_stride, const uint16_t *b,
                              size_t b_stride, uint32_t n_k)
{
    for (uint32_t k = 0; k < n_k; k++, a += GEMM_KERNELS_BF16, b += GEMM_KERNELS_BF16) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_loadd(7, b + b_stride, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, a + a_stride, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

AMX_INLINE void amx_block_1x2(const uint16_t *a, const uint16_t *b, size_t b_stride,
                              uint32_t n_k)
{
    for (uint32_t k = 0; k < n_k; k++, a += GEMM_KERNELS_BF16, b += GEMM_KERNELS_BF16) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_loadd(7, b + b_stride, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    }
}

AMX_INLINE void amx_block_2x1(const uint16_t *a, size_t a_stride, const uint16_t *b,
                              uint32_t n_k)
{
    for (uint32_t k = 0; k < n_k; k++, a += GEMM_KERNELS_BF16, b += GEMM_KERNELS_BF16) {
        _tile_loadd(4, a, 64);
        _tile_loadd(5, a + a_stride, 64);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
    }
}

AMX_INLINE void amx_block_1x1(const uint16_t *a, const uint16_t *b, uint32_t n_k)
{
    for (uint32_t k = 0; k < n_k; k++, a += GEMM_KERNELS_BF16, b += GEMM_KERNELS_BF16) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
    }
}

AMX_INLINE void load_sums(uint32_t n_a, uint32_t n_b, enum gemm_kernels_start start,
                          const float *c, size_t ldc)
{
    const size_t bytes = ldc * sizeof *c;

    if (start == GEMM_KERNELS_SET) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        return;
    }
    _tile_loadd(0, c, bytes);
    if (n_b > 1)
        _tile_loadd(1, c + 16, bytes);
    if (n_a > 1)
        _tile_loadd(2, c + 16 * ldc, bytes);
    if (n_a > 1 && n_b > 1)
        _tile_loadd(3, c + 16 * ldc + 16, bytes);
}

AMX_INLINE void store_sums(uint32_t n_a, uint32_t n_b, float *c, size_t ldc)
{
    const size_t bytes = ldc * sizeof *c;

    _tile_stored(0, c, bytes);
    if (n_b > 1)
        _tile_stored(1, c + 16, bytes);
    if (n_a > 1)
        _tile_stored(2, c + 16 * ldc, bytes);
    if (n_a > 1 && n_b > 1)
        _tile_stored(3, c + 16 * ldc + 16, bytes);
}

AMX_TARGET static void amx_multiply(const struct gemm_kernels_panels *a,
                                    const struct gemm_kernels_panels *b, uint32_t n_k,
                                    enum gemm_kernels_start start, float *c, size_t ldc)
{
    MEMORY_FENCE();
    _tile_loadconfig(&whole_tiles);
    for (uint32_t i = 0; i < a->n; i += 2)
        for (uint32_t j = 0; j < b->n; j += 2) {
            const uint32_t n_a = a->n - i, n_b = b->n - j;
            const uint16_t *x = a->tiles + i * a->stride, *y = b->tiles + j * b->stride;
            float *at = c + 16 * (i * ldc + j);

            load_sums(n_a, n_b, start, at, ldc);
            if (n_a > 1 && n_b > 1)
                amx_block_2x2(x, a->stride, y, b->stride, n_k);
            else if (n_a > 1)
                amx_block_2x1(x, a->stride, y, n_k);
            else if (n_b > 1)
                amx_block_1x2(x, y, b->stride, n_k);
            else
                amx_block_1x1(x, y, n_k);
            store_sums(n_a, n_b, at, ldc);
        }
    _tile_release();
    MEMORY_FENCE();
}

/* ---- the list ---- */

/* arch_prctl(2): the tile unit's registers are 8 KiB a thread, which Linux (since 5.16)
 * keeps for a process that has asked; its threads inherit the answer. */
enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

static bool runs_dot(void)
{
    unsigned a = 0, b = 0, c = 0, d = 0;

    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __get_cpuid_count(7, 1, &a, &b, &c, &d) && a & 1u << 5;
}

static bool runs_amx(void)
{
    const unsigned tile_and_bf16 = 1u << 24 | 1u << 22;
    unsigned a = 0, b = 0, c = 0, d = 0;

    return runs_dot() && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           (d & tile_and_bf16) == tile_and_bf16 &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

static bool runs_fma(void)
{
    return __builtin_cpu_supports("avx512f");
}

static const struct gemm_kernels kernels[] = {
    { "amx", DEVICE_BF16, GEMM_KERNELS_BF16, runs_amx, bf16_rows, plain_rows_bf16, bf16_pairs,
      plain_pairs_bf16, amx_multiply, plain_amx },
    { "avx512_bf16", DEVICE_BF16, GEMM_KERNELS_BF16, runs_dot, bf16_rows, plain_rows_bf16,
      bf16_pairs, plain_pairs_bf16, dot_multiply, plain_dot },
    { "fma", DEVICE_FP32, GEMM_KERNELS_FP32, runs_fma, fma_rows, plain_rows_fp32, fma_pairs,
      plain_pairs_fp32, fma_multiply, plain_fma },
};

const struct gemm_kernels *gemm_kernels_at(uint32_t i)
{
    return i < COUNT_OF(kernels) ? &kernels[i] : NULL;
}

#else

const struct gemm_kernels *gemm_kernels_at(uint32_t i)
{
    (void)i;
    return NULL;
}

#endif

const struct gemm_kernels *gemm_kernels_best(enum device_products products)
{
    const struct gemm_kernels *k;

    for (uint32_t i = 0; (k = gemm_kernels_at(i)) != NULL; i++)
        if (k->products == products && k->runs())
            return k;
    return NULL;
}
