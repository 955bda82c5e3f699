/* A dense array of the model: what it is called in the store, how it starts, where its values
 * and gradients are. */
#ifndef WORKER_MODEL_DLRM_TENSOR_H
#define WORKER_MODEL_DLRM_TENSOR_H

#include <stdbool.h>

#include "proto/spec.h"

#define DLRM_TENSORS_MAX 128u

struct dlrm_tensor {
    char name[32]; /* "bot.0.W" (out x in), "bot.0.b", "top.0.W", "bot.0.gamma" ... */
    uint32_t n_floats;
    enum spec_init init; /* W ~ N(0, 2 / (in + out)), b ~ N(0, 1 / out), the others 0 */
    float init_scale;    /* standard deviation */

    /* 1 for gamma and running variances, else 0: value in the formulas = stored value + it. */
    float init_offset;

    /* A running mean or variance: no loss gradient, but grads hold momentum * (running -
     * batch), to be applied with SGD at rate 1. */
    bool statistic;

    float *values; /* n_floats, filled before forward, as stored: WITHOUT the offset */
    float *grads;  /* n_floats, filled by backward */
};

#endif
