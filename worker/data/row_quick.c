#include "worker/data/row_quick.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "common/mem.h"
#include "worker/data/row_marks.h"
#include "worker/data/row_number.h"
#include "worker/data/row_words.h"

static_assert(ROW_WORDS_MAX == ROW_COLUMNS_MAX, "a row fits");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "digits and tokens are read as words");

struct row_quick {
    row_marks_fn *marks;
    const struct row_words_kernels *kernels;
    uint32_t n_fields;
    uint64_t flips[ROW_COLUMNS_MAX];
    uint64_t missing[ROW_COLUMNS_MAX]; /* the empty token's key */
};

/* What is read for a token that is not short. */
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
static void fill_step(struct row_words *w, uint32_t n)
{
    for (; n % ROW_WORDS_STEP; n++)
        w->words[n] = w->lens[n] = 0;
}

bool row_quick_fits(const struct row_plan *plan)
{
    for (uint32_t f = 0; f < plan->n_fields; f++)
        if (plan->fields[f].is_bucket)
            return false;
    return plan->delimiter[0] && !plan->delimiter[1] && !plan->quote && plan->n_positive == 0 &&
           !plan->missing[0] && plan->missing_has_key && !plan->inner_separator[0];
}

struct row_quick *row_quick_new(const struct row_plan *plan, enum simd build)
{
    struct row_quick *q = mem_try_alloc(sizeof *q);

    if (!q)
        return NULL;
    q->marks = row_marks(build);
    q->kernels = row_words_kernels(build);
    q->n_fields = plan->n_fields;
    for (uint32_t f = 0; f < q->n_fields; f++) {
        q->flips[f] = row_words_flip(f);
        q->missing[f] = XXH3_64bits_withSeed("", 0, f);
    }
    return q;
}

/* ---- columns ---- */

/* Column c is line[ends[c] + 1] .. line[ends[c + 1] - 1]; ends[0] is one before the line. */
struct columns_of {
    const char *line;
    uint32_t len;
    uint32_t ends[ROW_COLUMNS_MAX + 1 + 8]; /* find_columns() writes in eights */
};

static uint32_t column_begin(const struct columns_of *c, uint32_t column)
{
    return c->ends[column] + 1;
}

static uint32_t column_len(const struct columns_of *c, uint32_t column)
{
    return c->ends[column + 1] - c->ends[column] - 1;
}

static struct row_span column_span(const struct columns_of *c, uint32_t column)
{
    /* Only read from here on: the plain way's type serves quotes, which are not here. */
    return (struct row_span){ (char *)(uintptr_t)c->line + column_begin(c, column),
                              column_len(c, column) };
}

/* The places of a word's bits, `from` the first; eight at a time, what is too much to be written
 * over by the next. */
static void write_places(uint64_t word, uint32_t n, uint32_t from, uint32_t *to)
{
    for (uint32_t i = 0; i < n; i += 8)
#pragma GCC unroll 8
        for (uint32_t j = i; j < i + 8; j++) {
            to[j] = from + (uint32_t)__builtin_ctzll(word | UINT64_C(1) << 63);
            word &= word - 1;
        }
}

static bool find_columns(const struct row_plan *plan, const char *line, size_t len,
                         struct columns_of *ret)
{
    uint64_t marks[ROW_MARKS_WORDS];
    uint32_t n_words = (uint32_t)(len + 63) / 64, n = 0;

    if (len == 0 || len > ROW_MARKS_LEN_MAX ||
        !plan->quick->marks(line, len, plan->delimiter[0], marks))
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

static bool take_label(const struct row_plan *plan, const struct columns_of *c,
                       float *ret_label)
{
    char digit;

    *ret_label = 0;
    if (plan->label_column == ROW_NO_LABEL)
        return true;
    if (column_len(c, plan->label_column) != 1)
        return false;
    digit = c->line[column_begin(c, plan->label_column)];
    *ret_label = (float)(digit == '1');
    return digit == '0' || digit == '1';
}

static bool take_logs(const struct row_plan *plan, const struct columns_of *c, float *numeric)
{
    struct row_words w;

    for (uint32_t i = 0; i < plan->n_numeric; i++) {
        uint32_t at = column_begin(c, plan->numeric_columns[i]),
                 n = column_len(c, plan->numeric_columns[i]);
        bool fits = n <= 8 && at + 8 <= c->len;

        w.words[i] = read_64(fits ? c->line + at : none);
        w.lens[i] = fits ? n : 9;
    }
    fill_step(&w, plan->n_numeric);
    plan->quick->kernels->integers(&w, plan->n_numeric);
    for (uint32_t i = 0; i < plan->n_numeric; i++) {
        if (w.values[i] < ROW_LOG1P_TABLE)
            numeric[i] = plan->log1p_table[w.values[i]];
        else if (w.values[i] < ROW_WORDS_NO_INTEGER)
            numeric[i] = (float)log1p((double)w.values[i]);
        else if (row_number(plan, i, column_span(c, plan->numeric_columns[i]), &numeric[i]) !=
                 ROW_NUMBER_FINE)
            return false;
    }
    return true;
}

static bool take_numbers(const struct row_plan *plan, const struct columns_of *c,
                         float *numeric)
{
    if (plan->numeric_as == ROW_LOG1P && plan->numeric_missing == 0)
        return take_logs(plan, c, numeric);
    for (uint32_t i = 0; i < plan->n_numeric; i++)
        if (row_number(plan, i, column_span(c, plan->numeric_columns[i]), &numeric[i]) !=
            ROW_NUMBER_FINE)
            return false;
    return true;
}

/* ---- fields ---- */

static bool is_short(uint32_t token_len)
{
    return token_len - 4 <= 4;
}

static void take_fields(const struct row_plan *plan, const struct columns_of *c, uint64_t *keys)
{
    uint32_t n_long = 0;
    struct row_words w;

    for (uint32_t f = 0; f < plan->n_fields; f++) {
        uint32_t column = plan->fields[f].column, len = column_len(c, column);
        bool fits = is_short(len);
        const char *at = fits ? c->line + column_begin(c, column) : none;

        w.words[f] = read_32(at + (fits ? len - 4 : 0)) | read_32(at) << 32;
        w.lens[f] = len;
        n_long += !fits && len > 0;
    }
    fill_step(&w, plan->n_fields);
    plan->quick->kernels->keys(&w, plan->quick->flips, plan->quick->missing, plan->n_fields);
    memcpy(keys, w.values, plan->n_fields * sizeof *keys);
    for (uint32_t f = 0; f < plan->n_fields && n_long > 0; f++) {
        struct row_span token = column_span(c, plan->fields[f].column);

        if (token.len == 0 || is_short((uint32_t)token.len))
            continue;
        keys[f] = XXH3_64bits_withSeed(token.at, token.len, f);
        n_long--;
    }
}

bool row_quick_parse(const struct row_plan *plan, const char *line, size_t len, struct batch *b)
{
    uint32_t n_fields = plan->n_fields, *ends = b->starts + (size_t)b->n * n_fields + 1;
    struct columns_of c;

    assert(n_fields == plan->quick->n_fields);
    if (!find_columns(plan, line, len, &c) || !take_label(plan, &c, &b->label[b->n]) ||
        !take_numbers(plan, &c, b->numeric + (size_t)b->n * plan->n_numeric) ||
        batch_reserve_keys(b, n_fields))
        return false;
    take_fields(plan, &c, b->keys + b->n_keys);
    for (uint32_t f = 0; f < n_fields; f++)
        ends[f] = b->n_keys + f + 1;
    b->n_keys += n_fields;
    b->n++;
    return true;
}
