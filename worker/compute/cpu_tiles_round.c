/* Rounding and packing with AVX512-BF16: a tile is sixteen registers, and turning it over is
 * sixteen times four shuffles. */
#include "worker/compute/cpu_tiles_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "worker/compute/cpu_tiles_turn.h"

#define PACK_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")))
#define PACK_INLINE PACK_TARGET static inline __attribute__((always_inline))

PACK_INLINE void store_tile(__m512i t[16], enum cpu_tiles_turn turn, uint16_t *tile)
{
    if (turn == CPU_TILES_TURNED)
        cpu_tiles_turn_over(t);
    CPU_TILES_UNROLL
    for (int i = 0; i < 16; i++)
        _mm512_storeu_si512(tile + (size_t)i * 32, t[i]);
}

PACK_INLINE __mmask16 first_lanes(uint32_t n)
{
    return (__mmask16)(n < 16 ? (1u << n) - 1 : 0xffff);
}

/* A row that there is not is read as nothing. */
PACK_INLINE __m512 load(const struct cpu_tiles_source *s, uint32_t row, uint32_t col)
{
    const uint32_t n = row < s->n_rows && col < s->n_cols ? s->n_cols - col : 0;

    return n ? _mm512_maskz_loadu_ps(first_lanes(n), s->src + row * s->ld + col)
             : _mm512_setzero_ps();
}

PACK_INLINE __m512i round_pair(__m512 low, __m512 high)
{
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

PACK_INLINE bool is_whole(const struct cpu_tiles_source *s, uint32_t n_rows, uint32_t end_col)
{
    return s->n_rows >= n_rows && end_col <= s->n_cols;
}

PACK_INLINE __m512 load_whole(const struct cpu_tiles_source *s, uint32_t row, uint32_t col)
{
    return _mm512_loadu_ps(s->src + row * s->ld + col);
}

PACK_TARGET void cpu_tiles_round_rows(const struct cpu_tiles_source *s,
                                      enum cpu_tiles_turn turn, uint16_t *tiles)
{
    for (uint32_t k = 0; k < s->n_cols; k += CPU_TILES_DEPTH, tiles += CPU_TILES_BF16) {
        __m512i t[16];

        if (is_whole(s, 16, k + CPU_TILES_DEPTH)) {
            CPU_TILES_UNROLL
            for (uint32_t r = 0; r < 16; r++)
                t[r] = round_pair(load_whole(s, r, k), load_whole(s, r, k + 16));
        } else {
            for (uint32_t r = 0; r < 16; r++)
                t[r] = round_pair(load(s, r, k), load(s, r, k + 16));
        }
        store_tile(t, turn, tiles);
    }
}

/* Low halves of sixteen words from the first half of the vector, high halves from the
 * second. */
PACK_INLINE __m512i interleave(__m512i v)
{
    const __m512i lanes =
        _mm512_set_epi32(0x001f000f, 0x001e000e, 0x001d000d, 0x001c000c, 0x001b000b, 0x001a000a,
                         0x00190009, 0x00180008, 0x00170007, 0x00160006, 0x00150005, 0x00140004,
                         0x00130003, 0x00120002, 0x00110001, 0x00100000);

    return _mm512_permutexvar_epi16(lanes, v);
}

PACK_TARGET void cpu_tiles_round_pairs(const struct cpu_tiles_source *s,
                                       enum cpu_tiles_turn turn, uint16_t *tiles, size_t stride)
{
    for (uint32_t col = 0; col < s->n_cols; col += 16, tiles += stride) {
        __m512i t[16];

        if (is_whole(s, 32, col + 16)) {
            CPU_TILES_UNROLL
            for (uint32_t p = 0; p < 16; p++)
                t[p] = interleave(
                    round_pair(load_whole(s, 2 * p, col), load_whole(s, 2 * p + 1, col)));
        } else {
            for (uint32_t p = 0; p < 16; p++)
                t[p] = interleave(round_pair(load(s, 2 * p, col), load(s, 2 * p + 1, col)));
        }
        store_tile(t, turn, tiles);
    }
}

#else
typedef int cpu_tiles_round_is_for_x86_64;
#endif
