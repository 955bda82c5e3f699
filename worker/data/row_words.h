/*
 * The short tokens of a row as words of 8 bytes, and what is computed from all of them at once,
 * without a branch, so that the compiler makes vectors of it: the integers that they spell, or
 * their keys. They go by ROW_WORDS_STEP: what stands between n and its next multiple is computed
 * too, to no purpose, and has to be written first.
 */
#ifndef WORKER_DATA_ROW_WORDS_H
#define WORKER_DATA_ROW_WORDS_H

#include "common/simd.h"

#define ROW_WORDS_MAX 1024u /* a multiple of ROW_WORDS_STEP */
#define ROW_WORDS_STEP 8u
#define ROW_WORDS_NO_INTEGER UINT64_MAX

/* Item i: a token's bytes in words[i], its length in lens[i], what came of it in values[i]. */
struct row_words {
    uint64_t words[ROW_WORDS_MAX], lens[ROW_WORDS_MAX], values[ROW_WORDS_MAX];
};

/*
 * words: the token's bytes, first lowest, and any others behind them, but none of them '-' where
 * lens is 0. values: an integer of at most 8 digits; 0 for one with a minus and for a length of
 * 0; ROW_WORDS_NO_INTEGER for anything else, and for every length over 8.
 */
typedef void row_words_integers_fn(struct row_words *w, uint32_t n);

/*
 * words: last 4 bytes + (first 4 bytes << 32) of a token of 4 to 8 bytes. values: its
 * XXH3_64bits_withSeed(token, i), or missing[i] for a length of 0. flips[i] is
 * row_words_flip(i).
 */
typedef void row_words_keys_fn(struct row_words *w, const uint64_t *flips,
                               const uint64_t *missing, uint32_t n);

struct row_words_kernels {
    row_words_integers_fn *integers;
    row_words_keys_fn *keys;
};

/* SIMD_PLAIN is the definition. */
const struct row_words_kernels *row_words_kernels(enum simd build);

/* Of a field's number: what XXH3 mixes into a short token, seeded by it. */
uint64_t row_words_flip(uint32_t field);

#endif
