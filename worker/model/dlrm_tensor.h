/* A part of the model's dense array: what it is called in the store, how it starts, where its
 * values and gradients are. */
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

    /* Where it begins in the dense array, in floats: on a cache line. Behind it there is room for the rest of
     * its last block of SPEC_DENSE_BLOCK. */
    size_t at;

    float *values; /* n_floats, filled before a step, as stored: WITHOUT the offset */
    float *grads;  /* n_floats, filled by the step */

    /* The same where ops find them: in the device's memory. */
    struct {
        const float *values;
        float *grads;
    } device;
};

#endif
