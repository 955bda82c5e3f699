#include "worker/data/row_words.h"

#include <assert.h>

static inline size_t whole_steps(uint32_t n)
{
    return ((size_t)n + ROW_WORDS_STEP - 1) / ROW_WORDS_STEP * ROW_WORDS_STEP;
}

static inline uint64_t rotate_left(uint64_t x, unsigned n)
{
    return x << n | x >> (64 - n);
}

/* The digits go to the word's upper end, zeros before them; then neighbours are joined, in
 * pairs, fours and eights. */
static inline uint64_t integer_of(uint64_t word, uint64_t len)
{
    const uint64_t zeros = UINT64_C(0x3030303030303030), top = UINT64_C(0xf0f0f0f0f0f0f0f0);
    uint64_t first = len ? word & 0xff : 0, minus = first == '-' ? 1 : 0, x, odd,
             n = len > 8 ? 0 : len - minus, nothing = n ? 0 : minus;

    /* In two steps: n may be 0, and a shift by 64 is none. */
    x = word >> 8 * minus << (32 - 4 * n) << (32 - 4 * n);
    x |= zeros >> 4 * n >> 4 * n;
    odd = ((x & top) ^ zeros) | (((x + UINT64_C(0x0606060606060606)) & top) ^ zeros);
    odd |= len > 8 ? 1 : nothing;
    x = ((x & UINT64_C(0x0f0f0f0f0f0f0f0f)) * 2561) >> 8;
    x = ((x & UINT64_C(0x00ff00ff00ff00ff)) * 6553601) >> 16;
    x = ((x & UINT64_C(0x0000ffff0000ffff)) * UINT64_C(42949672960001)) >> 32;
    x = minus ? 0 : x;
    return odd ? ROW_WORDS_NO_INTEGER : x;
}

SIMD_INLINE void integers(struct row_words *w, uint32_t n)
{
    const size_t n_whole = whole_steps(n);

    for (size_t i = 0; i < n_whole; i++)
        w->values[i] = integer_of(w->words[i], w->lens[i]);
}

/* xxHash, XXH3_len_4to8_64b and XXH3_rrmxmx. */
static inline uint64_t key_of(uint64_t word, uint64_t len, uint64_t flip)
{
    const uint64_t prime = UINT64_C(0x9fb21c651e98df25);
    uint64_t h = word ^ flip;

    h ^= rotate_left(h, 49) ^ rotate_left(h, 24);
    h *= prime;
    h ^= (h >> 35) + len;
    h *= prime;
    return h ^ h >> 28;
}

SIMD_INLINE void keys(struct row_words *w, const uint64_t *flips, const uint64_t *missing,
                      uint32_t n)
{
    const size_t n_whole = whole_steps(n);

    for (size_t i = 0; i < n_whole; i++) {
        uint64_t key = key_of(w->words[i], w->lens[i], flips[i]);

        w->values[i] = w->lens[i] ? key : missing[i];
    }
}

/* XXH3's default secret, bytes 8 to 23, are the two words. */
uint64_t row_words_flip(uint32_t field)
{
    uint64_t seed = field ^ (uint64_t)__builtin_bswap32(field) << 32;

    return (UINT64_C(0x1cad21f72c81017c) ^ UINT64_C(0xdb979083e96dd4de)) - seed;
}

#define KERNELS(build, target)                                                  \
    target static void integers_##build(struct row_words *w, uint32_t n)        \
    {                                                                           \
        integers(w, n);                                                         \
    }                                                                           \
    target static void keys_##build(struct row_words *w, const uint64_t *flips, \
                                    const uint64_t *missing, uint32_t n)        \
    {                                                                           \
        keys(w, flips, missing, n);                                             \
    }

KERNELS(plain, SIMD_TARGET_PLAIN)
KERNELS(avx2, SIMD_TARGET_AVX2)
KERNELS(avx512, SIMD_TARGET_AVX512)

const struct row_words_kernels *row_words_kernels(enum simd build)
{
    static const struct row_words_kernels kernels[SIMD_END] = {
        [SIMD_PLAIN] = { integers_plain, keys_plain },
        [SIMD_AVX2] = { integers_avx2, keys_avx2 },
        [SIMD_AVX512] = { integers_avx512, keys_avx512 },
    };

    assert(build < SIMD_END);
    return &kernels[build];
}
