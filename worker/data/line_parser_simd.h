/*
 * The fast path of line_parser.h, for the most common plan: one character between columns, no quotes,
 * each field exactly one key. It parses well-formed rows only. Every other row, and so every refusal, is
 * line_parser_parse()'s, which is its definition.
 *
 *     bytes of a line -> a bit for each delimiter (marks) -> ends of columns
 *     numbers of up to 8 digits: 8 bytes at once, then a table of log1p
 *     tokens of 4 to 8 bytes:    XXH3's form for short input, all fields of a row together
 *     anything else:             column by column, as line_parser.c does it
 */
#ifndef WORKER_DATA_LINE_PARSER_SIMD_H
#define WORKER_DATA_LINE_PARSER_SIMD_H

#include <stdbool.h>

#include "common/simd.h"
#include "worker/data/line_parser.h"

/* True if rows of this plan can take the fast path. */
bool line_parser_simd_fits(const struct line_parser_plan *plan);

/* The constants of a plan's fields, for plan->simd; plans with the same fields may share them. NULL: no
 * memory. Free with free(). */
struct line_parser_simd *line_parser_simd_new(const struct line_parser_plan *plan,
                                              enum simd build) MUST_CHECK;

/* After a change of the fields' seeds. No thread parses by it. */
void line_parser_simd_set_seeds(struct line_parser_simd *q,
                                const struct line_parser_plan *plan);

/* Adds the line to the batch as line_parser_parse() would, or returns false and leaves the batch's
 * counts unchanged. plan->simd is set. */
bool line_parser_simd_try(const struct line_parser_plan *plan, const char *line, size_t len,
                          struct batch *b) MUST_CHECK;

/* line_parser_parse(), by the fast path where plan->simd and the row allow it. */
int line_parser_simd_parse(const struct line_parser_plan *plan, char *line, size_t len,
                           struct batch *b, struct err *why) MUST_CHECK;

/* ---- kernels: SIMD_PLAIN is the definition of each ---- */

#define LINE_PARSER_SIMD_MARKS_LEN_MAX 4096u /* bytes of a line */
#define LINE_PARSER_SIMD_MARKS_WORDS (LINE_PARSER_SIMD_MARKS_LEN_MAX / 64)

/* Bit i of marks: line[i] == delimiter; 0 from len to the end of the last word. False when the line holds
 * a NUL byte. len is at most LINE_PARSER_SIMD_MARKS_LEN_MAX; no byte after it is read. */
typedef bool line_parser_simd_marks_fn(const char *line, size_t len, char delimiter,
                                       uint64_t *marks);

line_parser_simd_marks_fn *line_parser_simd_marks(enum simd build);

#define LINE_PARSER_SIMD_WORDS_MAX 1024u /* a multiple of LINE_PARSER_SIMD_WORDS_STEP */
#define LINE_PARSER_SIMD_WORDS_STEP 8u
#define LINE_PARSER_SIMD_WORDS_NO_INTEGER UINT64_MAX

/* Short tokens of a row. Item i: the token's bytes in words[i], its length in lens[i], the result in
 * values[i]. Kernels compute whole steps: words and lens are written up to the next multiple of
 * LINE_PARSER_SIMD_WORDS_STEP. */
struct line_parser_simd_words {
    uint64_t words[LINE_PARSER_SIMD_WORDS_MAX], lens[LINE_PARSER_SIMD_WORDS_MAX],
        values[LINE_PARSER_SIMD_WORDS_MAX];
};

/*
 * words: the token's bytes, first lowest, and any others after them, but none of them '-' where lens is
 * 0. values: an integer of at most 8 digits; 0 for one with a minus and for a length of 0;
 * LINE_PARSER_SIMD_WORDS_NO_INTEGER for anything else, and for every length over 8.
 */
typedef void line_parser_simd_integers_fn(struct line_parser_simd_words *w, uint32_t n);

/*
 * words: last 4 bytes + (first 4 bytes << 32) of a token of 4 to 8 bytes. values: its
 * XXH3_64bits_withSeed(token, seed i), or missing[i] for a length of 0. flips[i] is line_parser_simd_flip(seed i).
 */
typedef void line_parser_simd_keys_fn(struct line_parser_simd_words *w, const uint64_t *flips,
                                      const uint64_t *missing, uint32_t n);

struct line_parser_simd_kernels {
    line_parser_simd_integers_fn *integers;
    line_parser_simd_keys_fn *keys;
};

const struct line_parser_simd_kernels *line_parser_simd_kernels(enum simd build);

/* The value that XXH3 mixes into a short token with this seed. */
uint64_t line_parser_simd_flip(uint64_t seed);

#endif
