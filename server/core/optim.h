/*
 * What an optimizer is. The optimizers are optim_*.c, one each; optim_catalog.c, above them, finds one.
 *
 * An optimizer is pure arithmetic on one row. It knows neither tables nor threads nor messages, and keeps
 * nothing between calls: what it must remember about a row stands in the row, behind the weights; what it must
 * know about the table (the step count t) is an argument.
 */
#ifndef SERVER_CORE_OPTIM_H
#define SERVER_CORE_OPTIM_H

#include "common/base.h"
#include "proto/spec.h"

/* What is the same for all rows of one push. */
struct optim_step {
    const struct optim_params *params;
    float lr;      /* after the schedule */
    uint64_t t;    /* 1 for the table's first push: counts every push of the table, also an empty one */
};

struct optim {
    enum spec_optim id;

    /* How many floats of state a row of `dim` weights carries. */
    uint32_t (*state_floats)(uint32_t dim);

    /* The state of a row whose weights have just been set. */
    void (*init)(const float *restrict weights, float *restrict state, uint32_t dim,
                 const struct optim_params *params);

    /* One step on one row. The three arrays do not overlap. */
    void (*step)(float *restrict weights, float *restrict state, const float *restrict grad,
                 uint32_t dim, const struct optim_step *step);
};

extern const struct optim optim_sgd, optim_momentum, optim_adagrad, optim_rowwise_adagrad, optim_adam, optim_ftrl;

#endif
