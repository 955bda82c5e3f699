/*
 * What an optimizer is: a table of functions, and the values that all rows of a push share.
 *
 * An optimizer is pure arithmetic on one row. It knows neither tables nor threads nor messages, and keeps nothing
 * between calls. Its state of a row stands in the row, behind the weights; the table's step count t is an argument.
 *
 *     optimizer         state of a row of dim weights
 *     sgd               none
 *     momentum          b[dim]
 *     adagrad           s[dim]
 *     rowwise_adagrad   s
 *     adam              m[dim], v[dim]
 *     ftrl              z[dim], n[dim]
 *     adamw             m[dim], v[dim], t
 *     lion              m[dim], t
 *     lamb              m[dim], v[dim]
 *     lars              b[dim]
 *     sm3               s
 *     sm3_matrix        r[rows], c[columns] of the row as a matrix (optimizer_row.c)
 *     came              m[dim], r[rows], c[columns], R[rows], C[columns], likewise
 *
 * A row of a table with row_decay has one float more, behind these (row_decay.h).
 *
 * Weight decay of adamw, lion, lamb, lars and came is in their formulas. Of the others g becomes g + weight_decay * w
 * before anything else.
 */
#ifndef SERVER_CORE_OPTIMIZER_TYPE_H
#define SERVER_CORE_OPTIMIZER_TYPE_H

#include <stdbool.h>

#include "common/base.h"
#include "common/simd.h"
#include "proto/table_spec.h"

#define OPTIMIZER_N_DERIVED 8

/* A float of a gradient, which may lie where a message has it: at any address, in bytes. */
typedef float optimizer_gradient __attribute__((aligned(1), may_alias));

/* The values that all rows of one push share; made by optimizer_step_at(). */
struct optimizer_step {
    const struct optimizer_params *params; /* borrowed */
    float lr;                              /* after the schedule */
    uint64_t t;                            /* 1 for the table's first push; empty ones count */
    bool dense; /* Adam: torch.optim.Adam's form, else SparseAdam's */
    float
        derived[OPTIMIZER_N_DERIVED]; /* the optimizer's own: prepare() made it of the above */
};

/* Why floats are not the optimizer state of a row. */
enum optimizer_fault {
    OPTIMIZER_FINE,
    OPTIMIZER_NOT_FINITE,
    OPTIMIZER_NEGATIVE, /* a sum of squares */
    OPTIMIZER_ZERO,  /* a sum of squares that never is, in such a table, as it is divided by */
    OPTIMIZER_LARGE, /* no training leads there; the next steps may make weights infinite */
    OPTIMIZER_NO_STEP, /* a number that is no count of steps */
    OPTIMIZER_FAULT_END
};

struct optimizer {
    enum table_spec_optim id;

    /* The number of floats of state in a row of `dim` weights. */
    uint32_t (*state_floats)(uint32_t dim);

    /* Fills step->derived from the rest of *step, once per push. NULL: there is nothing to
     * fill. */
    void (*prepare)(struct optimizer_step *step);

    /* The state of a row whose weights have just been set. */
    void (*init)(const float *restrict weights, float *restrict state, uint32_t dim,
                 const struct optimizer_params *params);

    /* Is this, whose floats are finite, the state of a row? `gradient`: the largest magnitude of one, with weight
     * decay; may be infinite. Every state that pushes lead to is. */
    enum optimizer_fault (*check)(const optimizer_gradient *state, uint32_t dim,
                                  const struct optimizer_params *params, double gradient);

    /* One step on one row. The three arrays do not overlap. */
    void (*step)(float *restrict weights, float *restrict state,
                 const optimizer_gradient *restrict grad, uint32_t dim,
                 const struct optimizer_step *step);
};

#endif
