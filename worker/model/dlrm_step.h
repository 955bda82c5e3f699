/* One batch for one step, as the caller has it in the host's memory. */
#ifndef WORKER_MODEL_DLRM_STEP_H
#define WORKER_MODEL_DLRM_STEP_H

#include <stdbool.h>

#include "worker/data/batch.h"

/* Steps that may be under way at a time, at most. */
#define DLRM_SLOTS 2u

/* All borrowed until the step has ended. */
struct dlrm_step {
    const struct batch *batch;
    const float *rows; /* [batch->n_unique][dim] */
    const float *wide; /* [n_unique]; NULL unless config.wide */

    /* Of the same shapes, filled; a prediction does not look at them. */
    float *row_grads, *wide_grads;

    /* Feeds dropout's hash, so workers of one job that should drop differently get different numbers
     * or seeds. */
    uint64_t number;

    /* The dense array holds what it held at the step begun before this one: where that has been copied
     * to a device's memory it is good for this one too. */
    bool keeps_dense;
};

#endif
