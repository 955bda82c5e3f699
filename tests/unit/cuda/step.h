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
    X(RESIDUAL_AT, IN, STEP_ROWS_MAX)                               \
    X(RESIDUAL_BEFORE, IN, STEP_ROWS_MAX * STEP_DIM)                \
    X(DROP_KEY, IN, 2)                                          \
    X(T, BETWEEN, STEP_N * STEP_LD)                             \
    X(R, BETWEEN, STEP_N * STEP_WIDTH)                          \
    X(T_OF_BAGS, BETWEEN, STEP_N * STEP_LD)                     \
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
    X(R_OF_BAGS, OUT, STEP_N * STEP_WIDTH)                      \
    X(DT_OF_BAGS, OUT, STEP_N * STEP_LD)                        \
    X(PAIRS, OUT, STEP_N)                                       \
    X(DT_PAIRS, OUT, STEP_N * STEP_LD)                          \
    X(CROSSED, OUT, STEP_N * STEP_LD)                           \
    X(DU, OUT, STEP_N * STEP_LD)                                \
    X(DT_CROSSED, OUT, STEP_N * STEP_LD)                        \
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
    X(RESIDUAL, OUT, STEP_ROWS_MAX * STEP_DIM)                      \
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

static inline bool step_goes_out(int a)
{
    return step_arrays[a].role == STEP_OUT || step_arrays[a].role == STEP_BYTES;
}

/* Every array's place in one piece of memory, each aligned to 32 bytes. */
size_t step_bytes(void);

struct step step_in(float *memory);
void step_draw_numbers(struct step *s, struct fixture_rng *rng);

/* Over what step_draw_numbers() has put there. Some rows are used by nobody. */
void step_draw_bags(struct step *s, struct fixture_rng *rng);

/* --- its ops, and two steps compared --- */

void step_ops(const struct device_ops *on, struct compute *c, const struct step *s);
int step_reserve(const struct device_ops *on, struct compute *c);

/* Numbers of an output that there are: of rows, those of this step. */
size_t step_n_made(const struct step *s, int a);

/* The first output that differs, or NULL. Bit for bit. */
const char *step_difference(const struct step *got, const struct step *want);

/* The same step on the CPU, in place. */
void step_on_cpu(struct step *s);

#endif
