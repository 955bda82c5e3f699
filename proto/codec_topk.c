/* index u16[k] ascending, value f32[k]; the rest of the row is 0. */
#include <assert.h>

#include "common/status.h"
#include "proto/codec.h"
#include "proto/codec_avx512.h"

#define MAGNITUDE 0x7fffffffu
#define CANDIDATES_MAX 1024u
#define N_ROUNDS 8 /* two or three do, unless the row is in order */

static size_t row_bytes(uint32_t dim, uint32_t k)
{
    (void)dim;
    return 6 * (size_t)k;
}

SIMD_INLINE uint32_t n_at_least(const float *src, uint32_t dim, uint32_t magnitude)
{
    uint32_t n = 0;

    for (size_t i = 0; i < dim; i++)
        n += codec_bytes_magnitude(src, i) >= magnitude;
    return n;
}

/* The k-th largest magnitude, found bit by bit from the top: the largest number that at least k
 * of the magnitudes reach. 31 passes that vectorise, no memory, and no input that is slow. */
SIMD_INLINE uint32_t threshold(const float *src, uint32_t dim, uint32_t k)
{
    uint32_t found = 0;

    for (uint32_t bit = 1u << 30; bit; bit >>= 1)
        if (n_at_least(src, dim, found | bit) >= k)
            found |= bit;
    return found;
}

SIMD_INLINE void encode(const float *restrict src, uint32_t dim, uint32_t k,
                        uint8_t *restrict dst)
{
    uint8_t *values = dst + 2 * (size_t)k;
    uint32_t least, n_ties, n = 0;

    assert(k >= 1 && k <= dim && dim <= 65536);
    least = threshold(src, dim, k);
    n_ties = k - n_at_least(src, dim, least + 1);
    for (uint32_t i = 0; i < dim; i++) {
        uint32_t magnitude = codec_bytes_magnitude(src, i);

        if (magnitude < least || (magnitude == least && n_ties == 0))
            continue;
        n_ties -= magnitude == least;
        codec_bytes_put_u16(dst, n, (uint16_t)i);
        codec_bytes_put_f32(values, n, src[i]);
        n++;
    }
    assert(n == k);
}

SIMD_INLINE int decode(const uint8_t *restrict src, uint32_t dim, uint32_t k,
                       float *restrict dst)
{
    const uint8_t *values = src + 2 * (size_t)k;
    uint32_t next = 0; /* the least index that may come */

    memset(dst, 0, 4 * (size_t)dim);
    for (uint32_t i = 0; i < k; i++) {
        uint32_t at = codec_bytes_get_u16(src, i);

        if (at < next || at >= dim)
            return PS_ECODEC;
        dst[at] = codec_bytes_get_f32(values, i);
        next = at + 1;
    }
    return 0;
}

SIMD_INLINE int check(const uint8_t *restrict src, uint32_t dim, uint32_t k, uint32_t max)
{
    const uint8_t *values = src + 2 * (size_t)k;
    uint32_t next = 0, bad = 0;

    for (uint32_t i = 0; i < k; i++) {
        uint32_t at = codec_bytes_get_u16(src, i);

        if (at < next || at >= dim)
            return PS_ECODEC;
        bad |= (uint32_t)((codec_bytes_get_u32(values, i) & MAGNITUDE) > max);
        next = at + 1;
    }
    return bad ? PS_ENAN : 0;
}

/* What may still be the k-th largest: |x| of some of the row, and space for a vector that ends
 * beyond them. */
struct candidates {
    float abs[CANDIDATES_MAX + CODEC_AVX512_LANES];
    uint32_t n, k; /* the k-th largest of n is wanted */
};

SIMD_AVX512_INLINE __m512i magnitudes_avx512(const float *src, uint32_t n)
{
    return codec_avx512_magnitude(codec_avx512_get_f32(src, n));
}

/* Those of src whose magnitude is within [least, most], into c; src may be c->abs. */
SIMD_AVX512_INLINE void gather_avx512(const float *src, uint32_t n, uint32_t least,
                                      uint32_t most, struct candidates *c)
{
    const __m512i low = _mm512_set1_epi32((int32_t)least);
    const __m512i high = _mm512_set1_epi32((int32_t)most);
    uint32_t n_kept = 0;

    for (uint32_t i = 0; i < n; i += CODEC_AVX512_LANES) {
        __m512i x = magnitudes_avx512(src + i, n - i);
        __mmask16 keep = _mm512_mask_cmpge_epu32_mask(codec_avx512_mask(n - i), x, low);

        keep = _mm512_mask_cmple_epu32_mask(keep, x, high);
        _mm512_storeu_si512(c->abs + n_kept, _mm512_maskz_compress_epi32(keep, x));
        n_kept += (uint32_t)__builtin_popcount(keep);
    }
    c->n = n_kept;
}

SIMD_AVX512_INLINE uint32_t n_at_least_avx512(const float *src, uint32_t n, uint32_t magnitude)
{
    const __m512i low = _mm512_set1_epi32((int32_t)magnitude);
    uint32_t count = 0;

    for (uint32_t i = 0; i < n; i += CODEC_AVX512_LANES)
        count += (uint32_t)__builtin_popcount(_mm512_mask_cmpge_epu32_mask(
            codec_avx512_mask(n - i), magnitudes_avx512(src + i, n - i), low));
    return count;
}

/* The k-th largest of x's first n: the least of those that fewer than k are above, by comparing
 * each with each, without a branch. */
SIMD_AVX512_INLINE uint32_t rank_avx512(__m512i x, uint32_t n, uint32_t k)
{
    const __m512i one = _mm512_set1_epi32(1);
    __m512i n_above = _mm512_setzero_si512();
    __m512i from = _mm512_setr_epi32(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0);
    __mmask16 is;

    for (int turn = 1; turn < 16; turn++) {
        __mmask16 above = _mm512_cmpgt_epu32_mask(_mm512_permutexvar_epi32(from, x), x);

        n_above = _mm512_mask_add_epi32(n_above, above, n_above, one);
        from = _mm512_add_epi32(from, one);
    }
    is = _mm512_mask_cmplt_epu32_mask(codec_avx512_mask(n), n_above,
                                      _mm512_set1_epi32((int32_t)k));
    return _mm512_mask_reduce_min_epu32(is, x);
}

/* Of the first 16 that of the rank that, if all were like them, a few more than k would reach. */
SIMD_AVX512_INLINE uint32_t pivot_avx512(const struct candidates *c)
{
    uint32_t rank = 1 + (c->k * CODEC_AVX512_LANES + c->n / 2) / c->n;

    rank = rank < CODEC_AVX512_LANES ? rank : CODEC_AVX512_LANES;
    return rank_avx512(magnitudes_avx512(c->abs, CODEC_AVX512_LANES), CODEC_AVX512_LANES, rank);
}

/* Hoare's quickselect. When chance is against it, what is left goes the way of threshold(). */
SIMD_AVX512_INLINE uint32_t select_avx512(struct candidates *c)
{
    for (int round = 0; c->n > CODEC_AVX512_LANES; round++) {
        uint32_t pivot = pivot_avx512(c);
        uint32_t n_above = n_at_least_avx512(c->abs, c->n, pivot + 1);
        uint32_t n_from = n_at_least_avx512(c->abs, c->n, pivot);
        bool is_above = c->k <= n_above;

        if (!is_above && c->k <= n_from)
            return pivot;
        if (round == N_ROUNDS)
            return threshold(c->abs, c->n, c->k);
        c->k -= is_above ? 0 : n_from;
        gather_avx512(c->abs, c->n, is_above ? pivot + 1 : 0, is_above ? UINT32_MAX : pivot - 1,
                      c);
    }
    return rank_avx512(magnitudes_avx512(c->abs, c->n), c->n, c->k);
}

/* threshold(): bit by bit until what is left fits c, then by selection. */
SIMD_AVX512_INLINE uint32_t threshold_avx512(const float *src, uint32_t dim, uint32_t k)
{
    uint32_t found = 0, bit = 1u << 30, n_from = dim, n_above = 0;
    struct candidates c;

    for (; bit && n_from - n_above > CANDIDATES_MAX; bit >>= 1) {
        uint32_t n = n_at_least_avx512(src, dim, found | bit);

        if (n >= k) {
            found |= bit;
            n_from = n;
        } else {
            n_above = n;
        }
    }
    if (bit == 0)
        return found;
    gather_avx512(src, dim, found, found + (2 * bit - 1), &c);
    c.k = k - n_above;
    return select_avx512(&c);
}

/* The lowest n of the bits in `mask`. */
SIMD_INLINE uint32_t lowest(uint32_t mask, uint32_t n)
{
    uint32_t kept = 0;

    for (; mask && n; n--, mask &= mask - 1)
        kept |= mask & (0u - mask);
    return kept;
}

SIMD_TARGET_AVX512
static void encode_row_avx512(const float *restrict src, uint32_t dim, uint32_t k,
                              uint8_t *restrict dst)
{
    const __m512i lane =
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    uint8_t *values = dst + 2 * (size_t)k;
    uint32_t least, n_ties, n = 0;

    assert(k >= 1 && k <= dim && dim <= 65536);
    least = threshold_avx512(src, dim, k);
    n_ties = k - n_at_least_avx512(src, dim, least + 1);
    for (uint32_t i = 0; i < dim; i += CODEC_AVX512_LANES) {
        __m512 x = codec_avx512_get_f32(src + i, dim - i);
        __m512i abs = codec_avx512_magnitude(x), limit = _mm512_set1_epi32((int32_t)least);
        __mmask16 row = codec_avx512_mask(dim - i);
        uint32_t ties = lowest(_mm512_mask_cmpeq_epu32_mask(row, abs, limit), n_ties);
        uint32_t keep = ties | _mm512_mask_cmpgt_epu32_mask(row, abs, limit);
        uint32_t n_here = (uint32_t)__builtin_popcount(keep);
        __m512i at = _mm512_add_epi32(lane, _mm512_set1_epi32((int32_t)i));

        if (n_here == 0)
            continue;
        at = _mm512_maskz_compress_epi32((__mmask16)keep, at);
        x = _mm512_maskz_compress_ps((__mmask16)keep, x);
        _mm256_mask_storeu_epi16(dst + 2 * (size_t)n, codec_avx512_mask(n_here),
                                 _mm512_cvtepi32_epi16(at));
        _mm512_mask_storeu_ps(values + 4 * (size_t)n, codec_avx512_mask(n_here), x);
        n_ties -= (uint32_t)__builtin_popcount(ties);
        n += n_here;
    }
    assert(n == k);
}

CODEC_BUILDS_BUT_AVX512(topk, CODEC_TOPK, true)
CODEC_DECODE(_avx512, SIMD_TARGET_AVX512)
CODEC_CHECK(_avx512, SIMD_TARGET_AVX512)
CODEC_BUILD(topk, _avx512, CODEC_TOPK, true)
