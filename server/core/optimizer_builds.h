/*
 * What the files of optimizers share: BUILDS(), which compiles an optimizer's step for each width of vectors, the
 * checks of a state, and the numbers that Adam and its kin derive from a step.
 */
#ifndef SERVER_CORE_OPTIMIZER_BUILDS_H
#define SERVER_CORE_OPTIMIZER_BUILDS_H

#include <math.h>

#include "server/core/optimizer_type.h"

/* An optimizer's functions, X_state_floats and so on, become X, X_avx2 and X_avx512 (common/simd.h): X_step, a
 * SIMD_INLINE function, is compiled for each. All builds leave the same bits. */
#define BUILDS(name, number, prepare_or_null)                     \
    BUILD(name, , SIMD_TARGET_PLAIN, number, prepare_or_null)     \
    BUILD(name, _avx2, SIMD_TARGET_AVX2, number, prepare_or_null) \
    BUILD(name, _avx512, SIMD_TARGET_AVX512, number, prepare_or_null)

#define BUILD(name, suffix, target, number, prepare_or_null)                              \
    target static void name##_row##suffix(float *restrict weights, float *restrict state, \
                                          const optimizer_gradient *restrict grad,        \
                                          uint32_t dim, const struct optimizer_step *s)   \
    {                                                                                     \
        name##_step(weights, state, grad, dim, s);                                        \
    }                                                                                     \
    static const struct optimizer name##suffix = {                                        \
        .id = (number),                                                                   \
        .state_floats = name##_state_floats,                                              \
        .prepare = (prepare_or_null),                                                     \
        .init = name##_init,                                                              \
        .check = name##_check,                                                            \
        .step = name##_row##suffix,                                                       \
    };

/* The initializer of an array by enum simd. */
#define BUILDS_OF(name)                                                                  \
    {                                                                                    \
        [SIMD_PLAIN] = &name, [SIMD_AVX2] = &name##_avx2, [SIMD_AVX512] = &name##_avx512 \
    }

/* --- what a state may be --- */

static inline enum optimizer_fault optimizer_check_magnitude(const optimizer_gradient *x,
                                                             uint32_t n, double max)
{
    const float most = (float)max;
    bool is_large = false;

    for (uint32_t i = 0; i < n; i++)
        is_large |= fabsf(x[i]) > most;
    return is_large ? OPTIMIZER_LARGE : OPTIMIZER_FINE;
}

/* Sums of squares, which begin at initial_accumulator and never fall from there to 0. `divides`: by the root alone. */
static inline enum optimizer_fault optimizer_check_sums(const optimizer_gradient *sums,
                                                        uint32_t n,
                                                        const struct optimizer_params *p,
                                                        bool divides)
{
    float least = n ? sums[0] : 0.0f;

    for (uint32_t i = 1; i < n; i++)
        least = sums[i] < least ? sums[i] : least;
    if (least < 0.0f)
        return OPTIMIZER_NEGATIVE;
    return n && least == 0.0f && divides && p->initial_accumulator > 0.0f ? OPTIMIZER_ZERO
                                                                          : OPTIMIZER_FINE;
}

/* --- what they derive from a step --- */

/* Of Adagrad, also row by row: the only number. */
enum { OPTIMIZER_ADAGRAD_RATE };

/* Of Adam and its kin. */

enum {
    OPTIMIZER_BETA1,
    OPTIMIZER_REST1,
    OPTIMIZER_BETA2,
    OPTIMIZER_REST2,
    OPTIMIZER_RATE,
    OPTIMIZER_ROOT_SCALE,
    OPTIMIZER_DECAY, /* of decoupled weight decay: of one step */
    OPTIMIZER_NOW    /* the step count as a row keeps it */
};

/* The decimal that a person meant. 1 - 0.999f is off by 1.3e-5 of itself, which is more than
 * all other roundings of a step; floats in [0.5, 1) tell all decimals of 7 places apart, so
 * that the one meant can be had back. */
static inline double optimizer_decimal(float beta)
{
    return rint((double)beta * 1e7) / 1e7;
}

/* What the means of t steps are too small by, as they begin at 0: 1 - b1^t, and the root of 1 - b2^t. */
struct optimizer_corrections {
    double mean, root;
};

/* Fills in the factors of both means. */
static inline struct optimizer_corrections optimizer_derive_means(struct optimizer_step *s)
{
    const double b1 = optimizer_decimal(s->params->beta1),
                 b2 = optimizer_decimal(s->params->beta2), t = (double)s->t;

    s->derived[OPTIMIZER_BETA1] = (float)b1;
    s->derived[OPTIMIZER_REST1] = (float)(1.0 - b1);
    s->derived[OPTIMIZER_BETA2] = (float)b2;
    s->derived[OPTIMIZER_REST2] = (float)(1.0 - b2);
    return (struct optimizer_corrections){ .mean = 1.0 - pow(b1, t),
                                           .root = sqrt(1.0 - pow(b2, t)) };
}

/* m is a mean of gradients, whose two factors are rounded: to a sum of up to 1.7. */
#define OPTIMIZER_MEAN 2.0

/* State of m, then v. v says nothing of m: with betas of its own it may have fallen faster, even to 0. */
static inline enum optimizer_fault optimizer_check_means(const optimizer_gradient *state,
                                                         uint32_t dim,
                                                         const struct optimizer_params *p,
                                                         double gradient)
{
    enum optimizer_fault fault = optimizer_check_sums(state + dim, dim, p, false);

    return fault ? fault : optimizer_check_magnitude(state, dim, OPTIMIZER_MEAN * gradient);
}

#endif
