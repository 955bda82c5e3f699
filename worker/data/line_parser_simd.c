#include "worker/data/line_parser_simd.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Hashing a token of a few bytes costs less than calling a library for it. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/memory.h"

/* ---- delimiters ---- */

static bool marks_plain(const char *line, size_t len, char delimiter, uint64_t *marks)
{
    memset(marks, 0, (len + 63) / 64 * sizeof *marks);
    for (size_t i = 0; i < len; i++) {
        if (line[i] == '\0')
            return false;
        marks[i / 64] |= (uint64_t)(line[i] == delimiter) << i % 64;
    }
    return true;
}

#if defined(__x86_64__)
SIMD_TARGET_AVX2
static inline uint64_t equal_32(const char *bytes, __m256i wanted)
{
    __m256i found = _mm256_loadu_si256((const __m256i *)(const void *)bytes);

    return (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(found, wanted));
}

SIMD_TARGET_AVX2
static inline uint64_t equal_64(const char *bytes, __m256i wanted)
{
    return equal_32(bytes, wanted) | equal_32(bytes + 32, wanted) << 32;
}

SIMD_TARGET_AVX2
static bool marks_avx2(const char *line, size_t len, char delimiter, uint64_t *marks)
{
    const __m256i wanted = _mm256_set1_epi8(delimiter), nul = _mm256_setzero_si256();
    uint64_t nuls = 0, kept;
    char tail[64] = { 0 };
    size_t at = 0;

    for (; at + 64 <= len; at += 64) {
        *marks++ = equal_64(line + at, wanted);
        nuls |= equal_64(line + at, nul);
    }
    if (at == len)
        return nuls == 0;
    memcpy(tail, line + at, len - at);
    kept = (UINT64_C(1) << (len - at)) - 1;
    *marks = equal_64(tail, wanted) & kept;
    return (nuls | (equal_64(tail, nul) & kept)) == 0;
}

SIMD_TARGET_AVX512
static bool marks_avx512(const char *line, size_t len, char delimiter, uint64_t *marks)
{
    const __m512i wanted = _mm512_set1_epi8(delimiter);
    uint64_t nuls = 0;

    for (size_t at = 0; at < len; at += 64) {
        size_t n = len - at;
        __mmask64 kept = n < 64 ? (UINT64_C(1) << n) - 1 : ~UINT64_C(0);
        __m512i bytes = _mm512_maskz_loadu_epi8(kept, line + at);

        *marks++ = _mm512_mask_cmpeq_epi8_mask(kept, bytes, wanted);
        nuls |= _mm512_mask_testn_epi8_mask(kept, bytes, bytes);
    }
    return nuls == 0;
}
#endif

line_parser_simd_marks_fn *line_parser_simd_marks(enum simd build)
{
#if defined(__x86_64__)
    if (build == SIMD_AVX2)
        return marks_avx2;
    if (build == SIMD_AVX512)
        return marks_avx512;
#endif
    assert(build == SIMD_PLAIN);
    return marks_plain;
}

/* ---- numbers and keys of short tokens ---- */

static inline size_t whole_steps(uint32_t n)
{
    return ((size_t)n + LINE_PARSER_SIMD_WORDS_STEP - 1) / LINE_PARSER_SIMD_WORDS_STEP *
           LINE_PARSER_SIMD_WORDS_STEP;
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
    return odd ? LINE_PARSER_SIMD_WORDS_NO_INTEGER : x;
}

SIMD_INLINE void integers(struct line_parser_simd_words *w, uint32_t n)
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

SIMD_INLINE void keys(struct line_parser_simd_words *w, const uint64_t *flips,
                      const uint64_t *missing, uint32_t n)
{
    const size_t n_whole = whole_steps(n);

    for (size_t i = 0; i < n_whole; i++) {
        uint64_t key = key_of(w->words[i], w->lens[i], flips[i]);

        w->values[i] = w->lens[i] ? key : missing[i];
    }
}

/* XXH3's default secret, bytes 8 to 23, are the two words. */
uint64_t line_parser_simd_flip(uint64_t seed)
{
    seed ^= (uint64_t)__builtin_bswap32((uint32_t)seed) << 32;
    return (UINT64_C(0x1cad21f72c81017c) ^ UINT64_C(0xdb979083e96dd4de)) - seed;
}

#define KERNELS(build, target)                                                               \
    target static void integers_##build(struct line_parser_simd_words *w, uint32_t n)        \
    {                                                                                        \
        integers(w, n);                                                                      \
    }                                                                                        \
    target static void keys_##build(struct line_parser_simd_words *w, const uint64_t *flips, \
                                    const uint64_t *missing, uint32_t n)                     \
    {                                                                                        \
        keys(w, flips, missing, n);                                                          \
    }

KERNELS(plain, SIMD_TARGET_PLAIN)
KERNELS(avx2, SIMD_TARGET_AVX2)
KERNELS(avx512, SIMD_TARGET_AVX512)

const struct line_parser_simd_kernels *line_parser_simd_kernels(enum simd build)
{
    static const struct line_parser_simd_kernels kernels[SIMD_END] = {
        [SIMD_PLAIN] = { integers_plain, keys_plain },
        [SIMD_AVX2] = { integers_avx2, keys_avx2 },
        [SIMD_AVX512] = { integers_avx512, keys_avx512 },
    };

    assert(build < SIMD_END);
    return &kernels[build];
}

static_assert(LINE_PARSER_SIMD_WORDS_MAX == LINE_PARSER_COLUMNS_MAX, "a row fits");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "digits and tokens are read as words");

struct line_parser_simd {
    line_parser_simd_marks_fn *marks;
    const struct line_parser_simd_kernels *kernels;
    uint32_t n_fields;
    uint64_t flips[LINE_PARSER_COLUMNS_MAX];
    uint64_t missing[LINE_PARSER_COLUMNS_MAX]; /* the empty token's key */
};

/* Read in the place of a token that is not short. */
static const char none[8];

static uint64_t read_64(const void *at)
{
    uint64_t word;

    memcpy(&word, at, sizeof word);
    return word;
}

static uint64_t read_32(const void *at)
{
    uint32_t word;

    memcpy(&word, at, sizeof word);
    return word;
}

/* The kernels read whole steps. */
static void fill_step(struct line_parser_simd_words *w, uint32_t n)
{
    for (; n % LINE_PARSER_SIMD_WORDS_STEP; n++)
        w->words[n] = w->lens[n] = 0;
}

bool line_parser_simd_fits(const struct line_parser_plan *plan)
{
    for (uint32_t f = 0; f < plan->n_fields; f++)
        if (plan->fields[f].is_bucket)
            return false;
    return plan->delimiter[0] && !plan->delimiter[1] && !plan->quote && plan->n_positive == 0 &&
           !plan->missing[0] && plan->missing_has_key && !plan->inner_separator[0];
}

void line_parser_simd_set_seeds(struct line_parser_simd *q, const struct line_parser_plan *plan)
{
    for (uint32_t f = 0; f < q->n_fields; f++) {
        q->flips[f] = line_parser_simd_flip(plan->fields[f].seed);
        q->missing[f] = XXH3_64bits_withSeed("", 0, plan->fields[f].seed);
    }
}

struct line_parser_simd *line_parser_simd_new(const struct line_parser_plan *plan,
                                              enum simd build)
{
    struct line_parser_simd *q = memory_try_alloc(sizeof *q);

    if (!q)
        return NULL;
    q->marks = line_parser_simd_marks(build);
    q->kernels = line_parser_simd_kernels(build);
    q->n_fields = plan->n_fields;
    line_parser_simd_set_seeds(q, plan);
    return q;
}

/* ---- columns ---- */

/* Column c is line[ends[c] + 1] .. line[ends[c + 1] - 1]; ends[0] is one before the line. */
struct columns_of {
    const char *line;
    uint32_t len;
    uint32_t ends[LINE_PARSER_COLUMNS_MAX + 1 + 8]; /* find_columns() writes in eights */
};

static uint32_t column_begin(const struct columns_of *c, uint32_t column)
{
    return c->ends[column] + 1;
}

static uint32_t column_len(const struct columns_of *c, uint32_t column)
{
    return c->ends[column + 1] - c->ends[column] - 1;
}

static struct line_parser_span column_span(const struct columns_of *c, uint32_t column)
{
    /* Nothing writes through it: the plain path does, when it removes quotes. */
    return (struct line_parser_span){ (char *)(uintptr_t)c->line + column_begin(c, column),
                                      column_len(c, column) };
}

/* The positions of a word's bits, counted from `from`; eight at a time: the next call overwrites those that
 * are too many. */
static void write_places(uint64_t word, uint32_t n, uint32_t from, uint32_t *to)
{
    for (uint32_t i = 0; i < n; i += 8)
#pragma GCC unroll 8
        for (uint32_t j = i; j < i + 8; j++) {
            to[j] = from + (uint32_t)__builtin_ctzll(word | UINT64_C(1) << 63);
            word &= word - 1;
        }
}

static bool find_columns(const struct line_parser_plan *plan, const char *line, size_t len,
                         struct columns_of *ret)
{
    uint64_t marks[LINE_PARSER_SIMD_MARKS_WORDS];
    uint32_t n_words = (uint32_t)(len + 63) / 64, n = 0;

    if (len == 0 || len > LINE_PARSER_SIMD_MARKS_LEN_MAX ||
        !plan->simd->marks(line, len, plan->delimiter[0], marks))
        return false;
    ret->line = line;
    ret->len = (uint32_t)len;
    ret->ends[0] = UINT32_MAX;
    for (uint32_t i = 0; i < n_words; i++) {
        uint32_t n_here = (uint32_t)__builtin_popcountll(marks[i]);

        if (n + n_here >= plan->n_columns)
            return false;
        write_places(marks[i], n_here, i * 64, ret->ends + 1 + n);
        n += n_here;
    }
    ret->ends[n + 1] = (uint32_t)len;
    return n + 1 == plan->n_columns;
}

/* ---- label and numbers ---- */

static bool parse_label(const struct columns_of *c, uint16_t column, float *ret_label)
{
    char digit;

    if (column_len(c, column) != 1)
        return false;
    digit = c->line[column_begin(c, column)];
    *ret_label = (float)(digit == '1');
    return digit == '0' || digit == '1';
}

static bool parse_labels(const struct line_parser_plan *plan, const struct columns_of *c,
                         struct batch *b)
{
    float *labels = b->label + (size_t)b->n * b->n_labels;

    assert(!plan->n_labels || b->n_labels == plan->n_labels);
    for (uint32_t i = 0; i < b->n_labels; i++) {
        labels[i] = 0;
        if (plan->n_labels && !parse_label(c, plan->label_columns[i], labels + i))
            return false;
    }
    return true;
}

static bool parse_logs(const struct line_parser_plan *plan, const struct columns_of *c,
                       float *numeric)
{
    struct line_parser_simd_words w;

    for (uint32_t i = 0; i < plan->n_numeric; i++) {
        uint32_t at = column_begin(c, plan->numeric_columns[i]),
                 n = column_len(c, plan->numeric_columns[i]);
        bool fits = n <= 8 && at + 8 <= c->len;

        w.words[i] = read_64(fits ? c->line + at : none);
        w.lens[i] = fits ? n : 9;
    }
    fill_step(&w, plan->n_numeric);
    plan->simd->kernels->integers(&w, plan->n_numeric);
    for (uint32_t i = 0; i < plan->n_numeric; i++) {
        if (!w.lens[i])
            numeric[i] = plan->numeric_missing;
        else if (w.values[i] < LINE_PARSER_LOG1P_TABLE)
            numeric[i] = plan->log1p_table[w.values[i]];
        else if (w.values[i] < LINE_PARSER_SIMD_WORDS_NO_INTEGER)
            numeric[i] = (float)log1p((double)w.values[i]);
        else if (line_parser_number(plan, i, column_span(c, plan->numeric_columns[i]),
                                    &numeric[i]) != LINE_PARSER_NUMBER_OK)
            return false;
    }
    return true;
}

static bool parse_numbers(const struct line_parser_plan *plan, const struct columns_of *c,
                          float *numeric)
{
    if (plan->numeric_as == LINE_PARSER_LOG1P)
        return parse_logs(plan, c, numeric);
    for (uint32_t i = 0; i < plan->n_numeric; i++)
        if (line_parser_number(plan, i, column_span(c, plan->numeric_columns[i]),
                               &numeric[i]) != LINE_PARSER_NUMBER_OK)
            return false;
    return true;
}

/* ---- fields ---- */

static bool is_short(uint32_t token_len)
{
    return token_len - 4 <= 4;
}

static void parse_fields(const struct line_parser_plan *plan, const struct columns_of *c,
                         uint64_t *keys)
{
    uint32_t n_long = 0;
    struct line_parser_simd_words w;

    for (uint32_t f = 0; f < plan->n_fields; f++) {
        uint32_t column = plan->fields[f].column, len = column_len(c, column);
        bool fits = is_short(len);
        const char *at = fits ? c->line + column_begin(c, column) : none;

        w.words[f] = read_32(at + (fits ? len - 4 : 0)) | read_32(at) << 32;
        w.lens[f] = len;
        n_long += !fits && len > 0;
    }
    fill_step(&w, plan->n_fields);
    plan->simd->kernels->keys(&w, plan->simd->flips, plan->simd->missing, plan->n_fields);
    memcpy(keys, w.values, plan->n_fields * sizeof *keys);
    for (uint32_t f = 0; f < plan->n_fields && n_long > 0; f++) {
        struct line_parser_span token = column_span(c, plan->fields[f].column);

        if (token.len == 0 || is_short((uint32_t)token.len))
            continue;
        keys[f] = XXH3_64bits_withSeed(token.at, token.len, plan->fields[f].seed);
        n_long--;
    }
    for (uint32_t f = 0; f < plan->n_fields && plan->has_spaces; f++)
        keys[f] = line_parser_key_of(&plan->fields[f], keys[f]);
}

bool line_parser_simd_try(const struct line_parser_plan *plan, const char *line, size_t len,
                          struct batch *b)
{
    uint32_t n_fields = plan->n_fields, *ends = b->starts + (size_t)b->n * n_fields + 1;
    struct columns_of c;

    assert(n_fields == plan->simd->n_fields);
    if (!find_columns(plan, line, len, &c) || !parse_labels(plan, &c, b) ||
        !parse_numbers(plan, &c, b->numeric + (size_t)b->n * plan->n_numeric) ||
        batch_reserve_keys(b, n_fields))
        return false;
    parse_fields(plan, &c, b->keys + b->n_keys);
    for (uint32_t f = 0; f < n_fields; f++)
        ends[f] = b->n_keys + f + 1;
    b->n_keys += n_fields;
    b->n++;
    return true;
}

int line_parser_simd_parse(const struct line_parser_plan *plan, char *line, size_t len,
                           struct batch *b, struct err *why)
{
    if (plan->simd && line_parser_simd_try(plan, line, len, b))
        return 0;
    return line_parser_parse(plan, line, len, b, why);
}
