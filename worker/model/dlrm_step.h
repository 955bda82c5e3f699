/* One batch for one step, as the caller has it in the host's memory. */
#ifndef WORKER_MODEL_DLRM_STEP_H
#define WORKER_MODEL_DLRM_STEP_H

#include <stdbool.h>

#include "worker/data/batch.h"
#include "worker/model/dlrm_travel.h"

/* Steps that may be under way at a time, at most: one is copied in, one computes, one is copied out. */
#define DLRM_SLOTS 3u

/* All borrowed until the step has ended. */
struct dlrm_step {
    const struct batch *batch;
    const float *rows; /* [batch->n_unique][dim] */
    const float *wide; /* [n_unique]; NULL unless config.wide */

    /* [n_unique], of a training step where the device keeps rows (dlrm_keep_rows()), and `rows` are then
     * dlrm_host_alloc()'s: a row that had the same place and version before, in any step, has the same bits now. No
     * two rows of a step have one place, but those of version 0, which have none. NULL: nobody knows of any. */
    const uint64_t *versions;
    const uint32_t *places;

    /* Of the same shapes, filled; a prediction does not look at them. */
    float *row_grads, *wide_grads;

    /* [dlrm_n_flows()], where dlrm_encodes(): what leaves the device in place of row_grads, wide_grads and the
     * dense gradients, which are then not looked at. NULL: these. */
    const struct dlrm_travel *travel;

    /* Feeds dropout's hash, so workers of one job that should drop differently get different numbers
     * or seeds. */
    uint64_t number;

    /* The dense array holds what it held at the step begun before this one: where that has been copied
     * to a device's memory it is good for this one too. */
    bool keeps_dense;
};

#endif
