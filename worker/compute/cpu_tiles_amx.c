/* Products with the tile unit (Intel AMX): two panels of A times two of B, four tiles of
 * sums. */
#include "worker/compute/cpu_tiles_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define AMX_TARGET __attribute__((target("avx512f,amx-tile,amx-bf16")))
#define AMX_INLINE AMX_TARGET static inline __attribute__((always_inline))

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
AMX_INLINE void block_2x2(const uint16_t *a, size_t a_stride, const uint16_t *b,
                          size_t b_stride, uint32_t n_k)
{
    for (uint32_t k = 0; k < n_k; k++, a += CPU_TILES_BF16, b += CPU_TILES_BF16) {
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

AMX_INLINE void block_1x2(const uint16_t *a, const uint16_t *b, size_t b_stride, uint32_t n_k)
{
    for (uint32_t k = 0; k < n_k; k++, a += CPU_TILES_BF16, b += CPU_TILES_BF16) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_loadd(7, b + b_stride, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    }
}

AMX_INLINE void block_2x1(const uint16_t *a, size_t a_stride, const uint16_t *b, uint32_t n_k)
{
    for (uint32_t k = 0; k < n_k; k++, a += CPU_TILES_BF16, b += CPU_TILES_BF16) {
        _tile_loadd(4, a, 64);
        _tile_loadd(5, a + a_stride, 64);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 5, 6);
    }
}

AMX_INLINE void block_1x1(const uint16_t *a, const uint16_t *b, uint32_t n_k)
{
    for (uint32_t k = 0; k < n_k; k++, a += CPU_TILES_BF16, b += CPU_TILES_BF16) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
    }
}

AMX_INLINE void load_sums(uint32_t n_a, uint32_t n_b, enum cpu_tiles_start start,
                          const float *c, size_t ldc)
{
    const size_t bytes = ldc * sizeof *c;

    if (start == CPU_TILES_SET) {
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

AMX_TARGET void cpu_tiles_amx_multiply(const struct cpu_tiles_panels *a,
                                       const struct cpu_tiles_panels *b, uint32_t n_k,
                                       enum cpu_tiles_start start, float *c, size_t ldc)
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
                block_2x2(x, a->stride, y, b->stride, n_k);
            else if (n_a > 1)
                block_2x1(x, a->stride, y, n_k);
            else if (n_b > 1)
                block_1x2(x, y, b->stride, n_k);
            else
                block_1x1(x, y, n_k);
            store_sums(n_a, n_b, at, ldc);
        }
    _tile_release();
    MEMORY_FENCE();
}

#else
typedef int cpu_tiles_amx_is_for_x86_64;
#endif
