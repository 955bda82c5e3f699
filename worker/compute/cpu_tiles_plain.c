/* The kernels in plain C: what the processor's own instructions are documented to do, number by
 * number. Tests hold the kernels to it. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "worker/compute/cpu_tiles_kernels.h"

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
static uint16_t at(const struct cpu_tiles_source *s, uint32_t row, uint32_t col)
{
    return row < s->n_rows && col < s->n_cols ? round_to_bf16(s->src[row * s->ld + col]) : 0;
}

static size_t place(enum cpu_tiles_turn turn, uint32_t row, uint32_t word)
{
    return 2 * (turn == CPU_TILES_TURNED ? (size_t)word * 16 + row : (size_t)row * 16 + word);
}

void cpu_tiles_plain_rows_bf16(const struct cpu_tiles_source *s, enum cpu_tiles_turn turn,
                               uint16_t *tiles)
{
    for (uint32_t k = 0; k < s->n_cols; k += CPU_TILES_DEPTH, tiles += CPU_TILES_BF16)
        for (uint32_t r = 0; r < 16; r++)
            for (uint32_t w = 0; w < 16; w++) {
                tiles[place(turn, r, w)] = at(s, r, k + 2 * w);
                tiles[place(turn, r, w) + 1] = at(s, r, k + 2 * w + 1);
            }
}

void cpu_tiles_plain_pairs_bf16(const struct cpu_tiles_source *s, enum cpu_tiles_turn turn,
                                uint16_t *tiles, size_t stride)
{
    for (uint32_t col = 0; col < s->n_cols; col += 16, tiles += stride)
        for (uint32_t p = 0; p < 16; p++)
            for (uint32_t w = 0; w < 16; w++) {
                tiles[place(turn, p, w)] = at(s, 2 * p, col + w);
                tiles[place(turn, p, w) + 1] = at(s, 2 * p + 1, col + w);
            }
}

static float float_at(const struct cpu_tiles_source *s, uint32_t row, uint32_t col)
{
    return row < s->n_rows && col < s->n_cols ? s->src[row * s->ld + col] : 0;
}

/* A's tiles and B's look the same. */
void cpu_tiles_plain_rows_fp32(const struct cpu_tiles_source *s, enum cpu_tiles_turn turn,
                               uint16_t *tiles)
{
    float *to = (float *)(void *)tiles;

    (void)turn;
    for (uint32_t k = 0; k < (s->n_cols + 31) / 32 * 32; k++)
        for (uint32_t r = 0; r < 16; r++)
            *to++ = float_at(s, r, k);
}

void cpu_tiles_plain_pairs_fp32(const struct cpu_tiles_source *s, enum cpu_tiles_turn turn,
                                uint16_t *tiles, size_t stride)
{
    (void)turn;
    for (uint32_t col = 0; col < s->n_cols; col += 16, tiles += stride) {
        float *to = (float *)(void *)tiles;

        for (uint32_t k = 0; k < CPU_TILES_DEPTH; k++)
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

    for (uint32_t k = 0; k < CPU_TILES_DEPTH; k += 2) {
        even = add_product(even, a, b, k);
        odd = add_product(odd, a, b, k + 1);
    }
    return flush(flush(c) + flush(even + odd));
}

static float dot_tile(float c, const uint16_t *a, const uint16_t *b)
{
    for (uint32_t k = 0; k < CPU_TILES_DEPTH; k += 2) {
        c = add_product(c, a, b, k + 1);
        c = add_product(c, a, b, k);
    }
    return c;
}

static float fma_tile(float c, const uint16_t *a, const uint16_t *b)
{
    const float *x = (const float *)(const void *)a, *y = (const float *)(const void *)b;

    for (uint32_t k = 0; k < CPU_TILES_DEPTH; k++)
        c = fmaf(x[16 * k], y[16 * k], c);
    return c;
}

/* How the tiles are cut: from one to the next, from row to row of A, from column to column
 * of B. */
struct cut {
    uint32_t tile, row, column;
    float (*sum)(float c, const uint16_t *a, const uint16_t *b); /* c and one tile of each */
};

static void multiply(const struct cpu_tiles_panels *a, const struct cpu_tiles_panels *b,
                     uint32_t n_k, enum cpu_tiles_start start, float *c, size_t ldc,
                     const struct cut *cut)
{
    for (uint32_t i = 0; i < 16 * a->n; i++)
        for (uint32_t j = 0; j < 16 * b->n; j++) {
            const uint16_t *x = a->tiles + i / 16 * a->stride + (size_t)(i % 16) * cut->row;
            const uint16_t *y = b->tiles + j / 16 * b->stride + (size_t)(j % 16) * cut->column;
            float *sum = c + i * ldc + j;

            if (start == CPU_TILES_SET)
                *sum = 0;
            for (size_t k = 0; k < n_k; k++)
                *sum = cut->sum(*sum, x + k * cut->tile, y + k * cut->tile);
        }
}

void cpu_tiles_plain_fma(const struct cpu_tiles_panels *a, const struct cpu_tiles_panels *b,
                         uint32_t n_k, enum cpu_tiles_start start, float *c, size_t ldc)
{
    multiply(a, b, n_k, start, c, ldc, &(struct cut){ CPU_TILES_FP32, 2, 2, fma_tile });
}

void cpu_tiles_plain_amx(const struct cpu_tiles_panels *a, const struct cpu_tiles_panels *b,
                         uint32_t n_k, enum cpu_tiles_start start, float *c, size_t ldc)
{
    multiply(a, b, n_k, start, c, ldc, &(struct cut){ CPU_TILES_BF16, 32, 2, amx_tile });
}

void cpu_tiles_plain_dot(const struct cpu_tiles_panels *a, const struct cpu_tiles_panels *b,
                         uint32_t n_k, enum cpu_tiles_start start, float *c, size_t ldc)
{
    multiply(a, b, n_k, start, c, ldc, &(struct cut){ CPU_TILES_BF16, 32, 2, dot_tile });
}
