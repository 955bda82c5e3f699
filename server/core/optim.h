/*
 * What an optimizer is. The optimizers are optim_*.c, one each; optim_catalog.c, above them,
 * finds one and makes its struct optim_step.
 *
 * An optimizer is pure arithmetic on one row. It knows neither tables nor threads nor messages,
 * and keeps nothing between calls: what it must remember about a row stands in the row, behind
 * the weights; what it must know about the table (the step count t) is an argument.
 *
 *     optimizer         state of a row of dim weights
 *     sgd               none
 *     momentum          b[dim]
 *     adagrad           s[dim]
 *     rowwise_adagrad   s
 *     adam              m[dim], v[dim]
 *     ftrl              z[dim], n[dim]
 *
 * Weight decay is the same for all: g becomes g + weight_decay * w before anything else.
 */
#ifndef SERVER_CORE_OPTIM_H
#define SERVER_CORE_OPTIM_H

#include <stdbool.h>

#include "common/base.h"
#include "proto/spec.h"

#define OPTIM_N_DERIVED 6

/* A float of a gradient, which may lie where a message has it: at any address, in bytes. */
typedef float optim_gradient __attribute__((aligned(1), may_alias));

/* What is the same for all rows of one push; made by optim_step_at(), optim_catalog.h. */
struct optim_step {
    const struct optim_params *params; /* borrowed */
    float lr;                          /* after the schedule */
    uint64_t t;                        /* 1 for the table's first push; empty ones count */
    bool dense;                        /* Adam: torch.optim.Adam's form, else SparseAdam's */
    float derived[OPTIM_N_DERIVED];    /* the optimizer's own: prepare() made it of the above */
};

struct optim {
    enum spec_optim id;

    /* How many floats of state a row of `dim` weights carries. */
    uint32_t (*state_floats)(uint32_t dim);

    /* Fills step->derived from the rest of *step, once per push. NULL: there is nothing to
     * fill. */
    void (*prepare)(struct optim_step *step);

    /* The state of a row whose weights have just been set. */
    void (*init)(const float *restrict weights, float *restrict state, uint32_t dim,
                 const struct optim_params *params);

    /* One step on one row. The three arrays do not overlap. */
    void (*step)(float *restrict weights, float *restrict state,
                 const optim_gradient *restrict grad, uint32_t dim,
                 const struct optim_step *step);
};

extern const struct optim optim_sgd, optim_momentum, optim_adagrad, optim_rowwise_adagrad,
    optim_adam, optim_ftrl;

#endif
