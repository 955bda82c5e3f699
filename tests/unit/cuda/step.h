/*
 * A training step out of every op of device.h, on any device: a bottom layer, bags, interaction, a layer with norm and
 * dropout, a head, wide weights, and all the way back. What comes in, what goes out and what lies between stands in a
 * table; steps have the same shapes and different bags.
 */
#ifndef TESTS_UNIT_CUDA_STEP_H
#define TESTS_UNIT_CUDA_STEP_H

#include "tests/unit/cuda/rig.h"

enum {
    STEP_N = 9,
    STEP_NUMERIC = 5,
    STEP_FIELDS = 3,
    STEP_DIM = 4,
    STEP_HIDDEN = 8,
    STEP_VECTORS = STEP_FIELDS + 1,
    STEP_LD = STEP_VECTORS * STEP_DIM,
    STEP_WIDTH = STEP_DIM + STEP_VECTORS * (STEP_VECTORS - 1) / 2,
    STEP_BAGS = STEP_N * STEP_FIELDS,
    STEP_KEYS_MAX = 4 * STEP_BAGS,
    STEP_ROWS_MAX = 12,
    STEP_K = 2,           /* of the rows that are encoded by topk */
    STEP_SENT_FLOATS = 3, /* 6 STEP_K bytes */
    STEP_SPANS_MAX = STEP_ROWS_MAX + STEP_KEYS_MAX / (int)BAG_TRANSPOSE_SPAN
};

/* clang-format off */
#define STEP_ARRAYS(X)                                          \
    X(X, IN, STEP_N * STEP_NUMERIC)                             \
    X(LABEL, IN, STEP_N)                                        \
    X(STARTS, IN, STEP_BAGS + 1)                                \
    X(ROW_OF, IN, STEP_KEYS_MAX)                                \
    X(COUNTS, IN, 2)                                            \
    X(USES, IN, STEP_KEYS_MAX)                                  \
    X(SPANS, IN, STEP_SPANS_MAX + 1)                            \
    X(FIRST, IN, STEP_ROWS_MAX + 1)                             \
    X(ROWS, IN, STEP_ROWS_MAX * STEP_DIM)                       \
    X(WIDE, IN, STEP_ROWS_MAX)                                  \
    X(W1, IN, STEP_DIM * STEP_NUMERIC)                          \
    X(B1, IN, STEP_DIM)                                         \
    X(W2, IN, STEP_HIDDEN * STEP_WIDTH)                         \
    X(B2, IN, STEP_HIDDEN)                                      \
    X(W3, IN, STEP_HIDDEN)                                      \
    X(B3, IN, 1)                                                \
    X(GAMMA, IN, STEP_HIDDEN)                                   \
    X(BETA, IN, STEP_HIDDEN)                                    \
    X(RUNNING_MEAN, IN, STEP_HIDDEN)                            \
    X(RUNNING_VAR, IN, STEP_HIDDEN)                             \
    X(N_SENT, IN, 1)                                            \
    X(SENT_FROM, IN, STEP_ROWS_MAX)                             \
    X(OWED_AT, IN, STEP_ROWS_MAX)                               \
    X(OWED_BEFORE, IN, STEP_ROWS_MAX * STEP_DIM)                \
    X(DROP_KEY, IN, 2)                                          \
    X(T, BETWEEN, STEP_N * STEP_LD)                             \
    X(R, BETWEEN, STEP_N * STEP_WIDTH)                          \
    X(PRE, BETWEEN, STEP_N * STEP_HIDDEN)                       \
    X(Y, BETWEEN, STEP_N * STEP_HIDDEN)                         \
    X(Z, BETWEEN, STEP_N)                                       \
    X(DZ, BETWEEN, STEP_N)                                      \
    X(DY, BETWEEN, STEP_N * STEP_HIDDEN)                        \
    X(DR, BETWEEN, STEP_N * STEP_WIDTH)                         \
    X(DT, BETWEEN, STEP_N * STEP_LD)                            \
    X(DD, BETWEEN, STEP_N * STEP_DIM)                           \
    X(MEAN, BETWEEN, STEP_HIDDEN)                               \
    X(VAR, BETWEEN, STEP_HIDDEN)                                \
    X(INV_STD, BETWEEN, STEP_HIDDEN)                            \
    X(P, OUT, STEP_N)                                           \
    X(LOSS, OUT, 2)                                             \
    X(EVALUATED, OUT, STEP_N * STEP_HIDDEN)                     \
    X(DW1, OUT, STEP_DIM * STEP_NUMERIC)                        \
    X(DB1, OUT, STEP_DIM)                                       \
    X(DW2, OUT, STEP_HIDDEN * STEP_WIDTH)                       \
    X(DB2, OUT, STEP_HIDDEN)                                    \
    X(DW3, OUT, STEP_HIDDEN)                                    \
    X(DB3, OUT, 1)                                              \
    X(DGAMMA, OUT, STEP_HIDDEN)                                 \
    X(DBETA, OUT, STEP_HIDDEN)                                  \
    X(DMEAN, OUT, STEP_HIDDEN)                                  \
    X(DVAR, OUT, STEP_HIDDEN)                                   \
    X(DROWS, OUT, STEP_ROWS_MAX * STEP_DIM)                     \
    X(DWIDE, OUT, STEP_ROWS_MAX)                                \
    X(OWED, OUT, STEP_ROWS_MAX * STEP_DIM)                      \
    X(PLAIN, OUT, STEP_ROWS_MAX * STEP_DIM)                     \
    X(SENT, BYTES, STEP_ROWS_MAX * STEP_SENT_FLOATS)
/* clang-format on */

/* BYTES: they go out, and mean nothing as floats. */
enum step_role { STEP_IN, STEP_BETWEEN, STEP_OUT, STEP_BYTES };

enum step_array {
#define X(name, role, n) STEP_##name,
    STEP_ARRAYS(X)
#undef X
        STEP_N_ARRAYS
};

static const struct {
    const char *name;
    enum step_role role;
    uint32_t n_floats;
} step_arrays[] = {
#define X(name, role, n) { #name, STEP_##role, n },
    STEP_ARRAYS(X)
#undef X
};

struct step {
    float *at[STEP_N_ARRAYS];
    uint32_t n_rows; /* of what stands there now */
};

static inline uint32_t *step_words(const struct step *s, enum step_array a)
{
    return (uint32_t *)(void *)s->at[a];
}

static inline bool step_goes_out(int a)
{
    return step_arrays[a].role == STEP_OUT || step_arrays[a].role == STEP_BYTES;
}

/* Every array's place in one piece of memory, each aligned to 32 bytes. */
static inline size_t step_bytes(void)
{
    size_t n = 0;

    for (int a = 0; a < STEP_N_ARRAYS; a++)
        n += (step_arrays[a].n_floats + 7) / 8 * 8;
    return n * sizeof(float);
}

static inline struct step step_in(float *memory)
{
    struct step s = { 0 };

    for (int a = 0; a < STEP_N_ARRAYS; a++) {
        s.at[a] = memory;
        memory += (step_arrays[a].n_floats + 7) / 8 * 8;
    }
    return s;
}

/* Who uses each row, from STARTS and ROW_OF. */
static inline void step_find_uses(struct step *s)
{
    const uint32_t *starts = step_words(s, STEP_STARTS), *row_of = step_words(s, STEP_ROW_OF);
    uint32_t *transpose = step_words(s, STEP_USES), *spans = step_words(s, STEP_SPANS);
    uint32_t n = 0, n_spans = 0;

    for (uint32_t row = 0; row < s->n_rows; row++) {
        step_words(s, STEP_FIRST)[row] = n_spans;
        for (uint32_t bag = 0, of_row = 0; bag < STEP_BAGS; bag++)
            for (uint32_t k = starts[bag]; k < starts[bag + 1]; k++) {
                if (row_of[k] != row)
                    continue;
                if (of_row++ % BAG_TRANSPOSE_SPAN == 0)
                    spans[n_spans++] = n;
                transpose[n++] = bag;
            }
    }
    step_words(s, STEP_FIRST)[s->n_rows] = n_spans;
    spans[n_spans] = n;
    step_words(s, STEP_COUNTS)[0] = s->n_rows;
    step_words(s, STEP_COUNTS)[1] = n_spans;
}

static inline void step_draw_numbers(struct step *s, struct fixture_rng *rng)
{
    for (int a = 0; a < STEP_N_ARRAYS; a++)
        if (step_arrays[a].role == STEP_IN)
            fixture_fill(rng, s->at[a], step_arrays[a].n_floats, 1);
    for (int i = 0; i < STEP_N; i++)
        s->at[STEP_LABEL][i] = (float)fixture_below(rng, 2);
}

/* Some of `n` rows, each at most once, or none, in another order. */
static inline void step_draw_places(struct fixture_rng *rng, uint32_t *at, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        at[i] = i;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t other = i + fixture_below(rng, n - i), row = at[other];

        at[other] = at[i];
        at[i] = row;
    }
    for (uint32_t i = 0; i < n; i++)
        at[i] = fixture_below(rng, 5) ? at[i] : DEVICE_NONE;
}

static inline void step_draw_sent(struct step *s, struct fixture_rng *rng)
{
    step_words(s, STEP_N_SENT)[0] = fixture_below(rng, s->n_rows + 1);
    step_draw_places(rng, step_words(s, STEP_SENT_FROM), s->n_rows);
    step_draw_places(rng, step_words(s, STEP_OWED_AT), STEP_ROWS_MAX);
}

/* Over what step_draw_numbers() has put there. Some rows are used by nobody. */
static inline void step_draw_bags(struct step *s, struct fixture_rng *rng)
{
    static const enum step_array words[] = { STEP_STARTS, STEP_ROW_OF, STEP_COUNTS,
                                             STEP_USES,   STEP_SPANS,  STEP_FIRST };
    uint32_t n_keys = 0;

    for (size_t i = 0; i < COUNT_OF(words); i++)
        memset(s->at[words[i]], 0, step_arrays[words[i]].n_floats * sizeof(uint32_t));
    s->n_rows = 1 + fixture_below(rng, STEP_ROWS_MAX);
    for (uint32_t bag = 0; bag < STEP_BAGS; bag++) {
        step_words(s, STEP_STARTS)[bag] = n_keys;
        for (uint32_t k = fixture_below(rng, 5); k; k--)
            step_words(s, STEP_ROW_OF)[n_keys++] = fixture_below(rng, s->n_rows);
    }
    step_words(s, STEP_STARTS)[STEP_BAGS] = n_keys;
    step_find_uses(s);
    step_draw_sent(s, rng);
}

#endif
